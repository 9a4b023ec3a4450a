// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The kernel's interface for programs (bpf-helpers(7)), under short names. It needs the kernel's own headers
// only.
#pragma once

#include <linux/bpf.h>

#define SECTION(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
// Members of a map's definition, which loaders read from its type.
#define MAP_NUMBER(name, value) int(*name)[value]
#define MAP_TYPE(name, type) __typeof__(type) *name

// Tests define it otherwise, to run the programs outside the kernel (tests/vectors.c).
#ifndef HELPER
#define HELPER(result, name, number, ...) static result (*const name)(__VA_ARGS__) = (void *)number
#endif

HELPER(void *, map_lookup, BPF_FUNC_map_lookup_elem, void *map, const void *key);
HELPER(long, map_update, BPF_FUNC_map_update_elem, void *map, const void *key, const void *value, __u64 flags);
HELPER(long, map_delete, BPF_FUNC_map_delete_elem, void *map, const void *key);
HELPER(__u64, clock_ns, BPF_FUNC_ktime_get_ns, void);
HELPER(long, packet_store, BPF_FUNC_skb_store_bytes, struct __sk_buff *skb, __u32 at, const void *from, __u32 length,
       __u64 flags);
// Reads all fragments of a packet: most of a superpacket is not contiguous with its headers.
HELPER(long, packet_load, BPF_FUNC_skb_load_bytes, const struct __sk_buff *skb, __u32 at, void *to, __u32 length);
HELPER(long, checksum_replace, BPF_FUNC_l4_csum_replace, struct __sk_buff *skb, __u32 at, __u64 from, __u64 to,
       __u64 flags);
// The verifier checks a step once, however often it runs. A step that returns other than 0 is the last.
HELPER(long, repeat, BPF_FUNC_loop, __u32 times, void *step, void *context, __u64 flags);
HELPER(long, lock, BPF_FUNC_spin_lock, struct bpf_spin_lock *lock);
HELPER(long, unlock, BPF_FUNC_spin_unlock, struct bpf_spin_lock *lock);
HELPER(void *, ring_reserve, BPF_FUNC_ringbuf_reserve, void *ring, __u64 size, __u64 flags);
HELPER(void, ring_submit, BPF_FUNC_ringbuf_submit, void *record, __u64 flags);
HELPER(void, ring_discard, BPF_FUNC_ringbuf_discard, void *record, __u64 flags);

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define network16(value) __builtin_bswap16(value)
#define network32(value) __builtin_bswap32(value)
#else
#define network16(value) ((__u16)(value))
#define network32(value) ((__u32)(value))
#endif
