/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which congestion control does a connection use?
 *
 * weir_congestion is attached once, at the root of the cgroup v2 hierarchy, beside the programs of
 * others. When a socket connects, or one is accepted, it looks up the rule for the socket's class
 * (by its network namespace; in the agent's own by its cgroup too), service port, direction and
 * destination, and sets that rule's algorithm before the first data packet. At each RTT sample it
 * keeps the greatest smoothed round trip and, once enough is acknowledged, moves the flow to the
 * rule's second algorithm. When the last byte is acknowledged it writes a record of the flow.
 *
 * A connection whose application has chosen another algorithm since is left alone. BBR is left
 * only after its start-up, which ends with a finite ssthresh: what comes after it would else
 * double its window until the queue overflows.
 *
 * A rule may bound what is on the way before the change (TCP_BPF_SNDCWND_CLAMP). That also sets
 * ssthresh, and so does taking it back: what follows looks for its window by itself, from the bound
 * on. BBR is then left at once, wherever it is, as its window is a small one.
 *
 * An application that knows how much it will send can say so (weir_cc_hint): a flow that will pass
 * the threshold uses the second algorithm from the first packet on, or from the next RTT sample if it is
 * under way. One that is said to be smaller and is not changes at the threshold, as any other.
 *
 * The program needs no agent: if the agent dies, rules stay in force, and records without a reader
 * are counted and dropped.
 *
 * weir_cc_visit is for connections that are there already: an iterator over the TCP sockets of
 * the network namespace in which it is read.
 */
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "congestion.h"
#include "rules.h"
#include "trials.h"
#include "common/sockets.h"

#define INFINITE_SSTHRESH 0x7fffffff
#define SNDCWND_CLAMP 1002	/* TCP_BPF_SNDCWND_CLAMP */
#define CALLS (BPF_SOCK_OPS_RTT_CB_FLAG | BPF_SOCK_OPS_STATE_CB_FLAG)
#define DRAWN 2

struct flow { /* of one socket */
	__u64 began_ns;
	__u64 after_bytes;	/* the change to come; 0: none */
	__u64 switched_bytes;
	__u64 will_send_bytes;	/* in all, as its application says; 0: it does not */
	__u32 handle;
	__u32 number;
	__u32 generation;	/* of the rules that it was last compared with */
	__u32 began_generation;
	__u32 most_rtt_us;
	__u16 direction;
	__u16 window;		/* segments, while weir bounds what is on the way; 0: it does not */
	__u32 turn;		/* of a trial, when it began */
	__u32 tried;		/* WEIR_CC_TRIED: it uses what the turn tries, whatever the rules say */
	char was[WEIR_CC_NAME];		/* before weir */
	char first[WEIR_CC_NAME];
	char set[WEIR_CC_NAME];		/* what weir has set last; empty: nothing */
	char then[WEIR_CC_NAME];
};
_Static_assert(sizeof(struct flow) == WEIR_CC_FLOW_SIZE, "a later agent takes this map over");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct flow);
} weir_cc_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weir_cc_config);
} weir_cc_config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weir_cc_counts);
} weir_cc_counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} weir_cc_records SEC(".maps");

#define COUNT(what) do {							\
	__u32 zero_ = 0;							\
	struct weir_cc_counts *counts_ = bpf_map_lookup_elem(&weir_cc_counts, &zero_); \
	if (counts_)								\
		__sync_fetch_and_add(&counts_->what, 1);			\
} while (0)

static __always_inline const struct weir_cc_config *config(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&weir_cc_config, &zero);
}

static __always_inline int same(const char *a, const char *b)
{
	const __u64 *x = (const __u64 *)a, *y = (const __u64 *)b;

	return x[0] == y[0] && x[1] == y[1];
}

static __always_inline void copy(char *to, const char *from)
{
	__builtin_memcpy(to, from, WEIR_CC_NAME);
}

/* The algorithm of a connection, as bpf_getsockopt() says too, without its way through the kernel. */
static __always_inline void name_of(const struct tcp_sock *tp, char *name)
{
	const __u64 *from = (const __u64 *)tp->inet_conn.icsk_ca_ops->name;
	__u64 *to = (__u64 *)name;

	to[0] = from[0];
	to[1] = from[1];
}

/* Sets an algorithm unless it is there already; 0 if it is in force. */
static __always_inline int use(void *ctx, const char *is, const char *wanted)
{
	char name[WEIR_CC_NAME];

	if (same(is, wanted))
		return 0;
	copy(name, wanted);
	if (!bpf_setsockopt(ctx, IPPROTO_TCP, TCP_CONGESTION, name, sizeof(name)))
		return 0;
	COUNT(failed);
	return -1;
}

/* Bounds what is on the way, to be taken back at the change, unless there is a tighter bound. */
static __always_inline void hold(void *ctx, struct tcp_sock *tp, struct flow *flow, __u32 segments)
{
	int most = segments;

	if (segments && tp->snd_cwnd_clamp > segments &&
	    !bpf_setsockopt(ctx, IPPROTO_TCP, SNDCWND_CLAMP, &most, sizeof(most)))
		flow->window = segments;
}

/* Takes that back, unless another process has set another bound since. */
static __always_inline void release(void *ctx, struct tcp_sock *tp, struct flow *flow)
{
	int most = INFINITE_SSTHRESH;

	if (flow->window && tp->snd_cwnd_clamp == flow->window)
		bpf_setsockopt(ctx, IPPROTO_TCP, SNDCWND_CLAMP, &most, sizeof(most));
	flow->window = 0;
}

/* Whether a flow is known to pass a threshold before it does. */
static __always_inline int will_pass(const struct flow *flow, __u64 after_bytes)
{
	return after_bytes && flow->will_send_bytes > after_bytes;
}

/* A connection begins; 0 if weir has nothing to do with it, DRAWN if a trial has drawn it. */
static __always_inline int begin(struct bpf_sock_ops *ctx, struct sock *sk, struct bpf_sock *full, __u8 direction)
{
	const struct weir_cc_config *cfg = config();
	const struct weir_cc_trial *trial;
	const struct weir_cc_rule *rule;
	const char *start, *then;
	char is[WEIR_CC_NAME] __attribute__((aligned(8)));
	struct flow *flow;
	__u64 after_bytes, will_send_bytes;
	__u8 address[16], version;
	__u32 handle, window;
	int drawn;

	version = far_end(sk, address);
	if (!cfg || !version)
		return 0;
	handle = class_of(cfg, sk);
	if (!handle)
		return 0;
	name_of((struct tcp_sock *)sk, is);
	flow = bpf_sk_storage_get(&weir_cc_flows, full, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!flow)
		return 0;
	will_send_bytes = flow->will_send_bytes;
	__builtin_memset(flow, 0, sizeof(*flow));
	flow->will_send_bytes = will_send_bytes;
	flow->began_ns = bpf_ktime_get_ns();
	flow->handle = handle;
	flow->direction = direction;
	flow->generation = flow->began_generation = cfg->generation;
	copy(flow->was, is);
	copy(flow->first, is);
	rule = rule_at(cfg, sk, handle, version, address, direction);
	trial = trial_of(cfg, version, address, rule);
	drawn = trial ? draw(trial) : -1;
	if (trial && drawn >= 0) {
		flow->turn = trial->turn;
		flow->tried = drawn;
	}
	if (trial && drawn == WEIR_CC_TRIED) {
		start = trial->start;
		then = trial->then;
		after_bytes = trial->after_bytes;
		window = trial->window_segments;
	} else if (rule) {
		start = rule->start;
		then = rule->then;
		after_bytes = rule->after_bytes;
		window = rule->window_segments;
		flow->number = rule->number;
	} else {
		return flow->tried ? DRAWN : 1;
	}
	if (will_pass(flow, after_bytes)) {
		start = then;
		after_bytes = window = 0;
	}
	/* Before BBR begins, which sets ssthresh back. */
	hold(ctx, (struct tcp_sock *)sk, flow, window);
	if (use(ctx, is, start)) {
		release(ctx, (struct tcp_sock *)sk, flow);
		flow->number = flow->tried = flow->turn = 0;
		return 1;
	}
	flow->after_bytes = after_bytes;
	copy(flow->first, start);
	copy(flow->set, start);
	copy(flow->then, then);
	COUNT(set);
	return flow->tried ? DRAWN : 1;
}

/* The rules have changed since: what is to come is as they say now; what was, stays. */
static __always_inline void compare(const struct weir_cc_config *cfg, struct sock *sk, struct flow *flow)
{
	const struct weir_cc_rule *rule;

	flow->generation = cfg->generation;
	if (flow->tried == WEIR_CC_TRIED)
		return;
	rule = rule_of(cfg, sk, flow->handle, flow->direction);
	flow->after_bytes = 0;
	if (!rule || flow->switched_bytes || !same(rule->start, flow->set))
		return;
	flow->after_bytes = will_pass(flow, rule->after_bytes) ? 1 : rule->after_bytes;
	copy(flow->then, rule->then);
}

/* Whether a flow can leave this algorithm: BBR's start-up has no ssthresh yet. */
static __always_inline int can_leave(const char *name, __u32 ssthresh)
{
	return name[0] != 'b' || name[1] != 'b' || name[2] != 'r' || ssthresh < INFINITE_SSTHRESH;
}

static __always_inline void advance(struct bpf_sock_ops *ctx, struct tcp_sock *tp, struct flow *flow)
{
	struct sock *sk = (struct sock *)tp;
	const struct weir_cc_config *cfg = config();
	__u32 rtt_us = ctx->srtt_us >> 3;
	char is[WEIR_CC_NAME] __attribute__((aligned(8)));

	if (rtt_us > flow->most_rtt_us)
		flow->most_rtt_us = rtt_us;
	if (cfg && flow->generation != cfg->generation)
		compare(cfg, sk, flow);
	if (flow->after_bytes && ctx->bytes_acked < flow->after_bytes)
		return;
	if (!flow->after_bytes) {
		/* There will be no change: the rules are others now. */
		if (flow->window)
			release(ctx, tp, flow);
		return;
	}
	name_of(tp, is);
	if (same(is, flow->set)) {
		if (!flow->window && !can_leave(is, ctx->snd_ssthresh))
			return;
		if (!use(ctx, is, flow->then)) {
			flow->switched_bytes = ctx->bytes_acked;
			copy(flow->set, flow->then);
			COUNT(switched);
		}
	}
	flow->after_bytes = 0;
	release(ctx, tp, flow);
}

static __always_inline void finish(struct bpf_sock_ops *ctx, struct tcp_sock *tp, struct flow *flow)
{
	struct sock *sk = (struct sock *)tp;
	struct weir_cc_record *record = bpf_ringbuf_reserve(&weir_cc_records, sizeof(*record), 0);
	__u64 sent = tp->bytes_sent - tp->bytes_retrans, acked = ctx->bytes_acked;
	char is[WEIR_CC_NAME] __attribute__((aligned(8)));

	if (!record) {
		COUNT(lost);
		return;
	}
	__builtin_memset(record, 0, sizeof(*record));
	name_of(tp, is);
	record->took_ns = bpf_ktime_get_ns() - flow->began_ns;
	/* A SYN and a FIN are acknowledged as bytes too. */
	record->sent_bytes = sent < acked ? sent : acked;
	record->received_bytes = ctx->bytes_received;
	record->switched_bytes = flow->switched_bytes;
	if (ctx->rate_interval_us)
		record->delivery_rate = (__u64)ctx->rate_delivered * ctx->mss_cache * 1000000 / ctx->rate_interval_us;
	record->handle = flow->handle;
	record->number = flow->number;
	record->generation = flow->began_generation;
	record->least_rtt_us = ctx->rtt_min;
	record->smoothed_rtt_us = ctx->srtt_us >> 3;
	record->most_rtt_us = flow->most_rtt_us;
	record->retransmits = ctx->total_retrans;
	record->local_port = sk->__sk_common.skc_num;
	record->remote_port = bpf_ntohs(sk->__sk_common.skc_dport);
	record->direction = flow->direction;
	record->tried = flow->tried;
	record->turn = flow->turn;
	record->version = far_end(sk, record->address);
	copy(record->first, flow->first);
	copy(record->last, is);
	/* The agent reads them when it looks; nothing need wake it. */
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
}

SEC("sockops")
int weir_congestion(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *full = ctx->sk;
	struct tcp_sock *tp;
	struct flow *flow = NULL;
	int op = ctx->op, to;

	/* Most calls end here: they are for others, or for a state that says nothing yet. */
	switch (op) {
	case BPF_SOCK_OPS_STATE_CB:
		to = ctx->args[1];
		/* All that was sent has arrived, or never will. */
		if (to != FIN_WAIT2 && to != TIME_WAIT && to != CLOSED)
			return 1;
		break;
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_RTT_CB:
		break;
	default:
		return 1;
	}
	if (!full)
		return 1;
	if (op != BPF_SOCK_OPS_TCP_CONNECT_CB && op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB) {
		flow = bpf_sk_storage_get(&weir_cc_flows, full, 0, 0);
		/* The hint of its application may be all that is known of it. */
		if (!flow || !flow->began_ns)
			return 1;
	}
	if (op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB) {
		bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | CALLS);
		return 1;
	}
	tp = bpf_skc_to_tcp_sock(full);
	if (!tp)
		return 1;
	switch (op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
		/* Its place in a trial is free again if it is never established. */
		if (begin(ctx, (struct sock *)tp, full, WEIR_CC_OUT) == DRAWN)
			bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
		break;
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		if (begin(ctx, (struct sock *)tp, full, WEIR_CC_IN))
			bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | CALLS);
		break;
	case BPF_SOCK_OPS_RTT_CB:
		if (flow)
			advance(ctx, tp, flow);
		break;
	default:
		if (!flow)
			break;
		finish(ctx, tp, flow);
		/* The kernel deletes it with the socket, which is cheaper than to do it here. */
		flow->began_ns = flow->after_bytes = flow->will_send_bytes = 0;
	}
	return 1;
}

/* An application says how much more it will send on a socket. */
SEC("cgroup/setsockopt")
int weir_cc_hint(struct bpf_sockopt *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	void *value = ctx->optval, *end = ctx->optval_end;
	struct bpf_tcp_sock *tp;
	struct flow *flow;
	__u64 bytes, cookie;
	__u32 few;

	if (ctx->level != WEIR_CC_LEVEL || ctx->optname != WEIR_CC_WILL_SEND)
		return 1;
	/* The kernel refuses a meaningless hint, as it does without weir. */
	if (!sk || sk->protocol != IPPROTO_TCP)
		return 1;
	/* That of a namespace which is not of this agent is for another one, whose program may come next. */
	cookie = bpf_get_netns_cookie(ctx);
	if (!bpf_map_lookup_elem(&weir_cc_homes, &cookie))
		return 1;
	/* Byte by byte: to kernels without unaligned access (User-Mode Linux) the value is not aligned. */
	if (ctx->optlen == sizeof(__u64) && value + sizeof(__u64) <= end) {
		__builtin_memcpy(&bytes, value, sizeof(bytes));
	} else if (ctx->optlen == sizeof(__u32) && value + sizeof(__u32) <= end) {
		__builtin_memcpy(&few, value, sizeof(few));
		bytes = few;
	} else {
		return 1;
	}
	tp = bpf_tcp_sock(sk);
	flow = bpf_sk_storage_get(&weir_cc_flows, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!tp || !flow)
		return 1;
	flow->will_send_bytes = bytes + tp->bytes_acked;
	if (flow->will_send_bytes < bytes)
		flow->will_send_bytes = ~0ull;
	if (will_pass(flow, flow->after_bytes))
		flow->after_bytes = 1;
	COUNT(hinted);
	ctx->optlen = -1; /* the kernel need not know it */
	return 1;
}

/* Has a connection that is there already follow the rules from now on. */
static __always_inline void move(const struct weir_cc_config *cfg, struct tcp_sock *tp)
{
	struct sock *sk = (struct sock *)tp;
	const struct weir_cc_rule *rule;
	char is[WEIR_CC_NAME] __attribute__((aligned(8)));
	__u8 address[16], version = far_end(sk, address);
	__u32 handle = class_of(cfg, sk);
	struct flow *flow;
	int flags = 0;

	if (!handle || !version)
		return;
	name_of(tp, is);
	flow = bpf_sk_storage_get(&weir_cc_flows, tp, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!flow)
		return;
	if (!flow->began_ns) {
		flow->began_ns = bpf_ktime_get_ns();
		flow->handle = handle;
		flow->began_generation = cfg->generation;
		copy(flow->was, is);
		copy(flow->first, is);
		/* Before 6.12 it does not call: its record, and a change in the flow, are missing. */
		if (!bpf_getsockopt(tp, IPPROTO_TCP, CB_FLAGS, &flags, sizeof(flags))) {
			flags |= CALLS;
			bpf_setsockopt(tp, IPPROTO_TCP, CB_FLAGS, &flags, sizeof(flags));
		}
	}
	/* Its completion time says nothing about an algorithm. */
	flow->turn = flow->tried = 0;
	flow->generation = cfg->generation;
	rule = rule_of(cfg, sk, handle, flow->direction);
	/* The opener is unknown: its port may be the service's. */
	if (!rule && !flow->direction)
		rule = find(cfg, handle, version, address, sk->__sk_common.skc_num, 0);
	if (rule) {
		int is_over = rule->after_bytes &&
			      (tp->bytes_acked >= rule->after_bytes || will_pass(flow, rule->after_bytes));
		const char *wanted = is_over ? rule->then : rule->start;

		if (use(tp, is, wanted))
			return;
		/* It is under way: no bound is set any more. */
		if (is_over || !rule->after_bytes)
			release(tp, tp, flow);
		flow->number = rule->number;
		flow->after_bytes = is_over ? 0 : rule->after_bytes;
		copy(flow->set, wanted);
		copy(flow->then, rule->then);
		if (!same(is, wanted))
			COUNT(moved);
		return;
	}
	flow->after_bytes = 0;
	flow->number = 0;
	release(tp, tp, flow);
	if (flow->set[0] && same(is, flow->set) && !use(tp, is, flow->was)) {
		flow->set[0] = 0;
		if (!same(is, flow->was))
			COUNT(moved);
	}
}

static __always_inline void leave(struct tcp_sock *tp)
{
	struct flow *flow = bpf_sk_storage_get(&weir_cc_flows, tp, 0, 0);
	char is[WEIR_CC_NAME] __attribute__((aligned(8)));

	if (flow)
		release(tp, tp, flow);
	if (!flow || !flow->set[0])
		return;
	name_of(tp, is);
	if (same(is, flow->set))
		use(tp, is, flow->was);
	flow->set[0] = 0;
	flow->after_bytes = 0;
}

SEC("iter/tcp")
int weir_cc_visit(struct bpf_iter__tcp *ctx)
{
	const struct weir_cc_config *cfg = config();
	struct sock_common *common = ctx->sk_common;
	struct tcp_sock *tp;

	if (!common || !cfg || (common->skc_state != ESTABLISHED && common->skc_state != CLOSE_WAIT))
		return 0;
	tp = bpf_skc_to_tcp_sock(common);
	if (!tp)
		return 0;
	if (cfg->visit == WEIR_CC_MOVE)
		move(cfg, tp);
	else if (cfg->visit == WEIR_CC_LEAVE)
		leave(tp);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
