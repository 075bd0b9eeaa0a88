/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Credit where the packet is: no queue, no device of weir's. A class earns credit at its rate;
 * a packet that finds some takes its length (and may leave a debt: a super-packet passes
 * whole), one that finds none is dropped. For TCP that is the last resort behind pacing.
 *
 * It fails open: user space says, with the rate, until when it is good. A rate that the agent does
 * not renew would be a limit that never adapts.
 */
#ifndef WEIR_CREDIT_H
#define WEIR_CREDIT_H

#define WEIR_SEGMENT_HEADERS 52	/* IPv4, TCP with timestamps */
#define WEIR_STEP_SHIFT 10	/* credit is earned in steps of 1024 ns */
#define WEIR_MOST_STEPS (1u << 17)

struct weir_refill { /* written by user space, only read in the kernel */
	__u64 bytes_per_sec;
	__u64 burst_bytes;
	__u64 until_ns;	/* monotonic */
};
_Static_assert(sizeof(struct weir_refill) == 24, "user space maps this layout");

struct weir_credit { /* made by user space, written in the kernel */
	struct bpf_spin_lock lock;
	__u32 packets_dropped;
	__u64 filled_ns;
	__s64 credit;	/* bytes */
	__u64 bytes;	/* that have passed, layer 2 */
	__u64 packets;
	__u64 bytes_dropped;
};
_Static_assert(sizeof(struct weir_credit) == 48, "user space maps this layout");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct weir_refill);
} weir_refills SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct weir_credit);
} weir_credits SEC(".maps");

/* Whether the packet may pass; counts it. `header`: bytes of the uplink's link-layer header. */
static __always_inline int has_credit(struct __sk_buff *skb, __u32 handle, __u32 header)
{
	const struct weir_refill *refill = bpf_map_lookup_elem(&weir_refills, &handle);
	struct weir_credit *c = bpf_map_lookup_elem(&weir_credits, &handle);
	__u32 segments = skb->gso_segs > 1 ? skb->gso_segs : 1;
	__u32 first = skb->len - excess_of(skb->cb[WEIR_CB_EXCESS]);
	__u32 bytes = first + (segments - 1) * (WEIR_SEGMENT_HEADERS + header);
	__u64 now = bpf_ktime_get_ns(), rate, burst, steps;
	int passes;

	if (!refill || !c)
		return 1;
	rate = refill->bytes_per_sec;
	burst = refill->burst_bytes;
	if (refill->until_ns < now)
		rate = ~0ull;
	bpf_spin_lock(&c->lock);
	steps = now > c->filled_ns ? (now - c->filled_ns) >> WEIR_STEP_SHIFT : 0;
	if (rate == ~0ull) {
		c->credit = bytes;
	} else if (steps >= WEIR_MOST_STEPS) {
		c->credit = burst;
		c->filled_ns = now;
	} else {
		c->credit += steps * rate / (1000000000 >> WEIR_STEP_SHIFT);
		c->filled_ns += steps << WEIR_STEP_SHIFT;
		if (c->credit > (__s64)burst)
			c->credit = burst;
	}
	passes = c->credit > 0;
	if (passes) {
		c->credit -= bytes;
		c->bytes += bytes;
		c->packets += segments;
	} else {
		c->bytes_dropped += bytes;
		c->packets_dropped += segments;
	}
	bpf_spin_unlock(&c->lock);
	return passes;
}

#endif
