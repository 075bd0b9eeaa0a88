/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weir's queueing discipline: the link's classes and groups, by weight, floor and ceiling, in the
 * kernel itself, without a process in the loop. It sits at the root of the shared ifb, where
 * weir_port and the uplink's programs have named the class in skb->priority. weir_fair_mark moves it into skb->cb.
 *
 * fair.h       what user space writes and reads
 * datagram.h   fragments
 * framing.h    bytes on the line
 * heap.h    heaps without allocation
 * flow.h    packets in slots, flows in a class, CoDel
 * sched.h   which class is next
 * credit.h  the same as qCon does it, repaired
 * paper.h   the same as qCon does it
 *
 * All state is touched under the qdisc's root lock only (but for the marks, which are atomic).
 * Packets are held as kptrs in a fixed pool of slots and everything else is index and number: no
 * allocation a packet, no lock. Each index is masked before it is used, and every loop is bounded;
 * if state does not fit together, all packets are dropped and it begins again.
 */
#include <linux/bpf.h>
#include <linux/errno.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "fair.h"
#include "kernel.h"
#include "common/datagram.h"
#include "common/framing.h"
#include "common/intf.h"
#include "common/link.h"
#include "heap.h"
#include "flow.h"
#include "turns.h"
#include "sched.h"
#include "credit.h"
#include "paper.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

static __always_inline __u32 class_of(__u32 priority)
{
	__u32 minor = priority & 0xffff;

	if (priority >> 16 != 1 || minor >= FAIR_ENTITIES ||
	    (params(minor)->flags & (FAIR_PRESENT | FAIR_GROUP)) != FAIR_PRESENT)
		return 0;
	return minor;
}

/* The class that the classifier has named; weir_fair_mark has moved it from skb->priority into skb->cb. */
static __always_inline __u32 class_named(__u32 priority, __u32 moved)
{
	__u32 minor = class_of(priority);

	return minor ? minor : class_of(moved);
}

/* Pointers as mere numbers: what is read from memory is one to the verifier. */
volatile __u64 number, owner;

/* When the last packet came, until the next dequeue. */
__u64 arrived;

/* The class that had most packets waiting when all were looked at, and how many. */
__u32 hog, hog_packets;

/* It still has many, or half of what it had: not every packet has them all looked at. */
__noinline __u32 find_hog(void)
{
	__u32 i, most = 0, left = entity(hog)->packets;

	if (left > SLOTS / 64 || (left && left > hog_packets / 2))
		return hog;
	hog = 0;
	for (i = most_steps / 4; i && can_loop; i--) {
		if (entity(i)->packets > most) {
			most = entity(i)->packets;
			hog = i & MASK;
		}
	}
	hog_packets = most;
	return hog;
}

/* The bytes of a packet on the line, and its segments. */
static __always_inline __u32 framed(struct sk_buff *skb, __u32 *segments)
{
	struct qdisc_skb_cb *cb = (struct qdisc_skb_cb *)skb->cb;
	const struct skb_shared_info *info = shared_info(skb);

	if (info->gso_segs)
		*segments = info->gso_segs;
	return on_line(shared.config.framing, cb->pkt_len, skb->len, *segments, info->gso_size,
		       *(__u32 *)&cb->data[4 * WEIR_CB_EXCESS]);
}

SEC("struct_ops/fair_enqueue")
int BPF_PROG(fair_enqueue, struct sk_buff *skb, struct Qdisc *sch, struct bpf_sk_buff_ptr *to_free)
{
	struct qdisc_skb_cb *cb = (struct qdisc_skb_cb *)skb->cb;
	__u32 minor = class_named(skb->priority, *(__u32 *)&cb->data[4 * WEIR_CB_HANDLE]);
	__u32 len = cb->pkt_len & ~OWNED;
	__u32 segments = 1, datagram = *(__u32 *)&cb->data[4 * WEIR_CB_DATAGRAM], hash, slot, i;
	__u64 now = bpf_ktime_get_ns();
	struct sk_buff *old;
	struct entity *c;
	struct slot *s;
	int fresh;

	if (!minor) {
		minor = DEFAULT;
		shared.config.unclassified++;
	}
	c = entity(minor);
	if (broken)
		goto refuse;
	if (bpf_core_field_exists(cb->pkt_segs)) {
		segments = cb->pkt_segs;
		if (!segments)
			segments = 1;
	} else if (len > MTU) {
		segments = (len + MTU - 1) / MTU;
	}
	if (shared.config.framing)
		len = framed(skb, &segments) & ~OWNED;
	else
		len = on_link(len, segments, *(__u32 *)&cb->data[4 * WEIR_CB_EXCESS]) & ~OWNED;
	if (datagram && !takes_fragment(datagram, c->bytes + len, params(minor)->limit_bytes, DATAGRAM_BYTES))
		goto refuse;
	/* The newcomer is not who made the queue long. */
	for (i = c->packets ? most_steps / 256 : 0; i && c->packets && c->bytes + len > params(minor)->limit_bytes && can_loop; i--) {
		slot = class_overflow(minor);
		if (!slot)
			break;
		s = bpf_map_lookup_elem(&weir_fair_slots, &slot);
		if (!s)
			break;
		old = bpf_kptr_xchg(&s->skb, NULL);
		sch->q.qlen--;
		sch->qstats.backlog -= queued(slot)->len & ~OWNED;
		sch->qstats.drops++;
		slot_give(slot);
		if (old)
			bpf_qdisc_skb_drop(old, to_free);
	}
	if (c->packets && c->bytes + len > params(minor)->limit_bytes)
		goto refuse;
	slot = slot_take();
	if (!slot) {
		shared.config.pool_full++;
		slot = class_overflow(find_hog());
		if (!slot) {
			broken = 1; /* all slots taken, and nobody has them */
			goto refuse;
		}
		sch->q.qlen--;
		sch->qstats.backlog -= queued(slot)->len & ~OWNED;
		sch->qstats.drops++;
	}
	s = bpf_map_lookup_elem(&weir_fair_slots, &slot);
	if (!s)
		goto refuse;
	number = (__u64)skb->sk;
	hash = skb->hash;
	/* TCP's packets carry a hash. For others of local sockets the socket will do: to look into
	 * the packet would cost more than all the rest. */
	if (!hash)
		hash = number ? (__u32)(number >> 6) * 0x9e3779b1 : bpf_skb_get_hash(skb);
	if (in_paper_form())
		hash = 0; /* one queue */
	queued(slot)->len = len | (number || datagram ? OWNED : 0);
	arrived = now;
	queued(slot)->time = ticks(now);
	queued(slot)->minor = minor;
	queued(slot)->segments = segments;
	old = bpf_kptr_xchg(&s->skb, skb);
	if (old) /* dropped to make room in the pool */
		bpf_qdisc_skb_drop(old, to_free);
	sch->q.qlen++;
	sch->qstats.backlog += len;
	fresh = flow_append(minor, slot, hash, ticks(now));
	stats(minor)->backlog_packets = c->packets;
	stats(minor)->backlog_bytes = c->bytes;
	if (in_paper_form()) {
		paper_wake(minor, now);
	} else if (shared.config.mode == FAIR_MODE_CREDIT) {
		if (!c->turn && !node(THROTTLED | minor)->in)
			credit_wake(minor);
	} else if (c->packets == 1) {
		wake(minor, now);
	}
	if (fresh && len <= shared.config.small_bytes)
		sparse_append(minor);
	return NET_XMIT_SUCCESS;
refuse:
	stats(minor)->drops++;
	sch->qstats.drops++;
	bpf_qdisc_skb_drop(skb, to_free);
	return NET_XMIT_DROP;
}

/* Drops all packets and forgets all that is queued or owed. */
__noinline int forget_all(void)
{
	__u32 i;

	for (i = most_steps * (SLOTS / (4 * FAIR_ENTITIES)); i && can_loop; i--) {
		slot_free_packet(i);
		queued(i)->next = 0;
	}
	for (i = most_steps * (FLOWS / 4); i && can_loop; i--) {
		struct flow *fl = flow(i);

		fl->head = 0;
		fl->tail = 0;
		fl->bytes = 0;
		fl->listed = 0;
		fl->signalling = 0;
		fl->first_above = 0;
	}
	for (i = most_steps / 4; i && can_loop; i--) {
		__builtin_memset(entity(i), 0, sizeof(struct entity));
		node(READY | i)->in = 0;
		node(THROTTLED | i)->in = 0;
		node(FLOOR | i)->in = 0;
		mark_wanted[i & MASK] = 0;
		mark_failed[i & MASK] = 0;
		stats(i)->backlog_packets = 0;
		stats(i)->backlog_bytes = 0;
		paper_forget(i);
	}
	free_slot = 0;
	fresh_slot = 0;
	marks_wanted = 0;
	throttled_top = 0;
	floor_top = 0;
	sparse_head = 0;
	turn_head = 0;
	spent_head = 0;
	period_end = 0;
	link_at = 0;
	hog = 0;
	hog_packets = 0;
	broken = 0;
	return 0;
}

static __always_inline void start_anew(struct Qdisc *sch)
{
	forget_all();
	owner = (__u64)sch;
	shared.config.live = 1;
	sch->q.qlen = 0;
	sch->qstats.backlog = 0;
}

static __always_inline void count_sent(__u32 e, __u32 len, __u32 segments)
{
	__u32 group = entity(e)->parent & MASK;

	stats(e)->bytes += len;
	stats(e)->packets += segments;
	if (group != ROOT) {
		stats(group)->bytes += len;
		stats(group)->packets += segments;
	}
}

SEC("struct_ops/fair_dequeue")
struct sk_buff *BPF_PROG(fair_dequeue, struct Qdisc *sch)
{
	__u32 tries = most_steps / 256, mode = shared.config.mode;
	__u64 now;
	int alone;

	/* The kernel asks once more than there are packets. */
	if (!sch->q.qlen && !broken)
		return NULL;
	if (shared.config.flush) {
		shared.config.flush = 0;
		broken = 1;
	}
	/* A packet that finds the queue empty is asked for at once: no need to look again. */
	now = sch->q.qlen == 1 ? arrived : 0;
	arrived = 0;
	alone = now != 0;
	if (!alone)
		now = bpf_ktime_get_ns();
	/* At once, so that no later change is taken for this one. */
	if (shared.config.changed && __sync_lock_test_and_set(&shared.config.changed, 0))
		take_changes(now);
	wake_at = 0;
	while (sch->q.qlen && !broken && tries-- && can_loop) {
		struct sk_buff *skb;
		__u32 e = 0, slot, len;
		struct slot *s;

		if (before(now + time_of(LARGEST, shared.config.link_cost), link_at))
			link_at = now;
		if (sparse_head && !before(now + shared.config.sparse_ns, link_at))
			e = sparse_pick(now);
		if (!e) {
			if (before(now, link_at)) {
				wake_at = link_at;
				break;
			}
			if (in_paper_form())
				e = paper_pick(now);
			else
				e = mode == FAIR_MODE_CREDIT ? credit_pick(now) : pick(now);
			if (!e)
				break;
		}
		lost_packets = 0;
		lost_bytes = 0;
		slot = class_take(e, ticks(now), alone);
		if (lost_packets) {
			sch->q.qlen -= lost_packets;
			sch->qstats.backlog -= lost_bytes;
			sch->qstats.drops += lost_packets;
		}
		if (!slot)
			continue;
		s = bpf_map_lookup_elem(&weir_fair_slots, &slot);
		if (!s)
			break;
		len = queued(slot)->len & ~OWNED;
		skb = bpf_kptr_xchg(&s->skb, NULL);
		slot_give(slot);
		sch->q.qlen--;
		sch->qstats.backlog -= len;
		charge(e, len, now, mode);
		count_sent(e, len, queued(slot)->segments);
		if (in_paper_form())
			paper_spend(e, len);
		else if (mode == FAIR_MODE_CREDIT)
			credit_spend(e, len);
		if (entity(e)->new_head && !in_paper_form())
			sparse_append(e);
		if (!skb) {
			broken = 1;
			break;
		}
		bpf_qdisc_bstats_update(sch, skb);
		return skb;
	}
	if (broken || (sch->q.qlen && !wake_at && tries)) {
		shared.config.flushes++;
		start_anew(sch);
		return NULL;
	}
	if (sch->q.qlen) {
		/* However wrong a clock is, have a look now and then. */
		__u64 latest = now + 500 * MS;

		if (!wake_at)
			wake_at = now + AGAIN_NS;
		bpf_qdisc_watchdog_schedule(sch, before(latest, wake_at) ? latest : wake_at, 0);
	}
	return NULL;
}

SEC("struct_ops/fair_init")
int BPF_PROG(fair_init, struct Qdisc *sch, struct nlattr *opt, struct netlink_ext_ack *extack)
{
	/* One link, one state: neither a second device nor the queues of an mq. */
	if (sch->parent != TC_H_ROOT)
		return -EOPNOTSUPP;
	if (owner)
		return -EBUSY;
	start_anew(sch);
	sch->limit = SLOTS - 1;
	return 0;
}

SEC("struct_ops/fair_reset")
void BPF_PROG(fair_reset, struct Qdisc *sch)
{
	if (owner == (__u64)sch)
		start_anew(sch);
}

SEC("struct_ops/fair_destroy")
void BPF_PROG(fair_destroy, struct Qdisc *sch)
{
	if (owner != (__u64)sch)
		return; /* a second one, which was refused */
	owner = 0;
	shared.config.live = 0;
	paper_stop();
}

/*
 * At the egress of the qdisc's device, where packets can be written: takes the class out of skb->priority, which qdiscs
 * of the uplink would read, and marks the next packet of each flow for which CoDel has asked.
 */
SEC("tc")
int weir_fair_mark(struct __sk_buff *skb)
{
	__u32 minor, bit, hash, handle = skb->priority;

	if (handle >> 16 == 1) {
		skb->cb[WEIR_CB_HANDLE] = handle;
		skb->priority = 0;
	}
	if (!marks_wanted)
		return -1; /* TCX_NEXT */
	minor = class_of(handle);
	if (!minor)
		minor = DEFAULT;
	if (!mark_wanted[minor & MASK])
		return -1;
	hash = skb->hash;
	if (!hash) {
		if (skb->sk)
			return -1; /* a full queue holds it back, see fair_enqueue */
		hash = bpf_get_hash_recalc(skb);
	}
	bit = 1u << (flow_of(minor, hash) & (FLOWS - 1));
	if (!(mark_wanted[minor & MASK] & bit))
		return -1;
	if (__sync_fetch_and_and(&mark_wanted[minor & MASK], ~bit) & bit)
		__sync_fetch_and_add(&marks_wanted, -1);
	if (bpf_skb_ecn_set_ce(skb)) {
		__sync_fetch_and_add(&stats(minor)->marks, 1);
		__sync_fetch_and_and(&mark_failed[minor & MASK], ~bit);
	} else {
		__sync_fetch_and_or(&mark_failed[minor & MASK], bit);
	}
	return -1;
}

SEC(".struct_ops.link")
struct Qdisc_ops weir_fair = {
	.id = "weir",
	.enqueue = (void *)fair_enqueue,
	.dequeue = (void *)fair_dequeue,
	.init = (void *)fair_init,
	.reset = (void *)fair_reset,
	.destroy = (void *)fair_destroy,
};
