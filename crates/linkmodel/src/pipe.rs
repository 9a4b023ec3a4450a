//! One direction of one link, packet by packet.

use std::collections::VecDeque;

use super::{Chain, Shape, ShapeError};
use crate::Time;

/// The reason why a packet did not arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The link lost the packet.
    Loss,
    /// The queue in front of the link was full.
    Queue,
    /// The link is down.
    Down,
}

/// How a packet arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    /// When the packet's last bit reaches the other end.
    pub due: Time,
    /// Whether the packet overtakes one that was offered earlier.
    pub overtakes: bool,
    /// Whether the packet arrives a second time at the same moment.
    pub twice: bool,
}

/// What happens to a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The packet does not arrive.
    Dropped(Cause),
    /// The packet arrives.
    Passes(Pass),
}

/// One direction of one link. It decides for each packet whether and when the packet arrives.
///
/// The steps are these, in this order. A link that is down drops the packet. Loss may drop it; this happens
/// before the queue, as with `tc netem`, so lost packets use none of the rate. A full queue drops it. When
/// the link is free, it sends the packet at its rate. Then the packet is delayed by the delay and its jitter.
#[derive(Debug, Clone)]
pub struct Pipe {
    shape: Shape,
    /// Maximum number of bytes in the queue; `None` for no limit.
    queue_limit: Option<u64>,
    seeds: [u64; 2],
    loss: Chain,
    /// Whether the burst model is in its bad state.
    bad: bool,
    jitter: Chain,
    reorder: Chain,
    duplicate: Chain,
    /// When the link will have sent all packets that it was given.
    free: Time,
    /// For each packet that waits or is being sent, when it will have been sent.
    waiting: VecDeque<Time>,
    /// The latest arrival time so far.
    latest: Time,
}

impl Pipe {
    /// A direction with this shape. Its random numbers follow from `seed` and `stream`. An impossible shape
    /// is an error.
    pub fn new(shape: Shape, seed: u64, stream: u64) -> Result<Self, ShapeError> {
        shape.check()?;
        let seeds = [seed, stream];
        let chain = |use_of: u64, correlation| Chain::new(&[seed, stream, use_of], correlation);
        let (loss, jitter) = (chain(1, shape.loss_correlation), chain(2, shape.delay_correlation));
        let (reorder, duplicate) =
            (chain(3, shape.reorder_correlation), chain(4, shape.duplicate_correlation));
        let (queue_limit, waiting) = (shape.queue_limit(), VecDeque::new());
        let (free, latest, bad) = (Time::ZERO, Time::ZERO, false);
        Ok(Self { shape, queue_limit, seeds, loss, bad, jitter, reorder, duplicate, free, waiting, latest })
    }

    /// The current shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Changes the shape. Packets in flight arrive as decided before. A random sequence continues, unless its
    /// correlation changes. An impossible shape is an error and changes nothing.
    pub fn set(&mut self, shape: Shape) -> Result<(), ShapeError> {
        shape.check()?;
        let [seed, stream] = self.seeds;
        let pairs = [
            (&mut self.loss, self.shape.loss_correlation, shape.loss_correlation),
            (&mut self.jitter, self.shape.delay_correlation, shape.delay_correlation),
            (&mut self.reorder, self.shape.reorder_correlation, shape.reorder_correlation),
            (&mut self.duplicate, self.shape.duplicate_correlation, shape.duplicate_correlation),
        ];
        for (use_of, (chain, old, new)) in (5..).zip(pairs) {
            if old != new {
                *chain = Chain::new(&[seed, stream, use_of], new);
            }
        }
        self.bad &= shape.burst.is_some();
        self.queue_limit = shape.queue_limit();
        self.shape = shape;
        Ok(())
    }

    /// Whether packets that are offered together arrive together, apart from lost ones: no random number is
    /// drawn for a packet's time.
    pub fn keeps_together(&self) -> bool {
        self.shape.jitter <= 0.0 && self.shape.reorder <= 0.0 && self.shape.duplicate <= 0.0
    }

    /// Offers a packet of `bytes` bytes at `now`. Time may step back a little between calls. A packet is
    /// never sent before packets that were offered earlier.
    pub fn offer(&mut self, now: Time, bytes: usize) -> Fate {
        if self.shape.down {
            return Fate::Dropped(Cause::Down);
        }
        if self.loses() {
            return Fate::Dropped(Cause::Loss);
        }
        let Some(sent) = self.send(now, bytes as u64) else { return Fate::Dropped(Cause::Queue) };
        let skips = self.shape.delay > 0.0 && self.reorder.hits(self.shape.reorder);
        let mut due = if skips { sent } else { sent + self.travel() };
        if self.shape.keep_order {
            due = due.max(self.latest);
        }
        let overtakes = due < self.latest;
        self.latest = self.latest.max(due);
        Fate::Passes(Pass { due, overtakes, twice: self.duplicate.hits(self.shape.duplicate) })
    }

    /// Bytes and packets that wait or are being sent at `now`.
    pub fn queue(&mut self, now: Time) -> (u64, u64) {
        while self.waiting.front().is_some_and(|&sent| sent <= now) {
            self.waiting.pop_front();
        }
        (self.backlog(now), self.waiting.len() as u64)
    }

    fn backlog(&self, now: Time) -> u64 {
        let Some(rate) = self.shape.rate else { return 0 };
        (self.free.saturating_sub(now).as_secs_f64() * rate as f64 / 8.0).round() as u64
    }

    fn loses(&mut self) -> bool {
        let Some(burst) = self.shape.burst else { return self.loss.hits(self.shape.loss) };
        let turns = if self.bad { burst.leave } else { burst.enter };
        self.bad ^= self.loss.hits(turns);
        self.loss.hits(if self.bad { burst.loss_bad } else { burst.loss_good })
    }

    /// Returns when the packet's last bit leaves; `None` if the queue is full. A packet that finds no other
    /// packet is always accepted.
    fn send(&mut self, now: Time, bytes: u64) -> Option<Time> {
        let Some(rate) = self.shape.rate else { return Some(now) };
        let (queued, packets) = self.queue(now);
        let full = self.queue_limit.is_some_and(|most| queued + bytes > most)
            || self.shape.queue_packets.is_some_and(|most| packets >= most);
        if full && packets > 0 {
            return None;
        }
        self.free = self.free.max(now) + Time::from_secs_f64(bytes as f64 * 8.0 / rate as f64);
        self.waiting.push_back(self.free);
        Some(self.free)
    }

    fn travel(&mut self) -> Time {
        let Shape { delay, jitter, .. } = self.shape;
        let drawn = if jitter > 0.0 { (2.0 * self.jitter.unit() - 1.0) * jitter } else { 0.0 };
        Time::from_secs_f64((delay + drawn).max(0.0))
    }
}
