//! The peer's offers that are not yet granted, and errors that all receiving sides return.

use std::collections::VecDeque;

use thalweg_transport::{Error, ErrorKind, Result};

use crate::extent::{Extent, Part};
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

/// Offered parts in order. At most one at a time is being placed: the sink is being asked for its place.
#[derive(Default)]
pub(crate) struct Offers {
    /// The extent offered last, and the number of its first part.
    extent: Option<(u64, Extent)>,
    /// Parts that may be granted.
    waiting: VecDeque<(u64, Part)>,
    placing: Option<u64>,
    next: u64,
}

impl Offers {
    /// One more than the highest number of a part that may be granted.
    pub(crate) fn count(&self) -> u64 {
        self.next
    }

    /// Notes an extent whose first part has this number. Its parts follow by [`Self::ready`].
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for numbers out of order.
    pub(crate) fn add(&mut self, number: u64, extent: Extent) -> Result<()> {
        if number < self.next || number.checked_add(extent.parts()).is_none() {
            return Err(out_of_order());
        }
        self.extent = Some((number, extent));
        Ok(())
    }

    /// Adds the next part of the extent. `others` is the number of parts that were granted and not yet taken.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for numbers out of order, or more parts than a sender may have offered.
    pub(crate) fn ready(&mut self, number: u64, others: usize) -> Result<()> {
        if number > self.next {
            return Err(out_of_order());
        }
        self.ready_after_gap(number, others)
    }

    /// The same, but numbers may be left out. A sender that lends does so if it withdraws a part before it has
    /// notified the peer of it.
    ///
    /// # Errors
    /// As [`Self::ready`].
    pub(crate) fn ready_after_gap(&mut self, number: u64, others: usize) -> Result<()> {
        let of = |(first, extent): (u64, Extent)| extent.part(number.checked_sub(first)?);
        let part = self.extent.and_then(of).filter(|_| number >= self.next);
        let part = part.filter(|_| self.waiting.len() + others <= 2 * GRANTS);
        self.waiting.push_back((number, part.ok_or_else(out_of_order)?));
        self.next = number + 1;
        Ok(())
    }

    /// Withdraws a part for the peer. The part may be waiting, being placed, or granted already.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for a part that was never offered.
    pub(crate) fn withdraw(&mut self, number: u64) -> Result<()> {
        if number >= self.next {
            return Err(corrupt("a withdrawal of what was not offered"));
        }
        self.waiting.retain(|(offer, _)| *offer != number);
        self.placing = self.placing.filter(|&placing| placing != number);
        Ok(())
    }

    /// The oldest waiting part, if its number is less than `count` and there is credit for it. Takes that
    /// credit. The caller then asks the sink for places.
    pub(crate) fn next(&mut self, count: u64, stock: &mut Stock) -> Option<(u64, Part)> {
        let (_, part) = self.waiting.front().filter(|(number, _)| *number < count)?;
        if !stock.take(part.bytes) {
            return None;
        }
        let offer = self.waiting.pop_front();
        self.placing = offer.map(|(number, _)| number);
        offer
    }

    /// Notes that the sink has answered. Returns whether the part is still wanted; if not, its credit is
    /// returned.
    pub(crate) fn placed(&mut self, number: u64, bytes: u64, stock: &mut Stock) -> bool {
        let wanted = self.placing.take() == Some(number);
        if !wanted {
            stock.give(bytes);
        }
        wanted
    }

    /// Drops the waiting parts.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use thalweg_wire::{ChunkHeader, LayoutHash};

    fn extent(bytes: u64, whole: bool) -> Extent {
        let first = ChunkHeader { job: 1, round: 1, sender: 1, layout: LayoutHash(1), offset: 0, length: 8 };
        Extent { all: Part { first, chunk: 8, bytes }, whole }
    }

    #[test]
    fn numbers_ascend_and_only_a_sender_that_lends_may_leave_some_out() {
        let mut offers = Offers::default();
        assert!(offers.ready(0, 0).is_err(), "nothing is offered");
        offers.add(0, extent(80, false)).unwrap();
        offers.ready(0, 0).unwrap();
        for number in [0, 2] {
            assert_eq!(offers.ready(number, 0).unwrap_err().kind(), ErrorKind::Corrupt);
        }
        offers.ready_after_gap(2, 0).unwrap();
        for number in [1, 2, 10, u64::MAX] {
            assert_eq!(offers.ready_after_gap(number, 0).unwrap_err().kind(), ErrorKind::Corrupt);
        }
        assert_eq!(offers.count(), 3);
        assert!(offers.add(2, extent(8, false)).is_err() && offers.add(u64::MAX, extent(8, false)).is_err());
        offers.add(3, extent(80, true)).unwrap();
        offers.ready(3, 0).unwrap();
        assert!(offers.ready(4, 0).is_err(), "it is one part");
        let lengths: Vec<u64> = offers.waiting.iter().map(|(_, part)| part.bytes).collect();
        assert_eq!(lengths, [8, 8, 80]);
    }
}
