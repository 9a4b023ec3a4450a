//! Random numbers that correlate with their predecessors, as in `tc netem`.

use std::sync::Arc;

use thalweg_rng::Rng;

/// Number of cells of the distribution's table.
const CELLS: usize = 8192;
/// Maximum number of steps of the iteration that computes the distribution. At a correlation of 0.99 it
/// converges much earlier.
const STEPS: usize = 4000;
const SETTLED: f64 = 1e-9;

/// A sequence of numbers from 0 to 1 in which neighbours correlate.
///
/// The chain is netem's: `x[n] = (1 - r) u[n] + r x[n-1]`, where u is uniform (tc-netem(8), "correlation").
/// Netem compares x itself with the probability. But x concentrates around 1/2: at a loss of 1 % and a
/// correlation of 25 %, netem loses 2 packets in a million. Here, x is mapped through its own distribution,
/// so the result is uniform again. A loss of 1 % then loses 1 %, and neighbours depend on each other as
/// before.
#[derive(Debug, Clone)]
pub struct Chain {
    rng: Rng,
    correlation: f64,
    /// The last x of the chain.
    last: f64,
    /// Table of the distribution of x. `None` without correlation.
    distribution: Option<Arc<[f64]>>,
}

impl Chain {
    /// Makes a sequence. Different lists of seeds give different sequences. `correlation` is from 0 to 0.99.
    pub fn new(seeds: &[u64], correlation: f64) -> Self {
        let mut rng = Rng::new(seeds);
        let distribution = (correlation > 0.0).then(|| distribution(correlation));
        let mut last = rng.unit();
        // Run the chain until its values are distributed as in the long run.
        if distribution.is_some() {
            for _ in 0..(10.0 / (1.0 - correlation)) as usize {
                last = (1.0 - correlation) * rng.unit() + correlation * last;
            }
        }
        Self { rng, correlation, last, distribution }
    }

    /// The next number, uniform from 0 up to 1.
    pub fn unit(&mut self) -> f64 {
        let fresh = self.rng.unit();
        let Some(distribution) = &self.distribution else { return fresh };
        self.last = (1.0 - self.correlation) * fresh + self.correlation * self.last;
        look_up(distribution, self.last)
    }

    /// Draws a number, and returns whether an event of this probability happens. A probability of 0 draws
    /// nothing.
    pub fn hits(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.unit() < probability
    }
}

/// The long-run distribution P(x < cell / CELLS): the fixed point of F(x) = mean over u of F((x - (1 - r) u)
/// / r).
fn distribution(r: f64) -> Arc<[f64]> {
    let cell = 1.0 / CELLS as f64;
    let mut f: Vec<f64> = (0..=CELLS).map(|i| i as f64 * cell).collect();
    let mut area = vec![0.0; CELLS + 1];
    for _ in 0..STEPS {
        for i in 1..=CELLS {
            area[i] = area[i - 1] + (f[i - 1] + f[i]) / 2.0 * cell;
        }
        let whole = area[CELLS];
        // The area under F from 0 to y. F is 0 below 0, and 1 above 1.
        let up_to = |y: f64| if y > 1.0 { whole + (y - 1.0) } else { look_up(&area, y) };
        let mut moved: f64 = 0.0;
        for (i, value) in f.iter_mut().enumerate() {
            let x = i as f64 * cell;
            let next = r / (1.0 - r) * (up_to(x / r) - up_to((x - (1.0 - r)) / r));
            moved = moved.max((next - *value).abs());
            *value = next;
        }
        if moved < SETTLED {
            break;
        }
    }
    f.into()
}

/// Value of a table over 0..1 at `x`, interpolated linearly between its cells.
fn look_up(table: &[f64], x: f64) -> f64 {
    let place = x.clamp(0.0, 1.0) * CELLS as f64;
    let cell = (place as usize).min(CELLS - 1);
    let (low, high) = (table[cell], table[cell + 1]);
    low + (high - low) * (place - cell as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(correlation: f64) -> Vec<f64> {
        let mut chain = Chain::new(&[3, 1], correlation);
        (0..200_000).map(|_| chain.unit()).collect()
    }

    fn neighbours(series: &[f64]) -> f64 {
        let n = series.len() as f64;
        let mean = series.iter().sum::<f64>() / n;
        let spread: f64 = series.iter().map(|x| (x - mean).powi(2)).sum();
        series.windows(2).map(|w| (w[0] - mean) * (w[1] - mean)).sum::<f64>() / spread
    }

    #[test]
    fn numbers_are_even_at_any_correlation() {
        for correlation in [0.0, 0.05, 0.25, 0.5, 0.9] {
            let series = series(correlation);
            // A higher correlation leaves fewer independent numbers, so the bounds are wider.
            let effective = series.len() as f64 * (1.0 - correlation) / (1.0 + correlation);
            for p in [0.001, 0.01, 0.05, 0.2, 0.5, 0.9] {
                let hits = series.iter().filter(|&&x| x < p).count() as f64 / series.len() as f64;
                let error = (p * (1.0 - p) / effective).sqrt();
                assert!((hits - p).abs() < 4.0 * error, "{correlation} {p}: {hits}, error {error}");
            }
        }
    }

    #[test]
    fn neighbours_correlate_as_asked() {
        for correlation in [0.25, 0.5, 0.9] {
            let got = neighbours(&series(correlation));
            assert!((got / correlation - 1.0).abs() < 0.1, "{correlation}: {got}");
        }
        assert!(neighbours(&series(0.0)).abs() < 0.01);
    }

    #[test]
    fn a_seed_repeats() {
        let mut both = [Chain::new(&[9], 0.3), Chain::new(&[9], 0.3)];
        let other = Chain::new(&[8], 0.3).unit();
        let [a, b] = both.each_mut().map(Chain::unit);
        assert!(a == b && a != other);
    }
}
