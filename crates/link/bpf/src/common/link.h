/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes that a packet takes of the link. A container's frame has an Ethernet header where it is
 * charged. On an uplink of tunnel, PPP or raw-IP packets it has none. A tunnel that is over the uplink adds
 * headers later.
 *
 * The classifier, which knows both, says in skb->cb how many bytes of each segment are too many. It is
 * read by the scheduler on the ifb.
 */
#ifndef WEIR_LINK_H
#define WEIR_LINK_H

#define WEIR_CB_EXCESS 3 /* index in skb->cb: EXCESS_NONE, plus or minus bytes of headers */
#define EXCESS_NONE 0x77656972u
#define EXCESS_MOST 128 /* more or less than none: others who use the field do not leave this there */
#define LINK_HEADER 14 /* Ethernet's */

/* Whether the classifier has said how many bytes are too many. */
static __always_inline int has_excess(__u32 said)
{
	__s32 excess = said - EXCESS_NONE;

	return excess <= EXCESS_MOST && excess >= -EXCESS_MOST;
}

/* Bytes too many of each segment; 0 if the classifier has said nothing. */
static __always_inline __s32 excess_of(__u32 said)
{
	return has_excess(said) ? (__s32)(said - EXCESS_NONE) : 0;
}

/* The bytes that a packet of that length and number of segments takes of the link. */
static __always_inline __u32 on_link(__u32 len, __u32 segments, __u32 said)
{
	return len - excess_of(said) * (__s32)segments;
}

#endif
