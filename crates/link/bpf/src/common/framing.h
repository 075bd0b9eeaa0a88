/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes that a packet takes on the line behind the link, whose modem adds a header, fills short packets up,
 * or cuts packets into cells. Framing::line_bytes of weir-units is the same in Rust.
 *
 * User space writes one word for the link. 0: packets are charged as tc counts them.
 */
#ifndef WEIR_FRAMING_H
#define WEIR_FRAMING_H

#include "common/link.h"

#define FRAMED 0x80000000u /* there is a framing; bits 0 to 15: bytes around what tc counts, signed */
#define FRAMING_MPU(word) ((word) >> 16 & 0xfff) /* the least bytes of a packet with these */
#define FRAMING_CELLS(word) ((word) >> 28 & 3)
#define CELLS_ATM 1
#define CELLS_PTM 2

/* The bytes on the line of one packet, of `len` bytes as tc counts it on the link. */
static __always_inline __u32 line_bytes(__u32 framing, __u32 len)
{
	__s32 bytes = (__s32)len + (__s16)framing, least = FRAMING_MPU(framing);

	if (bytes < least)
		bytes = least;
	if (FRAMING_CELLS(framing) == CELLS_ATM)
		return ((__u32)bytes + 47) / 48 * 53;
	if (FRAMING_CELLS(framing) == CELLS_PTM)
		return bytes + ((__u32)bytes + 63) / 64;
	return bytes;
}

/*
 * The same of a packet that leaves as `segments`. All but the last have `full` bytes. Where those numbers do
 * not go together, all segments are taken for equally long.
 */
static __always_inline __u32 line_bytes_of(__u32 framing, __u32 len, __u32 segments, __u32 full)
{
	__u32 before;

	if (segments < 2)
		return line_bytes(framing, len);
	before = (segments - 1) * full;
	if (before >= len || len - before > full)
		return segments * line_bytes(framing, (len + segments - 1) / segments);
	return (segments - 1) * line_bytes(framing, full) + line_bytes(framing, len - before);
}

/*
 * The bytes of the line that a packet is charged. `wire`: with the headers of all segments; `len`: with one;
 * `gso_size`: the payload of a full segment; `said`: the classifier's word (link.h).
 */
static __always_inline __u32 on_line(__u32 framing, __u32 wire, __u32 len, __u32 segments, __u32 gso_size, __u32 said)
{
	__u32 full = gso_size;

	if (segments > 1 && wire > len)
		full += (wire - len) / (segments - 1);
	return line_bytes_of(framing, on_link(wire, segments, said), segments, on_link(full, 1, said));
}

#endif
