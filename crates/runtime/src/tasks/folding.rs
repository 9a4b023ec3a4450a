//! Folds results of tasks: decides which bytes may be missing, adds the results, and computes their mean.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Mutex};

use thalweg_arena::Arena;
use thalweg_fold::{Accumulator, Precision, Replacement};
use thalweg_wire::{Allowance, ChunkHeader, Layout, Range, Ranges, Tensor, Tolerance, WHOLE};

use super::server::TaskHub;
use super::store::{Kept, Verdict};
use crate::engine::CHUNK_TIMEOUT;
use crate::mean::{check_means, take_mean};
use crate::{lock, Error, Kind};

/// Sums of a released task, which the next task with the same layout of results reuses.
#[derive(Default)]
pub(super) struct SpareSums(Mutex<Option<Arc<Accumulator>>>);

impl SpareSums {
    /// Empty sums for results of a layout. Reuses the sums of an earlier task if they have the same layout.
    pub fn take(&self, layout: &Arc<Layout>, precision: Precision) -> Arc<Accumulator> {
        let spare = lock(&self.0).take();
        if let Some(sums) = spare.filter(|sums| sums.layout().difference(layout).is_none()) {
            sums.reset();
            return sums;
        }
        Arc::new(Accumulator::new(layout.clone(), precision))
    }

    /// Keeps sums for reuse, unless another task still holds them.
    pub fn keep(&self, sums: Arc<Accumulator>) {
        if Arc::strong_count(&sums) == 1 {
            *lock(&self.0) = Some(sums);
        }
    }
}

/// The rule that says which bytes of results may be missing, if the results have the layout `fold`. `shares`
/// has a fraction of the bytes for each tensor, in order.
///
/// A tensor must arrive completely if the task (`sent`) has no tensor of the same name, type and shape: no
/// value could then stand in for elements that no client sent.
///
/// # Errors
/// `options` if a fraction is not from 0 to 1, or the number of fractions is wrong.
pub(super) fn tolerance(fold: &Layout, shares: &[f64], sent: &Layout) -> Result<Tolerance, Error> {
    let bad = |why: String| Error::new(Kind::Options, "open task", why);
    if shares.len() != fold.tensors().len() {
        let (given, tensors) = (shares.len(), fold.tensors().len());
        return Err(bad(format!("{given} shares say what may be missing of {tensors} tensors")));
    }
    let mut allowances = Vec::new();
    for ((at, tensor), &share) in fold.tensors().iter().enumerate().zip(shares) {
        if !(0.0..=1.0).contains(&share) {
            return Err(
                bad(format!("{share} of {:?} may be missing", tensor.name)).hint("it is a share from 0 to 1")
            );
        }
        let share = if counterpart(sent, tensor).is_some() { share } else { 0.0 };
        let budget = (share * f64::from(WHOLE)) as u32;
        // A tensor without a rule may be missing completely.
        if budget < WHOLE {
            allowances.push(Allowance { tensor: at as u32, budget, refuse: WHOLE });
        }
    }
    Tolerance::new(fold, &allowances).map_err(|error| bad(error.to_string()))
}

/// The task's tensor with the same name, type and shape as this tensor of a result.
fn counterpart<'a>(sent: &'a Layout, tensor: &Tensor) -> Option<&'a Tensor> {
    let alike =
        |one: &&Tensor| (&one.name, one.dtype, &one.shape) == (&tensor.name, tensor.dtype, &tensor.shape);
    sent.tensors().iter().find(alike)
}

/// Checks whether a chunk can be folded, while its bytes are in the cache. `None` means yes. A chunk that
/// cuts an element is checked later, by [`fold_result`].
pub(super) fn judged(sums: &Accumulator, chunk: &ChunkHeader, bytes: &[u8], weight: f64) -> Option<Verdict> {
    if sums.layout().cut_by(chunk.range()).is_some() {
        return Some(Verdict::Open);
    }
    sums.check(chunk.offset, bytes, weight).err().map(|error| Verdict::Refused(error.to_string()))
}

/// Folds a result except for its `holes`, on a thread of its own.
pub(super) fn fold(hub: &Arc<TaskHub>, task: u32, sender: u32, weight: f64, holes: Ranges) {
    let work = hub.clone();
    hub.spawn_blocking(move || {
        let hub = work;
        let sums = hub.policy.sums_of(task);
        let kept = hub.policy.store.take(task, sender);
        // Report an outcome to the task even if folding panics.
        let folding = AssertUnwindSafe(|| fold_result(sums.as_deref(), kept.as_ref(), weight, &holes));
        let outcome = catch_unwind(folding).unwrap_or_else(|_| Err("the thread that folded panicked".into()));
        if let Some(kept) = kept {
            hub.policy.store.keep_spare(kept);
        }
        let outcome = outcome.map_err(|reason| format!("sent a result that cannot be folded: {reason}"));
        lock(&hub.machine).folded(hub.now(), task, sender, outcome);
        hub.wake();
    });
}

fn fold_result(
    sums: Option<&Accumulator>,
    kept: Option<&Kept>,
    weight: f64,
    holes: &Ranges,
) -> Result<(), String> {
    let sums = sums.ok_or("nobody wants the mean any more")?;
    if let Some(Verdict::Refused(reason)) = kept.map(|kept| &kept.verdict) {
        return Err(reason.clone());
    }
    let bytes = sums.layout().bytes();
    let present = holes.holes(bytes);
    let Some(kept) = kept else {
        return match (bytes, present.is_empty()) {
            (0, _) => Ok(()),
            (_, true) => Err("nothing of it came".into()),
            (_, false) => Err("there is no memory".into()),
        };
    };
    // Wait for the claim: the last chunk's sink may not have released its range yet.
    let result = kept.arena.claim_within(kept.arena.range(), CHUNK_TIMEOUT).map_err(|e| e.to_string())?;
    let part = |range: Range| &result[range.start as usize..range.end as usize];
    if kept.verdict.is_open() {
        let judge = |range: Range| sums.check(range.start, part(range), weight);
        present.iter().try_for_each(judge).map_err(|e| e.to_string())?;
    }
    sums.fold_ranges(&result, &present, weight).map_err(|e| e.to_string())
}

/// An empty arena for tensors that have no bytes. No chunk of theirs arrives, so nothing else makes an arena.
/// `None` if there are no tensors, or they have bytes.
pub(super) fn without_bytes(layout: &Layout) -> Option<Arena> {
    let named = !layout.tensors().is_empty() && layout.bytes() == 0;
    named.then(|| Arena::new(0).ok()).flatten()
}

/// The mean of the folded results. An element that no client sent gets the task's own value from `sent`;
/// without `sent` it is 0.
///
/// # Errors
/// `task` if nothing was folded, or a mean is not finite.
pub(super) fn mean(sums: &Accumulator, sent: Option<&(Arena, Arc<Layout>)>) -> Result<Arena, Error> {
    let no_mean = |reason: String| Error::new(Kind::Task, "take the mean", reason);
    let layout = sums.layout();
    let covered: Ranges =
        sums.weights().map_err(|e| no_mean(e.to_string()))?.into_iter().map(|(range, _)| range).collect();
    if covered.is_empty() && layout.bytes() > 0 {
        return Err(no_mean("no result was folded".into()));
    }
    let arena = Arena::new(layout.bytes())?;
    let mut mean = arena.claim(arena.range())?;
    check_means(std::slice::from_ref(sums)).map_err(no_mean)?;
    if let Some((tensors, of)) = sent {
        stand_in(layout, &mut mean, &covered, tensors, of)?;
    }
    let repair = if sent.is_some() { Replacement::KeepLocal } else { Replacement::Zero };
    take_mean(std::slice::from_ref(sums), &mut mean, repair).map_err(no_mean)?;
    drop(mean);
    Ok(arena)
}

/// Copies the task's own values into the ranges of `mean` that are not `covered`.
fn stand_in(
    layout: &Layout,
    mean: &mut [u8],
    covered: &Ranges,
    sent: &Arena,
    of: &Layout,
) -> Result<(), Error> {
    for tensor in layout.tensors() {
        let missing = covered.missing_in(tensor.range());
        let Some(own) = counterpart(of, tensor).filter(|_| !missing.is_empty()) else { continue };
        let own = sent.lend(own.range())?;
        for range in missing {
            let from = &own[(range.start - tensor.offset) as usize..][..range.len() as usize];
            mean[range.start as usize..range.end as usize].copy_from_slice(from);
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use thalweg_fold::reference::Plain;
    use thalweg_wire::Dtype;

    use super::super::store::Store;
    use super::*;

    /// Pseudo-random numbers of a seed (Knuth's linear congruential generator).
    struct Draws(u64);

    impl Draws {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % limit
        }
    }

    fn layout(with: &[(&str, Dtype, u64)]) -> Arc<Layout> {
        let tensors = with.iter().map(|(name, dtype, n)| (*name, *dtype, vec![*n]));
        Arc::new(Layout::pack(tensors).unwrap())
    }

    /// Small whole numbers in every element, so that their sums are exact in all types.
    fn filled(layout: &Layout, draws: &mut Draws) -> Vec<u8> {
        let mut bytes = vec![0; layout.bytes() as usize];
        for tensor in layout.tensors() {
            let range = tensor.range();
            let place = &mut bytes[range.start as usize..range.end as usize];
            for element in place.chunks_exact_mut(tensor.dtype.size() as usize) {
                let value = draws.below(2000) as f64 - 1000.0;
                match tensor.dtype {
                    Dtype::F64 => element.copy_from_slice(&value.to_le_bytes()),
                    Dtype::F32 => element.copy_from_slice(&(value as f32).to_le_bytes()),
                    _ => element.copy_from_slice(&(value as i64).to_le_bytes()),
                }
            }
        }
        bytes
    }

    fn holes(total: u64, draws: &mut Draws) -> Ranges {
        let hole = |draws: &mut Draws| {
            let start = draws.below(total);
            Range::new(start, (start + 1 + draws.below(300)).min(total))
        };
        (0..draws.below(12)).map(|_| hole(draws)).collect()
    }

    fn arena(bytes: &[u8]) -> Arena {
        let arena = Arena::new(bytes.len() as u64).unwrap();
        arena.claim(arena.range()).unwrap().copy_from_slice(bytes);
        arena
    }

    /// Whichever bytes are missing of each result, the mean has the bits of the plain reference. Each
    /// element's mean is over the clients that sent all of that element. An element that no client sent has
    /// the task's own value.
    #[test]
    fn the_mean_is_that_of_what_came() {
        let of = layout(&[
            ("a", Dtype::F32, 500),
            ("n", Dtype::I64, 7),
            ("b", Dtype::F64, 130),
            ("c", Dtype::F32, 9),
        ]);
        // The task's tensors are in another order, and there are others among them.
        let sent = layout(&[
            ("x", Dtype::F32, 3),
            ("b", Dtype::F64, 130),
            ("a", Dtype::F32, 500),
            ("c", Dtype::F32, 9),
        ]);
        for (seed, precision) in (0..40).flat_map(|seed| [(seed, Precision::F32), (seed, Precision::Exact)]) {
            let mut draws = Draws(seed);
            let (sums, mut plain) = (Accumulator::new(of.clone(), precision), Plain::new(&of));
            let store = Store::new(1 << 20, std::env::temp_dir());
            for sender in 0..1 + draws.below(4) as u32 {
                let (bytes, weight) = (filled(&of, &mut draws), 1.0 + draws.below(4) as f64);
                // The task has no tensor like `n`, so nothing of `n` may be missing.
                let whole = of.tensors()[1].range();
                let holes: Ranges = holes(of.bytes(), &mut draws)
                    .iter()
                    .flat_map(|h| Ranges::from_iter([whole]).missing_in(h))
                    .collect();
                let present = holes.holes(of.bytes());
                for range in present.iter() {
                    let mut place = store.claim(7, sender, Some(of.bytes()), range).unwrap();
                    place.copy_from_slice(&bytes[range.start as usize..range.end as usize]);
                    plain.fold(range.start, &bytes[range.start as usize..range.end as usize], weight);
                }
                store.judged(7, sender, Verdict::Open);
                let kept = store.take(7, sender).unwrap();
                // The bytes in holes must never be read.
                for hole in holes.iter() {
                    kept.arena.claim(hole).unwrap().fill(0xff);
                }
                fold_result(Some(&sums), Some(&kept), weight, &holes).unwrap();
                store.keep_spare(kept);
            }
            let own = filled(&sent, &mut draws);
            let mut expected = vec![0; of.bytes() as usize];
            for tensor in of.tensors() {
                let Some(from) = counterpart(&sent, tensor) else { continue };
                expected[tensor.offset as usize..tensor.range().end as usize]
                    .copy_from_slice(&own[from.offset as usize..from.range().end as usize]);
            }
            plain.finish(&mut expected, Replacement::KeepLocal);
            let found = mean(&sums, Some(&(arena(&own), sent.clone()))).unwrap();
            let found = found.lend(found.range()).unwrap();
            for tensor in of.tensors() {
                let range = tensor.range().start as usize..tensor.range().end as usize;
                assert_eq!(found[range.clone()], expected[range], "{seed}, {precision:?}: {}", tensor.name);
            }
        }
    }

    #[test]
    fn a_result_of_which_nothing_came_is_refused() {
        let sums = Accumulator::new(layout(&[("a", Dtype::F32, 8)]), Precision::F32);
        let refused = fold_result(Some(&sums), None, 1.0, &Ranges::full(sums.layout().bytes()));
        assert_eq!(refused, Err("nothing of it came".into()));
        assert!(mean(&sums, None).unwrap_err().to_string().contains("no result was folded"));
    }

    #[test]
    fn of_a_tensor_that_the_task_has_not_in_this_form_nothing_may_be_missing() {
        let of = layout(&[
            ("a", Dtype::F32, 100),
            ("n", Dtype::F64, 7),
            ("c", Dtype::F32, 100),
            ("d", Dtype::F32, 9),
        ]);
        let sent = layout(&[
            ("a", Dtype::F32, 100),
            ("n", Dtype::I64, 7),
            ("c", Dtype::F32, 100),
            ("d", Dtype::F32, 8),
        ]);
        let rule = tolerance(&of, &[0.25, 1.0, 1.0, 1.0], &sent).unwrap();
        let budgets: Vec<_> =
            rule.limits().iter().map(|limit| (limit.tensor.as_str(), limit.budget)).collect();
        assert_eq!(budgets, [("a", 100), ("n", 0), ("d", 0)]);
        for (shares, words) in [(&[0.5][..], "1 shares"), (&[0.5, 0.5, 1.5, 0.5], "a share from 0 to 1")] {
            let refused = tolerance(&of, shares, &sent).unwrap_err();
            assert!(refused.to_string().contains(words), "{refused}");
        }
    }
}
