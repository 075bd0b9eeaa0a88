/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which class does a packet belong to?
 *
 * weir_port runs where a container's packets enter the host, at the ingress of its
 * host-side veth: before br_netfilter, ip_rcv and NAT, so that the class is known by the
 * interface (which a container cannot forge) and the packet still belongs to the sender's
 * socket. It names the class for the scheduler and sends the packet through it, on the
 * shared ifb; the ifb then lets it go on where it was.
 *
 * weir_uplink runs where packets leave the node and catches what no port has seen: the
 * host's own traffic, host-network containers (by cgroup), forwarded strangers. It only
 * classifies; act_mirred behind it does the redirect, because the ifb must know the way
 * back and bpf_redirect does not tell it at egress (drivers/net/ifb.c, skb_iif).
 *
 * Where no device of weir's is wanted (WEIR_IN_PLACE), both let a packet pass by its class's
 * credit instead; weir_uplink is then a filter that decides by itself. So it is where the scheduler
 * is a process (WEIR_USER): user.bpf.c takes packets there and back.
 *
 * A packet for an address of this node passes its port without being charged. The port names the
 * sender's class in skb->tc_index, because the packet may still leave by the uplink: its MAC address
 * may be foreign, or a tunnel may carry it. skb->tc_index survives a bridge, a route, and the
 * encapsulation of vxlan, geneve, gre, ipip and sit. There weir_uplink charges the class once.
 *
 * Packets to networks beside the uplink's device, which do not cross the line (local.h), pass the port in the same
 * way. weir_uplink lets them pass too.
 *
 * Where several links are shared (route.h), each has a scheduler on an ifb of its own. The port asks
 * the kernel's routes for the link. A packet that leaves by another one all the same, for example by a
 * mark of netfilter, is charged there again by its class, and counted.
 *
 * Packets of flows that send little go first in their class's queue, where HTB schedules (sparse.h).
 *
 * The scheduler finds the class in skb->priority. Qdiscs of the uplink would take that for a class or a band of their own,
 * so weir_uplink gives the packet its own priority back. Before edt and the qdisc of fair.bpf.c a program at the ifb's
 * egress takes the class out (weir_edt, weir_fair_mark).
 *
 * weir_tunnel runs where packets enter a tunnel of WireGuard (tunnel.h). There it names the class of what no
 * port has seen, so that weir_uplink charges the outer packet once.
 *
 * All are fail-open: whatever is not understood goes its way.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "common/intf.h"
#include "common/link.h"
#include "common/local.h"
#include "common/mark.h"
#include "credit/credit.h"
#include "packet.h"
#include "pacing/pacing.h"
#include "select.h"

#define NEXT (-1)     /* TCX_NEXT and TC_ACT_UNSPEC: the next program decides */
#define NO_MATCH 0    /* cls_bpf without direct action */
#define MATCH (-1)
#define DROP 2        /* TCX_DROP and TC_ACT_SHOT */

/* By the number of the link. All links have the same values of the node. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEIR_LINKS);
	__type(key, __u32);
	__type(value, struct weir_config);
} weir_config SEC(".maps");

/* Interface index -> handle of its class. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
} weir_ports SEC(".maps");

/* Cgroup id -> handle of its class. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u32);
} weir_cgroups SEC(".maps");

/* Handle of a class -> what never reached the link. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct weir_counters);
} weir_counters SEC(".maps");

/*
 * The program that takes packets to a scheduler in user space. The kernel empties an array of
 * programs when no process has it open any more: when the scheduler's process ends, however it
 * ends, packets go their own way from the next one on.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} weir_user SEC(".maps");

#include "sparse.h"
#include "tunnel.h"
#include "route.h"

/* Reads what is needed of a packet, and tells the scheduler what it needs. */
static __always_inline void parse(struct __sk_buff *skb, struct packet *p)
{
	read_headers(skb, p);
	skb->cb[WEIR_CB_DATAGRAM] = p->datagram;
}

/* Whether a port leaves a packet unscheduled, by its destination. */
static __always_inline int passes_port(const struct weir_config *cfg, const struct packet *p)
{
	__u32 known = p->is_ip ? known_of(&p->to) : 0;

	return known & WEIR_EXEMPT_ANY || (!cfg->charge_local && known & WEIR_ON_NODE);
}

/* Whether an uplink leaves a packet unscheduled, by its destination. */
static __always_inline int passes_uplink(const struct packet *p, __u32 link)
{
	return has_exempt(link) && p->is_ip && is_exempt(&p->to, link);
}

static __always_inline const struct weir_config *config(void)
{
	return config_of(0);
}

static __always_inline void count_local(struct __sk_buff *skb, __u32 handle)
{
	struct weir_counters *c = bpf_map_lookup_elem(&weir_counters, &handle);

	if (c) {
		c->local_bytes += skb->wire_len;
		c->local_packets += skb->gso_segs ? skb->gso_segs : 1;
	}
}

static __always_inline __s32 link_header(const struct weir_config *cfg)
{
	return cfg->flags & WEIR_BARE ? 0 : LINK_HEADER;
}

/*
 * Counts what the scheduler charges for a packet, and how much of it the uplink does not carry. `header`: bytes
 * of its link header on the ifb.
 */
static __always_inline void weigh(struct __sk_buff *skb, __u32 handle, __u32 header)
{
	struct weir_counters *c = bpf_map_lookup_elem(&weir_counters, &handle);
	__s32 excess = excess_of(skb->cb[WEIR_CB_EXCESS]);
	__u32 segments = skb->gso_segs ? skb->gso_segs : 1;

	if (!c)
		return;
	c->weighed_bytes += skb->len + (segments - 1) * (WEIR_IP_TCP_HEADERS + header);
	c->excess_bytes += (__s64)excess * segments;
}

/* Marks a packet that passes the scheduler. */
static __always_inline void mark(struct __sk_buff *skb, const struct weir_config *cfg, __u32 handle)
{
	skb->tc_index = cfg->flags & WEIR_NAMED ? mark_of(cfg->cookie, handle) : cfg->cookie;
}

/* Whether the packet has passed the scheduler. */
static __always_inline int is_marked(const struct __sk_buff *skb, const struct weir_config *cfg)
{
	__u32 minor, handle;

	if (skb->tc_index == cfg->cookie)
		return 1;
	minor = cfg->flags & WEIR_NAMED ? minor_of(cfg->cookie, skb->tc_index) : 0;
	if (!minor)
		return 0;
	handle = (cfg->default_handle & 0xffff0000) | minor;
	/* Other programs write this field too. */
	return handle == cfg->control_handle || bpf_map_lookup_elem(&weir_counters, &handle);
}

static __always_inline void classify(struct __sk_buff *skb, const struct weir_config *cfg, __u32 handle,
				     __u32 header)
{
	if (cfg->flags & WEIR_WEIGHED && cfg->flags & (WEIR_BARE | WEIR_TUNNELS))
		weigh(skb, handle, header);
	/* A packet that a port has sent through another link's scheduler still has its class there. */
	skb->cb[WEIR_CB_PRIORITY] = skb->ingress_ifindex && names_class(skb->priority) ? 0 : skb->priority;
	skb->priority = handle;
	if (cfg->flags & WEIR_SPARSE && goes_first(skb, cfg->ifb_index, handle, flow_of_socket(skb),
						   skb->cb[WEIR_CB_DATAGRAM] != 0))
		skb->priority = first_of(handle);
	mark(skb, cfg, handle);
}

/* Without a scheduler the packet goes on from here, or ends; the program decides. */
static __always_inline int in_place(struct __sk_buff *skb, const struct weir_config *cfg, __u32 handle)
{
	mark(skb, cfg, handle);
	return has_credit(skb, handle, link_header(cfg)) ? NEXT : DROP;
}

/* Leaves the packet to the scheduler in user space, if there is one. */
static __always_inline int hand_over(struct __sk_buff *skb, __u32 handle, __u32 egress)
{
	skb->cb[WEIR_CB_HANDLE] = handle;
	skb->cb[WEIR_CB_EGRESS] = egress;
	bpf_tail_call(skb, &weir_user, 0);
	return NEXT;
}

static __always_inline int is_on(const struct weir_config *cfg)
{
	return cfg && (cfg->ifb_index || cfg->flags & WEIR_IN_PLACE);
}

/* Applies rules to a packet that would be in this class without them. */
static __always_inline __u32 by_rules(struct __sk_buff *skb, const struct weir_config *cfg,
				      const struct packet *p, __u32 handle)
{
	__u32 set = cfg->rules;

	if (!set || !p->is_ip)
		return handle;
	return select_class(skb, p->start, p->offset, p->is_v6, (set - 1) & 1, handle);
}

/* Names a class in a packet that passes unscheduled and may leave by an uplink all the same. */
static __always_inline void name_class(struct __sk_buff *skb, const struct weir_config *cfg, __u32 class)
{
	/* A minor with the highest bit looks like a mark. */
	skb->tc_index = cfg->flags & WEIR_NAMED && class & MARK_NAMES ? 0 : class & 0xffff;
}

/* Bytes that the tunnel of a packet from a port adds to each of its segments. */
static __always_inline __u32 added_by(struct __sk_buff *skb, const struct weir_tunnel *tunnel, __u32 header)
{
	__u32 segments = skb->gso_segs ? skb->gso_segs : 1;

	return tunnel_bytes(tunnel, bpf_map_lookup_elem(&weir_outers, &tunnel->number), skb->len - header, segments);
}

/*
 * The class of a packet from a container; 0 if weir does not schedule it. *of_link: its link. *header: bytes of
 * its link header.
 */
static __always_inline __u32 port_class(struct __sk_buff *skb, const struct weir_config *cfg,
					const struct weir_config **of_link, __u32 *header)
{
	__u32 port = skb->ifindex, own, class, added = 0;
	int is_local, is_main = 1;
	struct packet p;
	__u32 *handle;

	if (!cfg)
		return 0;
	*of_link = cfg;
	if (!(cfg->flags & WEIR_SEVERAL) && !is_on(cfg))
		return 0;
	handle = bpf_map_lookup_elem(&weir_ports, &port);
	if (!handle)
		return 0;
	parse(skb, &p);
	own = *handle & ~WEIR_PORT_BARE;
	is_local = passes_port(cfg, &p);
	*header = *handle & WEIR_PORT_BARE ? 0 : LINK_HEADER;
	if (!is_local && cfg->flags & (WEIR_SEVERAL | WEIR_TUNNELS)) {
		struct way_out out = way_of(skb, cfg, &p);

		if (out.tunnel)
			added = added_by(skb, out.tunnel, *header);
		if (cfg->flags & WEIR_SEVERAL) {
			is_main = out.link == cfg->main_link;
			cfg = config_of(out.link);
			if (!cfg)
				return 0;
			*of_link = cfg;
		}
	}
	skb->cb[WEIR_CB_EXCESS] = EXCESS_NONE + *header - link_header(cfg) - added;
	if (!is_local && p.is_control && takes_control(skb, port))
		return is_on(cfg) ? cfg->control_handle : 0;
	class = by_rules(skb, cfg, &p, own);
	if (is_local) {
		if (cfg->flags & WEIR_PACED)
			forget_flow(skb);
		count_local(skb, own);
		name_class(skb, cfg, class);
		return 0;
	}
	if (!is_on(cfg)) {
		name_class(skb, cfg, class);
		return 0;
	}
	/* A socket is paced at its class's rate on the main link. */
	if (cfg->flags & WEIR_PACED && is_main)
		note_flow(skb, class, link_header(cfg));
	return class;
}

SEC("tc")
int weir_port(struct __sk_buff *skb)
{
	const struct weir_config *cfg = config(), *of_link = cfg;
	__u32 handle, header = 0;

	/* Packets that come back from user space come back here. */
	if (cfg && cfg->flags & WEIR_USER && skb->tc_index == cfg->cookie)
		return NEXT;
	handle = port_class(skb, cfg, &of_link, &header);
	if (!handle || !of_link)
		return NEXT;
	if (of_link->flags & WEIR_IN_PLACE)
		return in_place(skb, of_link, handle);
	if (of_link->flags & WEIR_USER)
		return hand_over(skb, handle, 0);
	classify(skb, of_link, handle, header);
	return bpf_redirect(of_link->ifb_index, 0);
}

/*
 * The same for clsact, with act_mirred behind it: where there is no TCX, an ifb may drop what
 * bpf_redirect sends (seen on 6.1; 6.12 is fine), because nothing says that it was redirected.
 * The action has one target, the main link's scheduler. Packets that leave by another link are charged
 * at that link's egress.
 */
SEC("tc")
int weir_port_match(struct __sk_buff *skb)
{
	const struct weir_config *cfg = config(), *of_link = cfg;
	__u32 header = 0, handle = port_class(skb, cfg, &of_link, &header);

	if (!handle || !cfg || !of_link)
		return NO_MATCH;
	if (cfg->flags & WEIR_SEVERAL && of_link != config_of(cfg->main_link)) {
		name_class(skb, cfg, handle);
		return NO_MATCH;
	}
	classify(skb, of_link, handle, header);
	return MATCH;
}

/* The class of the socket's cgroup or of the nearest one above it that has a class. */
static __always_inline __u32 host_class(struct __sk_buff *skb, const struct weir_config *cfg)
{
	__u32 handle = cfg->host_handle;
	int level;

	if (!cfg->cgroup_levels)
		return handle;
#pragma unroll
	for (level = 1; level <= WEIR_CGROUP_LEVELS; level++) {
		__u64 id;
		__u32 *found;

		if (!(cfg->cgroup_levels & (1u << level)))
			continue;
		id = bpf_skb_ancestor_cgroup_id(skb, level);
		if (!id)
			break;
		found = bpf_map_lookup_elem(&weir_cgroups, &id);
		if (found)
			handle = *found;
	}
	return handle;
}

/* The class that a port has named, of a packet for an address of this node; 0: no port has. */
static __always_inline __u32 named_class(struct __sk_buff *skb, const struct weir_config *cfg)
{
	__u32 handle = (cfg->default_handle & 0xffff0000) | skb->tc_index;

	/* Other programs write this field too. */
	return skb->tc_index && bpf_map_lookup_elem(&weir_counters, &handle) ? handle : 0;
}

/* The class of a packet that has passed the scheduler of another link; 0: it has not. It is counted. */
static __always_inline __u32 marked_elsewhere(struct __sk_buff *skb, const struct weir_config *cfg)
{
	__u32 minor = minor_of_any(cfg->cookie, skb->tc_index);
	__u32 handle = (cfg->default_handle & 0xffff0000) | minor;
	struct weir_counters *c;

	if (!minor)
		return 0;
	c = bpf_map_lookup_elem(&weir_counters, &handle);
	if (c)
		c->moved_packets += skb->gso_segs ? skb->gso_segs : 1;
	return c || handle == cfg->control_handle ? handle : 0;
}

/* Whether a port has named the packet's class, or a link's scheduler has let it pass. */
static __always_inline int is_known(struct __sk_buff *skb, const struct weir_config *cfg)
{
	__u32 number;

	if (named_class(skb, cfg) || is_marked(skb, cfg))
		return 1;
	if (!(cfg->flags & WEIR_SEVERAL))
		return 0;
#pragma unroll
	for (number = 0; number < WEIR_LINKS; number++) {
		const struct weir_config *other = config_of(number);

		if (other && is_marked(skb, other))
			return 1;
	}
	return 0;
}

/* At the egress of a tunnel that is over a link: the packet's state goes on in its hash. */
SEC("tc")
int weir_tunnel(struct __sk_buff *skb)
{
	const struct weir_config *cfg = config();
	const struct weir_tunnel *tunnel = tunnel_at(skb->ifindex);
	struct packet p;

	if (!cfg || !tunnel)
		return NEXT;
	if (!is_known(skb, cfg)) {
		read_headers(skb, &p);
		name_class(skb, cfg, by_rules(skb, cfg, &p, skb->ingress_ifindex ? cfg->default_handle
										 : host_class(skb, cfg)));
	}
	bpf_set_hash(skb, CARRIED(tunnel->number, skb->tc_index) ^ cfg->tunnel_key);
	return NEXT;
}

/*
 * Gives a packet its own priority back behind the link's scheduler. The priority of one that comes straight from there is
 * in skb->cb. A packet that entered at a port had priority 0 from its container, and IP may have set one since.
 */
static __always_inline void give_back(struct __sk_buff *skb, const struct weir_config *cfg)
{
	__u32 own = 0;

	if (cfg->ifb_index && skb->ingress_ifindex == cfg->ifb_index && has_excess(skb->cb[WEIR_CB_EXCESS]))
		own = skb->cb[WEIR_CB_PRIORITY];
	else if (!names_class(skb->priority))
		return;
	if (skb->priority != own)
		skb->priority = own;
}

/* Lets a packet leave uncharged. With act_mirred behind the program, NO_MATCH keeps it from the scheduler. */
static __always_inline int let_pass(const struct weir_config *cfg)
{
	return cfg->flags & (WEIR_IN_PLACE | WEIR_USER) ? NEXT : NO_MATCH;
}

SEC("tc")
int weir_uplink(struct __sk_buff *skb)
{
	const struct weir_config *cfg = config();
	__u32 handle, from, own, bucket, carried, number = 0;
	int is_main = 1, is_outer = 0, verdict = MATCH;
	struct packet p;

	if (cfg && cfg->flags & WEIR_SEVERAL) {
		number = link_at(skb->ifindex, cfg);
		is_main = number == cfg->main_link;
		cfg = config_of(number);
	}
	if (!is_on(cfg))
		return NO_MATCH;
	if (is_marked(skb, cfg)) {
		give_back(skb, cfg);
		return let_pass(cfg);
	}
	parse(skb, &p);
	if (passes_uplink(&p, cfg->flags & WEIR_SEVERAL ? number : cfg->main_link)) {
		if (cfg->flags & WEIR_PACED)
			forget_flow(skb);
		/* Else its port has counted it. */
		if (!named_class(skb, cfg))
			count_local(skb, skb->ingress_ifindex ? cfg->default_handle : host_class(skb, cfg));
		return let_pass(cfg);
	}
	if (cfg->flags & WEIR_TUNNELS && leaves_tunnel(skb, cfg, &p, number, &carried)) {
		is_outer = 1;
		skb->tc_index = carried;
		if (is_marked(skb, cfg)) {
			/* Of the outer flow the mark names no class: each class's packets are in it. */
			skb->tc_index = cfg->cookie;
			return let_pass(cfg);
		}
	}
	skb->cb[WEIR_CB_EXCESS] = EXCESS_NONE;
	from = skb->ingress_ifindex;
	handle = named_class(skb, cfg);
	if (!handle && cfg->flags & WEIR_SEVERAL)
		handle = marked_elsewhere(skb, cfg);
	/* Else its port has applied the rules to what a tunnel may hide by now. */
	if (!handle) {
		own = from ? cfg->default_handle : host_class(skb, cfg);
		/* The node itself has no bucket. */
		bucket = from ? from : own == cfg->host_handle ? 0 : CONTROL_OF_CLASS | own;
		if (p.is_control && (!bucket || takes_control(skb, bucket))) {
			handle = cfg->control_handle;
		} else {
			handle = by_rules(skb, cfg, &p, own);
			if (!from && cfg->flags & WEIR_PACED && is_main)
				note_flow(skb, handle, link_header(cfg));
		}
	}
	if (cfg->flags & WEIR_USER)
		return hand_over(skb, handle, 1);
	if (cfg->flags & WEIR_IN_PLACE)
		verdict = in_place(skb, cfg, handle);
	else
		classify(skb, cfg, handle, link_header(cfg));
	if (is_outer)
		skb->tc_index = cfg->cookie;
	return verdict;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
