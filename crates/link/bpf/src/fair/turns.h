/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two lists of credit mode. Classes on one list wait for their turn. Classes on the other list
 * wait for the next period. credit.h moves classes between the lists. sched.h puts back a class
 * after its ceiling has held it.
 */
#ifndef WEIR_FAIR_TURNS_H
#define WEIR_FAIR_TURNS_H

#define TURN 1  /* waits for its turn */
#define SPENT 2 /* waits for the next period */

__u32 turn_head, turn_tail, spent_head, spent_tail;
__u64 level; /* credit for a weight of one, bytes << 16 */

static __always_inline void turn_append(__u32 e, int list)
{
	struct entity *c = entity(e);

	c->turn = list;
	c->turn_next = 0;
	if (list == TURN) {
		if (turn_head)
			entity(turn_tail)->turn_next = e;
		else
			turn_head = e;
		turn_tail = e;
	} else {
		if (spent_head)
			entity(spent_tail)->turn_next = e;
		else
			spent_head = e;
		spent_tail = e;
	}
}

/* The credit of a class for a period at this level. */
static __always_inline __s64 credit_of(struct fair_params *p)
{
	__u64 fair = (level * p->weight) >> 16;

	return fair < p->floor_credit ? p->floor_credit : fair;
}

static __always_inline void credit_wake(__u32 e)
{
	struct entity *c = entity(e);

	if (c->turn)
		return;
	c->credit = credit_of(params(e));
	turn_append(e, TURN);
}

#endif
