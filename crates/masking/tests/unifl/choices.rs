//! What the application chooses: which holes are masked, held or refused. It does not depend on the peer.

use thalweg_masking::{Budget, Ended, Excess, Offload};
use thalweg_wire::Range;

use super::client::{config, syn, Client, MS};
use super::traps::{holes, reliable, M};
use super::wire::*;

#[test]
fn keep_alives_are_answered_and_their_byte_means_nothing() {
    let mut c = Client::connected(config());
    c.data(0, M as usize);
    c.data(2 * M, M as usize);
    c.pass(100 * MS);
    c.data(4 * M, 0);
    for payload in [&[][..], b"x"] {
        c.output.clear();
        c.say(ACK, 3 * M - 1, payload);
        assert_eq!((c.output.len(), c.acked()), (1, Some(3 * M)));
    }
}

#[test]
fn what_was_held_is_masked_once_it_is_permitted_but_for_what_the_sender_was_told_of() {
    for reported in [false, true] {
        let mut c = Client::with(reliable(), Seg { sack_ok: reported, ..syn() });
        c.finish_handshake();
        let flow = c.app.flow.unwrap();
        for i in [1, 3, 5] {
            c.data(i * M, M as usize);
        }
        assert_eq!((c.acked(), c.blocks().len()), (Some(0), if reported { 3 } else { 0 }));
        c.endpoint.permit(c.now, flow, Range::new(0, 3 * M + 100));
        c.pass(100 * MS);
        let (masked, acked) = if reported { (vec![], 0) } else { (vec![(0, M), (2 * M, 3 * M)], 4 * M) };
        assert_eq!((holes(&c), c.acked()), (masked, Some(acked)));
        c.data(0, M as usize);
        c.data(2 * M, M as usize);
        assert_eq!((c.acked(), c.app.late), (Some(4 * M), if reported { 0 } else { 2 * M }));
    }
}

#[test]
fn what_is_masked_and_permitted_and_protected_again() {
    let mut c = Client::connected(reliable());
    let flow = c.app.flow.unwrap();
    c.data(0, 6 * M as usize);
    c.endpoint.permit(c.now, flow, Range::new(0, u64::MAX));
    c.data(7 * M, M as usize);
    c.endpoint.protect(c.now, flow, Range::new(6 * M, 6 * M + 10));
    c.pass(100 * MS);
    assert_eq!((c.acked(), holes(&c).last().copied()), (Some(6 * M), Some((6 * M + 10, 7 * M))));
    c.data(6 * M, M as usize);
    assert_eq!((c.acked(), c.app.late), (Some(8 * M), M - 10));
    // The other bytes came with the retransmission, so they are not reported as a duplicate.
    assert_eq!(c.blocks(), vec![]);
}

#[test]
fn over_its_budget_a_flow_is_repaired_and_over_the_limit_refused() {
    let mut c = Client::connected(config());
    let flow = c.app.flow.unwrap();
    let ranges = [Range::new(0, 100 * M)].into_iter().collect();
    c.endpoint.limit(c.now, flow, Budget { ranges, mask: 0.02, refuse: 0.05, at_least: 0, of: None });
    for i in 0..6 {
        c.data((2 * i + 1) * M, M as usize);
        c.pass(100 * MS);
    }
    assert_eq!(holes(&c), [(0, M), (2 * M, 3 * M)]);
    assert_eq!(c.app.ended, Some(Ended::Lossy(Excess { lost: 6 * M, of: 100 * M, budget: 0 })));
    assert_eq!((c.output.last().unwrap().flags & RST, c.endpoint.flows()), (RST, 0));
}

/// Late bytes are of no use if the application has already passed the hole.
#[test]
fn late_bytes_give_a_budget_back_only_if_they_are_of_use() {
    for of_use in [false, true] {
        let mut c = Client::connected(config());
        let flow = c.app.flow.unwrap();
        let ranges = [Range::new(0, 100 * M)].into_iter().collect();
        c.endpoint.limit(c.now, flow, Budget { ranges, mask: 0.02, refuse: 1.0, at_least: 0, of: None });
        for start in [M, 3 * M] {
            c.data(start, M as usize);
            c.pass(100 * MS);
        }
        c.data(0, M as usize);
        assert_eq!(c.app.late, M);
        if of_use {
            c.endpoint.filled(c.now, flow, Range::new(0, M));
        }
        c.data(5 * M, M as usize);
        c.pass(100 * MS);
        assert_eq!(c.acked(), Some(if of_use { 6 * M } else { 4 * M }), "{of_use}");
    }
}

#[test]
fn many_blocks_are_each_reported() {
    let mut c = Client::connected(reliable());
    let packets: Vec<Vec<u8>> =
        (0..20).map(|i| c.at(ACK, (2 * i + 1) * M, &bytes((2 * i + 1) * M, M as usize)).encode()).collect();
    c.highest = c.highest.wrapping_add(60 * M as u32);
    for packet in &packets {
        let mut turn = c.endpoint.handle_packet(c.now, packet, Offload::default());
        while let Some(event) = turn.poll_event() {
            c.app.see(event);
        }
    }
    c.listen();
    let mut seen: Vec<(u32, u32)> = c.output.iter().flat_map(|seg| seg.sack.clone()).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 20);
    assert_eq!(c.output.len(), 7, "three in each");
}

#[test]
fn ipv6_is_the_same() {
    let mut c = Client::with(config(), Seg { v6: true, ..syn() });
    assert_eq!(c.output[0].mss, Some(1440));
    c.finish_handshake();
    for i in [0, 1, 3, 4, 5] {
        c.data(i * 1428, 1428);
    }
    assert_eq!((holes(&c), c.acked()), (vec![(2 * 1428, 3 * 1428)], Some(6 * 1428)));
}

#[test]
fn a_peer_without_timestamps_or_sack() {
    for (stamps, sack_ok) in [(false, true), (true, false), (false, false)] {
        let plain = Seg { stamps: syn().stamps.filter(|_| stamps), sack_ok, ..syn() };
        let mut c = Client::with(reliable(), plain);
        assert_eq!((c.output[0].stamps.is_some(), c.output[0].sack_ok), (stamps, sack_ok));
        c.finish_handshake();
        c.data(0, M as usize);
        c.output.clear();
        for i in 2..6 {
            c.data(i * M, M as usize);
        }
        assert_eq!(c.output.len(), 4, "one duplicate for each");
        assert!(c.output.iter().all(|seg| seg.sack.is_empty() != sack_ok && seg.stamps.is_some() == stamps));
        c.data(M, M as usize);
        assert_eq!(c.acked(), Some(6 * M));
        let flow = c.app.flow.unwrap();
        c.endpoint.permit(c.now, flow, Range::new(0, u64::MAX));
        c.data(7 * M, 3 * M as usize);
        c.pass(100 * MS);
        assert_eq!((holes(&c), c.acked()), (vec![(6 * M, 7 * M)], Some(10 * M)));
    }
}
