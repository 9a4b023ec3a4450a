//! The sender's side of repair packets (FEC). It decides which packets they protect, and how many there are.
//! It also says how long the receiver may still rebuild a lost packet. Until then the packet does not count
//! as lost.
//!
//! A block is a run of consecutive packet numbers. So blocks protect retransmitted chunks like new ones, and
//! the receiver acknowledges a rebuilt packet like one that arrived.

use std::collections::VecDeque;

use crate::Time;

/// Maximum number of packets in a block. In a larger block, repair packets would protect more packets. But
/// they would come later and cost the receiver more memory.
pub const MAX_BLOCK: u32 = 64;

/// Maximum number of repair packets of a block, since a byte in the packet has their index.
const MAX_REPAIR: f64 = 255.0;
/// A block may always have this many packets, however small the flight is.
const MIN_BLOCK: u32 = 4;
/// Above this path loss, the number of packets in flight limits the size of a block.
const VERY_LOSSY: f64 = 0.5;
/// Below this path loss, only the configured share determines the number of repair packets.
const LOSSY: f64 = 0.08;
/// A block gets enough repair packets to be rebuilt even if this many standard deviations more packets are
/// lost than expected.
const DEVIATIONS: f64 = 2.0;

/// `count` consecutive packets, from number `first` on. The same repair packets protect them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Number of the first packet.
    pub first: u64,
    /// Number of packets, 1 to [`MAX_BLOCK`].
    pub count: u32,
}

impl Block {
    /// One past the last packet number, saturating.
    pub fn end(self) -> u64 {
        self.first.saturating_add(self.count.into())
    }

    /// Position of a packet number in the block, from 0.
    pub fn position(self, number: u64) -> Option<u32> {
        let at = number.checked_sub(self.first).filter(|&at| at < self.count.into())?;
        Some(at as u32)
    }
}

/// How long the receiver may still rebuild a packet of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hope {
    /// Not all repair packets of the block have been sent.
    Open,
    /// The number and the send time of the block's last repair packet, which has been sent.
    Until(u64, Time),
}

/// A complete block whose repair packets are being sent.
#[derive(Debug, Clone, Copy)]
struct Due {
    block: Block,
    /// Bytes of the block's longest packet.
    longest: u32,
    /// Number of repair packets sent.
    sent: u32,
    /// Number of repair packets to send in all.
    of: u32,
}

/// The blocks of a sender.
#[derive(Debug)]
pub(super) struct Blocks {
    /// Number of repair packets for each packet of a block; 0 for none.
    share: f64,
    /// The path loss, or 0 if it is below [`LOSSY`].
    loss: f64,
    /// Maximum number of packets in a block.
    max_count: u32,
    /// The current block, and the bytes of its longest packet.
    open: Option<(Block, u32)>,
    due: Option<Due>,
    /// Blocks whose repair packets have all been sent, in order. Each has the number and the send time of its
    /// last repair packet.
    sent: VecDeque<(Block, u64, Time)>,
}

impl Default for Blocks {
    fn default() -> Self {
        Self::new(0.0)
    }
}

impl Blocks {
    pub(super) fn new(share: f64) -> Self {
        let share = share.clamp(0.0, 1.0);
        Self { share, loss: 0.0, max_count: MAX_BLOCK, open: None, due: None, sent: VecDeque::new() }
    }

    /// Sets the path loss, and how many packets may be in flight. A high loss raises the number of repair
    /// packets of a block above the configured share. On such a path a retransmission would probably be lost
    /// again, and repair packets are sent only when there is nothing else to send.
    ///
    /// The packets of a block count as in flight until its repair packets have been sent. So on a very lossy
    /// path a block has only as many packets as arrive of a flight. The rest of the flight is for its repair
    /// packets.
    pub(super) fn expect(&mut self, loss: f64, flight: u64) {
        self.loss = if loss < LOSSY { 0.0 } else { loss };
        self.max_count = MAX_BLOCK;
        if loss > VERY_LOSSY {
            let part = (flight as f64 * (1.0 - loss)) as u32;
            self.max_count = part.clamp(MIN_BLOCK, MAX_BLOCK);
        }
    }

    /// Number of repair packets of a block of `count` packets. Let each packet be lost with probability `p`.
    /// With `count * p / (1 - p)` repair packets, `count` packets arrive on average.
    fn repair_of(&self, count: u32) -> f64 {
        let (count, p) = (f64::from(count), self.loss);
        let expected = (count * p + DEVIATIONS * (count * p).sqrt()) / (1.0 - p);
        (count * self.share).max(expected).ceil()
    }

    /// Whether a block of `count` packets is full. A larger one might need more repair packets than a block
    /// can have.
    fn is_full(&self, count: u32) -> bool {
        count >= self.max_count || self.repair_of(count + 1) > MAX_REPAIR
    }

    /// Adds a packet to the current block. If there is no current block and `begins` is set, the packet
    /// begins one. Returns the first packet number of the block.
    pub(super) fn covers(&mut self, number: u64, bytes: u32, begins: bool) -> Option<u64> {
        if self.open.is_none() && begins && (self.share > 0.0 || self.loss > 0.0) {
            self.open = Some((Block { first: number, count: 0 }, 0));
        }
        let (block, longest) = self.open.as_mut()?;
        block.count += 1;
        *longest = (*longest).max(bytes);
        let (first, count) = (block.first, block.count);
        if self.is_full(count) {
            self.close();
        }
        Some(first)
    }

    /// Completes the current block, since nothing is left to send.
    pub(super) fn close(&mut self) {
        if let Some((block, longest)) = self.open.take() {
            let of = self.repair_of(block.count).min(MAX_REPAIR) as u32;
            self.due = Some(Due { block, longest, sent: 0, of });
        }
    }

    /// The next repair packet: its block, its index, and its greatest length in bytes.
    pub(super) fn next(&self) -> Option<(Block, u32, u32)> {
        self.due.map(|due| (due.block, due.sent, due.longest))
    }

    /// Notes that the packet of [`Self::next`] has been sent.
    pub(super) fn repaired(&mut self, number: u64, now: Time) {
        let Some(due) = &mut self.due else { return };
        due.sent += 1;
        if due.sent >= due.of {
            self.sent.push_back((due.block, number, now));
            self.due = None;
        }
    }

    /// Gives up the current blocks, since the receiver no longer needs their repair packets.
    pub(super) fn give_up(&mut self) {
        (self.open, self.due) = (None, None);
    }

    /// How long the packet may still be rebuilt. `None` if it is in no block.
    pub(super) fn hope(&self, number: u64) -> Option<Hope> {
        let at = self.sent.partition_point(|(block, ..)| block.end() <= number);
        if let Some((_, last, at)) = self.sent.get(at).filter(|(block, ..)| block.position(number).is_some())
        {
            return Some(Hope::Until(*last, *at));
        }
        let open = self.open.map(|(block, _)| block).or(self.due.map(|due| due.block));
        open.and_then(|block| block.position(number)).map(|_| Hope::Open)
    }

    /// Forgets blocks before packet `base`.
    pub(super) fn forget(&mut self, base: u64) {
        while self.sent.front().is_some_and(|(block, ..)| block.end() <= base) {
            self.sent.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Time = Time::from_millis(1);

    #[test]
    fn a_block_is_closed_when_it_is_full_or_nothing_is_left() {
        let mut blocks = Blocks::new(0.1);
        for number in 10..10 + u64::from(MAX_BLOCK) {
            assert_eq!(blocks.next(), None);
            assert_eq!(blocks.covers(number, 100 + (number == 20) as u32, true), Some(10));
        }
        let full = Block { first: 10, count: MAX_BLOCK };
        for symbol in 0..7 {
            assert_eq!((blocks.next(), blocks.hope(10)), (Some((full, symbol, 101)), Some(Hope::Open)));
            blocks.repaired(74 + u64::from(symbol), MS);
        }
        assert_eq!((blocks.next(), blocks.hope(73)), (None, Some(Hope::Until(80, MS))));
        assert_eq!((blocks.covers(81, 9, true), blocks.covers(82, 9, false)), (Some(81), Some(81)));
        blocks.close();
        assert_eq!(blocks.next(), Some((Block { first: 81, count: 2 }, 0, 9)));
        assert_eq!((blocks.hope(9), blocks.hope(74), blocks.hope(82)), (None, None, Some(Hope::Open)));
        blocks.repaired(83, 2 * MS);
        blocks.forget(74);
        assert_eq!((blocks.hope(10), blocks.hope(82)), (None, Some(Hope::Until(83, 2 * MS))));
    }

    #[test]
    fn without_a_share_there_are_none() {
        let mut blocks = Blocks::new(0.0);
        assert_eq!(blocks.covers(1, 100, true), None);
        blocks.close();
        assert_eq!((blocks.next(), blocks.hope(1)), (None, None));
    }

    #[test]
    fn a_lossy_path_gets_as_many_repair_packets_as_it_needs() {
        let mut blocks = Blocks::new(0.0);
        blocks.expect(0.05, 1_000);
        assert_eq!(blocks.covers(1, 100, true), None, "a retransmission is as good");
        for (loss, count, repair) in
            [(0.1, 64, 13), (0.4, 64, 60), (0.7, 64, 194), (0.7, 1, 8), (0.8, 40, 217)]
        {
            let mut blocks = Blocks::new(0.0);
            blocks.expect(loss, 1_000);
            (0..count).for_each(|number| _ = blocks.covers(number, 100, true));
            blocks.close();
            let sent = std::iter::from_fn(|| blocks.next().map(|_| blocks.repaired(999, MS))).count();
            assert_eq!(sent, repair, "{loss} {count}");
        }
    }

    #[test]
    fn a_block_leaves_room_for_its_repair_packets() {
        for (loss, flight, count) in [(0.8, 1_000, 48), (0.8, 75, 14), (0.8, 10, 4), (0.4, 10, 64)] {
            let mut blocks = Blocks::new(0.0);
            blocks.expect(loss, flight);
            let full = (0..).find(|&number| {
                blocks.covers(number, 100, true);
                blocks.next().is_some()
            });
            assert_eq!(full, Some(count - 1), "{loss} {flight}");
            let (block, ..) = blocks.next().unwrap();
            assert!(blocks.repair_of(block.count) <= MAX_REPAIR);
        }
    }

    #[test]
    fn packets_of_a_given_up_block_may_not_be_rebuilt() {
        let mut blocks = Blocks::new(1.0);
        blocks.covers(1, 100, true);
        blocks.give_up();
        blocks.close();
        assert_eq!((blocks.next(), blocks.hope(1)), (None, None));
    }
}
