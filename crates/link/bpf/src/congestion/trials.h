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

#endif
