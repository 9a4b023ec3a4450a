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
    /// Number of offers that have arrived in all.
    pub(crate) fn count(&self) -> u64 {
        self.next
    }

    /// Adds an offer. `others` is the number of chunks that were granted and not yet taken.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for numbers out of order, or more offers than a sender may have.
    pub(crate) fn add(&mut self, number: u64, header: FrameHeader, others: usize) -> Result<()> {
        if number != self.next || self.waiting.len() + others > 2 * GRANTS {
            return Err(corrupt("an offer out of order, or one too many"));
        }
        self.next += 1;
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
