/* SPDX-License-Identifier: Apache-2.0 */
/* The fields of an IP packet: addresses, protocol, ports. */
#ifndef WEIR_FIELDS_H
#define WEIR_FIELDS_H

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
	__u32 transport; /* offset of the header behind those of IP */
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
	fragment->transport = offset + ip.ihl * 4;
	if (!fragment->is_later)
		ports_of(skb, start, fragment->transport, f);
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
	fragment->transport = offset;
	if (!fragment->is_later)
		ports_of(skb, start, offset, f);
	return 1;
}

#endif
