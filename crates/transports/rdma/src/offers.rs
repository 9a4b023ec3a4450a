//! The peer's offers that are not yet granted, and errors that all receiving sides return.

use std::collections::VecDeque;

use thalweg_transport::{Error, ErrorKind, Result};
use thalweg_wire::FrameHeader;

use crate::stock::Stock;
use crate::GRANTS;

pub(crate) const RECEIVE: &str = "receive";

pub(crate) fn corrupt(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, RECEIVE, format!("{what} from the peer of an rdma link"))
}

fn out_of_order() -> Error {
    corrupt("an offer out of order, or one too many")
}

pub(crate) fn refused(error: &thalweg_verbs::Error) -> Error {
    Error::new(ErrorKind::System, RECEIVE, error.to_string())
}

/// Offers in order. At most one at a time is being placed: the sink is being asked for its place.
#[derive(Default)]
pub(crate) struct Offers {
    waiting: VecDeque<(u64, FrameHeader)>,
    placing: Option<u64>,
    next: u64,
}

impl Offers {
    /// One more than the highest number offered.
    pub(crate) fn count(&self) -> u64 {
        self.next
    }

    /// Adds an offer. `others` is the number of chunks that were granted and not yet taken.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for numbers out of order, or more offers than a sender may have.
    pub(crate) fn add(&mut self, number: u64, header: FrameHeader, others: usize) -> Result<()> {
        if number > self.next {
            return Err(out_of_order());
        }
        self.add_after_gap(number, header, others)
    }

    /// The same, but the offer may leave out numbers. A sender that lends does so if it withdraws a chunk
    /// before it has notified the peer of it.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub(crate) fn add_after_gap(&mut self, number: u64, header: FrameHeader, others: usize) -> Result<()> {
        let fits = number >= self.next && self.waiting.len() + others <= 2 * GRANTS;
        self.next = number.checked_add(1).filter(|_| fits).ok_or_else(out_of_order)?;
        self.waiting.push_back((number, header));
        Ok(())
    }

    /// Withdraws an offer for the peer. The offer may be waiting, being placed, or granted already.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for a chunk that was never offered.
    pub(crate) fn withdraw(&mut self, number: u64) -> Result<()> {
        if number >= self.next {
            return Err(corrupt("a withdrawal of what was not offered"));
        }
        self.waiting.retain(|(offer, _)| *offer != number);
        self.placing = self.placing.filter(|&placing| placing != number);
        Ok(())
    }

    /// The oldest waiting offer, if it is one of the first `count` and there is credit for it. Takes that
    /// credit. The caller then asks the sink for a place.
    pub(crate) fn next(&mut self, count: u64, stock: &mut Stock) -> Option<(u64, FrameHeader)> {
        let length = self.waiting.front().filter(|(number, _)| *number < count)?.1.length() as u64;
        if !stock.take(length) {
            return None;
        }
        let offer = self.waiting.pop_front();
        self.placing = offer.map(|(number, _)| number);
        offer
    }

    /// Notes that the sink has answered. Returns whether the chunk is still wanted; if not, its credit is
    /// returned.
    pub(crate) fn placed(&mut self, number: u64, length: u64, stock: &mut Stock) -> bool {
        let wanted = self.placing.take() == Some(number);
        if !wanted {
            stock.give(length);
        }
        wanted
    }

    /// Drops the waiting offers.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_wire::{ChunkHeader, LayoutHash};

    fn header() -> FrameHeader {
        let chunk = ChunkHeader { job: 1, round: 1, sender: 1, layout: LayoutHash(1), offset: 0, length: 8 };
        FrameHeader::chunk(chunk, 0)
    }

    #[test]
    fn numbers_ascend_and_only_a_sender_that_lends_may_leave_some_out() {
        let mut offers = Offers::default();
        offers.add(0, header(), 0).unwrap();
        for number in [0, 2] {
            assert_eq!(offers.add(number, header(), 0).unwrap_err().kind(), ErrorKind::Corrupt);
        }
        offers.add_after_gap(2, header(), 0).unwrap();
        for number in [1, 2, u64::MAX] {
            assert_eq!(offers.add_after_gap(number, header(), 0).unwrap_err().kind(), ErrorKind::Corrupt);
        }
        assert_eq!(offers.count(), 3);
    }
}
