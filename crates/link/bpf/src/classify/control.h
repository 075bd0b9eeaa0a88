/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control traffic: ARP, neighbour discovery, DHCP and 802.1X. A network needs them, so they have a
 * class of their own. A container could send anything in their shape. So the shape is narrow, and
 * each interface has a token bucket of bytes, and so has each class of the node's own processes. The sender's own
 * class takes the packets beyond it.
 */
#ifndef WEIR_CONTROL_H
#define WEIR_CONTROL_H

#define ETH_P_EAPOL 0x888e
#define CONTROL_MAX_ARP 100        /* bytes of a frame */
#define CONTROL_MAX_DISCOVERY 300
#define CONTROL_HOP_LIMIT 255      /* RFC 4861: no router has forwarded it */
#define CONTROL_NS_PER_BYTE 400000 /* 20 kbit/s: 41 ARP frames a second */
#define CONTROL_BURST 6000         /* bytes: 100 ARP frames */
#define CONTROL_MIN_FRAME 60
#define CONTROL_OF_CLASS 0x80000000 /* beside a class's handle: its key. No interface has such an index. */

/* Interface index, or key of a class -> monotonic time at which its bucket is full again, ns. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u64);
} weir_control SEC(".maps");

/* Between a client and a server or relay. */
static __always_inline int is_dhcp(const __be16 port[2], __u16 client, __u16 server)
{
	return (port[0] == bpf_htons(client) && port[1] == bpf_htons(server)) ||
	       (port[0] == bpf_htons(server) && port[1] == bpf_htons(client));
}

static __always_inline int is_discovery(const struct __sk_buff *skb, __u8 type, __u8 hop_limit)
{
	return type >= 133 && type <= 137 && hop_limit == CONTROL_HOP_LIMIT && skb->len <= CONTROL_MAX_DISCOVERY;
}

static __always_inline int is_link_control(const struct __sk_buff *skb, __be16 protocol)
{
	return protocol == bpf_htons(ETH_P_EAPOL) ||
	       (protocol == bpf_htons(ETH_P_ARP) && skb->len < CONTROL_MAX_ARP);
}

/*
 * Takes a packet's bytes from this bucket, if it has them. Two processors that race here
 * may take the bytes of one packet only.
 */
static __always_inline int takes_control(const struct __sk_buff *skb, __u32 bucket)
{
	__u64 *found = bpf_map_lookup_elem(&weir_control, &bucket), now = bpf_ktime_get_ns();
	__u64 bytes = skb->len < CONTROL_MIN_FRAME ? CONTROL_MIN_FRAME : skb->len;
	__u64 full = (found && *found > now ? *found : now) + bytes * CONTROL_NS_PER_BYTE;

	if (full - now > (__u64)CONTROL_BURST * CONTROL_NS_PER_BYTE)
		return 0;
	if (found)
		*found = full;
	else
		bpf_map_update_elem(&weir_control, &bucket, &full, BPF_ANY);
	return 1;
}

#endif
