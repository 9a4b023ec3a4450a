//! Layout of the maps that the eBPF programs share with us. It follows `crates/ebpf/programs/flow.h`.

use std::net::{IpAddr, SocketAddr};

use thalweg_tcp::line::{Hole, PREAMBLE_BYTES};
use thalweg_wire::{Range, Ranges, HEADER_BYTES};

/// Stream offset of the first frame.
const PREAMBLE: u64 = PREAMBLE_BYTES as u64;

/// `struct tuple`: the remote address, our address, the remote port, our port.
pub(super) type Key = [u8; 36];
/// `struct opening`.
pub(super) type Opening = [u8; 8];
/// `struct wish`.
pub(super) type Wished = [u64; 10];
/// `struct flow`, including the holes that the program remembers.
pub(super) type Words = [u64; WORDS];

/// `struct critical`.
pub(super) type Critical = [u64; 1 + 2 * CRITICAL];

/// Maximum number of critical ranges of a flow.
const CRITICAL: usize = 64;
/// Words of a flow besides its holes, and two words for each hole.
const WORDS: usize = 44 + 2 * 256;

/// Length of a span of measurements, in microseconds.
const SPAN: u64 = 4096;
/// Value of a measurement without samples.
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

/// The port in the form in which the programs compare it.
pub(super) fn port(port: u16) -> u32 {
    u16::from_ne_bytes(port.to_be_bytes()).into()
}

/// The values that the programs learned from the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Handshake {
    /// Sequence number of the stream's first byte.
    pub first: u32,
    /// Shift of our window.
    pub scale: u16,
    /// Maximum segment size that we announced; 0 if we announced none.
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

    /// The initial state of a connection. At most its preamble has arrived, so the programs miss no header.
    pub(super) fn flow(&self) -> Words {
        let mut words = [0; WORDS];
        words[0] = join(0, self.first);
        words[1] = PREAMBLE;
        (words[7], words[8]) = (PREAMBLE, PREAMBLE);
        words
    }
}

/// The position of a stream in its frames (`struct frames`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Frames {
    /// Offset of the next header.
    pub head: u64,
    /// Stream offset of the payload before that header.
    pub payload: u64,
    /// The current update: round and sender.
    pub update: u64,
    /// Stream offset at which the payload of its first chunk began.
    pub update_from: u64,
    /// Offset of the last chunk within the update.
    pub offset: u64,
    /// The end of the part of the update that all chunks so far have.
    pub top: u64,
}

impl Frames {
    fn write(&self) -> [u64; 6] {
        let Self { head, payload, update, update_from, offset, top } = *self;
        [head, payload, update, update_from, offset, top]
    }

    fn read([head, payload, update, update_from, offset, top]: [u64; 6]) -> Self {
        Self { head, payload, update, update_from, offset, top }
    }
}

/// The settings that the back end gives the programs for a flow (`struct wish`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Wish {
    /// Bytes that the sender may send beyond the highest one that has arrived.
    pub window: u32,
    /// The share of an update that may be masked, in millionths.
    pub budget: u32,
    pub frames: Frames,
    /// Microseconds per tick of the sender's clock; 0 while unknown.
    pub tick: u64,
    pub scale: u16,
    /// Number of bytes of an update that may be masked in any case. Beyond them, the budget is a fraction of
    /// the bytes that have arrived.
    pub first: u32,
    /// Minimum RTT in microseconds; 0 while unknown.
    pub trip: u64,
}

impl Wish {
    pub(super) fn write(&self) -> Wished {
        let mut words = [0; 10];
        words[0] = join(self.window, self.budget);
        words[1..7].copy_from_slice(&self.frames.write());
        words[7..].copy_from_slice(&[self.tick, join(self.scale.into(), self.first), self.trip]);
        words
    }
}

/// State of a flow, as the programs report it (`struct flow`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct FlowReport {
    /// One past the highest offset that has arrived.
    pub high: u64,
    /// Right edge of the window that was advertised last.
    pub right_edge: u64,
    pub delivered: u64,
    pub masked: u64,
    /// Number of masked holes.
    pub holes: u64,
    pub frames: Frames,
    /// Bytes of the current update that were masked, or left for the sender to retransmit.
    pub update_lost: u64,
    /// Whether both ends have closed the connection, or one has reset it.
    pub ended: bool,
    /// Whether the sender uses timestamps.
    pub stamped: bool,
    /// How long the programs have watched the sender's clock, in microseconds, and by how many ticks it
    /// advanced meanwhile.
    pub watched: u64,
    pub ticks: i64,
    /// Number of the newest span of measurements; minimum RTT in microseconds; minimum one-way delay.
    pub span: u64,
    pub trip: Option<u64>,
    pub way: Option<i64>,
}

impl FlowReport {
    pub(super) fn read(words: &Words) -> Self {
        let (clock, stamp) = split(words[17]);
        let measures: [[u64; 3]; 2] = [[words[18], words[19], words[20]], [words[21], words[22], words[23]]];
        let span = measures[0][0].max(measures[1][0]);
        let recent = || measures.iter().filter(|measure| measure[0] + 1 >= span);
        let known = |value: u64| (value != UNKNOWN && span > 0).then_some(value);
        Self {
            high: words[1],
            right_edge: words[25],
            delivered: words[2],
            masked: words[3],
            holes: words[6],
            frames: Frames::read([words[7], words[8], words[9], words[10], words[11], words[12]]),
            update_lost: words[13] + words[14],
            ended: words[15] == 3,
            stamped: words[16] > 0,
            watched: (span * SPAN).saturating_sub(words[16]),
            ticks: i64::from(stamp.wrapping_sub(clock).cast_signed()),
            span,
            trip: recent().filter_map(|measure| known(measure[1])).min(),
            way: recent().filter_map(|measure| known(measure[2])).map(u64::cast_signed).min(),
        }
    }
}

/// The critical ranges, as the programs read them. If there are too many, the ranges with the smallest gaps
/// between them are joined.
pub(super) fn critical(ranges: &Ranges) -> Critical {
    let all: Vec<Range> = ranges.iter().collect();
    let mut between: Vec<usize> = (1..all.len()).collect();
    between.sort_by_key(|&at| std::cmp::Reverse(all[at].start - all[at - 1].end));
    between.truncate(CRITICAL - 1);
    let mut words = [0; 1 + 2 * CRITICAL];
    let mut at = 0;
    for (index, range) in all.iter().enumerate() {
        if index == 0 || between.contains(&index) {
            at += 1;
            words[2 * at - 1] = range.start;
        }
        words[2 * at] = range.end;
    }
    words[0] = at as u64;
    words
}

/// A hole, its connection, and its number among the holes of that flow, from 1 (`struct event`).
pub(super) fn event(bytes: &[u8]) -> Option<(Key, u32, Hole)> {
    let (key, rest) = bytes.split_first_chunk::<36>()?;
    let (number, rest) = rest.split_first_chunk::<4>()?;
    let (place, rest) = rest.split_first_chunk::<8>()?;
    let length = rest.first_chunk::<8>()?;
    let hole = Hole { place: u64::from_ne_bytes(*place), length: u64::from_ne_bytes(*length) };
    Some((*key, u32::from_ne_bytes(*number), hole))
}

/// Joins two consecutive 32-bit fields.
fn join(first: u32, second: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

fn split(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
    (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]))
}

/// The programs contain the length of a frame header as a constant.
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
        let seen = FlowReport::read(&words);
        assert_eq!((seen.trip, seen.way, seen.frames.head), (None, None, PREAMBLE));
        words[17] = join(u32::MAX, 4);
        (words[18], words[19], words[20]) = (100, 40_000, UNKNOWN);
        (words[21], words[22], words[23]) = (99, 39_000, (-5_i64).cast_unsigned());
        let seen = FlowReport::read(&words);
        assert_eq!((seen.ticks, seen.trip, seen.way), (5, Some(39_000), Some(-5)));
        words[18] = 101;
        assert_eq!(FlowReport::read(&words).trip, Some(40_000), "what is older does not count");
    }

    #[test]
    fn ranges_that_have_no_place_become_one_with_those_beside_them() {
        let of = |ranges: &[(u64, u64)]| critical(&ranges.iter().map(|&(a, b)| Range::new(a, b)).collect());
        assert_eq!(of(&[(8, 16), (32, 40)])[..6], [2, 8, 16, 32, 40, 0]);
        // The smallest gap is the one between the last two ranges.
        let mut many: Vec<(u64, u64)> = (0..64).map(|n| (100 * n, 100 * n + 8)).collect();
        many.push((6310, 6320));
        let words = of(&many);
        assert_eq!((words[0], words[127], words[128]), (64, 6300, 6320));
        let holds = |range: &(u64, u64)| {
            (0..64).any(|at| words[2 * at + 1] <= range.0 && range.1 <= words[2 * at + 2])
        };
        assert!(many.iter().all(holds));
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
