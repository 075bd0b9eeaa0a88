/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Networks that packets reach without the line. Some are on this node or behind its other interfaces
 * (WEIR_ON_NODE). Some are exempt: they are beside an uplink's device, as a LAN with the router to the line is.
 * Packets to and from exempt networks are neither scheduled nor measured at that uplink.
 *
 * The classifier's programs own the maps. Those of the download and of the link's signals use them too.
 */
#ifndef WEIR_LOCAL_H
#define WEIR_LOCAL_H

#include "common/intf.h"

/* Network -> WEIR_ON_NODE, and the bits of the links whose exempt networks cover it (WEIR_EXEMPT). */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct weir_prefix);
	__type(value, __u32);
} weir_local SEC(".maps");

/* By the number of the link. 1: it has exempt networks. Without any a packet costs no look at the networks. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEIR_LINKS);
	__type(key, __u32);
	__type(value, __u32);
} weir_exempt SEC(".maps");

static __always_inline int has_exempt(__u32 link)
{
	__u32 *has = bpf_map_lookup_elem(&weir_exempt, &link);

	return has && *has;
}

/* The value of the longest network that holds an address; 0: none does. */
static __always_inline __u32 known_of(const struct weir_prefix *address)
{
	__u32 *known = bpf_map_lookup_elem(&weir_local, address);

	return known ? *known : 0;
}

static __always_inline int is_exempt(const struct weir_prefix *address, __u32 link)
{
	return (known_of(address) & WEIR_EXEMPT(link)) != 0;
}

#endif
