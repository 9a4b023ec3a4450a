// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// A sender's recovery as it can be told from here, and what is echoed so that it undoes its reduction where that ends, and
// not before: as crates/masking/src/recovery.rs and stamps.rs do, which say why.
#pragma once

#include "helpers.h"

// Times, in microseconds: how old an echo may become that undoes a reduction, since the sender takes its age for a round
// trip (RFC 7323, section 4.1); how old where the sender's timer may have to run out; a silence in which that may have run
// out, and one in which it may have twice.
enum { OLDEST_ECHO = 600000, AGED_ECHO = 200000, TIMEOUT = 200000, TWICE = 500000 };
// Ticks between two timestamps that are near.
enum { NEAR = 16 };

// Holes that are repaired, or were until not long ago.
struct repair {
	__u32 active;
	// Something has been repaired: the rest was sent after that.
	__u32 begun;
	// Our clock when the sender was told, or when the echo before this had become too old.
	__u32 since;
	// The sender's newest two timestamps from before it heard.
	__u32 newest;
	__u32 second;
	// The newest but one that has come.
	__u32 before_newest;
	// Our clock when it was told, or when the recovery before may have ended first, and at last.
	__u32 told_first;
	__u32 told_last;
	// The sender's clock at the first of its repairs that has come, if one has.
	__u32 is_repaired;
	__u32 repaired;
	// Our clock when this may have been over, if it may, and one past the last byte that had come then.
	__u32 is_over;
	__u32 over;
	__u64 over_high;
	// One past the last byte acknowledged when it was told; that was surely sent by its beginning; that may have been.
	__u64 from;
	__u64 surely;
	__u64 perhaps;
	// The longest silence in it.
	__u64 waited;
	// What the next acknowledgement echoes, after a silence.
	__u32 woke;
	__u32 is_awake;
};

INLINE int precedes(__u32 one, __u32 other)
{
	return (__s32)(one - other) < 0;
}

// The recovery of a sender that is told, by our clock, when so much is acknowledged and has come.
INLINE void tell(struct repair *r, __u32 first, __u32 last, __u64 from, __u64 high)
{
	r->told_first = first;
	r->told_last = last;
	r->from = from;
	r->surely = r->perhaps = high;
	r->is_repaired = r->is_over = 0;
}

// The sender hears of a hole. `newest`: its newest timestamp.
INLINE void begin(struct repair *r, __u32 clock, __u32 newest, __u64 acked, __u64 high)
{
	r->active = 1;
	r->begun = 0;
	r->since = clock;
	r->newest = newest;
	r->second = r->before_newest;
	tell(r, clock, clock, acked, high);
}

// A segment has come, up to `end`, with these timestamps. `fills`: it is a repair.
INLINE void note(struct repair *r, __u32 value, __u32 echo, __u64 end, int fills)
{
	// What echoes the very tick was sent before too if it comes before any repair.
	int same = echo == r->told_first && !r->is_repaired && !fills;

	if (precedes(echo, r->told_first) || same) {
		if (end > r->surely)
			r->surely = end;
	} else if (fills && !r->is_repaired && !precedes(echo, r->told_last)) {
		r->is_repaired = 1;
		r->repaired = value;
	}
	// Within a tick of the clock either may be the first.
	if (end > r->perhaps && (!r->is_repaired || !precedes(r->repaired + 1, value)))
		r->perhaps = end;
}

// The same, and which timestamps are from before the first repair. `clock`: ours.
INLINE void hold(struct repair *r, __u32 clock, __u32 value, __u32 echo, __u64 end, int fills, __u64 trip)
{
	__u64 oldest = 4 * trip > OLDEST_ECHO ? 4 * trip : OLDEST_ECHO;

	if ((__u64)(clock - r->since) * 1000 > oldest) {
		r->since = clock;
		r->newest = r->second = value;
		r->begun = 0;
	} else if (!fills && !r->begun && precedes(echo, r->since) && precedes(r->newest, value)) {
		r->second = r->newest;
		r->newest = value;
	}
	r->begun |= fills;
	note(r, value, echo, end, fills);
}

// Data has come after a silence: perhaps what the sender's timer made it send again, a second time if the silence was long.
// `newest`: its timestamp before; `tick`: microseconds of its clock's, 0 while unknown.
INLINE void wake(struct repair *r, __u64 silence, __u32 newest, __u32 value, __u64 tick, __u64 trip)
{
	__u32 first = newest + (__u32)(tick ? TIMEOUT / tick : 0);

	if (!tick || silence < TWICE + trip || !precedes(first, value))
		first = value;
	r->woke = first - 1;
	r->is_awake = 1;
}

// Earlier than anything sent after the newest timestamp from before the sender heard.
INLINE __u32 needless(const struct repair *r)
{
	int near = r->newest != r->second && r->newest - r->second <= NEAR;

	return near ? r->second : r->newest - 1;
}

// Whether acknowledging all before `acked` may end the recovery, or repeats one that may have done so.
INLINE int may_end(struct repair *r, __u32 clock, __u64 acked, __u64 high)
{
	if (acked > r->from && acked < r->surely)
		return 0;
	if (acked >= r->surely && !r->is_over) {
		r->is_over = 1;
		r->over = clock;
		r->over_high = high;
	}
	return 1;
}

// What is left of it when all before `acked` is acknowledged: where something is missing, that begins the next.
INLINE void pass(struct repair *r, __u32 clock, __u64 acked, int missing)
{
	if (!r->is_over || acked < r->perhaps)
		return;
	if (missing)
		tell(r, r->over, clock, acked, r->over_high);
	else
		r->active = 0;
}

// What an acknowledgement echoes while something is repaired, or was until not long ago. `newest`: the sender's newest
// timestamp. `repairs_most`: more of what was lost is repaired than masked. `goes_on`: the sender has more to send.
INLINE __u32 echo_repair(struct repair *r, __u32 clock, __u32 newest, __u64 acked, __u64 high, int missing,
			 int repairs_most, int goes_on, __u64 trip)
{
	__u64 age = (__u64)(clock - r->since) * 1000, oldest = 4 * trip > AGED_ECHO ? 4 * trip : AGED_ECHO;

	if (repairs_most) {
		// A sender that never leaves recovery undoes it with each part.
		r->active = missing && goes_on;
		return goes_on || !missing ? needless(r) : newest;
	}
	int ends = may_end(r, clock, acked, high);
	pass(r, clock, acked, missing);
	// The older the echo, the longer a timer that may have to run out.
	int aged = !goes_on && age > oldest + r->waited;
	return ends && !aged ? needless(r) : newest;
}
