// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// Frames of a `tcp` link, as in crates/wire/src/frame.rs: which bytes of a stream are payload of chunks.
#pragma once

#include "segment.h"

enum { HEADER = 52, CHECKED = 48, MAGIC = 0x67776c74, VERSION = 1, KIND_CONTROL = 1, KIND_CHUNK = 2 };
enum { MAX_CHUNK = 4 << 20, MAX_CONTROL = 8 << 20 };
// Frames that may begin in one packet. Beyond that, user space has to say where the next one is.
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

// The position of a stream in its frames, as stream offsets.
struct frames {
	// The next header.
	__u64 head;
	// What may be lost before it begins here: the whole payload of the last chunk; nothing of a control message.
	__u64 payload;
	// The update of the last chunk, and where its first chunk began.
	__u64 update;
	__u64 update_from;
	// Offset of the last chunk in the update.
	__u64 offset;
	// One past the last byte of the update that a chunk had. A chunk below it was asked for again.
	__u64 top;
};

// Table for four bits of CRC-32C, with the polynomial 0x82f63b78 (RFC 3720, appendix B.4).
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
	// Stream offset of the first byte of the segment.
	__u64 start;
	struct frames frames;
};

// Reads the header at an offset, if it is valid and complete in the segment.
INLINE int read_header(struct walk *w, __u64 at, struct header *h)
{
	if (at < w->start || at + HEADER > w->start + w->segment->length)
		return 0;
	return !packet_load(w->skb, w->segment->data + (__u32)(at - w->start), h, HEADER) && is_header(h);
}

INLINE __u64 update_of(const struct header *h)
{
	return (__u64)h->round << 32 | h->sender;
}

// Handles a next header that was lost, or lies in two segments. The chunks of an update have one length and
// follow each other. So a header at the expected offset, with exactly the expected content, proves that
// everything before it is as expected.
static long look_ahead(struct walk *w)
{
	struct frames *f = &w->frames;
	__u64 length = f->head - f->payload, frame = HEADER + length;
	struct header h;

	if (!length || !f->update_from)
		return LAST;
	__u64 skipped = (w->start - f->head + frame - 1) / frame, at = f->head + skipped * frame;
	__u64 offset = f->offset + (skipped + 1) * length;
	if (!read_header(w, at, &h))
		return LAST;
	// The last chunk of an update is shorter.
	if (h.kind != KIND_CHUNK || update_of(&h) != f->update || h.offset != offset || h.length > length)
		return LAST;
	f->payload = at + HEADER;
	f->head = f->payload + h.length;
	f->offset = offset;
	f->top = offset + h.length;
	return MORE;
}

// Moves to the next header, if this one is complete in the segment. If it is no header, the position stays: the
// segment is damaged and comes again, or the stream does not consist of frames.
static long next_frame(__u32 step, void *context)
{
	struct walk *w = context;
	struct frames *f = &w->frames;
	struct header h;

	if (f->head < w->start)
		return look_ahead(w);
	if (!read_header(w, f->head, &h))
		return LAST;
	f->payload = f->head + HEADER;
	f->head = f->payload + h.length;
	if (h.kind == KIND_CONTROL) {
		f->payload = f->head;
		return MORE;
	}
	int same = f->update == update_of(&h) && f->update_from;
	f->offset = h.offset;
	if (!same) {
		f->update = update_of(&h);
		f->update_from = f->payload;
		f->top = 0;
	}
	// What was asked for again must come.
	if (h.offset < f->top)
		f->payload = f->head;
	else
		f->top = h.offset + h.length;
	return MORE;
}

// The position after a segment that begins at `start`, if it was `frames` before.
INLINE struct frames follow(struct __sk_buff *skb, const struct segment *s, __u64 start, struct frames frames)
{
	struct walk walk = { .skb = skb, .segment = s, .start = start, .frames = frames };

	repeat(FRAMES, next_frame, &walk, 0);
	return walk.frames;
}
