//! What workers are to sum up, and the memory that they do it in.

use thalweg_arena::{Access, Arena, ArenaError};
use thalweg_fold::{Accumulator, LentMemory};
use thalweg_wire::Range;

use super::TeamConfig;
use crate::ledger::{Base, Split};
use crate::setup::Setup;

/// Most workers of a node: their numbers have 16 bits.
const MOST: usize = 1024;

/// What each worker is told, and its sums.
///
/// # Errors
/// If there is no memory for the sums.
pub(super) fn shares(config: &TeamConfig) -> Result<(Vec<Setup>, Vec<Arena>), ArenaError> {
    let (layout, precision) = (&config.layout, config.precision);
    let whole = Range::new(0, layout.bytes());
    let count = config.workers.clamp(1, MOST);
    let mut parts = match config.split {
        Split::Ranges => Accumulator::parts_of(layout, count),
        Split::Clients => vec![whole; count],
    };
    if parts.is_empty() {
        parts.push(whole); // an update without elements
    }
    let mut setups = Vec::new();
    let mut sums = Vec::new();
    for (number, part) in (1..).zip(parts) {
        let mut setup = Setup::new(number, (**layout).clone(), precision, part, config.pool.plan());
        setup.sums_bytes = 2 * Accumulator::bytes_needed_of(layout, precision, part);
        sums.push(Arena::shared(setup.sums_bytes, Access::Write)?);
        setups.push(setup);
    }
    Ok((setups, sums))
}

/// The sums that workers have committed, where they lie.
///
/// # Errors
/// Why they are none.
pub(super) fn committed(
    config: &TeamConfig,
    setups: &[Setup],
    arenas: &[Arena],
    bases: &[Base],
) -> Result<Vec<Accumulator>, String> {
    let mut all = Vec::new();
    for ((setup, arena), base) in setups.iter().zip(arenas).zip(bases) {
        let half = arena.len() / 2;
        let start = u64::from(base.slot) * half;
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
