//! Compares folding with the machine's memory bandwidth. Prints one JSON line on stdout.
//!
//! `cargo run --release -p thalweg-fold --example fold_bench [MEGABYTES [REPETITIONS]]`
//!
//! All tasks take turns in each repetition, so that other load on the machine affects all alike. One thread
//! is used, with chunks of 256 KiB.
//! - `plain_*`: `a[i] += w * b[i]` over f32 slices of the same size (3 bytes moved for each byte). This is
//!   the bandwidth reference. It is compiled for the least processor and for this one. Ratios are to the
//!   faster of both.
//! - `copy`: one buffer is copied to another (2 bytes moved for each byte).
//! - `fold_*`: an update in memory is added to sums in memory. `fold_first_*`: the first of a round, which
//!   overwrites the sums.
//! - `fold_lent_f32`: like `fold_f32`, with the sums in an arena.
//! - `merge_f32`: another accumulator's sums are added. `export_f32`: sums are written out.
//!   `merge_sums_f32`: sums that were written out are checked and added.
//! - `fold_hot_f32`: every chunk is in the cache, as it is just after it was received.
//! - `small_1400`: chunks of 1400 bytes in the cache are added to sums in memory. `small_1400_cached`: the
//!   sums are in the cache too, so only the work and the cost of a call remain.
#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use fearless_simd::{dispatch, Level};
use thalweg_arena::Arena;
use thalweg_fold::{check_finite, Accumulator, LentMemory, Precision, Replacement};
use thalweg_wire::{Dtype, Layout, Range};

const CHUNK: usize = 256 << 10;
const TENSORS: u64 = 29;
const SMALL: usize = 1400;
/// Number of passes over 100 kB of sums.
const PASSES: usize = 1000;

/// A task, the bytes that it moves through memory, and the seconds it took.
struct Task<'a> {
    name: &'static str,
    moved: usize,
    run: Box<dyn FnMut() + 'a>,
    seconds: Vec<f64>,
}

impl<'a> Task<'a> {
    fn new(name: &'static str, moved: usize, run: impl FnMut() + 'a) -> Self {
        Self { name, moved, run: Box::new(run), seconds: Vec::new() }
    }

    fn time(&mut self, counts: bool) {
        let start = Instant::now();
        (self.run)();
        let seconds = start.elapsed().as_secs_f64();
        if counts {
            self.seconds.push(seconds);
        }
    }

    fn json(&self) -> String {
        let least = self.seconds.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.seconds.iter().copied().fold(0.0, f64::max);
        let rate = self.moved as f64 / median(&self.seconds) / 1e9;
        format!(
            r#""{}":{{"median_ms":{:.3},"min_ms":{:.3},"max_ms":{:.3},"moved_gb_per_s":{rate:.2}}}"#,
            self.name,
            median(&self.seconds) * 1e3,
            least * 1e3,
            most * 1e3
        )
    }
}

#[inline(always)]
fn plain(sums: &mut [f32], values: &[f32], weight: f32) {
    for (sum, value) in sums.iter_mut().zip(values) {
        *sum += weight * value;
    }
}

/// Compiled for the instruction set that the compiler may assume.
#[inline(never)]
fn plain_sse(sums: &mut [f32], values: &[f32], weight: f32) {
    plain(sums, values, weight);
}

/// Compiled for the best instruction set of this processor.
#[inline(never)]
fn plain_best(sums: &mut [f32], values: &[f32], weight: f32) {
    dispatch!(Level::new(), _simd => plain(sums, values, weight));
}

fn fold_all(accumulator: &Accumulator, update: &[u8]) {
    for (index, chunk) in update.chunks(CHUNK).enumerate() {
        accumulator.fold((index * CHUNK) as u64, black_box(chunk), 0.5).unwrap();
    }
}

fn fold_same(accumulator: &Accumulator, chunk: &[u8], total: usize) {
    for offset in (0..total - chunk.len()).step_by(chunk.len()) {
        accumulator.fold(offset as u64, black_box(chunk), 0.5).unwrap();
    }
}

/// An accumulator for `elements` elements of a type, and the bytes of an update.
fn job(dtype: Dtype, precision: Precision, elements: u64) -> (Accumulator, usize) {
    let tensors = (0..TENSORS).map(|i| (format!("layer{i}.weight"), dtype, vec![elements / TENSORS]));
    let layout = Arc::new(Layout::pack(tensors).unwrap());
    let bytes = layout.bytes() as usize;
    (Accumulator::new(layout, precision), bytes)
}

/// An accumulator whose sums are in an arena.
fn lent(layout: Arc<Layout>) -> Accumulator {
    let arena = Arena::new(Accumulator::bytes_needed(&layout, Precision::F32)).unwrap();
    let mut claim = arena.claim(arena.range()).unwrap();
    let cut = |bytes| claim.split_to(bytes as u64).map(|part| Box::new(part) as LentMemory);
    Accumulator::within(layout, Precision::F32, cut).unwrap()
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|a| a.parse::<usize>().unwrap());
    let bytes = arguments.next().unwrap_or(232) * 1_000_000;
    let repetitions = arguments.next().unwrap_or(11);
    let elements = (bytes / 4) as u64;

    let update = vec![0x3c_u8; bytes + 64 * TENSORS as usize];
    let values = vec![0.01_f32; bytes / 4];
    let mut sums = vec![1.0_f32; bytes / 4];
    let mut best_sums = sums.clone();
    let mut copied = vec![1_u8; bytes];
    let mut global = vec![1_u8; bytes + 64 * TENSORS as usize];
    let (f32s, f32_bytes) = job(Dtype::F32, Precision::F32, elements);
    let (hot, _) = job(Dtype::F32, Precision::F32, elements);
    let lent = lent(f32s.layout().clone());
    let (cached, cached_bytes) = job(Dtype::F32, Precision::F32, 25_000);
    let (f64s, _) = job(Dtype::F32, Precision::F64, elements);
    let (exact, _) = job(Dtype::F32, Precision::Exact, elements);
    let (f16s, f16_bytes) = job(Dtype::F16, Precision::F32, elements);
    let (bf16s, bf16_bytes) = job(Dtype::BF16, Precision::F32, elements);
    let layout = f32s.layout().clone();
    let branch = Accumulator::new(layout.clone(), Precision::F32);
    fold_all(&branch, &update[..f32_bytes]);
    let exported = branch.export().unwrap();
    let mut cells = vec![1; exported.cells.len()];
    let merged = Accumulator::new(layout.clone(), Precision::F32);

    let mut tasks = vec![
        Task::new("copy", 2 * bytes, || copied.copy_from_slice(black_box(&update[..bytes]))),
        Task::new("plain_sse", 3 * bytes, || plain_sse(black_box(&mut sums), black_box(&values), 0.5)),
        Task::new("plain_best", 3 * bytes, || plain_best(black_box(&mut best_sums), black_box(&values), 0.5)),
        Task::new("fold_first_f32", 3 * bytes, || fold_all(&f32s, &update[..f32_bytes])),
        Task::new("fold_f32", 3 * bytes, || fold_all(&f32s, &update[..f32_bytes])),
        Task::new("fold_lent_f32", 3 * bytes, || fold_all(&lent, &update[..f32_bytes])),
        Task::new("merge_f32", 3 * bytes, || merged.merge(black_box(&branch)).unwrap()),
        Task::new("merge_sums_f32", 4 * bytes, || {
            merged.merge_sums(&exported.head, black_box(&exported.cells)).unwrap()
        }),
        Task::new("export_f32", 2 * bytes, || drop(branch.export_into(black_box(&mut cells)).unwrap())),
        Task::new("fold_hot_f32", 2 * bytes, || fold_same(&hot, &update[..CHUNK], f32_bytes)),
        Task::new("fold_f32_to_f64", 5 * bytes, || fold_all(&f64s, &update[..f32_bytes])),
        Task::new("fold_exact", 9 * bytes, || fold_all(&exact, &update[..f32_bytes])),
        Task::new("fold_f16", 5 * bytes / 2, || fold_all(&f16s, &update[..f16_bytes])),
        Task::new("fold_bf16", 5 * bytes / 2, || fold_all(&bf16s, &update[..bf16_bytes])),
        Task::new("check_finite_f32", bytes, || check_finite(&layout, 0, &update[..f32_bytes]).unwrap()),
        Task::new("check_f32", bytes, || f32s.check(0, &update[..f32_bytes], 0.5).unwrap()),
        Task::new("check_means_f32", bytes, || {
            f32s.check_part(Range::new(0, f32s.layout().bytes())).unwrap();
        }),
        Task::new("finish_and_reset_f32", 2 * bytes, || {
            f32s.finish_and_reset(&mut global[..f32_bytes], Replacement::KeepLocal).unwrap();
        }),
        Task::new("small_1400", 2 * bytes, || fold_same(&hot, &update[..SMALL], f32_bytes)),
        Task::new("small_1400_cached", 2 * PASSES * cached_bytes, || {
            (0..PASSES).for_each(|_| fold_same(&cached, &update[..SMALL], cached_bytes));
        }),
    ];
    // The first repetition does not count, since it touches the memory for the first time.
    for turn in 0..=repetitions {
        tasks.iter_mut().for_each(|task| task.time(turn > 0));
        // Without a reset there would be too many contributions in the end.
        exact.reset();
        hot.reset();
        cached.reset();
    }
    report(&tasks, bytes, repetitions, [f32_bytes / SMALL, cached_bytes / SMALL * PASSES]);
}

fn report(tasks: &[Task<'_>], bytes: usize, repetitions: usize, small_calls: [usize; 2]) {
    let median = |name: &str| median(&named(tasks, name).seconds);
    let plain = if median("plain_sse") < median("plain_best") { "plain_sse" } else { "plain_best" };
    let each: Vec<String> = tasks.iter().map(Task::json).collect();
    println!(
        r#"{{"bytes":{bytes},"repetitions":{repetitions},{},"fold_f32_to_plain":{:.3},"fold_f32_to_copy_bandwidth":{:.3},"ns_per_small_call":{:.1},"ns_per_small_call_cached":{:.1}}}"#,
        each.join(","),
        ratio(named(tasks, plain), named(tasks, "fold_f32")),
        ratio(named(tasks, "copy"), named(tasks, "fold_f32")) * 3.0 / 2.0,
        median("small_1400") / small_calls[0] as f64 * 1e9,
        median("small_1400_cached") / small_calls[1] as f64 * 1e9,
    );
}

fn named<'a, 'b>(tasks: &'a [Task<'b>], name: &str) -> &'a Task<'b> {
    tasks.iter().find(|task| task.name == name).unwrap()
}

/// The median over all repetitions of one task's time divided by another's in the same repetition.
fn ratio(above: &Task<'_>, below: &Task<'_>) -> f64 {
    let pairs = above.seconds.iter().zip(&below.seconds);
    median(&pairs.map(|(above, below)| above / below).collect::<Vec<_>>())
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
