/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets of flows that send little go before the others of their class. This is for a scheduler whose queues are
 * first in, first out (HTB).
 *
 * A class's queue has an HTB of its own inside, WEIR_SPARSE_MAJOR | minor. A packet that HTB finds to be for that
 * qdisc's handle enters its direct queue, which goes first (htb_enqueue in net/sched/sch_htb.c). The class is charged as
 * for any packet, so that other classes see no difference.
 *
 * HTB takes skb->priority for a class or for its own handle before it asks a filter. The upload's packets have the class
 * there, or the handle of its inner queue, which weir_htb_class translates at the root. What arrives keeps its own
 * priority, because no program sees it behind the scheduler. Filters read in skb->cb what weir_down says of it.
 *
 * A flow is sparse while it sends less than one part in FLOW_PART of its class's rate. A packet that must not go
 * first may wait, and later ones of its flow must not overtake it. So the flow is not sparse again before it has
 * paused for as long as the queue can be.
 *
 * One part in CLASS_PART of a class may go first. A flow that waits as the others have used that up need not pause: a
 * steady one, as of speech, never would. It goes first again after RETURN_TIME. It may overtake a packet of its own then.
 * So it is with flows that an agent finds in its first RETURN_TIME: it does not know which of them wait.
 */
#ifndef WEIR_SPARSE_H
#define WEIR_SPARSE_H

#include "common/intf.h"

#define SPARSE_FLOW_BITS 14
#define FLOW_PART 4
#define CLASS_PART 2
#define COST_SHIFT 20
#define SPARSE_BURST 16       /* packets' time: so much, divided by the above, at once */
#define PACKET_BYTES 1514
#define LONGEST_BURST 200000000ULL  /* ns */
#define RETURN_TIME 1000000000ULL   /* ns */
#define OF_CLASS 1ULL /* in sparse_flow: the flow waits as its class's allowance was used up */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct weir_sparse_key);
	__type(value, struct weir_sparse);
} weir_sparse SEC(".maps");

/* Until when a flow's allowance is used up; 0: it was not seen. */
static __u64 sparse_flow[1 << SPARSE_FLOW_BITS];

/* The time of the first packet. Those that an earlier agent's program let wait may still do so. */
static __u64 sparse_begun;

/* Until when an allowance is used up, no earlier than now. No allowance is far ahead: other programs may write here. */
static __always_inline __u64 used_until(__u64 until, __u64 now, __u64 quiet)
{
	return until < now || until - now > 2 * quiet ? now : until;
}

/*
 * The place of a flow of a class. Sockets have numbers in a row, and so have classes: their sum would give the flows of
 * two classes one place.
 */
static __always_inline __u32 place_of(__u32 number, __u32 handle)
{
	__u32 mixed = (number ^ handle * 0x85ebca6b) * 0x9e3779b1;

	return ((mixed ^ mixed >> 15) * 0x2c1b3c6d) >> (32 - SPARSE_FLOW_BITS);
}

/*
 * The number of a packet's flow, for goes_first. A socket is one flow: TCP gives its packets another hash when it
 * sends them again, and those must not overtake the ones that wait.
 */
static __always_inline __u32 flow_of_socket(struct __sk_buff *skb)
{
	__u64 socket = bpf_get_socket_cookie(skb);

	return socket ? (__u32)socket ^ (__u32)(socket >> 32) : bpf_get_hash_recalc(skb);
}

/*
 * Whether a packet of this class goes first. `ifb_index`: as user space names the scheduler. `is_fragment`: fragments of
 * a datagram have no flow in common.
 */
static __always_inline int goes_first(struct __sk_buff *skb, __u32 ifb_index, __u32 handle, __u32 number,
				      int is_fragment)
{
	struct weir_sparse_key key = { .ifb_index = ifb_index, .handle = handle };
	__u64 now, burst, time, of_flow, of_class, longest, *flow;
	struct weir_sparse *class;
	int waits, is_found;

	class = bpf_map_lookup_elem(&weir_sparse, &key);
	if (!class)
		return 0;
	now = bpf_ktime_get_ns();
	burst = (SPARSE_BURST * PACKET_BYTES * class->cost) >> COST_SHIFT;
	if (burst > LONGEST_BURST)
		burst = LONGEST_BURST;
	time = (skb->len * class->cost) >> COST_SHIFT;
	/* No allowance is used up for longer than a flow that waits is not sparse. */
	if (time > class->quiet / FLOW_PART)
		time = class->quiet / FLOW_PART;
	flow = &sparse_flow[place_of(number, handle)];
	of_flow = used_until(*flow, now, class->quiet);
	of_class = used_until(class->passed, now, class->quiet);
	waits = of_flow - now > burst;
	if (!sparse_begun)
		sparse_begun = now;
	is_found = !*flow && now - sparse_begun < RETURN_TIME;
	if (skb->gso_segs > 1 || is_fragment || (waits && !(of_flow & OF_CLASS))) {
		*flow = (now + burst + class->quiet) & ~OF_CLASS;
		return 0;
	}
	if (waits || is_found || of_class - now > burst) {
		longest = now + burst + RETURN_TIME;
		of_flow = waits ? of_flow + FLOW_PART * time : longest;
		*flow = (of_flow < longest ? of_flow : longest) | OF_CLASS;
		return 0;
	}
	*flow = (of_flow + FLOW_PART * time) & ~OF_CLASS;
	class->passed = of_class + CLASS_PART * time;
	return 1;
}

/* The priority of a packet that goes first: the handle of its class's inner queue. */
static __always_inline __u32 first_of(__u32 handle)
{
	return (WEIR_SPARSE_MAJOR | (handle & 0xffff)) << 16;
}

/* Whether a priority is one of first_of. */
static __always_inline int is_first(__u32 priority)
{
	return priority >> 31 && !(priority & 0xffff);
}

/* Whether a priority names a class of the scheduler. */
static __always_inline int names_class(__u32 priority)
{
	return priority >> 16 == WEIR_HTB_MAJOR || is_first(priority);
}

/* Tells HTB's filters the class of a packet that arrives, and whether it goes first. */
static __always_inline void name_for_filters(struct __sk_buff *skb, __u32 handle, int goes_first)
{
	skb->cb[WEIR_CB_HANDLE] = handle;
	skb->cb[WEIR_CB_FIRST] = goes_first;
	/* HTB takes a priority that is a handle of its own before it asks a filter. */
	if (skb->priority >> 16)
		skb->priority = 0;
}

/* A filter at the root of HTB. It returns the class of a packet whose priority names no class. */
SEC("tc")
int weir_htb_class(struct __sk_buff *skb)
{
	__u32 handle = skb->cb[WEIR_CB_HANDLE], priority = skb->priority;

	if (is_first(priority))
		return WEIR_HTB_MAJOR << 16 | ((priority >> 16) & ~WEIR_SPARSE_MAJOR);
	return handle >> 16 == WEIR_HTB_MAJOR ? handle : NO_MATCH;
}

/* A filter at the HTB inside a class's queue of the download: the qdisc's handle for what goes first. */
SEC("tc")
int weir_htb_first(struct __sk_buff *skb)
{
	__u32 handle = skb->cb[WEIR_CB_HANDLE];

	if (handle >> 16 != WEIR_HTB_MAJOR || skb->cb[WEIR_CB_FIRST] != 1)
		return NO_MATCH;
	return first_of(handle);
}

#endif
