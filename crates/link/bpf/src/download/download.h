/* SPDX-License-Identifier: Apache-2.0 */
/* Structures of the download's programs that user space shares. Handles are tc's. */
#ifndef WEIR_DOWNLOAD_H
#define WEIR_DOWNLOAD_H

struct weir_down_config { /* written by user space, only read in the kernel */
	__u32 is_on;
	__u32 control_handle;
	__u32 host_handle;    /* its upper half is that of all handles */
	__u32 default_handle;
	__u32 cookie;         /* of marks (mark.h) */
	__u32 link;           /* its number */
};
_Static_assert(sizeof(struct weir_down_config) == 24, "user space maps this layout");

struct weir_address { /* IPv4 as ::ffff:a.b.c.d */
	__u8 bytes[16];
};

struct weir_down_flow { /* network byte order */
	struct weir_address near; /* as the uplink's packets have it */
	struct weir_address far;
	__be16 near_port; /* of an echo: its id, in both */
	__be16 far_port;
	__u8 protocol;
	__u8 zero[3];
};
_Static_assert(sizeof(struct weir_down_flow) == 40, "a key without gaps");

struct weir_down_sender { /* the sender of a flow */
	__u32 handle;
	__u32 at; /* when a packet of it has left last, seconds after the boot */
};

#endif
