/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which class does a packet belong to that arrives at the node?
 *
 * weir_down runs where packets arrive, at the ingress of the uplink. It names the class in skb->cb (sparse.h),
 * and act_mirred behind it sends the packet through the scheduler on a second ifb. The ifb lets it go on
 * where it was, and no filter sees it again. It finds the class by the first of these that knows one.
 *
 * 1. The destination is the address that a runtime gave a container.
 * 2. The flow has left: weir_learn has seen it.
 * 3. Conntrack (conntrack.h) knows flows behind NAT of which nothing has left.
 * 4. The destination is an address that one container's interfaces show. A container may give itself any.
 * 5. The destination is an address of the node, which is the host's class. All else is the default class.
 *
 * weir_learn runs at the egress of the uplink, behind NAT and behind the filter of weir_uplink. There the
 * packet has the addresses that its answer will have, and a mark that names its class (mark.h). A packet whose
 * source, before NAT, is another container's address teaches nothing.
 *
 * Packets of flows that send little go first in their class's queue (sparse.h).
 *
 * Packets from networks beside the uplink's device have not crossed the line (local.h). They pass.
 *
 * Outer packets of tunnels have an address of the node. They belong to the host, or to the class that sent
 * the same outer flow; what they hold is not scheduled again.
 *
 * Both are fail-open: whatever is not understood goes its way.
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
#include "common/mark.h"
#include "download.h"

#define NO_MATCH 0 /* cls_bpf without direct action */
#define MATCH (-1)

#include "classify/sparse.h"

#define ICMP_ECHO_REPLY 0
#define ICMP_ECHO 8
#define ICMP6_ECHO 128
#define ICMP6_ECHO_REPLY 129

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weir_down_config);
} weir_down_config SEC(".maps");

/* A flow of which nothing has left for longer, seconds, may become another class's. */
#define LIVE 5

/* Addresses that runtimes gave containers, and those of the node -> handle of the class. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct weir_address);
	__type(value, __u32);
} weir_down_owner SEC(".maps");

/* Addresses that a container's interfaces show, and no runtime told -> handle of the class. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct weir_address);
	__type(value, __u32);
} weir_down_shown SEC(".maps");

/* Handles of the classes that share the download -> whether the interfaces of the class show its addresses. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
} weir_down_class SEC(".maps");

/* Flows that have left -> the class. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct weir_down_flow);
	__type(value, struct weir_down_sender);
} weir_down_flows SEC(".maps");

#ifdef WEIR_CONNTRACK
#include "conntrack.h"
#endif

static __always_inline const struct weir_down_config *config(void)
{
	__u32 zero = 0;
	const struct weir_down_config *cfg = bpf_map_lookup_elem(&weir_down_config, &zero);

	return cfg && cfg->is_on ? cfg : NULL;
}

/* The id of an echo, in the place of both ports. */
static __always_inline int read_echo(struct __sk_buff *skb, __u32 start, __u32 offset, struct weir_fields *f)
{
	__be16 head[3]; /* type and code, checksum, id */
	__u8 type;

	if (load_header(skb, start, offset, head, sizeof(head)))
		return 0;
	type = bpf_ntohs(head[0]) >> 8;
	if (f->protocol == IPPROTO_ICMP ? type != ICMP_ECHO && type != ICMP_ECHO_REPLY
					: type != ICMP6_ECHO && type != ICMP6_ECHO_REPLY)
		return 0;
	f->source_port = head[2];
	f->destination_port = head[2];
	return 1;
}

/* Reads the addresses of a packet; whether its flow can be told from others too. 0: it has no addresses. */
#define HAS_ADDRESSES 1
#define HAS_FLOW 2
static __always_inline int read_fields(struct __sk_buff *skb, const struct packet *p, struct weir_fields *f)
{
	struct fragment fragment = {};

	if (!p->is_ip || (p->is_v6 ? !fields_v6(skb, p->start, p->offset, f, &fragment)
				   : !fields_v4(skb, p->start, p->offset, f, &fragment)))
		return 0;
	if (fragment.is_later)
		return HAS_ADDRESSES;
	switch (f->protocol) {
	case IPPROTO_TCP:
	case IPPROTO_UDP:
	case IPPROTO_SCTP:
		return HAS_FLOW;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		return read_echo(skb, p->start, fragment.transport, f) ? HAS_FLOW : HAS_ADDRESSES;
	default:
		return HAS_ADDRESSES;
	}
}

/* The class of an address in one of the two maps of addresses; 0 if there is none. */
static __always_inline __u32 class_in(void *map, const __u8 *address)
{
	struct weir_address key;
	__u32 *handle;

	__builtin_memcpy(key.bytes, address, sizeof(key.bytes));
	handle = bpf_map_lookup_elem(map, &key);
	return handle ? *handle : 0;
}

static __always_inline __u32 owner_of(const __u8 *address)
{
	return class_in(&weir_down_owner, address);
}

static __always_inline __u32 shown_by(const __u8 *address)
{
	return class_in(&weir_down_shown, address);
}

/* The key of an arriving packet's flow. */
static __always_inline void key_of(const struct weir_fields *f, struct weir_down_flow *flow)
{
	__builtin_memcpy(flow->near.bytes, f->destination, sizeof(flow->near.bytes));
	__builtin_memcpy(flow->far.bytes, f->source, sizeof(flow->far.bytes));
	flow->near_port = f->destination_port;
	flow->far_port = f->source_port;
	flow->protocol = f->protocol;
}

/* Finds the class of a packet, and reads its fields. */
static __always_inline __u32 class_of(struct __sk_buff *skb, const struct weir_down_config *cfg,
				      const struct packet *p, struct weir_fields *f)
{
	struct weir_down_flow flow = {};
	struct weir_down_sender *known;
	int has = read_fields(skb, p, f);
	__u32 owner, shown;

	if (!has)
		return cfg->default_handle;
	owner = owner_of(f->destination);
	if (owner && owner != cfg->host_handle)
		return owner;
	if (has == HAS_FLOW) {
		key_of(f, &flow);
		known = bpf_map_lookup_elem(&weir_down_flows, &flow);
		/* The class may have gone since. */
		if (known && bpf_map_lookup_elem(&weir_down_class, &known->handle))
			return known->handle;
#ifdef WEIR_CONNTRACK
		{
			struct weir_address inner;
			__u32 tracked;

			if (tracked_address(skb, f, &inner)) {
				tracked = owner_of(inner.bytes);
				if (!tracked)
					tracked = shown_by(inner.bytes);
				if (tracked)
					return tracked;
			}
		}
#endif
	}
	if (owner)
		return owner;
	shown = shown_by(f->destination);
	return shown ? shown : cfg->default_handle;
}

/* The number of a packet's flow, for goes_first. Its hash may be the far end's, which changes it. */
static __always_inline __u32 flow_of_fields(const struct weir_fields *f)
{
	__u32 words[8], i, number = (__u32)f->source_port << 16 | f->destination_port;

	__builtin_memcpy(words, f->source, sizeof(f->source));
	__builtin_memcpy(words + 4, f->destination, sizeof(f->destination));
	for (i = 0; i < 8; i++)
		number = (number ^ words[i]) * 0x9e3779b1;
	return number;
}

SEC("tc")
int weir_down(struct __sk_buff *skb)
{
	const struct weir_down_config *cfg = config();
	struct weir_fields f = {};
	struct weir_prefix from;
	struct packet p;
	__u32 handle;

	if (!cfg)
		return NO_MATCH;
	read_headers(skb, &p);
	if (has_exempt(cfg->link) && read_source(skb, &p, &from) && is_exempt(&from, cfg->link))
		return NO_MATCH;
	if (p.is_control && takes_control(skb, skb->ifindex)) {
		name_for_filters(skb, cfg->control_handle, 0);
		return MATCH;
	}
	handle = class_of(skb, cfg, &p, &f);
	name_for_filters(skb, handle, goes_first(skb, WEIR_DOWNLOAD, handle, flow_of_fields(&f), p.datagram != 0));
	return MATCH;
}

/*
 * Whether a class may send from this address. An address that only interfaces show keeps no other class from
 * sending, unless weir sees that class's own addresses.
 */
static __always_inline int may_send_from(const struct weir_down_config *cfg, __u32 handle, __u32 owner,
					 __u32 shown)
{
	__u32 *shows;

	if (owner)
		return owner == handle || owner == cfg->host_handle;
	if (!shown || shown == handle)
		return 1;
	shows = bpf_map_lookup_elem(&weir_down_class, &handle);
	return !shows || !*shows;
}

/* Notes who sends a flow, if it is new or another class has sent it. `f` has the fields of its answer. */
static __always_inline void learn(struct __sk_buff *skb, const struct weir_down_config *cfg,
				  const struct weir_fields *f, __u32 handle)
{
	struct weir_down_sender sender = { .handle = handle, .at = bpf_ktime_get_ns() / 1000000000 }, *known;
	struct weir_down_flow flow = {};
	struct weir_address source;
	__u32 owner, shown;

	key_of(f, &flow);
	known = bpf_map_lookup_elem(&weir_down_flows, &flow);
	if (known && known->handle == handle) {
		if (known->at != sender.at)
			known->at = sender.at;
		return;
	}
	__builtin_memcpy(source.bytes, f->destination, sizeof(source.bytes));
#ifdef WEIR_CONNTRACK
	{
		struct weir_address inner;

		if (tracked_address(skb, f, &inner))
			source = inner;
	}
#endif
	owner = owner_of(source.bytes);
	shown = shown_by(source.bytes);
	if (!may_send_from(cfg, handle, owner, shown))
		return;
	if (known && (__s32)(sender.at - known->at) <= LIVE && bpf_map_lookup_elem(&weir_down_class, &known->handle) &&
	    may_send_from(cfg, known->handle, owner, shown))
		return;
	bpf_map_update_elem(&weir_down_flows, &flow, &sender, BPF_ANY);
}

/* Never matches: the packet goes on. */
SEC("tc")
int weir_learn(struct __sk_buff *skb)
{
	const struct weir_down_config *cfg = config();
	struct weir_fields f = {}, answer;
	__u32 minor, handle;
	struct packet p;

	if (!cfg)
		return NO_MATCH;
	minor = minor_of(cfg->cookie, skb->tc_index);
	if (!minor)
		return NO_MATCH;
	handle = (cfg->host_handle & 0xffff0000) | minor;
	if (!bpf_map_lookup_elem(&weir_down_class, &handle))
		return NO_MATCH;
	read_headers(skb, &p);
	if (read_fields(skb, &p, &f) != HAS_FLOW)
		return NO_MATCH;
	answer = f;
	__builtin_memcpy(answer.source, f.destination, sizeof(answer.source));
	__builtin_memcpy(answer.destination, f.source, sizeof(answer.destination));
	answer.source_port = f.destination_port;
	answer.destination_port = f.source_port;
	learn(skb, cfg, &answer, handle);
	return NO_MATCH;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
