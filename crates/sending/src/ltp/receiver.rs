//! The receiver of LTP. It records which packets have arrived, acknowledges them, and closes transfers.

use thalweg_wire::Range;

use super::arrivals::Arrivals;
use super::rebuilder::{Rebuild, Rebuilder};
use super::repair::Block;
use super::transfer::{ChunkId, MAX_PIECES};
use crate::Time;

/// When the receiver closes a transfer before all chunks have arrived.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rule {
    /// Fraction of the chunks, 0 to 1. When this fraction has arrived, the sender retransmits only critical
    /// chunks. 1 waits for all chunks.
    pub fraction: f64,
    /// Time after the first packet at which the sender stops sending chunks that are not critical; `None` for
    /// never.
    pub deadline: Option<Time>,
}

impl Default for Rule {
    fn default() -> Self {
        Self { fraction: 1.0, deadline: None }
    }
}

/// Why the receiver closed a transfer. The sender retransmits critical chunks in any case, until they arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// All chunks have arrived.
    Whole,
    /// Enough chunks have arrived. The sender still sends each new chunk once.
    Fraction,
    /// The deadline has passed. The sender sends only critical chunks.
    Deadline,
}

/// An ACK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ack {
    /// The newest packet numbers that have arrived, as descending ranges; at most [`super::MAX_RANGES`].
    pub ranges: Vec<Range>,
    /// The transfer that was closed last, and why.
    pub closed: Option<(u16, Closed)>,
}

/// The transfer that is being received.
#[derive(Debug)]
struct Incoming {
    id: u16,
    of: u32,
    received: u32,
    /// One bit for each chunk that has arrived.
    bits: Vec<u64>,
    began: Time,
    closed: bool,
}

/// The receiver of packets in one direction.
#[derive(Debug)]
pub struct Receiver {
    rule: Rule,
    arrivals: Arrivals,
    incoming: Option<Incoming>,
    closed: Option<(u16, Closed)>,
    owes: bool,
    rebuilder: Rebuilder,
}

impl Receiver {
    /// Creates a receiver that closes transfers by `rule`.
    pub fn new(rule: Rule) -> Self {
        let (arrivals, rebuilder) = (Arrivals::default(), Rebuilder::default());
        Self { rule, arrivals, incoming: None, closed: None, owes: false, rebuilder }
    }

    /// Processes a packet. `chunk` identifies its chunk, if it carries one. Returns whether the chunk is new
    /// and belongs to the current transfer.
    pub fn handle_packet(&mut self, now: Time, number: u64, chunk: Option<ChunkId>) -> bool {
        self.arrivals.insert(number);
        self.owes = true;
        chunk.is_some_and(|chunk| self.handle_chunk(now, chunk))
    }

    /// Keeps the symbol of a packet for a while, if the packet may be in a block. `write` appends the symbol.
    pub fn keep(&mut self, number: u64, write: impl FnOnce(&mut Vec<u8>)) {
        self.rebuilder.keep(number, write);
    }

    /// Processes a repair packet: its block, index and symbol. Ignores blocks of an impossible size.
    pub fn handle_repair(&mut self, number: u64, block: Block, which: u32, symbol: &[u8]) {
        self.arrivals.insert(number);
        self.owes = true;
        self.rebuilder.repair(block, which, symbol);
    }

    /// The next block that can be rebuilt. Pass each rebuilt packet to [`Self::handle_packet`], as if it had
    /// arrived.
    pub fn poll_rebuild(&mut self) -> Option<Rebuild<'_>> {
        self.rebuilder.poll()
    }

    /// Drops the symbols of a block that was rebuilt.
    pub fn rebuilt(&mut self, block: Block) {
        self.rebuilder.done(block);
    }

    fn handle_chunk(&mut self, now: Time, chunk: ChunkId) -> bool {
        if chunk.index >= chunk.of || chunk.of as usize > MAX_PIECES {
            return false;
        }
        let newer = self.incoming.as_ref().is_none_or(|old| is_later(chunk.transfer, old.id));
        if newer {
            let bits = vec![0; (chunk.of as usize).div_ceil(64)];
            self.incoming = Some(Incoming {
                id: chunk.transfer,
                of: chunk.of,
                received: 0,
                bits,
                began: now,
                closed: false,
            });
        }
        let Some(incoming) = self.incoming.as_mut().filter(|i| i.id == chunk.transfer && i.of == chunk.of)
        else {
            return false; // an earlier transfer, which the sender gave up, or a wrong chunk count
        };
        let (word, bit) = (chunk.index as usize / 64, 1_u64 << (chunk.index % 64));
        let Some(word) = incoming.bits.get_mut(word) else { return false };
        if *word & bit != 0 {
            return false;
        }
        *word |= bit;
        incoming.received += 1;
        self.judge(now);
        true
    }

    fn judge(&mut self, now: Time) {
        let Some(incoming) = &mut self.incoming else { return };
        let enough = (f64::from(incoming.of) * self.rule.fraction.clamp(0.0, 1.0)).ceil() as u32;
        let over = self.rule.deadline.is_some_and(|time| now >= incoming.began + time);
        let closed = match incoming.received {
            received if received == incoming.of => Closed::Whole,
            _ if over => Closed::Deadline,
            received if received >= enough => Closed::Fraction,
            _ => return,
        };
        if !incoming.closed || self.closed != Some((incoming.id, closed)) {
            self.owes = true;
        }
        incoming.closed = true;
        if closed == Closed::Whole {
            self.rebuilder.clear();
        }
        self.closed = Some((incoming.id, closed));
    }

    /// The time of the earliest timer. Call [`Self::handle_timeout`] then.
    pub fn poll_timeout(&self) -> Option<Time> {
        let open = |i: &&Incoming| i.received < i.of && self.closed != Some((i.id, Closed::Deadline));
        self.incoming.as_ref().filter(open).and_then(|i| Some(i.began + self.rule.deadline?))
    }

    /// Runs the timers that are due.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.poll_timeout().is_some_and(|at| now >= at) {
            self.judge(now);
        }
    }

    /// The ACK to send, if there is anything new to report. If this ACK is lost, the next one reports the
    /// same.
    pub fn poll_ack(&mut self) -> Option<Ack> {
        let owes = std::mem::take(&mut self.owes);
        owes.then(|| Ack { ranges: self.arrivals.report(), closed: self.closed })
    }
}

/// Whether `one` comes after `other`, modulo 2^16 (RFC 1982).
fn is_later(one: u16, other: u16) -> bool {
    matches!(one.wrapping_sub(other), 1..=0x7fff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_rng::Rng;

    const MS: Time = Time::from_millis(1);

    fn chunk(index: u32) -> Option<ChunkId> {
        Some(ChunkId { transfer: 1, index, of: 10 })
    }

    fn closed(receiver: &mut Receiver) -> Option<Closed> {
        receiver.poll_ack().and_then(|ack| ack.closed).map(|(_, why)| why)
    }

    #[test]
    fn closes_by_fraction_and_later_as_whole() {
        let mut receiver = Receiver::new(Rule { fraction: 0.75, deadline: None });
        for index in 0..7 {
            assert!(receiver.handle_packet(MS, index.into(), chunk(index)));
            assert_eq!(closed(&mut receiver), None);
        }
        assert!(!receiver.handle_packet(MS, 7, chunk(6)), "it has come before");
        assert_eq!(closed(&mut receiver), None);
        receiver.handle_packet(MS, 8, chunk(9));
        assert_eq!(closed(&mut receiver), Some(Closed::Fraction));
        assert!(receiver.handle_packet(MS, 9, chunk(7)), "late chunks are welcome");
        receiver.handle_packet(MS, 10, chunk(8));
        assert_eq!(closed(&mut receiver), Some(Closed::Whole));
        assert_eq!(receiver.poll_ack(), None, "there is nothing new");
    }

    #[test]
    fn closes_at_the_deadline_after_the_first_packet() {
        let mut receiver = Receiver::new(Rule { fraction: 1.0, deadline: Some(50 * MS) });
        assert_eq!(receiver.poll_timeout(), None);
        receiver.handle_packet(10 * MS, 0, chunk(3));
        assert_eq!(receiver.poll_timeout(), Some(60 * MS));
        receiver.handle_timeout(59 * MS);
        assert_eq!(closed(&mut receiver), None);
        receiver.handle_timeout(60 * MS);
        assert_eq!((closed(&mut receiver), receiver.poll_timeout()), (Some(Closed::Deadline), None));
        receiver.handle_packet(90 * MS, 5, None);
        assert_eq!(closed(&mut receiver), Some(Closed::Deadline), "told again with each packet");
        receiver.handle_packet(100 * MS, 6, Some(ChunkId { transfer: 2, index: 0, of: 2 }));
        assert_eq!(receiver.poll_timeout(), Some(150 * MS), "the next transfer has its own");
    }

    #[test]
    fn transfers_stay_distinct_when_their_numbers_wrap() {
        let mut receiver = Receiver::new(Rule::default());
        let of = |transfer, index| Some(ChunkId { transfer, index, of: 2 });
        for transfer in [65_534, 65_535, 0, 1] {
            assert!(receiver.handle_packet(MS, 0, of(transfer, 0)));
            assert!(
                !receiver.handle_packet(MS, 0, of(transfer.wrapping_sub(1), 1)),
                "given up before {transfer}"
            );
        }
    }

    #[test]
    fn no_input_panics_or_breaks_the_counts() {
        for seed in 0..300 {
            let mut rng = Rng::new(&[seed]);
            let mut receiver = Receiver::new(Rule { fraction: 1.5 * rng.unit(), deadline: Some(3 * MS) });
            for at in 0..200 {
                let chunk = ChunkId {
                    transfer: rng.up_to(4) as u16,
                    index: rng.up_to(70) as u32,
                    of: if rng.hits(0.8) { 66 } else { rng.up_to(70) as u32 },
                };
                receiver.handle_packet(at * MS, rng.draw() >> rng.up_to(63), Some(chunk));
                receiver.handle_timeout(at * MS);
                if let Some(incoming) = &receiver.incoming {
                    let bits: u32 = incoming.bits.iter().map(|word| word.count_ones()).sum();
                    assert!(bits == incoming.received && incoming.received <= incoming.of, "{seed}");
                }
            }
        }
    }

    #[test]
    fn a_false_number_of_chunks_costs_no_memory() {
        let mut receiver = Receiver::new(Rule::default());
        let huge = ChunkId { transfer: 1, index: 0, of: u32::MAX };
        assert!(!receiver.handle_packet(MS, 0, Some(huge)) && receiver.incoming.is_none());
    }
}
