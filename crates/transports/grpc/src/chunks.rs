//! Parses a link's stream byte by byte, and counts the bytes of chunks' payloads as they arrive, before their
//! message is complete.

use thalweg_wire::{FrameHeader, Kind, HEADER_BYTES};

/// gRPC's prefix of a message: a flag and the length.
const PREFIX: usize = 5;
/// The first bytes of a [`Frame`](crate::frame::Frame) in protobuf: the tag of its header, and the header's
/// length.
const TAG: [u8; 2] = [0x0a, HEADER_BYTES as u8];
/// Number of bytes from the beginning of a message to the end of its header.
const HEAD: usize = PREFIX + TAG.len() + HEADER_BYTES;

/// The state of the parser of one stream.
#[derive(Debug)]
pub(crate) struct Chunks {
    head: [u8; HEAD],
    /// Number of bytes in `head`.
    have: usize,
    /// Number of bytes of the message that are still to come, once its prefix is known.
    left: usize,
    /// The message ends with this many bytes of a chunk's payload.
    payload: usize,
}

impl Default for Chunks {
    fn default() -> Self {
        Self { head: [0; HEAD], have: 0, left: 0, payload: 0 }
    }
}

impl Chunks {
    /// Takes the next bytes of the stream. Returns how many of them are payload of chunks. A message whose
    /// fields are in another order than ours counts as no payload; the receiver counts it when it is
    /// complete.
    pub(crate) fn pass(&mut self, mut bytes: &[u8]) -> u64 {
        let mut count = 0;
        while !bytes.is_empty() {
            let taken =
                if self.have < self.wanted() { self.read(bytes) } else { self.skip(bytes, &mut count) };
            bytes = bytes.get(taken..).unwrap_or_default();
            if self.have >= PREFIX && self.left == 0 {
                *self = Self::default();
            }
        }
        count
    }

    /// Number of bytes of the message's beginning to collect: its prefix, and then also its header if the
    /// message is long enough.
    fn wanted(&self) -> usize {
        if self.have < PREFIX {
            PREFIX
        } else {
            HEAD.min(self.have + self.left)
        }
    }

    fn read(&mut self, bytes: &[u8]) -> usize {
        let in_prefix = self.have < PREFIX;
        let part = bytes.len().min(self.wanted() - self.have);
        if let (Some(to), Some(from)) = (self.head.get_mut(self.have..self.have + part), bytes.get(..part)) {
            to.copy_from_slice(from);
        }
        self.have += part;
        if !in_prefix {
            self.left -= part;
        } else if self.have == PREFIX {
            let [_, length @ ..] = self.head.first_chunk::<PREFIX>().copied().unwrap_or_default();
            self.left = u32::from_be_bytes(length) as usize;
        }
        if self.have == HEAD {
            self.payload = self.announced().filter(|length| *length <= self.left).unwrap_or(0);
        }
        part
    }

    /// The payload length in the message's header, if it is the header of a chunk.
    fn announced(&self) -> Option<usize> {
        let header = self.head.get(PREFIX..)?.strip_prefix(&TAG)?;
        let header = FrameHeader::decode(header).ok()?;
        (header.kind == Kind::Chunk).then(|| header.length())
    }

    fn skip(&mut self, bytes: &[u8], count: &mut u64) -> usize {
        let part = bytes.len().min(self.left);
        let before = self.left.saturating_sub(self.payload);
        *count += part.saturating_sub(before) as u64;
        self.left -= part;
        part
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use prost::Message;
    use thalweg_wire::{ChunkHeader, LayoutHash};

    use super::*;
    use crate::frame::{self, Frame};

    fn prefixed(frame: &Frame) -> Vec<u8> {
        let message = frame.encode_to_vec();
        [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat()
    }

    fn header(length: u32) -> FrameHeader {
        let chunk = ChunkHeader { job: 1, round: 1, sender: 1, layout: LayoutHash(1), offset: 0, length };
        FrameHeader::chunk(chunk, 7)
    }

    /// An update of two chunks, with control messages around it. One of these is longer than
    /// [`CONTROL_PART`](frame::CONTROL_PART).
    fn stream() -> Vec<u8> {
        let control = |length| frame::control(vec![7; length].into());
        let mut frames = control(0);
        frames.push_back(frame::begins(&header(3000)));
        frames.extend(frame::chunk(&header(3000), vec![1; 3000].into()));
        frames.extend(control(frame::CONTROL_PART + 9));
        frames.extend(frame::chunk(&header(1), Bytes::from_static(b"x")));
        frames.push_back(Frame::default());
        frames.extend(control(30));
        frames.iter().flat_map(prefixed).collect()
    }

    #[test]
    fn only_payloads_of_chunks_count_however_the_stream_is_cut() {
        let stream = stream();
        for step in [1, 2, 5, 7, 59, 100, 16384, stream.len()] {
            let mut chunks = Chunks::default();
            let counted: u64 = stream.chunks(step).map(|part| chunks.pass(part)).sum();
            assert_eq!(counted, 3001, "{step} at a time");
        }
    }

    #[test]
    fn a_payload_counts_as_it_arrives() {
        let message = prefixed(&frame::chunk(&header(3000), vec![1; 3000].into())[0]);
        let mut chunks = Chunks::default();
        assert_eq!(chunks.pass(&message[..message.len() - 3000]), 0);
        assert_eq!(chunks.pass(&message[message.len() - 3000..message.len() - 1000]), 2000);
        assert_eq!(chunks.pass(&message[message.len() - 1000..]), 1000);
    }

    #[test]
    fn a_message_that_is_not_ours_counts_as_nothing() {
        let reordered = {
            let ours = frame::chunk(&header(200), vec![1; 200].into())[0].encode_to_vec();
            let (first, second) = ours.split_at(TAG.len() + HEADER_BYTES);
            [second, first].concat()
        };
        let short =
            Frame { header: Bytes::copy_from_slice(&header(200).encode()), payload: vec![1; 9].into() };
        let prefix = |message: &[u8]| [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat();
        let bytes = [prefix(&reordered), prefixed(&short), prefix(b"")].concat();
        let mut chunks = Chunks::default();
        assert_eq!(bytes.iter().map(|byte| chunks.pass(&[*byte])).sum::<u64>(), 0);
        assert_eq!(chunks.pass(&prefixed(&frame::chunk(&header(9), vec![1; 9].into())[0])), 9, "it goes on");
    }
}
