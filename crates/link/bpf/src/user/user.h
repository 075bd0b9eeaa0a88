/* SPDX-License-Identifier: Apache-2.0 */
/* Structures that the programs of engine `user` and user space share. */
#ifndef WEIR_USER_H
#define WEIR_USER_H

#define WEIR_MAX_QUEUES 256 /* queues of a macvtap at the most (MAX_TAP_QUEUES) */

struct weir_user_config { /* written by user space, only read in the kernel */
	__u32 device; /* index of the macvtap; 0 lets everything pass */
	__u32 queues;  /* its queues */
	__u32 cookie; /* marks in skb->tc_index what has passed the scheduler */
	__u32 unused;
};
_Static_assert(sizeof(struct weir_user_config) == 16, "user space maps this layout");

struct weir_entered { /* of a queue, counted in the kernel, read through a mapping */
	__u64 bytes;   /* with the Ethernet header; a super-packet's as one packet */
	__u64 packets;
};

struct weir_all_entered {
	struct weir_entered queue[WEIR_MAX_QUEUES];
};
_Static_assert(sizeof(struct weir_all_entered) == 16 * WEIR_MAX_QUEUES, "user space maps this layout");

#endif
