//! Where the records of a stream are. All records but the last have the same length. So the offset of a byte
//! gives its record, whatever was lost before it.

use thalweg_wire::{Range, Ranges};

use crate::{Refused, Suite};

/// The records of a stream. Each has `record` bytes of plaintext; the last one may have fewer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    suite: Suite,
    total: u64,
    record: u32,
}

impl Grid {
    /// Creates the grid of `total` bytes of plaintext, in records of `record` bytes.
    ///
    /// # Errors
    /// [`Refused::Length`] if `record` is 0, or if there are more than 2^32 records.
    pub fn new(suite: Suite, total: u64, record: u32) -> Result<Self, Refused> {
        let grid = Self { suite, total, record };
        let fits = record > 0 && grid.records() <= 1 << 32;
        fits.then_some(grid).ok_or(Refused::Length)
    }

    /// Bytes of plaintext in the stream.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Bytes of plaintext in a record.
    pub fn record(&self) -> u32 {
        self.record
    }

    /// Number of records.
    pub fn records(&self) -> u64 {
        self.total.div_ceil(u64::from(self.record.max(1)))
    }

    /// Bytes of a sealed record other than the last.
    fn stride(&self) -> u64 {
        self.suite.sealed(self.record.into())
    }

    /// The range of a record in the plaintext. It is empty after the last record.
    pub fn plain(&self, index: u64) -> Range {
        let start = index.saturating_mul(self.record.into());
        Range::new(start, start.saturating_add(self.record.into()).min(self.total))
    }

    /// The range of a record in the sealed stream.
    pub fn sealed(&self, index: u64) -> Range {
        let (start, plain) = (index.saturating_mul(self.stride()), self.plain(index));
        let bytes = if plain.is_empty() { 0 } else { self.suite.sealed(plain.len()) };
        Range::new(start, start.saturating_add(bytes))
    }

    /// Bytes of the whole sealed stream.
    pub fn sealed_bytes(&self) -> u64 {
        self.records().checked_sub(1).map_or(0, |last| self.sealed(last).end)
    }

    /// Bytes that sealing adds, as a fraction of the plaintext.
    pub fn overhead(&self) -> f64 {
        (self.sealed_bytes() - self.total) as f64 / (self.total as f64).max(1.0)
    }

    /// The plaintext that is lost if the sealed stream has these `holes`: all records that they touch.
    pub fn lost(&self, holes: &Ranges) -> Ranges {
        let whole = Range::new(0, self.sealed_bytes());
        let inside = holes.iter().map(|hole| hole.intersect(whole)).filter(|hole| !hole.is_empty());
        let records = inside.map(|hole| {
            let (first, last) = (hole.start / self.stride(), (hole.end - 1) / self.stride());
            Range::new(self.plain(first).start, self.plain(last).end)
        });
        records.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cipher;
    use proptest::prelude::*;

    const SUITES: [Suite; 2] = [Suite::Aead(Cipher::Aes256Gcm), Suite::AesCbc];

    #[test]
    fn records_of_the_paper() {
        let grid = Grid::new(SUITES[0], 1432 * 3 + 1, 1432).unwrap();
        assert_eq!((grid.records(), grid.sealed_bytes()), (4, 3 * 1448 + 17));
        assert_eq!(grid.sealed(2), Range::new(2896, 4344));
        let cbc = Grid::new(SUITES[1], 1472, 1472).unwrap();
        assert_eq!(cbc.sealed_bytes(), 16 + 1472 + 16, "the vector, and a whole block of padding");
        assert_eq!(Grid::new(SUITES[1], 1471, 1472).unwrap().sealed_bytes(), 16 + 1472);
    }

    #[test]
    fn nothing_has_no_records_and_too_many_are_refused() {
        for suite in SUITES {
            let grid = Grid::new(suite, 0, 100).unwrap();
            assert_eq!((grid.records(), grid.sealed_bytes(), grid.overhead()), (0, 0, 0.0));
            assert_eq!(Grid::new(suite, 1, 0), Err(Refused::Length));
            assert_eq!(Grid::new(suite, (1 << 32) + 1, 1), Err(Refused::Length));
        }
    }

    proptest! {
        /// Records follow each other without gaps. A byte is lost exactly if its record is touched.
        #[test]
        fn agrees_with_counting(
            total in 0..600_u64,
            record in 1..70_u32,
            holes in prop::collection::vec((0..900_u64, 0..60_u64), 0..6),
        ) {
            for suite in SUITES {
                let grid = Grid::new(suite, total, record).unwrap();
                let holes: Ranges = holes.iter().map(|&(at, n)| Range::new(at, at + n)).collect();
                let (mut sealed, mut plain, mut lost) = (0, 0, Ranges::new());
                for index in 0..grid.records() {
                    let (inner, outer) = (grid.plain(index), grid.sealed(index));
                    prop_assert_eq!((inner.start, outer.start), (plain, sealed));
                    prop_assert!(inner.len() <= record.into() && !inner.is_empty());
                    (plain, sealed) = (inner.end, outer.end);
                    if holes.iter().any(|hole| !hole.intersect(outer).is_empty()) {
                        lost.insert(inner);
                    }
                }
                prop_assert_eq!((plain, sealed), (total, grid.sealed_bytes()));
                prop_assert_eq!(grid.lost(&holes), lost);
            }
        }
    }
}
