// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// What is kept of a connection whose sequence numbers are compacted, what is shared with user space, and the way between
// its two scales: offsets and places (unifl.c).
#pragma once

#include "frames.h"
#include "recovery.h"

// Holes of a flow that are remembered; a power of two.
enum { HOLES = 256, HOLES_LOG = 8 };
enum { FLOWS = 4096, OPENINGS = 4096, RING_BYTES = 1 << 20 };
// Ranges of an update that must come, of one flow.
enum { CRITICAL = 64 };
// The largest hole that is masked. It bounds what one forged segment can mask.
enum { LARGEST_HOLE = 1 << 20 };
// Times are in microseconds. The least of a measure is kept for the span that passes, and the one before.
enum { SPAN = 4096 };
// TCX_NEXT lets other programs have the packet; TC_ACT_SHOT drops it.
enum { PASS = -1, DROP = 2 };
enum { MILLIONTHS = 1000000, MILLISECOND = 1000 };
enum { ENDED_INWARD = 1, ENDED_OUTWARD = 2, ENDED = 3 };
// More than any measure.
#define UNKNOWN (~0ULL >> 1)

// What a handshake said, until the connection is accepted.
struct opening {
	// Sequence number of the stream's first byte.
	__u32 first;
	// Of our window, and the largest segment we take.
	__u16 scale;
	__u16 largest;
};

// What user space wants of a flow. Replaced as a whole.
struct wish {
	// Bytes beyond the highest that has come which the remote end may send; 0 leaves the window to the kernel.
	__u32 window;
	// Share of an update that may be masked, in millionths.
	__u32 budget;
	// Where in the frames the stream is, if user space knows of a later header.
	struct frames frames;
	// Microseconds of a tick of the remote end's clock; 0 while unknown.
	__u64 tick;
	__u32 scale;
	// Bytes of an update that may be masked before they are a share of what has come.
	__u32 first;
	// The least round trip; 0 while unknown.
	__u64 trip;
};

// Bytes of updates that must come, by rising offset in the update.
struct critical {
	__u64 count;
	struct {
		__u64 start;
		__u64 end;
	} ranges[CRITICAL];
};

// A masked hole: the offset behind it, and how many bytes are masked in front of that.
struct hole {
	__u64 end;
	__u64 masked;
};

// The least of a round trip and of a time on the way, by two clocks, within a span.
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
	// Bytes that have come, masked bytes, bytes of holes that were left alone, bytes that came too late for their hole.
	__u64 delivered;
	__u64 masked;
	__u64 missed;
	__u64 late;
	// Holes masked.
	__u64 holes;
	struct frames frames;
	// Of the update that is coming: bytes masked, bytes of holes left alone.
	__u64 update_masked;
	__u64 update_missed;
	__u64 ended;
	// The remote end's clock: when first seen, what it said then, and what it said last.
	__u64 clock_at;
	__u32 clock;
	__u32 stamp;
	struct least least[2];
	// One past the highest offset acknowledged; the right edge of the window as it was advertised.
	__u64 acked;
	__u64 right_edge;
	// Our own clock when a segment was last sent.
	__u64 sent_at;
	__u64 sent_stamp;
	// The offset behind the last hole that was left alone: what is acknowledged up to there is repaired.
	__u64 gap;
	// When something came, and something new.
	__u64 came_at;
	__u64 grew_at;
	struct repair repair;
	// Bytes masked in front of the oldest hole that is remembered.
	__u64 base;
	struct hole history[HOLES];
};

// A hole was masked. `place`: between which bytes that the kernel hands out it is.
struct event {
	struct tuple tuple;
	// Of all holes of the flow, from 1: several processors may tell of theirs in another order.
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

// Of flows that have some. Few do, so their place is not taken beforehand.
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

// Which port is served, in network order; none while it is 0.
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

// Where a hole ends: as an offset, or as a place.
INLINE __s64 hole_end(const struct flow *flow, __u64 number, int is_place)
{
	const struct hole *hole = hole_at(flow, number);

	return is_place ? hole->end - hole->masked : hole->end;
}

// The number of the first hole that ends behind `at`: an offset, or a place.
INLINE __u64 first_behind(const struct flow *flow, __s64 at, int is_place)
{
	__u64 least = oldest_hole(flow), most = flow->holes;

	// Mostly it is behind all.
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

// How many bytes are masked in front of a hole.
INLINE __u64 masked_before(const struct flow *flow, __u64 number)
{
	return number > oldest_hole(flow) ? hole_at(flow, number - 1)->masked : flow->base;
}

// By how many bytes a segment moves. Whether it has bytes of a hole: then by as many as make it old.
INLINE __u64 shift_of(const struct flow *flow, __s64 start, __s64 end, int *crosses)
{
	__u64 behind = first_behind(flow, start, 0), masked = masked_before(flow, behind);
	const struct hole *next = hole_at(flow, behind);

	// A hole begins where it is a place, and what is masked in front of it.
	*crosses = behind < flow->holes && (__s64)(next->end - next->masked + masked) < end;
	return *crosses ? flow->masked : masked;
}

// The offset that a place stands for. Between the two ends of a hole it is the end.
INLINE __s64 unmask(const struct flow *flow, __s64 place)
{
	return place + (__s64)masked_before(flow, first_behind(flow, place, 1));
}
