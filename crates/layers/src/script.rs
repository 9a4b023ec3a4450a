//! Decides the fate of each chunk of an update. The fate depends only on the seed, the link, and the number
//! of the update.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use thalweg_rng::Rng;

use crate::Fault;

/// A chunk that is delayed or repeated comes at most this many places later.
const FARTHEST: u64 = 8;

/// The fate of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The chunk arrives.
    Arrives,
    /// The chunk arrives with one flipped bit, which its checksum shows.
    Damaged,
    /// The chunk never arrives.
    Lost,
    /// The chunk arrives again, as if the network had duplicated it.
    Repeated,
}

/// One transmission of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Index of the chunk in the update.
    pub chunk: usize,
    /// The chunk's fate.
    pub fate: Fate,
    /// The chunk's delay.
    pub delay: Duration,
}

/// The faults of one link, for one update after the other.
#[derive(Debug, Clone)]
pub struct Script {
    fault: Fault,
    link: u64,
    updates: u64,
}

impl Script {
    /// Creates the faults of the link with this number.
    pub fn new(fault: &Fault, link: u64) -> Self {
        Self { fault: fault.clone(), link, updates: 0 }
    }

    /// The transmissions of the next update, which has `chunks` chunks, in the order in which they leave.
    ///
    /// Each chunk draws the same number of random numbers, whatever the probabilities are. So changing the
    /// probability of one fault does not change the others.
    pub fn update(&mut self, chunks: usize) -> Vec<Step> {
        let mut rng = Rng::new(&[self.fault.seed, self.link, self.updates]);
        self.updates += 1;
        let mut steps = Vec::with_capacity(chunks);
        for (chunk, place) in (0..chunks).zip(0_u64..) {
            let late = u64::from(rng.hits(self.fault.reorder)) * rng.up_to(FARTHEST);
            let (twice, later) = (rng.hits(self.fault.duplicate), rng.up_to(FARTHEST));
            let (lost, damaged) = (rng.hits(self.fault.loss), rng.hits(self.fault.corrupt));
            let fate = match (lost, damaged) {
                (true, _) => Fate::Lost,
                (_, true) => Fate::Damaged,
                _ => Fate::Arrives,
            };
            let delay = self.fault.delay(rng.unit());
            steps.push((place + late, Step { chunk, fate, delay }));
            if twice && !lost {
                steps.push((place + late + later, Step { chunk, fate: Fate::Repeated, delay }));
            }
        }
        // A chunk that is delayed by n places comes after the n-th chunk behind it.
        steps.sort_by_key(|(place, step)| (*place, *place != step.chunk as u64));
        steps.into_iter().map(|(_, step)| step).collect()
    }
}

/// Chunks in flight. Each arrives when its delay has passed. There are at most [`DelayLine::MOST`], and the
/// sender waits while it is full.
#[derive(Debug, Default)]
pub struct DelayLine {
    waiting: BinaryHeap<Reverse<(Duration, usize)>>,
    steps: Vec<Step>,
}

impl DelayLine {
    /// Maximum number of chunks of an update in flight.
    pub const MOST: usize = 256;

    /// Whether the sender has to wait.
    pub fn is_full(&self) -> bool {
        self.waiting.len() >= Self::MOST
    }

    /// Puts a chunk into flight at `now`.
    pub fn push(&mut self, now: Duration, step: Step) {
        self.waiting.push(Reverse((now.saturating_add(step.delay), self.steps.len())));
        self.steps.push(step);
    }

    /// Takes the next chunk to arrive, and its time of arrival. Chunks that arrive at the same time come in
    /// the order in which they left.
    pub fn pop(&mut self) -> Option<(Duration, Step)> {
        let Reverse((due, number)) = self.waiting.pop()?;
        Some((due, self.steps[number]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn steps(fault: &Fault, link: u64, chunks: usize) -> Vec<Step> {
        Script::new(fault, link).update(chunks)
    }

    fn order(steps: &[Step]) -> Vec<usize> {
        steps.iter().map(|step| step.chunk).collect()
    }

    fn count(steps: &[Step], fate: Fate) -> usize {
        steps.iter().filter(|step| step.fate == fate).count()
    }

    #[test]
    fn no_faults_change_nothing() {
        let all = steps(&Fault::default(), 0, 100);
        assert!(order(&all).into_iter().eq(0..100));
        assert!(all.iter().all(|s| s.fate == Fate::Arrives && s.delay.is_zero()));
    }

    #[test]
    fn the_same_seed_and_link_repeat_and_others_differ() {
        let fault = Fault { seed: 5, loss: 0.2, reorder: 0.2, duplicate: 0.2, ..Fault::default() };
        let run = |seed, link| {
            let mut script = Script::new(&Fault { seed, ..fault.clone() }, link);
            [script.update(200), script.update(200)]
        };
        assert_eq!(run(5, 1), run(5, 1));
        assert_ne!(run(5, 1), run(6, 1));
        assert_ne!(run(5, 1), run(5, 2));
        let [first, second] = run(5, 1);
        assert_ne!(first, second);
    }

    #[test]
    fn shares_are_as_asked() {
        let fault = Fault { loss: 0.1, duplicate: 0.05, corrupt: 0.02, ..Fault::default() };
        let all = steps(&fault, 3, 20_000);
        assert!((1_800..2_200).contains(&count(&all, Fate::Lost)));
        assert!((800..1_000).contains(&count(&all, Fate::Repeated))); // of those not lost
        assert!((300..420).contains(&count(&all, Fate::Damaged)));
    }

    #[test]
    fn another_fault_leaves_the_lost_ones_lost() {
        let lost = |fault: &Fault| {
            let all = steps(fault, 1, 1_000);
            let lost = all.iter().filter(|s| s.fate == Fate::Lost).map(|s| s.chunk);
            let mut lost: Vec<usize> = lost.collect();
            lost.sort_unstable();
            lost
        };
        let fault = Fault { loss: 0.1, ..Fault::default() };
        let more = Fault { reorder: 0.5, duplicate: 0.5, jitter_ms: 3.0, ..fault.clone() };
        assert!(lost(&fault).len() > 50);
        assert_eq!(lost(&fault), lost(&more));
    }

    #[test]
    fn one_held_back_comes_at_most_eight_later() {
        let all = steps(&Fault { reorder: 0.1, ..Fault::default() }, 0, 1_000);
        let moved = order(&all).iter().zip(0..).filter(|(chunk, place)| **chunk != *place).count();
        assert!(moved > 100, "{moved}");
        let mut sorted = order(&all);
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..1_000));
        for (place, chunk) in order(&all).into_iter().enumerate() {
            assert!(place <= chunk + FARTHEST as usize && chunk <= place + FARTHEST as usize);
        }
    }

    #[test]
    fn a_certain_loss_loses_all() {
        let all = steps(&Fault { loss: 1.0, duplicate: 1.0, ..Fault::default() }, 0, 50);
        assert_eq!((all.len(), count(&all, Fate::Lost)), (50, 50));
    }

    #[test]
    fn the_line_delays_and_reorders_by_time() {
        let mut line = DelayLine::default();
        let step = |chunk, delay| Step { chunk, fate: Fate::Arrives, delay };
        line.push(MS, step(0, 5 * MS));
        line.push(MS, step(1, 2 * MS));
        line.push(MS, step(2, 5 * MS));
        let out: Vec<_> = std::iter::from_fn(|| line.pop()).map(|(due, s)| (due, s.chunk)).collect();
        assert_eq!(out, [(3 * MS, 1), (6 * MS, 0), (6 * MS, 2)]);
    }

    #[test]
    fn the_line_has_an_end() {
        let mut line = DelayLine::default();
        for chunk in 0..DelayLine::MOST {
            assert!(!line.is_full());
            line.push(MS, Step { chunk, fate: Fate::Arrives, delay: MS });
        }
        assert!(line.is_full());
        line.pop();
        assert!(!line.is_full());
    }

    #[test]
    fn delays_lie_around_the_mean() {
        let all = steps(&Fault { delay_ms: 20.0, jitter_ms: 5.0, ..Fault::default() }, 0, 1_000);
        assert!(all.iter().all(|s| (15 * MS..=25 * MS).contains(&s.delay)));
        assert!(all.iter().any(|s| s.delay < 16 * MS) && all.iter().any(|s| s.delay > 24 * MS));
    }
}
