//! Compares a round's result with the updates that its clients made.

use thalweg_proto::{Partial, State};

use super::party::{update, RoundResult};
use super::world::World;

impl World {
    /// Compares a round's result with its clients' updates: which clients count, how often, and the mean.
    pub fn check(&self, result: &RoundResult) {
        let outcome = &result.outcome;
        let bytes = self.server.bytes();
        for part in &outcome.participants {
            let sender = result.names.iter().find(|(_, n)| **n == part.client).map_or(0, |(&s, _)| s);
            let counts = result.fold.counts.get(&sender).cloned().unwrap_or_else(|| vec![0; bytes]);
            let counted = counts.iter().filter(|&&c| c > 0).count();
            assert!(counts.iter().all(|&c| c <= 1), "{} counts twice", part.client);
            match part.state {
                State::Whole => assert_eq!(counted, bytes, "{} is whole", part.client),
                State::Partial => {
                    assert!(self.lossy || (counted > 0 && self.server.partial == Partial::Keep))
                }
                _ => assert_eq!(counted, 0, "{part:?}"),
            }
            assert_eq!(counted as f64 / bytes as f64, part.coverage, "{part:?}");
            let (is_whole, is_late) = (part.state == State::Whole, part.staleness > 0);
            assert!(part.reason.is_none() == (is_whole && !is_late) || !is_whole && is_late, "{part:?}");
        }
        let whole = outcome.participants.iter().filter(|p| p.state == State::Whole).count();
        assert_eq!(outcome.complete, whole >= outcome.expected as usize);
        if outcome.participants.iter().all(|p| matches!(p.state, State::Whole) || p.coverage == 0.0) {
            assert!(self.is_mean_of_some_instances(result), "the mean is not of what was sent");
        }
    }

    /// Whether the mean is that of whole updates. Each participant's update must come from one of its
    /// processes.
    fn is_mean_of_some_instances(&self, result: &RoundResult) -> bool {
        let bytes = self.server.bytes();
        let mut sums = vec![0.0; bytes / 4];
        let mut weight = 0.0;
        for part in result.outcome.participants.iter().filter(|p| p.state == State::Whole) {
            let round = result.outcome.round - part.staleness;
            let made = &self.made[&(part.client.clone(), round)];
            // The update of the process that received the model last was counted.
            let Some(&instance) = made.last() else { return false };
            let update = update(&part.client, instance, round, bytes);
            for (sum, v) in sums.iter_mut().zip(update.chunks_exact(4)) {
                *sum += part.samples * f64::from(f32::from_le_bytes([v[0], v[1], v[2], v[3]]));
            }
            weight += part.samples;
        }
        let expected: Vec<f64> = sums.iter().map(|s| if weight > 0.0 { s / weight } else { 0.0 }).collect();
        // Whole weights add up exactly in any order. Those of late updates are no whole numbers.
        let is_late = result.outcome.participants.iter().any(|part| part.staleness > 0);
        let agrees = |(a, b): (&f64, &f64)| a == b || is_late && (a - b).abs() <= 1e-9 * a.abs();
        expected.iter().zip(&result.fold.mean()).all(agrees)
    }
}
