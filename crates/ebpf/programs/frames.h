// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The frames of a tcp link, as crates/wire/src/frame.rs lays them out: which bytes of a stream are payload of chunks.
#pragma once

#include "segment.h"

enum { HEADER = 52, CHECKED = 48, MAGIC = 0x67776c74, VERSION = 1, KIND_CONTROL = 1, KIND_CHUNK = 2 };
enum { MAX_CHUNK = 4 << 20, MAX_CONTROL = 8 << 20 };
// Frames that may begin in one packet; behind them, user space has to say where the next one is.
enum { FRAMES = 64 };

struct header {
	__u32 magic;
	__u8 version;
	__u8 kind;
	__u16 flags;
	__u32 length;
	__u32 payload_checksum;
	__u64 job;
	__u32 round;
	__u32 sender;
	__u64 layout;
	__u64 offset;
	__u32 checksum;
};

// Where in the frames a stream is, in offsets of the stream.
struct frames {
	// The next header.
	__u64 head;
	// What may be lost in front of it.
	__u64 payload;
	// Which update the last chunk was of, and where its first began.
	__u64 update;
	__u64 update_from;
};

// What four bits do to a sum: each of them with the polynomial of CRC-32C, 0x82f63b78 (RFC 3720, appendix B.4).
static const __u32 NIBBLES[16] = {
	0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1,
	0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
	0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
	0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
};

INLINE __u32 crc32c(const __u8 *bytes, __u32 length)
{
	__u32 sum = ~0U;

	for (__u32 at = 0; at < length; at++) {
		sum ^= bytes[at];
		sum = sum >> 4 ^ NIBBLES[sum & 15];
		sum = sum >> 4 ^ NIBBLES[sum & 15];
	}
	return ~sum;
}

INLINE int is_header(const struct header *h)
{
	__u32 most = h->kind == KIND_CHUNK ? MAX_CHUNK : MAX_CONTROL;

	if (h->magic != MAGIC || h->version != VERSION || h->length > most)
		return 0;
	if (h->kind != KIND_CHUNK && h->kind != KIND_CONTROL)
		return 0;
	return crc32c((const __u8 *)h, CHECKED) == h->checksum;
}

struct walk {
	struct __sk_buff *skb;
	const struct segment *segment;
	// The offset of the segment's first byte.
	__u64 start;
	struct frames frames;
};

// Goes to the next header, if this one is whole in the segment. At one that is none it stays: the segment is damaged, and
// comes again, or the stream is not of frames.
static long next_frame(__u32 step, void *context)
{
	struct walk *w = context;
	struct frames *f = &w->frames;
	struct header h;

	if (f->head < w->start || f->head + HEADER > w->start + w->segment->length)
		return LAST;
	if (packet_load(w->skb, w->segment->data + (__u32)(f->head - w->start), &h, HEADER, BPF_HDR_START_NET))
		return LAST;
	if (!is_header(&h))
		return LAST;
	f->payload = f->head + HEADER;
	f->head = f->payload + h.length;
	if (h.kind == KIND_CONTROL) {
		f->payload = f->head;
		return MORE;
	}
	__u64 update = (__u64)h.round << 32 | h.sender;
	if (f->update != update || !f->update_from) {
		f->update = update;
		f->update_from = f->payload;
	}
	return MORE;
}

// Where the stream is behind a segment that begins at `start`, if it is in `frames` in front of it.
INLINE struct frames follow(struct __sk_buff *skb, const struct segment *s, __u64 start, struct frames frames)
{
	struct walk walk = { .skb = skb, .segment = s, .start = start, .frames = frames };

	repeat(FRAMES, next_frame, &walk, 0);
	return walk.frames;
}
