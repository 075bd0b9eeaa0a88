/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way out of a container's packet: the link by which it leaves, where several are shared, and the tunnel
 * that is over the link.
 *
 * A port of a bridge that has an uplink as another port leaves by that one. Else bpf_fib_lookup
 * (net/core/filter.c) asks the kernel's routes and rules, as the forwarding path does later. Netfilter may
 * decide otherwise in between (marks, NAT of the destination): weir_uplink sees the result.
 */
#ifndef WEIR_ROUTE_H
#define WEIR_ROUTE_H

#define FIB_SKIP_NEIGH 4 /* BPF_FIB_LOOKUP_SKIP_NEIGH, from kernel 6.3 */
#define ERROR_INVALID (-22)
#define FAMILY_V4 2
#define FAMILY_V6 10

/* Index of an uplink, or of a device that leads out by one -> number of the link. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
} weir_links SEC(".maps");

/* Index of a port -> how its packets go on. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct weir_way);
} weir_ways SEC(".maps");

static __always_inline const struct weir_config *config_of(__u32 number)
{
	return bpf_map_lookup_elem(&weir_config, &number);
}

/* The number of the link to which a device leads; the main one if the device is no link. */
static __always_inline __u32 link_at(__u32 ifindex, const struct weir_config *cfg)
{
	__u32 *number = bpf_map_lookup_elem(&weir_links, &ifindex);

	return number ? *number : cfg->main_link;
}

/* Reads the ports, which rules may look at. A later fragment has none. */
static __always_inline void read_route_ports(struct __sk_buff *skb, __u32 start, __u32 offset, __u8 protocol,
					     struct bpf_fib_lookup *fib)
{
	__be16 port[2];

	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP)
		return;
	if (load_header(skb, start, offset, port, sizeof(port)))
		return;
	fib->sport = port[0];
	fib->dport = port[1];
}

/* Index of the device that a route names; 0: none does. */
static __always_inline __u32 routed_by(struct __sk_buff *skb, const struct packet *p, __u32 from)
{
	struct bpf_fib_lookup fib = {};
	long found;

	fib.ifindex = from;
	if (p->is_v6) {
		struct ipv6hdr ip6;

		if (load_header(skb, p->start, p->offset, &ip6, sizeof(ip6)))
			return 0;
		fib.family = FAMILY_V6;
		fib.l4_protocol = ip6.nexthdr;
		__builtin_memcpy(fib.ipv6_src, &ip6.saddr, sizeof(fib.ipv6_src));
		__builtin_memcpy(fib.ipv6_dst, &ip6.daddr, sizeof(fib.ipv6_dst));
		read_route_ports(skb, p->start, p->offset + sizeof(ip6), ip6.nexthdr, &fib);
	} else {
		struct iphdr ip;

		if (load_header(skb, p->start, p->offset, &ip, sizeof(ip)))
			return 0;
		fib.family = FAMILY_V4;
		fib.l4_protocol = ip.protocol;
		fib.tos = ip.tos;
		fib.ipv4_src = ip.saddr;
		fib.ipv4_dst = ip.daddr;
		if (!(ip.frag_off & bpf_htons(0x1fff)))
			read_route_ports(skb, p->start, p->offset + ip.ihl * 4, ip.protocol, &fib);
	}
	found = bpf_fib_lookup(skb, &fib, sizeof(fib), FIB_SKIP_NEIGH);
	if (found == ERROR_INVALID)
		found = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
	switch (found) {
	case BPF_FIB_LKUP_RET_SUCCESS:
	case BPF_FIB_LKUP_RET_NO_NEIGH:
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		return fib.ifindex;
	default:
		return 0;
	}
}

struct way_out {
	__u32 link; /* its number */
	const struct weir_tunnel *tunnel; /* NULL: the packet leaves by none */
};

/* Where a container's packet leaves. */
static __always_inline struct way_out way_of(struct __sk_buff *skb, const struct weir_config *cfg,
					     const struct packet *p)
{
	__u32 port = skb->ifindex, from = port, device;
	const struct weir_way *way = bpf_map_lookup_elem(&weir_ways, &port);
	struct way_out out = { .link = cfg->main_link };

	if (way && way->link) {
		out.link = way->link - 1;
		return out;
	}
	if (way)
		from = way->from;
	device = p->is_ip ? routed_by(skb, p, from) : 0;
	if (!device)
		return out;
	out.tunnel = tunnel_at(device);
	if (out.tunnel) {
		const struct weir_outer *outer = bpf_map_lookup_elem(&weir_outers, &out.tunnel->number);

		if (outer && outer->headers)
			out.link = outer->link;
		return out;
	}
	out.link = link_at(device, cfg);
	return out;
}

#endif
