/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the owner of a socket, its destination, and the rule for the connection. */
#ifndef WEIR_CONGESTION_RULES_H
#define WEIR_CONGESTION_RULES_H

#include "congestion.h"
#include "common/sockets.h"

#define V4 4
#define V6 6

/* Cookie of a network namespace -> handle of its class. Weir leaves sockets elsewhere alone. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u32);
} weir_cc_homes SEC(".maps");

/* Cgroup id -> handle of its class, for sockets in the agent's own network namespace. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u32);
} weir_cc_groups SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 131072);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct weir_cc_key);
	__type(value, struct weir_cc_rule);
} weir_cc_rules SEC(".maps");

/* The class of a socket; 0 if weir has nothing to do with it. */
static __always_inline __u32 class_of(const struct weir_cc_config *cfg, struct sock *sk)
{
	__u64 cookie = sk->__sk_common.skc_net.net->net_cookie;
	__u32 *found = bpf_map_lookup_elem(&weir_cc_homes, &cookie), handle;
	struct cgroup *group;
	int level, depth;

	if (!found)
		return 0;
	handle = *found;
	if (cookie != cfg->host_cookie || !cfg->cgroup_levels)
		return handle;
	group = sk->sk_cgrp_data.cgroup;
	if (!group)
		return handle;
	depth = group->level;
#pragma unroll
	for (level = 1; level <= WEIR_LEVELS; level++) {
		struct cgroup *one = NULL;
		struct kernfs_node *kn = NULL;
		__u64 id = 0;

		if (level > depth)
			break;
		if (!(cfg->cgroup_levels & (1u << level)))
			continue;
		if (bpf_probe_read_kernel(&one, sizeof(one), &group->ancestors[level]) || !one ||
		    bpf_probe_read_kernel(&kn, sizeof(kn), &one->kn) || !kn ||
		    bpf_probe_read_kernel(&id, sizeof(id), &kn->id))
			break;
		found = bpf_map_lookup_elem(&weir_cc_groups, &id);
		if (found)
			handle = *found;
	}
	return handle;
}

/* The far end, as a key's address; the IP version, 0 if it is this node itself. */
static __always_inline __u8 far_end(struct sock *sk, __u8 *address)
{
	__u32 words[4] = {};

	if (sk->__sk_common.skc_family == AF_INET) {
		words[0] = sk->__sk_common.skc_daddr;
	} else if (sk->__sk_common.skc_family == AF_INET6) {
		bpf_probe_read_kernel(words, sizeof(words), &sk->__sk_common.skc_v6_daddr);
		if (words[0] || words[1] || words[2] != bpf_htonl(0xffff)) {
			__builtin_memcpy(address, words, sizeof(words));
			return words[0] || words[1] || words[2] || words[3] != bpf_htonl(1) ? V6 : 0;
		}
		words[0] = words[3]; /* IPv4 in a socket of IPv6 */
		words[1] = words[2] = words[3] = 0;
	} else {
		return 0;
	}
	__builtin_memcpy(address, words, sizeof(words));
	return (words[0] & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000) ? 0 : V4;
}

/* The rule of a connection, of all kinds of rules that there are. */
static __always_inline const struct weir_cc_rule *find(const struct weir_cc_config *cfg, __u32 handle,
						       __u8 version, const __u8 *address,
						       __u16 port, __u8 direction)
{
	const struct weir_cc_rule *best = NULL, *one;
	__u32 kinds = cfg->kinds, kind;
	struct weir_cc_key key = { .prefix_len_bits = WEIR_CC_FIXED_BITS + 128 };

	if (!cfg->set)
		return NULL;
	key.table = cfg->set << 4 | version;
	__builtin_memcpy(key.address, address, sizeof(key.address));
#pragma unroll
	for (kind = 0; kind < 8; kind++) {
		if (!(kinds & (1u << kind)))
			continue;
		key.handle = kind & WEIR_CC_BY_CLASS ? handle : 0;
		key.port = kind & WEIR_CC_BY_PORT ? port : 0;
		key.direction = kind & WEIR_CC_BY_DIRECTION ? direction : 0;
		one = bpf_map_lookup_elem(&weir_cc_rules, &key);
		if (one && (!best || one->rank > best->rank))
			best = one;
	}
	return best;
}

/* The same for a socket whose far end is known. */
static __always_inline const struct weir_cc_rule *rule_at(const struct weir_cc_config *cfg, struct sock *sk,
							  __u32 handle, __u8 version, const __u8 *address,
							  __u8 direction)
{
	__u16 remote = bpf_ntohs(sk->__sk_common.skc_dport), local = sk->__sk_common.skc_num;

	return find(cfg, handle, version, address, direction == WEIR_CC_IN ? local : remote, direction);
}

static __always_inline const struct weir_cc_rule *rule_of(const struct weir_cc_config *cfg, struct sock *sk,
							  __u32 handle, __u8 direction)
{
	__u8 address[16], version = far_end(sk, address);

	return version ? rule_at(cfg, sk, handle, version, address, direction) : NULL;
}

#endif
