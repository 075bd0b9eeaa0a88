/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Earliest departure times: who may send when, without a queue of our own.
 *
 * weir_edt runs at the egress of the shared ifb, before its qdisc. Each class has a clock
 * that says when its next packet may leave; a packet is stamped with it, and the clock goes
 * on by the packet's time at the class's rate. fq below holds packets until their time.
 * There is no lock: two processors that stamp packets of one class add to its clock
 * atomically, and those of different classes share nothing.
 *
 * The rates are made here too, by the first packet that finds that TICK has passed since the last
 * time. Under load that is always in time, and without load no rate is needed. It needs neither
 * the agent nor a timer, which dies with the last reference of user space to its map.
 *
 * *Demand.* A class whose clock is ahead by more than a packet and QUEUE waits, and wants all it
 * can get (but see wants), and so does one that uses nearly all it may have. Any other wants what
 * it has sent, smoothed over those ticks in which it did not wait (while it waits it uses what it
 * is given: counting that again would reserve it twice). The rate that it *may* send is the part
 * of its weight beside the others' demands, so it can wake or grow without asking.
 *
 * *The link's account.* Clocks say what has left: of what waited, the part whose time has passed.
 * Bytes that all classes together sent above the capacity (a sleeper woke while others' packets
 * were stamped already) are in the wire's queue: the next ticks give out less until it has
 * drained. Bytes that they sent below it, because a class was given more than it used, are given
 * to the others after, up to SLACK: so a crude guess of demand costs nothing.
 *
 * *Super-packets.* Where one takes milliseconds, those of several classes may be due at the same
 * time: a TBF above fq splits them, and lets them out no faster than the link takes them. The
 * class's clock does not notice, but its sender may: see catch_up.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "edt.h"
#include "common/datagram.h"
#include "common/framing.h"
#include "common/link.h"
#include "fill.h"

#define NEXT (-1) /* TCX_NEXT and TC_ACT_UNSPEC: the next program decides */
#define PRIORITY_CONTROL 7 /* TC_PRIO_CONTROL: fq sends such packets first and at once */

#define SECOND 1000000000ULL
#define MS 1000000ULL
#define TICK (10 * MS)
#define SMOOTH (4 * TICK)  /* over so much is smoothed what a class sends */
#define MARK (10 * MS)     /* a packet that waits longer says so, if it can (ECN) */
#define FURTHEST (300 * SECOND) /* no packet waits longer; fq's own horizon is beyond this */
#define LATEST (20 * MS)   /* so long after its time a super-packet may leave that met others */
#define EARLY (2 * MS)     /* a class that has slept and is suddenly so far ahead is looked at at once */
#define QUEUE (3 * MS)     /* a class that is so far ahead, and a packet, waits */
#define DRAIN (20 * MS)    /* at the least */
#define SLACK_PER_SECOND 250 /* 1 s / SLACK, 4 ms */
#define COST_SHIFT 20
#define SLOW (tick.packet_bytes * (SECOND / TICK))
#define LEAST 1000         /* bytes per second: no class is slower, or its packets never leave */
#define LARGEST 131072     /* bytes of a packet */
#define SLEEPS 32          /* ticks without a packet */
#define STEP 64            /* ns: with it capacity times time fits into 64 bits */

#define FLOW_BITS 14
#define FLOW_PART 4        /* a flow that sends less than one part in so many passes what waits */
#define CLASS_PART 2       /* so much of a class may do so */
#define BURST 16           /* packets' time: so much, divided by the above, at once */
#define LONGEST_BURST (200 * MS)
#define PATIENCE SECOND    /* TCP waits no longer: it needs no queue to be held back */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weir_edt_link);
} weir_edt_link SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEIR_EDT_CLASSES);
	__type(key, __u32);
	__type(value, struct weir_edt_rule);
} weir_edt_rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEIR_EDT_GROUPS);
	__type(key, __u32);
	__type(value, struct weir_edt_rule);
} weir_edt_groups SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEIR_EDT_CLASSES);
	__type(key, __u32);
	__type(value, struct weir_edt_class);
} weir_edt_clocks SEC(".maps");

/* Not before this time are the rates made again, ns; user space, which has written rules, says 0. */
__u64 weir_edt_next;

static struct {
	__u64 last;     /* when the rates were made last, ns */
	__u64 busy;     /* since when a processor makes them; 0: none does */
	__u64 now;
	__u64 elapsed;  /* since the last time, ns */
	__s64 over;     /* the link's account: bytes sent above the capacity */
	__u64 departed; /* bytes, all classes, since the last time */
	__u64 waiting;  /* bytes, all classes */
	__u64 packet_bytes;
	__u32 queues;
	__u32 framing;
	__u64 capacity;
	__u64 horizon;
	__u32 awake;
	__u16 minor[WEIR_EDT_CLASSES]; /* of those that are awake */
} tick;

/* Until when a flow's allowance is used up, and the last of it that waits has left. */
static __u64 flow[1 << FLOW_BITS];

static __always_inline struct weir_edt_rule *rule_of(__u32 minor)
{
	return bpf_map_lookup_elem(&weir_edt_rules, &minor);
}

/* A ceiling of the whole link is no ceiling: a class may send more after it was held up. */
static __always_inline __u64 ceiling(const struct weir_edt_rule *rule)
{
	return rule->max >= tick.capacity ? WEIR_FILL_MOST : rule->max;
}

static __always_inline struct weir_edt_class *class_of(__u32 minor)
{
	return bpf_map_lookup_elem(&weir_edt_clocks, &minor);
}

static __always_inline __u64 below(__u64 a, __u64 b)
{
	return a < b ? a : b;
}

static __always_inline __u64 time_of(__u64 bytes, __u64 cost)
{
	return (bytes * cost) >> COST_SHIFT;
}

/*
 * How far the clock may be ahead: the horizon, but never less than queue_bytes take, as a sender's
 * socket holds that much and must feel the queue before it loses packets. Packets that wait were
 * stamped at earlier, perhaps slower rates.
 */
static __always_inline __u64 limit(const struct weir_edt_rule *rule, __u64 cost, __u64 ahead, __u64 waiting)
{
	__u64 most = time_of(rule->queue_bytes & 0xffffffff, cost), after;

	if (most < tick.horizon)
		most = tick.horizon;
	if (ahead && waiting < rule->queue_bytes) {
		after = ahead + time_of((rule->queue_bytes - waiting) & 0xffffffff, cost);
		if (after > most)
			most = after;
	}
	return most < FURTHEST ? most : FURTHEST;
}

/*
 * The last packet's time is not over, and the rate is another one now: the rest of it passes at
 * the new rate. Its own stamp stands; the next packet, which may be far off behind a super-packet
 * at a rate that held for a moment, comes when the class may send it.
 */
static __always_inline void change_pace(struct weir_edt_class *class, __u64 cost)
{
	__u64 was = class->cost, clock = class->clock, from = class->start, rest;

	if (from < tick.now)
		from = tick.now;
	/* Also if a packet came meanwhile: at the next tick. Nothing for what is rounded. */
	if (clock <= from || clock != class->before || (was - cost) + (was >> 7) <= was >> 6)
		return;
	/* In 1/64 of a byte, of at most one super-packet. */
	rest = ((clock - from) << COST_SHIFT) / ((was >> 6) + 1);
	if (rest >> 6 > LARGEST)
		return;
	rest = from + ((rest * cost) >> (COST_SHIFT + 6));
	if (__sync_val_compare_and_swap(&class->clock, clock, rest) == clock)
		class->before = rest;
}

/*
 * Gives a class its rate. A rate at which a packet takes longer than a tick is come down to step by
 * step: while demands are being found out it may hold for a moment only, and what is stamped at it
 * then would wait for seconds.
 */
static __always_inline void set_rate(struct weir_edt_class *class, const struct weir_edt_rule *rule)
{
	__u64 rate = weir_fill_rate(rule->group, rule->weight, rule->min, ceiling(rule)), cost, ahead;
	__u64 step = class->rate - class->rate / 8;

	if (class->cost && rate < step)
		rate = rate > below(step, SLOW) ? rate : below(step, SLOW);
	if (rate < LEAST)
		rate = LEAST;
	cost = (SECOND << COST_SHIFT) / rate;
	if (class->cost)
		change_pace(class, cost);
	ahead = class->before > tick.now ? class->before - tick.now : 0;
	class->rate = rate;
	class->limit_ns = limit(rule, cost, ahead, class->waiting);
	class->cost = cost;
}

/*
 * A class that waits wants all it can get. But its packets leave when their stamps say. Stamps
 * made at a rate far below today's hold it back until they have passed, whatever it is given: that
 * much is kept for it, and the rest is the others'.
 */
static __always_inline __u64 wants(const struct weir_edt_class *class, __u64 ahead, __u64 left)
{
	__u64 leaves = left * (SECOND / STEP) / (ahead / STEP + 1);

	return ahead > TICK && leaves < class->rate / 2 ? leaves + 1 : WEIR_FILL_MOST;
}

/*
 * How much of a difference a time of that length makes to what is smoothed. Divisions may come 1 ms apart,
 * and many of those see nothing of one that sends super-packets: were each to count alike, it would seem
 * to want next to nothing between two of them.
 */
static __always_inline __u64 part_of(__u64 difference, __u64 elapsed)
{
	return below(difference, WEIR_FILL_MOST) * (elapsed / STEP) / (SMOOTH / STEP);
}

/* The traffic and the demand of one class. */
static long look(__u32 minor, void *unused)
{
	struct weir_edt_class *class = class_of(minor);
	struct weir_edt_rule *rule;
	__u64 now = tick.now, elapsed = tick.elapsed, clock, bytes, sent, had, left, cost, ahead, departed, sample;
	__u64 packet;
	__u32 i = tick.awake, was;

	if (!class)
		return 1;
	cost = class->cost;
	if (!cost)
		return 0;
	rule = rule_of(minor);
	if (!rule)
		return 1;
	if (!rule->weight) {
		class->cost = 0;
		return 0;
	}
	bytes = class->bytes;
	clock = class->clock;
	sent = bytes - class->seen;
	had = class->waiting + sent;
	ahead = clock > now ? clock - now : 0;
	if (ahead > 2 * FURTHEST || (!sent && clock > class->before)) {
		/* No stamp is so far ahead: another process wrote into the map. */
		class->clock = clock = now;
		ahead = 0;
	}
	if (!ahead)
		left = 0;
	else if (class->before > now && class->before > tick.last)
		/* Packets that came since wait behind the earlier ones, which leave evenly. */
		left = had - below(class->waiting * (elapsed / STEP) / ((class->before - tick.last) / STEP + 1), had);
	else
		left = below((ahead << COST_SHIFT) / cost, had);
	departed = had - left;
	tick.departed += departed;
	tick.waiting += left;
	class->seen = bytes;
	class->before = clock;
	class->waiting = left;

	sample = departed * (SECOND / STEP) / (elapsed / STEP + 1);
	if (class->backlogged || elapsed < MS)
		; /* Of less than a packet's time nothing is learnt. */
	else if (elapsed > SMOOTH)
		class->offered_rate = sample;
	else if (sample > class->offered_rate)
		class->offered_rate += part_of(sample - class->offered_rate, elapsed);
	else
		class->offered_rate -= part_of(class->offered_rate - sample, elapsed);
	packet = time_of(tick.packet_bytes, cost);
	was = class->backlogged;
	class->backlogged = ahead > QUEUE + packet || (ahead && now - class->ran_out > 2 * TICK + 4 * packet);
	/*
	 * It has sent what came and what had waited: more than it wants. (All it might send could be the
	 * link, for one datagram that was late, and the others would be held for as long as that is forgotten.)
	 */
	if (was && !class->backlogged)
		class->offered_rate = elapsed < MS ? class->rate : below(sample, class->rate);
	if (departed || ahead) {
		class->idle = 0;
	} else if (++class->idle >= SLEEPS) {
		class->offered_rate = 0;
		class->cost = 0;
		return 0;
	}
	if (i >= WEIR_EDT_CLASSES)
		return 1;
	tick.minor[i] = minor;
	tick.awake = i + 1;
	if (class->backlogged)
		weir_fill_claim(rule->group, rule->weight, rule->min, ceiling(rule), wants(class, ahead, left));
	else if (class->offered_rate)
		weir_fill_claim(rule->group, rule->weight, rule->min, ceiling(rule), class->offered_rate);
	return 0;
}

static long state_group(__u32 i, void *unused)
{
	__u32 number = i + 1;
	struct weir_edt_rule *rule = bpf_map_lookup_elem(&weir_edt_groups, &number);

	if (rule)
		weir_fill_group(number, rule->weight, rule->min, ceiling(rule));
	return 0;
}

static long grant(__u32 i, void *unused)
{
	struct weir_edt_class *class;
	struct weir_edt_rule *rule;
	__u32 minor;

	if (i >= WEIR_EDT_CLASSES)
		return 1;
	minor = tick.minor[i];
	class = class_of(minor);
	rule = rule_of(minor);
	if (class && rule)
		set_rate(class, rule);
	return 0;
}

/*
 * The rate that the link may be given, in view of its account. A rate given now takes effect
 * behind the packets that wait: a debt is paid slower than that takes, or the link would swing.
 */
static __always_inline __u64 to_give(__u64 capacity)
{
	__u64 due = capacity * (below(tick.elapsed, SECOND / 4) / STEP) / (SECOND / STEP);
	__s64 slack = capacity / SLACK_PER_SECOND, over = tick.over + tick.departed - due;
	__u64 queue = tick.waiting * (SECOND / STEP) / (capacity / STEP + 1), drain, part;

	if (over < -slack)
		over = -slack;
	if (over > (__s64)capacity)
		over = capacity;
	tick.over = over;
	drain = DRAIN + (over < 0 ? queue : 4 * queue);
	part = (over < 0 ? -over : over) * (SECOND / STEP) / (drain / STEP);
	part = below(part, capacity / 8);
	return over < 0 ? capacity + part : capacity - part;
}

/* Computes the rates again. */
static __noinline int make_rates(__u64 now)
{
	__u32 zero = 0;
	struct weir_edt_link *link = bpf_map_lookup_elem(&weir_edt_link, &zero);
	__u64 busy = tick.busy, capacity;

	/* No division takes a second: another process wrote into the map. */
	if (!link || (busy && now - busy < SECOND))
		return 0;
	if (__sync_val_compare_and_swap(&tick.busy, busy, now) != busy)
		return 0;
	weir_edt_next = now + TICK;
	tick.now = now;
	tick.elapsed = below(now - tick.last, SECOND);
	tick.awake = 0;
	tick.departed = 0;
	tick.waiting = 0;
	tick.packet_bytes = link->packet_bytes;
	tick.queues = link->queues;
	tick.framing = link->framing;
	tick.horizon = link->horizon_ns;
	capacity = below(link->capacity, WEIR_FILL_MOST / 2);
	tick.capacity = capacity;
	weir_fill_begin(2 * capacity, link->groups);
	bpf_loop(weir_fill.groups, state_group, (void *)0, 0);
	bpf_loop(below(link->last_minor + 1, WEIR_EDT_CLASSES), look, (void *)0, 0);
	weir_fill_room(to_give(capacity));
	weir_fill_solve();
	bpf_loop(tick.awake, grant, (void *)0, 0);
	tick.last = now;
	tick.busy = 0;
	return 0;
}

/* Gives a class that slept the rate it could have at the last tick; 0 if there is no such class. */
static __noinline int wake(__u32 minor)
{
	struct weir_edt_class *class = class_of(minor);
	struct weir_edt_rule *rule = rule_of(minor);

	if (!class || !rule || !rule->weight)
		return 0;
	class->seen = class->bytes;
	class->waiting = 0;
	class->backlogged = 0;
	class->idle = 0;
	set_rate(class, rule);
	return 1;
}

/*
 * Nothing of the class waits by its clock, which stood still since. If that is because its last
 * super-packet met others and leaves late, the time is given back: its sender had no cause to send.
 */
static __always_inline void catch_up(struct weir_edt_class *class, __u64 clock, __u64 now)
{
	__u64 least = now;

	if ((__s64)(now - class->last) < (__s64)(2 * LATEST))
		least -= LATEST;
	if (clock >= least)
		return;
	class->ran_out = now;
	__sync_val_compare_and_swap(&class->clock, clock, least);
}

static __always_inline __u64 *flow_of(struct __sk_buff *skb, __u32 minor)
{
	return &flow[(bpf_get_hash_recalc(skb) + minor * 0x9e3779b1) >> (32 - FLOW_BITS)];
}

/* How far ahead of time the allowance of those that pass what waits may be used up. */
static __always_inline __u64 burst_of(const struct weir_edt_class *class)
{
	return below(BURST * time_of(tick.packet_bytes, class->cost), LONGEST_BURST);
}

/* Whether a flow that sends little may pass what waits of its class, now. */
static __always_inline int passes(struct weir_edt_class *class, __u64 *flow, __u64 time, __u64 now)
{
	__u64 burst = burst_of(class), used = *flow, all = class->passed;

	/* No class is so far ahead: another process wrote into the map. */
	if (used < now || used - now > 2 * FURTHEST)
		used = now;
	if (all < now || all - now > 2 * FURTHEST)
		all = now;
	if (used - now > burst || all - now > burst)
		return 0;
	*flow = used + FLOW_PART * time;
	class->passed = all + CLASS_PART * time;
	return 1;
}

static __noinline int is_tcp(struct __sk_buff *skb)
{
	__u32 at = skb->protocol == bpf_htons(ETH_P_IP) ? 9 : 6; /* IPv6: next header */
	__u8 protocol;

	return !bpf_skb_load_bytes_relative(skb, at, &protocol, sizeof(protocol), BPF_HDR_START_NET) &&
	       protocol == IPPROTO_TCP;
}

SEC("tc")
int weir_edt(struct __sk_buff *skb)
{
	__u64 now = bpf_ktime_get_ns(), clock, start, ahead, time;
	__u32 minor = skb->priority & 0xffff, len = skb->wire_len, packets = skb->gso_segs;
	__u32 datagram = skb->cb[WEIR_CB_DATAGRAM];
	struct weir_edt_class *class;

	/* Due, or further ahead than weir sets it: another process wrote into the map. */
	if (weir_edt_next - now >= SECOND)
		make_rates(now);
	if (skb->priority >> 16 != WEIR_EDT_MAJOR)
		minor = WEIR_EDT_DEFAULT;
	class = class_of(minor);
	if (!class || (!class->cost && !wake(minor))) {
		class = class_of(WEIR_EDT_DEFAULT);
		if (!class || (!class->cost && !wake(WEIR_EDT_DEFAULT)))
			return NEXT;
	}
	if (!packets)
		packets = 1;
	if (tick.framing)
		len = on_line(tick.framing, len, skb->len, packets, skb->gso_size, skb->cb[WEIR_CB_EXCESS]);
	else
		len = on_link(len, packets, skb->cb[WEIR_CB_EXCESS]);
	/* The stack takes the queue that the packet says it came in by, counted from 1. */
	if (tick.queues > 1)
		skb->queue_mapping = 1 + bpf_get_hash_recalc(skb) % tick.queues;
	if (minor == WEIR_EDT_CONTROL) {
		skb->priority = PRIORITY_CONTROL;
	} else {
		/* The class's handle would mean a band, or a way past fq, by its lowest bits. */
		skb->priority = 0;
		clock = class->clock;
		ahead = clock > now ? clock - now : 0;
		time = time_of(len, class->cost);
		if (datagram && !takes_fragment(datagram, ahead, class->limit_ns, time_of(DATAGRAM_BYTES, class->cost)))
			goto refuse;
		if (ahead && len <= tick.packet_bytes && passes(class, flow_of(skb, minor), time, now)) {
			__sync_fetch_and_add(&class->clock, time);
			goto sent;
		}
		if (!ahead) {
			catch_up(class, clock, now);
		} else {
			if (ahead > class->limit_ns || (ahead > PATIENCE && is_tcp(skb)))
				goto refuse;
			if (ahead > EARLY && !class->backlogged && now - tick.last >= MS + tick.awake * (MS / 100))
				make_rates(now);
			if (ahead > MARK && bpf_skb_ecn_set_ce(skb))
				__sync_fetch_and_add(&class->marks, packets);
		}
		start = __sync_fetch_and_add(&class->clock, time_of(len, class->cost));
		class->start = start;
		if (len > 2 * tick.packet_bytes)
			class->last = start > now ? start : now;
		if (start > now) {
			*flow_of(skb, minor) = start + burst_of(class);
			/* The helper refuses what is not IP; fq takes any number there. */
			if (bpf_skb_set_tstamp(skb, start, BPF_SKB_TSTAMP_DELIVERY_MONO))
				skb->tstamp = start;
		}
	}
sent:
	__sync_fetch_and_add(&class->bytes, len);
	__sync_fetch_and_add(&class->packets, packets);
	return NEXT;
refuse:
	__sync_fetch_and_add(&class->drops, packets);
	return TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
