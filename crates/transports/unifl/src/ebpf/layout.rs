//! What is in the maps that the programs share with us, as `crates/ebpf/programs/flow.h` lays it out.

use std::net::{IpAddr, SocketAddr};

use thalweg_tcp::line::{Hole, PREAMBLE_BYTES};
use thalweg_wire::HEADER_BYTES;

/// Where the first frame begins.
const PREAMBLE: u64 = PREAMBLE_BYTES as u64;

/// `struct tuple`: the remote address and ours, the remote port and ours.
pub(super) type Key = [u8; 36];
/// `struct opening`.
pub(super) type Opening = [u8; 8];
/// `struct wish`.
pub(super) type Wished = [u64; 7];
/// `struct flow`, with the holes that are remembered.
pub(super) type Words = [u64; 30 + 2 * 128];

/// Microseconds in which the least of a measure is taken.
const SPAN: u64 = 4096;
/// What a measure is in which nothing was measured.
const UNKNOWN: u64 = u64::MAX >> 1;

/// The key of a connection.
pub(super) fn key(remote: SocketAddr, local: SocketAddr) -> Key {
    let mut key = [0; 36];
    let octets = |address: SocketAddr| match address.ip() {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    };
    key[..16].copy_from_slice(&octets(remote));
    key[16..32].copy_from_slice(&octets(local));
    key[32..34].copy_from_slice(&remote.port().to_be_bytes());
    key[34..].copy_from_slice(&local.port().to_be_bytes());
    key
}

/// The port as the programs compare it.
pub(super) fn port(port: u16) -> u32 {
    u16::from_ne_bytes(port.to_be_bytes()).into()
}

/// What a handshake said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Handshake {
    /// Sequence number of the stream's first byte.
    pub first: u32,
    /// How far our window is shifted.
    pub scale: u16,
    /// The largest segment that we take; 0 if nothing was said.
    pub largest: u16,
}

impl Handshake {
    pub(super) fn read(bytes: &Opening) -> Self {
        let [a, b, c, d, e, f, g, h] = *bytes;
        Self {
            first: u32::from_ne_bytes([a, b, c, d]),
            scale: u16::from_ne_bytes([e, f]),
            largest: u16::from_ne_bytes([g, h]),
        }
    }

    /// A connection of which the preamble has come, or nothing yet: no header in front of it is missed.
    pub(super) fn flow(&self) -> Words {
        let mut words = [0; 30 + 2 * 128];
        words[0] = join(0, self.first);
        words[1] = PREAMBLE;
        (words[7], words[8]) = (PREAMBLE, PREAMBLE);
        words
    }
}

/// Where in its frames a stream is: `struct frames`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Frames {
    /// Offset of the next header.
    pub head: u64,
    /// Where the payload in front of it begins.
    pub payload: u64,
    /// Which update, by round and sender.
    pub update: u64,
    /// Where its first payload began.
    pub update_from: u64,
}

/// What is wanted of a flow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Wish {
    /// Bytes beyond the highest that the sender may send.
    pub window: u32,
    /// Millionths of an update that may be masked.
    pub budget: u32,
    pub frames: Frames,
    /// Microseconds of a tick of the sender's clock; 0 while unknown.
    pub tick: u64,
    pub scale: u16,
}

impl Wish {
    pub(super) fn write(&self) -> Wished {
        let Frames { head, payload, update, update_from } = self.frames;
        let pair = join(self.window, self.budget);
        [pair, head, payload, update, update_from, self.tick, join(self.scale.into(), 0)]
    }
}

/// What has become of a flow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Seen {
    /// One past the highest offset.
    pub high: u64,
    /// Right edge of the window that was advertised last.
    pub edge: u64,
    pub delivered: u64,
    pub masked: u64,
    /// Holes masked.
    pub holes: u64,
    pub frames: Frames,
    /// Of the update that is coming: bytes masked or left to be repaired.
    pub update_lost: u64,
    /// Both ends have ended it, or one has reset it.
    pub ended: bool,
    /// Whether the sender has timestamps.
    pub stamped: bool,
    /// Microseconds that the sender's clock has been watched, and its ticks in them.
    pub watched: u64,
    pub ticks: i64,
    /// The span of the newest measures; the least round trip in microseconds, and the least time on the way.
    pub span: u64,
    pub trip: Option<u64>,
    pub way: Option<i64>,
}

impl Seen {
    pub(super) fn read(words: &Words) -> Self {
        let (clock, stamp) = split(words[15]);
        let measures: [[u64; 3]; 2] = [[words[16], words[17], words[18]], [words[19], words[20], words[21]]];
        let span = measures[0][0].max(measures[1][0]);
        let recent = || measures.iter().filter(|measure| measure[0] + 1 >= span);
        let known = |value: u64| (value != UNKNOWN && span > 0).then_some(value);
        Self {
            high: words[1],
            edge: words[23],
            delivered: words[2],
            masked: words[3],
            holes: words[6],
            frames: Frames { head: words[7], payload: words[8], update: words[9], update_from: words[10] },
            update_lost: words[11] + words[12],
            ended: words[13] == 3,
            stamped: words[14] > 0,
            watched: (span * SPAN).saturating_sub(words[14]),
            ticks: i64::from(stamp.wrapping_sub(clock).cast_signed()),
            span,
            trip: recent().filter_map(|measure| known(measure[1])).min(),
            way: recent().filter_map(|measure| known(measure[2])).map(u64::cast_signed).min(),
        }
    }
}

/// A hole, whose, and which of that flow's, from 1: `struct event`.
pub(super) fn event(bytes: &[u8]) -> Option<(Key, u32, Hole)> {
    let (key, rest) = bytes.split_first_chunk::<36>()?;
    let (number, rest) = rest.split_first_chunk::<4>()?;
    let (place, rest) = rest.split_first_chunk::<8>()?;
    let length = rest.first_chunk::<8>()?;
    let hole = Hole { place: u64::from_ne_bytes(*place), length: u64::from_ne_bytes(*length) };
    Some((*key, u32::from_ne_bytes(*number), hole))
}

/// Two numbers that follow on each other.
fn join(first: u32, second: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

fn split(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
    (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]))
}

/// Bytes of a frame's header, which the programs know too.
const _: () = assert!(HEADER_BYTES == 52);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_as_packets_have_them() {
        let (remote, local) = ("10.0.0.1:258".parse().ok(), "[fd77::2]:7070".parse().ok());
        let key = remote.zip(local).map(|(remote, local)| super::key(remote, local)).unwrap_or([0; 36]);
        assert_eq!(key[..16], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]);
        assert_eq!((key[16], key[31]), (0xfd, 2));
        assert_eq!(key[32..], [1, 2, 27, 158]);
    }

    #[test]
    fn measures_are_those_of_the_newest_two_spans() {
        let mut words = Handshake { first: 7, scale: 2, largest: 1460 }.flow();
        assert_eq!(split(words[0]), (0, 7));
        let seen = Seen::read(&words);
        assert_eq!((seen.trip, seen.way, seen.frames.head), (None, None, PREAMBLE));
        words[15] = join(u32::MAX, 4);
        (words[16], words[17], words[18]) = (100, 40_000, UNKNOWN);
        (words[19], words[20], words[21]) = (99, 39_000, (-5_i64).cast_unsigned());
        let seen = Seen::read(&words);
        assert_eq!((seen.ticks, seen.trip, seen.way), (5, Some(39_000), Some(-5)));
        words[16] = 101;
        assert_eq!(Seen::read(&words).trip, Some(40_000), "what is older does not count");
    }

    #[test]
    fn an_event_that_is_cut_short_is_none() {
        let mut bytes = vec![0; 56];
        bytes[40] = 9;
        bytes[48] = 5;
        let wanted = u64::from_ne_bytes([9, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(event(&bytes).map(|(_, _, hole)| hole.place), Some(wanted));
        assert_eq!(event(&bytes[..50]), None);
    }
}
