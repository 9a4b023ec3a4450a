//! The mean of what was folded; every core takes a part of it.

use std::thread::{self, ScopedJoinHandle};

use thalweg_fold::{Accumulator, FoldError, Repair, Summary};
use thalweg_wire::Range;

/// Models that are smaller are finished by the caller alone: starting threads takes longer.
const ALONE: u64 = 4 << 20;

/// Whether the sums come to a model: all means are finite.
///
/// # Errors
/// The first mean that is not, or why the sums cannot be read.
pub(crate) fn check_means(sums: &Accumulator) -> Result<(), String> {
    if let [part] = parts(sums)[..] {
        return sums.check_part(part).map_err(|error| error.to_string());
    }
    thread::scope(|scope| {
        let check = |part: Range| scope.spawn(move || sums.check_part(part));
        let workers: Vec<_> = parts(sums).into_iter().map(check).collect();
        workers.into_iter().try_for_each(joined)
    })
}

/// Takes the mean into a model; `repair` says what it has where nothing was folded.
///
/// # Errors
/// Why the sums cannot be read.
pub(crate) fn take_mean(sums: &Accumulator, model: &mut [u8], repair: Repair) -> Result<Summary, String> {
    if parts(sums).len() == 1 {
        return sums.finish_part(0, model, repair).map_err(|error| error.to_string());
    }
    let mut rest = model;
    thread::scope(|scope| {
        let mut workers = Vec::new();
        for range in parts(sums) {
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

fn parts(sums: &Accumulator) -> Vec<Range> {
    if sums.layout().bytes() < ALONE {
        return sums.parts(1);
    }
    sums.parts(thread::available_parallelism().map_or(1, usize::from))
}

fn joined<T>(worker: ScopedJoinHandle<'_, Result<T, FoldError>>) -> Result<T, String> {
    worker.join().map_err(|_| "a worker panicked")?.map_err(|error| error.to_string())
}
