//! Rates in the notation of `tc`.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use thalweg_transport::{Error, ErrorKind};

const UNITS: [(&str, f64); 4] = [("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3), ("bit", 1.0)];

/// A rate in bits per second, written as `20mbit`, `1.5gbit`, `250kbit` or `9600bit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rate(u64);

impl Rate {
    /// A rate of at least one bit per second.
    pub const fn bits_per_second(bits: u64) -> Self {
        Self(if bits == 0 { 1 } else { bits })
    }

    /// Parses a number and a unit.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`], with what is expected.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let bad = |why: &str| {
            Error::new(ErrorKind::Unsupported, "parse rate", format!("{text:?}: {why}"))
                .hint("write a number and bit, kbit, mbit or gbit, such as 20mbit")
        };
        let (digits, factor) = UNITS
            .iter()
            .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))
            .ok_or_else(|| bad("the unit is missing or unknown (bytes per second are not taken)"))?;
        let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        let number: f64 =
            digits.parse().ok().filter(|_| plain).ok_or_else(|| bad("there is no plain number before it"))?;
        let bits = (number * factor).round();
        if !(1.0..=1e15).contains(&bits) {
            return Err(bad("the rate must be from 1bit to 1000000gbit"));
        }
        Ok(Self(bits as u64))
    }

    /// Bits per second.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// How long `bytes` bytes take at this rate.
    pub fn time_for(self, bytes: u64) -> Duration {
        let nanoseconds = u128::from(bytes) * 8_000_000_000 / u128::from(self.0);
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }
}

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let fits = |(_, factor): &&(&str, f64)| self.0.is_multiple_of(*factor as u64);
        let (unit, factor) = UNITS.iter().find(fits).unwrap_or(&("bit", 1.0));
        write!(f, "{}{unit}", self.0 / *factor as u64)
    }
}

impl TryFrom<String> for Rate {
    type Error = Error;
    fn try_from(text: String) -> Result<Self, Error> {
        Self::parse(&text)
    }
}

impl From<Rate> for String {
    fn from(rate: Rate) -> Self {
        rate.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_prints() {
        for (text, bits, printed) in [
            ("20mbit", 20_000_000, "20mbit"),
            ("1gbit", 1_000_000_000, "1gbit"),
            ("250kbit", 250_000, "250kbit"),
            ("1.5mbit", 1_500_000, "1500kbit"),
            ("9600bit", 9_600, "9600bit"),
            ("7bit", 7, "7bit"),
        ] {
            let rate = Rate::parse(text).unwrap();
            assert_eq!((rate.bits(), rate.to_string().as_str()), (bits, printed));
        }
    }

    #[test]
    fn refuses_with_the_hint() {
        for text in
            ["", "20", "mbit", "20mbps", "20MBit", "-1mbit", "1e3mbit", "infbit", "nanbit", "0mbit", "1 mbit"]
        {
            let error = Rate::parse(text).unwrap_err().to_string();
            assert!(error.contains("such as 20mbit"), "{text}: {error}");
        }
    }

    #[test]
    fn bytes_take_their_time() {
        let wifi = Rate::parse("60mbit").unwrap();
        assert_eq!(wifi.time_for(7_500_000), Duration::from_secs(1));
        assert_eq!(Rate::bits_per_second(0).time_for(1), Duration::from_secs(8));
    }
}
