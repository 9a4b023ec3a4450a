//! The head of exported sums: what another process must know to merge them. It is small, and it is checked
//! completely before it is used.
//!
//! | bytes | content, little-endian |
//! |---|---|
//! | 0..4 | `sums` |
//! | 4..6 | version, 1 |
//! | 6 | precision: 0 f32, 1 f64, 2 exact |
//! | 7 | 1 if the cells' checksum is given, else 0 |
//! | 8..16 | hash of the layout |
//! | 16..24 | bytes of the cells |
//! | 24..28 | CRC-32C of the cells, or 0 |
//! | 28..32 | number of runs |
//! | 44 a run | first byte (8), one past the last (8), contributions (4), magnitude (8), units of weight (16) |
//! | the last 4 | CRC-32C of all before |

use thalweg_wire::{checksum, LayoutHash, Range};

use crate::weights::{value_of, MAX_UNITS, MIN_UNITS};
use crate::{exact, FoldError, Precision, MAX_CONTRIBUTIONS};

const MAGIC: [u8; 4] = *b"sums";
const VERSION: u16 = 1;
const FIXED_BYTES: usize = 32;
const RUN_BYTES: usize = 44;
const CHECKSUM_BYTES: usize = 4;
/// Largest magnitude of one contribution to exact sums, see [`crate::EXACT_MAX_PRODUCT`].
const MAX_MAGNITUDE: u64 = 1 << 51;

/// Neighbouring bytes of the update that received the same weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightRun {
    /// Range of these bytes in the update.
    pub bytes: Range,
    /// Number of contributions, at least 1.
    pub contributions: u32,
    /// Sum of their weights, exactly, in units of 2^-60.
    pub units: u128,
    /// For exact sums: an upper bound of the magnitude of each sum. Otherwise 0.
    pub magnitude: u64,
}

impl WeightRun {
    /// The sum of the weights, rounded once.
    pub fn weight(&self) -> f64 {
        value_of(self.units)
    }

    /// Whether contributions to sums of this precision can give these numbers.
    fn is_possible(&self, precision: Precision) -> bool {
        let count = u128::from(self.contributions);
        let most = u64::from(self.contributions).saturating_mul(MAX_MAGNITUDE);
        let most = if precision == Precision::Exact { most.min(exact::MOST) } else { 0 };
        (1..=MAX_CONTRIBUTIONS).contains(&self.contributions)
            && (count * MIN_UNITS..=count * MAX_UNITS).contains(&self.units)
            && self.magnitude <= most
            && !self.bytes.is_empty()
    }

    /// Appends a run after all others. If the last of them has the same weight and ends where this one
    /// begins, extends that one.
    pub(crate) fn push(self, runs: &mut Vec<WeightRun>) {
        match runs.last_mut() {
            Some(last) if last.goes_on_in(&self) => {
                last.bytes.end = self.bytes.end;
                last.magnitude = last.magnitude.max(self.magnitude);
            }
            _ => runs.push(self),
        }
    }

    fn goes_on_in(&self, next: &WeightRun) -> bool {
        let same = (self.contributions, self.units) == (next.contributions, next.units);
        same && self.bytes.end == next.bytes.start
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.bytes.start.to_le_bytes());
        out.extend(self.bytes.end.to_le_bytes());
        out.extend(self.contributions.to_le_bytes());
        out.extend(self.magnitude.to_le_bytes());
        out.extend(self.units.to_le_bytes());
    }

    fn decode(bytes: &[u8; RUN_BYTES]) -> Self {
        Self {
            bytes: Range { start: u64::from_le_bytes(at(bytes, 0)), end: u64::from_le_bytes(at(bytes, 8)) },
            contributions: u32::from_le_bytes(at(bytes, 16)),
            magnitude: u64::from_le_bytes(at(bytes, 20)),
            units: u128::from_le_bytes(at(bytes, 28)),
        }
    }
}

/// The description of exported sums: their layout, precision and weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SumsHead {
    layout: LayoutHash,
    precision: Precision,
    cells: u64,
    checksum: Option<u32>,
    runs: Vec<WeightRun>,
}

impl SumsHead {
    pub(crate) fn new(
        layout: LayoutHash,
        precision: Precision,
        cells: u64,
        checksum: Option<u32>,
        runs: Vec<WeightRun>,
    ) -> Self {
        Self { layout, precision, cells, checksum, runs }
    }

    /// The layout of the updates.
    pub fn layout(&self) -> LayoutHash {
        self.layout
    }

    /// The precision of the sums.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Number of bytes of the cells.
    pub fn cells(&self) -> u64 {
        self.cells
    }

    /// CRC-32C of the cells. `None` if the cells are in memory that both ends share, so that nobody has read
    /// them to make a checksum.
    pub fn checksum(&self) -> Option<u32> {
        self.checksum
    }

    /// The ranges of bytes that were folded, ascending and disjoint. Neighbouring ranges have different
    /// weights. Padding between tensors may belong to the range before or after it.
    pub fn runs(&self) -> &[WeightRun] {
        &self.runs
    }

    /// Maximum number of contributions that any byte has received. Compare it with the number of participants
    /// below the sender in the tree.
    pub fn contributions(&self) -> u32 {
        self.runs.iter().map(|run| run.contributions).max().unwrap_or(0)
    }

    /// The head as bytes: 36, and 44 for each run.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FIXED_BYTES + RUN_BYTES * self.runs.len() + CHECKSUM_BYTES);
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.push(code(self.precision));
        out.push(self.checksum.is_some().into());
        out.extend(self.layout.0.to_le_bytes());
        out.extend(self.cells.to_le_bytes());
        out.extend(self.checksum.unwrap_or(0).to_le_bytes());
        out.extend((self.runs.len() as u32).to_le_bytes());
        self.runs.iter().for_each(|run| run.encode(&mut out));
        let sum = checksum(&out);
        out.extend(sum.to_le_bytes());
        out
    }

    /// Reads what [`SumsHead::encode`] has written. It needs at most one and a half times the memory of
    /// `bytes`.
    ///
    /// # Errors
    /// [`FoldError::Damaged`] for anything else: another version, a wrong length or checksum, runs that are
    /// empty, overlap or are not ascending, or impossible weights or magnitudes.
    pub fn decode(bytes: &[u8]) -> Result<Self, FoldError> {
        let damaged = |what| Err(FoldError::Damaged(what));
        let Some((fixed, rest)) = bytes.split_first_chunk::<FIXED_BYTES>() else {
            return damaged("their head is cut short");
        };
        if fixed[..4] != MAGIC {
            return damaged("they have no head of sums");
        }
        if u16::from_le_bytes(at(fixed, 4)) != VERSION {
            return damaged("their head is of another version");
        }
        let count = u32::from_le_bytes(at(fixed, 28));
        let Some((runs, sum)) = rest.split_last_chunk::<CHECKSUM_BYTES>() else {
            return damaged("their head is cut short");
        };
        if runs.len() as u64 != u64::from(count) * RUN_BYTES as u64 {
            return damaged("their head has not the length that it states");
        }
        if checksum(&bytes[..bytes.len() - CHECKSUM_BYTES]) != u32::from_le_bytes(*sum) {
            return damaged("their head's checksum does not match");
        }
        let Some(precision) = precision(fixed[6]) else { return damaged("their precision is unknown") };
        let stated = u32::from_le_bytes(at(fixed, 24));
        let checksum = match fixed[7] {
            0 if stated == 0 => None,
            1 => Some(stated),
            _ => return damaged("their head states no checksum, or two things at once"),
        };
        let runs: Vec<WeightRun> = runs.as_chunks().0.iter().map(WeightRun::decode).collect();
        if !runs.iter().all(|run| run.is_possible(precision)) {
            return damaged("a weight, count or magnitude is impossible");
        }
        if runs.windows(2).any(|two| two[0].bytes.end > two[1].bytes.start || two[0].goes_on_in(&two[1])) {
            return damaged("the ranges of weight overlap, do not rise, or could be one");
        }
        let layout = LayoutHash(u64::from_le_bytes(at(fixed, 8)));
        Ok(Self { layout, precision, cells: u64::from_le_bytes(at(fixed, 16)), checksum, runs })
    }
}

/// The exported sums of an accumulator, which can be merged elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sums {
    /// The description of the sums.
    pub head: SumsHead,
    /// The sums, little-endian, stripe by stripe.
    pub cells: Vec<u8>,
}

fn code(precision: Precision) -> u8 {
    match precision {
        Precision::F32 => 0,
        Precision::F64 => 1,
        Precision::Exact => 2,
    }
}

fn precision(code: u8) -> Option<Precision> {
    [Precision::F32, Precision::F64, Precision::Exact].get(usize::from(code)).copied()
}

/// `N` bytes from `start` on. The caller makes sure that they exist.
fn at<const N: usize, const ALL: usize>(bytes: &[u8; ALL], start: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes[start + index])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(runs: Vec<WeightRun>) -> SumsHead {
        SumsHead::new(LayoutHash(77), Precision::Exact, 4096, Some(5), runs)
    }

    fn run(start: u64, end: u64, contributions: u32) -> WeightRun {
        let units = u128::from(contributions) << 60;
        WeightRun { bytes: Range { start, end }, contributions, units, magnitude: u64::from(contributions) }
    }

    fn refusal(head: &SumsHead) -> String {
        SumsHead::decode(&head.encode()).unwrap_err().to_string()
    }

    #[test]
    fn a_head_comes_back_as_it_was() {
        for runs in [vec![], vec![run(0, 8, 1)], vec![run(0, 8, 1), run(8, 16, 2), run(20, 30, 2)]] {
            let head = head(runs);
            let bytes = head.encode();
            assert_eq!(bytes.len(), 36 + 44 * head.runs().len());
            assert_eq!(SumsHead::decode(&bytes), Ok(head.clone()));
            let unread = SumsHead { checksum: None, ..head };
            assert_eq!(SumsHead::decode(&unread.encode()), Ok(unread));
        }
    }

    #[test]
    fn every_flipped_bit_and_every_length_is_refused() {
        let bytes = head(vec![run(0, 8, 1), run(8, 16, 2)]).encode();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(SumsHead::decode(&flipped), Err(FoldError::Damaged(_))), "bit {bit}");
        }
        for length in 0..bytes.len() {
            assert!(SumsHead::decode(&bytes[..length]).is_err(), "{length} bytes");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(SumsHead::decode(&longer).unwrap_err().to_string().contains("length"));
    }

    #[test]
    fn lies_with_a_right_checksum_are_refused() {
        for bad in [
            WeightRun { contributions: 0, units: 0, magnitude: 0, ..run(0, 8, 1) },
            WeightRun { contributions: u32::MAX, ..run(0, 8, 1) },
            WeightRun { units: 0, ..run(0, 8, 1) },
            WeightRun { units: MIN_UNITS - 1, ..run(0, 8, 1) },
            WeightRun { units: MAX_UNITS + 1, ..run(0, 8, 1) },
            WeightRun { units: u128::MAX, ..run(0, 8, MAX_CONTRIBUTIONS) },
            run(0, 8, MAX_CONTRIBUTIONS + 1),
            WeightRun { magnitude: MAX_MAGNITUDE + 1, ..run(0, 8, 1) },
            WeightRun { magnitude: exact::MOST + 1, contributions: 1 << 20, units: 1 << 80, ..run(0, 8, 1) },
            run(8, 8, 1),
            WeightRun { bytes: Range { start: 9, end: 8 }, ..run(0, 8, 1) },
        ] {
            assert!(refusal(&head(vec![bad])).contains("impossible"), "{bad:?}");
        }
        for two in [[run(0, 8, 1), run(7, 9, 2)], [run(8, 16, 1), run(0, 8, 2)], [run(0, 8, 1), run(8, 9, 1)]]
        {
            assert!(refusal(&head(two.to_vec())).contains("overlap"), "{two:?}");
        }
        let floats = SumsHead { precision: Precision::F32, ..head(vec![run(0, 8, 1)]) };
        assert!(refusal(&floats).contains("impossible"), "only exact sums have a magnitude");
    }
}
