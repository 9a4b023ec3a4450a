//! Peers that are killed, broken or hostile harm only their own link, whatever memory they show.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // a panic is how tests report

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{fcntl_add_seals, ftruncate, memfd_create, MemfdFlags, SealFlags};
use rustix::net::{sendmsg, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use thalweg_arena::{Access, Arena};
use thalweg_conformance::{pattern, shared_pattern, Recorder};
use thalweg_shm::Shm;
use thalweg_transport::{Address, Error, ErrorKind, Link, Listener, Options, Transport};
use thalweg_wire::{ChunkHeader, FrameHeader, LayoutHash, Range};

const WINDOW: usize = 8;

async fn listen() -> Box<dyn Listener> {
    Shm.listen(&Address::parse("shm://localhost:0").unwrap(), &Options::default()).await.unwrap()
}

/// A peer whose bytes the test writes by hand, and the link that the listener made of its connection.
struct ByHand {
    stream: UnixStream,
    listener: Box<dyn Listener>,
    server: Arc<dyn Link>,
}

async fn by_hand() -> ByHand {
    let listener = listen().await;
    let name = format!("thalweg-shm-{}", listener.address().port.unwrap());
    let mut stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
    stream.write_all(b"tlwshm\x01\0").unwrap();
    let server = listener.accept().await.unwrap().await.unwrap();
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).unwrap();
    ByHand { stream, listener, server }
}

fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![kind, 0, 0, 0];
    out.extend((body.len() as u32).to_le_bytes());
    out.extend(body);
    out
}

fn memory(number: u64, bytes: u64) -> Vec<u8> {
    frame(4, &[number.to_le_bytes(), bytes.to_le_bytes()].concat())
}

fn chunk(number: u64, start: u64, word: u16, length: u32) -> Vec<u8> {
    let chunk = ChunkHeader { job: 1, round: 1, sender: 1, layout: LayoutHash(1), offset: 0, length };
    let mut body = [number.to_le_bytes(), start.to_le_bytes()].concat();
    body.extend(2_u32.to_le_bytes());
    body.extend(word.to_le_bytes());
    body.extend(0_u16.to_le_bytes());
    body.extend(FrameHeader::chunk(chunk, 0).encode());
    frame(2, &body)
}

/// Shared words that all contain ticket 2, so that it counts as lent.
fn words() -> OwnedFd {
    let arena = Arena::shared(4 * WINDOW as u64, Access::Write).unwrap();
    arena
        .claim(arena.range())
        .unwrap()
        .chunks_mut(4)
        .for_each(|word| word.copy_from_slice(&2_u32.to_le_bytes()));
    clone(&arena)
}

fn clone(arena: &Arena) -> OwnedFd {
    arena.descriptor().unwrap().try_clone_to_owned().unwrap()
}

fn send(stream: &UnixStream, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    }
    // The other end may hang up during this write.
    let _ = sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
}

impl ByHand {
    fn says(&self, bytes: &[u8], descriptor: Option<&OwnedFd>) {
        send(&self.stream, bytes, descriptor.map(AsFd::as_fd));
    }

    /// Receives at the other end until an error, which it returns. Checks that other peers are still served.
    async fn ends(self) -> Error {
        let sink = Recorder::new(1 << 20);
        let error = loop {
            if let Err(error) = self.server.receive(&sink).await {
                break error;
            }
        };
        assert!(sink.seen().stored.is_empty(), "something of it was taken");
        let address = self.listener.address();
        let accept = async { self.listener.accept().await.unwrap().await.unwrap() };
        let options = Options::default();
        let (client, server) = tokio::join!(Shm.connect(&address, &options), accept);
        client.unwrap().send_control(Bytes::from_static(b"still here")).await.unwrap();
        assert_eq!(server.receive(&Recorder::new(0)).await.unwrap(), "still here");
        error
    }
}

fn unsealed(bytes: u64, seals: SealFlags) -> OwnedFd {
    let made = memfd_create("unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&made, bytes).unwrap();
    fcntl_add_seals(&made, seals).unwrap();
    made
}

#[tokio::test]
async fn memory_that_its_owner_could_take_away_is_refused() {
    let null = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let small = Arena::shared(4096, Access::Read).unwrap();
    let whole = SealFlags::SHRINK | SealFlags::FUTURE_WRITE;
    for (descriptor, reason) in [
        (unsealed(8192, SealFlags::GROW), "not sealed"),
        (unsealed(8192, SealFlags::SHRINK), "not sealed"),
        (unsealed(8192, whole), "not all there"),
        (clone(&small), "4096 bytes"),
        (null, "no seals"),
    ] {
        let peer = by_hand().await;
        peer.says(&memory(1, 8192), Some(&descriptor));
        let error = peer.ends().await;
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[tokio::test]
async fn notes_that_lie_end_the_link() {
    let arena = Arena::shared(8192, Access::Read).unwrap();
    let (shown, words) = (clone(&arena), words());
    for (note, reason) in [
        (chunk(2, 0, 0, 64), "not shown"),
        (chunk(1, 8192 - 63, 0, 64), "are not in an arena"),
        (chunk(1, u64::MAX, 0, 64), "are not in an arena"),
        (chunk(1, 0, WINDOW as u16, 64), "word 8"),
        (frame(3, &1_u32.to_le_bytes()), "more than it was lent"),
        (frame(3, &u32::MAX.to_le_bytes()), "more than it was lent"),
        (frame(9, &[]), "begins with"),
        (frame(4, &[0; 16]), "without a descriptor"),
        (frame(6, &[]), "without memory"),
        (frame(1, &[])[..4].iter().copied().chain([255; 4]).collect(), "4294967295 bytes"),
    ] {
        let peer = by_hand().await;
        peer.says(&memory(1, 8192), Some(&shown));
        peer.says(&frame(6, &[]), Some(&words));
        peer.says(&note, None);
        let error = peer.ends().await;
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains(reason), "{error} instead of {reason}");
    }
}

#[tokio::test]
async fn a_flood_of_notes_memories_or_descriptors_ends_the_link() {
    let arena = Arena::shared(8192, Access::Read).unwrap();
    let (shown, words) = (clone(&arena), words());
    let peer = by_hand().await;
    (0..=64).for_each(|number| peer.says(&memory(number, 8192), Some(&shown)));
    assert!(peer.ends().await.to_string().contains("more than 64 memories"));
    let peer = by_hand().await;
    peer.says(&memory(1, 8192), Some(&shown));
    peer.says(&frame(6, &[]), Some(&words));
    // Send all chunks in one call, so that the receiver is done with none of them before the last has
    // arrived.
    let revoked: Vec<u8> = (0..100).flat_map(|_| chunk(1, 0, 0, 64)).collect();
    peer.says(&revoked, None);
    let sink = Recorder::new(1 << 20);
    let error = loop {
        if let Err(error) = peer.server.receive(&sink).await {
            break error;
        }
    };
    assert!(error.to_string().contains("more than 8 chunks"), "{error}");
    let peer = by_hand().await;
    (0..8).for_each(|_| peer.says(&frame(5, &[0; 8]), Some(&shown)));
    assert!(peer.ends().await.to_string().contains("descriptors without frames"));
}

/// The peer can change the shared words. With them it can prevent chunks from being taken, and nothing else.
#[tokio::test]
async fn shared_words_that_lie_keep_chunks_from_being_taken() {
    let arena = shared_pattern(8192, 1);
    let zeros = clone(&Arena::shared(4 * WINDOW as u64, Access::Write).unwrap());
    let peer = by_hand().await;
    peer.says(&memory(1, 8192), Some(&clone(&arena)));
    peer.says(&frame(6, &[]), Some(&zeros));
    peer.says(&chunk(1, 0, 0, 64), None);
    peer.says(&frame(1, b"after"), None);
    let sink = Recorder::new(8192);
    assert_eq!(peer.server.receive(&sink).await.unwrap(), "after");
    assert_eq!((sink.seen().placed.len(), sink.seen().stored.len()), (1, 0));
    let _alive = (peer.stream, peer.listener);
}

/// The peer disappears like a process that is killed in the middle of an update: the kernel closes its end,
/// and keeps the mapped memory.
#[tokio::test]
async fn a_peer_that_dies_in_the_middle_of_an_update_is_gone() {
    let peer = by_hand().await;
    let arena = shared_pattern(8192, 1);
    peer.says(&memory(1, 8192), Some(&clone(&arena)));
    peer.says(&frame(6, &[]), Some(&words()));
    peer.says(&chunk(1, 0, 0, 4096), None);
    peer.says(&chunk(1, 4096, 1, 4096)[..40], None);
    drop((peer.stream, arena));
    let sink = Recorder::new(8192);
    let error = peer.server.receive(&sink).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    assert_eq!(sink.seen().stored.len(), 1, "the memory outlives its owner");
    sink.check(&{
        let first = pattern(8192, 1);
        first.claim(first.range()).unwrap()[4096..].fill(0);
        first
    });
}

/// The peer's memory is copied as it is at that moment. A peer that keeps writing spoils its own update, and
/// nothing else.
#[tokio::test]
async fn a_peer_that_goes_on_writing_changes_its_own_update_alone() {
    const BYTES: u32 = 1 << 20;
    let arena = Arena::shared(BYTES.into(), Access::Read).unwrap();
    let (shown, stop) = (clone(&arena), Arc::new(AtomicBool::new(false)));
    let mut claim = arena.claim(arena.range()).unwrap();
    claim.fill(1);
    let (seen, writer) = (
        stop.clone(),
        std::thread::spawn(move || {
            while !stop.load(Ordering::Acquire) {
                (1..=20).for_each(|value| claim.fill(value));
            }
        }),
    );
    for _ in 0..20 {
        let peer = by_hand().await;
        peer.says(&memory(1, BYTES.into()), Some(&shown));
        peer.says(&frame(6, &[]), Some(&words()));
        peer.says(&chunk(1, 0, 0, BYTES), None);
        peer.says(&frame(1, b"after"), None);
        let sink = Recorder::new(BYTES.into());
        assert_eq!(peer.server.receive(&sink).await.unwrap(), "after");
        assert_eq!(sink.seen().stored.len(), 1);
        let received = sink.bytes(Range::new(0, BYTES.into()));
        assert!(received.iter().all(|byte| (1..=20).contains(byte)));
    }
    seen.store(true, Ordering::Release);
    writer.join().unwrap();
}
