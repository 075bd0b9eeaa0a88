/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The qdisc with qCon's scheduler as the paper has it, in an object of its own: a kernel that refuses its
 * timer refuses this form alone.
 */
#define WEIR_PAPER
#include "fair.bpf.c"
