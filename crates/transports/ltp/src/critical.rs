//! Decides which chunks of an update are critical: they are retransmitted until they arrive, even after the
//! update is closed.

use std::sync::{Arc, Mutex, PoisonError};

use thalweg_wire::{Range, Ranges, Tolerance};

/// The critical bytes of an update: those of the option `critical`, and those that the session named.
#[derive(Debug, Default)]
pub(crate) struct Critical {
    named: Ranges,
    tolerance: Mutex<Arc<Tolerance>>,
}

impl Critical {
    pub(crate) fn new(named: Ranges) -> Self {
        Self { named, tolerance: Mutex::default() }
    }

    /// Sets the tolerance for updates that begin from now on.
    pub(crate) fn tolerate(&self, tolerance: &Arc<Tolerance>) {
        *self.tolerance.lock().unwrap_or_else(PoisonError::into_inner) = tolerance.clone();
    }

    /// Tells for each of an update's chunks whether it is critical: the first, the last, and all that contain
    /// critical bytes. `chunks` is in ascending order.
    pub(crate) fn of(&self, chunks: &[Range]) -> Vec<bool> {
        let tolerance = self.tolerance.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let last = chunks.len().saturating_sub(1);
        let touched = |set: &Ranges, chunk: Range| set.within(chunk).next().is_some();
        let must = |(at, &chunk): (usize, &Range)| {
            at == 0 || at == last || touched(&self.named, chunk) || touched(tolerance.critical(), chunk)
        };
        chunks.iter().enumerate().map(must).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a panic is how tests report
mod tests {
    use proptest::prelude::*;
    use thalweg_wire::{Allowance, Dtype, Layout};

    use super::*;

    /// A tolerance for ten tensors of 250 floats, some of which are critical.
    fn tolerance(critical: &[u32]) -> (Layout, Arc<Tolerance>) {
        let layout = Layout::pack((0..10).map(|at| (format!("t{at}"), Dtype::F32, vec![250]))).unwrap();
        let allowances: Vec<Allowance> = (0..10)
            .map(|tensor| Allowance {
                tensor,
                budget: if critical.contains(&tensor) { 0 } else { 100_000 },
                refuse: 1_000_000,
            })
            .collect();
        let tolerance = Tolerance::new(&layout, &allowances).unwrap();
        (layout, Arc::new(tolerance))
    }

    fn cut(total: u64, chunk: u64) -> Vec<Range> {
        (0..total.div_ceil(chunk)).map(|at| Range::new(at * chunk, ((at + 1) * chunk).min(total))).collect()
    }

    #[test]
    fn the_first_and_the_last_and_what_is_named_must_come() {
        let critical = Critical::new([Range::new(250, 260)].into_iter().collect());
        let chunks = cut(1000, 100);
        let places = |critical: &Critical| -> Vec<usize> {
            critical.of(&chunks).iter().enumerate().filter(|(_, &must)| must).map(|(at, _)| at).collect()
        };
        assert_eq!(places(&critical), [0, 2, 9]);
        critical.tolerate(&tolerance(&[]).1);
        assert_eq!(places(&critical), [0, 2, 9], "a budget makes nothing critical");
        critical.tolerate(&tolerance(&[0]).1);
        assert_eq!(places(&critical).len(), 10);
    }

    proptest! {
        /// Whatever the length of the chunks, a chunk that is not critical has no byte of a critical tensor.
        #[test]
        fn no_critical_byte_is_in_a_chunk_that_may_be_lost(
            named in prop::collection::vec(0..10_u32, 0..5), chunk in 64..3000_u64,
        ) {
            let (layout, tolerance) = tolerance(&named);
            let critical = Critical::default();
            critical.tolerate(&tolerance);
            let chunks = cut(layout.bytes(), chunk);
            for (range, must) in chunks.iter().zip(critical.of(&chunks)) {
                let touched = layout.overlapping(*range).iter().any(|tensor| {
                    named.contains(&tensor.name[1..].parse().unwrap())
                });
                prop_assert!(must || !touched, "{range:?}");
            }
        }
    }
}
