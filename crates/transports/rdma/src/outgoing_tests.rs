//! Tests of `outgoing` with a peer that the test plays. No byte moves.
#![allow(clippy::unwrap_used)] // a panic is how tests report

use thalweg_arena::Arena;
use thalweg_verbs::pretend::{connected, Behaviour, Fabric, Pretend};

use super::*;
use crate::ends::extent;
use crate::settings::Choices;
use crate::NOTES;

/// A side that writes over so many pairs, and the peer's ends of them.
fn outgoing(pairs: usize) -> (Outgoing, Vec<Box<dyn Pair>>) {
    let device: Arc<dyn Device> = Arc::new(Pretend::new(&Arc::new(Fabric::default()), Behaviour::default()));
    let ends = (0..pairs).map(|_| connected(&*device, &*device, NOTES).unwrap());
    let (ours, theirs): (Vec<_>, _) = ends.unzip();
    let ring = Remote { address: 0, key: 0 };
    let ours = ours.into_iter().map(|pair| (pair, ring)).collect();
    let Choices { mover, style, .. } = Choices::read(&Default::default()).unwrap();
    let pool = Arc::new(Pool::new(device.clone()));
    (Outgoing::new(device, pool, ours, (mover, style), Arc::default()).unwrap(), theirs)
}

/// The peer's end of a new pair is lost before its ring is open. The peer then never says where the ring is, so the
/// pair must be replaced by the word that it is lost.
#[test]
fn a_pair_is_replaced_although_its_ring_was_never_open() {
    let ((mut outgoing, _theirs), outbox) = (outgoing(2), Outbox::new().0);
    for epoch in 0..2 {
        outgoing.handle_word(Word::Broken { pair: 1, epoch }, &outbox).unwrap();
        let said = outbox.said();
        let renews = matches!(said[..], [Word::Renew { pair: 1, epoch: next, .. }] if next == epoch + 1);
        assert!(renews, "{said:?}");
        outgoing.handle_word(Word::Broken { pair: 1, epoch }, &outbox).unwrap();
        assert!(outbox.said().is_empty(), "the word is about a pair that was replaced");
    }
    let third = outgoing.handle_word(Word::Broken { pair: 1, epoch: 2 }, &outbox);
    assert_eq!(third.unwrap_err().kind(), ErrorKind::Closed, "three in a row");
}

/// At first the windows are small. Each pair may have a chunk, and two more may be offered. Copies take memory, so there are
/// no more of them with several pairs than with one.
#[test]
fn at_first_there_is_room_for_a_chunk_of_each_pair() {
    const CHUNK: u64 = MAX_CHUNK as u64;
    for (pairs, bytes, copied, chunks) in [
        (1, CHUNK, false, 3),
        (4, CHUNK, false, 6),
        (16, CHUNK, false, 18),
        (16, CHUNK, true, 3),
        (1, CHUNK / 4, false, 12),
        (16, CHUNK / 4, false, 18),
        (4, CHUNK / 64, false, 192),
        // A part that is a whole update, with the modes that have one pair.
        (1, 3 * CHUNK, false, 1),
    ] {
        let (mut outgoing, _theirs) = outgoing(pairs);
        let (outbox, tracker) = (Outbox::new().0, Arc::default());
        let arena = Arena::new(bytes).unwrap();
        let mut offered = 0;
        while outgoing.has_room(bytes, copied) {
            let bytes = arena.lend(arena.range()).unwrap();
            let part = Offered { bytes, staged: None, chunks: Vec::new() };
            outgoing.offer(Some(extent(1)), part, &tracker, &outbox).unwrap();
            offered += 1;
        }
        assert_eq!(offered, chunks, "{pairs} pairs, {bytes} bytes, copied: {copied}");
        outgoing.stop();
    }
}
