/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structures that the congestion programs and user space share. Handles are tc's, major << 16 |
 * minor.
 */
#ifndef WEIR_CONGESTION_H
#define WEIR_CONGESTION_H

#define WEIR_CC_NAME 16		/* TCP_CA_NAME_MAX: with its final zero */
#define WEIR_CC_FLOW_SIZE 128	/* what is kept of a socket */

#define WEIR_CC_OUT 1		/* the connection was opened from here */
#define WEIR_CC_IN 2		/* it was accepted here */

/*
 * Any application may announce the bytes of a connection of its own: setsockopt(socket,
 * WEIR_CC_LEVEL, WEIR_CC_WILL_SEND, &bytes, sizeof(bytes)), of 4 or 8 bytes.
 */
#define WEIR_CC_LEVEL 0x5745	/* "WE" */
#define WEIR_CC_WILL_SEND 1	/* so many bytes more will be sent */

/* Kinds of rules: which of these a rule asks for. */
#define WEIR_CC_BY_DIRECTION 1
#define WEIR_CC_BY_PORT 2
#define WEIR_CC_BY_CLASS 4

/* The action of weir_cc_visit on each connection. */
#define WEIR_CC_MOVE 1		/* as the rules say, as far as it has come */
#define WEIR_CC_LEAVE 2		/* the algorithm that it had before weir */

struct weir_cc_config { /* written by user space, only read in the kernel */
	__u64 alive_ns;		/* monotonic time at which user space was last heard of */
	__u64 owner;		/* inode of the network namespace whose link is shared */
	__u64 host_cookie;	/* and its cookie: there classes are told apart by cgroup too */
	__u32 kinds;		/* bit n: there are rules of kind n */
	__u32 cgroup_levels;	/* bit n: classes exist at depth n of the cgroup tree */
	__u32 set;		/* 1 or 2: the set of rules in force; 0: none */
	__u32 generation;	/* grows with each change of the rules */
	__u32 visit;		/* WEIR_CC_MOVE or WEIR_CC_LEAVE */
	__u32 trials;		/* how many networks there are in which some flows try another algorithm */
};
_Static_assert(sizeof(struct weir_cc_config) == 48, "user space maps this layout");

struct weir_cc_key { /* key of the longest-prefix map; all but the address is matched whole */
	__u32 prefix_len_bits;
	__u32 handle;		/* 0: any class */
	__u16 port;		/* of the service: the far end's if opened here, else our own; 0: any */
	__u8 direction;		/* 0: either */
	__u8 table;		/* set of rules << 4 | IP version */
	__u8 address[16];	/* the far end; IPv4 in the first four */
};
#define WEIR_CC_FIXED_BITS 64
_Static_assert(sizeof(struct weir_cc_key) == 28, "user space maps this layout");

struct weir_cc_rule {
	__u64 after_bytes;	/* acknowledged: then the other algorithm; 0: never */
	__u32 rank;		/* of several that match the greatest counts */
	__u32 number;		/* of the rule, from 1 */
	char start[WEIR_CC_NAME];
	char then[WEIR_CC_NAME];
	__u32 window_segments;	/* that may be on the way before the change; 0: any number */
	__u32 padding;
};
_Static_assert(sizeof(struct weir_cc_rule) == 56, "user space maps this layout");

struct weir_cc_trial_key { /* of another longest-prefix map */
	__u32 prefix_len_bits;
	__u8 version;		/* of IP */
	__u8 padding[3];
	__u8 address[16];	/* the far end; IPv4 in the first four */
};
#define WEIR_CC_TRIAL_BITS 32
_Static_assert(sizeof(struct weir_cc_trial_key) == 24, "user space maps this layout");

struct weir_cc_trial {
	__u64 after_bytes;	/* as in a rule */
	__u32 turn;		/* what this is part of, for the record; never 0 */
	__u32 share;		/* of the connections that begin, of 2^32, is drawn; the others follow the rules */
	__u32 rank;		/* connections whose rule has a greater one have no part in it */
	__u32 window_segments;	/* as in a rule */
	char start[WEIR_CC_NAME];
	char then[WEIR_CC_NAME];
	__u32 slot;		/* of its counter and its limit */
	__u32 tries;		/* 0: drawn connections follow the rules too, and are only counted */
};
_Static_assert(sizeof(struct weir_cc_trial) == 64, "user space maps this layout");

#define WEIR_CC_SLOTS 64

#define WEIR_CC_TRIED 1		/* it used what its turn tries */
#define WEIR_CC_DRAWN 2		/* it was drawn in a turn that tries nothing */

/* Of a connection whose last byte sent is acknowledged, or that was reset; of a trial's also if it was never established. */
struct weir_cc_record {
	__u64 took_ns;		/* since the first SYN, or since it was accepted */
	__u64 sent_bytes;	/* payload, acknowledged */
	__u64 received_bytes;
	__u64 switched_bytes;	/* acknowledged when the algorithm was changed; 0: it was not */
	__u64 delivery_rate;	/* bytes per second, the kernel's last estimate */
	__u32 handle;		/* of its class */
	__u32 number;		/* of its rule, from 1; 0: none */
	__u32 generation;	/* of the rules, when it began */
	__u32 least_rtt_us;
	__u32 smoothed_rtt_us;	/* at the end */
	__u32 most_rtt_us;	/* the greatest smoothed one */
	__u32 retransmits;	/* segments */
	__u16 local_port;
	__u16 remote_port;
	__u8 direction;		/* 0: it is older than the agent */
	__u8 version;		/* of IP */
	__u8 tried;		/* WEIR_CC_TRIED, WEIR_CC_DRAWN; 0: it was not drawn */
	__u8 padding;
	__u32 turn;		/* of a trial, when it began; 0: none */
	__u8 address[16];	/* of the far end; IPv4 in the first four */
	char first[WEIR_CC_NAME]; /* the algorithm of its first packet */
	char last[WEIR_CC_NAME];
};
_Static_assert(sizeof(struct weir_cc_record) == 128, "user space maps this layout");

struct weir_cc_counts { /* since the program was loaded */
	__u64 set;		/* connections that were given the algorithm of a rule */
	__u64 switched;		/* in the flow */
	__u64 moved;		/* when asked to */
	__u64 failed;		/* the kernel refused an algorithm */
	__u64 lost;		/* records for which there was no room */
	__u64 hinted;		/* times that applications said how much they will send */
};
_Static_assert(sizeof(struct weir_cc_counts) == 48, "user space maps this layout");

#endif
