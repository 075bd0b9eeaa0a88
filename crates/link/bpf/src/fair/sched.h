/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chooses the next class: start-time fair queueing by weight, two levels, with floors and
 * ceilings.
 *
 * Virtual time: a class's start tag `vt` grows by len / weight with each packet; the smallest
 * goes first; the link's (a group's) `v` is the start tag served last, and a class that wakes
 * begins there. A class whose floor is due goes before that, but what it sends is charged to its
 * start tag all the same: so a floor counts towards the share, which is water-filling exactly.
 *
 * A class that its floor lifts above its share is always served ahead of its turn, and its tag
 * runs away from v. It may run no further ahead than v has come in the last 25 to 50 ms, or it
 * would pay for all of that when others have gone: with its share above its floor, v comes up in
 * that time. But v moves in steps, of seconds where only light classes take turns: what counts is
 * how far the tag is ahead of the next step. Then a lifted class never has a turn, as its floor is
 * what pushes the tag.
 *
 * Floors and ceilings are kept as one instant each (GCRA): when the next packet conforms.
 */
#ifndef WEIR_FAIR_SCHED_H
#define WEIR_FAIR_SCHED_H

#define MS 1000000ull
#define FLOOR_LATE_NS (200 * MS) /* so much of a floor may be made up for */
#define CEIL_LATE_NS (20 * MS)   /* and of a ceiling, by a class that had to wait for others */
#define CEIL_HELD_NS (200 * MS)  /* ... by one that its ceiling had held back before */
#define CEIL_WAKE_NS (5 * MS)    /* and by one that slept */
#define EXACT_WAKE_NS MS         /* but not if its floor is its ceiling */
#define LEAD_NS (25 * MS)        /* a floor's lead over the turns, at their pace */
#define LARGEST 262144           /* bytes; clocks further ahead than this takes are wrong */
#define AGAIN_NS 100000          /* comes back to work that one dequeue did not finish */

__u32 throttled_top, floor_top; /* heaps */
__u32 sparse_head, sparse_tail;
__u64 link_at;                  /* when the link is free */
__u64 wake_at;                  /* when anyone may send again; 0: nobody waits for that */

/* How the class of this dequeue was chosen. */
#define BY_FLOOR 0
#define BY_TURN 1
#define BY_SPARSE 2
__u32 chosen_by, group_chosen_by;

static __always_inline __u64 later_of(__u64 a, __u64 b)
{
	return before(a, b) ? b : a;
}

static __always_inline __u64 time_of(__u32 len, __u64 cost)
{
	return (len * cost) >> FAIR_RATE_SHIFT;
}

static __always_inline __u64 virtual_of(__u32 len, struct fair_params *p)
{
	return len * (p->weight_cost ? p->weight_cost : 1ull << 32);
}

/* Has it anything to send? */
static __always_inline int has_work(struct entity *c)
{
	return c->packets || c->ready;
}

/* Until when its ceiling forbids it to send; 0: it may. */
static __always_inline __u64 blocked_until(__u32 e, __u64 now)
{
	struct entity *c = entity(e);
	struct fair_params *p = params(e);

	if (!p->ceil_cost || !before(now, c->ceil_at))
		return 0;
	if (before(now + time_of(LARGEST, p->ceil_cost), c->ceil_at)) {
		c->ceil_at = now;
		return 0;
	}
	return c->ceil_at;
}

/* How much of its ceiling one that slept makes up for. A class whose floor is its ceiling is
 * promised a rate, and the credit that it saves while it is idle comes on top of that. */
static __always_inline __u64 burst_credit(struct fair_params *p)
{
	return p->floor_cost == p->ceil_cost ? EXACT_WAKE_NS : CEIL_WAKE_NS;
}

/* The tag that v of the parent goes to next, if the entity has no turn: the least of the others' near
 * the top. (Of one that was served since it was put there the key is out of date.) */
static __always_inline __u64 next_turn(struct entity *parent, __u32 e)
{
	__u32 top = parent->ready, near[3] = { top, node(top)->left, node(top)->right }, i;
	__u64 next = parent->v;
	int found = 0;

	if (!top)
		return next;
#pragma unroll
	for (i = 0; i < 3; i++) {
		__u64 tag = later_of(node(near[i])->key, entity(near[i])->vt);

		if (!near[i] || (near[i] & MASK) == e || (found && !before(tag, next)))
			continue;
		next = tag;
		found = 1;
	}
	return later_of(next, parent->v);
}

/* How far v of the parent has come of late. */
static __always_inline __u64 vtime_progress(struct entity *parent, __u64 now)
{
	__u64 since = now - parent->seen_at;

	if (since >= LEAD_NS) {
		parent->v_before = since < FLOOR_LATE_NS ? parent->v_seen : parent->v;
		parent->v_seen = parent->v;
		parent->seen_at = now;
	}
	return parent->v - parent->v_before;
}

/*
 * Takes the top, which has no work, out of what is ready inside `parent`. If it was the last one,
 * a busy period ends: packets that it sent alone do not count against it in the next, which begins
 * at its tag.
 */
static __always_inline void remove_idle(struct entity *parent)
{
	__u32 top = parent->ready;
	__u64 come = entity(top)->vt - parent->v;

	parent->ready = heap_pop(top);
	if (parent->ready || (__s64)come <= 0)
		return;
	parent->v += come;
	parent->v_before += come; /* as nobody's turns took it there */
	parent->v_seen += come;
}

/* Why an entity competes again. */
#define MOVED 0
#define WOKE 1
#define RELEASED 2

/* Makes it compete, if it does not yet. */
static __always_inline void compete(__u32 e, __u32 parent, int why, __u64 now)
{
	struct entity *c = entity(e);
	struct fair_params *p = params(e);
	int waits = node(THROTTLED | e)->in;
	__u32 budget = most_steps;
	__u64 v, least, lead;

	if (why == WOKE) {
		/* Those before it that went to sleep. */
		while (entity(parent)->ready && !has_work(entity(entity(parent)->ready)) && budget-- && can_loop)
			remove_idle(entity(parent));
		c->floor_at = later_of(c->floor_at, p->flags & FAIR_URGENT ? now - FLOOR_LATE_NS : now);
		c->ceil_at = later_of(c->ceil_at, now - burst_credit(p));
	}
	if (p->floor_cost && !node(FLOOR | e)->in) {
		if (before(now + time_of(LARGEST, p->floor_cost), c->floor_at))
			c->floor_at = now;
		floor_top = heap_push(floor_top, FLOOR | e, c->floor_at);
	}
	if (!node(READY | e)->in && !waits && c->parent != parent) { /* its tag is another clock's */
		c->parent = parent;
		c->vt = entity(parent)->v;
	}
	v = entity(c->parent)->v;
	/* Bound by its ceiling it cannot keep its place in the line: a packet's lead makes up. */
	least = why == RELEASED ? v - virtual_of(quantum(c), p) : v;
	if (before(c->vt, least))
		c->vt = least;
	lead = virtual_of(LARGEST, p);
	if (before(v + lead, c->vt)) {
		lead += next_turn(entity(c->parent), e);
		if (before(lead, c->vt))
			c->vt = lead;
	}
	if (!node(READY | e)->in && !waits)
		entity(c->parent)->ready = heap_push(entity(c->parent)->ready, READY | e, c->vt);
}

/* Where the entity belongs: in a group or the link. */
static __always_inline __u32 home(__u32 e)
{
	__u32 group = params(e)->group & MASK;

	return group && group != e ? group : ROOT;
}

/* The class has packets, or may send again. */
__noinline int activate(__u32 e, int why, __u64 now)
{
	__u32 group;

	e &= MASK;
	compete(e, home(e), why, now);
	group = entity(e)->parent & MASK;
	if (group != ROOT)
		compete(group, ROOT, node(READY | group)->in || node(THROTTLED | group)->in ? MOVED : WOKE, now);
	return 0;
}

/* The class has packets again. */
static __always_inline void wake(__u32 e, __u64 now)
{
	struct entity *c = entity(e);
	struct fair_params *p = params(e);

	/* One that slept so shortly that it was not yet taken out needs little. */
	if (node(READY | e)->in && c->parent == ROOT && !p->floor_cost) {
		if (p->ceil_cost)
			c->ceil_at = later_of(c->ceil_at, now - CEIL_WAKE_NS);
		if (before(c->vt, entity(ROOT)->v))
			c->vt = entity(ROOT)->v;
		return;
	}
	activate(e, WOKE, now);
}

static __always_inline void throttle(__u32 e, __u64 until)
{
	stats(e)->overlimits++;
	entity(e)->at_ceiling = 1;
	if (!node(THROTTLED | e)->in)
		throttled_top = heap_push(throttled_top, THROTTLED | e, until);
}

/* Those whose ceiling lets them send again compete again. */
__noinline int release(__u64 now)
{
	__u32 budget = most_steps / 256;

	while (throttled_top && budget-- && can_loop) {
		__u32 e = throttled_top & MASK;
		struct entity *c = entity(e);
		struct fair_params *p = params(e);
		__u64 key = node(throttled_top)->key, until;

		if (before(now, key) && !before(now + time_of(LARGEST, p->ceil_cost), key))
			break;
		until = has_work(c) ? blocked_until(e, now) : 0;
		if (until && before(key, until)) {
			throttled_top = heap_later(throttled_top, until);
			continue;
		}
		throttled_top = heap_pop(throttled_top);
		if (!has_work(c))
			continue;
		if (shared.config.mode == FAIR_MODE_CREDIT)
			credit_wake(e);
		else
			activate(e, RELEASED, now);
	}
	return 0;
}

/*
 * Looks at the top of what is ready inside `parent`. Returns it if it may send; else 0, and
 * something was put right: look again, if anything is left.
 */
static __always_inline __u32 first_ready(__u32 parent, __u64 now)
{
	struct entity *p = entity(parent);
	__u32 top = p->ready, e = top & MASK;
	struct entity *c = entity(e);
	__u64 until;

	if (!has_work(c)) {
		remove_idle(p);
		return 0;
	}
	if (before(node(top)->key, c->vt)) {
		p->ready = heap_later(top, c->vt);
		if (p->ready != top)
			return 0;
	}
	until = blocked_until(e, now);
	if (until) {
		p->ready = heap_pop(top);
		throttle(e, until);
		return 0;
	}
	return e;
}

/* Looks at the floor that is due first, like first_ready. */
static __always_inline __u32 first_due(__u64 now)
{
	__u32 top = floor_top, e = top & MASK;
	struct entity *c = entity(e);
	__u64 until;

	if (!has_work(c) || !params(e)->floor_cost) {
		floor_top = heap_pop(top);
		return 0;
	}
	if (before(node(top)->key, c->floor_at)) {
		floor_top = heap_later(top, c->floor_at);
		return 0;
	}
	until = blocked_until(e, now);
	if (!until && c->parent != ROOT)
		until = blocked_until(c->parent, now);
	if (until) {
		floor_top = heap_later(top, until);
		return 0;
	}
	return e;
}

/*
 * Weights, floors or groups have changed. How far a class is ahead, by a super-packet or by what its
 * floor served, was a matter of moments at its old weight and can be one of seconds at the new one, in
 * which it would get nothing: who has changed begins where the others are.
 */
__noinline int take_changes(__u64 now)
{
	__u32 i;

	floor_top = 0;
	for (i = most_steps / 4; i && can_loop; i--)
		entity(i)->ready = 0;
	for (i = most_steps / 4; i && can_loop; i--) {
		__u32 e = i & MASK;
		struct entity *c = entity(e), *parent = entity(c->parent);
		struct fair_params *p = params(e);

		/* The others' pace may be another, too. */
		c->v_before = c->v;
		c->v_seen = c->v;
		c->seen_at = now;
		if (c->weight_cost != p->weight_cost || c->floor_cost != p->floor_cost) {
			c->weight_cost = p->weight_cost;
			c->floor_cost = p->floor_cost;
			if (before(parent->v, c->vt))
				c->vt = parent->v;
			c->floor_at = now;
		}
		if (node(READY | e)->in && c->parent != home(e)) {
			node(READY | e)->in = 0;
			c->parent = 0;
		} else if (node(READY | e)->in) {
			parent->ready = heap_push(parent->ready, READY | e, c->vt);
		}
		node(FLOOR | e)->in = 0;
		if (p->floor_cost && has_work(c)) /* perhaps a new one: nothing woke */
			floor_top = heap_push(floor_top, FLOOR | e, c->floor_at);
	}
	/* Those who moved; all others are in their places now. */
	for (i = most_steps / 4; i > ROOT && can_loop; i--)
		if (!entity(i)->parent && has_work(entity(i)))
			activate(i, MOVED, now);
	return 0;
}

/* The class that is next; 0: no class may send before `wake_at`. */
static __always_inline __u32 pick(__u64 now)
{
	__u32 budget = most_steps / 32;

	if (throttled_top)
		release(now);
	wake_at = 0;
	do {
		__u32 e, member;

		if (!budget--) {
			wake_at = now + AGAIN_NS;
			return 0;
		}
		if (floor_top && !before(now, node(floor_top)->key)) {
			e = first_due(now);
			if (!e)
				continue;
			chosen_by = BY_FLOOR;
		} else if (entity(ROOT)->ready) {
			e = first_ready(ROOT, now);
			if (!e)
				continue;
			chosen_by = BY_TURN;
		} else {
			break;
		}
		group_chosen_by = chosen_by;
		/* A group has packets of its own only from when it was a class, under an agent before
		 * this one, and a class has members only from when it was a group: both end soon. */
		if (!entity(e)->ready || (entity(e)->packets && params(e)->flags & FAIR_GROUP))
			return e;
		member = first_ready(e, now);
		if (!member)
			continue;
		chosen_by = BY_TURN;
		return member;
	} while (can_loop);
	if (throttled_top)
		wake_at = later_of(node(throttled_top)->key, now + 1);
	return 0;
}

/* How far the small packets of new flows may overdraw what their class has: by two large packets,
 * one that was just sent and one more, and a few of theirs. */
static __always_inline __u32 overdraft(struct entity *c)
{
	return 2 * quantum(c) + 8 * shared.config.small_bytes;
}

static __always_inline void charge_ceil(struct entity *c, struct fair_params *p, __u32 len, __u64 now)
{
	__u64 late = CEIL_LATE_NS;

	if (!p->ceil_cost)
		return;
	if (c->at_ceiling)
		late = later_of(CEIL_HELD_NS, time_of(2 * entity(c->parent)->largest, p->ceil_cost));
	if (before(c->ceil_at, now - late)) {
		c->at_ceiling = 0;
		c->ceil_at = now - CEIL_LATE_NS;
	}
	c->ceil_at += time_of(len, p->ceil_cost);
}

static __always_inline void charge_one(__u32 e, __u32 len, __u64 now, __u32 by)
{
	struct entity *c = entity(e);
	struct entity *parent = entity(c->parent);
	struct fair_params *p = params(e);
	__u64 tag = c->vt, cost = virtual_of(len, p);

	if (by == BY_TURN) {
		if (before(parent->v, tag))
			parent->v = tag;
		c->vt = tag + cost;
	} else {
		/* While the others' packets leave, v stands still: a turn's packet, and the floor's
		 * part of the time that some of theirs take. */
		__u64 some = virtual_of(3 * later_of(len, parent->largest), p);
		__u64 cap = later_of(next_turn(parent, e) + vtime_progress(parent, now) + some, tag);

		c->vt = by == BY_FLOOR && before(cap, tag + cost) ? cap : tag + cost;
	}
	if (p->floor_cost) {
		/* Served ahead of its time it owes nothing for that, unless it overdrew. */
		__u32 most = by == BY_SPARSE ? overdraft(c) : len;
		__u64 latest = now + time_of(most, p->floor_cost);
		__u64 at = later_of(c->floor_at, now - FLOOR_LATE_NS) + time_of(len, p->floor_cost);

		c->floor_at = before(latest, at) ? latest : at;
		/* It was taken out of the line, and came back with packets: nothing woke. */
		if (!node(FLOOR | e)->in)
			floor_top = heap_push(floor_top, FLOOR | e, c->floor_at);
	}
	charge_ceil(c, p, len, now);
}

static __always_inline void charge_link(__u32 len, __u64 now)
{
	link_at = later_of(link_at, now - shared.config.link_burst_ns) + time_of(len, shared.config.link_cost);
}

/* A packet of the class leaves. */
static __always_inline void charge(__u32 e, __u32 len, __u64 now, __u32 mode)
{
	__u32 group = entity(e)->parent & MASK;

	e &= MASK;
	if (mode == FAIR_MODE_PAPER) { /* credit decides all there */
		charge_link(len, now);
		return;
	}
	if (mode == FAIR_MODE_CREDIT) { /* neither tags nor floors decide there */
		charge_ceil(entity(e), params(e), len, now);
		charge_link(len, now);
		return;
	}
	charge_one(e, len, now, chosen_by);
	remember_largest(entity(group), len);
	if (group != ROOT) {
		charge_one(group, len, now, group_chosen_by);
		remember_largest(entity(ROOT), len);
	}
	charge_link(len, now);
}

/* Small packets of new flows need not wait behind super-packets: neither for the class's turn or
 * floor nor for the link's clock, as long as none is overdrawn by much. All of it is charged, so that
 * shares and rates stay as they are. */
static __always_inline int ceil_allows(__u32 e, __u64 now)
{
	struct entity *c = entity(e);
	__u64 cost = params(e)->ceil_cost;

	return !cost || !before(now + time_of(overdraft(c), cost), c->ceil_at);
}

static __always_inline int floor_allows(__u32 e, __u64 now)
{
	struct entity *c = entity(e);
	__u64 cost = params(e)->floor_cost;

	return cost && !before(now + time_of(overdraft(c), cost), c->floor_at);
}

static __always_inline int turn_allows(__u32 e)
{
	struct entity *c = entity(e);

	return !before(entity(c->parent)->v + virtual_of(overdraft(c), params(e)), c->vt);
}

static __always_inline int may_overdraw(__u32 e, __u64 now)
{
	struct entity *c = entity(e);
	__u32 group = c->parent & MASK;

	if (shared.config.mode == FAIR_MODE_CREDIT && c->credit < -(__s64)overdraft(c))
		return 0;
	if (!ceil_allows(e, now) || (group != ROOT && !ceil_allows(group, now)))
		return 0;
	if (floor_allows(e, now))
		return 1;
	return turn_allows(e) && (group == ROOT || turn_allows(group) || floor_allows(group, now));
}

static __always_inline void sparse_append(__u32 e)
{
	struct entity *c = entity(e);

	if (c->sparse)
		return;
	c->sparse = 1;
	c->sparse_next = 0;
	if (sparse_head)
		entity(sparse_tail)->sparse_next = e;
	else
		sparse_head = e;
	sparse_tail = e;
}

/* The class with the small packet that goes now, 0 without one. */
__noinline __u32 sparse_pick(__u64 now)
{
	__u32 budget = most_steps;

	while (sparse_head && can_loop) {
		__u32 e = sparse_head & MASK;
		struct entity *c = entity(e);
		struct flow *fl = flow(c->new_head);

		if (!budget--) {
			broken = 1;
			return 0;
		}
		sparse_head = c->sparse_next & MASK;
		c->sparse = 0;
		if (!c->new_head || !fl->head || fl->deficit <= 0)
			continue;
		if ((queued(fl->head)->len & ~OWNED) > shared.config.small_bytes)
			continue;
		if (!may_overdraw(e, now))
			continue;
		chosen_by = BY_SPARSE;
		group_chosen_by = BY_SPARSE;
		return e;
	}
	return 0;
}

#endif
