//! The gRPC message [`Frame`] of a link's stream, and how chunks and control messages become such messages.

use std::collections::VecDeque;

use bytes::Bytes;
use prost::Message;
use thalweg_wire::FrameHeader;

/// Maximum number of bytes of a control message in one gRPC message.
pub(crate) const CONTROL_PART: usize = 1 << 20;
/// Bytes that gRPC puts before a message: a flag and the length.
const PREFIX: usize = 5;

/// `thalweg.v1.Frame` of `proto/thalweg.proto`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Frame {
    /// Header of a `thalweg-wire` frame. It is empty in the further parts of a control message.
    #[prost(bytes = "bytes", tag = "1")]
    pub header: Bytes,
    /// All of a chunk's payload, or a part of a control message.
    #[prost(bytes = "bytes", tag = "2")]
    pub payload: Bytes,
}

impl Frame {
    /// Whether the message has a header and no payload, as [`begins`] makes it. An empty control message
    /// looks the same, and is sent at once too.
    pub(crate) fn is_announcement(&self) -> bool {
        !self.header.is_empty() && self.payload.is_empty()
    }

    /// Number of bytes that the message has in the stream.
    pub(crate) fn wire_bytes(&self) -> u64 {
        (PREFIX + self.encoded_len()) as u64
    }
}

/// Makes the one message of a chunk.
pub(crate) fn chunk(header: &FrameHeader, payload: Bytes) -> VecDeque<Frame> {
    [Frame { header: Bytes::copy_from_slice(&header.encode()), payload }].into()
}

/// Makes the message that announces an update: the header of its first chunk, without payload. gRPC delivers
/// only complete messages. Without this message, the receiver would learn that the update has begun only
/// after its whole first chunk.
pub(crate) fn begins(header: &FrameHeader) -> Frame {
    Frame { header: Bytes::copy_from_slice(&header.encode()), payload: Bytes::new() }
}

/// Makes the messages of a control message, at least one.
pub(crate) fn control(mut message: Bytes) -> VecDeque<Frame> {
    let mut header = Bytes::copy_from_slice(&FrameHeader::control(&message).encode());
    let mut parts = VecDeque::new();
    while parts.is_empty() || !message.is_empty() {
        let payload = message.split_to(message.len().min(CONTROL_PART));
        parts.push_back(Frame { header: std::mem::take(&mut header), payload });
    }
    parts
}

#[cfg(test)]
mod tests {
    use thalweg_wire::{HEADER_BYTES, MAX_CONTROL};

    use super::*;
    use crate::{MAX_CHUNK, MAX_MESSAGE};

    #[test]
    fn is_protobuf_as_the_proto_file_says() {
        let frame = Frame { header: "ab".into(), payload: "c".into() };
        // Tag 1 and 2, both of wire type 2 (protobuf.dev/programming-guides/encoding).
        assert_eq!(frame.encode_to_vec(), b"\x0a\x02ab\x12\x01c");
        assert_eq!(frame.wire_bytes(), 5 + 7);
        let other_order = Frame::decode(&b"\x12\x01c\x0a\x02ab\x18\x05"[..]).unwrap();
        assert_eq!(other_order, frame, "any order, and fields of later versions");
    }

    #[test]
    fn the_greatest_chunk_fits_a_message() {
        let frame =
            Frame { header: vec![0; HEADER_BYTES].into(), payload: vec![0; MAX_CHUNK as usize].into() };
        assert!(frame.encoded_len() <= MAX_MESSAGE);
    }

    #[test]
    fn control_messages_are_cut() {
        for (length, count) in [(0, 1), (1, 1), (CONTROL_PART, 1), (CONTROL_PART + 1, 2)] {
            let message = Bytes::from(vec![7; length]);
            let parts = control(message.clone());
            assert_eq!(parts.len(), count);
            let together: Vec<u8> = parts.iter().flat_map(|part| part.payload.clone()).collect();
            assert_eq!(together, message);
            let headers: Vec<usize> = parts.iter().map(|part| part.header.len()).collect();
            assert!(headers[0] == HEADER_BYTES && headers[1..].iter().all(|&n| n == 0));
        }
        assert_eq!(control(vec![0; MAX_CONTROL as usize].into()).len(), 8);
    }
}
