/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel's structures as programs for sockets see them: the used parts, found by their names
 * (CO-RE), and the numbers of options that no header has.
 */
#ifndef WEIR_SOCKETS_H
#define WEIR_SOCKETS_H

#include <linux/types.h>

#define AF_INET 2
#define AF_INET6 10
#define SOL_SOCKET 1
#define SO_MAX_PACING_RATE 47
#define TCP_CONGESTION 13
#define CB_FLAGS 1008		/* TCP_BPF_SOCK_OPS_CB_FLAGS, kernel 6.12 */

#define ESTABLISHED 1
#define FIN_WAIT2 5
#define TIME_WAIT 6
#define CLOSED 7
#define CLOSE_WAIT 8
#define LISTEN 10

#define WEIR_LEVELS 8		/* depths of the cgroup tree that are looked at, as in intf.h */

struct kernfs_node {
	__u64 id;
} __attribute__((preserve_access_index));
struct cgroup {
	struct kernfs_node *kn;
	int level;
	struct cgroup *ancestors[WEIR_LEVELS + 1];
} __attribute__((preserve_access_index));
struct sock_cgroup_data {
	struct cgroup *cgroup;
} __attribute__((preserve_access_index));
struct net {
	__u64 net_cookie;
} __attribute__((preserve_access_index));
typedef struct {
	struct net *net;
} __attribute__((preserve_access_index)) possible_net_t;
struct in6_addr {
	__u8 bytes[16];
};
struct sock_common {
	__be32 skc_daddr;
	struct in6_addr skc_v6_daddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	unsigned char skc_state;
	possible_net_t skc_net;
} __attribute__((preserve_access_index));
struct sock {
	struct sock_common __sk_common;
	struct sock_cgroup_data sk_cgrp_data;
} __attribute__((preserve_access_index));
struct tcp_congestion_ops {
	char name[16];
} __attribute__((preserve_access_index));
struct inet_connection_sock {
	const struct tcp_congestion_ops *icsk_ca_ops;
} __attribute__((preserve_access_index));
struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 snd_cwnd_clamp;
	__u64 bytes_sent;
	__u64 bytes_retrans;
	__u64 bytes_acked;
} __attribute__((preserve_access_index));
struct bpf_iter_meta;
struct bpf_iter__tcp {
	union {
		struct bpf_iter_meta *meta;
		__u64 : 64;
	} __attribute__((aligned(8)));
	union {
		struct sock_common *sk_common;
		__u64 : 64;
	} __attribute__((aligned(8)));
} __attribute__((preserve_access_index));

#endif
