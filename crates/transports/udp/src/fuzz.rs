//! Properties that hold for any input bytes. libFuzzer checks them, and so do the tests below.

use std::time::Duration;

use thalweg_seal::{Cipher, Secret, TAG_BYTES};

use crate::control::packet::Packet;
use crate::control::stream::Stream;
use crate::datagram::{Datagram, Encode, Key, Kind, CHUNK_HEADER_BYTES, PREFIX_BYTES};
use crate::moving::AddressMessage;
use crate::secure::{End, Seal};

/// The key of the link that the datagrams belong to.
pub const KEY: Key = *b"a link's own key";
/// Where a chunk's frame begins in a datagram.
pub const FRAME: usize = PREFIX_BYTES;

/// Decoding either fails, or encoding the result gives a datagram that decodes to the same. A chunk has the
/// length that its header says.
pub fn datagram(bytes: &[u8]) {
    let mut again = Vec::new();
    if let Some(message) = AddressMessage::read(&KEY, bytes) {
        message.encode(&KEY, &mut again);
        assert_eq!(again, bytes);
        again.clear();
    }
    let Some(datagram) = Datagram::decode(&KEY, bytes) else { return };
    datagram.encode(&KEY, &mut again);
    assert!(again.len() <= bytes.len() && datagram.message_count < 1 << 48);
    if let Kind::Chunk(header) = datagram.kind {
        assert_eq!(bytes.len(), CHUNK_HEADER_BYTES + header.length());
        again.extend_from_slice(&bytes[CHUNK_HEADER_BYTES..]);
    }
    assert_eq!(Datagram::decode(&KEY, &again), Some(datagram));
}

/// Decoding a packet of a control stream either fails, or encoding the result gives the same bytes. The two
/// ends of a stream handle any packet without a panic. Whatever packets a script sends them, they send and
/// keep no more than their bounds allow.
pub fn control(bytes: &[u8]) {
    if let Some((id, packet)) = Packet::decode(bytes) {
        assert_eq!(packet.encode(&id), bytes);
        if let Packet::First { segment, bytes, .. } | Packet::Segment { segment, bytes } = packet {
            let now = Duration::from_millis(10);
            let mut stream = Stream::new(Duration::ZERO, None);
            stream.write(&[7; 3000]);
            while stream.poll_transmit(now).is_some() {}
            stream.handle(now, &segment, bytes);
            assert!(std::iter::from_fn(|| stream.poll_transmit(now)).take(100).count() < 100);
        }
    }
}

/// A damaged, cut or unsealed datagram does not open and changes nothing, so the intact one still opens,
/// exactly once. The first input byte chooses the byte to damage, the second how; the rest is the plaintext.
pub fn sealed(bytes: &[u8]) {
    let Some(([at, with], contents)) = bytes.split_first_chunk::<2>() else { return };
    let secret = Secret::new(Cipher::ChaCha20Poly1305, &[9; 32], &KEY);
    let seal = |end| Seal::new(&secret, "udp", 0, end);
    let (here, there) = (seal(End::Connecting), seal(End::Listening));
    let mut plain = [&KEY[..], &[0; PREFIX_BYTES - KEY.len()], contents].concat();
    let mut good = plain.clone();
    here.close(&mut good, 0);
    assert_eq!(good.len(), plain.len() + TAG_BYTES);
    let mut damaged = good.clone();
    let at = usize::from(*at) % damaged.len();
    damaged[at] ^= with.max(&1);
    assert_eq!(there.open(&KEY, &mut damaged), None);
    assert_eq!(there.open(&KEY, &mut good[..at].to_vec()), None);
    assert_eq!(there.open(&KEY, &mut plain), None);
    let mut opened = good.clone();
    assert_eq!(there.open(&KEY, &mut opened), Some(plain.len()));
    assert_eq!(opened[PREFIX_BYTES..plain.len()], *contents);
    assert_eq!(there.open(&KEY, &mut good), None, "it came before");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::packet::Segment;
    use thalweg_wire::{checksum, ChunkHeader, FrameHeader, LayoutHash};

    fn samples() -> Vec<Vec<u8>> {
        let payload = [7; 100];
        let chunk =
            ChunkHeader { job: 1, round: 2, sender: 3, layout: LayoutHash(4), offset: 5, length: 100 };
        let kinds = [
            (Kind::Chunk(FrameHeader::chunk(chunk, checksum(&payload))), &payload[..]),
            (Kind::Probe, &[]),
            (Kind::Report(77), &[]),
            (Kind::Hello, &[]),
        ];
        let encode = |(kind, payload): (Kind, &[u8])| {
            let mut out = Vec::new();
            Datagram { kind, report_wanted: true, message_count: 8, position: 9 }.encode(&KEY, &mut out);
            [&out, payload].concat()
        };
        let messages =
            [AddressMessage::Challenge([7; 24]), AddressMessage::Answer([8; 24]), AddressMessage::Here].map(
                |message| {
                    let mut out = Vec::new();
                    message.encode(&KEY, &mut out);
                    out
                },
            );
        kinds.into_iter().map(encode).chain(messages).collect()
    }

    /// Usually writes the link's key to the beginning, and often corrects a chunk's checksum, so that more
    /// inputs pass the first checks.
    fn mend(rng: &mut thalweg_conformance::Rng, bytes: &mut [u8]) {
        if rng.below(4) > 0 && bytes.len() > PREFIX_BYTES {
            bytes[..KEY.len()].copy_from_slice(&KEY);
            thalweg_conformance::repair(rng, &mut bytes[PREFIX_BYTES..]);
        }
    }

    #[test]
    fn damaged_datagrams_are_refused_or_read_back() {
        thalweg_conformance::damage(&samples(), mend, datagram);
    }

    #[test]
    fn damaged_packets_of_a_control_stream_are_refused_or_read_back() {
        let segment = Segment { ack: 1088, window: 9, sent: 1, ..Segment::default() };
        let samples = [
            Packet::Open { time: 7 },
            Packet::Retry { echo: 7, cookie: [1; 24] },
            Packet::First { cookie: [1; 24], segment, bytes: b"first" },
            Packet::Segment { segment, bytes: b"more" },
            Packet::Reset,
            Packet::Challenge { cookie: [1; 24] },
            Packet::Answer { cookie: [1; 24], proof: [2; 16] },
        ];
        let samples: Vec<Vec<u8>> = samples.iter().map(|packet| packet.encode(&KEY)).collect();
        thalweg_conformance::damage(&samples, |_, _| {}, control);
    }

    #[test]
    fn damaged_sealed_datagrams_are_refused() {
        thalweg_conformance::damage(&samples(), |_, _| {}, sealed);
    }
}
