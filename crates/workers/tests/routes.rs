//! Tests of the kernel program through sockets: where notes go, and which are not routed.

#![allow(clippy::unwrap_used)]
#![cfg(target_os = "linux")]

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use thalweg_shm_pool::Name;
use thalweg_workers::{Kind, Note, Routes, NOTE_BYTES};

const PLENTY: u64 = 1000;

struct Party {
    /// The node's end of the connection.
    node: TcpStream,
    own: TcpStream,
}

struct Bench {
    routes: Routes,
    outlet: TcpStream,
    inlet: TcpStream,
    parties: Vec<Party>,
}

impl Bench {
    /// Opens routes for processes 1 to `count`, each of which exchanges notes only with the node. `None` if
    /// the kernel does not support routes.
    fn new(count: u16) -> Option<Self> {
        let routes = match Routes::load() {
            Ok(routes) => routes,
            Err(why) => {
                println!("skipped: {why}");
                return None;
            }
        };
        let (outlet, inlet) = routes.outlet().unwrap();
        let join = |party| {
            let (node, own) = routes.join(party).unwrap();
            routes.allow(0, party, PLENTY).unwrap();
            routes.allow(party, 0, PLENTY).unwrap();
            Party { node, own }
        };
        let parties: Vec<Party> = (1..=count).map(join).collect();
        for socket in parties.iter().flat_map(|party| [&party.node, &party.own]).chain([&inlet]) {
            // A note is there as soon as it is sent. The timeout only ends a test that fails.
            socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        }
        Some(Self { routes, outlet, inlet, parties })
    }

    fn own(&mut self, party: u16) -> &mut TcpStream {
        &mut self.parties[usize::from(party) - 1].own
    }

    fn node(&mut self, party: u16) -> &mut TcpStream {
        &mut self.parties[usize::from(party) - 1].node
    }
}

fn note(source: u16, destination: u16, sequence: u32, following: u64) -> Note {
    let name = Name { slot: 3, generation: 5, key: [7; 16] };
    let kind = Kind::Fold;
    Note { destination, source, task: 1, round: 2, sequence, kind, number: 9, name, weight: 1.5, following }
}

fn take(socket: &mut TcpStream) -> Note {
    let mut bytes = [0; NOTE_BYTES];
    socket.read_exact(&mut bytes).unwrap();
    Note::decode(&bytes).unwrap()
}

fn is_empty(socket: &TcpStream) -> bool {
    socket.set_nonblocking(true).unwrap();
    let found = socket.peek(&mut [0]).map_err(|error| error.kind());
    socket.set_nonblocking(false).unwrap();
    found == Err(ErrorKind::WouldBlock)
}

#[test]
fn each_note_of_one_send_goes_to_its_own_destination() {
    let Some(mut bench) = Bench::new(3) else { return };
    let notes: Vec<Note> = (0..60).map(|n| note(0, n % 3 + 1, u32::from(n), 0)).collect();
    let joined: Vec<u8> = notes.iter().flat_map(Note::encode).collect();
    bench.outlet.write_all(&joined).unwrap();
    for expected in notes {
        assert_eq!(take(bench.own(expected.destination)), expected);
    }
    assert!(is_empty(&bench.inlet));
    let count = bench.routes.count(0, 2);
    assert_eq!((count.direct, count.passed, count.bytes), (20, 0, 20 * NOTE_BYTES as u64));
    assert!(count.first > 0 && count.last >= count.first);
    assert_eq!(bench.routes.refused(), 0);
}

/// An incomplete note goes through the node.
#[test]
fn notes_may_be_cut_anywhere() {
    let Some(mut bench) = Bench::new(2) else { return };
    for cut in [1, 20, 63, 64, 65, 100, 127] {
        let notes = [note(0, 1, 1, 0), note(0, 2, 2, 0)];
        let joined: Vec<u8> = notes.iter().flat_map(Note::encode).collect();
        bench.outlet.write_all(&joined[..cut]).unwrap();
        bench.outlet.write_all(&joined[cut..]).unwrap();
        for (n, expected) in (1..).zip(notes) {
            let is_cut = cut / NOTE_BYTES + 1 == usize::from(n) && cut % NOTE_BYTES > 0;
            let socket = if is_cut { &mut bench.inlet } else { bench.own(n) };
            assert_eq!(take(socket), expected, "cut at {cut}");
        }
    }
    assert!(is_empty(&bench.inlet) && is_empty(bench.own(1)) && is_empty(bench.own(2)));
}

#[test]
fn what_follows_a_note_goes_with_it() {
    let Some(mut bench) = Bench::new(1) else { return };
    let long = vec![0xa5; 300_000];
    let answer = note(1, 0, 1, long.len() as u64);
    let next = note(1, 0, 2, 0);
    let joined = [&answer.encode()[..], &long, &next.encode()].concat();
    let mut own = bench.own(1).try_clone().unwrap();
    let writer = std::thread::spawn(move || {
        for part in joined.chunks(70_001) {
            own.write_all(part).unwrap();
        }
    });
    assert_eq!(take(bench.node(1)), answer);
    let mut followed = vec![0; long.len()];
    bench.node(1).read_exact(&mut followed).unwrap();
    assert!(followed == long);
    assert_eq!(take(bench.node(1)), next);
    writer.join().unwrap();
    let count = bench.routes.count(1, 0);
    assert_eq!((count.direct, count.passed), (2, 0));
}

/// Such notes reach the node at the other end of the sender's own connection.
#[test]
fn forged_notes_and_pairs_that_are_not_allowed_come_to_the_node() {
    let Some(mut bench) = Bench::new(3) else { return };
    let too_long = note(1, 0, 4, (64 << 20) + 1);
    // Valid notes may precede and follow the bad ones.
    let good = note(1, 0, 0, 0);
    let bad = [note(2, 0, 1, 0), note(0, 3, 2, 0), note(1, 2, 3, 0), note(1, 9, 5, 0)];
    for (refused, note) in (1..).zip(bad) {
        let joined = [good.encode(), note.encode(), good.encode()].concat();
        bench.own(1).write_all(&joined).unwrap();
        let found = [take(bench.node(1)), take(bench.node(1)), take(bench.node(1))];
        assert_eq!(found.iter().filter(|found| **found == note).count(), 1);
        assert_eq!(bench.routes.refused(), refused);
    }
    // The sender's socket still works, and no other process received the note.
    bench.own(1).write_all(&note(1, 0, 6, 0).encode()).unwrap();
    assert_eq!(take(bench.node(1)).sequence, 6);
    assert_eq!(bench.routes.count(1, 0).direct, 9);
    bench.own(1).write_all(&too_long.encode()).unwrap();
    bench.node(1).read_exact(&mut [0; NOTE_BYTES]).unwrap();
    assert_eq!(bench.routes.refused(), 5);
    assert!(is_empty(bench.own(2)) && is_empty(bench.own(3)) && is_empty(bench.node(2)));
}

#[test]
fn a_pair_may_be_allowed_between_workers() {
    let Some(mut bench) = Bench::new(2) else { return };
    bench.routes.allow(1, 2, PLENTY).unwrap();
    // A note that is not allowed must not follow the route of the note before it.
    let joined = [note(1, 2, 1, 0).encode(), note(1, 3, 2, 0).encode()].concat();
    bench.own(1).write_all(&joined).unwrap();
    assert_eq!(take(bench.own(2)).source, 1);
    assert!(is_empty(bench.own(2)));
    assert_eq!(take(bench.node(1)).sequence, 2);
    assert_eq!((bench.routes.count(1, 2).direct, bench.routes.refused()), (1, 1));
}

#[test]
fn notes_beyond_the_budget_go_through_the_node_and_none_is_lost() {
    let Some(mut bench) = Bench::new(2) else { return };
    bench.routes.allow(0, 1, 5).unwrap();
    let notes: Vec<Note> = (0..20).map(|n| note(0, 1, n, 0)).collect();
    let joined: Vec<u8> = notes.iter().flat_map(Note::encode).collect();
    bench.outlet.write_all(&joined).unwrap();
    for (n, expected) in notes.iter().enumerate() {
        let socket = if n < 5 { bench.own(1) } else { &mut bench.inlet };
        assert_eq!(take(socket), *expected);
    }
    let count = bench.routes.count(0, 1);
    assert_eq!((count.direct, count.passed), (5, 15));
    // Raise the budget while notes are sent.
    bench.routes.allow(0, 1, 6).unwrap();
    bench.outlet.write_all(&note(0, 1, 20, 0).encode()).unwrap();
    assert_eq!(take(bench.own(1)).sequence, 20);
}

#[test]
fn a_sender_beyond_its_budget_is_held_up_until_the_node_reads() {
    let Some(mut bench) = Bench::new(1) else { return };
    bench.routes.allow(1, 0, 0).unwrap();
    bench.own(1).set_nonblocking(true).unwrap();
    let bytes = note(1, 0, 0, 0).encode();
    let mut sent = 0;
    let full = loop {
        match bench.own(1).write(&bytes) {
            Ok(NOTE_BYTES) => sent += 1,
            Ok(part) => panic!("{part} bytes of a note"),
            Err(error) => break error.kind(),
        }
        assert!(sent < 1 << 20, "nothing holds the sender up");
    };
    assert_eq!(full, ErrorKind::WouldBlock);
    for _ in 0..sent {
        take(bench.node(1));
    }
    assert_eq!(bench.routes.count(1, 0).passed, sent);
}

#[test]
fn notes_for_who_is_gone_go_to_the_node() {
    let Some(mut bench) = Bench::new(2) else { return };
    drop(bench.parties.remove(1));
    bench.outlet.write_all(&note(0, 2, 1, 0).encode()).unwrap();
    assert_eq!(take(&mut bench.inlet).sequence, 1);
    assert_eq!(bench.routes.count(0, 2).passed, 1);
    bench.routes.leave(2);
    bench.outlet.write_all(&note(0, 2, 2, 0).encode()).unwrap();
    assert_eq!(take(&mut bench.inlet).sequence, 2);
    assert_eq!(bench.routes.refused(), 1);
    // The number can be used again.
    let (_node, mut own) = bench.routes.join(2).unwrap();
    bench.routes.allow(0, 2, PLENTY).unwrap();
    bench.outlet.write_all(&note(0, 2, 3, 0).encode()).unwrap();
    assert_eq!(take(&mut own).sequence, 3);
}

/// Any user of this machine may connect to loopback ports.
#[test]
fn a_stranger_who_connects_gets_no_part() {
    let Some(mut bench) = Bench::new(1) else { return };
    let listener = bench.own(1).peer_addr().unwrap();
    let mut stranger = TcpStream::connect(listener).unwrap();
    stranger.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    _ = stranger.write_all(&note(1, 0, 1, 0).encode());
    let (node, mut own) = bench.routes.join(2).unwrap();
    bench.routes.allow(0, 2, PLENTY).unwrap();
    bench.outlet.write_all(&note(0, 2, 2, 0).encode()).unwrap();
    assert_eq!(take(&mut own).sequence, 2);
    assert!(is_empty(bench.node(1)) && is_empty(&node) && is_empty(&bench.inlet));
    let end = stranger.read(&mut [0]);
    assert!(matches!(end, Ok(0)) || end.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
}

#[test]
fn the_end_of_a_connection_is_seen() {
    let Some(mut bench) = Bench::new(1) else { return };
    bench.own(1).write_all(&note(1, 0, 1, 0).encode()).unwrap();
    let Party { mut node, own } = bench.parties.remove(0);
    drop(own);
    assert_eq!(take(&mut node).sequence, 1);
    assert_eq!(node.read(&mut [0]).unwrap(), 0);
}
