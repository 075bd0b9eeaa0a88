/* SPDX-License-Identifier: Apache-2.0 */
/* Structures that the classifier and user space share. Handles are tc's, major << 16 | minor. */
#ifndef WEIR_INTF_H
#define WEIR_INTF_H

#define WEIR_CGROUP_LEVELS 8

/* Majors of HTB on the ifb. A class's minor is beside the second. */
#define WEIR_HTB_MAJOR 1u
#define WEIR_SPARSE_MAJOR 0x8000u

/* The most links that are shared. Each has a number below. */
#define WEIR_LINKS 4

/* Values of weir_local (local.h). */
#define WEIR_ON_NODE 1u
#define WEIR_EXEMPT(link) (0x100u << (link))
#define WEIR_EXEMPT_ANY (WEIR_EXEMPT(WEIR_LINKS) - WEIR_EXEMPT(0))

/* In a value of weir_ports, beside the handle: the interface's packets have no Ethernet header. */
#define WEIR_PORT_BARE 0x80000000u

/*
 * Indices in skb->cb: the classifier's message to the program in weir_user, or to the scheduler on the ifb.
 * Others are in datagram.h and link.h.
 */
#define WEIR_CB_HANDLE 0
#define WEIR_CB_EGRESS 1   /* for weir_user */
#define WEIR_CB_FIRST 1    /* for the download's HTB: 1 if the packet goes first in its class's queue (sparse.h) */
#define WEIR_CB_PRIORITY 4 /* skb->priority before the scheduler, which weir_uplink gives back */

/* Of weir_config.flags. */
#define WEIR_PACED 1    /* sockets are told apart, for those who pace them (pacing.h) */
#define WEIR_IN_PLACE 2 /* there is no scheduler: packets pass by credit (credit.h) */
#define WEIR_USER 4     /* the scheduler is a process: what it has put into weir_user takes over (user.bpf.c) */
#define WEIR_BARE 8     /* the uplink's packets have no Ethernet header */
#define WEIR_WEIGHED 16 /* the scheduler cannot charge by link.h: count what it charges too much */
#define WEIR_NAMED 32   /* marks in skb->tc_index name the class, for the download (mark.h) */
#define WEIR_SEVERAL 64 /* several links are shared, and marks name the class */
#define WEIR_TUNNELS 128 /* a tunnel leads over a link (tunnel.h) */
#define WEIR_SPARSE 256 /* classes have a queue that goes first (sparse.h) */

struct weir_config { /* one a link; written by user space, only read in the kernel */
	__u32 ifb_index;      /* of the link's scheduler; 0: the link is not shared */
	__u32 control_handle;
	__u32 host_handle;
	__u32 default_handle;
	__u32 charge_local;   /* 1: node-local traffic is charged to the link too */
	__u32 cgroup_levels;  /* bit n: classes exist at depth n of the cgroup tree */
	__u32 cookie;         /* 16 bits: marks in skb->tc_index what has passed the link's scheduler (mark.h) */
	__u32 flags;          /* WEIR_PACED to WEIR_SPARSE */
	__u32 rules;          /* 1 or 2: which set of rules is in force (select.h); 0: none */
	__u32 main_link;      /* number of the link of packets that no route sends by another one */
	__u32 tunnel_key;     /* of hashes that carry a mark through a tunnel */
};
_Static_assert(sizeof(struct weir_config) == 44, "user space maps this layout");

/* The most tunnels that are known. Each has a number below. */
#define WEIR_TUNNEL_NUMBERS 16

struct weir_tunnel { /* written by user space, only read in the kernel */
	__u32 number;
	__u32 mtu;
};
_Static_assert(sizeof(struct weir_tunnel) == 8, "user space maps this layout");

struct weir_way { /* of what enters at a port, where several links are shared or a tunnel leads over one */
	__u32 from; /* index of the interface that routes it: the port, or its bridge */
	__u32 link; /* 1 + number of the link that is a port of the same bridge; 0: a route decides */
};
_Static_assert(sizeof(struct weir_way) == 8, "user space maps this layout");

struct weir_prefix { /* key of the longest-prefix map; IPv4 as ::ffff:a.b.c.d */
	__u32 prefix_len_bits;
	__u8 address[16];
};
_Static_assert(sizeof(struct weir_prefix) == 20, "user space maps this layout");

struct weir_counters { /* one a class and processor */
	__u64 local_bytes;
	__u64 local_packets;
	__u64 weighed_bytes;  /* of scheduled packets, as the scheduler sees them (WEIR_WEIGHED) */
	__u64 excess_bytes;   /* of these, what the uplink does not carry */
	__u64 moved_packets;  /* that left by another link than their route said, and were charged to both */
};
_Static_assert(sizeof(struct weir_counters) == 40, "user space maps this layout");

#define WEIR_DOWNLOAD 0 /* the only scheduler of the download's programs */

struct weir_sparse_key {
	__u32 ifb_index; /* or WEIR_DOWNLOAD */
	__u32 handle;
};
_Static_assert(sizeof(struct weir_sparse_key) == 8, "user space maps this layout");

struct weir_sparse { /* of a class whose queue has one inside that goes first */
	__u64 cost;   /* ns a byte at the class's rate, times 2^20 */
	__u64 quiet;  /* ns; packets that waited before that have left */
	__u64 passed; /* until when the class's allowance is used up, ns; written in the kernel */
};
_Static_assert(sizeof(struct weir_sparse) == 24, "user space maps this layout");

struct weir_pacing { /* written by user space, only read in the kernel */
	__u64 alive_ns; /* monotonic time at which user space was last heard of */
	__u64 owner;    /* inode of the network namespace whose link is shared */
	__u64 leaving;  /* 1: rates are taken back */
};
_Static_assert(sizeof(struct weir_pacing) == 24, "user space maps this layout");

#endif
