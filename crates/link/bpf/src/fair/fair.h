/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The map that the fair queueing qdisc and user space share: `.bss.weir_fair`, which user space
 * maps into its memory. An index is a class's or group's minor.
 */
#ifndef WEIR_FAIR_H
#define WEIR_FAIR_H

#define FAIR_LAYOUT 3      /* grows with every change of this file's meaning */
#define FAIR_MAGIC 0x72696577 /* "weir" */
#define FAIR_ENTITIES 4096 /* minors below this; a power of two */
#define FAIR_RATE_SHIFT 20 /* ns per byte are kept as 1/2^20 ns */

#define FAIR_PRESENT 1 /* packets may be sent to it */
#define FAIR_GROUP 2   /* has members instead of packets */
#define FAIR_URGENT 4  /* its floor goes before all others' */

#define FAIR_MODE_FAIR 0   /* start-time fair queueing */
#define FAIR_MODE_CREDIT 1 /* qCon, repaired: round robin gated by credit */
#define FAIR_MODE_PAPER 2  /* qCon as the paper has it; programs of paper.bpf.c only */

struct fair_config { /* written by user space but for the last part */
	__u32 magic;
	__u32 layout;
	__u64 netns;            /* inode of the network namespace */
	__u32 ifindex;
	__u32 mode;
	__u64 link_cost;        /* ns per byte << FAIR_RATE_SHIFT; 0: no limit */
	__u64 link_burst_ns;    /* how late a wake-up may be without loss of rate */
	__u64 sparse_ns;       /* how far small packets of new flows may be ahead of the link's clock */
	__u64 period_credit;    /* what the link carries in a period, bytes; credit mode */
	__u32 small_bytes;      /* the largest packet that may do so */
	__u32 codel_target_us;
	__u32 codel_interval_us;
	__u32 framing;          /* of the line (framing.h); bytes and rates are the line's */
	__u64 flush;            /* 1: drop all and begin anew; the kernel takes it back */
	/* Written by the kernel. */
	__u64 live;             /* nonzero while a qdisc uses this object */
	__u64 flushes;          /* inconsistencies that were found, and cured by dropping all */
	__u64 pool_full;        /* packets dropped because all slots were taken */
	__u64 unclassified;     /* packets that named no class */
	/* By user space: */
	__u64 changed;          /* 1: weights, floors or groups are others; the kernel takes it back */
};
_Static_assert(sizeof(struct fair_config) == 120, "user space maps this layout");

struct fair_params { /* written by user space, only read in the kernel */
	__u64 weight_cost;      /* 2^32 / weight */
	__u64 floor_cost;       /* ns per byte << FAIR_RATE_SHIFT; 0: none */
	__u64 ceil_cost;        /* likewise */
	__u32 group;            /* minor of its group; 0: none */
	__u32 limit_bytes;      /* most that waits */
	__u32 flags;
	__u32 weight;
	__u64 floor_credit;     /* bytes a period; credit mode */
	__u64 ceil_credit;      /* bytes a period, 0: none; credit mode */
	__u64 pad;
};
_Static_assert(sizeof(struct fair_params) == 64, "user space maps this layout");

struct fair_stats { /* written by the kernel */
	__u64 bytes;
	__u64 packets;          /* a super-packet counts its segments */
	__u64 drops;
	__u64 marks;            /* congestion experienced */
	__u32 backlog_bytes;
	__u32 backlog_packets;
	__u64 overlimits;       /* times it waited for its ceiling */
	__u64 pad[2];
};
_Static_assert(sizeof(struct fair_stats) == 64, "user space maps this layout");

struct fair_shared {
	struct fair_config config;
	__u8 reserved[4096 - sizeof(struct fair_config)];
	struct fair_params params[FAIR_ENTITIES];
	struct fair_stats stats[FAIR_ENTITIES];
};
_Static_assert(sizeof(struct fair_shared) == 4096 + 128 * FAIR_ENTITIES, "user space maps this layout");

#endif
