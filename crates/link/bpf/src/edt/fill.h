/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weighted max-min fairness with floors and ceilings, and one level of groups, in the kernel.
 *
 * The same division as weir-share's water-filling (crates/link/alloc/src/fill.rs, the oracle
 * of its tests): for capacity C and claims with weight w, floor m, ceiling M and demand d,
 *
 *     a = min(d, clamp(lambda w, m, M)),  lambda the largest with  sum a <= C
 *
 * There lambda is found by sorting, which BPF cannot do cheaply. Here it is approached: the
 * sum grows with lambda along straight pieces, so a step of Newton's lands on the solution
 * as soon as it starts on its piece; a step that leaves the bracket, or does not halve it in
 * two, is replaced by bisection. The last lambda is the first guess: in the steady state a
 * division costs two passes over the active claims.
 *
 * Use, by one caller at a time:
 *
 *     weir_fill_begin(capacity, groups);
 *     weir_fill_group(1..groups, weight, min, max);
 *     weir_fill_claim(group or 0, weight, min, max, demand);      for each active class
 *     weir_fill_solve();
 *     weir_fill_rate(group or 0, weight, min, max);               for any class, also later
 *
 * The last is clamp(lambda w, m, M), what a class may send: of one that asks for less than this,
 * or sleeps, it is what it could have without a word. Rates are bytes per second, at most
 * WEIR_FILL_MOST; a class without a ceiling claims up to that.
 */
#ifndef WEIR_FILL_H
#define WEIR_FILL_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define WEIR_FILL_CLAIMS 4096 /* active classes at a time; a power of two */
#define WEIR_FILL_GROUPS 1024 /* groups, and at 0 the link itself; a power of two */
#define WEIR_FILL_MOST (1ULL << 41)
#define WEIR_FILL_WEIGHT (1u << 20) /* weights are smaller */
#define WEIR_FILL_PASSES 96
#define WEIR_FILL_INFINITE (~0ULL)

struct weir_fill_claim {
	__u64 floor;
	__u64 low;    /* what it is promised: its floor, or all it can take if that is less */
	__u64 high;   /* all it can take: its demand or its ceiling */
	__u64 begins; /* the lambda at which it begins to grow */
	__u64 stops;  /* ... and stops */
	__u32 weight;
	__u32 group;
};

struct weir_fill_level { /* the division of the link, or of a group's part */
	struct weir_fill_claim claim; /* the group's own claim on the link */
	__u64 max;                    /* ... its ceiling */
	__u64 room;                   /* bytes per second to divide */
	__u64 lows, highs, weights;   /* sums over its claims */
	__u64 lambda;                 /* rate per weight, times 2^shift */
	__u64 least, most;            /* lambda is in [least, most) */
	__u64 span;                   /* most - least, two steps ago */
	__u64 sum, growing;           /* at lambda: shares, weights of those that grow */
	__u32 cut;                    /* floors are more than there is: lambda is the part kept */
	__u32 done;
	__u32 steps;
	__u32 pad;
};

struct weir_fill_state {
	struct weir_fill_level level[WEIR_FILL_GROUPS];
	struct weir_fill_claim claim[WEIR_FILL_CLAIMS];
	__u64 capacity;
	__u32 shift;
	__u32 claims;
	__u32 groups;
	__u32 inside;   /* 0: the link is being divided, 1: the groups' parts are */
	__u32 unsolved;
	__u32 passes;   /* of the last division, both stages */
};

static struct weir_fill_state weir_fill;

#define weir_level_at(group) (&weir_fill.level[(group) & (WEIR_FILL_GROUPS - 1)])

static __always_inline __u64 weir_least_of(__u64 a, __u64 b)
{
	return a < b ? a : b;
}

/* lambda * weight >> shift; lambda is below 2^61, weight below 2^20, shift at least 20. */
static __always_inline __u64 weir_fill_scale(__u64 lambda, __u32 weight)
{
	if (lambda < 1ULL << 44)
		return (lambda * weight) >> (weir_fill.shift & 63);
	return ((lambda >> 20) * weight) >> ((weir_fill.shift - 20) & 63);
}

/* How a floor is cut: the part k of it. k is at most 1 = 2^shift. */
static __always_inline __u64 weir_fill_part(__u64 k, __u64 floor)
{
	__u32 shift = weir_fill.shift;

	/* 2^20 is precise enough, and floors below 2^41 times it do not overflow. */
	return (floor * (k >> ((shift - 20) & 63))) >> 20;
}

/* Begins a division of `capacity` with groups 1 to `groups`. */
static __always_inline void weir_fill_begin(__u64 capacity, __u32 groups)
{
	struct weir_fill_level *link = &weir_fill.level[0];
	__u32 shift = 20, bits;
	__u64 top;

	if (capacity < 1)
		capacity = 1;
	if (capacity > WEIR_FILL_MOST - 1)
		capacity = WEIR_FILL_MOST - 1;
	if (groups > WEIR_FILL_GROUPS - 1)
		groups = WEIR_FILL_GROUPS - 1;
	/* The largest shift for which capacity << shift is below 2^61. */
	top = capacity << 20;
	for (bits = 32; bits; bits >>= 1) {
		if (!(top >> (61 - bits))) {
			top <<= bits;
			shift += bits;
		}
	}
	if (shift != weir_fill.shift)
		link->lambda = 0;
	weir_fill.shift = shift;
	weir_fill.capacity = capacity;
	weir_fill.groups = groups;
	weir_fill.claims = 0;
	weir_fill.passes = 0;
	link->room = capacity;
	link->lows = link->highs = link->weights = 0;
}

/* The rate to divide, if it is known only after the claims: at most the capacity. */
static __always_inline void weir_fill_room(__u64 room)
{
	weir_fill.level[0].room = room < 1 ? 1 : weir_least_of(room, weir_fill.capacity);
}

/* States a group's policy; before its members' claims. */
static __always_inline void weir_fill_group(__u32 group, __u32 weight, __u64 min, __u64 max)
{
	struct weir_fill_level *level = weir_level_at(group);

	level->claim.weight = weight;
	level->claim.floor = min;
	level->max = max;
	level->lows = level->highs = level->weights = 0;
}

static __always_inline void weir_fill_edges(struct weir_fill_claim *c)
{
	__u32 shift = weir_fill.shift & 63;

	if (!c->weight)
		c->weight = 1;
	c->begins = (c->low << shift) / c->weight;
	c->stops = (c->high << shift) / c->weight;
}

/* One active class. Returns its number, or -1 if there are too many. */
static __always_inline int weir_fill_claim(__u32 group, __u32 weight, __u64 min, __u64 max, __u64 demand)
{
	__u32 i = weir_fill.claims;
	struct weir_fill_level *level;
	struct weir_fill_claim *c;

	if (i >= WEIR_FILL_CLAIMS)
		return -1;
	if (group > weir_fill.groups)
		group = 0;
	c = &weir_fill.claim[i];
	level = weir_level_at(group);
	c->group = group;
	c->weight = weight;
	c->floor = min;
	c->high = weir_least_of(weir_least_of(demand, max), weir_fill.capacity);
	c->low = weir_least_of(min, c->high);
	weir_fill_edges(c);
	level->lows += c->low;
	level->highs += c->high;
	level->weights += c->weight;
	weir_fill.claims = i + 1;
	return i;
}

/*
 * The allocation of a class of this policy at the last division: clamp(lambda w, m, M).
 */
static __always_inline __u64 weir_fill_rate(__u32 group, __u32 weight, __u64 min, __u64 max)
{
	struct weir_fill_level *level = weir_level_at(group);
	__u64 lambda = level->lambda, rate;

	if (max > level->room)
		max = level->room;
	if (lambda == WEIR_FILL_INFINITE)
		return max;
	if (level->cut)
		return weir_least_of(weir_fill_part(lambda, min), max);
	rate = weir_fill_scale(lambda, weight);
	if (rate < min)
		rate = min;
	return weir_least_of(rate, max);
}

/* Adds what a claim gets at its level's lambda. */
static __always_inline void weir_fill_add(struct weir_fill_level *level, const struct weir_fill_claim *c)
{
	__u64 lambda = level->lambda, share, weight = 0;

	if (level->cut) {
		share = weir_fill_part(lambda, c->floor);
		if (share >= c->low)
			share = c->low;
		else
			weight = c->floor;
	} else if (lambda < c->begins) {
		share = c->low;
	} else if (lambda >= c->stops) {
		share = c->high;
	} else {
		share = (lambda * c->weight) >> (weir_fill.shift & 63);
		weight = c->weight;
	}
	level->sum += share;
	level->growing += weight;
}

/* Chooses the first lambda to try at a level, or knows the answer. */
static __always_inline void weir_fill_start(struct weir_fill_level *level)
{
	__u64 top = level->room << (weir_fill.shift & 63);

	level->done = 0;
	level->cut = 0;
	level->steps = 0;
	level->sum = level->growing = 0;
	if (level->highs <= level->room) {
		level->lambda = WEIR_FILL_INFINITE;
		level->done = 1;
		return;
	}
	if (level->lows > level->room) {
		level->cut = 1;
		top = 1ULL << (weir_fill.shift & 63);
	}
	level->least = 0;
	level->most = level->span = top + 1;
	if (!level->lambda || level->lambda >= level->most) {
		level->lambda = top;
		if (!level->cut && level->weights)
			level->lambda = top / level->weights;
	}
	weir_fill.unsolved++;
}

/* After a pass: is lambda good enough, or which one is next? */
static __always_inline void weir_fill_step(struct weir_fill_level *level)
{
	__u32 shift = weir_fill.shift & 63;
	__u64 room = level->room, lambda = level->lambda, off, delta, next = 0;

	if (level->done)
		return;
	off = level->sum > room ? level->sum - room : room - level->sum;
	if (level->sum > room)
		level->most = lambda;
	else
		level->least = lambda;
	if (off <= room >> 17 || level->most - level->least <= 1) {
		if (off > room >> 17)
			level->lambda = level->least;
		level->done = 1;
		weir_fill.unsolved--;
		return;
	}
	if (level->growing && off <= room) {
		delta = (off << shift) / level->growing;
		if (level->sum <= room)
			next = lambda + delta;
		else if (delta < lambda)
			next = lambda - delta;
	}
	if (level->steps & 1) {
		if (level->most - level->least > level->span >> 1)
			next = 0;
		level->span = level->most - level->least;
	}
	level->steps++;
	if (next <= level->least || next >= level->most)
		next = level->least + ((level->most - level->least) >> 1);
	level->lambda = next;
	level->sum = level->growing = 0;
}

static long weir_fill_sum_claim(__u32 i, void *unused)
{
	struct weir_fill_level *level;
	struct weir_fill_claim *c;

	if (i >= WEIR_FILL_CLAIMS)
		return 1;
	c = &weir_fill.claim[i];
	if ((c->group != 0) != weir_fill.inside)
		return 0;
	level = weir_level_at(c->group);
	if (!level->done)
		weir_fill_add(level, c);
	return 0;
}

static long weir_fill_sum_group(__u32 i, void *unused)
{
	weir_fill_add(&weir_fill.level[0], &weir_level_at(i + 1)->claim);
	return 0;
}

static long weir_fill_step_group(__u32 i, void *unused)
{
	weir_fill_step(weir_level_at(i + 1));
	return 0;
}

/* A group claims for its members: their demands together, and a floor that holds theirs. */
static long weir_fill_claim_group(__u32 i, void *unused)
{
	struct weir_fill_level *group = weir_level_at(i + 1), *link = &weir_fill.level[0];
	struct weir_fill_claim *c = &group->claim;

	if (c->floor < group->lows)
		c->floor = group->lows;
	c->floor = weir_least_of(c->floor, group->max);
	c->high = weir_least_of(weir_least_of(group->highs, group->max), weir_fill.capacity);
	c->low = weir_least_of(c->floor, c->high);
	weir_fill_edges(c);
	link->lows += c->low;
	link->highs += c->high;
	link->weights += c->weight;
	return 0;
}

/* The members of a group divide its allocation. */
static long weir_fill_start_group(__u32 i, void *unused)
{
	struct weir_fill_level *group = weir_level_at(i + 1);
	__u64 room = weir_fill_rate(0, group->claim.weight, group->claim.floor, group->max);

	group->room = room ? room : 1;
	weir_fill_start(group);
	return 0;
}

static long weir_fill_pass(__u32 i, void *unused)
{
	if (!weir_fill.unsolved)
		return 1;
	weir_fill.passes++;
	bpf_loop(weir_fill.claims, weir_fill_sum_claim, (void *)0, 0);
	if (weir_fill.inside) {
		bpf_loop(weir_fill.groups, weir_fill_step_group, (void *)0, 0);
	} else {
		bpf_loop(weir_fill.groups, weir_fill_sum_group, (void *)0, 0);
		weir_fill_step(&weir_fill.level[0]);
	}
	return 0;
}

/* Finds lambda for the link, then for every group. */
static __noinline int weir_fill_solve(void)
{
	weir_fill.unsolved = 0;
	weir_fill.inside = 0;
	bpf_loop(weir_fill.groups, weir_fill_claim_group, (void *)0, 0);
	weir_fill_start(&weir_fill.level[0]);
	bpf_loop(WEIR_FILL_PASSES, weir_fill_pass, (void *)0, 0);
	weir_fill.unsolved = 0;
	weir_fill.inside = 1;
	bpf_loop(weir_fill.groups, weir_fill_start_group, (void *)0, 0);
	bpf_loop(WEIR_FILL_PASSES, weir_fill_pass, (void *)0, 0);
	return 0;
}

#endif
