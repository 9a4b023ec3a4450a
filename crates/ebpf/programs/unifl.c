// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// Sequence compaction: bytes that were lost are taken out of the sequence numbers that the kernel's receiver sees, so that
// an ordinary socket gets a stream without them, and its acknowledgements speak of them as received (UniFL, section 3).
//
// Inward, a segment behind a hole that may be masked moves up to the byte before it. Outward, what is acknowledged moves
// back, and the window is what user space wants. A stream has two scales: *offsets*, as the remote end counts, and
// *places*, as the kernel does. From an offset to a place leads the number of bytes masked in front of it, of which the
// last holes are remembered: it is different in front of each.
//
// A hole that is not masked is left alone: the kernel has it repaired, as any loss. So whatever cannot be had (memory
// for another hole, room in the ring, a header that was not seen) only ever costs a repair.
#include "flow.h"

// ---- inward ----

// Whether the hole in front of `start`, which nothing else has been known of, may be masked.
INLINE int may_mask(const struct flow *flow, const struct wish *wish, const struct frames *f, __u64 start, __u64 end)
{
	__u64 length = start - flow->high;

	if (flow->high < f->payload || start > f->head || length > LARGEST_HOLE || !f->update_from)
		return 0;
	// The oldest hole can be forgotten once nobody asks for what is around it.
	if (flow->holes >= HOLES && flow->history[flow->holes & (HOLES - 1)].end > flow->acked)
		return 0;
	__u64 most = (end - f->update_from) * wish->budget / MILLIONTHS;
	return flow->update_masked + length <= most;
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

// A hole is left to the kernel. The sender will slow down, until an acknowledgement undoes that (RFC 3522).
INLINE void leave(struct flow *flow, __u64 start, __u64 now)
{
	__u64 length = start - flow->high;

	flow->missed += length;
	flow->update_missed += length;
	if (!flow->gap || now - flow->gap_at > OLDEST_ECHO) {
		flow->gap_at = now;
		flow->gap_stamp = flow->stamp;
	}
	flow->gap = start;
}

// What the rate controller of user space lives on.
INLINE void measure(struct flow *flow, const struct wish *wish, const struct segment *s, __u64 now)
{
	if (!s->stamped)
		return;
	if (!flow->clock_at) {
		flow->clock_at = now;
		flow->clock = flow->stamp = s->stamp;
	}
	if ((__s32)(s->stamp - flow->stamp) > 0)
		flow->stamp = s->stamp;
	__u64 span = now / SPAN;
	struct least *least = &flow->least[span & 1];
	if (least->span != span) {
		least->span = span;
		least->trip = UNKNOWN;
		least->way = UNKNOWN;
	}
	if (flow->sent_at) {
		// The kernel's clock has milliseconds; it stands at what it said last and what has passed since.
		__s32 trip = (__u32)flow->sent_stamp + (__u32)((now - flow->sent_at) / MILLISECOND) - s->echo;
		if (trip >= 0 && (__u64)trip * MILLISECOND < least->trip)
			least->trip = (__u64)trip * MILLISECOND;
	}
	if (wish->tick) {
		__s64 way = (__s64)(now - flow->clock_at) - (__s64)(__s32)(s->stamp - flow->clock) * (__s64)wish->tick;
		if (way < least->way)
			least->way = way;
	}
}

// Takes a handshake's first segment. A connection that had both ends before, and is over, goes.
INLINE int open(const struct segment *s)
{
	struct opening opening = { .first = s->sequence + 1 };
	const struct flow *before = map_lookup(&flows, &s->tuple);

	if (before && before->ended == ENDED)
		map_delete(&flows, &s->tuple);
	map_update(&openings, &s->tuple, &opening, BPF_ANY);
	return PASS;
}

// What happens to a flow because of a segment.
struct turn {
	__u64 now;
	// Offsets of its first byte, and behind its last; its end of the stream counts as one.
	__s64 start;
	__s64 end;
	// The frames: as they were, as is known of what is in front of the segment, and behind it.
	struct frames before;
	struct frames known;
	struct frames then;
	int ringable;
	// By how much the segment moves.
	__u64 shift;
	// The hole that was masked in front of it, if it has a length.
	__u32 number;
	__u64 place;
	__u64 length;
};

// A segment with payload or end, at or behind the highest offset.
INLINE void advance(struct flow *flow, const struct wish *wish, const struct segment *s, struct turn *turn)
{
	__u64 fresh = turn->end - (s->flags & FIN) - flow->high;

	if (turn->start > (__s64)flow->high) {
		__u64 gap = turn->start - flow->high;
		// Another processor may have gone on in between.
		int same = flow->frames.head == turn->before.head && flow->frames.payload == turn->before.payload;
		fresh -= gap;
		if (same && turn->ringable && may_mask(flow, wish, &turn->known, turn->start, turn->end)) {
			turn->place = flow->high - flow->masked;
			turn->length = gap;
			mask(flow, turn->start);
			turn->number = flow->holes;
		} else {
			leave(flow, turn->start, turn->now);
		}
	}
	flow->delivered += fresh;
	flow->high = turn->end;
}

// Whether a segment that ends there is within the window that was advertised: the kernel drops others. Where nothing was
// advertised since the connection was taken in, it is what the handshake said.
INLINE int is_invited(const struct flow *flow, __s64 end)
{
	// The end of a stream needs no place.
	return !flow->edge || end <= (__s64)flow->edge + 1;
}

// Takes a segment, with the lock held.
INLINE int arrive(struct flow *flow, const struct wish *wish, const struct segment *s, struct turn *turn)
{
	int verdict = PASS, counts = turn->end > turn->start, crosses;

	if (s->flags & FIN)
		flow->ended |= ENDED_INWARD;
	if (s->flags & RST)
		flow->ended = ENDED;
	turn->shift = shift_of(flow, turn->start, turn->end, &crosses);
	if (counts && crosses) {
		// It has bytes of a masked hole. If it is old, the kernel is to acknowledge it again, and takes none of it.
		flow->late += s->length;
		verdict = turn->end <= (__s64)flow->acked ? PASS : DROP;
	} else if (counts && turn->end > (__s64)flow->high && is_invited(flow, turn->end)) {
		advance(flow, wish, s, turn);
		if (turn->length)
			turn->shift = flow->masked;
	}
	if (flow->frames.head == turn->before.head) {
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

	// Helpers cannot be called while the lock is held. What is read in front of it is checked again behind it.
	struct turn turn = { .now = clock_ns() / 1000, .before = flow->frames };
	turn.start = offset_of(flow, s.sequence);
	turn.end = turn.start + s.length + (s.flags & FIN);
	turn.known = wish->frames.head > turn.before.head ? wish->frames : turn.before;
	turn.then = s.length ? follow(skb, &s, turn.start, turn.known) : turn.known;
	struct event *event = 0;
	if (turn.end > turn.start && turn.start > (__s64)flow->high)
		event = ring_reserve(&events, sizeof *event, 0);
	turn.ringable = event != 0;

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
		replace32(skb, &s, link, TCP_SEQUENCE, s.sequence, s.sequence - (__u32)turn.shift);
	return verdict;
}

// ---- outward ----

// The window to advertise: what user space wants beyond the highest byte, never less than was said, nor more than the
// kernel has place for.
INLINE __u16 clamp(struct flow *flow, const struct wish *wish, __u16 window, __s64 acked)
{
	__u64 room = (__u64)window << (wish->scale & 15), edge = flow->high + wish->window;

	if (edge < flow->edge)
		edge = flow->edge;
	if (wish->window && edge - acked < room)
		window = (edge - acked + (1ULL << (wish->scale & 15)) - 1) >> (wish->scale & 15);
	__u64 said = acked + ((__u64)window << (wish->scale & 15));
	if (said > flow->edge)
		flow->edge = said;
	return window;
}

// The echo that tells the sender its repair was needless, so that it undoes its reduction: of a time before that.
INLINE __u32 echo(struct flow *flow, const struct segment *s, __s64 acked)
{
	__u32 said = s->echo;

	if (flow->gap && flow->gap_stamp)
		said = flow->gap_stamp;
	if (acked >= (__s64)flow->gap)
		flow->gap = 0;
	return said;
}

struct edges {
	struct __sk_buff *skb;
	struct flow *flow;
	const struct segment *segment;
	__u32 link;
};

// Maps an edge of a SACK block. The kernel puts them on multiples of four bytes.
static long map_edge(__u32 step, void *context)
{
	struct edges *e = context;
	const struct segment *s = e->segment;
	struct flow *flow = e->flow;
	__u32 raw = 0, at = s->sack + 4 * step;

	if (packet_load(e->skb, s->tcp + at, &raw, sizeof raw, BPF_HDR_START_NET))
		return LAST;
	__u32 edge = network32(raw);
	lock(&flow->lock);
	__u32 mapped = flow->first + (__u32)unmask(flow, place_of(flow, edge));
	unlock(&flow->lock);
	replace32(e->skb, s, e->link, at, edge, mapped);
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
			said = echo(flow, &s, acked);
			flow->sent_at = now;
			flow->sent_stamp = s.stamp;
		}
	}
	unlock(&flow->lock);

	replace32(skb, &s, link, TCP_ACKNOWLEDGEMENT, s.acknowledgement, acknowledgement);
	replace16(skb, &s, link, TCP_WINDOW, s.window, window);
	// The echo is behind the stamp.
	if (s.stamped)
		replace32(skb, &s, link, s.stamps + 4, s.echo, said);
	if (s.blocks && s.blocks <= BLOCKS && flow->holes) {
		struct edges edges = { .skb = skb, .flow = flow, .segment = &s, .link = link };
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

// The clock may be read by programs under the GPL only.
SECTION("license") char terms[] = "GPL";
