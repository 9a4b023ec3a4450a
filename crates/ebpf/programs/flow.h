// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The state of a connection whose sequence numbers are compacted, the maps shared with user space, and the
// conversion between its two scales: offsets and places (see unifl.c).
#pragma once

#include "frames.h"
#include "recovery.h"

// Holes that are remembered for each flow; a power of two.
enum { HOLES = 256, HOLES_LOG = 8 };
enum { FLOWS = 4096, OPENINGS = 4096, RING_BYTES = 1 << 20 };
// Critical ranges of an update, for each flow.
enum { CRITICAL = 64 };
// The largest hole that is masked. It bounds what one forged segment can mask.
enum { LARGEST_HOLE = 1 << 20 };
// Times are in microseconds. The minimum of a measurement is kept for the current span and the one before.
enum { SPAN = 4096 };
// TCX_NEXT passes the packet to other programs; TC_ACT_SHOT drops it.
enum { PASS = -1, DROP = 2 };
enum { MILLIONTHS = 1000000, MILLISECOND = 1000 };
enum { ENDED_INWARD = 1, ENDED_OUTWARD = 2, ENDED = 3 };
// More than any measurement.
#define UNKNOWN (~0ULL >> 1)

// What the handshake said; kept until the connection is accepted.
struct opening {
	// Sequence number of the stream's first byte.
	__u32 first;
	// Our window shift, and the largest segment that we take.
	__u16 scale;
	__u16 largest;
};

// What user space wants for a flow. It is replaced as a whole.
struct wish {
	// Bytes that the remote end may send beyond the highest that has come; 0 leaves the window to the kernel.
	__u32 window;
	// Share of an update that may be masked, in millionths.
	__u32 budget;
	// The position in the frames, if user space knows a later header.
	struct frames frames;
	// Microseconds per tick of the remote end's clock; 0 while unknown.
	__u64 tick;
	__u32 scale;
	// Bytes of an update that may be masked before the budget counts as a share of what has come.
	__u32 first;
	// Minimum RTT; 0 while unknown.
	__u64 trip;
};

// Critical ranges, ascending, as offsets in the update.
struct critical {
	__u64 count;
	struct {
		__u64 start;
		__u64 end;
	} ranges[CRITICAL];
};

// A masked hole: one past its last offset, and the bytes masked up to there.
struct hole {
	__u64 end;
	__u64 masked;
};

// Minimum RTT and one-way delay (by two clocks) of a span.
struct least {
	__u64 span;
	__u64 trip;
	__s64 way;
};

// One connection. User space reads it up to `history` (crates/transports/unifl/src/ebpf/layout.rs).
struct flow {
	struct bpf_spin_lock lock;
	__u32 first;
	// One past the highest offset that has come.
	__u64 high;
	// Bytes that have come; masked bytes; bytes of holes left to the kernel; bytes that came too late for their
	// hole.
	__u64 delivered;
	__u64 masked;
	__u64 missed;
	__u64 late;
	// Number of masked holes.
	__u64 holes;
	struct frames frames;
	// Of the current update: bytes masked, and bytes of holes left to the kernel.
	__u64 update_masked;
	__u64 update_missed;
	__u64 ended;
	// The remote end's clock: when it was first seen, what it said then, and what it said last.
	__u64 clock_at;
	__u32 clock;
	__u32 stamp;
	struct least least[2];
	// One past the highest offset acknowledged; right edge of the advertised window.
	__u64 acked;
	__u64 right_edge;
	// When we last sent a segment, and the timestamp in it.
	__u64 sent_at;
	__u64 sent_stamp;
	// One past the last hole left to the kernel: up to there, acknowledged bytes were retransmitted.
	__u64 gap;
	// When data last came, and when the highest offset last rose.
	__u64 came_at;
	__u64 grew_at;
	struct repair repair;
	// Bytes masked before the oldest remembered hole.
	__u64 base;
	struct hole history[HOLES];
};

// Event: a hole was masked. `place`: its position in the stream that the kernel delivers.
struct event {
	struct tuple tuple;
	// Number among all holes of the flow, from 1: several processors may report in another order.
	__u32 number;
	__u64 place;
	__u64 length;
};

struct {
	MAP_NUMBER(type, BPF_MAP_TYPE_HASH);
	MAP_NUMBER(max_entries, FLOWS);
	MAP_TYPE(key, struct tuple);
	MAP_TYPE(value, struct flow);
} flows SECTION(".maps");

struct {
	MAP_NUMBER(type, BPF_MAP_TYPE_HASH);
	MAP_NUMBER(max_entries, FLOWS);
	MAP_TYPE(key, struct tuple);
	MAP_TYPE(value, struct wish);
} wishes SECTION(".maps");

// For flows with critical ranges. Few have any, so entries are allocated on demand.
struct {
	MAP_NUMBER(type, BPF_MAP_TYPE_HASH);
	MAP_NUMBER(max_entries, FLOWS);
	MAP_NUMBER(map_flags, BPF_F_NO_PREALLOC);
	MAP_TYPE(key, struct tuple);
	MAP_TYPE(value, struct critical);
} criticals SECTION(".maps");

struct {
	MAP_NUMBER(type, BPF_MAP_TYPE_LRU_HASH);
	MAP_NUMBER(max_entries, OPENINGS);
	MAP_TYPE(key, struct tuple);
	MAP_TYPE(value, struct opening);
} openings SECTION(".maps");

struct {
	MAP_NUMBER(type, BPF_MAP_TYPE_RINGBUF);
	MAP_NUMBER(max_entries, RING_BYTES);
} events SECTION(".maps");

// The served port in network order; 0 for none.
struct {
	MAP_NUMBER(type, BPF_MAP_TYPE_ARRAY);
	MAP_NUMBER(max_entries, 1);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, __u32);
} served SECTION(".maps");

INLINE __u16 served_port(void)
{
	const __u32 first = 0, *port = map_lookup(&served, &first);

	return port ? *port : 0;
}

INLINE __s64 offset_of(const struct flow *flow, __u32 sequence)
{
	return (__s64)flow->high + (__s32)(sequence - flow->first - (__u32)flow->high);
}

INLINE __s64 place_of(const struct flow *flow, __u32 sequence)
{
	__u64 high = flow->high - flow->masked;

	return (__s64)high + (__s32)(sequence - flow->first - (__u32)high);
}

INLINE const struct hole *hole_at(const struct flow *flow, __u64 number)
{
	return &flow->history[number & (HOLES - 1)];
}

INLINE __u64 oldest_hole(const struct flow *flow)
{
	return flow->holes > HOLES ? flow->holes - HOLES : 0;
}

// The end of a hole, as an offset or as a place.
INLINE __s64 hole_end(const struct flow *flow, __u64 number, int is_place)
{
	const struct hole *hole = hole_at(flow, number);

	return is_place ? hole->end - hole->masked : hole->end;
}

// The number of the first hole that ends beyond `at`, an offset or a place.
INLINE __u64 first_behind(const struct flow *flow, __s64 at, int is_place)
{
	__u64 least = oldest_hole(flow), most = flow->holes;

	// Mostly `at` is beyond all holes.
	if (least == most || hole_end(flow, most - 1, is_place) <= at)
		return most;
	for (int step = 0; step <= HOLES_LOG; step++) {
		__u64 middle = (least + most) / 2;
		if (least >= most)
			break;
		if (hole_end(flow, middle, is_place) <= at)
			least = middle + 1;
		else
			most = middle;
	}
	return least;
}

// Bytes masked before a hole.
INLINE __u64 masked_before(const struct flow *flow, __u64 number)
{
	return number > oldest_hole(flow) ? hole_at(flow, number - 1)->masked : flow->base;
}

// By how many bytes a segment moves. `crosses`: it has bytes of a hole; then it moves far enough to look old.
INLINE __u64 shift_of(const struct flow *flow, __s64 start, __s64 end, int *crosses)
{
	__u64 behind = first_behind(flow, start, 0), masked = masked_before(flow, behind);
	const struct hole *next = hole_at(flow, behind);

	// In places, a hole has no length: it begins at its place, plus the bytes masked before it.
	*crosses = behind < flow->holes && (__s64)(next->end - next->masked + masked) < end;
	return *crosses ? flow->masked : masked;
}

// The offset of a place. The place of a hole stands for the end of the hole.
INLINE __s64 unmask(const struct flow *flow, __s64 place)
{
	return place + (__s64)masked_before(flow, first_behind(flow, place, 1));
}
