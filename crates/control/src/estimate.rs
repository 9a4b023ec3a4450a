//! The smoothed length of a node's queue (LIFL, section 5.2).

use crate::Load;

/// An exponentially weighted moving average. The old estimate weighs `history` thousandths, the sample the
/// rest.
///
/// The paper writes Q on both sides of its formula. We read it as a weight of 0.7 for the history. Halves
/// round up.
pub fn smoothed(old: Option<Load>, sample: Load, history: u32) -> Load {
    let Some(old) = old else { return sample };
    let history = u128::from(history.min(1000));
    let sum = history * u128::from(old) + (1000 - history) * u128::from(sample);
    // A mean of two loads is no larger than the larger one.
    Load::try_from((sum + 500) / 1000).unwrap_or(Load::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_weighs_seven_tenths() {
        assert_eq!(smoothed(None, 20_000, 700), 20_000);
        assert_eq!(smoothed(Some(20_000), 10_000, 700), 17_000);
        assert_eq!(smoothed(Some(0), 1, 700), 0);
        assert_eq!(smoothed(Some(1), 0, 500), 1);
        assert_eq!(smoothed(Some(u64::MAX), u64::MAX, 700), u64::MAX);
    }

    #[test]
    fn a_short_spike_moves_it_little_and_a_long_one_all_the_way() {
        let mut estimate = smoothed(Some(10_000), 100_000, 700);
        assert_eq!(estimate, 37_000);
        for _ in 0..40 {
            estimate = smoothed(Some(estimate), 100_000, 700);
        }
        assert!(estimate > 99_990);
    }
}
