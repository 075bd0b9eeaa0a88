/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Senders that never exceed their share: TCP sockets of weir's classes are paced, so that
 * the queue forms in the sender instead of in the scheduler.
 *
 * weir_pacer is attached once, at the root of the cgroup v2 hierarchy. It asks for a call at every
 * RTT sample of each connection, and there sets SO_MAX_PACING_RATE to the share of the socket's
 * class over its flows (pacing.h). A socket that no classifier has seen (loopback, traffic between
 * containers) is left alone, as is one that its application paces.
 *
 * A rate alone does not make small bursts: where the round trip is short the kernel builds
 * super-packets of up to 64 KiB whatever the rate (tcp_tso_autosize), 87 ms of a class that has
 * 6 Mbit/s. So there the segments in flight are bounded too, by what the rate needs for the
 * least round trip and SPARE_US more.
 *
 * It fails open: when user space has not been heard of for some seconds, the same call
 * takes the rate back. So the program must outlive its agent, by design.
 *
 * weir_visit is for connections older than the agent: an iterator over the TCP sockets of the
 * network namespace in which it is read. It switches the calls on. On a kernel before 6.12 such
 * sockets are not paced: a rate set from here would stay if the agent died. When weir goes, it
 * takes the rates back, also of sockets that send nothing.
 */
#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>

#include "common/intf.h"
#include "pacing.h"
#include "common/sockets.h"

#define UNLIMITED 0xffffffffu
#define ANY_WINDOW 0x7fffffff
#define LEAST_RATE 62500	/* bytes of payload per second, a segment in 23 ms: a socket with less hears late of more */
#define MIN_WINDOW 4		/* segments: fewer, and a lost one is found by time-out only */
#define SPARE_US 2000
#define SHORT_US 5000		/* a round trip over which super-packets are small */
#define SILENT_NS 3000000000ull	/* user space writes twice a second at least */
#define HEADERS_V4 66		/* Ethernet, IP, TCP with timestamps */
#define HEADERS_V6 86

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weir_pacing);
} weir_pacing SEC(".maps");

/* The rate of a socket. */
struct limits {
	__u32 rate;	/* bytes of payload per second; UNLIMITED if weir has no say */
	int window;	/* segments in flight; ANY_WINDOW likewise, or if the round trip is long */
};

static __always_inline struct limits limits(const struct weir_flow *flow, __u32 mss, __u32 headers, __u32 rtt_us)
{
	struct limits none = { UNLIMITED, ANY_WINDOW }, some;
	__u32 zero = 0, handle = flow->handle, flows, share_scale, cwnd_scale;
	const struct weir_pacing *pacing = bpf_map_lookup_elem(&weir_pacing, &zero);
	const __u64 *share = bpf_map_lookup_elem(&weir_shares, &handle);
	const struct weir_class_flows *counted = bpf_map_lookup_elem(&weir_class_flow, &handle);
	__u64 rate, segments;

	if (!pacing || !share || !counted || bpf_ktime_get_ns() - pacing->alive_ns > SILENT_NS)
		return none;
	flows = counted->flows > counted->flows_before ? counted->flows : counted->flows_before;
	share_scale = counted->share_scale < WEIR_SCALE_ONE ? WEIR_SCALE_ONE : counted->share_scale;
	cwnd_scale = counted->cwnd_scale < WEIR_SCALE_ONE ? WEIR_SCALE_ONE : counted->cwnd_scale;
	rate = *share / (flows ? flows : 1) * share_scale / WEIR_SCALE_ONE;
	if (rate > *share)
		rate = *share;
	rate = rate * mss / (mss + headers);
	if (rate >= UNLIMITED)
		return none;
	/* Also because a class may have no share yet, and a limit of 0 means no limit to the kernel. */
	if (rate < LEAST_RATE)
		rate = LEAST_RATE;
	some.rate = rate;
	segments = rate * (rtt_us + SPARE_US) / 1000000 / mss * cwnd_scale / WEIR_SCALE_ONE + MIN_WINDOW;
	some.window = rtt_us > SHORT_US || segments >= ANY_WINDOW ? ANY_WINDOW : segments;
	return some;
}

static __always_inline void hold(struct bpf_sock_ops *ctx, struct weir_flow *flow)
{
	__u32 mss = ctx->mss_cache ? ctx->mss_cache : 536;
	__u32 headers = ctx->family == AF_INET6 ? HEADERS_V6 : HEADERS_V4;
	struct limits to = limits(flow, mss, headers, ctx->rtt_min);
	int is;

	if (to.window != (flow->most ? flow->most : ANY_WINDOW) &&
	    !bpf_setsockopt(ctx, IPPROTO_TCP, TCP_BPF_SNDCWND_CLAMP, &to.window, sizeof(to.window)))
		flow->most = to.window == ANY_WINDOW ? 0 : to.window;
	if (to.rate == UNLIMITED) {
		if (!flow->rate)
			return;
	} else if (flow->rate && to.rate - to.rate / 256 <= flow->rate && flow->rate <= to.rate + to.rate / 256) {
		return;
	}
	/* Not what weir has set: then the application has. */
	if (bpf_getsockopt(ctx, SOL_SOCKET, SO_MAX_PACING_RATE, &is, sizeof(is)))
		return;
	if ((__u32)is != (flow->rate ? flow->rate : UNLIMITED)) {
		flow->hands_off = 1;
		return;
	}
	if (!bpf_setsockopt(ctx, SOL_SOCKET, SO_MAX_PACING_RATE, &to.rate, sizeof(to.rate)))
		flow->rate = to.rate == UNLIMITED ? 0 : to.rate;
}

SEC("sockops")
int weir_pacer(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct weir_flow *flow;
	int first = MIN_WINDOW, is_new = 0;

	switch (ctx->op) {
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_RTT_CB_FLAG);
		is_new = 1;
		break;
	case BPF_SOCK_OPS_RTT_CB:
		break;
	default:
		return 1;
	}
	if (!sk)
		return 1;
	flow = bpf_sk_storage_get(&weir_flows, sk, 0, 0);
	if (!flow || flow->hands_off)
		return 1;
	hold(ctx, flow);
	/* A window does not shrink when its bound does: it must not begin above it. */
	if (is_new && flow->most && ctx->rtt_min < SPARE_US)
		bpf_setsockopt(ctx, IPPROTO_TCP, TCP_BPF_IW, &first, sizeof(first));
	return 1;
}

SEC("iter/tcp")
int weir_visit(struct bpf_iter__tcp *ctx)
{
	struct sock_common *common = ctx->sk_common;
	__u32 zero = 0, unlimited = UNLIMITED;
	const struct weir_pacing *pacing = bpf_map_lookup_elem(&weir_pacing, &zero);
	struct weir_flow *flow;
	struct tcp_sock *sk;
	int flags = 0, any = ANY_WINDOW;

	if (!common || !pacing || common->skc_state == LISTEN)
		return 0;
	sk = bpf_skc_to_tcp_sock(common);
	if (!sk)
		return 0;
	if (!pacing->leaving) {
		if (bpf_getsockopt(sk, IPPROTO_TCP, CB_FLAGS, &flags, sizeof(flags)))
			return 0;
		flags |= BPF_SOCK_OPS_RTT_CB_FLAG;
		bpf_setsockopt(sk, IPPROTO_TCP, CB_FLAGS, &flags, sizeof(flags));
		return 0;
	}
	flow = bpf_sk_storage_get(&weir_flows, sk, 0, 0);
	if (flow && flow->most && !bpf_setsockopt(sk, IPPROTO_TCP, TCP_BPF_SNDCWND_CLAMP, &any, sizeof(any)))
		flow->most = 0;
	if (flow && flow->rate && !bpf_setsockopt(sk, SOL_SOCKET, SO_MAX_PACING_RATE, &unlimited, sizeof(unlimited)))
		flow->rate = 0;
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
