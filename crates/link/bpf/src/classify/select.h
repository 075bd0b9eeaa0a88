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

#include "fields.h"

#define WEIR_KEY_WORDS 6
#define WEIR_MASKS 64
#define WEIR_NO_RANK (~0u)

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
