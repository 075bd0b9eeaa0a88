/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The address behind NAT of a flow that the kernel tracks: bpf_skb_ct_lookup, kernel 5.18, TCP and UDP.
 */
#ifndef WEIR_CONNTRACK_H
#define WEIR_CONNTRACK_H

union nf_inet_addr {
	__u32 all[4];
} __attribute__((preserve_access_index));
struct nf_conntrack_man {
	union nf_inet_addr u3;
	__u16 l3num;
} __attribute__((preserve_access_index));
struct nf_conntrack_tuple {
	struct nf_conntrack_man src;
} __attribute__((preserve_access_index));
struct nf_conntrack_tuple_hash {
	struct nf_conntrack_tuple tuple;
} __attribute__((preserve_access_index));
struct nf_conn {
	struct nf_conntrack_tuple_hash tuplehash[2];
} __attribute__((preserve_access_index));

struct bpf_ct_opts___weir { /* the fields of 5.18; later ones are optional */
	__s32 netns_id;
	__s32 error;
	__u8 l4proto;
	__u8 dir;
	__u8 reserved[2];
};
#define CURRENT_NETNS (-1)

extern struct nf_conn *bpf_skb_ct_lookup(struct __sk_buff *skb, struct bpf_sock_tuple *tuple, __u32 size,
					 struct bpf_ct_opts___weir *opts, __u32 opts_size) __ksym;
extern void bpf_ct_release(struct nf_conn *ct) __ksym;

/* The source of the flow's other direction. */
static __always_inline int tracked_address(struct __sk_buff *skb, const struct weir_fields *f,
					   struct weir_address *to)
{
	struct bpf_ct_opts___weir opts = { .netns_id = CURRENT_NETNS, .l4proto = f->protocol };
	struct bpf_sock_tuple tuple = {};
	const struct nf_conntrack_man *other;
	struct nf_conn *ct;
	__u32 words[4];

	if (f->protocol != IPPROTO_TCP && f->protocol != IPPROTO_UDP)
		return 0;
	if (f->version == 4) {
		__builtin_memcpy(&tuple.ipv4.saddr, f->source + 12, 4);
		__builtin_memcpy(&tuple.ipv4.daddr, f->destination + 12, 4);
		tuple.ipv4.sport = f->source_port;
		tuple.ipv4.dport = f->destination_port;
		ct = bpf_skb_ct_lookup(skb, &tuple, sizeof(tuple.ipv4), &opts, sizeof(opts));
	} else {
		__builtin_memcpy(tuple.ipv6.saddr, f->source, 16);
		__builtin_memcpy(tuple.ipv6.daddr, f->destination, 16);
		tuple.ipv6.sport = f->source_port;
		tuple.ipv6.dport = f->destination_port;
		ct = bpf_skb_ct_lookup(skb, &tuple, sizeof(tuple.ipv6), &opts, sizeof(opts));
	}
	if (!ct)
		return 0;
	other = opts.dir ? &ct->tuplehash[0].tuple.src : &ct->tuplehash[1].tuple.src;
	words[0] = other->u3.all[0];
	words[1] = other->u3.all[1];
	words[2] = other->u3.all[2];
	words[3] = other->u3.all[3];
	bpf_ct_release(ct);
	if (f->version == 4) {
		__builtin_memset(to, 0, sizeof(*to));
		mapped(to->bytes, &words[0]);
	} else {
		__builtin_memcpy(to, words, sizeof(*to));
	}
	return 1;
}

#endif
