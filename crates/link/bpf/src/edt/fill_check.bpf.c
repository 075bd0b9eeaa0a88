/* SPDX-License-Identifier: Apache-2.0 */
/* Lets tests ask the kernel's division what it gives to whom (tests/fill.rs). */
#include "fill.h"

struct weir_check { /* a class, or a group: what it claims and what it may send */
	__u64 min;
	__u64 max;
	__u64 demand;
	__u64 rate;
	__u32 weight;
	__u32 group;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEIR_FILL_CLAIMS);
	__type(key, __u32);
	__type(value, struct weir_check);
} weir_classes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEIR_FILL_GROUPS);
	__type(key, __u32);
	__type(value, struct weir_check);
} weir_groups SEC(".maps");

struct weir_question {
	__u64 capacity;
	__u32 classes;
	__u32 groups;
	__u64 nanos;  /* answer: the division took so long */
	__u64 passes; /* answer: over all claims */
};

static long state_group(__u32 i, void *unused)
{
	__u32 key = i + 1;
	struct weir_check *g = bpf_map_lookup_elem(&weir_groups, &key);

	if (g)
		weir_fill_group(key, g->weight, g->min, g->max);
	return 0;
}

static long state_class(__u32 i, void *unused)
{
	__u32 key = i;
	struct weir_check *c = bpf_map_lookup_elem(&weir_classes, &key);

	if (c && c->demand)
		weir_fill_claim(c->group, c->weight, c->min, c->max, c->demand);
	return 0;
}

static long tell_class(__u32 i, void *unused)
{
	__u32 key = i;
	struct weir_check *c = bpf_map_lookup_elem(&weir_classes, &key);

	if (c)
		c->rate = weir_fill_rate(c->group, c->weight, c->min, c->max);
	return 0;
}

SEC("syscall")
int weir_fill_check(struct weir_question *q)
{
	__u64 began = bpf_ktime_get_ns();

	weir_fill_begin(q->capacity, q->groups);
	bpf_loop(q->groups, state_group, (void *)0, 0);
	bpf_loop(q->classes, state_class, (void *)0, 0);
	weir_fill_solve();
	bpf_loop(q->classes, tell_class, (void *)0, 0);
	q->nanos = bpf_ktime_get_ns() - began;
	q->passes = weir_fill.passes;
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
