/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program of departure times in user space: edt.bpf.c as it is, with what it calls of the kernel put
 * in its place, so that a test can run it in a time of its own (src/edt/tests.rs).
 */
#include <linux/bpf.h>

#include "macros.h"

#define LICENSE edt_user_license

static __u64 time_now;

static __u64 bpf_ktime_get_ns(void)
{
	return time_now;
}

static void *bpf_map_lookup_elem(void *map, const void *key);

static long bpf_loop(__u32 times, long (*body)(__u32, void *), void *context, __u64 flags)
{
	__u32 i;

	for (i = 0; i < times; i++) {
		if (body(i, context))
			return i + 1;
	}
	return i;
}

/* No sender here understands ECN, and none is TCP. */
static long bpf_skb_ecn_set_ce(struct __sk_buff *skb)
{
	return 0;
}

static long bpf_skb_load_bytes_relative(const struct __sk_buff *skb, __u32 at, void *to, __u32 len, __u32 from)
{
	return -1;
}

static __u32 bpf_get_hash_recalc(struct __sk_buff *skb)
{
	return skb->hash;
}

static long bpf_skb_set_tstamp(struct __sk_buff *skb, __u64 stamp, __u32 type)
{
	skb->tstamp = stamp;
	return 0;
}

#include "edt/edt.bpf.c"

static struct weir_edt_link the_link;
static struct weir_edt_rule rules[WEIR_EDT_CLASSES], groups[WEIR_EDT_GROUPS];
static struct weir_edt_class classes[WEIR_EDT_CLASSES];

static void *bpf_map_lookup_elem(void *map, const void *key)
{
	__u32 i = *(const __u32 *)key;

	if (map == &weir_edt_link)
		return i ? (void *)0 : &the_link;
	if (map == &weir_edt_groups)
		return i < WEIR_EDT_GROUPS ? &groups[i] : (void *)0;
	if (i >= WEIR_EDT_CLASSES)
		return (void *)0;
	return map == &weir_edt_rules ? (void *)&rules[i] : (void *)&classes[i];
}

/* Forgets everything, and states the link. */
void edt_user_init(__u64 capacity, __u64 horizon_ns, __u32 packet_bytes, __u32 last_minor, __u32 last_group)
{
	__builtin_memset(rules, 0, sizeof(rules));
	__builtin_memset(groups, 0, sizeof(groups));
	__builtin_memset(classes, 0, sizeof(classes));
	__builtin_memset(&tick, 0, sizeof(tick));
	__builtin_memset(&weir_fill, 0, sizeof(weir_fill));
	__builtin_memset(flow, 0, sizeof(flow));
	__builtin_memset(refused, 0, sizeof(refused));
	the_link = (struct weir_edt_link){ .capacity = capacity, .layout = WEIR_EDT_LAYOUT,
		.last_minor = last_minor, .groups = last_group, .packet_bytes = packet_bytes,
		.horizon_ns = horizon_ns, .queues = 1 };
	weir_edt_next = 0;
}

/* States the framing of the line. */
void edt_user_frame(__u32 framing, __u32 packet_bytes)
{
	the_link.framing = framing;
	the_link.packet_bytes = packet_bytes;
	weir_edt_next = 0;
}

/* The charge of a packet of these numbers. */
__u32 edt_user_line_bytes(__u32 framing, __u32 wire, __u32 len, __u32 segments, __u32 gso_size, __s32 excess)
{
	return on_line(framing, wire, len, segments, gso_size, EXCESS_NONE + excess);
}

/* The bytes that a class was charged. */
__u64 edt_user_bytes(__u32 minor)
{
	return classes[minor % WEIR_EDT_CLASSES].bytes;
}

/* Writes a rule as user space does; the rates are made again at the next packet. */
void edt_user_rule(int is_group, __u32 number, const struct weir_edt_rule *rule)
{
	if (is_group && number < WEIR_EDT_GROUPS)
		groups[number] = *rule;
	else if (!is_group && number < WEIR_EDT_CLASSES)
		rules[number] = *rule;
	weir_edt_next = 0;
}

/* A packet of a class comes. Returns when it may leave: at once if the time has passed, never if ~0. */
__u64 edt_user_send(__u64 now, __u32 minor, __u32 len, __u32 packets, __u32 hash)
{
	struct __sk_buff skb = { .priority = WEIR_EDT_MAJOR << 16 | minor, .wire_len = len, .len = len,
		.gso_segs = packets, .hash = hash };

	time_now = now;
	return weir_edt(&skb) == TC_ACT_SHOT ? ~0ULL : skb.tstamp;
}
