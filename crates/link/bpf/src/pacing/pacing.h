/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the class of a socket, and the number of sockets in it.
 *
 * The classifier knows the class of a packet and still has its socket at hand: it notes the class
 * in the socket's own storage, which dies with the socket. The pacer therefore needs to know
 * neither the cgroup nor the network namespace of a container.
 *
 * It counts, in windows of 134 ms, the sockets of a class that send in earnest (a quarter of
 * an equal share or more). If what all of them sent falls short of the class's share although
 * several compete, some of them want less than an equal part: then the part grows, step by
 * step, until the class has its share. So does what may be in flight, for a round trip may have
 * become longer than the least that was seen.
 */
#ifndef WEIR_PACE_H
#define WEIR_PACE_H

#include "common/link.h"

#define WEIR_WINDOW_SHIFT 27	/* 2^27 ns, 134 ms */
#define WEIR_IP_TCP_HEADERS 52	/* IPv4, TCP with timestamps */
#define WEIR_SCALE_ONE 1024	/* an equal part */
#define WEIR_MAX_CWND_SCALE (64 * WEIR_SCALE_ONE)

struct weir_flow { /* of one socket */
	__u64 window;
	__u32 handle;		/* of its class */
	__u32 sent;		/* bytes, in this window */
	__u32 rate;		/* bytes per second that weir has set; 0: none */
	__u32 counted;		/* 1: among its class's flows in this window */
	__u32 hands_off;	/* 1: the application paces the socket itself */
	__u32 most;		/* segments in flight that weir allows; 0: as many as it likes */
};
_Static_assert(sizeof(struct weir_flow) == 32, "a later agent takes this map over");

struct weir_class_flows { /* of one class */
	__u64 window;
	__u64 sent;		/* bytes, in this window */
	__u64 share;		/* bytes a window that the class may send */
	__u32 flows;		/* counted in this window */
	__u32 flows_before;	/* and in the one before */
	__u32 share_scale;		/* of the share divided by the flows: WEIR_SCALE_ONE or more */
	__u32 cwnd_scale;		/* in flight, of what a short round trip needs: as `share_scale` */
};
_Static_assert(sizeof(struct weir_class_flows) == 40, "user space makes entries of this size");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct weir_flow);
} weir_flows SEC(".maps");

/* Handle of a class -> bytes per second that it may send, at layer 2. Written by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u64);
} weir_shares SEC(".maps");

/* Handle of a class -> its flows. Made by user space, written by the classifier. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct weir_class_flows);
} weir_class_flow SEC(".maps");

/* A window ends. Processors race here: the loser's packet is missing from a count. */
static __always_inline void next_window(struct weir_class_flows *counted, __u32 handle, __u64 window)
{
	__u64 *rate = bpf_map_lookup_elem(&weir_shares, &handle);
	__u32 most = counted->flows * WEIR_SCALE_ONE, share_scale = counted->share_scale, cwnd_scale = counted->cwnd_scale;

	if (counted->window + 1 != window) {
		counted->flows = 0;
		share_scale = WEIR_SCALE_ONE;
		cwnd_scale = WEIR_SCALE_ONE;
	} else if (counted->sent < counted->share - counted->share / 128) {
		share_scale += share_scale / 16;
		cwnd_scale += cwnd_scale / 4;
	} else {
		share_scale -= share_scale / 16;
		cwnd_scale -= cwnd_scale / 16;
	}
	counted->cwnd_scale = cwnd_scale < WEIR_SCALE_ONE ? WEIR_SCALE_ONE : cwnd_scale > WEIR_MAX_CWND_SCALE ? WEIR_MAX_CWND_SCALE : cwnd_scale;
	counted->share_scale = share_scale < WEIR_SCALE_ONE || most < WEIR_SCALE_ONE ? WEIR_SCALE_ONE : share_scale > most ? most : share_scale;
	counted->flows_before = counted->flows;
	counted->flows = 0;
	counted->sent = 0;
	counted->share = rate ? *rate * (1ull << WEIR_WINDOW_SHIFT) / 1000000000 : 0;
	counted->window = window;
}

/* The packet's socket belongs to this class. `header`: bytes of the uplink's link-layer header. */
static __always_inline void note_flow(struct __sk_buff *skb, __u32 handle, __u32 header)
{
	__u64 window = bpf_ktime_get_ns() >> WEIR_WINDOW_SHIFT;
	struct bpf_sock *sk = skb->sk;
	struct weir_class_flows *counted;
	struct weir_flow *flow;
	__u32 bytes = skb->len - excess_of(skb->cb[WEIR_CB_EXCESS]);

	if (!sk)
		return;
	sk = bpf_sk_fullsock(sk);
	if (!sk || sk->protocol != IPPROTO_TCP)
		return;
	flow = bpf_sk_storage_get(&weir_flows, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	counted = bpf_map_lookup_elem(&weir_class_flow, &handle);
	if (!flow || !counted)
		return;
	if (skb->gso_segs > 1)
		bytes += (skb->gso_segs - 1) * (WEIR_IP_TCP_HEADERS + header);
	if (counted->window != window)
		next_window(counted, handle, window);
	if (flow->window != window || flow->handle != handle) {
		flow->window = window;
		flow->handle = handle;
		flow->sent = 0;
		flow->counted = 0;
	}
	flow->sent += bytes;
	__sync_fetch_and_add(&counted->sent, bytes);
	if (!flow->counted) {
		__u32 flows = counted->flows_before ? counted->flows_before : 1;

		if ((__u64)flow->sent * 4 * flows >= counted->share) {
			flow->counted = 1;
			__sync_fetch_and_add(&counted->flows, 1);
		}
	}
}

/* The packet's socket belongs to no class any more: its network has become exempt. */
static __always_inline void forget_flow(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;
	struct weir_flow *flow;

	if (!sk)
		return;
	sk = bpf_sk_fullsock(sk);
	if (!sk)
		return;
	flow = bpf_sk_storage_get(&weir_flows, sk, 0, 0);
	if (flow)
		flow->handle = 0;
}

#endif
