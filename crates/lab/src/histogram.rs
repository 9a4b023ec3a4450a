//! A histogram of times in little memory; its percentiles are accurate to 3 %.

use std::time::Duration;

use serde::Serialize;

/// Cells for each power of two.
const FINE: u32 = 32;
const FINE_BITS: u32 = FINE.trailing_zeros();
const CELLS: usize = ((64 - FINE_BITS + 1) * FINE) as usize;

/// Counts of times in cells of growing width.
#[derive(Debug, Clone)]
pub struct Histogram {
    cells: Box<[u64]>,
    count: u64,
    most: Duration,
}

/// Percentiles of a histogram in seconds; `None` if no time was added.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Percentiles {
    /// The median.
    pub p50: Option<f64>,
    /// 90 % of the times are at most this.
    pub p90: Option<f64>,
    /// 99 % of the times are at most this.
    pub p99: Option<f64>,
    /// The longest time.
    pub max: Option<f64>,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { cells: vec![0; CELLS].into(), count: 0, most: Duration::ZERO }
    }
}

impl Histogram {
    /// Adds a time `times` times.
    pub fn add(&mut self, time: Duration, times: u64) {
        self.cells[cell(time)] += times;
        self.count += times;
        self.most = self.most.max(time);
    }

    /// The percentiles of all times so far.
    pub fn percentiles(&self) -> Percentiles {
        let at = |share| self.percentile(share).map(|t| t.as_secs_f64());
        let max = (self.count > 0).then_some(self.most.as_secs_f64());
        Percentiles { p50: at(0.5), p90: at(0.9), p99: at(0.99), max }
    }

    fn percentile(&self, share: f64) -> Option<Duration> {
        let rank = (share * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let cell = self.cells.iter().position(|&count| {
            seen += count;
            count > 0 && seen >= rank
        })?;
        Some(middle(cell).min(self.most))
    }
}

fn cell(time: Duration) -> usize {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let Some(power) = nanos.checked_ilog2().filter(|&p| p >= FINE_BITS) else { return nanos as usize };
    let within = (nanos >> (power - FINE_BITS)) as u32 - FINE;
    ((power - FINE_BITS + 1) * FINE + within) as usize
}

fn middle(cell: usize) -> Duration {
    let (row, within) = (cell as u32 / FINE, (cell as u32 % FINE) as u64);
    if row == 0 {
        return Duration::from_nanos(within);
    }
    let width = 1_u64 << (row - 1);
    Duration::from_nanos((u64::from(FINE) + within) * width + width / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_near() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.percentiles().p50, None);
        for micros in 1..=10_000 {
            histogram.add(Duration::from_micros(micros), 1);
        }
        let got = histogram.percentiles();
        for (value, exact) in [(got.p50, 5e-3), (got.p90, 9e-3), (got.p99, 9.9e-3), (got.max, 1e-2)] {
            assert!((value.unwrap() / exact - 1.0).abs() < 0.03, "{value:?} {exact}");
        }
    }

    #[test]
    fn every_time_has_a_cell_of_its_size() {
        for nanos in [0, 1, 31, 32, 33, 63, 64, 1_000, 123_456_789, u64::MAX / 2, u64::MAX] {
            let place = cell(Duration::from_nanos(nanos));
            let near = middle(place).as_nanos() as f64;
            assert!((near - nanos as f64).abs() <= 0.04 * nanos as f64, "{nanos} {near}");
        }
    }
}
