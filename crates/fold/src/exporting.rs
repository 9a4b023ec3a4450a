//! Sums that are sent elsewhere. An accumulator writes them out as bytes with their weights, and merges sums
//! from bytes that anybody may have sent.

use thalweg_wire::{checksum_after, Layout, Range};

use crate::accumulator::{in_stripe, is_part, no_room, parts_of, stripes_of, unpoisoned, STRIPE_BYTES};
use crate::memory::Memory;
use crate::stripe::{segments, Stripe};
use crate::sums::{Sums, SumsHead, WeightRun};
use crate::weights::Weighted;
use crate::{Accumulator, FoldError, Precision};

impl Accumulator {
    /// The ranges of bytes that were folded, each with its exact weight, ascending and disjoint. Neighbouring
    /// ranges have different weights. Padding between tensors may belong to the range before or after it.
    ///
    /// # Errors
    /// [`FoldError::Contributions`] if weights or contributions were too many to count;
    /// [`FoldError::Poisoned`] if a thread panicked while folding.
    pub fn weight_runs(&self) -> Result<Vec<WeightRun>, FoldError> {
        let mut runs = Vec::new();
        for index in 0..self.stripes.len() {
            let start = index as u64 * STRIPE_BYTES;
            for part in self.lock(index)?.weights.covered() {
                if part.is_full() {
                    return Err(FoldError::Contributions { offset: start + part.bytes.start as u64 });
                }
                part.at(start).push(&mut runs);
            }
        }
        Ok(runs)
    }

    /// Bytes of memory that [`Accumulator::within`] needs for a layout and a precision.
    pub fn bytes_needed(layout: &Layout, precision: Precision) -> u64 {
        Self::bytes_needed_of(layout, precision, Range::new(0, layout.bytes()))
    }

    /// Bytes of memory that [`Accumulator::within_part`] needs for a part. The part begins and ends at stripe
    /// borders.
    pub fn bytes_needed_of(layout: &Layout, precision: Precision, part: Range) -> u64 {
        let stripes = stripes_of(layout).filter(|(start, _)| (part.start..part.end).contains(start));
        stripes.map(|(start, length)| segments(layout, precision, start, length).1 as u64).sum()
    }

    /// Bytes of the cells that this accumulator exports.
    pub fn cells_bytes(&self) -> u64 {
        self.stripes.iter().map(|stripe| unpoisoned(stripe).cells_bytes() as u64).sum()
    }

    /// The sums as bytes, with their weights. If another process passes them to [`Accumulator::merge_sums`],
    /// the result is that of [`Accumulator::merge`] with this accumulator. The sums stay here.
    ///
    /// No fold or merge into this accumulator should run meanwhile, since it would count for some elements
    /// only.
    ///
    /// # Errors
    /// As [`Accumulator::weight_runs`].
    pub fn export(&self) -> Result<Sums, FoldError> {
        let mut cells = vec![0; self.cells_bytes() as usize];
        let head = self.export_into(&mut cells)?;
        Ok(Sums { head, cells })
    }

    /// The head of the sums in lent memory, for processes that share that memory. For
    /// [`Accumulator::merge_sums`], the bytes of that memory are the cells. Nobody may write there meanwhile.
    /// The head has no checksum. Cells of bytes that were never folded have no meaning.
    ///
    /// # Errors
    /// As [`Accumulator::weight_runs`].
    pub fn head(&self) -> Result<SumsHead, FoldError> {
        let (layout, runs) = (self.layout().hash(), self.weight_runs()?);
        Ok(SumsHead::new(layout, self.precision(), self.cells_bytes(), None, runs))
    }

    /// Like [`Accumulator::export`], but writes into `cells`, which has [`Accumulator::cells_bytes`] bytes.
    /// All bytes are written, 0 for bytes that were never folded. So the same contributions to exact sums
    /// give the same bytes.
    ///
    /// # Errors
    /// As [`Accumulator::weight_runs`]; [`FoldError::Cells`] if `cells` has another size.
    pub fn export_into(&self, cells: &mut [u8]) -> Result<SumsHead, FoldError> {
        let (found, bytes) = (cells.len() as u64, self.cells_bytes());
        if found != bytes {
            return Err(FoldError::Cells { found, bytes });
        }
        let runs = self.weight_runs()?;
        let (_, sum) = self.write_cells(cells, 0)?;
        Ok(SumsHead::new(self.layout().hash(), self.precision(), bytes, Some(sum), runs))
    }

    /// Like [`Accumulator::export_into`], for accumulators that each have one part of a layout. The parts
    /// must be in order and make up the whole layout. The result is what a single accumulator would have
    /// exported.
    ///
    /// # Errors
    /// As [`Accumulator::export_into`]; [`FoldError::Damaged`] if the parts are not all of one layout, in
    /// order.
    pub fn export_together(parts: &[Accumulator], cells: &mut [u8]) -> Result<SumsHead, FoldError> {
        let gaps = || FoldError::Damaged("their parts are not all of one layout in order");
        let first = parts.first().ok_or_else(gaps)?;
        let (layout, precision) = (first.layout(), first.precision());
        let mut next = 0;
        for part in parts {
            let alike = part.layout().hash() == layout.hash() && part.precision() == precision;
            if !alike || part.part().start != next {
                return Err(gaps());
            }
            next = part.part().end;
        }
        if next != layout.bytes() {
            return Err(gaps());
        }
        let (found, bytes) = (cells.len() as u64, parts.iter().map(Self::cells_bytes).sum());
        if found != bytes {
            return Err(FoldError::Cells { found, bytes });
        }
        let mut runs = Vec::new();
        for part in parts {
            part.weight_runs()?.into_iter().for_each(|run| run.push(&mut runs));
        }
        let (mut rest, mut sum) = (cells, 0);
        for part in parts {
            (rest, sum) = part.write_cells(rest, sum)?;
        }
        Ok(SumsHead::new(layout.hash(), precision, bytes, Some(sum), runs))
    }

    /// Cuts one part of updates out of exported sums. Returns its head, and the range of its cells in
    /// `cells`. An accumulator of that part alone would have exported the same, and can merge it.
    ///
    /// # Errors
    /// [`FoldError::Part`] if the part does not begin and end at stripe borders; [`FoldError::Layout`] or
    /// [`FoldError::Cells`] if the sums are not of this layout.
    pub fn cut_sums(
        layout: &Layout,
        head: &SumsHead,
        cells: &[u8],
        part: Range,
    ) -> Result<(SumsHead, std::ops::Range<usize>), FoldError> {
        is_part(part, layout.bytes())?;
        let (ours, theirs) = (layout.hash(), head.layout());
        if ours != theirs {
            return Err(FoldError::Layout(format!("hash {ours} here and {theirs} there")));
        }
        let precision = head.precision();
        let (found, bytes) = (cells.len() as u64, Self::bytes_needed(layout, precision));
        if found != bytes {
            return Err(FoldError::Cells { found, bytes });
        }
        let start = Self::bytes_needed_of(layout, precision, Range::new(0, part.start)) as usize;
        let own = start..start + Self::bytes_needed_of(layout, precision, part) as usize;
        let runs = head.runs().iter().map(|run| WeightRun { bytes: run.bytes.intersect(part), ..*run });
        let runs = runs.filter(|run| !run.bytes.is_empty()).collect();
        let sum = checksum_after(0, &cells[own.clone()]);
        Ok((SumsHead::new(ours, precision, own.len() as u64, Some(sum), runs), own))
    }

    /// Adds sums to this accumulator that another one exported, perhaps on another machine.
    ///
    /// The function checks all cells before it adds any, so damaged or forged cells never make sums invalid.
    /// A sender can lie about its own participants, though. Compare [`SumsHead::contributions`] with their
    /// number.
    ///
    /// # Errors
    /// [`FoldError::Layout`], [`FoldError::Precision`] or [`FoldError::Cells`] if the sums are of other
    /// updates; [`FoldError::Damaged`] if a checksum does not match, a range cuts an element, or a sum is
    /// larger than its contributions allow; [`FoldError::Sums`], [`FoldError::Contributions`] or
    /// [`FoldError::Fragmented`] if there is no room for them. In all these cases nothing was added.
    /// [`FoldError::Poisoned`] if a thread panicked while folding.
    pub fn merge_sums(&self, head: &SumsHead, cells: &[u8]) -> Result<(), FoldError> {
        self.is_of(head, cells.len() as u64)?;
        let parts = self.by_stripe(head.runs())?;
        let mut sum = 0;
        let mut scratch = Memory::zeroed(0);
        self.each_stripe(cells, |index, cells| {
            sum = checksum_after(sum, cells);
            let stripe = self.lock(index)?;
            let cells = scratch.readable(cells);
            stripe.has_room_for(|| parts[index].iter().cloned()).map_err(|full| no_room(index, full))?;
            stripe.judge(self.level, &parts[index], cells, self.precision().limit())
        })?;
        if head.checksum().is_some_and(|stated| stated != sum) {
            return Err(FoldError::Damaged("their checksum does not match"));
        }
        self.each_stripe(cells, |index, cells| {
            let mut stripe = self.lock(index)?;
            let cells = scratch.readable(cells);
            stripe.merge(self.level, parts[index].iter().cloned(), cells);
            Ok(())
        })
    }

    /// Takes over the sums that another process has left in the memory that was lent to this accumulator.
    /// `head` describes them ([`Accumulator::head`]). This accumulator forgets the updates that were folded
    /// into it so far. The other process must no longer write there.
    ///
    /// # Errors
    /// As [`Accumulator::merge_sums`]. In that case this accumulator keeps its weights.
    pub fn adopt(&self, head: &SumsHead) -> Result<(), FoldError> {
        self.is_of(head, self.cells_bytes())?;
        if head.checksum().is_some() {
            return Err(FoldError::Damaged("they are of sums that were written out"));
        }
        let parts = self.by_stripe(head.runs())?;
        for (index, parts) in parts.iter().enumerate() {
            let stripe = self.lock(index)?;
            let room = Stripe::absent(stripe.weights.length() as u64).has_room_for(|| parts.iter().cloned());
            room.map_err(|full| no_room(index, full))?;
            stripe.judge(self.level, parts, stripe.cells(), self.precision().limit())?;
        }
        for (index, parts) in parts.iter().enumerate() {
            let mut stripe = self.lock(index)?;
            stripe.weights.clear();
            parts.iter().for_each(|part| stripe.weights.merge(part));
        }
        Ok(())
    }

    /// Writes the cells to the beginning of `out`. Returns the rest of `out`, and the checksum `sum`
    /// continued over the cells.
    fn write_cells<'a>(&self, out: &'a mut [u8], mut sum: u32) -> Result<(&'a mut [u8], u32), FoldError> {
        let mut rest = out;
        for index in 0..self.stripes.len() {
            let stripe = self.lock(index)?;
            let (cells, after) = std::mem::take(&mut rest).split_at_mut(stripe.cells_bytes());
            stripe.export(cells);
            sum = checksum_after(sum, cells);
            rest = after;
        }
        Ok((rest, sum))
    }

    fn is_of(&self, head: &SumsHead, cells: u64) -> Result<(), FoldError> {
        let (ours, theirs) = (self.layout().hash(), head.layout());
        if ours != theirs {
            return Err(FoldError::Layout(format!("hash {ours} here and {theirs} there")));
        }
        if self.precision() != head.precision() {
            let (ours, theirs) = (self.precision().name(), head.precision().name());
            return Err(FoldError::Precision { ours, theirs });
        }
        let bytes = self.cells_bytes();
        match [head.cells(), cells].into_iter().find(|&found| found != bytes) {
            Some(found) => Err(FoldError::Cells { found, bytes }),
            None => Ok(()),
        }
    }

    /// The runs, cut at stripe borders: one list for each stripe.
    fn by_stripe(&self, runs: &[WeightRun]) -> Result<Vec<Vec<Weighted>>, FoldError> {
        let mut parts = vec![Vec::new(); self.stripes.len()];
        for run in runs {
            if run.bytes.intersect(self.part()) != run.bytes || self.layout().cut_by(run.bytes).is_some() {
                return Err(FoldError::Damaged(
                    "a range of weight ends beyond the layout or within an element",
                ));
            }
            for (index, part) in parts_of(run.bytes) {
                parts[index].push(Weighted::of(run, in_stripe(part)));
            }
        }
        Ok(parts)
    }

    /// Calls `each` with the index of each stripe and its part of the cells.
    fn each_stripe(
        &self,
        mut cells: &[u8],
        mut each: impl FnMut(usize, &[u8]) -> Result<(), FoldError>,
    ) -> Result<(), FoldError> {
        for index in 0..self.stripes.len() {
            let length = self.lock(index)?.cells_bytes();
            let (now, after) = cells.split_at(length);
            each(index, now)?;
            cells = after;
        }
        Ok(())
    }
}
