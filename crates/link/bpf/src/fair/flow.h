/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside a class: its flows take turns (deficit round robin with a list of new flows that go
 * first, RFC 8290), and each flow's standing queue is kept short by CoDel (RFC 8289).
 *
 * Two differences. A flow counts as new while it sends little (FRESH_BYTES in FRESH_TIME),
 * whether or not it had packets a moment ago, so that a connection of small requests stays
 * quick beside a bulk transfer. And a packet that still belongs to its sender's socket is not
 * dropped by CoDel: the full queue holds the sender back, and marks tell it to slow down. Nor is a
 * fragment, whose datagram would be lost with it.
 */
#ifndef WEIR_FAIR_FLOW_H
#define WEIR_FAIR_FLOW_H

#define SLOTS 65536 /* packets that can wait; slot 0 is none */
#define FLOWS 16    /* queues a class; flow 0 of minor 0 is none */
#define FLOW_MASK (FAIR_ENTITIES * FLOWS - 1)
#define OWNED 0x80000000u /* in queued.len: belongs to a local socket, or is a part of a datagram */
#define FRESH_BYTES 3028
#define FRESH_TIME 97656 /* 100 ms */
#define MTU 1514

/* Times of CoDel are in 1024 ns, 32 bits. */
static __always_inline __u32 ticks(__u64 ns)
{
	return ns >> 10;
}

struct slot {
	struct sk_buff __kptr *skb;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SLOTS);
	__type(key, __u32);
	__type(value, struct slot);
} weir_fair_slots SEC(".maps");

/* The packet in a slot. */
struct queued {
	__u32 len;         /* bytes on the line, and OWNED */
	__u32 time;        /* of its arrival, in ticks */
	__u32 next;        /* the slot behind it in its flow, or in the list of free ones */
	__u16 minor;
	__u16 segments;
};
_Static_assert(sizeof(struct queued) == 16, "an index is a shift");

struct queued queue[SLOTS];
__u32 free_slot;         /* first of those given back */
__u32 fresh_slot;        /* slots from here on were never used */

struct flow {
	__u32 head, tail;
	__u32 bytes;
	__s32 deficit;
	__u32 next;        /* in its class's list */
	__u32 fresh_since;
	__u32 fresh_bytes;
	__u32 first_above;
	__u32 signal_next;
	__u16 count, last_count;
	__u8 listed;       /* 0, LIST_NEW or LIST_OLD */
	__u8 signalling;
	__u16 pad;
	__u32 hash;        /* whose packets wait here */
	__u8 pad2[16];
};
_Static_assert(sizeof(struct flow) == 64, "an index is a shift");
#define LIST_NEW 1
#define LIST_OLD 2

struct flow flows[FAIR_ENTITIES * FLOWS];

struct entity {
	__u64 vt;          /* virtual time: start tag of its next packet */
	__u64 v;           /* virtual time of what is inside it (the link, groups) */
	__u64 floor_at;    /* when its floor is due again */
	__u64 ceil_at;     /* when its ceiling lets it send again */
	__u32 ready;       /* top of the heap of what is inside it */
	__u32 parent;      /* ROOT or a group */
	__u32 packets;
	__u32 bytes;
	__u32 largest;     /* packet of late */
	__u32 new_head, new_tail, old_head, old_tail;
	__u32 sparse_next;
	__u8 sparse;      /* stands in the sparse list */
	__u8 turn;         /* stands in a list of credit mode */
	__u8 at_ceiling;   /* its ceiling held it back of late */
	__u8 pad;
	__u32 turn_next;   /* in a list of credit mode */
	__s64 credit;      /* bytes */
	__u64 weight_cost; /* its parameters when policies changed last */
	__u64 floor_cost;
	__u64 v_before;    /* v some time ago, and at seen_at: see vtime_progress */
	__u64 v_seen;
	__u64 seen_at;
};
_Static_assert(sizeof(struct entity) == 128, "an index is a shift");

struct entity entities[FAIR_ENTITIES];
#define ROOT 1
#define DEFAULT 2

struct fair_shared shared SEC(".bss.weir_fair");

/* Flows, one bit each, by class: CoDel asks for a mark; the packet could not be marked. */
__u32 mark_wanted[FAIR_ENTITIES];
__u32 mark_failed[FAIR_ENTITIES];
__u32 marks_wanted; /* by all together */

/* Dropped by CoDel in this dequeue. */
__u32 lost_packets, lost_bytes;

static __always_inline struct entity *entity(__u32 i)
{
	return &entities[i & MASK];
}

static __always_inline struct fair_params *params(__u32 i)
{
	return &shared.params[i & MASK];
}

static __always_inline struct fair_stats *stats(__u32 i)
{
	return &shared.stats[i & MASK];
}

static __always_inline struct flow *flow(__u32 i)
{
	return &flows[i & FLOW_MASK];
}

#define SLOT(i) ((i) & (SLOTS - 1))

static __always_inline struct queued *queued(__u32 slot)
{
	return &queue[SLOT(slot)];
}

static __always_inline __u32 slot_take(void)
{
	__u32 slot = free_slot;

	if (slot) {
		free_slot = queued(slot)->next;
		return SLOT(slot);
	}
	slot = fresh_slot;
	if (slot >= SLOTS - 1)
		return 0;
	fresh_slot = slot + 1;
	return slot + 1;
}

static __always_inline void slot_give(__u32 slot)
{
	queued(slot)->next = free_slot;
	free_slot = slot;
}

static __always_inline void list_append(struct entity *c, __u32 f, int list)
{
	struct flow *fl = flow(f);

	fl->listed = list;
	fl->next = 0;
	if (list == LIST_NEW) {
		if (c->new_head)
			flow(c->new_tail)->next = f;
		else
			c->new_head = f;
		c->new_tail = f;
	} else {
		if (c->old_head)
			flow(c->old_tail)->next = f;
		else
			c->old_head = f;
		c->old_tail = f;
	}
}

static __always_inline void remember_largest(struct entity *c, __u32 len)
{
	c->largest = len > c->largest ? len : c->largest - ((c->largest - len) >> 10);
}

static __always_inline __u32 quantum(struct entity *c)
{
	return c->largest > MTU ? c->largest : MTU;
}

/*
 * The queue of a flow: one of four places, the one where its packets wait or the first where none
 * do. Two flows share a queue only when all four are taken.
 */
static __always_inline __u32 flow_of(__u32 minor, __u32 hash)
{
	__u32 base = minor * FLOWS, chosen = 0, way;

#pragma unroll
	for (way = 0; way < 4; way++) {
		__u32 f = (base + ((hash >> (4 * way)) & (FLOWS - 1))) & FLOW_MASK;

		if (!flow(f)->listed) {
			if (!chosen)
				chosen = f;
		} else if (flow(f)->hash == hash) {
			return f;
		}
	}
	return chosen ? chosen : (base + (hash & (FLOWS - 1))) & FLOW_MASK;
}

/* Appends the packet in a slot to a flow of a class. True if the flow was not waiting, and is new. */
static __always_inline int flow_append(__u32 minor, __u32 slot, __u32 hash, __u32 now)
{
	struct entity *c = entity(minor);
	__u32 f = c->packets ? flow_of(minor, hash) : (minor * FLOWS + (hash & (FLOWS - 1))) & FLOW_MASK;
	struct flow *fl = flow(f);
	__u32 len = queued(slot)->len & ~OWNED;

	queued(slot)->next = 0;
	if (fl->head)
		queued(fl->tail)->next = slot;
	else
		fl->head = slot;
	fl->tail = slot;
	fl->bytes += len;
	c->packets++;
	c->bytes += len;
	remember_largest(c, len);
	if (fl->listed)
		return 0;
	if (now - fl->fresh_since > FRESH_TIME) {
		fl->fresh_since = now;
		fl->fresh_bytes = 0;
	}
	fl->hash = hash;
	if (fl->fresh_bytes >= FRESH_BYTES) {
		fl->deficit = quantum(c);
		list_append(c, f, LIST_OLD);
		return 0;
	}
	/* Not a quantum, which may be a super-packet of long ago: it would all go ahead of its turn. */
	fl->deficit = FRESH_BYTES;
	list_append(c, f, LIST_NEW);
	return 1;
}

/* Takes a flow's first packet out of all queues. */
static __always_inline void flow_unlink_first(__u32 minor, struct flow *fl, __u32 slot, __u32 len)
{
	struct entity *c = entity(minor);
	struct fair_stats *s = stats(minor);

	fl->head = queued(slot)->next;
	fl->bytes -= len;
	c->packets--;
	c->bytes -= len;
	s->backlog_packets = c->packets;
	s->backlog_bytes = c->bytes;
}

/* 65536 / sqrt(i). */
static const __u32 inverse_root[64] = {
	65535, 65535, 46341, 37837, 32768, 29309, 26755, 24770,
	23170, 21845, 20724, 19760, 18919, 18176, 17515, 16921,
	16384, 15895, 15447, 15035, 14654, 14301, 13972, 13665,
	13377, 13107, 12853, 12612, 12385, 12170, 11965, 11771,
	11585, 11408, 11239, 11078, 10923, 10774, 10631, 10494,
	10362, 10235, 10112, 9994, 9880, 9770, 9663, 9559,
	9459, 9362, 9268, 9177, 9088, 9002, 8918, 8837,
	8758, 8680, 8605, 8532, 8461, 8391, 8323, 8257,
};

/* The time of the next signal: an interval over the root of how many there were. */
static __always_inline __u32 next_signal(__u32 from, __u32 count)
{
	__u32 interval = ticks(shared.config.codel_interval_us * 1000ull);
	__u32 shift = 16;

	if (count >= 64) {
		count >>= 6;
		shift += 3;
		if (count >= 64)
			count = 63;
	}
	barrier_var(count); /* keep the mask, from which the verifier knows the range */
	return from + (__u32)(((__u64)interval * inverse_root[count & 63]) >> shift);
}

/* RFC 8289, section 5.5: has the queue been standing for an interval? */
static __always_inline int stands(struct entity *c, struct flow *fl, __u32 slot, __u32 len, __u32 now)
{
	__u32 waited = now - queued(slot)->time;

	/* Less than half a packet behind this one is no queue, however slow the class is. */
	if ((__s32)(waited - ticks(shared.config.codel_target_us * 1000ull)) < 0 ||
	    fl->bytes - len <= quantum(c) / 2) {
		fl->first_above = 0;
		return 0;
	}
	if (!fl->first_above) {
		fl->first_above = (now + ticks(shared.config.codel_interval_us * 1000ull)) | 1;
		return 0;
	}
	return (__s32)(now - fl->first_above) >= 0;
}

/* Whether CoDel wants the sender of this packet to be told. */
static __always_inline int codel(struct entity *c, struct flow *fl, __u32 slot, __u32 len, __u32 now)
{
	int standing = stands(c, fl, slot, len, now);
	__u32 recent;

	if (fl->signalling) {
		if (!standing) {
			fl->signalling = 0;
			return 0;
		}
		if ((__s32)(now - fl->signal_next) < 0)
			return 0;
		if (fl->count < 4095)
			fl->count++;
		fl->signal_next = next_signal(fl->signal_next, fl->count);
		return 1;
	}
	if (!standing)
		return 0;
	recent = fl->count - fl->last_count;
	fl->count = recent > 1 && recent < 4096 &&
		(__s32)(now - fl->signal_next - 16 * ticks(shared.config.codel_interval_us * 1000ull)) < 0 ? recent : 1;
	fl->last_count = fl->count;
	fl->signalling = 1;
	fl->signal_next = next_signal(now, fl->count);
	return 1;
}

static __always_inline void slot_free_packet(__u32 slot)
{
	__u32 key = SLOT(slot);
	struct slot *s = bpf_map_lookup_elem(&weir_fair_slots, &key);
	struct sk_buff *skb;

	if (!s)
		return;
	skb = bpf_kptr_xchg(&s->skb, NULL);
	if (skb)
		bpf_kfree_skb(skb);
	slot_give(key);
}

/*
 * Tells the sender. A mark is set by weir_fair_mark on the next packet of the flow, as a qdisc
 * cannot write packets; where that failed, and no socket is held back, this packet is dropped:
 * then true.
 */
static __always_inline int flow_signal(__u32 minor, __u32 f, __u32 len_owned)
{
	__u32 bit = 1u << (f & (FLOWS - 1));

	if (mark_failed[minor & MASK] & bit) {
		if (len_owned & OWNED)
			return 0;
		return 1;
	}
	if (!(__sync_fetch_and_or(&mark_wanted[minor & MASK], bit) & bit))
		__sync_fetch_and_add(&marks_wanted, 1);
	return 0;
}

/*
 * The slot of the class's next packet, unlinked from all queues; 0 without one. `alone`: no packet waits beside it, and
 * it has just come.
 */
static __always_inline __u32 class_take(__u32 minor, __u32 now, int alone)
{
	struct entity *c = entity(minor);
	__u32 budget = most_steps;

	/* Most often the loop ends in its first turn, which need not be counted. */
	do {
		int is_new = c->new_head != 0;
		__u32 f = is_new ? c->new_head : c->old_head;
		struct flow *fl = flow(f);
		__u32 slot, len, drop = 0;

		if (!f) {
			if (c->packets)
				broken = 1;
			return 0;
		}
		if (!budget--) {
			broken = 1;
			return 0;
		}
		if (is_new)
			c->new_head = fl->next;
		else
			c->old_head = fl->next;
		slot = fl->head;
		if (!slot) {
			fl->listed = 0;
			continue;
		}
		if (fl->deficit <= 0) {
			fl->deficit += quantum(c);
			list_append(c, f, LIST_OLD);
			continue;
		}
		len = queued(slot)->len;
		if (alone) {
			fl->first_above = 0;
			fl->signalling = 0;
		} else if (codel(c, fl, slot, len & ~OWNED, now)) {
			drop = flow_signal(minor, f, len);
		}
		len &= ~OWNED;
		flow_unlink_first(minor, fl, slot, len);
		if (!drop) {
			fl->deficit -= len;
			fl->fresh_bytes += len;
		}
		if (!fl->head) {
			fl->listed = 0;
			if (mark_failed[minor & MASK])
				mark_failed[minor & MASK] &= ~(1u << (f & (FLOWS - 1)));
		} else {
			/* Back to where it was, in front. */
			if (is_new) {
				fl->next = c->new_head;
				if (!c->new_head)
					c->new_tail = f;
				c->new_head = f;
			} else {
				fl->next = c->old_head;
				if (!c->old_head)
					c->old_tail = f;
				c->old_head = f;
			}
		}
		if (!drop)
			return slot;
		lost_packets++;
		lost_bytes += len;
		stats(minor)->drops++;
		slot_free_packet(slot);
	} while (can_loop);
	broken = 1;
	return 0;
}

/* Unlinks the first packet of the class's longest flow, to make room; 0 without one. */
__noinline __u32 class_overflow(__u32 minor)
{
	__u32 i, longest = 0, bytes = 0;
	struct flow *fl;
	__u32 slot;

	for (i = 0; i < FLOWS; i++) {
		__u32 f = (minor * FLOWS + i) & FLOW_MASK;

		if (flow(f)->bytes > bytes) {
			bytes = flow(f)->bytes;
			longest = f;
		}
	}
	fl = flow(longest);
	slot = fl->head;
	if (!longest || !slot)
		return 0;
	flow_unlink_first(minor, fl, slot, queued(slot)->len & ~OWNED);
	stats(minor)->drops++;
	return slot;
}

#endif
