//! Anti-replay window (RFC 6479): which numbers have been accepted before.

use crate::Refused;

/// Size of the window. Numbers this far below the newest are refused as too old.
pub const REMEMBERED: u64 = (WORDS as u64 - 1) * 64;
const WORDS: usize = 129;

/// The newest numbers that were accepted, as a ring of bits (RFC 6479).
#[derive(Debug, Clone)]
pub struct Replay {
    bits: [u64; WORDS],
    newest: Option<u64>,
}

impl Default for Replay {
    fn default() -> Self {
        Self { bits: [0; WORDS], newest: None }
    }
}

fn place(number: u64) -> (usize, u64) {
    ((number / 64) as usize % WORDS, 1 << (number % 64))
}

impl Replay {
    /// The greatest number that was accepted; 0 if there is none.
    pub fn newest(&self) -> u64 {
        self.newest.unwrap_or(0)
    }

    /// Checks that `number` may be accepted.
    ///
    /// # Errors
    /// [`Refused::Replayed`] if it was accepted before, [`Refused::Old`] if it is below the window.
    pub fn check(&self, number: u64) -> Result<(), Refused> {
        let Some(newest) = self.newest.filter(|&newest| number <= newest) else { return Ok(()) };
        if newest - number >= REMEMBERED {
            return Err(Refused::Old);
        }
        let (word, bit) = place(number);
        if self.bits[word] & bit == 0 {
            Ok(())
        } else {
            Err(Refused::Replayed)
        }
    }

    /// Records that `number` is accepted. The caller has checked it.
    pub fn mark(&mut self, number: u64) {
        let first = self.newest.map_or(0, |newest| newest / 64 + 1);
        if self.newest.is_none_or(|newest| number > newest) {
            // The words that the window enters now still have the bits of old numbers.
            for word in (first..=number / 64).rev().take(WORDS) {
                self.bits[word as usize % WORDS] = 0;
            }
            self.newest = Some(number);
        }
        let (word, bit) = place(number);
        self.bits[word] |= bit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Compares with a set of all numbers that were ever accepted.
        #[test]
        fn agrees_with_a_set(steps in prop::collection::vec((0..20_000_u64, 0..300_u64), 0..300)) {
            let (mut replay, mut known) = (Replay::default(), BTreeSet::new());
            let mut at = 0_u64;
            for (jump, back) in steps {
                at += if jump % 5 == 0 { jump } else { jump % 3 };
                let number = at.saturating_sub(back * back % 9_000);
                let newest = known.last().copied();
                let expected = if newest.is_some_and(|newest: u64| newest >= number && newest - number >= REMEMBERED) {
                    Err(Refused::Old)
                } else if known.contains(&number) {
                    Err(Refused::Replayed)
                } else {
                    Ok(())
                };
                prop_assert_eq!(replay.check(number), expected);
                if expected.is_ok() {
                    replay.mark(number);
                    known.insert(number);
                }
            }
        }
    }
}
