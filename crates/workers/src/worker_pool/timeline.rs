//! Records when workers did what, for one round.

/// Maximum number of stretches that are kept of a round. Later ones are only counted.
const MOST: usize = 1024;

/// The kind of work that a worker did during a stretch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// The node started the worker's process.
    Start,
    /// The worker added updates to its sums.
    Fold,
    /// The worker, as the middle, added the sums of other workers to its own; `updates` counts these workers.
    Merge,
    /// The worker committed its sums. The stretch lasts from the order to the answer.
    Commit,
    /// The worker's process ended without a request.
    Died,
}

/// One thing that a worker did. Times are in nanoseconds of the monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    /// Index of the worker, from 0.
    pub worker: usize,
    /// What the worker did.
    pub doing: Doing,
    /// When the worker began.
    pub start: u64,
    /// When the node received the worker's answer.
    pub end: u64,
    /// Number of updates that the worker added.
    pub updates: u64,
}

/// What the workers did in a round.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Timeline {
    /// The stretches, in the order in which they ended.
    pub stretches: Vec<Stretch>,
    /// Number of stretches that were not kept.
    pub left_out: u64,
    /// Lower bound of all times: a worker may state any time, so earlier ones are raised to this.
    since: u64,
}

impl Timeline {
    pub(super) fn since(since: u64) -> Self {
        Self { since, ..Self::default() }
    }

    /// Adds a stretch. Updates of one pass become one stretch: the worker opened all of them before it folded
    /// the first.
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
