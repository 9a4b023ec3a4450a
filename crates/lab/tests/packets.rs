//! Tests that cut superpackets into runs and check each run's headers by their definitions.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::sync::Arc;

use common::{Made, SMALL, SUPER};
use proptest::prelude::*;
use thalweg_lab::{Packet, VNET};

/// One's complement sum of 16-bit words (RFC 1071).
fn sum(bytes: &[u8]) -> u16 {
    let mut sum = bytes
        .chunks(2)
        .fold(0_u32, |s, w| s + u32::from(w[0]) * 256 + u32::from(w.get(1).copied().unwrap_or(0)));
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn be(bytes: &[u8], place: usize) -> usize {
    usize::from(bytes[place]) * 256 + usize::from(bytes[place + 1])
}

fn check(made: &Made, run: &Packet, first: usize, last: usize) -> Vec<u8> {
    let all = run.parts().concat();
    let (vnet, ip) = all.split_at(VNET);
    let start = made.network();
    let payload = &ip[made.headers()..];
    assert_eq!(run.bytes(), ip.len() + (run.segments() - 1) * made.headers());
    assert_eq!(run.segments(), last - first);
    if made.v6 {
        assert_eq!(be(ip, 4), ip.len() - 40);
    } else {
        assert_eq!(be(ip, 2), ip.len());
        let whole = made.payload.div_ceil(made.segment) == last - first;
        assert_eq!(be(ip, 4), (65_530 + first) % 65_536);
        assert!(whole || sum(&ip[..20]) == 0xffff, "the IP header's checksum");
    }
    if made.udp {
        assert_eq!(be(ip, start + 4), ip.len() - start);
    } else {
        let sequence = u32::from_be_bytes(ip[start + 4..start + 8].try_into().unwrap());
        assert_eq!(sequence, (u32::MAX - 5000).wrapping_add((first * made.segment) as u32));
        let ends = (last * made.segment >= made.payload, first == 0);
        assert_eq!(ip[start + 13] & 0x09 != 0, ends.0, "FIN and PSH are the last run's");
        assert_eq!(ip[start + 13] & 0x80 != 0, ends.1, "CWR is the first run's");
    }
    assert_eq!(vnet[1] == 0, last - first == 1, "a single segment is no superpacket");
    payload.to_vec()
}

fn cut(made: &Made, cuts: &[usize]) {
    let packet = made.packet();
    let segments = made.payload.div_ceil(made.segment);
    assert_eq!(packet.segments(), segments);
    let mut edges: Vec<_> = cuts.iter().map(|c| c % (segments + 1)).chain([0, segments]).collect();
    edges.sort_unstable();
    edges.dedup();
    let mut joined = Vec::new();
    for edge in edges.windows(2) {
        let run = packet.run(edge[0]..edge[1]);
        joined.extend(check(made, &run, edge[0], edge[1]));
        if edge[1] - edge[0] < segments {
            pseudo(made, &run);
            // The packet that `Packet::run` returns can itself be cut again.
            if run.segments() > 1 {
                check(made, &run.run(1..run.segments()), edge[0] + 1, edge[1]);
            }
        }
    }
    assert_eq!(joined, made.bytes()[VNET + made.headers()..]);
}

/// Checks that the checksum field holds the sum of the pseudo-header, which the receiver's kernel completes.
fn pseudo(made: &Made, run: &Packet) {
    let all = run.parts().concat();
    let ip = &all[VNET..];
    let start = made.network();
    let addresses = if made.v6 { &ip[8..40] } else { &ip[12..20] };
    let protocol = if made.udp { 17 } else { 6 };
    let mut header = addresses.to_vec();
    header.extend(((ip.len() - start) as u32).to_be_bytes());
    header.extend([0, 0, 0, protocol]);
    let field = start + if made.udp { 6 } else { 16 };
    assert_eq!(be(ip, field), usize::from(sum(&header)));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn runs_are_packets_of_their_own(
        v6: bool, udp: bool, payload in 2_usize..60_000, segment in 1_usize..1449, cuts in prop::collection::vec(0_usize..1000, 0..6)
    ) {
        prop_assume!(payload > segment);
        cut(&Made { v6, udp, payload, segment, ..SMALL }, &cuts);
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0_u8..6) {
        let mut bytes = bytes;
        if let Some(place) = bytes.get_mut(1) {
            *place = kind;
        }
        let length = bytes.len();
        if let Some(packet) = Packet::read(Arc::new(bytes), length) {
            for i in 0..packet.segments() {
                packet.run(i..i + 1);
            }
        }
    }
}

#[test]
fn a_packet_knows_its_segments() {
    assert_eq!((SMALL.packet().segments(), SMALL.packet().bytes()), (1, 1500));
    let packet = SUPER.packet();
    assert_eq!((packet.segments(), packet.segment_bytes(0), packet.segment_bytes(43)), (44, 1500, 1400));
    assert_eq!(packet.bytes(), 44 * 1500 - 100);
}

#[test]
fn what_is_no_ip_packet_is_refused() {
    for bytes in [vec![], vec![0; 5], vec![0; 40], vec![0xff; 60]] {
        let length = bytes.len();
        assert!(Packet::read(Arc::new(bytes), length).is_none());
    }
    let mut bytes = SUPER.bytes();
    bytes[4..6].fill(0);
    let length = bytes.len();
    assert!(Packet::read(Arc::new(bytes), length).is_none(), "segments of no bytes");
}
