//! What workers did when.

/// Most stretches that are kept of a round; of later ones only the number is.
const MOST: usize = 1024;

/// What a worker did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// Its process was started.
    Start,
    /// It added updates to its sums.
    Fold,
    /// It committed its sums, from the order to the answer.
    Commit,
    /// Its process ended while it was wanted.
    Died,
}

/// A worker did one thing from `start` to `end`, nanoseconds of the monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    /// Which worker, from 0.
    pub worker: usize,
    /// What it did.
    pub doing: Doing,
    /// When it began.
    pub start: u64,
    /// When the node heard that it was done.
    pub end: u64,
    /// How many updates it added.
    pub updates: u64,
}

/// What the workers did in a round.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Timeline {
    /// In the order in which they ended.
    pub stretches: Vec<Stretch>,
    /// How many more there were.
    pub left_out: u64,
    /// Nothing is earlier: a worker may state any time.
    since: u64,
}

impl Timeline {
    pub(super) fn since(since: u64) -> Self {
        Self { since, ..Self::default() }
    }

    /// Adds what a worker did. Updates of one pass become one stretch: the worker held all of them before it folded one.
    pub(super) fn add(&mut self, stretch: Stretch) {
        let end = stretch.end.max(self.since);
        let stretch = Stretch { start: stretch.start.clamp(self.since, end), end, ..stretch };
        let room = self.stretches.len() < MOST;
        let last = self.stretches.iter_mut().rev().find(|last| last.worker == stretch.worker);
        match last {
            Some(last) if last.doing == stretch.doing && stretch.start <= last.start.midpoint(last.end) => {
                last.start = last.start.min(stretch.start);
                last.end = last.end.max(stretch.end);
                last.updates += stretch.updates;
            }
            _ if room => self.stretches.push(stretch),
            _ => self.left_out += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fold(worker: usize, start: u64, end: u64) -> Stretch {
        Stretch { worker, doing: Doing::Fold, start, end, updates: 1 }
    }

    #[test]
    fn updates_of_one_pass_are_one_stretch() {
        let mut timeline = Timeline::since(100);
        for stretch in [fold(0, 110, 120), fold(1, 111, 121), fold(0, 112, 122), fold(0, 121, 140)] {
            timeline.add(stretch);
        }
        let two = Stretch { updates: 2, ..fold(0, 110, 122) };
        assert_eq!(timeline.stretches, [two, fold(1, 111, 121), fold(0, 121, 140)]);
    }

    #[test]
    fn a_worker_cannot_say_that_it_worked_before_the_round_or_later_than_now() {
        let mut timeline = Timeline::since(100);
        timeline.add(fold(0, 0, 120));
        timeline.add(fold(1, u64::MAX, 130));
        assert_eq!(timeline.stretches, [fold(0, 100, 120), fold(1, 130, 130)]);
    }

    #[test]
    fn it_has_a_bound() {
        let mut timeline = Timeline::default();
        (0..MOST as u64 + 5).for_each(|n| timeline.add(fold(0, 10 * n, 10 * n + 1)));
        assert_eq!((timeline.stretches.len(), timeline.left_out), (MOST, 5));
    }
}
