//! Computes the mean of folded updates, on all cores.

use std::thread::{self, ScopedJoinHandle};

use thalweg_fold::{Accumulator, FoldError, Replacement, Summary};
use thalweg_wire::Range;

/// A smaller model is handled by the calling thread alone: starting threads would take longer.
const ALONE: u64 = 4 << 20;

/// Checks that the sums give a model: all means are finite.
///
/// # Errors
/// The first mean that is not finite, or why the sums cannot be read.
pub(crate) fn check_means(sums: &[Accumulator]) -> Result<(), String> {
    if let [(sums, part)] = parts(sums)[..] {
        return sums.check_part(part).map_err(|error| error.to_string());
    }
    thread::scope(|scope| {
        let workers: Vec<_> =
            parts(sums).into_iter().map(|(sums, part)| scope.spawn(move || sums.check_part(part))).collect();
        workers.into_iter().try_for_each(joined)
    })
}

/// Writes the mean into a model. `repair` says which value an element gets if no client sent it. Each of
/// `sums` covers one part of the updates' bytes; the parts follow one another.
///
/// # Errors
/// The reason why the sums cannot be read.
pub(crate) fn take_mean(
    sums: &[Accumulator],
    model: &mut [u8],
    repair: Replacement,
) -> Result<Summary, String> {
    if let [(sums, part)] = parts(sums)[..] {
        return sums.finish_part(part.start, model, repair).map_err(|error| error.to_string());
    }
    let mut rest = model;
    thread::scope(|scope| {
        let mut workers = Vec::new();
        for (sums, range) in parts(sums) {
            let (part, others) = std::mem::take(&mut rest).split_at_mut(range.len() as usize);
            rest = others;
            workers.push(scope.spawn(move || sums.finish_part(range.start, part, repair)));
        }
        let mut total: Option<Summary> = None;
        for worker in workers {
            let summary = joined(worker)?;
            match &mut total {
                Some(total) => total.merge(&summary),
                None => total = Some(summary),
            }
        }
        Ok(total.unwrap_or_else(nothing))
    })
}

/// The summary of a model without elements.
pub(crate) fn nothing() -> Summary {
    Summary { tensors: Vec::new(), uncovered_bytes: 0 }
}

/// Splits the sums into parts, one for each thread.
fn parts(sums: &[Accumulator]) -> Vec<(&Accumulator, Range)> {
    let is_small = sums.first().is_none_or(|first| first.layout().bytes() < ALONE);
    let cores = if is_small { 1 } else { thread::available_parallelism().map_or(1, usize::from) };
    let each = cores.div_ceil(sums.len().max(1));
    sums.iter().flat_map(|sums| sums.parts(each).into_iter().map(move |part| (sums, part))).collect()
}

fn joined<T>(worker: ScopedJoinHandle<'_, Result<T, FoldError>>) -> Result<T, String> {
    worker.join().map_err(|_| "a worker panicked")?.map_err(|error| error.to_string())
}
