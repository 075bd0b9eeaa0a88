/* SPDX-License-Identifier: Apache-2.0 */
/* The few kernel types and functions the qdisc uses; libbpf finds the fields' places (CO-RE). */
#ifndef WEIR_FAIR_KERNEL_H
#define WEIR_FAIR_KERNEL_H

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sk_buff {
	void *sk;
	unsigned int len;
	char cb[48];
	__u32 priority;
	__u32 hash;
	unsigned int end; /* of a 64-bit kernel: counted from head */
	unsigned char *head;
};

struct skb_shared_info {
	unsigned short gso_size;
	unsigned short gso_segs;
};

struct qdisc_skb_cb {
	unsigned int pkt_len;
	__u16 pkt_segs; /* not before 7.0 */
	unsigned char data[20] __attribute__((aligned(4))); /* skb->cb of programs */
};

struct qdisc_skb_head {
	__u32 qlen;
};

struct gnet_stats_queue {
	__u32 backlog;
	__u32 drops;
	__u32 overlimits;
};

struct Qdisc {
	__u32 limit;
	__u32 parent;
	struct qdisc_skb_head q;
	struct gnet_stats_queue qstats;
};

struct bpf_sk_buff_ptr {
	struct sk_buff *skb;
};

struct nlattr;
struct netlink_ext_ack;

#pragma clang attribute pop

/* Members are matched by name. `id` is first, so that the loader finds it at offset 0. */
struct Qdisc_ops {
	char id[16];
	int (*enqueue)(struct sk_buff *, struct Qdisc *, struct sk_buff **);
	struct sk_buff *(*dequeue)(struct Qdisc *);
	int (*init)(struct Qdisc *, struct nlattr *, struct netlink_ext_ack *);
	void (*reset)(struct Qdisc *);
	void (*destroy)(struct Qdisc *);
};

#define NET_XMIT_SUCCESS 0
#define NET_XMIT_DROP 1
#define TC_H_ROOT 0xffffffffu

extern void bpf_kfree_skb(struct sk_buff *skb) __ksym;
extern void bpf_qdisc_skb_drop(struct sk_buff *skb, struct bpf_sk_buff_ptr *to_free) __ksym;
extern void bpf_qdisc_watchdog_schedule(struct Qdisc *sch, __u64 expire, __u64 delta_ns) __ksym;
extern void bpf_qdisc_bstats_update(struct Qdisc *sch, const struct sk_buff *skb) __ksym;
extern __u32 bpf_skb_get_hash(struct sk_buff *skb) __ksym;
extern void *bpf_rdonly_cast(const void *obj, __u32 btf_id) __ksym;

#ifdef __bpf__
static __always_inline const struct skb_shared_info *shared_info(struct sk_buff *skb)
{
	return bpf_rdonly_cast((void *)(skb->head + skb->end), bpf_core_type_id_kernel(struct skb_shared_info));
}

/*
 * The instruction may_goto (kernel 6.9): falls through, except when the program has looped for
 * far too long; with it the verifier accepts loops whose end it cannot see.
 */
#define can_loop                                                                                   \
	({                                                                                         \
		__label__ over, on;                                                                \
		int again = 1;                                                                     \
		asm volatile goto("1: .byte 0xe5; .byte 0; .long ((%l[over] - 1b - 8) / 8) & 0xffff; " \
				  ".short 0" ::::over);                                            \
		goto on;                                                                           \
	over:                                                                                      \
		again = 0;                                                                         \
	on:;                                                                                       \
		again;                                                                             \
	})
#else
#define can_loop 1 /* in user space, for tests */
#endif

#endif
