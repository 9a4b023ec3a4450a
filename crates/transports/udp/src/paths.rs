//! Simulates a window over bad paths, on a virtual clock. The paths are those of `ltp`'s table
//! (`crates/sending/tests/ltp/paths.rs`) that matter without retransmission. The results are in a table under
//! version control.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use thalweg_linkmodel::{Burst, Fate, Pipe, Shape};

use crate::datagram::WHOLE;
use crate::recorded;
use crate::window::{cost, Permit, Window};

/// Bytes that a datagram with a chunk has on the network link, with the headers of UDP and IP.
const BYTES: usize = WHOLE + 28;
/// Bytes that a probe or a report has on the network link.
const SMALL: usize = 32 + 28;
/// Cost of a datagram with a chunk.
const FULL: u64 = cost(WHOLE);
/// The cost that the peer's receive buffer holds.
const BUFFER: u64 = 64 << 20;
const SECOND: Duration = Duration::from_secs(1);

/// An event of the simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A datagram arrives: its position, the cost of its chunk (0 for a probe), and whether it asks for a
    /// report.
    Datagram(u64, u64, bool),
    /// A report arrives: the highest position seen, and the total cost received.
    Report(u64, u64),
    /// A timer of the sender.
    Wake,
}

/// A sender that always has data, its receiver, and the path between them.
struct World {
    began: Instant,
    now: Duration,
    window: Window,
    there: Pipe,
    back: Pipe,
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    count: u64,
    wakes: Option<Duration>,
    seen: u64,
    received: u64,
}

impl World {
    fn new(there: &Shape, back: &Shape, seed: u64) -> Self {
        let began = Instant::now();
        let pipe = |shape: &Shape, way| Pipe::new(shape.clone(), seed, way).unwrap();
        Self {
            began,
            now: Duration::ZERO,
            window: Window::new(BUFFER, true, began),
            there: pipe(there, 1),
            back: pipe(back, 2),
            events: BinaryHeap::new(),
            count: 0,
            wakes: None,
            seen: 0,
            received: 0,
        }
    }

    fn at(&mut self, at: Duration, event: Event) {
        self.count += 1;
        self.events.push(Reverse((at, self.count, event)));
    }

    fn run(&mut self, until: Duration) {
        self.send();
        while let Some(&Reverse((at, _, event))) = self.events.peek().filter(|next| next.0 .0 <= until) {
            self.events.pop();
            self.now = at;
            match event {
                Event::Datagram(position, cost, wanted) => self.arrives(position, cost, wanted),
                Event::Report(seen, received) => {
                    self.window.reported(self.began + at, seen, received, true);
                    self.send();
                }
                Event::Wake if self.wakes == Some(at) => {
                    self.wakes = None;
                    self.send();
                }
                // Ignore this timer: an earlier one has replaced it.
                Event::Wake => {}
            }
        }
        self.now = until;
    }

    fn arrives(&mut self, position: u64, cost: u64, wanted: bool) {
        (self.seen, self.received) = (self.seen.max(position), self.received + cost);
        if wanted {
            if let Fate::Passes(pass) = self.back.offer(self.now, SMALL) {
                self.at(pass.due, Event::Report(self.seen, self.received));
            }
        }
    }

    /// Sends what the window permits, as `Sender::room` does, and sets a timer for the rest.
    fn send(&mut self) {
        loop {
            let wakes = match self.window.permit(self.began + self.now) {
                Permit::Now(_) => {
                    let position = self.window.sent() + FULL;
                    let asks = self.window.wants_report(position);
                    self.window.sent_to(self.began + self.now, position, &[position][..usize::from(asks)]);
                    self.offer(BYTES, Event::Datagram(position, FULL, asks));
                    continue;
                }
                Permit::At(at) => at,
                Permit::Report(by) if by <= self.began + self.now => {
                    self.window.probed(self.began + self.now);
                    self.offer(SMALL, Event::Datagram(self.window.sent(), 0, true));
                    continue;
                }
                Permit::Report(by) => by,
            };
            let at = (wakes - self.began).max(self.now + Duration::from_micros(1));
            if self.wakes.is_none_or(|sooner| at < sooner) {
                self.wakes = Some(at);
                self.at(at, Event::Wake);
            }
            return;
        }
    }

    fn offer(&mut self, bytes: usize, event: Event) {
        if let Fate::Passes(pass) = self.there.offer(self.now, bytes) {
            self.at(pass.due, event);
        }
    }
}

/// A path: its forward direction in the first two seconds and after them, and its backward direction.
struct Path {
    name: &'static str,
    first: Shape,
    there: Shape,
    back: Shape,
}

/// A path with a rate in Mbit/s and an RTT in ms. `change` alters both directions, `lossy` the forward one
/// only.
fn path(
    name: &'static str,
    [megabits, rtt_ms]: [u32; 2],
    change: impl Fn(Shape) -> Shape,
    lossy: impl Fn(Shape) -> Shape,
) -> Path {
    let (rate, delay) = (u64::from(megabits) * 1_000_000, f64::from(rtt_ms) / 2000.0);
    let both = change(Shape { rate: Some(rate), delay, ..Shape::default() });
    let there = lossy(both.clone());
    Path { name, first: there.clone(), there, back: Shape { rate: None, ..both } }
}

fn paths() -> Vec<Path> {
    let same = |shape: Shape| shape;
    let loss = |loss: f64| move |shape: Shape| Shape { loss, ..shape };
    let jitter = |keep_order: bool| move |shape: Shape| Shape { jitter: 0.05, keep_order, ..shape };
    let overtaking = |shape: Shape| Shape { reorder: 0.01, ..shape };
    // A quarter of the BDP of 100 Mbit/s and 40 ms.
    let short = |shape: Shape| Shape { queue_bytes: Some(125_000), ..shape };
    let burst = Burst { enter: 0.001, leave: 0.1, loss_bad: 1.0, loss_good: 0.0 };
    let bursts = move |shape: Shape| Shape { burst: Some(burst), ..shape };
    let later = path("70 %, from 2 s on", [20, 400], same, loss(0.7));
    vec![
        path("no loss, no jitter", [20, 200], same, same),
        path("jitter 50 ms, order kept", [20, 200], jitter(true), same),
        path("jitter 50 ms", [20, 200], jitter(false), same),
        path("20 %", [20, 200], same, loss(0.2)),
        path("40 %", [20, 400], same, loss(0.4)),
        path("70 %", [20, 400], same, loss(0.7)),
        Path { first: path("", [20, 400], same, same).there, ..later },
        path("10 %", [50, 40], same, loss(0.1)),
        path("1 % overtake", [100, 40], overtaking, same),
        path("short queue", [100, 40], short, same),
        path("bursts, short queue", [100, 40], short, bursts),
        path("0.3 %", [250, 80], same, loss(0.003)),
    ]
}

/// Runs a path for 14 s. The row has what arrived in three intervals and what was sent in the last, in
/// percent of the rate.
fn row(path: &Path) -> String {
    let mut world = World::new(&path.first, &path.back, 7);
    let rate = path.there.rate.expect("every path has one") as f64;
    let mut shares = Vec::new();
    for (from, to) in [(0, 2), (2, 4), (4, 14)] {
        let before = (world.received, world.window.sent());
        world.run(to * SECOND);
        world.there.set(path.there.clone()).unwrap();
        let share = |cost: u64| {
            let bytes = (cost / FULL) as f64 * BYTES as f64;
            100.0 * bytes * 8.0 / rate / f64::from(to - from)
        };
        shares.push((share(world.received - before.0), share(world.window.sent() - before.1)));
    }
    assert!(shares[2].0 > 10.0, "{}: the sender all but stops", path.name);
    format!(
        "{:>6} {:>4} {:<25} {:>7.1} {:>7.1} {:>7.1} {:>7.1} {:>7.1}",
        rate / 1e6,
        path.there.delay * 2e3,
        path.name,
        shares[0].0,
        shares[1].0,
        shares[2].0,
        shares[2].1,
        100.0 * world.window.believes().path_loss,
    )
}

/// `THALWEG_REWRITE=1 cargo test -p thalweg-udp --lib paths` rewrites the table.
#[test]
fn bad_paths_are_as_in_the_table() {
    let mut table = String::from(
        "One sender with always something to send over a bad path whose queue holds 100 ms if it is not short. What arrives as\n\
         a share of the link's rate in %, in the first two seconds, the next two, and the ten after those; what is sent in those\n\
         ten, and the loss rate that the sender believes in. Loss is on the way there, in front of the queue; jitter and\n\
         overtaking are on both ways.\n\n\
         Mbit/s  rtt path                          0-2 s   2-4 s  4-14 s    sent    loss\n",
    );
    for path in paths() {
        writeln!(table, "{}", row(&path)).unwrap();
    }
    recorded::assert_recorded(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots/bad-paths.txt"), &table);
}
