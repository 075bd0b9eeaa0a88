/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The classifier's programs for tests (classifier_tests.rs). BPF_PROG_TEST_RUN neither sets nor returns
 * skb->tc_index. Here it comes in one word of skb->cb and leaves in another one.
 */
#include "classify.bpf.c"

#define CHECK_CB_IN 3  /* skb->tc_index, and CHECK_TAG */
#define CHECK_CB_OUT 4
#define CHECK_TAG 0x10000 /* The packet has a VLAN tag beside its bytes, as adapters give it. */

#define CHECK(program)                                                                \
	SEC("tc")                                                                     \
	__attribute__((flatten)) int check_##program(struct __sk_buff *skb)           \
	{                                                                             \
		int verdict;                                                          \
                                                                                      \
		if (skb->cb[CHECK_CB_IN] & CHECK_TAG)                                 \
			bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), 5);            \
		skb->tc_index = skb->cb[CHECK_CB_IN];                                 \
		verdict = weir_##program(skb);                                        \
		skb->cb[CHECK_CB_OUT] = skb->tc_index;                                \
		return verdict;                                                       \
	}

CHECK(port)
CHECK(port_match)
CHECK(uplink)

/*
 * A packet enters a tunnel, with skb->tc_index from skb->cb. Its hash comes back there.
 */
SEC("tc")
__attribute__((flatten)) int check_tunnel(struct __sk_buff *skb)
{
	int verdict;

	skb->tc_index = skb->cb[CHECK_CB_IN];
	verdict = weir_tunnel(skb);
	skb->cb[CHECK_CB_OUT] = skb->hash;
	return verdict;
}

/* A packet leaves by the uplink with the hash in skb->cb. Its skb->tc_index comes back there. */
SEC("tc")
__attribute__((flatten)) int check_outer(struct __sk_buff *skb)
{
	int verdict;

	bpf_set_hash(skb, skb->cb[CHECK_CB_IN]);
	verdict = weir_uplink(skb);
	skb->cb[CHECK_CB_OUT] = skb->tc_index;
	return verdict;
}
