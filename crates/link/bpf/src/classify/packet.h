/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of a packet that decide its class where there are no rules. These are its destination, the
 * shape of control traffic, and the datagram that it is a fragment of.
 */
#ifndef WEIR_PACKET_H
#define WEIR_PACKET_H

#include "common/datagram.h"
#include "common/intf.h"
#include "control.h"
#include "fields.h"

struct packet {
	struct weir_prefix to;
	__u8 is_ip;
	__u8 is_v6;
	__u8 start;  /* what offsets are from: BPF_HDR_START_NET, or the MAC header before a VLAN tag */
	__u8 offset; /* of the IP header */
	__u8 is_control; /* has the shape of control traffic (control.h) */
	__u32 datagram;  /* that it is a fragment of (datagram.h); 0: it is whole */
};

static __always_inline void read_ports(struct __sk_buff *skb, __u32 start, int offset, struct packet *p,
				       int v6)
{
	__be16 port[2];

	if (load_header(skb, start, offset, port, sizeof(port)))
		return;
	p->is_control = v6 ? is_dhcp(port, 546, 547) : is_dhcp(port, 68, 67);
}

static __always_inline void read_headers(struct __sk_buff *skb, struct packet *p)
{
	__be16 protocol = skb->protocol;
	__u32 start = BPF_HDR_START_NET;
	int offset = 0;

	__builtin_memset(p, 0, sizeof(*p));
	if (protocol == bpf_htons(ETH_P_8021Q) || protocol == bpf_htons(ETH_P_8021AD)) {
		/* Only Ethernet has tags. */
		start = BPF_HDR_START_MAC;
		if (load_header(skb, start, ETH_HLEN + 2, &protocol, sizeof(protocol)))
			return;
		offset = ETH_HLEN + 4;
	}
	if (protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (load_header(skb, start, offset, &ip, sizeof(ip)))
			return;
		p->is_ip = 1;
		p->start = start;
		p->offset = offset;
		p->to.address[10] = 0xff;
		p->to.address[11] = 0xff;
		__builtin_memcpy(&p->to.address[12], &ip.daddr, 4);
		if (ip.frag_off & bpf_htons(0x3fff)) /* an offset, or more follow */
			p->datagram = datagram_of(ip.saddr ^ ip.daddr, (__u32)ip.id << 16,
						  !(ip.frag_off & bpf_htons(0x1fff)));
		if (ip.protocol == IPPROTO_UDP && !(ip.frag_off & bpf_htons(0x1fff)))
			read_ports(skb, start, offset + ip.ihl * 4, p, 0);
	} else if (protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr ip6;

		if (load_header(skb, start, offset, &ip6, sizeof(ip6)))
			return;
		p->is_ip = 1;
		p->is_v6 = 1;
		p->start = start;
		p->offset = offset;
		__builtin_memcpy(p->to.address, &ip6.daddr, 16);
		if (ip6.nexthdr == IPPROTO_UDP) {
			read_ports(skb, start, offset + sizeof(ip6), p, 1);
		} else if (ip6.nexthdr == IPPROTO_ICMPV6) {
			__u8 type;

			if (!load_header(skb, start, offset + sizeof(ip6), &type, 1))
				p->is_control = is_discovery(skb, type, ip6.hop_limit);
		} else if (ip6.nexthdr == IPPROTO_FRAGMENT) {
			__u32 head[2]; /* next, -, offset and flags; id */

			if (!load_header(skb, start, offset + sizeof(ip6), head, sizeof(head)))
				p->datagram = datagram_of(ip6.saddr.s6_addr32[3] ^ ip6.daddr.s6_addr32[3], head[1],
							  !(head[0] & bpf_htonl(0xfff8)));
		}
	} else {
		p->is_control = is_link_control(skb, protocol);
	}
	p->to.prefix_len_bits = 128;
}

/* Reads where a packet comes from. 0: it cannot be read. */
static __always_inline int read_source(struct __sk_buff *skb, const struct packet *p, struct weir_prefix *from)
{
	__builtin_memset(from, 0, sizeof(*from));
	from->prefix_len_bits = 128;
	if (!p->is_ip)
		return 0;
	if (p->is_v6)
		return !load_header(skb, p->start, p->offset + 8, from->address, 16);
	from->address[10] = 0xff;
	from->address[11] = 0xff;
	return !load_header(skb, p->start, p->offset + 12, &from->address[12], 4);
}

#endif
