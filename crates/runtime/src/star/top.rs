//! The top aggregator of a tree: it merges the sums of several servers into the next model.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use thalweg_arena::Arena;
use thalweg_fold::{Accumulator, FoldError, SumsHead};
use thalweg_wire::{Dtype, Layout, Range};

use super::reduce::NoMean;
use super::update_filler::UpdateFiller;
use crate::options::{PrecisionRule, ServerOptions};
use crate::{Error, Kind};

/// How long a loan of the model may last after each receiver has the model or was given up.
const LOAN_TIMEOUT: Duration = Duration::from_secs(6);

/// The sums of a server's round, in the form in which they are sent.
#[derive(Clone)]
pub struct SumsOfRound {
    /// The encoded head of the sums.
    pub head: Vec<u8>,
    /// The layout of the one tensor as which the sums are sent.
    pub layout: Arc<Layout>,
    /// The cells of the sums.
    pub cells: Arena,
}

impl SumsOfRound {
    /// The sums for one part of the updates' bytes. `of` is the layout of the updates.
    ///
    /// # Errors
    /// `round` if there is no such part.
    pub fn cut(&self, of: &Layout, part: Range) -> Result<Self, Error> {
        let bad = |error: FoldError| Error::new(Kind::Round, "cut sums", error.to_string());
        let head = SumsHead::decode(&self.head).map_err(bad)?;
        let cells = self.cells.lend(Range::new(0, head.cells().min(self.cells.len())))?;
        let (head, place) = Accumulator::cut_sums(of, &head, &cells, part).map_err(bad)?;
        let (layout, own) = memory(place.len() as u64)?;
        own.claim(own.range())?[..place.len()].copy_from_slice(&cells[place]);
        Ok(Self { head: head.encode(), layout, cells: own })
    }
}

/// Splits updates of a layout into at most `count` parts of similar size, for a sharded top.
pub fn parts_of(layout: &Layout, count: usize) -> Vec<Range> {
    Accumulator::parts_of(layout, count)
}

/// Memory for the sums of updates, as one tensor of bytes. Reuses the memory of `kept` if that is given.
///
/// # Errors
/// An error if no memory is left.
pub(super) fn room_for(
    layout: &Layout,
    precision: PrecisionRule,
    kept: Option<SumsOfRound>,
) -> Result<(Arc<Layout>, Arena), Error> {
    if let Some(SumsOfRound { layout, cells, .. }) = kept {
        return Ok((layout, cells));
    }
    memory(Accumulator::bytes_needed(layout, precision.into()))
}

/// Memory of `bytes` bytes, with the layout of one tensor.
fn memory(bytes: u64) -> Result<(Arc<Layout>, Arena), Error> {
    let layout_of_sums = Layout::pack([("sums", Dtype::U8, vec![bytes])]);
    let layout_of_sums =
        layout_of_sums.map_err(|error| Error::new(Kind::Layout, "export sums", error.to_string()))?;
    Ok((Arc::new(layout_of_sums), Arena::new(bytes)?))
}

/// A node's statement about its sums. The top refuses sums that exceed it.
#[derive(Debug, Clone, Copy)]
pub struct Statement {
    /// Number of updates in the sums.
    pub participants: u32,
    /// Sum of the updates' weights.
    pub weight: f64,
    /// Whether every update arrived completely. Then each byte has the full weight.
    pub whole: bool,
}

impl Statement {
    /// Tolerance in comparing weights, as a fraction: the stated weight was added up in another order than
    /// the exact sums.
    const ROUNDING: f64 = 1e-9;

    fn check(&self, head: &SumsHead) -> Result<(), String> {
        let Self { participants, weight, whole } = *self;
        let slack = weight.abs() * Self::ROUNDING;
        for run in head.runs() {
            let (found, has) = (run.contributions, run.weight());
            if found > participants || (whole && found < participants) {
                return Err(format!("they are of {found} updates, and {participants} were said to count"));
            }
            if has > weight + slack || (whole && has < weight - slack) {
                return Err(format!("they weigh {has}, and those that were said to count {weight}"));
            }
        }
        Ok(())
    }
}

/// The top aggregator: it merges sums of nodes and writes their mean into the model, or gives them to its parent.
pub struct Top {
    sums: Accumulator,
    update_filler: UpdateFiller,
    model: Arena,
}

impl Top {
    /// Makes a top for updates of this layout, whose mean becomes the next `model`. The options must be those
    /// of the servers below. With `part`, it merges only sums of that part of the updates' bytes, and writes
    /// the mean only into that part of the model.
    ///
    /// # Errors
    /// `options` for an impossible option, or if there is no such part.
    pub fn new(
        model: Arena,
        layout: Layout,
        options: &ServerOptions,
        part: Option<Range>,
    ) -> Result<Self, Error> {
        options.check()?;
        let layout = Arc::new(layout);
        let update_filler = UpdateFiller::new(layout.clone(), model.clone(), options);
        if part.is_some() && update_filler.reorders() {
            return Err(Error::new(
                Kind::Options,
                "be the top of a part",
                "updates that are spread have no parts",
            ));
        }
        let part = part.unwrap_or(Range::new(0, layout.bytes()));
        let sums = Accumulator::of_part(layout, options.precision.into(), part);
        let sums =
            sums.map_err(|error| Error::new(Kind::Options, "be the top of a part", error.to_string()))?;
        Ok(Self { sums, update_filler, model })
    }

    /// Merges sums that do not exceed the statement: all of them, or nothing.
    ///
    /// # Errors
    /// `round` if the sums exceed the statement, are of other updates, or are damaged.
    pub fn merge(&self, head: &[u8], cells: &Arena, stated: Statement) -> Result<(), Error> {
        let bad = |reason: String| Error::new(Kind::Round, "merge sums", reason);
        let head = SumsHead::decode(head).map_err(|error| bad(error.to_string()))?;
        stated.check(&head).map_err(bad)?;
        // The arena may be longer than the sums in it.
        let bytes = cells.lend(Range::new(0, head.cells().min(cells.len())))?;
        self.sums.merge_sums(&head, &bytes).map_err(|error| bad(error.to_string()))
    }

    /// Writes the mean into the model and drops the sums. Returns the fold's report as JSON.
    ///
    /// # Errors
    /// `round` if the sums give no mean. The model then stays as it was.
    pub fn finish(&self) -> Result<String, Error> {
        let model = &self.model;
        let mut into = || Ok(model.claim_within(self.sums.part(), LOAN_TIMEOUT)?);
        let summary = self.update_filler.end(std::slice::from_ref(&self.sums), &mut into);
        self.sums.reset();
        let summary = summary.map_err(|error| match error {
            NoMean::Model(error) => error,
            NoMean::Sums(reason) => Error::new(Kind::Round, "take the mean", reason),
        })?;
        Ok(json!({ "uncovered_bytes": summary.uncovered_bytes }).to_string())
    }

    /// Copies the merged sums for this node's parent. The top must be of all bytes.
    ///
    /// # Errors
    /// An error if no memory is left.
    pub fn export(&self) -> Result<SumsOfRound, Error> {
        let bytes = Accumulator::bytes_needed(self.sums.layout(), self.sums.precision());
        let (layout, cells) = memory(bytes)?;
        let mut claim = cells.claim(cells.range())?;
        let head = self.sums.export_into(&mut claim);
        let head = head.map_err(|error| Error::new(Kind::Round, "export sums", error.to_string()))?;
        drop(claim);
        Ok(SumsOfRound { head: head.encode(), layout, cells })
    }

    /// Drops the sums.
    pub fn forget(&self) {
        self.sums.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> Layout {
        Layout::pack([("w", Dtype::F32, vec![40_000]), ("h", Dtype::F16, vec![7])]).unwrap()
    }

    fn options() -> ServerOptions {
        ServerOptions { precision: PrecisionRule::Exact, ..ServerOptions::default() }
    }

    fn update(seed: u32) -> Vec<u8> {
        let values = (0..40_000_u32).map(|i| (i.wrapping_mul(seed) % 1000) as f32 / 7.0);
        let mut bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
        bytes.resize(layout().bytes() as usize, 0);
        bytes
    }

    /// Sums of these updates, folded in `parts` parts, as by that many workers.
    fn exported(updates: &[(u32, f64)], parts: usize) -> SumsOfRound {
        let layout = Arc::new(layout());
        let ranges = Accumulator::parts_of(&layout, parts);
        let mut all = Vec::new();
        for part in ranges {
            let mut cut = |bytes: usize| Some(Box::new(vec![0_u8; bytes]) as thalweg_fold::LentMemory);
            let sums = Accumulator::within_part(layout.clone(), PrecisionRule::Exact.into(), part, &mut cut)
                .unwrap();
            for (seed, weight) in updates {
                let bytes = &update(*seed)[part.start as usize..part.end as usize];
                assert_eq!(sums.fold(part.start, bytes, *weight).unwrap(), part);
            }
            all.push(sums);
        }
        let (layout_of_sums, cells) = room_for(&layout, PrecisionRule::Exact, None).unwrap();
        let mut claim = cells.claim(cells.range()).unwrap();
        let head = Accumulator::export_together(&all, &mut claim).unwrap();
        drop(claim);
        SumsOfRound { head: head.encode(), layout: layout_of_sums, cells }
    }

    fn statement(updates: &[(u32, f64)]) -> Statement {
        let weight = updates.iter().map(|(_, weight)| weight).sum();
        Statement { participants: updates.len() as u32, weight, whole: true }
    }

    fn at_most(participants: u32) -> Statement {
        Statement { participants, weight: f64::MAX, whole: false }
    }

    #[test]
    fn sums_of_another_weight_or_of_fewer_updates_are_refused() {
        let model = Arena::new(layout().bytes()).unwrap();
        let top = Top::new(model, layout(), &options(), None).unwrap();
        let sums = exported(&[(3, 2.0), (5, 0.1)], 2);
        let right = Statement { participants: 2, weight: 2.1, whole: true };
        let refused = |stated: Statement| top.merge(&sums.head, &sums.cells, stated).unwrap_err().to_string();
        assert!(refused(Statement { weight: 2.0, ..right }).contains("they weigh 2.1"));
        assert!(
            refused(Statement { weight: 2.2, ..right }).contains("they weigh 2.1"),
            "whole updates weigh all"
        );
        assert!(refused(Statement { participants: 3, ..right }).contains("of 2 updates"));
        assert!(refused(Statement { participants: 1, whole: false, ..right }).contains("of 2 updates"));
        top.merge(&sums.head, &sums.cells, Statement { participants: 3, weight: 9.0, whole: false }).unwrap();
        top.forget();
        top.merge(&sums.head, &sums.cells, right).unwrap();
    }

    #[test]
    fn the_top_has_the_bits_of_one_fold() {
        let model = Arena::new(layout().bytes()).unwrap();
        let top = Top::new(model.clone(), layout(), &options(), None).unwrap();
        let all = [(3, 2.0), (5, 1.0), (11, 0.5)];
        for (part, workers) in [(&all[..2], 1), (&all[2..], 2)] {
            let sums = exported(part, workers);
            top.merge(&sums.head, &sums.cells, statement(part)).unwrap();
        }
        top.finish().unwrap();
        let alone = Accumulator::new(Arc::new(layout()), PrecisionRule::Exact.into());
        for (seed, weight) in all {
            alone.fold(0, &update(seed), weight).unwrap();
        }
        let mut expected = vec![0; layout().bytes() as usize];
        alone.finish(&mut expected, thalweg_fold::Replacement::KeepLocal).unwrap();
        assert_eq!(&model.lend(Range::new(0, expected.len() as u64)).unwrap()[..], &expected[..]);
    }

    #[test]
    fn sums_of_sums_have_the_bits_of_one_fold() {
        let all = [(3, 2.0), (5, 1.0), (11, 0.5), (7, 3.0)];
        let mean = |parts: &[&[(u32, f64)]], is_deep: bool| {
            let model = Arena::new(layout().bytes()).unwrap();
            let top = Top::new(model.clone(), layout(), &options(), None).unwrap();
            let of_middle = Arena::new(layout().bytes()).unwrap();
            let middle = Top::new(of_middle, layout(), &options(), None).unwrap();
            for part in parts {
                let sums = exported(part, 1);
                let into = if is_deep { &middle } else { &top };
                into.merge(&sums.head, &sums.cells, statement(part)).unwrap();
            }
            if is_deep {
                let sums = middle.export().unwrap();
                top.merge(&sums.head, &sums.cells, statement(&all)).unwrap();
            }
            top.finish().unwrap();
            let lent = model.lend(Range::new(0, layout().bytes())).unwrap();
            lent.to_vec()
        };
        assert_eq!(mean(&[&all[..1], &all[1..3], &all[3..]], true), mean(&[&all], false));
    }

    #[test]
    fn tops_of_parts_have_the_bits_of_one_top() {
        let whole = Arena::new(layout().bytes()).unwrap();
        let parted = Arena::new(layout().bytes()).unwrap();
        let sums: Vec<_> =
            [[(3, 2.0), (5, 1.0)], [(11, 0.5), (7, 1.0)]].iter().map(|two| exported(two, 2)).collect();
        let one = Top::new(whole.clone(), layout(), &options(), None).unwrap();
        sums.iter().for_each(|sums| one.merge(&sums.head, &sums.cells, at_most(2)).unwrap());
        one.finish().unwrap();
        let parts = parts_of(&layout(), 2);
        assert_eq!(parts.len(), 2);
        for part in parts {
            let top = Top::new(parted.clone(), layout(), &options(), Some(part)).unwrap();
            for sums in &sums {
                let own = sums.cut(&layout(), part).unwrap();
                top.merge(&own.head, &own.cells, at_most(2)).unwrap();
                assert!(
                    top.merge(&sums.head, &sums.cells, at_most(2)).is_err(),
                    "sums of all bytes are none of a part"
                );
            }
            top.finish().unwrap();
        }
        let bytes = |arena: &Arena| arena.lend(Range::new(0, layout().bytes())).unwrap().to_vec();
        assert_eq!(bytes(&whole), bytes(&parted));
    }

    #[test]
    fn parts_that_cannot_be_are_refused() {
        let model = Arena::new(layout().bytes()).unwrap();
        let refused = |options: &ServerOptions, part| {
            Top::new(model.clone(), layout(), options, Some(part)).err().map(|error| error.to_string())
        };
        let found = refused(&options(), Range::new(0, 64)).unwrap();
        assert!(found.contains("be the top of a part"), "{found}");
        let sums = exported(&[(3, 2.0)], 1);
        assert!(sums.cut(&layout(), Range::new(0, 64)).is_err());
    }

    #[test]
    fn sums_that_cannot_be_are_refused_and_add_nothing() {
        let model = Arena::new(layout().bytes()).unwrap();
        model.claim(model.range()).unwrap().fill(7);
        let top = Top::new(model.clone(), layout(), &options(), None).unwrap();
        let sums = exported(&[(3, 1.0), (5, 1.0)], 1);
        let refusal = |error: Error| error.to_string();
        let found = refusal(top.merge(&sums.head, &sums.cells, at_most(1)).unwrap_err());
        assert!(found.contains("of 2 updates"), "{found}");
        let found = refusal(top.merge(&sums.head[1..], &sums.cells, at_most(2)).unwrap_err());
        assert!(found.contains("sums"), "{found}");
        let short = Arena::new(64).unwrap();
        assert!(top.merge(&sums.head, &short, at_most(2)).is_err());
        // The lowest byte of a sum: only the checksum can detect this.
        let mut claim = sums.cells.claim(sums.cells.range()).unwrap();
        claim[96] ^= 1;
        drop(claim);
        let found = refusal(top.merge(&sums.head, &sums.cells, at_most(2)).unwrap_err());
        assert!(found.contains("checksum"), "{found}");
        top.finish().unwrap();
        let kept = model.lend(Range::new(0, 160_000)).unwrap();
        assert!(kept.iter().all(|&byte| byte == 7), "nothing was added");
    }
}
