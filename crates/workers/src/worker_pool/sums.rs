//! Divides an update among the workers and maps the memory of their sums.

use thalweg_arena::{Access, Arena, ArenaError};
use thalweg_fold::{Accumulator, LentMemory};
use thalweg_wire::Range;

use super::{Shared, WorkerPoolConfig};
use crate::ledger::{Base, Middle, Split};
use crate::setup::Setup;

/// Maximum number of workers of a node. The maps of the kernel program have room for this many, and 16-bit
/// numbers suffice for them.
const MOST: usize = 1024;

/// Returns each worker's set-up and the shared memory of its sums.
///
/// # Errors
/// An error if the memory for the sums cannot be allocated.
pub(super) fn shares(config: &WorkerPoolConfig) -> Result<(Vec<Setup>, Vec<Arena>), ArenaError> {
    let (layout, precision) = (&config.layout, config.precision);
    let whole = Range::new(0, layout.bytes());
    let count = config.workers.clamp(1, MOST);
    let mut parts = match config.split {
        Split::Ranges => Accumulator::parts_of(layout, count),
        Split::Clients => vec![whole; count + usize::from(config.middle == Middle::Own)],
    };
    if parts.is_empty() {
        parts.push(whole); // an update without elements has no parts
    }
    let setup = |part| {
        let mut setup = Setup::new((**layout).clone(), precision, part, config.pool.plan());
        setup.sums_bytes = 2 * Accumulator::bytes_needed_of(layout, precision, part);
        setup.memory_bytes = setup.sums_bytes;
        setup.copies = config.plane.copies();
        setup
    };
    let mut setups: Vec<Setup> = parts.into_iter().map(setup).collect();
    if config.middle == Middle::Node {
        let own = |setup: &Setup| Arena::shared(setup.sums_bytes, Access::Write);
        let sums = setups.iter().map(own).collect::<Result<_, _>>()?;
        return Ok((setups, sums));
    }
    // The middle reads the sums of all leaves, so they lie in one memory.
    let stride = setups[0].stride();
    let all = Arena::shared(stride * setups.len() as u64, Access::Write)?;
    for (setup, place) in setups.iter_mut().zip(0..) {
        (setup.sums_start, setup.memory_bytes) = (place * stride, all.len());
    }
    let sums = vec![all; setups.len()];
    Ok((setups, sums))
}

/// Memory for a copy of each worker's sums; empty if the data plane does not copy.
///
/// # Errors
/// An error if the memory cannot be allocated.
pub(super) fn copies(config: &WorkerPoolConfig, setups: &[Setup]) -> Result<Vec<Arena>, ArenaError> {
    let own = |setup: &Setup| Arena::shared(setup.sums_bytes / 2, Access::Write);
    setups.iter().filter(|_| config.plane.copies()).map(own).collect()
}

/// The committed sums in `arenas`: the workers' own arenas, or copies of half their size. With
/// [`Split::Clients`] the sums of all workers are merged into one.
///
/// # Errors
/// An error if the contents of an arena are not valid sums, or if no worker has committed sums.
pub(super) fn committed(
    shared: &Shared,
    arenas: &[Arena],
    bases: &[Option<Base>],
) -> Result<Vec<Accumulator>, String> {
    let config = &shared.config;
    let mut all = Vec::new();
    for ((setup, arena), base) in shared.setups.iter().zip(arenas).zip(bases) {
        let Some(base) = base else { continue };
        let half = setup.sums_bytes / 2;
        let start = match arena.len() == half {
            true => 0, // a copy of the sums
            false => setup.sums_start + u64::from(base.slot) * half,
        };
        let mut claim = arena.claim(Range::new(start, start + half)).map_err(|e| e.to_string())?;
        let cut = |bytes| claim.split_to(bytes as u64).map(|part| Box::new(part) as LentMemory);
        let sums = Accumulator::within_part(config.layout.clone(), config.precision, setup.part, cut);
        let sums = sums.map_err(|e| e.to_string())?;
        sums.adopt(&base.head).map_err(|e| e.to_string())?;
        all.push(sums);
    }
    if config.split == Split::Clients {
        let (first, others) = all.split_first().ok_or("there is no worker")?;
        others.iter().try_for_each(|other| first.merge(other)).map_err(|e| e.to_string())?;
        all.truncate(1);
    }
    Ok(all)
}
