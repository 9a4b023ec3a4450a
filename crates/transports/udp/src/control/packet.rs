//! The format of the datagrams that carry control messages. All numbers are little-endian.
//!
//! | byte | field | |
//! |---|---|---|
//! | 0 | magic | `tlwc` |
//! | 4 | version | 1 |
//! | 5 | kind | 1 open, 2 retry, 3 first, 4 segment, 5 reset, 6 challenge, 7 answer |
//! | 6 | | 2 bytes, 0 |
//! | 8 | id | 16 random bytes that the connecting end chooses |
//! | 24 | | the content of this kind |
//!
//! - *open*: the sender's time (u32, microseconds), then zeros, so that the answer is no longer than the
//!   open.
//! - *retry*: the time of the open that it answers, then a [cookie](super::cookie).
//! - *first*: a cookie, then a segment.
//! - *segment*: [`Segment`].
//! - *reset*: nothing. The listener has no stream with this id.
//! - *challenge*: a cookie. The listener has got a packet of the stream from another address, and asks whether the
//!   peer receives there.
//! - *answer*: the cookie of the challenge, then a [proof](super::cookie::proof) of 16 bytes.

/// Identifies a control stream. Only somebody who sees its packets knows the id.
pub(crate) type Id = [u8; 16];
/// The listener's proof that the peer receives at its address.
pub(crate) type Cookie = [u8; COOKIE_BYTES];

/// A proof that the answer to a challenge comes from the peer.
pub(crate) type Proof = [u8; PROOF_BYTES];

pub(crate) const COOKIE_BYTES: usize = 24;
const PROOF_BYTES: usize = 16;
const MAGIC: &[u8; 5] = b"tlwc\x01";
const PREFIX_BYTES: usize = 24;
/// Maximum number of bytes of the stream in one segment. With all headers, also those of UDP and IPv6, such a
/// packet has at most the 1280 bytes that every path of IPv6 carries (RFC 8200, section 5).
pub(crate) const MAX_SEGMENT_BYTES: usize = 1088;
/// Maximum number of ranges that a segment acknowledges beyond the first gap.
pub(crate) const MAX_RANGES: usize = 4;
/// Bytes of a segment without ranges and without bytes of the stream.
const SEGMENT_HEADER_BYTES: usize = 42;
const _: () = assert!(
    PREFIX_BYTES + COOKIE_BYTES + SEGMENT_HEADER_BYTES + 8 * MAX_RANGES + MAX_SEGMENT_BYTES <= 1280 - 48
);
/// The longest packet.
pub(crate) const MAX_PACKET_BYTES: usize =
    PREFIX_BYTES + COOKIE_BYTES + SEGMENT_HEADER_BYTES + 8 * MAX_RANGES + MAX_SEGMENT_BYTES;

/// Bytes of the stream, and what the sender has received.
///
/// | byte | field | |
/// |---|---|---|
/// | 0 | offset | u64: place of the first byte in the stream |
/// | 8 | ack | u64: all bytes before this one have arrived |
/// | 16 | window | u32: bytes after `ack` that the sender of the packet accepts (its receive window) |
/// | 20 | time | u32: the sender's time in microseconds, modulo 2^32 |
/// | 24 | echo | u32: the time of the packet that this one answers |
/// | 28 | sent | u32: packets with bytes that the sender has sent, including this one |
/// | 32 | seen | u32: the greatest `sent` that has arrived |
/// | 36 | received | u32: packets with bytes that have arrived, duplicates included |
/// | 40 | flags | bit 0: the stream ends at `offset`; bit 1: `echo` is set |
/// | 41 | ranges | number of ranges, at most 4 |
/// | 42 | | each range: u32 start, counted from `ack`, and u32 length; then the bytes |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Segment {
    pub offset: u64,
    pub ack: u64,
    pub window: u32,
    pub time: u32,
    /// The time of the packet that this one answers.
    pub echo: Option<u32>,
    pub sent: u32,
    pub seen: u32,
    pub received: u32,
    /// Whether the stream ends at `offset`. Such a segment has no bytes.
    pub ends: bool,
    /// Ranges that have arrived beyond `ack`: start, counted from `ack`, and length. Unused ones are zero.
    pub ranges: [(u32, u32); MAX_RANGES],
}

/// A decoded packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packet<'a> {
    Open { time: u32 },
    Retry { echo: u32, cookie: Cookie },
    First { cookie: Cookie, segment: Segment, bytes: &'a [u8] },
    Segment { segment: Segment, bytes: &'a [u8] },
    Reset,
    Challenge { cookie: Cookie },
    Answer { cookie: Cookie, proof: Proof },
}

impl Packet<'_> {
    /// Encodes a packet. A segment's bytes are at most [`MAX_SEGMENT_BYTES`].
    pub(crate) fn encode(&self, id: &Id) -> Vec<u8> {
        let kind = match self {
            Self::Open { .. } => 1,
            Self::Retry { .. } => 2,
            Self::First { .. } => 3,
            Self::Segment { .. } => 4,
            Self::Reset => 5,
            Self::Challenge { .. } => 6,
            Self::Answer { .. } => 7,
        };
        let mut out = Vec::with_capacity(MAX_PACKET_BYTES);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&[kind, 0, 0]);
        out.extend_from_slice(id);
        match self {
            Self::Open { time } => {
                out.extend_from_slice(&time.to_le_bytes());
                out.extend_from_slice(&[0; COOKIE_BYTES]);
            }
            Self::Retry { echo, cookie } => {
                out.extend_from_slice(&echo.to_le_bytes());
                out.extend_from_slice(cookie);
            }
            Self::First { cookie, segment, bytes } => {
                out.extend_from_slice(cookie);
                segment.encode(bytes, &mut out);
            }
            Self::Segment { segment, bytes } => segment.encode(bytes, &mut out),
            Self::Reset => {}
            Self::Challenge { cookie } => out.extend_from_slice(cookie),
            Self::Answer { cookie, proof } => {
                out.extend_from_slice(cookie);
                out.extend_from_slice(proof);
            }
        }
        out
    }
}

impl<'a> Packet<'a> {
    /// Decodes and checks a packet. `None` for anything else: anybody can send to a UDP port.
    pub(crate) fn decode(datagram: &'a [u8]) -> Option<(Id, Self)> {
        let (prefix, rest) = datagram.split_at_checked(PREFIX_BYTES)?;
        if !prefix.starts_with(MAGIC) || prefix[6..8] != [0, 0] || datagram.len() > MAX_PACKET_BYTES {
            return None;
        }
        let packet = match prefix[5] {
            1 => {
                let (time, padding) = rest.split_at_checked(4)?;
                let whole = padding.len() == COOKIE_BYTES && padding.iter().all(|&byte| byte == 0);
                whole.then_some(Self::Open { time: u32_of(time)? })?
            }
            2 => {
                let (echo, cookie) = rest.split_at_checked(4)?;
                Self::Retry { echo: u32_of(echo)?, cookie: cookie.try_into().ok()? }
            }
            3 => {
                let (cookie, rest) = rest.split_at_checked(COOKIE_BYTES)?;
                let (segment, bytes) = Segment::decode(rest)?;
                Self::First { cookie: cookie.try_into().ok()?, segment, bytes }
            }
            4 => {
                let (segment, bytes) = Segment::decode(rest)?;
                Self::Segment { segment, bytes }
            }
            5 if rest.is_empty() => Self::Reset,
            6 => Self::Challenge { cookie: rest.try_into().ok()? },
            7 => {
                let (cookie, proof) = rest.split_at_checked(COOKIE_BYTES)?;
                Self::Answer { cookie: cookie.try_into().ok()?, proof: proof.try_into().ok()? }
            }
            _ => return None,
        };
        Some((prefix[8..].try_into().ok()?, packet))
    }
}

impl Segment {
    fn encode(&self, bytes: &[u8], out: &mut Vec<u8>) {
        let used = self.ranges.iter().filter(|range| range.1 > 0);
        out.extend_from_slice(&self.offset.to_le_bytes());
        out.extend_from_slice(&self.ack.to_le_bytes());
        let numbers = [self.window, self.time, self.echo.unwrap_or(0), self.sent, self.seen, self.received];
        numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
        out.extend_from_slice(&[
            u8::from(self.ends) | u8::from(self.echo.is_some()) << 1,
            used.clone().count() as u8,
        ]);
        for (start, length) in used {
            out.extend_from_slice(&start.to_le_bytes());
            out.extend_from_slice(&length.to_le_bytes());
        }
        out.extend_from_slice(bytes);
    }

    fn decode(body: &[u8]) -> Option<(Self, &[u8])> {
        let (head, rest) = body.split_at_checked(SEGMENT_HEADER_BYTES)?;
        let number = |at: usize| u32_of(&head[at..at + 4]);
        let (flags, count) = (head[40], usize::from(head[41]));
        if flags > 3 || count > MAX_RANGES {
            return None;
        }
        let (listed, bytes) = rest.split_at_checked(8 * count)?;
        let ends = flags & 1 == 1;
        if bytes.len() > MAX_SEGMENT_BYTES || (ends && !bytes.is_empty()) {
            return None;
        }
        let mut ranges = [(0, 0); MAX_RANGES];
        for (range, text) in ranges.iter_mut().zip(listed.chunks_exact(8)) {
            *range = (u32_of(&text[..4])?, u32_of(&text[4..])?);
            if range.1 == 0 {
                return None;
            }
        }
        let echo = (flags & 2 == 2).then_some(number(24)?);
        if echo.is_none() && number(24)? != 0 {
            return None;
        }
        let offset = u64::from_le_bytes(head[..8].try_into().ok()?);
        let ack = u64::from_le_bytes(head[8..16].try_into().ok()?);
        let (window, time, sent) = (number(16)?, number(20)?, number(28)?);
        let (seen, received) = (number(32)?, number(36)?);
        Some((Self { offset, ack, window, time, echo, sent, seen, received, ends, ranges }, bytes))
    }
}

fn u32_of(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: Id = *b"sixteen letters.";

    fn segment() -> Segment {
        let ranges = [(5, 6), (20, 1), (0, 0), (0, 0)];
        Segment {
            offset: u64::MAX,
            ack: 2,
            window: 3,
            time: 4,
            echo: Some(5),
            sent: 6,
            seen: 7,
            received: 8,
            ends: false,
            ranges,
        }
    }

    fn packets(bytes: &[u8]) -> Vec<Packet<'_>> {
        let last = Segment { ends: true, echo: None, ..segment() };
        vec![
            Packet::Open { time: 7 },
            Packet::Retry { echo: u32::MAX, cookie: [9; COOKIE_BYTES] },
            Packet::First { cookie: [8; COOKIE_BYTES], segment: segment(), bytes },
            Packet::Segment { segment: segment(), bytes },
            Packet::Segment { segment: last, bytes: &[] },
            Packet::Reset,
            Packet::Challenge { cookie: [7; COOKIE_BYTES] },
            Packet::Answer { cookie: [6; COOKIE_BYTES], proof: [5; PROOF_BYTES] },
        ]
    }

    #[test]
    fn round_trips() {
        for packet in packets(&[1; MAX_SEGMENT_BYTES]) {
            assert_eq!(Packet::decode(&packet.encode(&ID)), Some((ID, packet)));
        }
    }

    /// So a stranger with a false source address cannot use the listener as an amplifier.
    #[test]
    fn no_answer_to_a_stranger_is_longer_than_the_question() {
        let length = |packet: &Packet<'_>| packet.encode(&ID).len();
        let [open, retry, first, segment, _, reset, challenge, _] = packets(&[]).try_into().unwrap();
        assert!(length(&retry) <= length(&open) && length(&retry) <= length(&first));
        assert!(length(&reset) <= length(&segment));
        let empty = Packet::Segment { segment: Segment::default(), bytes: &[] };
        assert!(length(&challenge) <= length(&empty));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let long = [1; MAX_SEGMENT_BYTES + 1];
        let too_long = Packet::Segment { segment: segment(), bytes: &long }.encode(&ID);
        assert_eq!(Packet::decode(&too_long), None);
        let last = Packet::Segment { segment: Segment { ends: true, ..segment() }, bytes: &[1] };
        assert_eq!(Packet::decode(&last.encode(&ID)), None);
        for packet in packets(&[]) {
            let whole = packet.encode(&ID);
            (0..whole.len()).for_each(|cut| assert_eq!(Packet::decode(&whole[..cut]), None, "{packet:?}"));
        }
    }

    proptest! {
        #[test]
        fn whatever_is_decoded_is_encoded_as_it_was(
            kind in 0..7_u8, rest in prop::collection::vec(any::<u8>(), 0..1300),
        ) {
            let datagram = [&MAGIC[..], &[kind, 0, 0], &ID, &rest].concat();
            if let Some((id, packet)) = Packet::decode(&datagram) {
                prop_assert_eq!(packet.encode(&id), datagram);
            }
            prop_assert_eq!(Packet::decode(&rest), None);
        }
    }
}
