/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way to a scheduler in user space, and back.
 *
 * weir_enter takes over from the classifier (weir_user in classify.bpf.c), and weir_take from it. That
 * one gives the packet a ticket, which says where it came from, and lets the macvtap receive it. That driver is the one that
 * keeps packets for a process without taking them from their socket: what waits unread in its queue
 * still counts for the sender, who blocks. Each class has a queue of its own: the driver chooses by hash.
 *
 * The ticket is an outer 802.1ad tag, which the kernel carries beside the packet's bytes: nothing is
 * moved or copied, and the process reads it as part of the frame. It writes the frame back as it
 * read it, and at the macvtap's egress weir_leave takes the ticket off and lets the packet go on where
 * it was.
 *
 * Without such a device (any more, or yet) packets go on where they are, unscheduled: a process
 * that deletes it stops no traffic. They also do so without the process that reads the device: it
 * alone holds weir_alive open, and the kernel empties an array of programs that no process holds.
 * The classifier's own array is held by the agent too.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "common/intf.h"
#include "user.h"

#define NEXT (-1)
#define DROP 2
#define TICKETS 65536

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weir_user_config);
} weir_user_config SEC(".maps");

/* Handle of a class -> its queue. A packet without a class goes by queue 0. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, WEIR_MAX_QUEUES);
	__type(key, __u32);
	__type(value, __u32);
} weir_queues SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weir_all_entered);
} weir_entered SEC(".maps");

/* A place is where a packet goes on: interface index << 1, and 1 if it leaves there. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, TICKETS / 4);
	__type(key, __u32);
	__type(value, __u32);
} weir_tickets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TICKETS);
	__type(key, __u32);
	__type(value, __u32);
} weir_places SEC(".maps");

/* weir_take, while the process lives that reads the device. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} weir_alive SEC(".maps");

__u32 next_ticket;

/*
 * A place's number, given to it with its first packet. After 65,536 places the oldest numbers are
 * given again; a place that has lost its own sees so and gets another.
 */
static __always_inline __u32 ticket_for(__u32 place)
{
	__u32 *known = bpf_map_lookup_elem(&weir_tickets, &place), *whose, ticket;

	if (known) {
		ticket = *known;
		whose = bpf_map_lookup_elem(&weir_places, &ticket);
		if (whose && *whose == place)
			return ticket;
	}
	ticket = __sync_fetch_and_add(&next_ticket, 1) & (TICKETS - 1);
	bpf_map_update_elem(&weir_places, &ticket, &place, BPF_ANY);
	bpf_map_update_elem(&weir_tickets, &place, &ticket, BPF_ANY);
	return ticket;
}

static __always_inline const struct weir_user_config *config(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&weir_user_config, &zero);
}

SEC("tc")
int weir_enter(struct __sk_buff *skb)
{
	__u32 zero = 0;

	bpf_tail_call(skb, &weir_alive, zero);
	return NEXT;
}

SEC("tc")
int weir_take(struct __sk_buff *skb)
{
	const struct weir_user_config *cfg = config();
	__u32 handle = skb->cb[WEIR_CB_HANDLE], zero = 0;
	__u32 place = skb->ifindex << 1 | (skb->cb[WEIR_CB_EGRESS] & 1);
	__u32 bytes = skb->len, *found, queue, mtu = 0;
	struct weir_all_entered *entered;

	if (!cfg || !cfg->device)
		return NEXT;
	/* Too long a packet is that device's to refuse; it is asked only whether it is there. */
	if (bpf_check_mtu(skb, cfg->device, &mtu, 0, 0) < 0)
		return NEXT;
	found = bpf_map_lookup_elem(&weir_queues, &handle);
	queue = found ? *found : 0;
	if (queue >= WEIR_MAX_QUEUES)
		return NEXT;
	if (bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021AD), ticket_for(place)))
		return NEXT;
	/*
	 * The driver takes the hash modulo its queues, and works one out if the packet has no
	 * hash.
	 */
	bpf_set_hash(skb, queue ? queue : cfg->queues);
	entered = bpf_map_lookup_elem(&weir_entered, &zero);
	if (entered) {
		barrier_var(queue); /* kernel 6.1 has forgotten the range */
		queue &= WEIR_MAX_QUEUES - 1;
		__sync_fetch_and_add(&entered->queue[queue].bytes, bytes);
		__sync_fetch_and_add(&entered->queue[queue].packets, 1);
	}
	return bpf_redirect(cfg->device, BPF_F_INGRESS);
}

SEC("tc")
int weir_leave(struct __sk_buff *skb)
{
	const struct weir_user_config *cfg = config();
	struct {
		__be16 protocol;
		__be16 ticket;
	} tag;
	__u32 ticket, *place;

	/* Other packets of a device that comes up: neighbour discovery and the like. */
	if (!cfg || bpf_skb_load_bytes(skb, 2 * ETH_ALEN, &tag, sizeof(tag)) ||
	    tag.protocol != bpf_htons(ETH_P_8021AD))
		return DROP;
	ticket = bpf_ntohs(tag.ticket);
	place = bpf_map_lookup_elem(&weir_places, &ticket);
	if (!place || !*place || bpf_skb_vlan_pop(skb))
		return DROP;
	skb->tc_index = cfg->cookie;
	return bpf_redirect(*place >> 1, *place & 1 ? 0 : BPF_F_INGRESS);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
