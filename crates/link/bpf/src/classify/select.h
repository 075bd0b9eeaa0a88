/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which class do rules give an IP packet to?
 *
 * Rules are looked up, not walked: those that ask for the same fields (and prefixes of the same
 * length) share a mask, and all of a mask are found by one look into a hash table, however many
 * they are. So a packet pays for the kinds of rules there are, at most WEIR_MASKS. Each rule has
 * a rank, the least wins; masks are in the order of their least, so that looking ends as soon as
 * nothing better can come. Without rules nothing of this runs.
 *
 * Two sets of rules fit: user space fills the one that is not in use, then names it in the
 * configuration. A packet sees all of the old ones or all of the new.
 *
 * Only a datagram's first fragment has ports. The class of the first fragment is kept for the
 * others; fragments that come without it have no ports, and no rule that asks for one matches.
 */
#ifndef WEIR_SELECT_H
#define WEIR_SELECT_H

#define WEIR_KEY_WORDS 6
#define WEIR_MASKS 64
#define WEIR_NO_RANK (~0u)
#define WEIR_EXTENSIONS 6 /* headers between IPv6's own and the transport's */
#define WEIR_HEADERS 256  /* bytes in which all headers are that are looked at */
#define IP_OFFSET 0x1fff
#define IP_MORE 0x2000

struct weir_fields { /* of a packet, or those of a rule that its mask has; network byte order */
	__u8 source[16]; /* IPv4 as ::ffff:a.b.c.d */
	__u8 destination[16];
	__u32 from; /* handle of the class it would be in without rules */
	__be16 source_port;
	__be16 destination_port;
	__u8 protocol;
	__u8 dscp;
	__u16 table; /* set * WEIR_MASKS + mask */
	__u8 version; /* of IP: ::/0 has no IPv4 */
	__u8 zero[3];
};

union weir_key {
	struct weir_fields of;
	__u64 word[WEIR_KEY_WORDS];
};
_Static_assert(sizeof(union weir_key) == 48, "user space maps this layout");

struct weir_mask {
	__u64 word[WEIR_KEY_WORDS];
	__u32 first_rank; /* the least of its rules; WEIR_NO_RANK behind the last mask */
	__u32 zero;
};

struct weir_masks {
	struct weir_mask mask[WEIR_MASKS];
};
_Static_assert(sizeof(struct weir_masks) == 56 * WEIR_MASKS, "user space maps this layout");

struct weir_choice {
	__u32 rank;
	__u32 handle;
};
_Static_assert(sizeof(struct weir_choice) == 8, "user space maps this layout");

struct weir_datagram { /* that came in fragments */
	__u8 source[16];
	__u8 destination[16];
	__u32 from;
	__u32 id;
	__u32 protocol;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct weir_masks);
} weir_masks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, union weir_key);
	__type(value, struct weir_choice);
} weir_rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct weir_datagram);
	__type(value, __u32);
} weir_datagrams SEC(".maps");

/*
 * Reads a part of a packet's headers, at an offset from its network header or its MAC header
 * (`from`). A tunnel's packet has no MAC header, and a packet with a VLAN tag may have its network
 * header behind the tag or at it.
 *
 * The helper reads only what is in one piece; a sender may have its headers elsewhere.
 */
static __always_inline int load_header(struct __sk_buff *skb, __u32 from, __u32 offset, void *to, __u32 len)
{
	if (!bpf_skb_load_bytes_relative(skb, offset, to, len, from))
		return 0;
	bpf_skb_pull_data(skb, skb->len < WEIR_HEADERS ? skb->len : WEIR_HEADERS);
	return bpf_skb_load_bytes_relative(skb, offset, to, len, from);
}

struct fragment {
	__u32 id;
	__u8 is_first; /* has ports, and others follow */
	__u8 is_later; /* has none */
};

static __always_inline void ports_of(struct __sk_buff *skb, __u32 start, int offset, struct weir_fields *f)
{
	__be16 port[2];

	if (f->protocol != IPPROTO_TCP && f->protocol != IPPROTO_UDP && f->protocol != IPPROTO_SCTP)
		return;
	if (load_header(skb, start, offset, port, sizeof(port)))
		return;
	f->source_port = port[0];
	f->destination_port = port[1];
}

static __always_inline void mapped(__u8 *address, const __be32 *v4)
{
	address[10] = 0xff;
	address[11] = 0xff;
	__builtin_memcpy(address + 12, v4, 4);
}

static __always_inline int fields_v4(struct __sk_buff *skb, __u32 start, int offset,
				     struct weir_fields *f, struct fragment *fragment)
{
	struct iphdr ip;

	if (load_header(skb, start, offset, &ip, sizeof(ip)))
		return 0;
	f->version = 4;
	mapped(f->source, &ip.saddr);
	mapped(f->destination, &ip.daddr);
	f->protocol = ip.protocol;
	f->dscp = ip.tos >> 2;
	fragment->id = ip.id;
	fragment->is_later = (ip.frag_off & bpf_htons(IP_OFFSET)) != 0;
	fragment->is_first = !fragment->is_later && ip.frag_off & bpf_htons(IP_MORE);
	if (!fragment->is_later)
		ports_of(skb, start, offset + ip.ihl * 4, f);
	return 1;
}

static __always_inline int fields_v6(struct __sk_buff *skb, __u32 start, int offset,
				     struct weir_fields *f, struct fragment *fragment)
{
	struct ipv6hdr ip6;
	__u8 next;
	int i;

	if (load_header(skb, start, offset, &ip6, sizeof(ip6)))
		return 0;
	f->version = 6;
	__builtin_memcpy(f->source, &ip6.saddr, 16);
	__builtin_memcpy(f->destination, &ip6.daddr, 16);
	f->dscp = ip6.priority << 2 | ip6.flow_lbl[0] >> 6;
	next = ip6.nexthdr;
	offset += sizeof(ip6);
	for (i = 0; i < WEIR_EXTENSIONS; i++) {
		__u8 head[8];

		if (next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING && next != IPPROTO_DSTOPTS &&
		    next != IPPROTO_AH && next != IPPROTO_FRAGMENT)
			break;
		if (load_header(skb, start, offset, head, sizeof(head)))
			return 1;
		if (next == IPPROTO_FRAGMENT) { /* next, -, offset and flags, id */
			fragment->is_later = head[2] || head[3] & 0xf8;
			fragment->is_first = !fragment->is_later && head[3] & 1;
			__builtin_memcpy(&fragment->id, head + 4, 4);
			offset += 8;
		} else if (next == IPPROTO_AH) {
			offset += (head[1] + 2) * 4;
		} else {
			offset += (head[1] + 1) * 8;
		}
		next = head[0];
		if (fragment->is_later)
			break;
	}
	f->protocol = next;
	if (!fragment->is_later)
		ports_of(skb, start, offset, f);
	return 1;
}

/* The class of the first rule that matches, or else of no rule. */
static __always_inline __u32 best_rule(const union weir_key *packet, __u32 set, __u32 handle)
{
	const struct weir_masks *masks = bpf_map_lookup_elem(&weir_masks, &set);
	__u32 best = WEIR_NO_RANK;
	union weir_key key;
	int i, w;

	if (!masks)
		return handle;
	for (i = 0; i < WEIR_MASKS; i++) {
		const struct weir_mask *mask = &masks->mask[i];
		const struct weir_choice *choice;

		if (mask->first_rank >= best)
			break;
		for (w = 0; w < WEIR_KEY_WORDS; w++)
			key.word[w] = packet->word[w] & mask->word[w];
		key.of.table = set * WEIR_MASKS + i;
		choice = bpf_map_lookup_elem(&weir_rules, &key);
		if (choice && choice->rank < best) {
			best = choice->rank;
			handle = choice->handle;
		}
	}
	return handle;
}

/*
 * The class of an IP packet whose header is at this offset (load_header), `from` being its class
 * without rules.
 * `set` is 0 or 1.
 */
static __always_inline __u32 select_class(struct __sk_buff *skb, __u32 start, int offset, int is_v6,
					  __u32 set, __u32 from)
{
	struct weir_datagram datagram;
	struct fragment fragment = {};
	union weir_key packet = {};
	__u32 handle, *known;

	packet.of.from = from;
	if (is_v6 ? !fields_v6(skb, start, offset, &packet.of, &fragment)
		  : !fields_v4(skb, start, offset, &packet.of, &fragment))
		return from;
	if (!fragment.is_first && !fragment.is_later)
		return best_rule(&packet, set, from);
	__builtin_memcpy(datagram.source, packet.of.source, 32); /* and destination */
	datagram.from = from;
	datagram.id = fragment.id;
	datagram.protocol = packet.of.protocol;
	if (fragment.is_later) {
		known = bpf_map_lookup_elem(&weir_datagrams, &datagram);
		if (known)
			return *known;
	}
	handle = best_rule(&packet, set, from);
	if (fragment.is_first)
		bpf_map_update_elem(&weir_datagrams, &datagram, &handle, BPF_ANY);
	return handle;
}

#endif
