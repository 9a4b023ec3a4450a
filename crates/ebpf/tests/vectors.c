// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// Runs parts of the programs outside the kernel. A command a line on standard input, an answer a line on
// standard output; vectors.rs has the commands.
#define HELPER(result, name, number, ...) result name(__VA_ARGS__);
#include "../programs/unifl.c"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PACKET = 256 };

// The packet that helpers read.
static __u8 packet[PACKET];
static __u32 packet_length;

// ---- the kernel's helpers, as far as they are used here ----

long packet_load(const struct __sk_buff *skb, __u32 at, void *to, __u32 length)
{
	(void)skb;
	if (at > packet_length || length > packet_length - at)
		return -1;
	memcpy(to, packet + at, length);
	return 0;
}

long repeat(__u32 times, void *step, void *context, __u64 flags)
{
	long (*const each)(__u32, void *) = (long (*)(__u32, void *))step;

	(void)flags;
	for (__u32 at = 0; at < times; at++)
		if (each(at, context))
			break;
	return 0;
}

// The rest is linked, and never called.
#define UNUSED(result, name, ...) \
	result name(__VA_ARGS__) \
	{ \
		abort(); \
	}
UNUSED(void *, map_lookup, void *a, const void *b)
UNUSED(long, map_update, void *a, const void *b, const void *c, __u64 d)
UNUSED(long, map_delete, void *a, const void *b)
UNUSED(__u64, clock_ns, void)
UNUSED(long, packet_store, struct __sk_buff *a, __u32 b, const void *c, __u32 d, __u64 e)
UNUSED(long, checksum_replace, struct __sk_buff *a, __u32 b, __u64 c, __u64 d, __u64 e)
UNUSED(long, lock, struct bpf_spin_lock *a)
UNUSED(long, unlock, struct bpf_spin_lock *a)
UNUSED(void *, ring_reserve, void *a, __u64 b, __u64 c)
UNUSED(void, ring_submit, void *a, __u64 b)
UNUSED(void, ring_discard, void *a, __u64 b)

// ---- commands ----

static void read_packet(const char *hex)
{
	unsigned int byte;

	for (packet_length = 0; packet_length < PACKET && sscanf(hex, "%2x", &byte) == 1; hex += 2)
		packet[packet_length++] = byte;
}

// segment HEX: what is read of a packet to port 9000.
static void segment_of(void)
{
	int version = packet[0] >> 4;
	struct __sk_buff skb = { .len = packet_length };
	struct segment s = {};

	skb.protocol = network16(version == 4 ? ETHERTYPE_IPV4 : ETHERTYPE_IPV6);
	if (!read_segment(&skb, &s, BARE, network16(9000), 1)) {
		puts("null");
		return;
	}
	printf("%u %u %u %u %u %u", s.sequence, s.acknowledgement, s.flags, s.window, s.data, s.data + s.length);
	printf(" %u %u %u %u %u", s.stamped, s.stamp, s.echo, s.scale, s.largest);
	for (__u32 block = 0; block < s.blocks && block < BLOCKS; block++) {
		const __u8 *edge = packet + s.tcp + s.sack + 8 * block;
		printf(" %u %u", read32(edge), read32(edge + 4));
	}
	putchar('\n');
}

// frame AT HEX: the position behind a header.
static void frame_at(struct frames *frames, __u64 at)
{
	const struct segment s = { .length = packet_length };

	frames->head = at;
	*frames = follow(0, &s, at, *frames);
	printf("%llu %llu %llu %llu %llu\n", frames->head, frames->payload, frames->update_from, frames->offset,
	       frames->top);
}

// A flow whose timestamps are our clock in milliseconds, from 0.
struct tracked {
	struct flow flow;
	struct wish wish;
};

// data FILLS CLOCK VALUE ECHO END: a segment has come. Nothing is answered.
static void data(struct tracked *t, int fills, __u32 clock, __u32 value, __u32 echo, __u64 end)
{
	const struct segment s = { .stamped = 1, .stamp = value, .echo = echo };
	const struct turn turn = { .now = (__u64)clock * MILLISECOND, .end = end };

	remember(&t->flow, &t->wish, &s, &turn, !fills, fills);
	measure(&t->flow, &t->wish, &s, turn.now);
	t->flow.came_at = turn.now;
}

// ack CLOCK ACKED HIGH MISSING GOES_ON: the echo, and whether the sender may still be in recovery.
static void answer(struct tracked *t, __u32 clock, __u64 acked, __u64 high, int missing, int goes_on)
{
	const struct segment s = { .stamp = clock };
	__u64 now = (__u64)clock * MILLISECOND;

	t->flow.high = high;
	t->flow.gap = missing ? acked + 1 : 0;
	t->flow.grew_at = goes_on ? now : now - t->wish.trip;
	printf("%u", echo(&t->flow, &t->wish, &s, acked, now));
	printf(" %u\n", t->flow.repair.active);
}

int main(void)
{
	static struct tracked tracked;
	struct frames frames = {};
	char line[4 * PACKET], hex[2 * PACKET + 1];
	unsigned long long at, high;
	unsigned int a, b, c, d;

	while (fgets(line, sizeof line, stdin)) {
		if (sscanf(line, "segment %512s", hex) == 1) {
			read_packet(hex);
			segment_of();
		} else if (!strcmp(line, "stream\n")) {
			memset(&frames, 0, sizeof frames);
		} else if (sscanf(line, "frame %llu %512s", &at, hex) == 2) {
			read_packet(hex);
			frame_at(&frames, at);
		} else if (sscanf(line, "flow %u %u", &a, &b) == 2) {
			memset(&tracked, 0, sizeof tracked);
			tracked.wish.trip = (__u64)b * MILLISECOND;
			// More was masked than retransmitted.
			tracked.flow.masked = 1;
			tracked.flow.clock_at = 1;
			tracked.flow.stamp = tracked.flow.repair.before_newest = a;
		} else if (sscanf(line, "data %u %u %u %u %llu", &a, &b, &c, &d, &at) == 5) {
			data(&tracked, a, b, c, d, at);
		} else if (sscanf(line, "told %u %llu %llu", &a, &at, &high) == 3) {
			begin(&tracked.flow.repair, a, tracked.flow.stamp, at, high);
		} else if (sscanf(line, "ack %u %llu %llu %u %u", &a, &at, &high, &b, &c) == 5) {
			answer(&tracked, a, at, high, b, c);
		} else {
			fprintf(stderr, "no such command: %s", line);
			return 1;
		}
	}
	return 0;
}
