//! Finds the capacity of a node, MC: how many updates it can aggregate at once (LIFL, appendix E).

use serde::{Deserialize, Serialize};

use crate::{Load, UPDATE};

/// A measurement at one arrival rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Updates a second; the paper's k.
    pub rate: f64,
    /// Average time of an update in seconds, waiting included; the paper's E.
    pub seconds: f64,
}

/// Why no capacity can be found from the measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Useless {
    /// There are too few measurements to see a rise.
    TooFew,
    /// Rates or times are not positive and finite, or rates do not rise.
    Unordered,
}

impl Useless {
    /// The reason why the measurements are refused.
    pub fn cause(self) -> &'static str {
        match self {
            Self::TooFew => "fewer than two arrival rates were measured",
            Self::Unordered => "arrival rates must rise and times be positive",
        }
    }

    /// How to measure instead.
    pub fn hint(self) -> &'static str {
        match self {
            Self::TooFew => "measure at least two, of which the first leaves the node idle",
            Self::Unordered => "measure again in rising order",
        }
    }
}

impl std::fmt::Display for Useless {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; {}", self.cause(), self.hint())
    }
}

impl std::error::Error for Useless {}

/// A node's capacity and the measurement that gave it: the first arrival rate at which the time of an update
/// has risen significantly, else the highest rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Knee {
    /// Capacity: MC = k' * E', rounded down, but at least one update.
    pub capacity: Load,
    /// The measurement that gave the capacity.
    pub at: Measured,
    /// Time of an update at that rate, divided by the time at the lowest rate.
    pub rise: f64,
    /// Whether `rise` is significant. If not, no rate overloaded the node, and its capacity is larger than
    /// this.
    pub overloaded: bool,
}

/// Finds MC: the first arrival rate at which an update takes `significant` times as long as at the lowest
/// rate.
pub fn knee(measured: &[Measured], significant: f64) -> Result<Knee, Useless> {
    let [first, .., last] = measured else { return Err(Useless::TooFew) };
    let positive = measured.iter().all(|one| one.rate > 0.0 && one.seconds > 0.0);
    let finite = measured.iter().all(|one| one.rate.is_finite() && one.seconds.is_finite());
    if !positive || !finite || measured.windows(2).any(|pair| pair[0].rate >= pair[1].rate) {
        return Err(Useless::Unordered);
    }
    let rise = |one: &Measured| one.seconds / first.seconds;
    let found = measured.iter().skip(1).find(|&one| rise(one) >= significant);
    let at = found.unwrap_or(last);
    // The product of two finite numbers may be infinite; `as` then gives the largest load.
    let capacity = ((at.rate * at.seconds) as Load).saturating_mul(UPDATE).max(UPDATE);
    Ok(Knee { capacity, at: *at, rise: rise(at), overloaded: found.is_some() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(rows: &[(f64, f64)]) -> Vec<Measured> {
        rows.iter().map(|&(rate, seconds)| Measured { rate, seconds }).collect()
    }

    #[test]
    fn the_capacity_is_rate_times_time_where_the_time_rises() {
        let rows = measured(&[(1.0, 0.5), (10.0, 0.5), (20.0, 0.6), (25.0, 0.8), (30.0, 2.0)]);
        let found = knee(&rows, 1.5).unwrap();
        assert_eq!((found.capacity, found.at.rate, found.overloaded), (20_000, 25.0, true));
    }

    #[test]
    fn a_node_that_was_never_overloaded_is_said_to_be_so() {
        let found = knee(&measured(&[(1.0, 0.5), (8.0, 0.5)]), 1.5).unwrap();
        assert_eq!((found.capacity, found.overloaded), (4_000, false));
    }

    #[test]
    fn measurements_that_say_nothing_are_refused() {
        assert_eq!(knee(&measured(&[(1.0, 0.5)]), 1.5), Err(Useless::TooFew));
        assert_eq!(knee(&measured(&[(2.0, 0.5), (1.0, 0.5)]), 1.5), Err(Useless::Unordered));
        assert_eq!(knee(&measured(&[(1.0, 0.0), (2.0, 0.5)]), 1.5), Err(Useless::Unordered));
        assert_eq!(knee(&measured(&[(1.0, f64::NAN), (2.0, 0.5)]), 1.5), Err(Useless::Unordered));
    }
}
