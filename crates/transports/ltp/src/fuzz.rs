//! What must hold for any datagram; for libFuzzer, and for the test below.

use thalweg_udp::datagram::{Encode, Key};

use crate::packet::{Datagram, Kind, CHUNK_HEADER_BYTES};

const KEY: Key = *b"a link's own key";

/// A datagram of the link decodes to what encodes to it again, or is none; a chunk is as long as it says, and ranges
/// that are acknowledged fall and do not touch.
pub fn datagram(bytes: &[u8]) {
    let Some(datagram) = Datagram::decode(&KEY, bytes) else { return };
    let mut again = Vec::new();
    datagram.encode(&KEY, &mut again);
    match &datagram.kind {
        Kind::Chunk(part, header) => {
            assert!(part.index < part.of && bytes.len() == CHUNK_HEADER_BYTES + header.length());
            again.extend_from_slice(&bytes[CHUNK_HEADER_BYTES..]);
        }
        Kind::Probe => {}
        Kind::Ack(ack) => {
            assert!(ack.ranges.iter().all(|range| !range.is_empty()));
            assert!(ack.ranges.windows(2).all(|pair| pair[1].end < pair[0].start));
        }
    }
    let Some(read) = Datagram::decode(&KEY, &again) else { unreachable!("what was read is not read again") };
    assert_eq!((read.kind, read.told), (datagram.kind, datagram.told));
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_proto::ltp::{Ack, Closed, Part};
    use thalweg_udp::datagram::PREFIX_BYTES;
    use thalweg_wire::{checksum, ChunkHeader, FrameHeader, LayoutHash, Range};

    fn samples() -> Vec<Vec<u8>> {
        let payload = [7; 100];
        let chunk =
            ChunkHeader { job: 1, round: 2, sender: 3, layout: LayoutHash(4), offset: 5, length: 100 };
        let part = Part { transfer: 6, index: 7, of: 8 };
        let ranges = [(90, 100), (50, 60), (1, 3)].map(|(start, end)| Range::new(start, end)).to_vec();
        let kinds = [
            (Kind::Chunk(part, FrameHeader::chunk(chunk, checksum(&payload))), &payload[..]),
            (Kind::Probe, &[]),
            (Kind::Ack(Ack { ranges, closed: Some((6, Closed::Fraction)) }), &[]),
            (Kind::Ack(Ack { ranges: Vec::new(), closed: None }), &[]),
        ];
        let encode = |(kind, payload): (Kind, &[u8])| {
            let mut out = Vec::new();
            Datagram { kind, told: 8, number: 9 }.encode(&KEY, &mut out);
            [&out, payload].concat()
        };
        kinds.into_iter().map(encode).collect()
    }

    /// The link's key at the beginning, and often a chunk's checksum that fits.
    fn mend(dice: &mut thalweg_conformance::Dice, bytes: &mut [u8]) {
        let frame = CHUNK_HEADER_BYTES - thalweg_wire::HEADER_BYTES;
        if dice.below(4) > 0 && bytes.len() > PREFIX_BYTES {
            bytes[..KEY.len()].copy_from_slice(&KEY);
            if let Some(frame) = bytes.get_mut(frame..) {
                thalweg_conformance::repair(dice, frame);
            }
        }
    }

    #[test]
    fn damaged_datagrams_are_refused_or_read_back() {
        thalweg_conformance::damage(&samples(), mend, datagram);
    }
}
