/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mark of a packet that has passed the scheduler of a link, in skb->tc_index.
 *
 * It is the link's cookie, which is the agent's with the link's number mixed in. Where the node shares its
 * download or several links (WEIR_NAMED), the class's minor is mixed in too, and the highest bit is set. The
 * uplink's egress learns the classes of flows from it. Minors from 0x1000 on have no room: their mark is the
 * cookie, which names no class.
 */
#ifndef WEIR_MARK_H
#define WEIR_MARK_H

#define MARK_NAMES 0x8000
#define MARK_LINK 0x7000 /* its highest bit is the cookie's: four links have room */
#define MARK_MINOR 0x0fff

static __always_inline __u32 mark_of(__u32 cookie, __u32 handle)
{
	__u32 minor = handle & 0xffff;

	return minor > MARK_MINOR ? cookie : ((cookie ^ minor) | MARK_NAMES);
}

/* The minor that a mark of a link names, by the link's cookie; 0: none, or it is another link's. */
static __always_inline __u32 minor_of(__u32 cookie, __u32 mark)
{
	__u32 named = (mark ^ cookie) & (MARK_LINK | MARK_MINOR);

	return mark & MARK_NAMES && named <= MARK_MINOR ? named : 0;
}

/* The minor that a mark of any link names, by the cookie of one of them; 0: none. */
static __always_inline __u32 minor_of_any(__u32 cookie, __u32 mark)
{
	return mark & MARK_NAMES ? (mark ^ cookie) & MARK_MINOR : 0;
}

#endif
