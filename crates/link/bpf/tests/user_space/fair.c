/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fair queueing qdisc in user space: fair.bpf.c as it is, with what it calls of the kernel put
 * in its place, so that a test can run it in a time of its own (src/fair/tests.rs).
 */
#include <linux/bpf.h>

#include "macros.h"

static __u64 time_now, watchdog;

static __u64 bpf_ktime_get_ns(void)
{
	return time_now;
}

static void *bpf_map_lookup_elem(void *map, const __u32 *slot);

static void *bpf_kptr_xchg(void *place, void *value)
{
	void *old = *(void **)place;

	*(void **)place = value;
	return old;
}

static int bpf_skb_ecn_set_ce(struct __sk_buff *skb)
{
	return 1;
}

static __u32 bpf_get_hash_recalc(struct __sk_buff *skb)
{
	return skb->hash;
}

/* The timer of paper.h, in the same time. A timer of a process that has ended never expires. */
static __u64 timer_at;
static int timer_is_gone;
static int (*timer_callback)(void *, __u32 *, void *);

static long bpf_timer_init(struct bpf_timer *timer, void *map, __u64 flags)
{
	return 0;
}

#define bpf_timer_set_callback(timer, callback) (timer_callback = (int (*)(void *, __u32 *, void *))(callback), 0)

static long bpf_timer_start(struct bpf_timer *timer, __u64 at, __u64 flags)
{
	timer_at = at;
	return 0;
}

static long bpf_timer_cancel(struct bpf_timer *timer)
{
	timer_at = 0;
	return 0;
}

struct sk_buff;
struct skb_shared_info;
static const struct skb_shared_info *shared_info(struct sk_buff *skb);

#define WEIR_PAPER
#include "fair/fair.bpf.c"

static struct slot slots[SLOTS];
static struct sk_buff packets[SLOTS], *unused;
static struct Qdisc qdisc = { .parent = TC_H_ROOT };

static struct paper_clock paper_clock;

/* Of the packet that comes: one that is longer than a frame is a super-packet of TCP over IPv4. */
static struct skb_shared_info the_info;

static const struct skb_shared_info *shared_info(struct sk_buff *skb)
{
	return &the_info;
}

static void *bpf_map_lookup_elem(void *map, const __u32 *slot)
{
	return map == &weir_fair_clock ? (void *)&paper_clock : &slots[SLOT(*slot)];
}

/* Runs the timer until now. */
void user_run_timer(__u64 now)
{
	while (timer_at && !timer_is_gone && timer_at <= now) {
		time_now = timer_at;
		timer_at = 0;
		timer_callback(NULL, NULL, &paper_clock);
	}
	time_now = now;
}

/* The process that has loaded the programs ends. */
void user_end_process(void)
{
	timer_is_gone = 1;
}

/* A class's credit in the paper's form, bytes, rounded down. */
__s64 user_paper_credit(__u32 minor)
{
	return paper_credit[minor & MASK] >> PAPER_SHIFT;
}

void bpf_kfree_skb(struct sk_buff *skb)
{
	skb->sk = unused;
	unused = skb;
}

void bpf_qdisc_skb_drop(struct sk_buff *skb, struct bpf_sk_buff_ptr *to_free)
{
	bpf_kfree_skb(skb);
}

void bpf_qdisc_watchdog_schedule(struct Qdisc *sch, __u64 expire, __u64 delta_ns)
{
	watchdog = expire;
}

void bpf_qdisc_bstats_update(struct Qdisc *sch, const struct sk_buff *skb)
{
}

__u32 bpf_skb_get_hash(struct sk_buff *skb)
{
	return skb->hash;
}

/* A new qdisc, without classes. Returns what it shares with user space. */
struct fair_shared *user_init(void)
{
	__u32 i;

	fair_destroy(&qdisc);
	owner = 0;
	timer_is_gone = 0;
	__builtin_memset(&shared, 0, sizeof(shared));
	unused = NULL;
	for (i = 0; i < SLOTS; i++) {
		slots[i].skb = NULL;
		bpf_kfree_skb(&packets[i]);
	}
	__builtin_memset(&qdisc, 0, sizeof(qdisc));
	qdisc.parent = TC_H_ROOT;
	fair_init(&qdisc, NULL, NULL);
	return &shared;
}

/* The bytes that a class was charged. */
__u64 user_bytes(__u32 minor)
{
	return stats(minor)->bytes;
}

#define HEADERS 54 /* of Ethernet, IPv4 and TCP */

/* A packet for a class comes, a local socket's if it is `owned`, a fragment of a datagram (datagram.h)
 * or 0. 0: it was taken. */
int user_enqueue(__u64 now, __u32 minor, __u32 len, __u32 hash, int owned, __u32 datagram)
{
	struct bpf_sk_buff_ptr to_free = { NULL };
	struct sk_buff *skb = unused;

	unused = skb->sk;
	skb->sk = owned ? skb : NULL;
	skb->priority = 1 << 16 | minor;
	skb->hash = hash;
	((struct qdisc_skb_cb *)skb->cb)->pkt_len = len;
	the_info.gso_segs = len > MTU ? (len + MTU - 1) / MTU : 0;
	the_info.gso_size = len > MTU ? MTU - HEADERS : 0;
	skb->len = len > MTU ? len - (the_info.gso_segs - 1) * HEADERS : len;
	*(__u32 *)&((struct qdisc_skb_cb *)skb->cb)->data[4 * WEIR_CB_DATAGRAM] = datagram;
	user_run_timer(now);
	return fair_enqueue(skb, &qdisc, &to_free);
}

/* The next packet: its class << 32 | its length. 0: none before `*wake`, which is 0 if none waits.
 * `*datagram`: what it is a fragment of. */
__u64 user_dequeue(__u64 now, __u64 *wake, __u32 *datagram)
{
	struct sk_buff *skb;
	__u64 packet;

	user_run_timer(now);
	watchdog = 0;
	skb = fair_dequeue(&qdisc);
	*wake = watchdog;
	if (!skb)
		return 0;
	*datagram = *(__u32 *)&((struct qdisc_skb_cb *)skb->cb)->data[4 * WEIR_CB_DATAGRAM];
	packet = (__u64)(skb->priority & 0xffff) << 32 | ((struct qdisc_skb_cb *)skb->cb)->pkt_len;
	bpf_kfree_skb(skb);
	return packet;
}
