/* SPDX-License-Identifier: Apache-2.0 */
/* The macros of libbpf's headers for a program that a test compiles for user space (fair.c, edt.c, sparse.c). */
#ifndef WEIR_USER_SPACE_H
#define WEIR_USER_SPACE_H

#pragma clang diagnostic ignored "-Wunknown-attributes" /* of BPF */

#define __BPF_HELPERS__
#define __BPF_CORE_READ_H__
#define __BPF_TRACING_H__
#define SEC(name)
#define __uint(name, value) int(*name)[value]
#define __type(name, value) value *name
#undef __always_inline
#define __always_inline inline __attribute__((always_inline))
#define __noinline __attribute__((noinline))
#define __kptr
#define __ksym
#define barrier_var(value)
#define NULL ((void *)0)
#define BPF_PROG(name, ...) name(__VA_ARGS__)
#define bpf_core_field_exists(field) 0

#endif
