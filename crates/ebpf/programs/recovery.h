// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// A model of the sender's recovery, and the timestamp to echo so that the sender undoes its reduction at the
// end of the recovery, and not earlier. The rules and reasons are those of crates/masking/src/recovery.rs and
// stamps.rs.
#pragma once

#include "helpers.h"

// Times in microseconds. OLDEST_ECHO: the greatest age of an echo that undoes a reduction, since the sender
// takes its age for a round trip (RFC 7323, section 4.1). AGED_ECHO: the same if the sender may depend on its
// retransmission timer. TIMEOUT: a silence in which that timer may have run out; TWICE: one in which it may
// have run out twice.
enum { OLDEST_ECHO = 600000, AGED_ECHO = 200000, TIMEOUT = 200000, TWICE = 500000 };
// Two timestamps are near if they differ by at most this many ticks.
enum { NEAR = 16 };

// Recovery of a sender: holes are being retransmitted, or were until recently.
struct repair {
	__u32 active;
	// A retransmission has come: later data was sent after that.
	__u32 begun;
	// Our clock when the sender was told, or when the previous echo became too old.
	__u32 since;
	// The sender's newest two timestamps from before it was told.
	__u32 newest;
	__u32 second;
	// The newest timestamp but one.
	__u32 before_newest;
	// Our clock when the sender was told. If this recovery follows another: when that one may have ended at the
	// earliest, and at the latest.
	__u32 told_first;
	__u32 told_last;
	// The timestamp of the first retransmission that has come, if any.
	__u32 is_repaired;
	__u32 repaired;
	// If the recovery may have ended: our clock then, and one past the highest byte then.
	__u32 is_over;
	__u32 over;
	__u64 over_high;
	// One past the last byte acknowledged when the sender was told; lower and upper bound of the recovery point:
	// one past the last byte that had certainly been sent by then, and that may have been.
	__u64 from;
	__u64 surely;
	__u64 perhaps;
	// The longest silence in this recovery.
	__u64 waited;
	// After a silence: the timestamp that the next acknowledgement echoes.
	__u32 woke;
	__u32 is_awake;
};

INLINE int precedes(__u32 one, __u32 other)
{
	return (__s32)(one - other) < 0;
}

// Starts tracking a sender: our timestamp, its ACK, its highest byte.
INLINE void tell(struct repair *r, __u32 first, __u32 last, __u64 from, __u64 high)
{
	r->told_first = first;
	r->told_last = last;
	r->from = from;
	r->surely = r->perhaps = high;
	r->is_repaired = r->is_over = 0;
}

// The sender is about to hear of a hole. `newest`: its newest timestamp.
INLINE void begin(struct repair *r, __u32 clock, __u32 newest, __u64 acked, __u64 high)
{
	r->active = 1;
	r->begun = 0;
	r->since = clock;
	r->newest = newest;
	r->second = r->before_newest;
	tell(r, clock, clock, acked, high);
}

// A segment up to `end` has come, with these timestamps. `fills`: it is a retransmission.
INLINE void note(struct repair *r, __u32 value, __u32 echo, __u64 end, int fills)
{
	// Data that echoes the very tick was sent before too, if it comes before any retransmission.
	int same = echo == r->told_first && !r->is_repaired && !fills;

	if (precedes(echo, r->told_first) || same) {
		if (end > r->surely)
			r->surely = end;
	} else if (fills && !r->is_repaired && !precedes(echo, r->told_last)) {
		r->is_repaired = 1;
		r->repaired = value;
	}
	// Within one clock tick, either may have been sent first.
	if (end > r->perhaps && (!r->is_repaired || !precedes(r->repaired + 1, value)))
		r->perhaps = end;
}

// Does the same, and records which timestamps are from before the first retransmission. `clock`: ours.
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

// Data has come after a silence, so it may be a retransmission after a timeout; after a long silence, possibly
// the second. `newest`: the timestamp before it; `tick`: microseconds per tick of the sender's clock, 0 while
// unknown.
INLINE void wake(struct repair *r, __u64 silence, __u32 newest, __u32 value, __u64 tick, __u64 trip)
{
	__u32 first = newest + (__u32)(tick ? TIMEOUT / tick : 0);

	if (!tick || silence < TWICE + trip || !precedes(first, value))
		first = value;
	r->woke = first - 1;
	r->is_awake = 1;
}

// A timestamp before anything that the sender sent after it was told.
INLINE __u32 needless(const struct repair *r)
{
	int near = r->newest != r->second && r->newest - r->second <= NEAR;

	return near ? r->second : r->newest - 1;
}

// Whether an ACK up to `acked` may end the recovery, or repeats one that may have done so.
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

// Ends the recovery at an ACK up to `acked`, if that is certain. If something is missing, the next one begins.
INLINE void pass(struct repair *r, __u32 clock, __u64 acked, int missing)
{
	if (!r->is_over || acked < r->perhaps)
		return;
	if (missing)
		tell(r, r->over, clock, acked, r->over_high);
	else
		r->active = 0;
}

// The timestamp that an ACK echoes during recovery. `newest`: the sender's newest timestamp. `repairs_most`:
// more lost bytes were retransmitted than masked. `goes_on`: the sender has more to send.
INLINE __u32 echo_repair(struct repair *r, __u32 clock, __u32 newest, __u64 acked, __u64 high, int missing,
			 int repairs_most, int goes_on, __u64 trip)
{
	__u64 age = (__u64)(clock - r->since) * 1000, oldest = 4 * trip > AGED_ECHO ? 4 * trip : AGED_ECHO;

	if (repairs_most) {
		// A sender that never leaves recovery undoes it at each partial ACK.
		r->active = missing && goes_on;
		return goes_on || !missing ? needless(r) : newest;
	}
	int ends = may_end(r, clock, acked, high);
	pass(r, clock, acked, missing);
	// The older the echo, the longer the retransmission timer, which may have to run out.
	int aged = !goes_on && age > oldest + r->waited;
	return ends && !aged ? needless(r) : newest;
}
