/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The class of a packet in a tunnel of WireGuard.
 *
 * WireGuard clears skb->tc_index before it encrypts a packet, and keeps skb->hash (wg_reset_packet,
 * drivers/net/wireguard/queueing.h). weir_tunnel, at the tunnel's egress, writes skb->tc_index into the
 * hash. weir_uplink reads it from the outer packet. A port's packet has passed the scheduler before the
 * tunnel, so that its outer packet passes. Its port has charged it the outer packet's headers.
 *
 * A socket's own hash is random. An outer packet is known by 12 bits of a key, by the form of WireGuard's
 * data, and because no UDP socket of this node sends it.
 */
#ifndef WEIR_TUNNEL_H
#define WEIR_TUNNEL_H

#define TUNNEL_HEADERS_V4 60 /* IPv4 20, UDP 8, WireGuard's header 16, its tag 16 */
#define TUNNEL_HEADERS_V6 80
#define TUNNEL_PADDING 16    /* MESSAGE_PADDING_MULTIPLE of the driver */
#define TUNNEL_DATA 4        /* MESSAGE_DATA, 32 bits, little endian */
#define CARRIED(number, mark) ((number) << 16 | (mark))
#define CARRIED_NUMBER(word) ((word) >> 16)
#define CARRIED_MARK(word) ((word) & 0xffff)

/* Index of a tunnel's device -> what user space knows of it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, WEIR_TUNNEL_NUMBERS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct weir_tunnel);
} weir_tunnels SEC(".maps");

/* Where the outer packets of a tunnel were seen last; by the tunnel's number. */
struct weir_outer {
	__u32 link;    /* number of the link */
	__u32 headers; /* bytes of all headers and the tag; 0: none was seen */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEIR_TUNNEL_NUMBERS);
	__type(key, __u32);
	__type(value, struct weir_outer);
} weir_outers SEC(".maps");

/* The tunnel of a device; NULL: the device is no tunnel. */
static __always_inline const struct weir_tunnel *tunnel_at(__u32 ifindex)
{
	return bpf_map_lookup_elem(&weir_tunnels, &ifindex);
}

/*
 * Bytes that the tunnel adds to each segment of a packet. Segments of a super-packet are as long as the
 * tunnel's MTU, which ends their padding. `len`: the packet's bytes from the IP header on.
 */
static __always_inline __u32 tunnel_bytes(const struct weir_tunnel *tunnel, const struct weir_outer *outer,
					  __u32 len, __u32 segments)
{
	__u32 headers = outer && outer->headers ? outer->headers : TUNNEL_HEADERS_V4;
	__u32 padded = (len + TUNNEL_PADDING - 1) & ~(TUNNEL_PADDING - 1);

	if (segments > 1 || len >= tunnel->mtu)
		return headers;
	return headers + (padded < tunnel->mtu ? padded : tunnel->mtu) - len;
}

/* The beginning of a datagram. */
struct tunnel_data {
	__be16 source;
	__be16 destination;
	__be32 length; /* and checksum */
	__le32 type;
};

/* The bytes that the headers and the tag of WireGuard's data take; 0: the packet is other. */
static __always_inline __u32 outer_headers(struct __sk_buff *skb, const struct packet *p)
{
	__u32 offset = p->offset, headers;
	struct bpf_sock *sk = skb->sk;
	struct tunnel_data data;

	if (!p->is_ip)
		return 0;
	if (p->is_v6) {
		struct ipv6hdr ip6;

		if (load_header(skb, p->start, offset, &ip6, sizeof(ip6)) || ip6.nexthdr != IPPROTO_UDP)
			return 0;
		offset += sizeof(ip6);
		headers = TUNNEL_HEADERS_V6;
	} else {
		struct iphdr ip;

		if (load_header(skb, p->start, offset, &ip, sizeof(ip)) || ip.protocol != IPPROTO_UDP ||
		    ip.frag_off & bpf_htons(0x1fff))
			return 0;
		offset += ip.ihl * 4;
		headers = TUNNEL_HEADERS_V4;
	}
	if (load_header(skb, p->start, offset, &data, sizeof(data)) || data.type != TUNNEL_DATA)
		return 0;
	/* The tunnel's own socket is the kernel's. The packet still belongs to the inner packet's sender. */
	if (sk)
		sk = bpf_sk_fullsock(sk);
	if (sk && sk->protocol == IPPROTO_UDP && sk->src_port == bpf_ntohs(data.source))
		return 0;
	return headers;
}

/*
 * Whether weir_tunnel has seen this packet before its tunnel encrypted it. *mark: its skb->tc_index of then.
 * `link`: the number of the link by which it leaves.
 */
static __always_inline int leaves_tunnel(struct __sk_buff *skb, const struct weir_config *cfg,
					 const struct packet *p, __u32 link, __u32 *mark)
{
	__u32 word = skb->hash ^ cfg->tunnel_key, number = CARRIED_NUMBER(word), headers;
	struct weir_outer *outer;

	if (number >= WEIR_TUNNEL_NUMBERS || skb->ingress_ifindex)
		return 0;
	headers = outer_headers(skb, p);
	outer = bpf_map_lookup_elem(&weir_outers, &number);
	if (!headers || !outer)
		return 0;
	if (outer->headers != headers || outer->link != link) {
		outer->link = link;
		outer->headers = headers;
	}
	*mark = CARRIED_MARK(word);
	return 1;
}

#endif
