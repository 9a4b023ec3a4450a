// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// Parses a packet with a TCP segment over IPv4 or IPv6 (RFC 9293, RFC 7323, RFC 2018).
#pragma once

#include "helpers.h"

enum { ETHERTYPE_IPV4 = 0x0800, ETHERTYPE_IPV6 = 0x86dd, PROTOCOL_TCP = 6 };
enum { FIN = 1, SYN = 2, RST = 4, ACK = 16 };
enum { OPTION_END = 0, OPTION_NOP = 1, OPTION_SEGMENT = 2, OPTION_SCALE = 3, OPTION_SACK = 5, OPTION_STAMPS = 8 };
// Bytes of the fixed part of a TCP header, most bytes of options, most SACK blocks.
enum { TCP_FIXED = 20, TCP_OPTIONS = 40, BLOCKS = 4 };
// Offsets in a TCP header.
enum { TCP_SEQUENCE = 4, TCP_ACKNOWLEDGEMENT = 8, TCP_WINDOW = 14, TCP_CHECKSUM = 16 };

// A connection, by both ends. IPv4 addresses are mapped to IPv6 (RFC 4291, section 2.5.5.2). Ports are in
// network order.
struct tuple {
	__u8 remote[16];
	__u8 local[16];
	__u16 remote_port;
	__u16 local_port;
};

struct segment {
	struct tuple tuple;
	// Offsets in the packet: of the TCP header, of the payload.
	__u32 tcp;
	__u32 data;
	// Bytes of payload.
	__u32 length;
	__u32 sequence;
	__u32 acknowledgement;
	__u16 window;
	__u8 flags;
	// Options: whether there are timestamps, and their offset from the TCP header; the same for SACK blocks.
	__u8 stamped;
	__u32 stamps;
	__u32 stamp;
	__u32 echo;
	__u32 sack;
	__u32 blocks;
	__u8 scale;
	__u16 largest;
};

INLINE __u16 read16(const __u8 *bytes)
{
	return bytes[0] << 8 | bytes[1];
}

INLINE __u32 read32(const __u8 *bytes)
{
	return (__u32)bytes[0] << 24 | bytes[1] << 16 | bytes[2] << 8 | bytes[3];
}

INLINE void map_ipv4(__u8 *to, const __u8 *address)
{
	to[10] = to[11] = 0xff;
	__builtin_memcpy(to + 12, address, 4);
}

struct options {
	// Larger than needed, so that a masked index is always inside.
	__u8 bytes[80];
	__u32 at;
	__u32 length;
	struct segment *segment;
};

enum { MORE = 0, LAST = 1 };

// Reads one option.
static long read_option(__u32 step, void *context)
{
	struct options *o = context;
	struct segment *s = o->segment;
	const __u8 *option = o->bytes + (o->at & 63);
	__u32 size = option[1];

	if (o->at + 1 >= o->length || option[0] == OPTION_END)
		return LAST;
	if (option[0] == OPTION_NOP) {
		o->at++;
		return MORE;
	}
	if (size < 2 || o->at + size > o->length)
		return LAST;
	if (option[0] == OPTION_STAMPS && size == 10) {
		s->stamped = 1;
		s->stamps = TCP_FIXED + o->at + 2;
		s->stamp = read32(option + 2);
		s->echo = read32(option + 6);
	} else if (option[0] == OPTION_SACK) {
		s->sack = TCP_FIXED + o->at + 2;
		s->blocks = (size - 2) / 8;
	} else if (option[0] == OPTION_SCALE && size == 3) {
		s->scale = option[2] > 14 ? 14 : option[2];
	} else if (option[0] == OPTION_SEGMENT && size == 4) {
		s->largest = read16(option + 2);
	}
	o->at += size;
	return MORE;
}

// Reads `length` bytes of options.
INLINE void read_options(struct __sk_buff *skb, struct segment *s, __u32 length)
{
	struct options o = { .length = length, .segment = s };

	if (length < 1 || length > TCP_OPTIONS)
		return;
	if (packet_load(skb, s->tcp + TCP_FIXED, o.bytes, length))
		return;
	repeat(TCP_OPTIONS, read_option, &o, 0);
}

// Reads the IP header at `link`: both addresses, and the offset of the TCP header. Returns the length of the
// packet by its IP header; 0 for a superpacket that is too long for that field; -1 for anything but an
// unfragmented TCP packet.
INLINE long read_ip(struct __sk_buff *skb, struct segment *s, __u32 link, __u8 *source, __u8 *target)
{
	__u8 ip[40];

	if (skb->protocol == network16(ETHERTYPE_IPV4)) {
		if (packet_load(skb, link, ip, 20))
			return -1;
		// It is a fragment if more follow, or if it is not the first.
		if (ip[9] != PROTOCOL_TCP || (read16(ip + 6) & 0x3fff))
			return -1;
		map_ipv4(source, ip + 12);
		map_ipv4(target, ip + 16);
		s->tcp = link + (ip[0] & 15) * 4;
		return read16(ip + 2);
	}
	// Packets with extension headers are passed on.
	if (skb->protocol != network16(ETHERTYPE_IPV6) || packet_load(skb, link, ip, 40))
		return -1;
	if (ip[6] != PROTOCOL_TCP)
		return -1;
	__builtin_memcpy(source, ip + 8, 16);
	__builtin_memcpy(target, ip + 24, 16);
	s->tcp = link + 40;
	return read16(ip + 4) ? read16(ip + 4) + 40 : 0;
}

// Reads a packet whose IP header begins at `link`. `inward`: the remote end sent it. Returns 0 unless it is a
// segment to or from our `port` (network order).
INLINE int read_segment(struct __sk_buff *skb, struct segment *s, __u32 link, __u16 port, int inward)
{
	__u8 tcp[TCP_FIXED];
	struct tuple *tuple = &s->tuple;
	__u8 *source = inward ? tuple->remote : tuple->local, *target = inward ? tuple->local : tuple->remote;
	long said = read_ip(skb, s, link, source, target);

	if (said < 0 || packet_load(skb, s->tcp, tcp, TCP_FIXED))
		return 0;
	__u16 from = *(__u16 *)tcp, to = *(__u16 *)(tcp + 2);
	tuple->remote_port = inward ? from : to;
	tuple->local_port = inward ? to : from;
	if (tuple->local_port != port)
		return 0;
	__u32 header = (tcp[12] >> 4) * 4, total = said ? link + said : skb->len;
	s->data = s->tcp + header;
	if (header < TCP_FIXED || total < s->data)
		return 0;
	s->length = total - s->data;
	s->sequence = read32(tcp + TCP_SEQUENCE);
	s->acknowledgement = read32(tcp + TCP_ACKNOWLEDGEMENT);
	s->window = read16(tcp + TCP_WINDOW);
	s->flags = tcp[13];
	read_options(skb, s, header - TCP_FIXED);
	return 1;
}

// Replaces a field of the TCP header, `at` bytes into it, and updates the checksum. Offsets are even.
INLINE void replace32(struct __sk_buff *skb, const struct segment *s, __u32 at, __u32 from, __u32 to)
{
	__u32 tcp = s->tcp, old = network32(from), new = network32(to);

	if (old == new)
		return;
	checksum_replace(skb, tcp + TCP_CHECKSUM, old, new, sizeof new);
	packet_store(skb, tcp + at, &new, sizeof new, 0);
}

INLINE void replace16(struct __sk_buff *skb, const struct segment *s, __u32 at, __u16 from, __u16 to)
{
	__u32 tcp = s->tcp;
	__u16 old = network16(from), new = network16(to);

	if (old == new)
		return;
	checksum_replace(skb, tcp + TCP_CHECKSUM, old, new, sizeof new);
	packet_store(skb, tcp + at, &new, sizeof new, 0);
}
