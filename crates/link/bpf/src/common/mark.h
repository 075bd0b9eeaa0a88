/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mark of a packet that has passed the scheduler, in skb->tc_index.
 *
 * It is the cookie. Where the node shares its download too (WEIR_NAMED), the mark is the cookie with the
 * class's minor mixed in, and its highest bit is set. The uplink's egress learns the classes of flows from
 * it. Minors from 0x8000 on have no room: their mark is the cookie, which names no class.
 */
#ifndef WEIR_MARK_H
#define WEIR_MARK_H

#define MARK_NAMES 0x8000
#define MARK_MINOR 0x7fff

static __always_inline __u32 mark_of(__u32 cookie, __u32 handle)
{
	__u32 minor = handle & 0xffff;

	return minor > MARK_MINOR ? cookie : ((cookie ^ minor) | MARK_NAMES);
}

/* The minor that a mark names; 0: none. */
static __always_inline __u32 minor_of(__u32 cookie, __u32 mark)
{
	return mark & MARK_NAMES ? (mark ^ cookie) & MARK_MINOR : 0;
}

#endif
