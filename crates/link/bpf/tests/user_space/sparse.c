/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choice of packets that go first in user space: sparse.h as it is, with functions in place of the kernel's.
 * So a test can run it in a time of its own (src/classify/sparse/tests.rs).
 */
#include <linux/bpf.h>

#include "macros.h"

#define NO_MATCH 0

static __u64 time_now;

static __u64 bpf_ktime_get_ns(void)
{
	return time_now;
}

static __u64 bpf_get_socket_cookie(struct __sk_buff *skb)
{
	return skb->hash;
}

static __u32 bpf_get_hash_recalc(struct __sk_buff *skb)
{
	return skb->hash;
}

static void *bpf_map_lookup_elem(void *map, const void *key);

#include "classify/sparse.h"

static struct weir_sparse the_class;

static void *bpf_map_lookup_elem(void *map, const void *key)
{
	return &the_class;
}

/* Forgets everything, and states what is known of any class, and the time of the first packet. */
void sparse_user_init(__u64 cost, __u64 quiet, __u64 begun)
{
	__builtin_memset(sparse_flow, 0, sizeof(sparse_flow));
	sparse_begun = begun;
	the_class = (struct weir_sparse){ .cost = cost, .quiet = quiet };
}

/* A packet of a flow of a class comes. Returns whether it goes first. */
int sparse_user_send(__u64 now, __u32 minor, __u32 flow, __u32 len, __u32 segments)
{
	struct __sk_buff skb = { .len = len, .gso_segs = segments, .hash = flow };
	__u32 handle = WEIR_HTB_MAJOR << 16 | minor;

	time_now = now;
	return goes_first(&skb, 1, handle, flow_of_socket(&skb), 0);
}
