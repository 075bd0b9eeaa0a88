/* SPDX-License-Identifier: Apache-2.0 */
/* Structures that the program of departure times and user space share. Rates are bytes per second. */
#ifndef WEIR_EDT_H
#define WEIR_EDT_H

/* Of what follows, and of the variables of edt.bpf.c and fill.h. An agent takes over only its own. */
#define WEIR_EDT_LAYOUT 5
#define WEIR_EDT_CLASSES 4096 /* minors below this */
#define WEIR_EDT_GROUPS 1024  /* numbers 1 and up */
#define WEIR_EDT_MAJOR 1
#define WEIR_EDT_DEFAULT 2    /* minor of the class of whoever has none */
#define WEIR_EDT_CONTROL 3    /* minor of the class that never waits */

struct weir_edt_link { /* written by user space, only read in the kernel */
	__u64 capacity;
	__u32 layout;
	__u32 last_minor;   /* the highest that is a class */
	__u32 groups;       /* the highest number of a group */
	__u32 packet_bytes; /* a full packet on the wire */
	__u64 horizon_ns;   /* packets that would wait longer are dropped, unless fewer bytes than
			       queue_bytes wait */
	__u32 queues;       /* of the device: flows are spread over them */
	__u32 framing;      /* of the line (framing.h); bytes and rates are the line's */
};
_Static_assert(sizeof(struct weir_edt_link) == 40, "user space maps this layout");

struct weir_edt_rule { /* by minor or by number of group; written by user space only */
	__u64 min;
	__u64 max;
	__u64 queue_bytes; /* so much may wait, whatever time that takes */
	__u32 weight;      /* 0: there is no such class */
	__u32 group;       /* of a class: number of its group, or 0; of a group: its minor */
};
_Static_assert(sizeof(struct weir_edt_rule) == 32, "user space maps this layout");

struct weir_edt_class { /* by minor; written in the kernel */
	/* at every packet */
	__u64 clock;    /* when the next packet may leave, ns */
	__u64 bytes;    /* let through: on the wire, sooner or later */
	__u64 packets;
	__u64 cost;     /* ns per byte, times 2^20; 0 while the class sleeps */
	__u64 limit_ns; /* packets are dropped if the clock is further ahead */
	__u64 drops;    /* packets */
	__u64 marks;    /* packets that were told of congestion (ECN) instead */
	__u64 rate;     /* what it may send */
	/* at every tick */
	__u64 before;   /* the clock at the last tick */
	__u64 seen;     /* bytes at the last tick */
	__u64 waiting;  /* bytes that had not left at the last tick */
	__u64 offered_rate;   /* what it sends while it does not wait, smoothed */
	__u32 backlogged;   /* it waits, or uses all it may have */
	__u32 idle;     /* ticks without anything sent */
	__u64 last;     /* when the last super-packet was due */
	/* at every packet */
	__u64 start;    /* the clock before the last packet: when that may leave */
	__u64 ran_out;  /* when a packet found the clock behind: nothing had waited */
	__u64 passed;   /* until when the allowance of those that pass what waits is used up */
};
_Static_assert(sizeof(struct weir_edt_class) == 136, "user space maps this layout");

#endif
