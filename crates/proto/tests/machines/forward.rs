//! Both ends of forwarded streams over a link that delays, reorders and loses chunks, in virtual time.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use proptest::prelude::*;
use thalweg_proto::{Fetched, ForwardConfig, ForwardEvent, Mux};
use thalweg_rng::Rng;
use thalweg_wire::control::{Control, Forward};
use thalweg_wire::forward::offset;
use thalweg_wire::Ranges;

const CHUNK: u32 = 1000;
const NOW: Duration = Duration::ZERO;

fn config(window: u64, reliable: bool) -> ForwardConfig {
    let liveness = Duration::from_secs(10);
    ForwardConfig { window, granted: 0, streams: 8, chunk: CHUNK, reliable, liveness }
}

/// A number below `bound`.
fn below(rng: &mut Rng, bound: u64) -> u64 {
    rng.draw() % bound
}

/// The bytes that a program sends in one direction. Neighbouring positions have different bytes.
fn written(stream: u32, length: u64) -> Vec<u8> {
    (0..length).map(|n| (n * 31 + n / 251 + u64::from(stream) * 7) as u8).collect()
}

/// A program at one end of one stream.
#[derive(Debug, Default)]
struct Program {
    /// Bytes that it still has to write.
    writes: VecDeque<u8>,
    /// Bytes that it has read.
    read: Vec<u8>,
    /// Bytes that it was given and has not confirmed.
    held: u64,
    has_ended: bool,
    sees_end: bool,
    reset: Option<String>,
}

/// One end of the link.
struct End {
    mux: Mux,
    programs: BTreeMap<u32, Program>,
    /// Messages in flight to the other end.
    messages: VecDeque<Control>,
    /// Chunks in flight to the other end.
    chunks: Vec<(u64, Vec<u8>)>,
    /// How many bytes the programs of the far end write.
    answers: u64,
}

impl End {
    fn new(config: ForwardConfig, answers: u64) -> Self {
        let mux = Mux::new(NOW, config);
        Self { mux, programs: BTreeMap::new(), messages: VecDeque::new(), chunks: Vec::new(), answers }
    }

    fn look(&mut self) {
        while let Some(event) = self.mux.poll_event() {
            match event {
                ForwardEvent::Opened(stream) => {
                    let writes = written(stream + 100, self.answers).into();
                    self.programs.insert(stream, Program { writes, ..Program::default() });
                }
                ForwardEvent::Reset(stream, reason) => {
                    self.programs.entry(stream).or_default().reset = Some(reason);
                }
                ForwardEvent::Readable(_) | ForwardEvent::Writable(_) => {}
            }
        }
    }

    /// The program writes, reads or confirms, as `rng` decides.
    fn act(&mut self, rng: &mut Rng) {
        for (&stream, program) in &mut self.programs {
            let most = self.mux.room(stream).unwrap_or(0).min(1 + below(rng, 3000));
            let bytes: Vec<u8> = program.writes.drain(..(most as usize).min(program.writes.len())).collect();
            if !bytes.is_empty() {
                self.mux.give(stream, bytes);
            }
            if program.writes.is_empty() && !std::mem::replace(&mut program.has_ended, true) {
                self.mux.end(stream);
            }
            if below(rng, 3) == 0 {
                continue; // the program reads nothing this time
            }
            self.mux.took(stream, std::mem::take(&mut program.held));
            match self.mux.take(stream) {
                Fetched::Bytes(bytes) => {
                    program.held += bytes.len() as u64;
                    program.read.extend(bytes);
                }
                Fetched::End => program.sees_end = true,
                Fetched::Nothing | Fetched::Gone => {}
            }
        }
    }

    /// Sends everything that the machine wants to send.
    fn send(&mut self) {
        while let Some(message) = self.mux.poll_message() {
            self.mux.message_sent(&message);
            self.messages.push_back(message);
        }
        while let Some(batch) = self.mux.poll_batch(5000) {
            let mut at = 0;
            for &(offset, length) in &batch.chunks {
                let end = at + length as usize;
                self.chunks.push((offset, batch.bytes[at..end].to_vec()));
                at = end;
            }
            assert_eq!(at, batch.bytes.len());
            self.mux.batch_sent(&batch);
        }
    }
}

/// Delivers chunks in any order, and loses some. Delivers messages in order, each before the chunks that were
/// sent after it.
fn carry(from: &mut End, to: &mut End, loss: f64, reorder: bool, rng: &mut Rng) {
    if below(rng, 4) > 0 {
        for _ in 0..below(rng, 8) {
            if from.chunks.is_empty() {
                break;
            }
            let which = if reorder { below(rng, from.chunks.len() as u64) as usize } else { 0 };
            let (at, bytes) = from.chunks.remove(which);
            if !rng.hits(loss) && to.mux.wants(at, bytes.len() as u32) {
                to.mux.chunk(at, bytes);
            }
        }
    }
    for _ in 0..below(rng, 4) {
        let Some(message) = from.messages.pop_front() else { break };
        to.mux.control(NOW, message).unwrap();
    }
    to.mux.timeout(NOW).unwrap();
    to.look();
}

#[derive(Debug, Clone)]
struct Case {
    seed: u64,
    /// The windows of the near end and of the far end.
    windows: (u64, u64),
    loss: f64,
    reorder: bool,
    lengths: Vec<u64>,
    answers: u64,
}

fn cases() -> impl Strategy<Value = Case> {
    let loss = prop_oneof![Just(0.0), 0.0..0.5];
    let lengths = prop::collection::vec(0..20_000_u64, 1..6);
    let windows = (1..30_000_u64, 1..30_000_u64);
    (any::<u64>(), windows, loss, any::<bool>(), lengths, 0..20_000_u64).prop_map(
        |(seed, windows, loss, reorder, lengths, answers)| Case {
            seed,
            windows,
            loss,
            reorder,
            lengths,
            answers,
        },
    )
}

fn run(case: &Case) -> [End; 2] {
    let mut rng = Rng::new(&[case.seed]);
    let reliable = case.loss == 0.0;
    let mut near = End::new(config(case.windows.0, reliable), 0);
    let mut far = End::new(config(case.windows.1, reliable), case.answers);
    for &length in &case.lengths {
        let stream = near.mux.open().unwrap();
        near.programs
            .insert(stream, Program { writes: written(stream, length).into(), ..Program::default() });
    }
    let over = |near: &End, far: &End| {
        near.mux.count() + far.mux.count() == 0 && far.programs.len() == case.lengths.len()
    };
    let mut steps = 0;
    while !over(&near, &far) {
        near.act(&mut rng);
        far.act(&mut rng);
        near.send();
        far.send();
        carry(&mut near, &mut far, case.loss, case.reorder, &mut rng);
        carry(&mut far, &mut near, case.loss, case.reorder, &mut rng);
        steps += 1;
        assert!(steps < 1_000_000, "it comes to no end");
    }
    [near, far]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn every_byte_arrives_once_and_in_order_whatever_the_link_does(case in cases()) {
        let [near, far] = run(&case);
        for (&stream, program) in &far.programs {
            prop_assert!(program.sees_end && program.reset.is_none());
            prop_assert_eq!(&program.read, &written(stream, case.lengths[stream as usize]));
        }
        for (&stream, program) in &near.programs {
            prop_assert!(program.sees_end && program.reset.is_none());
            prop_assert_eq!(&program.read, &written(stream + 100, case.answers));
        }
    }

    #[test]
    fn messages_and_chunks_of_a_liar_do_no_harm(
        seed in any::<u64>(),
        said in prop::collection::vec((0..6_u8, 0..4_u32, 0..9000_u64, 0..9000_u64), 0..60),
    ) {
        let mut rng = Rng::new(&[seed]);
        let mut end = End::new(config(4000, false), 500);
        for (kind, stream, a, b) in said {
            let wanted: Ranges = [thalweg_wire::Range::new(a, b)].into_iter().collect();
            let message = match kind {
                0 => Forward::Open { stream, window: a },
                1 => Forward::Credit { stream, received: a, limit: b },
                2 => Forward::Sent { stream, end: a },
                3 => Forward::Missing { stream, wanted },
                4 => Forward::End { stream, end: a },
                _ => {
                    let bytes = vec![0; (b % 1500) as usize];
                    if end.mux.wants(offset(stream, a), bytes.len() as u32) {
                        end.mux.chunk(offset(stream, a), bytes);
                    }
                    continue;
                }
            };
            if end.mux.control(NOW, Control::Forward(message)).is_err() {
                break; // the driver ends the link
            }
            end.look();
            let fits = |stream: &u32| end.mux.room(*stream).is_none_or(|room| room <= 4000);
            prop_assert!(end.programs.keys().all(fits));
            end.act(&mut rng);
            end.send();
        }
    }
}

/// A near end with one open stream, and a far end that knows the stream.
fn pair(window: u64) -> (End, End, u32) {
    let (mut near, mut far) = (End::new(config(window, true), 0), End::new(config(window, true), 0));
    let stream = near.mux.open().unwrap();
    exchange(&mut near, &mut far);
    (near, far, stream)
}

/// Delivers everything that both ends send.
fn exchange(near: &mut End, far: &mut End) {
    for _ in 0..4 {
        near.send();
        far.send();
        let (from, to) = (std::mem::take(&mut near.messages), std::mem::take(&mut far.messages));
        from.into_iter().for_each(|message| far.mux.control(NOW, message).unwrap());
        to.into_iter().for_each(|message| near.mux.control(NOW, message).unwrap());
        std::mem::take(&mut near.chunks).into_iter().for_each(|(at, bytes)| far.mux.chunk(at, bytes));
        std::mem::take(&mut far.chunks).into_iter().for_each(|(at, bytes)| near.mux.chunk(at, bytes));
        near.look();
        far.look();
    }
}

#[test]
fn a_program_that_reads_nothing_stops_its_own_peer_alone() {
    let (mut near, mut far, slow) = pair(4000);
    let other = near.mux.open().unwrap();
    exchange(&mut near, &mut far);
    near.mux.give(slow, vec![1; 4000]);
    exchange(&mut near, &mut far);
    assert_eq!(near.mux.room(slow), Some(0), "the window is full");
    near.mux.give(other, vec![2; 10]);
    exchange(&mut near, &mut far);
    assert_eq!(far.mux.take(other), Fetched::Bytes(vec![2; 10]));
    let Fetched::Bytes(bytes) = far.mux.take(slow) else { panic!("nothing has come") };
    exchange(&mut near, &mut far);
    assert_eq!(near.mux.room(slow), Some(0), "what the program has not confirmed still takes room");
    far.mux.took(slow, bytes.len() as u64);
    exchange(&mut near, &mut far);
    assert_eq!(near.mux.room(slow), Some(bytes.len() as u64));
}

#[test]
fn a_sender_keeps_at_most_its_own_window_whatever_the_peer_grants() {
    let mut far = End::new(config(1000, true), 0);
    let hears = |far: &mut End, message| far.mux.control(NOW, Control::Forward(message)).unwrap();
    hears(&mut far, Forward::Open { stream: 0, window: 1 << 30 });
    assert_eq!(far.mux.room(0), Some(1000), "what it opens with");
    hears(&mut far, Forward::Credit { stream: 0, received: 0, limit: 1 << 63 });
    assert_eq!(far.mux.room(0), Some(1000), "what it grants later");
    far.mux.give(0, vec![1; 1000]);
    far.send();
    assert_eq!(far.mux.room(0), Some(0), "it was sent, but not confirmed");
    hears(&mut far, Forward::Credit { stream: 0, received: 400, limit: 1 << 63 });
    assert_eq!(far.mux.room(0), Some(400));
}

#[test]
fn a_stream_between_a_small_and_a_large_window_goes_on() {
    for windows in [(10, 30_000), (30_000, 10)] {
        let lengths = vec![5000];
        let [near, far] = run(&Case { seed: 3, windows, loss: 0.0, reorder: false, lengths, answers: 5000 });
        assert_eq!(far.programs[&0].read, written(0, 5000));
        assert_eq!(near.programs[&0].read, written(100, 5000));
    }
}

#[test]
fn one_direction_ends_and_the_other_goes_on() {
    let (mut near, mut far, stream) = pair(4000);
    near.mux.give(stream, b"question".to_vec());
    near.mux.end(stream);
    exchange(&mut near, &mut far);
    assert_eq!(far.mux.take(stream), Fetched::Bytes(b"question".to_vec()));
    assert_eq!(far.mux.take(stream), Fetched::Nothing, "the program does not have it yet");
    far.mux.took(stream, 8);
    assert_eq!(far.mux.take(stream), Fetched::End);
    far.mux.give(stream, b"answer".to_vec());
    exchange(&mut near, &mut far);
    assert_eq!(near.mux.take(stream), Fetched::Bytes(b"answer".to_vec()));
    near.mux.took(stream, 6);
    far.mux.end(stream);
    exchange(&mut near, &mut far);
    assert_eq!(near.mux.take(stream), Fetched::End);
    exchange(&mut near, &mut far);
    assert_eq!((near.mux.count(), far.mux.count()), (0, 0));
}

#[test]
fn a_reset_ends_both_directions_and_says_why() {
    let (mut near, mut far, stream) = pair(4000);
    near.mux.give(stream, vec![1; 10]);
    far.mux.reset(stream, "connection refused");
    exchange(&mut near, &mut far);
    assert_eq!(near.mux.room(stream), None);
    assert_eq!(near.programs[&stream].reset.as_deref(), Some("connection refused"));
    assert_eq!((near.mux.take(stream), far.mux.take(stream)), (Fetched::Gone, Fetched::Gone));
    assert!(!far.mux.wants(offset(stream, 0), 10), "a late chunk is nobody's");
    assert_eq!(near.mux.open(), Some(1), "a number is not used again at once");
}

#[test]
fn streams_take_turns() {
    let (mut near, mut far, first) = pair(1 << 20);
    let second = near.mux.open().unwrap();
    exchange(&mut near, &mut far);
    near.mux.give(first, vec![1; 1 << 20]);
    near.mux.give(second, vec![2; 1000]);
    let batch = near.mux.poll_batch(256 << 10).unwrap();
    assert!(batch.chunks.contains(&(offset(second, 0), 1000)), "it does not wait for a megabyte before it");
}

#[test]
fn no_chunk_overtakes_the_message_that_opens_its_stream() {
    let mut near = Mux::new(NOW, ForwardConfig { granted: 100, ..config(100, true) });
    let stream = near.open().unwrap();
    near.give(stream, vec![1; 10]);
    let open = near.poll_message().unwrap();
    assert_eq!(near.poll_batch(100), None, "the message is not out yet");
    near.message_sent(&open);
    assert_eq!(near.poll_batch(100).unwrap().chunks, [(offset(stream, 0), 10)]);
}

#[test]
fn there_are_as_many_streams_as_there_may_be() {
    let (mut near, mut far, _) = pair(100);
    for _ in 1..8 {
        assert!(near.mux.open().is_some());
    }
    assert!(!near.mux.has_place() && near.mux.open().is_none());
    exchange(&mut near, &mut far);
    let open = Forward::Open { stream: 99, window: 1 };
    far.mux.control(NOW, Control::Forward(open)).unwrap();
    let Some(Control::Forward(Forward::Reset { stream: 99, reason })) = far.mux.poll_message() else {
        panic!("it is not refused");
    };
    assert!(reason.contains("--connections"), "{reason}");
}

#[test]
fn whoever_sends_more_than_it_may_ends_its_link() {
    let (_, mut far, stream) = pair(1000);
    far.mux.chunk(offset(stream, 500), vec![0; 501]);
    assert!(far.mux.timeout(NOW).unwrap_err().contains("more than it was granted"));
    let (mut near, _, stream) = pair(1000);
    let lie = Forward::Credit { stream, received: 1, limit: 1000 };
    assert!(near.mux.control(NOW, Control::Forward(lie)).unwrap_err().contains("never sent"));
    let (mut near, _, stream) = pair(1000);
    let lie = Forward::Missing { stream, wanted: Ranges::full(9) };
    assert!(near.mux.control(NOW, Control::Forward(lie)).unwrap_err().contains("never sent"));
    let (mut near, _, _) = pair(1000);
    assert!(near.mux.control(NOW, Control::Idle).is_err(), "a message of another kind of session");
}

#[test]
fn an_idle_link_says_something_and_a_silent_peer_is_gone() {
    let second = Duration::from_secs(1);
    let mut end = End::new(config(1000, true), 0);
    let mut pings = 0;
    while end.mux.poll_timeout() < 10 * second {
        let now = end.mux.poll_timeout();
        end.mux.timeout(now).unwrap();
        pings += i32::from(matches!(end.mux.poll_message(), Some(Control::Ping { .. })));
    }
    assert_eq!(pings, 3, "within the peer's timeout");
    assert!(end.mux.timeout(10 * second).unwrap_err().contains("says nothing for 10.0 s"));
    let mut end = End::new(config(1000, true), 0);
    end.mux.control(9 * second, Control::Pong { clock: 0 }).unwrap();
    end.mux.timeout(10 * second).unwrap();
}
