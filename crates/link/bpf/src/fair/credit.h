/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chooses the next class in credit mode: qCon (Sensors 2018, 18, 3444), section 3.3. Classes that
 * wait take turns, a packet each; a class without credit has to wait for the next period, which
 * gives every class its part of what the link carries in 30 ms (Eq. 1), lifts it to its minimum
 * (Eq. 6), and takes what that costs from the others by weight (Eq. 7).
 *
 * The literal form loses 2-5 % of the link: what a class has left at the end of a period, because
 * its next packet was larger or came too late, is cut off (Eq. 5) and handed to those who come
 * after it in one pass over the classes (Eq. 2-4), and what the last one leaves to nobody; so less
 * than the link carries is handed out, and at the end of the period nobody may send. The repair
 * keeps the paper's means: the period ends after 30 ms *or as soon as no class that waits has
 * credit*, and credit is for classes that wait. Credit that some do not use shortens the period
 * for the others, by weight, which is the purpose of Eq. 2-5.
 *
 * Maxima (Eq. 8-9) are clocks as in the other mode, as credit would allow them once in every
 * shortened period. Groups are not in the paper: their members share as if alone.
 */
#ifndef WEIR_FAIR_CREDIT_H
#define WEIR_FAIR_CREDIT_H

#define PERIOD_NS (30 * MS)

__u64 period_end;

/* Sets the level: those lifted to their minimum first, in as many passes as that takes. */
static __always_inline void credit_level(void)
{
	__u32 pass, budget;

	level = 0;
	for (pass = most_steps / (FAIR_ENTITIES / 2); pass && can_loop; pass--) {
		__u64 left = shared.config.period_credit, weights = 0, before_it = level;
		__u32 e = spent_head;

		for (budget = most_steps; e && budget && can_loop; budget--) {
			struct fair_params *p = params(e);

			if (p->floor_credit > (level * p->weight) >> 16 && level)
				left -= left < p->floor_credit ? left : p->floor_credit;
			else
				weights += p->weight;
			e = entity(e)->turn_next & MASK;
		}
		if (!weights)
			break;
		level = (left << 16) / weights;
		if (level == before_it)
			break;
	}
}

/* A new period: credit for all who wait. */
__noinline int credit_period(__u64 now)
{
	__u32 budget = most_steps, e;

	period_end = now + PERIOD_NS;
	if (spent_head)
		entity(spent_tail)->turn_next = turn_head;
	else
		spent_head = turn_head;
	turn_head = 0;
	credit_level();
	e = spent_head & MASK;
	spent_head = 0;
	while (e && budget && can_loop) {
		struct entity *c = entity(e);
		__u32 next = c->turn_next & MASK;
		__s64 credit = credit_of(params(e));

		budget--;
		c->turn = 0;
		if (c->packets) {
			c->credit += credit;
			if (c->credit > credit + LARGEST)
				c->credit = credit + LARGEST;
			turn_append(e, c->credit > 0 ? TURN : SPENT);
		}
		e = next;
	}
	if (e)
		broken = 1;
	return 0;
}

/* The class that is next; 0: no class may send before `wake_at`. */
__noinline __u32 credit_pick(__u64 now)
{
	__u32 budget = most_steps;

	if (throttled_top)
		release(now);
	wake_at = 0;
	if (!before(now, period_end) || before(now + PERIOD_NS, period_end))
		credit_period(now);
	while (can_loop) {
		__u32 e = turn_head & MASK;
		struct entity *c = entity(e);
		__u64 until;

		if (!budget--) {
			wake_at = now + AGAIN_NS;
			return 0;
		}
		if (!e) {
			if (!spent_head)
				break;
			credit_period(now); /* nobody who waits has credit: it ends early */
			continue;
		}
		turn_head = c->turn_next & MASK;
		c->turn = 0;
		if (!c->packets)
			continue;
		until = blocked_until(e, now);
		if (until) {
			throttle(e, until);
			continue;
		}
		if (c->credit <= 0) {
			turn_append(e, SPENT);
			continue;
		}
		chosen_by = BY_TURN;
		group_chosen_by = BY_TURN;
		return e;
	}
	if (throttled_top)
		wake_at = later_of(node(throttled_top)->key, now + 1);
	return 0;
}

/* After a packet: to the end of the line. */
static __always_inline void credit_spend(__u32 e, __u32 len)
{
	struct entity *c = entity(e);

	c->credit -= len;
	if (!c->turn && c->packets)
		turn_append(e, TURN);
}

#endif
