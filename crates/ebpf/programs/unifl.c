// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// Sequence compaction: lost bytes are removed from the sequence numbers that the kernel's receiver sees. So an
// ordinary socket gets a stream without them, and its acknowledgements cover them as if they had come (UniFL,
// section 3).
//
// Inward, a segment behind a masked hole moves up to the byte before the hole. Outward, acknowledgements move
// back, and the window becomes the one that user space wants. A stream has two scales: *offsets*, as the remote
// end counts, and *places*, as the kernel counts. They differ by the number of bytes masked before that point,
// which is remembered for the last holes.
//
// A hole that is not masked is left to the kernel, which has it retransmitted like any loss. So if something is
// missing (memory for another hole, room in the ring, a header that was not seen), it only ever costs a
// retransmission.
#include "flow.h"

// ---- inward ----

// What a segment does to a flow.
struct turn {
	__u64 now;
	// Offsets of its first byte and behind its last; a FIN counts as one byte.
	__s64 start;
	__s64 end;
	// Frames: the position before; what is known of the part before the segment; the position after it.
	__u64 head;
	__u64 payload;
	struct frames known;
	struct frames then;
	// One past the highest offset before; whether the hole behind it may be masked, by what is known outside the
	// lock.
	__u64 high;
	int maskable;
	// By how many bytes the segment moves.
	__u64 shift;
	// The hole that was masked before it, if it has a length.
	__u32 number;
	__u64 place;
	__u64 length;
};

// Whether the hole before `start`, which is new, may be masked.
INLINE int may_mask(const struct flow *flow, const struct wish *wish, const struct frames *f, __u64 start, __u64 end)
{
	__u64 length = start - flow->high;

	if (flow->high < f->payload || start > f->head || length > LARGEST_HOLE || !f->update_from)
		return 0;
	// The oldest hole can be forgotten once everything around it is acknowledged.
	if (flow->holes >= HOLES && flow->history[flow->holes & (HOLES - 1)].end > flow->acked)
		return 0;
	__u64 most = (end - f->update_from) * wish->budget / MILLIONTHS;
	if (most < wish->first)
		most = wish->first;
	return flow->update_masked + length <= most;
}

// Whether bytes of the last chunk, from `start` to `end` of the stream, are critical.
INLINE int is_critical(const struct tuple *tuple, const struct frames *f, __u64 start, __u64 end)
{
	const struct critical *critical = map_lookup(&criticals, tuple);

	if (!critical)
		return 0;
	__u64 from = f->offset + start - f->payload, to = f->offset + end - f->payload;
	for (int at = 0; at < CRITICAL; at++) {
		if (at >= critical->count)
			break;
		if (critical->ranges[at].start < to && from < critical->ranges[at].end)
			return 1;
	}
	return 0;
}

INLINE void mask(struct flow *flow, __u64 start)
{
	struct hole *slot = &flow->history[flow->holes & (HOLES - 1)];
	__u64 length = start - flow->high;

	if (flow->holes >= HOLES)
		flow->base = slot->masked;
	flow->masked += length;
	flow->update_masked += length;
	slot->end = start;
	slot->masked = flow->masked;
	flow->holes++;
}

// Leaves a hole to the kernel. The sender will slow down, until an acknowledgement undoes that (RFC 3522).
INLINE void leave(struct flow *flow, __u64 start)
{
	__u64 length = start - flow->high;

	flow->missed += length;
	flow->update_missed += length;
	flow->gap = start;
}

// Our clock in milliseconds: our last timestamp, and the time since then.
INLINE __u32 our_clock(const struct flow *flow, __u64 now)
{
	return (__u32)flow->sent_stamp + (__u32)((now - flow->sent_at) / MILLISECOND);
}

// Records what later acknowledgements echo. `grows`: the segment has bytes beyond all that had come.
INLINE void remember(struct flow *flow, const struct wish *wish, const struct segment *s, const struct turn *turn,
		     int grows, int fills)
{
	struct repair *repair = &flow->repair;
	__u64 silence = flow->came_at ? turn->now - flow->came_at : 0;

	if (!repair->active) {
		repair->waited = 0;
		if (grows && silence >= TIMEOUT)
			wake(repair, silence, flow->stamp, s->stamp, wish->tick, wish->trip);
	} else {
		if (silence >= TIMEOUT && silence > repair->waited)
			repair->waited = silence;
		hold(repair, our_clock(flow, turn->now), s->stamp, s->echo, turn->end, fills, wish->trip);
	}
}

// Measurements for the rate controller in user space.
INLINE void measure(struct flow *flow, const struct wish *wish, const struct segment *s, __u64 now)
{
	if (!s->stamped)
		return;
	if (!flow->clock_at) {
		flow->clock_at = now;
		flow->clock = flow->stamp = flow->repair.before_newest = s->stamp;
	}
	if (precedes(flow->stamp, s->stamp)) {
		flow->repair.before_newest = flow->stamp;
		flow->stamp = s->stamp;
	}
	__u64 span = now / SPAN;
	struct least *least = &flow->least[span & 1];
	if (least->span != span) {
		least->span = span;
		least->trip = UNKNOWN;
		least->way = UNKNOWN;
	}
	if (flow->sent_at) {
		__s32 trip = our_clock(flow, now) - s->echo;
		if (trip >= 0 && (__u64)trip * MILLISECOND < least->trip)
			least->trip = (__u64)trip * MILLISECOND;
	}
	if (wish->tick) {
		__s64 way = (__s64)(now - flow->clock_at) - (__s64)(__s32)(s->stamp - flow->clock) * (__s64)wish->tick;
		if (way < least->way)
			least->way = way;
	}
}

// Processes a SYN. An earlier connection with both ends closed is removed.
INLINE int open(const struct segment *s)
{
	struct opening opening = { .first = s->sequence + 1 };
	const struct flow *before = map_lookup(&flows, &s->tuple);

	if (before && before->ended == ENDED)
		map_delete(&flows, &s->tuple);
	map_update(&openings, &s->tuple, &opening, BPF_ANY);
	return PASS;
}

// Takes a segment with payload or FIN, at or beyond the highest offset.
INLINE void advance(struct flow *flow, const struct wish *wish, const struct segment *s, struct turn *turn)
{
	__u64 fresh = turn->end - (s->flags & FIN) - flow->high;

	if (turn->start > (__s64)flow->high) {
		__u64 gap = turn->start - flow->high;
		// Another processor may have advanced the flow meanwhile.
		int same = flow->frames.head == turn->head && flow->frames.payload == turn->payload && flow->high == turn->high;
		fresh -= gap;
		if (same && turn->maskable && may_mask(flow, wish, &turn->known, turn->start, turn->end)) {
			turn->place = flow->high - flow->masked;
			turn->length = gap;
			mask(flow, turn->start);
			turn->number = flow->holes;
		} else {
			leave(flow, turn->start);
		}
	}
	flow->delivered += fresh;
	flow->high = turn->end;
}

// Whether a segment that ends there is within the advertised window: the kernel drops others. If nothing was
// advertised since the flow was added, the window is that of the handshake.
INLINE int is_invited(const struct flow *flow, __s64 end)
{
	// A FIN needs no room.
	return !flow->right_edge || end <= (__s64)flow->right_edge + 1;
}

// Takes a segment while the lock is held.
INLINE int arrive(struct flow *flow, const struct wish *wish, const struct segment *s, struct turn *turn)
{
	int verdict = PASS, counts = turn->end > turn->start, crosses;

	if (s->flags & FIN)
		flow->ended |= ENDED_INWARD;
	if (s->flags & RST)
		flow->ended = ENDED;
	turn->shift = shift_of(flow, turn->start, turn->end, &crosses);
	if (counts && crosses) {
		// It has bytes of a masked hole. If it is old, the kernel acknowledges it again and takes none of it.
		flow->late += s->length;
		verdict = turn->end <= (__s64)flow->acked ? PASS : DROP;
	} else if (counts && is_invited(flow, turn->end)) {
		int grows = turn->end > (__s64)flow->high;
		if (grows)
			advance(flow, wish, s, turn);
		if (turn->length)
			turn->shift = flow->masked;
		if (s->stamped)
			remember(flow, wish, s, turn, grows, !grows && turn->start >= (__s64)flow->acked);
		flow->came_at = turn->now;
		if (grows)
			flow->grew_at = turn->now;
	}
	if (flow->frames.head == turn->head) {
		if (turn->then.update_from != flow->frames.update_from) {
			flow->update_masked = 0;
			flow->update_missed = 0;
		}
		flow->frames = turn->then;
	}
	measure(flow, wish, s, turn->now);
	return verdict;
}

INLINE int inward(struct __sk_buff *skb, __u32 link)
{
	struct segment s = {};

	if (!read_segment(skb, &s, link, served_port(), 1))
		return PASS;
	if (s.flags & SYN)
		return open(&s);
	struct flow *flow = map_lookup(&flows, &s.tuple);
	const struct wish *wish = map_lookup(&wishes, &s.tuple);
	if (!flow || !wish)
		return PASS;

	// Helpers cannot be called while the lock is held. What is read before is checked again after taking it.
	struct turn turn = { .now = clock_ns() / 1000, .known = flow->frames };
	turn.head = turn.known.head;
	turn.payload = turn.known.payload;
	turn.start = offset_of(flow, s.sequence);
	turn.end = turn.start + s.length + (s.flags & FIN);
	if (wish->frames.head > turn.head)
		turn.known = wish->frames;
	turn.then = s.length ? follow(skb, &s, turn.start, turn.known) : turn.known;
	struct event *event = 0;
	turn.high = flow->high;
	if (turn.end > turn.start && turn.start > (__s64)turn.high)
		event = ring_reserve(&events, sizeof *event, 0);
	turn.maskable = event && !is_critical(&s.tuple, &turn.known, turn.high, turn.start);

	lock(&flow->lock);
	int verdict = arrive(flow, wish, &s, &turn);
	unlock(&flow->lock);

	if (event && turn.length) {
		event->tuple = s.tuple;
		event->number = turn.number;
		event->place = turn.place;
		event->length = turn.length;
		ring_submit(event, BPF_RB_NO_WAKEUP);
	} else if (event) {
		ring_discard(event, BPF_RB_NO_WAKEUP);
	}
	if (verdict == PASS)
		replace32(skb, &s, TCP_SEQUENCE, s.sequence, s.sequence - (__u32)turn.shift);
	return verdict;
}

// ---- outward ----

// The window to advertise: what user space wants beyond the highest byte, but never less than was advertised
// before, nor more than the kernel has room for.
INLINE __u16 clamp(struct flow *flow, const struct wish *wish, __u16 window, __s64 acked)
{
	__u64 room = (__u64)window << (wish->scale & 15), right_edge = flow->high + wish->window;

	if (right_edge < flow->right_edge)
		right_edge = flow->right_edge;
	if (wish->window && right_edge - acked < room)
		window = (right_edge - acked + (1ULL << (wish->scale & 15)) - 1) >> (wish->scale & 15);
	__u64 said = acked + ((__u64)window << (wish->scale & 15));
	if (said > flow->right_edge)
		flow->right_edge = said;
	return window;
}

// The timestamp that an ACK echoes. During recovery it may say that a retransmission was needless, once the
// sender may undo its reduction.
INLINE __u32 echo(struct flow *flow, const struct wish *wish, const struct segment *s, __s64 acked, __u64 now)
{
	struct repair *repair = &flow->repair;
	int missing = acked < (__s64)flow->gap, goes_on = now - flow->grew_at < wish->trip;

	if (missing && !repair->active)
		begin(repair, s->stamp, flow->stamp, acked, flow->high);
	if (repair->active)
		return echo_repair(repair, s->stamp, flow->stamp, acked, flow->high, missing, flow->missed > flow->masked,
				   goes_on, wish->trip);
	if (!repair->is_awake)
		return s->echo;
	repair->is_awake = 0;
	return repair->woke;
}

struct edges {
	struct __sk_buff *skb;
	struct flow *flow;
	const struct segment *segment;
};

// Maps an edge of a SACK block. The kernel aligns them to four bytes.
static long map_edge(__u32 step, void *context)
{
	struct edges *e = context;
	const struct segment *s = e->segment;
	struct flow *flow = e->flow;
	__u32 raw = 0, at = s->sack + 4 * step;

	if (packet_load(e->skb, s->tcp + at, &raw, sizeof raw))
		return LAST;
	__u32 edge = network32(raw);
	lock(&flow->lock);
	__u32 mapped = flow->first + (__u32)unmask(flow, place_of(flow, edge));
	unlock(&flow->lock);
	replace32(e->skb, s, at, edge, mapped);
	return MORE;
}

INLINE int outward(struct __sk_buff *skb, __u32 link)
{
	struct segment s = {};

	if (!read_segment(skb, &s, link, served_port(), 0))
		return PASS;
	if (s.flags & SYN) {
		struct opening *opening = map_lookup(&openings, &s.tuple);
		if (opening) {
			opening->scale = s.scale;
			opening->largest = s.largest;
		}
		return PASS;
	}
	struct flow *flow = map_lookup(&flows, &s.tuple);
	const struct wish *wish = map_lookup(&wishes, &s.tuple);
	if (!flow || !wish)
		return PASS;

	__u64 now = clock_ns() / 1000;
	__u32 acknowledgement = s.acknowledgement, said = s.echo;
	__u16 window = s.window;
	lock(&flow->lock);
	if (s.flags & FIN)
		flow->ended |= ENDED_OUTWARD;
	if (s.flags & RST)
		flow->ended = ENDED;
	if (s.flags & ACK) {
		__s64 acked = unmask(flow, place_of(flow, s.acknowledgement));
		acknowledgement = flow->first + (__u32)acked;
		if (acked > (__s64)flow->acked)
			flow->acked = acked;
		if (!(s.flags & RST))
			window = clamp(flow, wish, s.window, acked);
		if (s.stamped) {
			said = echo(flow, wish, &s, acked, now);
			flow->sent_at = now;
			flow->sent_stamp = s.stamp;
		}
	}
	unlock(&flow->lock);

	replace32(skb, &s, TCP_ACKNOWLEDGEMENT, s.acknowledgement, acknowledgement);
	replace16(skb, &s, TCP_WINDOW, s.window, window);
	// The echo follows the timestamp.
	if (s.stamped)
		replace32(skb, &s, s.stamps + 4, s.echo, said);
	if (s.blocks && s.blocks <= BLOCKS && flow->holes) {
		struct edges edges = { .skb = skb, .flow = flow, .segment = &s };
		repeat(2 * s.blocks, map_edge, &edges, 0);
	}
	return PASS;
}

// ---- where they are attached: devices with Ethernet headers, and without any ----

enum { ETHERNET = 14, BARE = 0 };

SECTION("classifier/inward_ethernet") int inward_ethernet(struct __sk_buff *skb)
{
	return inward(skb, ETHERNET);
}

SECTION("classifier/inward_bare") int inward_bare(struct __sk_buff *skb)
{
	return inward(skb, BARE);
}

SECTION("classifier/outward_ethernet") int outward_ethernet(struct __sk_buff *skb)
{
	return outward(skb, ETHERNET);
}

SECTION("classifier/outward_bare") int outward_bare(struct __sk_buff *skb)
{
	return outward(skb, BARE);
}

// Only GPL programs may read the clock.
SECTION("license") char terms[] = "GPL";
