//! Tests of `shared`: senders that wait for room.
#![allow(clippy::unwrap_used, clippy::panic)] // a panic is how tests report

use std::future::Future;
use std::pin::pin;
use std::task::Waker;

use thalweg_arena::Arena;
use thalweg_conformance::Factory;
use thalweg_transport::memory::Memory;
use thalweg_verbs::pretend::{connected, settle as settle_pair, Behaviour, Fabric, Pretend};
use thalweg_verbs::{Device, Done, Work};

use super::*;
use crate::ends::extent;
use crate::lending::Lending;
use crate::outgoing::Outgoing;
use crate::pool::Pool;
use crate::reading::Reading;
use crate::settings::Choices;
use crate::sides::Offered;
use crate::tracker::Tracker;
use crate::{GRANTS, NOTES};

/// Polls after which the device has done everything that it was asked to.
const ENOUGH: usize = 4 * GRANTS;

/// The state of a link that lends as many chunks as it may.
async fn full() -> Shared {
    let device: Arc<dyn Device> = Arc::new(Pretend::new(&Arc::new(Fabric::default()), Behaviour::default()));
    let pool = Arc::new(Pool::new(device.clone()));
    let (lends, reads) = connected(&*device, &*device, NOTES).unwrap();
    let lending = Lending::new(device.clone(), pool.clone(), lends, Arc::default());
    let mover = Choices::read(&Default::default()).unwrap().mover;
    let reading = Reading::new(device.clone(), pool, reads, mover);
    let inner = Factory::new(Arc::new(Memory), "memory://full:0").pair().await.client;
    let sides: (Box<dyn Sends>, Box<dyn Receives>, bool) = (Box::new(lending), Box::new(reading), true);
    let shared = Shared::new(inner, Outbox::new().0, sides, Arc::default(), true);
    let source = Arena::new(100).unwrap();
    device.register(&source).unwrap();
    let bytes = source.lend(source.range()).unwrap();
    while shared.outgoing().has_room(100, false) {
        let part = Offered { bytes: bytes.clone(), staged: None, chunks: Vec::new() };
        shared.outgoing().offer(Some(extent(100)), part, &Arc::default(), &shared.outbox).unwrap();
    }
    settle(&shared);
    assert_eq!(shared.outbox.said().len(), 2 * GRANTS, "all are offered and lent");
    shared
}

fn settle(shared: &Shared) {
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..ENOUGH {
        shared.change_outgoing(|outgoing| outgoing.poll(&mut context, &shared.outbox)).unwrap();
    }
}

/// The peer may have taken all chunks before the first loan has ended. After that, no message of the peer
/// wakes the waiting senders. So the end of the loans must wake them.
#[tokio::test]
async fn room_is_told_when_what_was_taken_is_lent_no_more() {
    let shared = full().await;
    for number in 0..GRANTS as u64 {
        shared.take(Word::Taken { number }).unwrap();
    }
    assert!(!shared.outgoing().has_room(100, false), "the device still lends them");
    let mut room = pin!(shared.room.notified());
    room.as_mut().enable();
    settle(&shared);
    assert!(shared.outgoing().has_room(100, false));
    assert!(room.poll(&mut Context::from_waker(Waker::noop())).is_ready(), "a sender waits for ever");
}

/// The peer's message that it has taken a part may be seen before the completion of the part's last write. Until then
/// the device holds the bytes.
#[test]
fn bytes_that_the_peer_has_taken_are_held_until_the_last_write_completes() {
    let device: Arc<dyn Device> = Arc::new(Pretend::new(&Arc::new(Fabric::default()), Behaviour::default()));
    let (sender, mut receiver) = connected(&*device, &*device, NOTES).unwrap();
    let open = |number: u64, receiver: &mut Box<dyn thalweg_verbs::Pair>| {
        let arena = Arena::new(10_000).unwrap();
        device.register(&arena).unwrap();
        receiver.post(number, Work::Open(arena.claim(arena.range()).unwrap().into())).unwrap();
        let Some(Done::Opened(_, at)) = settle_pair(receiver).pop() else { panic!("nothing is open") };
        (at, arena)
    };
    let ((ring, _ring), (to, _place)) = (open(0, &mut receiver), open(1, &mut receiver));
    let pool = Arc::new(Pool::new(device.clone()));
    let choices = Choices::read(&Default::default()).unwrap();
    let settings = (choices.mover, choices.style);
    let mut outgoing =
        Outgoing::new(device.clone(), pool, vec![(sender, ring)], settings, Arc::default()).unwrap();
    let source = Arena::new(100).unwrap();
    device.register(&source).unwrap();
    let bytes = source.lend(source.range()).unwrap();
    let (outbox, tracker) = (Outbox::new().0, Arc::new(Tracker::default()));
    let part = Offered { bytes, staged: None, chunks: Vec::new() };
    outgoing.offer(Some(extent(100)), part, &tracker, &outbox).unwrap();
    outgoing.handle_word(Word::Grant { number: 0, pair: 0, to }, &outbox).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    outgoing.poll(&mut context, &outbox).unwrap(); // hands the writes to the device
    outgoing.handle_word(Word::Taken { number: 0 }, &outbox).unwrap();
    assert_eq!((tracker.under_way(), source.claim(source.range()).is_ok()), (vec![0], false));
    for _ in 0..ENOUGH {
        outgoing.poll(&mut context, &outbox).unwrap();
    }
    assert_eq!((tracker.under_way(), source.claim(source.range()).is_ok()), (vec![], true));
    assert_eq!(outgoing.chunks(), 0);
}
