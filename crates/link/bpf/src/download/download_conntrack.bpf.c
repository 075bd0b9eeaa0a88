/* SPDX-License-Identifier: Apache-2.0 */
/* The download's programs for kernels where programs may ask conntrack. */
#define WEIR_CONNTRACK
#include "download.bpf.c"
