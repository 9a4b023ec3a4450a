//! Decides which client may send its update now. Staging memory is bounded: it has a number of places, and a
//! client must get one before it sends.
//!
//! Places go to clients in the order of their requests, with one exception. If there are several places, slow
//! senders never hold all of them while a faster sender waits or has not requested one yet. So a slow link
//! occupies one place, and does not hold up the round.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A sender is slow if its rate is less than the median of all known rates divided by this factor.
const SLOW: f64 = 4.0;

/// The places of the staging area: which senders hold one, and which wait for one.
#[derive(Debug, Clone)]
pub struct Credits {
    /// Number of places.
    places: usize,
    /// Senders that hold a place.
    holders: BTreeSet<u32>,
    /// Senders that wait for a place, in the order of their requests.
    queue: VecDeque<u32>,
    /// The last measured rate of each sender, in bytes per second.
    rates: BTreeMap<u32, f64>,
    /// The same rates in ascending order.
    sorted: Vec<f64>,
}

impl Credits {
    /// As many places as updates of `update` bytes fit into `budget` bytes; at least one.
    pub fn new(budget: u64, update: u64) -> Self {
        let places = usize::try_from(budget / update.max(1)).unwrap_or(usize::MAX).max(1);
        let (holders, queue, rates) = (BTreeSet::new(), VecDeque::new(), BTreeMap::new());
        Self { places, holders, queue, rates, sorted: Vec::new() }
    }

    /// Enough places for every sender. For updates that are folded as they arrive, and need no staging
    /// memory.
    pub fn unbounded() -> Self {
        Self::new(u64::MAX, 1)
    }

    /// How many places there are.
    pub fn places(&self) -> usize {
        self.places
    }

    /// Queues a sender for a place. Does nothing if it waits or holds one already.
    pub fn request(&mut self, sender: u32) {
        if !self.holders.contains(&sender) && !self.queue.contains(&sender) {
            self.queue.push_back(sender);
        }
    }

    /// Takes a sender's place back, or removes it from the queue.
    pub fn release(&mut self, sender: u32) {
        self.holders.remove(&sender);
        self.queue.retain(|&s| s != sender);
    }

    /// Records the rate of a sender's last update, in bytes per second.
    pub fn measured(&mut self, sender: u32, rate: f64) {
        let place = |sorted: &[f64], rate: f64| sorted.partition_point(|r| r.total_cmp(&rate).is_lt());
        if let Some(before) = self.rates.insert(sender, rate) {
            self.sorted.remove(place(&self.sorted, before));
        }
        self.sorted.insert(place(&self.sorted, rate), rate);
    }

    /// Whether a sender waits for a place.
    pub fn is_awaited(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether a sender holds a place.
    pub fn holds(&self, sender: u32) -> bool {
        self.holders.contains(&sender)
    }

    /// Gives a place to the next sender, if one is free, and returns the sender. `coming`: senders that have
    /// not requested a place yet, and will.
    pub fn grant<I: Iterator<Item = u32>>(&mut self, coming: impl Fn() -> I) -> Option<u32> {
        if self.queue.is_empty() || self.holders.len() >= self.places {
            return None;
        }
        // A slow sender gets a place only if another free place remains for a faster sender.
        let room_for_slow = self.places == 1
            || self.holders.len() + 1 < self.places
            || self.holders.iter().any(|&holder| !self.is_slow(holder));
        let at = if room_for_slow {
            0
        } else {
            let faster = |sender: u32| !self.is_slow(sender);
            match self.queue.iter().position(|&sender| faster(sender)) {
                Some(at) => at,
                None if coming().any(faster) => return None,
                None => 0,
            }
        };
        let sender = self.queue.remove(at)?;
        self.holders.insert(sender);
        Some(sender)
    }

    /// Gives a place to this sender, if it waits for one and a place is free. Returns whether it did.
    pub fn grant_to(&mut self, sender: u32) -> bool {
        let at = self.queue.iter().position(|&s| s == sender).filter(|_| self.holders.len() < self.places);
        at.and_then(|at| self.queue.remove(at)).is_some_and(|sender| self.holders.insert(sender))
    }

    /// Whether a sender's rate is below the median of all rates by the factor [`SLOW`].
    fn is_slow(&self, sender: u32) -> bool {
        let median = self.sorted.get(self.sorted.len() / 2).copied().unwrap_or(0.0);
        self.rates.get(&sender).is_some_and(|rate| rate * SLOW < median)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants(credits: &mut Credits) -> Vec<u32> {
        std::iter::from_fn(|| credits.grant(std::iter::empty)).collect()
    }

    #[test]
    fn small_updates_are_granted_at_once_and_large_ones_a_few_at_a_time() {
        let mut small = Credits::new(1000, 10);
        let mut large = Credits::new(1000, 400);
        for sender in 1..=9 {
            small.request(sender);
            large.request(sender);
        }
        assert_eq!(grants(&mut small), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(grants(&mut large), [1, 2]);
        large.release(2);
        assert_eq!(grants(&mut large), [3]);
    }

    #[test]
    fn an_update_larger_than_the_budget_still_gets_in_alone() {
        let mut credits = Credits::new(10, 400);
        credits.request(1);
        credits.request(2);
        assert_eq!(grants(&mut credits), [1]);
    }

    #[test]
    fn slow_senders_leave_a_place_but_are_not_starved() {
        let mut credits = Credits::new(2, 1);
        for (sender, rate) in [(1, 1.0), (2, 1.0), (3, 100.0), (4, 100.0), (5, 100.0)] {
            credits.measured(sender, rate);
            credits.request(sender);
        }
        assert_eq!(grants(&mut credits), [1, 3], "slow 2 must wait while a fast one does");
        credits.release(3);
        assert_eq!(grants(&mut credits), [4]);
        credits.release(1);
        assert_eq!(grants(&mut credits), [2], "first in the queue again");
        credits.release(4);
        credits.release(5);
        credits.release(2);
        credits.request(1);
        credits.request(2);
        assert_eq!(credits.grant(|| [5].into_iter()), Some(1));
        assert_eq!(credits.grant(|| [5].into_iter()), None, "fast 5 is still to come");
        assert_eq!(credits.grant(|| [3].into_iter()), None);
        assert_eq!(grants(&mut credits), [2], "nobody else waits or comes");
    }

    #[test]
    fn grant_to_gives_a_free_place_to_that_sender_before_others() {
        let mut credits = Credits::new(1, 1);
        assert!(!credits.grant_to(1), "it has not asked");
        for sender in [1, 2, 3] {
            credits.request(sender);
        }
        assert!(credits.grant_to(2) && credits.holds(2));
        assert!(!credits.grant_to(3), "there is no place");
        credits.release(2);
        assert_eq!(grants(&mut credits), [1]);
    }

    #[test]
    fn asking_twice_and_leaving_the_queue() {
        let mut credits = Credits::new(1, 1);
        for sender in [1, 1, 2, 2, 3] {
            credits.request(sender);
        }
        assert_eq!(grants(&mut credits), [1]);
        credits.request(1);
        credits.release(2);
        credits.release(1);
        assert_eq!(grants(&mut credits), [3]);
    }
}
