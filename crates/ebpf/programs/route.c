// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// Routes of notes between the processes of one node. Each process has a TCP connection with the node, and writes its notes
// into it. This program reads where a note wants to go, and puts it into the receiver's socket, past TCP.
//
// What it may not or cannot put there goes to the node, at the other end of the sender's own connection: the node judges it,
// or passes it on. Nothing is ever dropped, since that breaks a socket for good; and a sender beyond its budget is held up by
// the node's full socket, as any sender of TCP.
//
// Two things of the kernel (6.18) are in the way. What is passed behind a note of the same send that was redirected goes
// where that note went; so what is not routed is redirected too, to the sender's own way out. And what waits for the rest of a
// note (bpf_msg_cork_bytes) is lost if it is of several notes; so a note that is cut goes to the node.
#include "helpers.h"

HELPER(long, message_redirect, BPF_FUNC_msg_redirect_hash, struct sk_msg_md *message, void *map, void *key, __u64 flags);
HELPER(long, message_apply, BPF_FUNC_msg_apply_bytes, struct sk_msg_md *message, __u32 bytes);
HELPER(long, message_pull, BPF_FUNC_msg_pull_data, struct sk_msg_md *message, __u32 start, __u32 end, __u64 flags);

enum {
	NOTE = 64, // bytes of a note, and where its fields are: crates/workers/src/note.rs
	DESTINATION = 0,
	SOURCE = 2,
	FOLLOWING = 56,
	MOST_FOLLOWING = 64 << 20,
	NODE = 0,
	ENDS_OF_NODE = 1 << 16, // keys of the node's ends of connections, one for each sender
	OUTLET = 2 << 16,	// key of the socket that the node sends from
	PARTIES = 2048,
};

struct count {
	__u64 direct; // notes that went past TCP
	__u64 passed; // notes that were allowed, and went to the node: beyond the budget, or their receiver was gone
	__u64 bytes;
	__u64 first_ns;
	__u64 last_ns;
};

// Who sends from a port.
struct {
	MAP_NUMBER(type, BPF_MAP_TYPE_HASH);
	MAP_NUMBER(max_entries, PARTIES);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, __u32);
} ports SECTION(".maps");

struct {
	MAP_NUMBER(type, BPF_MAP_TYPE_SOCKHASH);
	MAP_NUMBER(max_entries, 2 * PARTIES);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, __u32);
} sockets SECTION(".maps");

// By source << 16 | destination. A pair that is not here is not allowed; the value is how many notes may go past TCP in all.
struct {
	MAP_NUMBER(type, BPF_MAP_TYPE_HASH);
	MAP_NUMBER(max_entries, 2 * PARTIES);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, __u64);
} allowed SECTION(".maps");

struct {
	MAP_NUMBER(type, BPF_MAP_TYPE_HASH);
	MAP_NUMBER(max_entries, 2 * PARTIES);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, struct count);
} counts SECTION(".maps");

// Notes that were not allowed, were cut, or were none.
struct {
	MAP_NUMBER(type, BPF_MAP_TYPE_ARRAY);
	MAP_NUMBER(max_entries, 1);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, __u64);
} refused SECTION(".maps");

INLINE __u32 number16(const __u8 *at)
{
	return at[0] | at[1] << 8;
}

INLINE __u64 number64(const __u8 *at)
{
	return number16(at) | number16(at + 2) << 16 | (__u64)(number16(at + 4) | number16(at + 6) << 16) << 32;
}

// Sends it to the node by the sender's own connection.
INLINE int to_node(struct sk_msg_md *message, __u32 source)
{
	__u32 own = source == NODE ? OUTLET : source;
	message_redirect(message, &sockets, &own, 0);
	return SK_PASS;
}

INLINE int refuse(struct sk_msg_md *message, __u32 source)
{
	__u32 only = 0;
	__u64 *count = map_lookup(&refused, &only);
	if (count)
		__sync_fetch_and_add(count, 1);
	return to_node(message, source);
}

SECTION("sk_msg/route") int route(struct sk_msg_md *message)
{
	__u32 port = message->local_port;
	const __u32 *known = map_lookup(&ports, &port);
	if (!known)
		return SK_PASS; // the node's own ends
	__u32 source = *known;
	// What is decided now is for this note alone, and not for others of the same send.
	message_apply(message, NOTE);
	if (message->size < NOTE)
		return refuse(message, source);
	if (message->data + NOTE > message->data_end)
		message_pull(message, 0, NOTE, 0);
	const __u8 *note = message->data;
	if (message->data + NOTE > message->data_end)
		return refuse(message, source);
	__u32 destination = number16(note + DESTINATION);
	__u32 pair = source << 16 | destination;
	__u64 following = number64(note + FOLLOWING);
	const __u64 *granted = map_lookup(&allowed, &pair);
	struct count *count = map_lookup(&counts, &pair);
	if (!granted || !count || number16(note + SOURCE) != source || following > MOST_FOLLOWING)
		return refuse(message, source);
	message_apply(message, NOTE + following);
	__u64 now = clock_ns();
	if (!count->first_ns)
		count->first_ns = now;
	count->last_ns = now;
	count->bytes += NOTE + following;
	// Only one process sends from a socket at a time, so nobody else counts here.
	__u32 receiver = destination == NODE ? ENDS_OF_NODE | source : destination;
	if (count->direct < *granted && message_redirect(message, &sockets, &receiver, BPF_F_INGRESS) == SK_PASS) {
		count->direct++;
		return SK_PASS;
	}
	count->passed++;
	return to_node(message, source);
}

// Only GPL programs may read the clock.
SECTION("license") char terms[] = "GPL";
