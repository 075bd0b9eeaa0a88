/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How full is the link's queue, and how much does the link carry?
 *
 * weir_sent runs at the uplink's egress, behind the scheduler: a packet that it sees goes to the driver.
 * weir_answered runs at the ingress, before the download's scheduler. The time between a TCP timestamp and
 * its echo (RFC 7323) is a round trip without weir's own queue. The least one of some seconds is the flow's
 * base; what is above it waited in a queue. Acknowledged bytes tell the link's rate while its queue stands.
 *
 * Only packets with payload count: the answer to a bare acknowledgement tells the queue of the other
 * direction. Two processors may write to one flow at once. Then a sample is lost, or one is wrong by the
 * time between two packets.
 *
 * Timestamps of what arrives tell the queue of that direction: the time from the far end, by its own clock, above
 * the least one of some seconds (as in RFC 6817). A clock counts once its unit is known.
 *
 * Packets to and from networks beside the uplink's device do not cross the line (local.h), and tell nothing.
 *
 * Neither program ever matches: packets go on.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "classify/packet.h"
#include "common/local.h"
#include "download/download.h"
#include "signals.h"

#define NO_MATCH 0 /* cls_bpf without direct action */
#define BASE_PERIOD_NS 4000000000ULL
#define MSEC 1000000ULL
#define LEARN_NS (500 * MSEC)      /* a clock's unit is learnt over this time at least */
#define FORGET_NS (10000 * MSEC)   /* it is learnt anew after this time */
#define BACK_NS (50 * MSEC)        /* a delay falls by more than this with a wrong unit or another path alone */
#define FAST_NS (2000 * MSEC)      /* it falls by this below the first one as a queue drains. A fast clock has no end */
#define FAR_BACK (1 << 14)         /* ticks. A stamp that is further back belongs to another clock */
#define RECENT_NS (60 * MSEC)
#define UNKNOWN ~0ULL
#define LONGEST_NS (5000 * MSEC)   /* a longer queue means a wrong unit */
#define OPTIONS 8 /* that are looked at */
#define BLOCKS 4  /* fit among the options */
#define UDP_HEADERS 42 /* of a segment over IPv4 and Ethernet */
#define FIN 1
#define SYN 2
#define RST 4

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weir_signals_config);
} weir_signals_config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weir_link_signals);
} weir_link_signals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct weir_down_flow);
	__type(value, struct weir_sent_flow);
} weir_sent_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct weir_down_flow);
	__type(value, struct weir_arrived_flow);
} weir_arrived_flows SEC(".maps");

struct segment {
	struct weir_down_flow flow; /* `near` is this end */
	__u32 seq;
	__u32 ack;
	__u32 payload;
	__u32 headers; /* bytes before the payload, with the link's */
	__u32 stamp; /* TSval */
	__u32 echo;  /* TSecr */
	__u32 reached; /* behind the last byte that a block tells of (RFC 2018); no less than `ack` */
	__u8 has_stamp;
	__u8 has_blocks;
	__u8 flags;
};

/* Finds the furthest end of the blocks at [at, end). */
static __always_inline void read_blocks(struct __sk_buff *skb, __u32 start, __u32 at, __u32 end, struct segment *s)
{
	__be32 edges[2];
	int i;

	for (i = 0; i < BLOCKS && at + sizeof(edges) <= end; i++) {
		if (load_header(skb, start, at, edges, sizeof(edges)))
			return;
		if ((__s32)(bpf_ntohl(edges[1]) - s->reached) > 0)
			s->reached = bpf_ntohl(edges[1]);
		s->has_blocks = 1;
		at += sizeof(edges);
	}
}

/* Reads timestamps and blocks among the options at [at, end). */
static __always_inline void read_options(struct __sk_buff *skb, __u32 start, __u32 at, __u32 end, struct segment *s)
{
	__u8 head[2];
	__be32 stamps[2];
	int i;

	for (i = 0; i < OPTIONS; i++) {
		if (at + 10 > end || load_header(skb, start, at, head, sizeof(head)))
			return;
		if (head[0] == 0) /* end of options */
			return;
		if (head[0] == 1) { /* no operation */
			at += 1;
			continue;
		}
		if (head[0] == 8) {
			if (load_header(skb, start, at + 2, stamps, sizeof(stamps)))
				return;
			s->stamp = bpf_ntohl(stamps[0]);
			s->echo = bpf_ntohl(stamps[1]);
			s->has_stamp = 1;
		}
		if (head[1] < 2 || at + head[1] > end)
			return;
		if (head[0] == 5)
			read_blocks(skb, start, at + 2, at + head[1], s);
		at += head[1];
	}
}

/* Reads a whole TCP segment. 0: the packet is no such segment. */
static __always_inline int read_segment(struct __sk_buff *skb, int leaves, struct segment *s)
{
	struct fragment fragment = {};
	struct weir_fields f = {};
	struct packet p;
	__be32 numbers[2];
	__be16 lengths[1];
	__u32 end, length;
	__u8 rest[2];

	read_headers(skb, &p);
	if (!p.is_ip || (p.is_v6 ? !fields_v6(skb, p.start, p.offset, &f, &fragment)
				 : !fields_v4(skb, p.start, p.offset, &f, &fragment)))
		return 0;
	if (f.protocol != IPPROTO_TCP || fragment.is_first || fragment.is_later)
		return 0;
	/* A super-packet's length may not fit the header's field: then the packet's own length counts. */
	if (load_header(skb, p.start, p.offset + (p.is_v6 ? 4 : 2), lengths, sizeof(lengths)))
		return 0;
	length = bpf_ntohs(lengths[0]);
	if (p.is_v6 && length)
		length += sizeof(struct ipv6hdr);
	if (!length)
		length = skb->len - (p.start == BPF_HDR_START_MAC ? p.offset : 0);
	if (load_header(skb, p.start, fragment.transport + 4, numbers, sizeof(numbers)) ||
	    load_header(skb, p.start, fragment.transport + 12, rest, sizeof(rest)))
		return 0;
	end = fragment.transport - p.offset + (rest[0] >> 4) * 4;
	if (end > length)
		return 0;
	s->seq = bpf_ntohl(numbers[0]);
	s->ack = bpf_ntohl(numbers[1]);
	s->payload = length - end;
	s->headers = end + (p.start == BPF_HDR_START_MAC ? p.offset : 0);
	s->flags = rest[1];
	s->reached = s->ack;
	read_options(skb, p.start, fragment.transport + 20, p.offset + end, s);
	__builtin_memcpy(s->flow.near.bytes, leaves ? f.source : f.destination, 16);
	__builtin_memcpy(s->flow.far.bytes, leaves ? f.destination : f.source, 16);
	s->flow.near_port = leaves ? f.source_port : f.destination_port;
	s->flow.far_port = leaves ? f.destination_port : f.source_port;
	s->flow.protocol = IPPROTO_TCP;
	return 1;
}

/* Whether a packet goes to a network beside the uplink's device, or comes from one. */
static __always_inline int is_beside(struct __sk_buff *skb, int leaves)
{
	__u32 zero = 0;
	const struct weir_signals_config *config = bpf_map_lookup_elem(&weir_signals_config, &zero);
	struct weir_prefix from;
	struct packet p;

	if (!config || !has_exempt(config->link))
		return 0;
	read_headers(skb, &p);
	if (leaves)
		return p.is_ip && is_exempt(&p.to, config->link);
	return read_source(skb, &p, &from) && is_exempt(&from, config->link);
}

static __always_inline struct weir_link_signals *signals(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&weir_link_signals, &zero);
}

/* Takes a round trip into the flow's base; the base. */
static __always_inline __u64 base_with(struct weir_sent_flow *flow, __u64 now, __u64 rtt)
{
	__u32 zero = 0, period = now / BASE_PERIOD_NS;
	const struct weir_signals_config *config = bpf_map_lookup_elem(&weir_signals_config, &zero);
	__u32 epoch = config ? config->epoch : 0;

	if (flow->epoch != epoch) {
		flow->epoch = epoch;
		flow->period = period;
		flow->base[0] = 0;
		flow->base[1] = 0;
	}
	if (flow->period != period) {
		flow->base[1] = flow->period + 1 == period ? flow->base[0] : 0;
		flow->base[0] = 0;
		flow->period = period;
	}
	if (!flow->base[0] || rtt < flow->base[0])
		flow->base[0] = rtt;
	return flow->base[1] && flow->base[1] < flow->base[0] ? flow->base[1] : flow->base[0];
}

/* Keeps the least queue of the present cell. */
static __always_inline void keep_least(struct weir_least *cells, __u64 now, __u64 queue)
{
	__u64 cell = now / WEIR_CELL_NS;
	struct weir_least *least = &cells[cell % WEIR_CELLS];

	if (least->cell != cell) {
		least->ns = queue;
		least->cell = cell;
	} else if (queue < least->ns) {
		least->ns = queue;
	}
}

static __always_inline void sample(struct weir_link_signals *sums, struct weir_sent_flow *flow, __u64 now,
				   __u64 rtt)
{
	__u64 queue = rtt - base_with(flow, now, rtt);

	__sync_fetch_and_add(&sums->samples, 1);
	keep_least(sums->least, now, queue);
}

static __always_inline __u32 arrival_epoch(void)
{
	__u32 zero = 0;
	const struct weir_signals_config *config = bpf_map_lookup_elem(&weir_signals_config, &zero);

	return config ? config->arrival_epoch : 0;
}

/* The queue that the last packet of this epoch told. The least one would lie below it, and each new flow would hide a part
 * of it. */
static __always_inline __u64 last_queue(const struct weir_link_signals *sums, __u64 now)
{
	int is_recent = sums->last_delay_at && now - sums->last_delay_at < RECENT_NS;

	return is_recent && sums->last_delay_epoch == arrival_epoch() ? sums->last_delay : UNKNOWN;
}

/* A flow of which something leaves may tell a queue when it is answered. Others' packets begin none. */
static __always_inline void expect_arrivals(const struct weir_down_flow *flow)
{
	struct weir_arrived_flow fresh = {};

	if (bpf_map_lookup_elem(&weir_arrived_flows, flow))
		return;
	bpf_map_update_elem(&weir_arrived_flows, flow, &fresh, BPF_NOEXIST);
}

/* Begins to learn the flow's clock with this packet, whose delay counts as 0 from then on. It waited in the queue that
 * others tell now, if they do. A flow's first packet precedes the queue that the flow makes itself. */
static __always_inline void learn(const struct weir_link_signals *sums, struct weir_arrived_flow *flow,
				  const struct segment *s, __u64 now)
{
	__u64 others = last_queue(sums, now);

	flow->first = now;
	flow->first_stamp = s->stamp;
	flow->last_stamp = s->stamp;
	flow->unit_ns = 0;
	flow->base[0] = others == UNKNOWN ? 0 : -(__s64)others;
	flow->has_base = 1;
	flow->period = now / BASE_PERIOD_NS;
	flow->epoch = arrival_epoch();
}

/* The unit of a clock that made this number of ticks in this time: a quarter slower, as a queue grows, or an eighth
 * faster, as one drains. Some kernels tick at 300 Hz, which is a fifth above 250. 0: none that weir knows. */
static __always_inline __u32 unit_of(__u64 ticks, __u64 elapsed)
{
	__u64 units[3] = { MSEC, 4 * MSEC, 10 * MSEC };
	int i;

	for (i = 0; i < 3; i++)
		if (ticks * units[i] * 4 >= elapsed * 3 && ticks * units[i] * 8 <= elapsed * 9)
			return units[i];
	return 0;
}

/* Takes a delay into the flow's base; the base. A flow that was silent for some seconds has none: it comes back in the
 * queue that others tell, if they do. So does one that meets a new epoch behind others. */
static __always_inline __s64 delay_base(struct weir_arrived_flow *flow, __u64 now, __s64 delay, __u64 others)
{
	__u32 period = now / BASE_PERIOD_NS, epoch = arrival_epoch();

	if (flow->epoch != epoch) {
		flow->epoch = epoch;
		flow->has_base = 0;
	}
	if (flow->period != period) {
		flow->base[1] = flow->base[0];
		flow->has_base = flow->period + 1 == period ? (flow->has_base & 1) << 1 : 0;
		flow->period = period;
	}
	if (!flow->has_base && others != UNKNOWN) {
		flow->has_base = 1;
		flow->base[0] = delay - (__s64)others;
		return flow->base[0];
	}
	if (!(flow->has_base & 1) || delay < flow->base[0])
		flow->base[0] = delay;
	flow->has_base |= 1;
	return flow->has_base & 2 && flow->base[1] < flow->base[0] ? flow->base[1] : flow->base[0];
}

static __always_inline int is_below_bases(const struct weir_arrived_flow *flow, __s64 delay)
{
	return (flow->has_base & 1 && delay < flow->base[0] - (__s64)BACK_NS) ||
	       (flow->has_base & 2 && delay < flow->base[1] - (__s64)BACK_NS);
}

/* Whether the delay has fallen below the first one by more than a queue that drained. */
static __always_inline int is_fast(__s64 delay, __u64 elapsed)
{
	return delay < -(__s64)(FAST_NS + elapsed / 128);
}

/* Tells the queue before this packet by the far end's clock. */
static __always_inline void time_arrival(struct weir_link_signals *sums, const struct segment *s, __u64 now)
{
	struct weir_arrived_flow *flow = bpf_map_lookup_elem(&weir_arrived_flows, &s->flow);
	__u64 elapsed, ticks;
	__s64 delay, queue;
	int is_new;

	if (!flow || flow->unit_ns == WEIR_NO_UNIT)
		return;
	if (!flow->first || s->flags & SYN || (__s32)(s->stamp - flow->last_stamp) < -FAR_BACK) {
		learn(sums, flow, s, now);
		return;
	}
	if ((__s32)(s->stamp - flow->last_stamp) <= 0) /* the first packet with a stamp counts */
		return;
	flow->last_stamp = s->stamp;
	elapsed = now - flow->first;
	ticks = s->stamp - flow->first_stamp;
	is_new = !flow->unit_ns;
	if (is_new && elapsed >= LEARN_NS)
		flow->unit_ns = unit_of(ticks, elapsed);
	if (!flow->unit_ns) {
		if (elapsed > FORGET_NS)
			learn(sums, flow, s, now);
		return;
	}
	delay = (__s64)elapsed - (__s64)(ticks * flow->unit_ns);
	if (is_fast(delay, elapsed)) {
		learn(sums, flow, s, now);
		if (flow->was_fast)
			flow->unit_ns = WEIR_NO_UNIT;
		flow->was_fast = 1;
		return;
	}
	if (!is_new && is_below_bases(flow, delay)) {
		learn(sums, flow, s, now);
		return;
	}
	queue = delay - delay_base(flow, now, delay, last_queue(sums, now));
	if (queue > (__s64)LONGEST_NS) {
		learn(sums, flow, s, now);
		return;
	}
	__sync_fetch_and_add(&sums->delays, 1);
	keep_least(sums->least_delay, now, queue);
	sums->last_delay_epoch = arrival_epoch();
	sums->last_delay = queue;
	sums->last_delay_at = now;
}

/* The packet's bytes with the headers of each of its segments, as a scheduler counts them. */
static __always_inline __u64 bytes_of(struct __sk_buff *skb, __u32 payload, __u32 headers)
{
	__u32 size = skb->gso_size;

	return skb->len + (size && payload > size ? (__u64)((payload - 1) / size) * headers : 0);
}

static __always_inline void count(struct weir_link_signals *sums, struct weir_sent_flow *flow, __u32 payload)
{
	__u64 base = flow->base[0];

	if (!base || (flow->base[1] && flow->base[1] < base))
		base = flow->base[1];
	__sync_fetch_and_add(&sums->acked_payload, payload);
	__sync_fetch_and_add(&sums->acked_base_us, payload * (base / 1000));
}

SEC("tc")
int weir_sent(struct __sk_buff *skb)
{
	struct weir_link_signals *sums = signals();
	struct weir_sent_flow *flow, fresh = {};
	struct segment s = {};
	__u64 now = bpf_ktime_get_ns();
	int i;

	if (!sums || is_beside(skb, 1))
		return NO_MATCH;
	__sync_fetch_and_add(&sums->sent_bytes, skb->wire_len);
	if (!read_segment(skb, 1, &s))
		return NO_MATCH;
	if (s.flags & RST) {
		flow = bpf_map_lookup_elem(&weir_sent_flows, &s.flow);
		if (!flow)
			return NO_MATCH;
		/* Nothing answers what this connection has sent. Other connections' packets begin a new wait. */
		if (flow->high != flow->una)
			sums->waits_since = 0;
		bpf_map_delete_elem(&weir_sent_flows, &s.flow);
		return NO_MATCH;
	}
	if (s.flags & SYN)
		return NO_MATCH;
	if (s.has_stamp)
		expect_arrivals(&s.flow);
	if (!s.payload)
		return NO_MATCH;
	__sync_fetch_and_add(&sums->sent_payload, s.payload);
	flow = bpf_map_lookup_elem(&weir_sent_flows, &s.flow);
	if (!flow) {
		fresh.answered = now;
		fresh.una = s.seq;
		fresh.high = s.seq;
		bpf_map_update_elem(&weir_sent_flows, &s.flow, &fresh, BPF_NOEXIST);
		flow = bpf_map_lookup_elem(&weir_sent_flows, &s.flow);
		if (!flow)
			return NO_MATCH;
	}
	if (flow->high == flow->una) /* nothing was due */
		flow->answered = now;
	if ((__s32)(s.seq + s.payload - flow->high) > 0)
		flow->high = s.seq + s.payload;
	flow->mss = skb->gso_size ? skb->gso_size : s.payload;
	if (!sums->waits_since)
		sums->waits_since = now;
	if (!s.has_stamp)
		return NO_MATCH;
	for (i = 0; i < WEIR_STAMPS; i++)
		if (flow->left[i] && flow->stamp[i] == s.stamp) /* the first packet with it counts */
			return NO_MATCH;
	for (i = 0; i < WEIR_STAMPS; i++) {
		if (!flow->left[i]) {
			flow->stamp[i] = s.stamp;
			flow->left[i] = now;
			break;
		}
	}
	return NO_MATCH;
}

SEC("tc")
int weir_answered(struct __sk_buff *skb)
{
	struct weir_link_signals *sums = signals();
	struct weir_sent_flow *flow;
	struct segment s = {};
	__u64 now = bpf_ktime_get_ns();
	__u32 more, way;
	int i;

	if (!sums || is_beside(skb, 0))
		return NO_MATCH;
	if (!read_segment(skb, 0, &s)) {
		__sync_fetch_and_add(&sums->arrived_bytes, bytes_of(skb, skb->len - UDP_HEADERS, UDP_HEADERS));
		return NO_MATCH;
	}
	__sync_fetch_and_add(&sums->arrived_bytes, bytes_of(skb, s.payload, s.headers));
	if (s.has_stamp)
		time_arrival(sums, &s, now);
	flow = bpf_map_lookup_elem(&weir_sent_flows, &s.flow);
	if (!flow)
		return NO_MATCH;
	if (s.flags & RST) { /* it answers all that the connection has sent */
		bpf_map_delete_elem(&weir_sent_flows, &s.flow);
		sums->waits_since = 0;
		return NO_MATCH;
	}
	if (s.has_stamp) {
		for (i = 0; i < WEIR_STAMPS; i++) {
			__u64 left = flow->left[i];

			if (!left || (__s32)(s.echo - flow->stamp[i]) < 0)
				continue;
			/* A later echo means that this one will not come. */
			if (flow->stamp[i] == s.echo && now > left)
				sample(sums, flow, now, now - left);
			flow->left[i] = 0;
		}
	}
	more = s.ack - flow->una;
	way = flow->high - flow->una;
	if ((__s32)more > 0) {
		/* The last byte of a connection, FIN's, is above `high`. */
		if (more > way)
			more = way;
		flow->una = s.ack;
		if ((__s32)(flow->high - s.ack) < 0)
			flow->high = s.ack;
		if (more > flow->sacked) {
			count(sums, flow, more - flow->sacked);
			flow->sacked = 0;
		} else {
			flow->sacked -= more;
		}
	} else if (!more && !s.payload && !s.has_blocks && way > flow->sacked + flow->mss && !(s.flags & (SYN | FIN))) {
		/* A duplicate: one more segment has arrived behind a gap (RFC 5681, 4.2). */
		flow->sacked += flow->mss;
		count(sums, flow, flow->mss);
	} else if (!s.has_blocks) {
		return NO_MATCH;
	}
	/* Bytes that are missing before the furthest block are not on the way: lost, or dropped before the link. */
	more = s.reached - flow->una;
	if ((__s32)more > 0 && more <= flow->high - flow->una && more > flow->sacked) {
		count(sums, flow, more - flow->sacked);
		flow->sacked = more;
	}
	flow->answered = now;
	sums->waits_since = 0;
	return NO_MATCH;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
