/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chooses the next class as qCon does it (Sensors 2018, 18, 3444), without a repair: for
 * comparison. credit.h is the repaired form.
 *
 * Section 3.2.1: each class has one queue. Classes with credit take turns, a packet each. A packet may be
 * larger than the credit that is left: the class owes the rest, as in Xen's scheduler, which the paper
 * names. Otherwise a super-packet would never leave a class of small weight.
 *
 * Section 3.2.2: a timer of the kernel runs Algorithm 1 every 30 ms. `paper_distribute` is that
 * algorithm, with the reading of `credit/paper.rs` in weir-share, and a test compares both. The pass
 * goes over all classes in the order of their minors, whether they send or not.
 *
 * The kernel frees a BPF timer when the process that loaded it ends. The limits must hold without the
 * agent, so a dequeue does the timer's work when that is late.
 *
 * The timer takes no lock. It reads a class's credit and adds a difference, and the qdisc subtracts
 * what it sends.
 */
#ifndef WEIR_FAIR_PAPER_H
#define WEIR_FAIR_PAPER_H

#ifdef WEIR_PAPER

#define in_paper_form() (shared.config.mode == FAIR_MODE_PAPER)

#define PAPER_SHIFT 8               /* credit is counted in 1/256 bytes */
#define PAPER_MOST (1ull << 61)     /* no sum of credits is larger */
#define PAPER_LATE_NS MS            /* a timer that is later does not count as one */
#define PAPER_WAKE_NS 20000         /* the qdisc looks so long after the timer */
#define PAPER_ABSOLUTE 1            /* BPF_F_TIMER_ABS */
#define PAPER_MONOTONIC 1           /* CLOCK_MONOTONIC */

#define PAPER_TIMER_NONE 0
#define PAPER_TIMER_RUNS 1
#define PAPER_TIMER_LATE 2 /* or gone */

struct paper_clock {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct paper_clock);
} weir_fair_clock SEC(".maps");

__s64 paper_credit[FAIR_ENTITIES]; /* the paper's remaining_credit */
__u64 paper_end;                   /* of this period; 0: none has begun */
__u32 paper_periods;               /* that have begun */
__u32 paper_seen;                  /* of these, when the lists were put together last */
__u32 paper_timer;

/* `total` * part / whole, towards zero. The verifier looks at it once, and not at each call. */
__noinline __s64 part_of(__s64 total, __u64 part, __u64 whole)
{
	__u64 size = total < 0 ? -total : total, times, value;

	if (!whole || !part)
		return 0;
	times = size / whole;
	value = times > PAPER_MOST / part ? PAPER_MOST : times * part + size % whole * part / whole;
	return total < 0 ? -(__s64)value : (__s64)value;
}

static __always_inline int takes_part(__u32 e)
{
	return (params(e)->flags & (FAIR_PRESENT | FAIR_GROUP)) == FAIR_PRESENT || entity(e)->packets;
}

/* Algorithm 1, with the paper's names. */
__noinline int paper_distribute(void)
{
	__u64 total_weight = 0, weight_left;
	__s64 total_credit = shared.config.period_credit << PAPER_SHIFT;
	__u32 i;

	for (i = most_steps / 4; i && can_loop; i--)
		if (takes_part(i))
			total_weight += params(i)->weight;
	weight_left = total_weight;
	for (i = most_steps / 4; i && can_loop; i--) {
		__u32 current = (FAIR_ENTITIES - i) & MASK;
		struct fair_params *p = params(current);
		__s64 had = paper_credit[current], remaining_credit, credit_fair;
		__s64 least = p->floor_credit << PAPER_SHIFT, most = p->ceil_credit << PAPER_SHIFT;

		if (!takes_part(current)) {
			if (had)
				__sync_fetch_and_add(&paper_credit[current], -had);
			continue;
		}
		weight_left -= p->weight;

		/* Proportional share. */
		credit_fair = part_of(total_credit, p->weight, total_weight); /* Eq. 1 */
		if (credit_fair < 0)
			credit_fair = 0;
		remaining_credit = had + credit_fair;

		/* Work-conserving. The last class has no class to leave its rest to: part_of is 0. */
		if (remaining_credit > credit_fair) {
			__s64 credit_left = remaining_credit - credit_fair;

			total_credit += part_of(credit_left, total_weight, weight_left); /* Eq. 2-4 */
			remaining_credit = credit_fair; /* Eq. 5 */
		}

		/* Minimum. */
		if (least && remaining_credit < least) {
			total_credit -= part_of(least - remaining_credit, total_weight, weight_left); /* Eq. 7 */
			remaining_credit = least; /* Eq. 6 */
		}

		/* Maximum. */
		if (most && remaining_credit > most) {
			total_credit += part_of(remaining_credit - most, total_weight, weight_left); /* Eq. 9 */
			remaining_credit = most; /* Eq. 8 */
		}
		__sync_fetch_and_add(&paper_credit[current], remaining_credit - had);
	}
	return 0;
}

/* Begins the next period if this one is over. Both the timer and a dequeue may come: one of them does it. */
static __always_inline int paper_turn_over(__u64 now)
{
	__u64 end = paper_end, next = end + PERIOD_NS;

	if (!end || before(now, end))
		return 0;
	if (!before(now, next))
		next = now + PERIOD_NS;
	if (__sync_val_compare_and_swap(&paper_end, end, next) != end)
		return 0;
	paper_distribute();
	__sync_fetch_and_add(&paper_periods, 1);
	return 1;
}

static int paper_expired(void *map, __u32 *key, struct paper_clock *clock)
{
	__u64 now = bpf_ktime_get_ns(), end;

	if (!shared.config.live)
		return 0;
	paper_timer = PAPER_TIMER_RUNS;
	paper_turn_over(now);
	end = paper_end;
	bpf_timer_start(&clock->timer, end ? end : now + PERIOD_NS, PAPER_ABSOLUTE);
	return 0;
}

/* The first period, and the timer. */
__noinline int paper_start(__u64 now)
{
	struct paper_clock *clock;
	__u32 zero = 0;

	if (!paper_end) {
		paper_end = now;
		paper_turn_over(now);
	}
	if (paper_timer != PAPER_TIMER_NONE)
		return 0;
	paper_timer = PAPER_TIMER_LATE;
	clock = bpf_map_lookup_elem(&weir_fair_clock, &zero);
	if (!clock)
		return 0;
	/* A timer of an earlier qdisc is there already. */
	bpf_timer_init(&clock->timer, &weir_fair_clock, PAPER_MONOTONIC);
	if (!bpf_timer_set_callback(&clock->timer, paper_expired) &&
	    !bpf_timer_start(&clock->timer, paper_end, PAPER_ABSOLUTE))
		paper_timer = PAPER_TIMER_RUNS;
	return 0;
}

static __always_inline void paper_stop(void)
{
	struct paper_clock *clock;
	__u32 zero = 0;

	clock = bpf_map_lookup_elem(&weir_fair_clock, &zero);
	if (clock)
		bpf_timer_cancel(&clock->timer);
	paper_timer = PAPER_TIMER_NONE;
}

static __always_inline void paper_forget(__u32 e)
{
	paper_credit[e & MASK] = 0;
	paper_end = 0;
}

/* A packet has come. */
static __always_inline void paper_wake(__u32 e, __u64 now)
{
	if (!paper_end || paper_timer == PAPER_TIMER_NONE)
		paper_start(now);
	if (!entity(e)->turn)
		turn_append(e, TURN);
}

/* The class that is next; 0: no class may send before `wake_at`. */
__noinline __u32 paper_pick(__u64 now)
{
	__u32 budget = most_steps;
	int runs = paper_timer == PAPER_TIMER_RUNS;

	wake_at = 0;
	if (!before(now, paper_end + (runs ? PAPER_LATE_NS : 0)) && paper_turn_over(now))
		paper_timer = PAPER_TIMER_LATE;
	if (paper_seen != paper_periods) {
		paper_seen = paper_periods;
		if (spent_head) {
			if (turn_head)
				entity(turn_tail)->turn_next = spent_head;
			else
				turn_head = spent_head;
			turn_tail = spent_tail;
			spent_head = 0;
		}
	}
	while (can_loop) {
		__u32 e = turn_head & MASK;
		struct entity *c = entity(e);

		if (!budget--) {
			wake_at = now + AGAIN_NS;
			return 0;
		}
		if (!e)
			break;
		turn_head = c->turn_next & MASK;
		c->turn = 0;
		if (!c->packets)
			continue;
		if (paper_credit[e] <= 0) {
			turn_append(e, SPENT);
			continue;
		}
		return e;
	}
	/* The timer wakes no qdisc. */
	if (spent_head)
		wake_at = later_of(paper_end + (runs ? PAPER_WAKE_NS : 0), now + 1);
	return 0;
}

/* After a packet: to the end of the line. */
static __always_inline void paper_spend(__u32 e, __u32 len)
{
	struct entity *c = entity(e);

	__sync_fetch_and_add(&paper_credit[e & MASK], -((__s64)len << PAPER_SHIFT));
	if (!c->turn && c->packets)
		turn_append(e, TURN);
}

#else /* the other modes' object has none of it */

#define in_paper_form() 0
#define paper_stop() do {} while (0)
#define paper_forget(e) do {} while (0)
#define paper_wake(e, now) do {} while (0)
#define paper_pick(now) 0
#define paper_spend(e, len) do {} while (0)

#endif
#endif
