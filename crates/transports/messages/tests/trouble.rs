//! Failures on the way: loss, duplicates, broken connections, forged messages, members that stall.
#![allow(clippy::unwrap_used, clippy::panic)] // a panic is how tests report

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thalweg_conformance::{outgoing, pattern, update_id, Pump, Recorder};
use thalweg_messages::{Mailbox, Messages, CONTROL_WINDOW};
use thalweg_testkit::switchboard::{Habits, Switchboard};
use thalweg_transport::{Address, Error, ErrorKind, Link, Listener, Options, SendReport, Transport};

const CHUNK: u32 = 64 << 10;

struct World {
    board: Switchboard,
    transport: Messages<Switchboard>,
    listener: Box<dyn Listener>,
}

impl World {
    async fn new(change: impl FnOnce(&mut Habits)) -> Self {
        let mut habits = Habits::default();
        change(&mut habits);
        let board = Switchboard::new(habits);
        let transport = Messages::new(board.clone());
        let address = Address::parse("board://trouble:0").unwrap();
        let listener = transport.listen(&address, &Options::default()).await.unwrap();
        Self { board, transport, listener }
    }

    /// Opens a link and returns both ends: the member's and the listener's.
    async fn link(&self) -> (Arc<dyn Link>, Arc<dyn Link>) {
        let address = self.listener.address();
        let options = Options::default();
        let accept = async {
            loop {
                // An error reports an earlier failure, such as an attempt to reopen the carrier.
                if let Ok(link) = self.listener.accept().await.unwrap().await {
                    return link;
                }
            }
        };
        let connect = async {
            loop {
                match self.transport.connect(&address, &options).await {
                    Ok(link) => return link,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}"),
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::join!(connect, accept)
    }
}

async fn end_of(link: &Arc<dyn Link>) -> Error {
    let sink = Recorder::new(1 << 22);
    loop {
        if let Err(error) = link.receive(&sink).await {
            return error;
        }
    }
}

/// With a carrier that is not lossy, a lost chunk breaks the link, and the error says so.
#[tokio::test]
async fn a_lost_chunk_breaks_the_link() {
    let world = World::new(|habits| habits.loss = 200_000).await;
    let (member, server) = world.link().await;
    let source = pattern(1 << 20, 1);
    let sending = server.clone();
    let send = tokio::spawn(async move {
        // Sending may finish before the loss is noticed, or fail because of it.
        let _ = sending.send_update(&outgoing(&source, update_id(1), CHUNK)).await;
        let _ = sending.send_control(Bytes::from_static(b"that was all")).await;
    });
    let error = end_of(&member).await;
    assert!(error.to_string().contains("lost on the way"), "{error}");
    send.await.unwrap();
    assert!(end_of(&server).await.to_string().contains("lost on the way"), "the other end is told why");
}

/// The next message shows that the last chunk was lost.
#[tokio::test]
async fn a_lost_last_chunk_is_noticed_by_the_next_message() {
    let world = World::new(|habits| habits.loss = 1_000_000).await;
    let (member, server) = world.link().await;
    let source = pattern(1_000, 1);
    server.send_update(&outgoing(&source, update_id(1), CHUNK)).await.unwrap();
    server.send_control(Bytes::from_static(b"that was all")).await.unwrap();
    let error = end_of(&member).await;
    assert!(error.to_string().contains("1 chunks were lost"), "{error}");
}

/// The same for a chunk to the group.
#[tokio::test]
async fn a_lost_chunk_to_the_group_is_noticed() {
    let world = World::new(|habits| habits.loss = 1_000_000).await;
    let (links, servers): (Vec<_>, Vec<_>) = [world.link().await, world.link().await].into_iter().unzip();
    let source = pattern(1_000, 1);
    world
        .listener
        .send_group(&servers, &outgoing(&source, update_id(1), CHUNK), &|_, sent| {
            assert!(sent.is_ok(), "{sent:?}")
        })
        .await;
    assert_eq!(world.board.group_publishes(), 1 + 1, "that the update begins, and a chunk");
    for (member, server) in links.iter().zip(&servers) {
        server.send_control(Bytes::from_static(b"that was all")).await.unwrap();
        let error = end_of(member).await;
        assert!(error.to_string().contains("1 chunks were lost"), "{error}");
    }
}

/// With a lossy carrier, a lost chunk is a hole, and its credit is returned.
#[tokio::test]
async fn where_chunks_may_be_lost_they_are_holes() {
    let world = World::new(|habits| {
        habits.loss = 400_000;
        habits.nature.lossy = true;
    })
    .await;
    let (member, server) = world.link().await;
    // Much more than the window: if credit got lost, the sender would block for ever.
    let source = pattern(24 << 20, 1);
    let recorder = Arc::new(Recorder::new(source.len()));
    let mut pump = Pump::start(&member, &recorder);
    let report = server.send_update(&outgoing(&source, update_id(1), CHUNK)).await.unwrap();
    server.send_control(Bytes::from_static(b"that was all")).await.unwrap();
    assert_eq!(pump.next().await.unwrap(), "that was all");
    let received = recorder.seen().ranges.bytes();
    assert!(
        received > report.payload / 2 && received < report.payload * 7 / 10,
        "{received} of {}",
        report.payload
    );
    recorder.check(&source);
}

#[tokio::test]
async fn a_lost_control_message_breaks_the_link_everywhere() {
    for lossy in [false, true] {
        let world = World::new(|habits| {
            habits.control_loss = 300_000;
            habits.nature.lossy = lossy;
            habits.seed = 5;
        })
        .await;
        let (member, server) = world.link().await;
        let sending = tokio::spawn(async move {
            while server.send_control(Bytes::from_static(b"once more")).await.is_ok() {
                tokio::task::yield_now().await;
            }
        });
        let error = end_of(&member).await;
        assert!(error.to_string().contains("control messages were lost"), "{error}");
        sending.await.unwrap();
    }
}

/// If the broker restarts, all links end with the reason, and the listener opens another carrier.
#[tokio::test]
async fn after_a_cut_links_end_and_the_listener_lives_on() {
    let world = World::new(|_| {}).await;
    let (member, server) = world.link().await;
    world.board.cut(Mailbox::Group, "the broker restarts");
    for link in [&member, &server] {
        let error = end_of(link).await;
        assert_eq!(error.kind(), ErrorKind::Closed);
        assert!(error.to_string().contains("the broker restarts"), "{error}");
        let sent = link.send_control(Bytes::from_static(b"late")).await;
        assert_eq!(sent.unwrap_err().kind(), ErrorKind::Closed);
    }
    let (member, server) = world.link().await;
    member.send_control(Bytes::from_static(b"again")).await.unwrap();
    assert_eq!(server.receive(&Recorder::new(0)).await.unwrap(), "again");
}

/// If a member's connection breaks, only its link ends.
#[tokio::test]
async fn a_member_that_is_cut_off_ends_alone() {
    let world = World::new(|_| {}).await;
    let (one, its_server) = world.link().await;
    let first = world.board.members();
    let (two, other_server) = world.link().await;
    world.board.cut(Mailbox::Member(first[0]), "its cable is out");
    assert!(end_of(&one).await.to_string().contains("its cable is out"));
    // The listener is not told of a cut, and the member cannot say goodbye either.
    drop(one);
    its_server.close().await;
    two.send_control(Bytes::from_static(b"still here")).await.unwrap();
    assert_eq!(other_server.receive(&Recorder::new(0)).await.unwrap(), "still here");
}

/// A restarted listener does not know the earlier links and says so.
#[tokio::test]
async fn a_restarted_listener_is_noticed() {
    let world = World::new(|_| {}).await;
    let (member, _server) = world.link().await;
    world.board.cut(Mailbox::Listener, "the server restarts");
    // Now there is a listener again.
    let (_other, _its_server) = world.link().await;
    // The first member's carrier still works, so the new listener answers its messages.
    let saying = member.clone();
    let say =
        tokio::spawn(
            async move { while saying.send_control(Bytes::from_static(b"hello?")).await.is_ok() {} },
        );
    let error = end_of(&member).await;
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    say.await.unwrap();
}

/// No mailbox holds more than was granted, even if nobody receives.
#[tokio::test]
async fn queues_are_bounded_by_windows() {
    let world = World::new(|_| {}).await;
    let window = Habits::default().nature.window;
    let mut sends = Vec::new();
    let mut links = Vec::new();
    for round in 0..3 {
        let (member, server) = world.link().await;
        let source = pattern(16 << 20, round);
        let sending = member.clone();
        sends.push(tokio::spawn(async move {
            sending.send_update(&outgoing(&source, update_id(1), 1_000)).await
        }));
        links.push((member, server));
    }
    // When a member's later message has arrived, the listener has received everything that the member could
    // send before it.
    for (member, server) in &links {
        let source = pattern(16 << 20, 9);
        let update = outgoing(&source, update_id(2), 1_000);
        let cancel = update.cancel().clone();
        let sending = server.clone();
        let send = tokio::spawn(async move { sending.send_update(&update).await });
        member.send_control(Bytes::from_static(b"behind")).await.unwrap();
        let recorder = Recorder::new(16 << 20);
        assert_eq!(server.receive(&recorder).await.unwrap(), "behind");
        cancel.cancel();
        assert_eq!(send.await.unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
    }
    let bound = 3 * (window + CONTROL_WINDOW);
    assert!(world.board.peak() <= bound, "{} in a mailbox, {bound} were granted", world.board.peak());
    for (member, _) in &links {
        member.close().await;
    }
    for send in sends {
        assert_eq!(send.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    }
}

/// A chunk to three members is published once. A member that stalls leaves the group, and the others continue
/// together.
#[tokio::test]
async fn a_group_is_sent_to_once_and_who_stalls_goes_alone() {
    let world = World::new(|_| {}).await;
    let mut pairs = Vec::new();
    for _ in 0..3 {
        pairs.push(world.link().await);
    }
    let servers: Vec<_> = pairs.iter().map(|(_, server)| server.clone()).collect();
    let source = pattern(24 << 20, 1);
    let recorders: Vec<_> = pairs.iter().map(|_| Arc::new(Recorder::new(source.len()))).collect();
    let _pumps: Vec<_> = (1..3).map(|i| Pump::start(&pairs[i].0, &recorders[i])).collect();
    let update = outgoing(&source, update_id(1), CHUNK);
    let chunks = update.chunks().len() as u64;
    let started = std::sync::Mutex::new(None);
    let late = &pairs[0].0;
    let done = |index: usize, sent: thalweg_transport::Result<_>| {
        sent.unwrap();
        if index > 0 {
            // The stalled member starts to receive once another one is done.
            started.lock().unwrap().get_or_insert_with(|| Pump::start(late, &recorders[0]));
        }
    };
    world.listener.send_group(&servers, &update, &done).await;
    assert_eq!(world.board.group_publishes(), 1 + chunks);
    for recorder in &recorders {
        recorder.until(|seen| seen.ranges.bytes() >= 24 << 20).await;
        recorder.check(&source);
    }
}

/// The broker retains the model. A member that joins later holds it already, so the listener sends it only
/// numbers.
#[tokio::test]
async fn who_comes_late_holds_what_the_post_has_kept() {
    let world = World::new(|habits| habits.keeps = true).await;
    let (first, its_server) = world.link().await;
    let source = pattern(8 << 20, 1);
    let update = outgoing(&source, update_id(1), CHUNK);
    let recorder = Arc::new(Recorder::new(source.len()));
    let _pump = Pump::start(&first, &recorder);
    let sent = std::sync::Mutex::new(Vec::new());
    let done =
        |_, outcome: thalweg_transport::Result<SendReport>| sent.lock().unwrap().push(outcome.unwrap());
    // Even for a single member the update goes to the group, so that the broker retains it.
    world.listener.send_group(&[its_server], &update, &done).await;
    assert_eq!((world.board.group_publishes(), world.board.kept()), (1 + 128, 128));
    for _ in 0..2 {
        let (late, its_server) = world.link().await;
        let recorder = Arc::new(Recorder::new(source.len()));
        let _pump = Pump::start(&late, &recorder);
        world.listener.send_group(&[its_server], &update, &done).await;
        recorder.until(|seen| seen.ranges.bytes() == 8 << 20).await;
        recorder.check(&source);
        late.close().await;
    }
    let sent = sent.into_inner().unwrap();
    assert!(sent[0].wire > 8 << 20 && sent[1..].iter().all(|late| late.wire < 128 * 256), "{sent:?}");
    assert!(sent.iter().all(|report| (report.payload, report.chunks) == (8 << 20, 128)), "{sent:?}");
    assert_eq!(world.board.group_publishes(), 1 + 128);
    // The model of another round has other chunks.
    let (late, its_server) = world.link().await;
    let recorder = Arc::new(Recorder::new(source.len()));
    let _pump = Pump::start(&late, &recorder);
    let report = its_server.send_update(&outgoing(&source, update_id(2), CHUNK)).await.unwrap();
    assert!(report.wire > 8 << 20, "{report:?}");
    recorder.until(|seen| seen.ranges.bytes() == 8 << 20).await;
    drop(world.listener);
    for link in [first, late] {
        link.close().await;
    }
    while world.board.kept() > 0 {
        tokio::task::yield_now().await;
    }
}

/// Sends 24 MiB to members whose links take this many microseconds for each 64 KiB. Returns the bytes that
/// the server sent, the number of publications to the group, and when each member had everything, on tokio's
/// paused clock.
async fn paced<const N: usize>(pauses: [u64; N]) -> (u64, u64, [Duration; N]) {
    let world = World::new(|_| {}).await;
    let mut pairs = Vec::new();
    for pause in pauses {
        let known = world.board.members();
        pairs.push(world.link().await);
        let new = world.board.members().into_iter().find(|id| !known.contains(id)).unwrap();
        world.board.slow(new, Duration::from_micros(pause));
    }
    let servers: Vec<_> = pairs.iter().map(|(_, server)| server.clone()).collect();
    let source = pattern(24 << 20, 1);
    let recorders: Vec<_> = pairs.iter().map(|_| Arc::new(Recorder::new(source.len()))).collect();
    let _pumps: Vec<_> = pairs.iter().zip(&recorders).map(|((link, _), r)| Pump::start(link, r)).collect();
    let started = tokio::time::Instant::now();
    let ended = std::sync::Mutex::new([Duration::ZERO; N]);
    let done = |index: usize, sent: thalweg_transport::Result<SendReport>| {
        sent.unwrap();
        ended.lock().unwrap()[index] = started.elapsed();
    };
    world.listener.send_group(&servers, &outgoing(&source, update_id(1), CHUNK), &done).await;
    for recorder in &recorders {
        recorder.until(|seen| seen.ranges.bytes() == 24 << 20).await;
        recorder.check(&source);
    }
    let sent = servers.iter().map(|server| server.counters().sent).sum();
    (sent, world.board.group_publishes(), ended.into_inner().unwrap())
}

/// Members whose pace differs by a few percent stay in the group, so nearly everything is sent once. Pauses
/// are whole milliseconds, the resolution of tokio's timers.
#[tokio::test(start_paused = true)]
async fn members_of_nearly_one_pace_stay_together() {
    let (sent, published, _) = paced([10_000, 11_000, 12_000, 11_000]).await;
    assert_eq!(published, 1 + 384);
    // The slowest member may leave when little is left.
    assert!(sent < 32 << 20, "{sent} bytes for 24 MiB");
}

/// A member that is ten times slower leaves, so the others do not wait for it.
#[tokio::test(start_paused = true)]
async fn who_is_much_slower_leaves_and_holds_up_nobody_for_long() {
    let (sent, published, ended) = paced([1000, 1000, 10_000]).await;
    assert_eq!(published, 1 + 384);
    assert!(sent < 48 << 20, "{sent} bytes for 24 MiB, twice");
    assert!(
        ended[0].max(ended[1]) < Duration::from_secs(1) && ended[2] > Duration::from_secs(3),
        "{ended:?}"
    );
}

/// Invalid messages in the mailboxes are dropped. A message that breaks a link's rules ends only that link.
#[tokio::test]
async fn forged_messages_harm_nobody() {
    let world = World::new(|_| {}).await;
    let (member, server) = world.link().await;
    let everybody = [Mailbox::Listener, Mailbox::Group];
    for length in [0, 1, 27, 28, 60, 300, 100_000] {
        for (to, byte) in everybody.into_iter().flat_map(|to| [(to, 0_u8), (to, 0xff)]) {
            world.board.forge(to, Bytes::from(vec![byte; length]));
        }
    }
    for kind in 0..=13_u8 {
        // The head of a message of another link, with too few bytes behind it and with too many.
        let mut head = [b"tm".as_slice(), &[1, kind], &7_u64.to_le_bytes(), &[0x81; 16]].concat();
        for extra in [0, 200] {
            head.resize(head.len() + extra, 0xee);
            everybody.into_iter().for_each(|to| world.board.forge(to, Bytes::from(head.clone())));
        }
    }
    for (from, to) in [(&member, &server), (&server, &member)] {
        from.send_control(Bytes::from_static(b"unharmed")).await.unwrap();
        assert_eq!(to.receive(&Recorder::new(0)).await.unwrap(), "unharmed");
    }
}
