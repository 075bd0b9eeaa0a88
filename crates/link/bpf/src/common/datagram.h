/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Datagrams that come in fragments. One is of no use without all of them, and where a queue is full
 * that drops packets one by one, hardly any arrives whole. So a queue takes all of a datagram or
 * nothing: its first fragment is refused where there is no room for the largest that there can be,
 * and whatever one is refused, those that follow it are.
 *
 * The classifier, which reads packets, says in skb->cb which datagram a fragment is of. It is read by
 * the scheduler on the ifb.
 */
#ifndef WEIR_DATAGRAM_H
#define WEIR_DATAGRAM_H

#define WEIR_CB_DATAGRAM 2 /* index in skb->cb */
#define DATAGRAM 2         /* 0: the packet is whole; else this bit is set, the rest is the datagram's key */
#define DATAGRAM_FIRST 1   /* ... but this, for its first fragment */
#define DATAGRAM_BYTES 65536
#define REFUSED 1024       /* a power of two */

/* Keys of datagrams that were refused; of two with one place the later. */
static __u32 refused[REFUSED];

/* The classifier's key: addresses mixed, and the datagram's id. */
static __always_inline __u32 datagram_of(__u32 addresses, __u32 id, int first)
{
	__u32 key = (addresses + id) * 0x9e3779b1;

	return (key & ~(__u32)DATAGRAM_FIRST) | DATAGRAM | (first ? DATAGRAM_FIRST : 0);
}

/*
 * Whether a queue takes a fragment. `after`: what would wait then; `limit`: what may; `whole`: the
 * largest datagram. All bytes, or all times.
 */
static __always_inline int takes_fragment(__u32 datagram, __u64 after, __u64 limit, __u64 whole)
{
	__u32 key = datagram & ~(__u32)DATAGRAM_FIRST;
	__u32 *entry = &refused[(datagram >> 16) & (REFUSED - 1)];

	if (datagram & DATAGRAM_FIRST)
		after += whole < limit / 2 ? whole : limit / 2;
	else if (*entry == key)
		return 0;
	if (after > limit) {
		*entry = key;
		return 0;
	}
	if (*entry == key)
		*entry = 0;
	return 1;
}

#endif
