/* SPDX-License-Identifier: Apache-2.0 */
/* Networks in which some connections try another algorithm than their rule's (weir_cc::Trial). */
#ifndef WEIR_CONGESTION_TRIALS_H
#define WEIR_CONGESTION_TRIALS_H

#include "congestion.h"

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 64);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct weir_cc_trial_key);
	__type(value, struct weir_cc_trial);
} weir_cc_trials SEC(".maps");

struct draws { /* of a slot */
	struct bpf_spin_lock lock;
	__u32 closed;		/* the turn that has no part in the trial any more; 0: none */
	__u64 drawn;		/* since the program was loaded */
};

/* Only the program writes it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEIR_CC_SLOTS);
	__type(key, __u32);
	__type(value, struct draws);
} weir_cc_draws SEC(".maps");

/* Slot -> the greatest number of draws that there may be. Only user space writes it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEIR_CC_SLOTS);
	__type(key, __u32);
	__type(value, __u64);
} weir_cc_limits SEC(".maps");

/* No one judges a trial while user space is silent. */
#define TRIAL_SILENT_NS 10000000000ULL

/* The trial in which a connection begins; none if it has no part in one. */
static __always_inline const struct weir_cc_trial *trial_of(const struct weir_cc_config *cfg, __u8 version,
							    const __u8 *address,
							    const struct weir_cc_rule *rule)
{
	struct weir_cc_trial_key key = { .prefix_len_bits = WEIR_CC_TRIAL_BITS + 128, .version = version };
	const struct weir_cc_trial *trial;

	if (!cfg->trials || bpf_ktime_get_ns() - cfg->alive_ns > TRIAL_SILENT_NS)
		return NULL;
	__builtin_memcpy(key.address, address, sizeof(key.address));
	trial = bpf_map_lookup_elem(&weir_cc_trials, &key);
	return trial && rule && rule->rank > trial->rank ? NULL : trial;
}

/*
 * Draws a connection, or does not: WEIR_CC_TRIED, WEIR_CC_DRAWN or 0. -1: there is no room for it, and the rest of the
 * turn has no part in the trial. A later draw of the turn would meet another part of a burst.
 */
static __always_inline int draw(const struct weir_cc_trial *trial)
{
	int is_lucky = bpf_get_prandom_u32() < trial->share, is_open;
	__u32 slot = trial->slot, turn = trial->turn;
	struct draws *draws = bpf_map_lookup_elem(&weir_cc_draws, &slot);
	__u64 *most = bpf_map_lookup_elem(&weir_cc_limits, &slot), limit;

	if (!draws || !most)
		return -1;
	limit = *most;
	bpf_spin_lock(&draws->lock);
	is_open = draws->closed != turn;
	if (is_open && is_lucky) {
		if (draws->drawn < limit)
			draws->drawn++;
		else {
			draws->closed = turn;
			is_open = 0;
		}
	}
	bpf_spin_unlock(&draws->lock);
	if (!is_open)
		return -1;
	if (!is_lucky)
		return 0;
	return trial->tries ? WEIR_CC_TRIED : WEIR_CC_DRAWN;
}

#endif
