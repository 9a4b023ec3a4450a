//! A transfer: the chunks of one update. It decides which chunk the sender sends next.

use std::collections::VecDeque;

use super::Closed;

/// Maximum number of chunks of a transfer. A receiver keeps one bit for each.
pub const MAX_PIECES: usize = 1 << 24;

/// A chunk of a transfer, as its sender knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Bytes of the chunk's packet.
    pub bytes: u32,
    /// Whether the sender retransmits it until it arrives, even after the transfer is closed.
    pub critical: bool,
}

/// Identifies the chunk in a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkId {
    /// Number of the transfer. The first is 1, and 0 follows 65535.
    pub transfer: u16,
    /// Index of the chunk.
    pub index: u32,
    /// Number of chunks of the transfer, at most [`MAX_PIECES`].
    pub of: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Fresh,
    UnderWay,
    Lost,
    Here,
}

/// An update that the sender is sending.
#[derive(Debug)]
pub(super) struct SendQueue {
    pub id: u16,
    pieces: Vec<(Piece, State)>,
    /// Index of the first chunk that may not have been sent yet.
    fresh: usize,
    /// Indices of lost chunks: ordinary ones, then critical ones. Chunks that were acknowledged later are
    /// skipped.
    lost: [VecDeque<u32>; 2],
    /// Number of chunks that are not acknowledged.
    missing: usize,
    /// Number of critical chunks that are not acknowledged.
    critical: usize,
    /// Number of chunks that are neither in flight nor acknowledged.
    waiting: usize,
    pub closed: Option<Closed>,
    pub again: u64,
}

impl SendQueue {
    pub(super) fn new(id: u16, pieces: Vec<Piece>) -> Self {
        let (missing, critical) = (pieces.len(), pieces.iter().filter(|piece| piece.critical).count());
        let pieces = pieces.into_iter().map(|piece| (piece, State::Fresh)).collect();
        let (lost, closed, waiting) = (Default::default(), None, missing);
        Self { id, pieces, fresh: 0, lost, missing, critical, waiting, closed, again: 0 }
    }

    /// Returns the chunk to send now: lost critical chunks first, then new chunks, then other lost chunks.
    /// The chunk then counts as in flight.
    pub(super) fn next(&mut self) -> Option<(ChunkId, Piece)> {
        let index = self.next_lost(true).or_else(|| self.next_fresh()).or_else(|| self.next_lost(false))?;
        let of = self.pieces.len() as u32;
        let (piece, state) = self.pieces.get_mut(index as usize)?;
        self.again += u64::from(*state == State::Lost);
        *state = State::UnderWay;
        self.waiting -= 1;
        Some((ChunkId { transfer: self.id, index, of }, *piece))
    }

    fn next_fresh(&mut self) -> Option<u32> {
        let late = self.closed == Some(Closed::Deadline);
        let wanted = |(piece, state): &(Piece, State)| *state == State::Fresh && (piece.critical || !late);
        let found = self.pieces.get(self.fresh..)?.iter().position(wanted).map(|at| self.fresh + at);
        self.fresh = found.map_or(self.pieces.len(), |index| index + 1);
        found.map(|index| index as u32)
    }

    fn next_lost(&mut self, critical: bool) -> Option<u32> {
        if !critical && self.closed.is_some() {
            return None;
        }
        while let Some(index) = self.lost[usize::from(critical)].pop_front() {
            if self.pieces.get(index as usize).is_some_and(|(_, state)| *state == State::Lost) {
                return Some(index);
            }
        }
        None
    }

    /// Notes that a packet of the chunk was acknowledged.
    pub(super) fn arrived(&mut self, index: u32) {
        let Some((piece, state)) = self.pieces.get_mut(index as usize) else { return };
        if *state != State::Here {
            self.waiting -= usize::from(*state != State::UnderWay);
            *state = State::Here;
            self.missing -= 1;
            self.critical -= usize::from(piece.critical);
        }
    }

    /// Notes that a packet of the chunk was lost.
    pub(super) fn lost(&mut self, index: u32) {
        let Some((piece, state)) = self.pieces.get_mut(index as usize) else { return };
        if *state == State::UnderWay {
            *state = State::Lost;
            self.waiting += 1;
            self.lost[usize::from(piece.critical)].push_back(index);
        }
    }

    /// How the transfer ended; `None` if it has not ended.
    pub(super) fn ended(&self) -> Option<Closed> {
        // If the receiver says that all chunks have arrived, ACKs of single packets are not needed.
        if self.missing == 0 || self.closed == Some(Closed::Whole) {
            return Some(Closed::Whole);
        }
        let sent = self.closed? == Closed::Deadline || self.fresh >= self.pieces.len();
        self.closed.filter(|_| sent && self.critical == 0)
    }

    /// Number of chunks to send: new or lost.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Number of chunks that are not acknowledged.
    pub(super) fn missing(&self) -> usize {
        if self.closed == Some(Closed::Whole) {
            return 0;
        }
        self.missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transfer(critical: &[bool]) -> SendQueue {
        SendQueue::new(1, critical.iter().map(|&critical| Piece { bytes: 100, critical }).collect())
    }

    fn next(transfer: &mut SendQueue) -> Option<u32> {
        transfer.next().map(|(chunk, _)| chunk.index)
    }

    #[test]
    fn first_transmissions_go_before_what_was_lost_and_after_what_is_critical() {
        let mut transfer = transfer(&[true, false, false, false]);
        assert_eq!((next(&mut transfer), next(&mut transfer)), (Some(0), Some(1)));
        transfer.lost(1);
        transfer.lost(0);
        let rest: Vec<_> = std::iter::from_fn(|| next(&mut transfer)).collect();
        assert_eq!((rest, transfer.again), (vec![0, 2, 3, 1], 2));
    }

    #[test]
    fn closed_by_fraction_the_rest_is_still_sent_once() {
        let mut transfer = transfer(&[false; 3]);
        assert_eq!(next(&mut transfer), Some(0));
        transfer.lost(0);
        transfer.closed = Some(Closed::Fraction);
        assert_eq!((next(&mut transfer), transfer.ended()), (Some(1), None));
        assert_eq!((next(&mut transfer), transfer.ended()), (Some(2), Some(Closed::Fraction)));
        assert_eq!(next(&mut transfer), None);
    }

    #[test]
    fn after_the_deadline_only_what_is_critical_is_sent() {
        let mut transfer = transfer(&[false, false, true]);
        assert_eq!(next(&mut transfer), Some(0));
        transfer.lost(0);
        transfer.closed = Some(Closed::Deadline);
        assert_eq!((next(&mut transfer), next(&mut transfer), transfer.ended()), (Some(2), None, None));
        transfer.lost(2);
        assert_eq!(next(&mut transfer), Some(2));
        transfer.arrived(2);
        assert_eq!((transfer.ended(), transfer.missing()), (Some(Closed::Deadline), 2));
    }

    #[test]
    fn a_lost_chunk_that_arrives_after_all_is_not_retransmitted() {
        let mut transfer = transfer(&[false; 2]);
        while next(&mut transfer).is_some() {}
        transfer.lost(0);
        transfer.lost(0);
        transfer.arrived(0);
        transfer.arrived(0);
        transfer.lost(0);
        transfer.arrived(9);
        assert_eq!((next(&mut transfer), transfer.ended(), transfer.missing()), (None, None, 1));
        assert_eq!(transfer.waiting(), 0);
        transfer.arrived(1);
        assert_eq!(transfer.ended(), Some(Closed::Whole));
    }
}
