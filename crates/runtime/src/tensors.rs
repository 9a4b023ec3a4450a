//! Finds the tensors that a plan names, and builds the rule of what may be lost of them.

use std::collections::BTreeMap;

use thalweg_wire::{Allowance, Layout, Tolerance, WHOLE};

use crate::star::RepairRule;
use crate::{Error, Kind};

/// How many similar names an error suggests.
const NEAREST: usize = 3;
/// Maximum number of characters of a name that are compared for that.
const COMPARED: usize = 64;

impl RepairRule {
    /// What may be lost of models and updates of this layout.
    ///
    /// # Errors
    /// `options` if no tensor has a name (with the most similar names), or a fraction is not from 0 to 1.
    pub fn tolerance(&self, layout: &Layout) -> Result<Tolerance, Error> {
        let mut found: BTreeMap<u32, Allowance> = BTreeMap::new();
        let critical = self.critical.iter().map(|pattern| ("critical", pattern, 0.0));
        let budgets = self.budgets.iter().map(|(pattern, &share)| ("budgets", pattern, share));
        let refuse = self.refuse.iter().map(|(pattern, &share)| ("refuse", pattern, share));
        for (key, pattern, share) in critical.chain(budgets).chain(refuse) {
            let share = millionths(key, pattern, share)?;
            for tensor in called(key, pattern, layout)? {
                let whole = Allowance { tensor, budget: WHOLE, refuse: WHOLE };
                let allowance = found.entry(tensor).or_insert(whole);
                // If several rules match a tensor, the strictest counts.
                let least = if key == "refuse" { &mut allowance.refuse } else { &mut allowance.budget };
                *least = share.min(*least);
            }
        }
        let allowances: Vec<Allowance> = found.into_values().collect();
        Tolerance::new(layout, &allowances)
            .map_err(|e| Error::new(Kind::Options, "start server", e.to_string()))
    }
}

fn millionths(key: &str, pattern: &str, share: f64) -> Result<u32, Error> {
    if !(0.0..=1.0).contains(&share) {
        let cause = format!("repair.{key} of {pattern:?} is {share}");
        return Err(Error::new(Kind::Options, "start server", cause).hint("it is a share from 0 to 1"));
    }
    Ok((share * f64::from(WHOLE)) as u32)
}

/// Indices of the tensors that match a pattern.
fn called(key: &str, pattern: &str, layout: &Layout) -> Result<Vec<u32>, Error> {
    let tensors = layout.tensors().iter().enumerate();
    let found: Vec<u32> =
        tensors.filter(|(_, tensor)| fits(pattern, &tensor.name)).map(|(place, _)| place as u32).collect();
    if found.is_empty() {
        let near = nearest(pattern, layout).join(", ");
        let cause = format!("repair.{key} names {pattern:?}, and no tensor is called so");
        return Err(Error::new(Kind::Options, "start server", cause).hint(format!("the nearest: {near}")));
    }
    Ok(found)
}

/// Whether a pattern matches a whole name. `*` matches any characters, `?` matches one.
fn fits(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut here) = (0, 0);
    // The last star, and where the name continues if that star takes one more character.
    let mut star = None;
    while here < name.len() {
        match (pattern.get(at), star) {
            (Some('*'), _) => {
                star = Some((at, here + 1));
                at += 1;
            }
            (Some(&wanted), _) if wanted == '?' || wanted == name[here] => {
                at += 1;
                here += 1;
            }
            (_, Some((last, next))) => {
                star = Some((last, next + 1));
                (at, here) = (last + 1, next);
            }
            (_, None) => return false,
        }
    }
    pattern[at..].iter().all(|&rest| rest == '*')
}

/// Names of the tensors that are most similar to a pattern, quoted.
fn nearest(pattern: &str, layout: &Layout) -> Vec<String> {
    let mut names: Vec<&str> = layout.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
    names.sort_by_cached_key(|name| difference(pattern, name));
    names.into_iter().take(NEAREST).map(|name| format!("{name:?}")).collect()
}

/// The edit distance (Levenshtein 1966). A star in the pattern counts as nothing.
fn difference(pattern: &str, name: &str) -> usize {
    let pattern: Vec<char> = pattern.chars().filter(|&c| c != '*').take(COMPARED).collect();
    let mut row: Vec<usize> = (0..=pattern.len()).collect();
    for (done, letter) in name.chars().take(COMPARED).enumerate() {
        let mut before = std::mem::replace(&mut row[0], done + 1);
        for (at, &wanted) in pattern.iter().enumerate() {
            let changed = before + usize::from(wanted != letter);
            before = row[at + 1];
            row[at + 1] = changed.min(before + 1).min(row[at] + 1);
        }
    }
    row[pattern.len()]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a panic is how tests report
mod tests {
    use thalweg_wire::Dtype;

    use super::*;

    fn layout() -> Layout {
        let names = ["conv1.weight", "conv1.bias", "bn1.weight", "bn1.bias", "fc.weight", "fc.bias"];
        Layout::pack(names.map(|name| (name, Dtype::F32, vec![250]))).unwrap()
    }

    fn rule(critical: &[&str], budgets: &[(&str, f64)], refuse: &[(&str, f64)]) -> RepairRule {
        let map = |pairs: &[(&str, f64)]| pairs.iter().map(|&(name, share)| (name.into(), share)).collect();
        RepairRule {
            critical: critical.iter().map(|&name| name.into()).collect(),
            budgets: map(budgets),
            refuse: map(refuse),
            ..RepairRule::default()
        }
    }

    #[test]
    fn the_strictest_of_those_that_fit_counts() {
        let rule =
            rule(&["*.bias", "bn*"], &[("conv*", 0.05), ("*.weight", 0.1)], &[("fc.*", 0.5), ("*", 0.9)]);
        let tolerance = rule.tolerance(&layout()).unwrap();
        let shares: Vec<(u32, u32, u32)> =
            tolerance.allowances().iter().map(|a| (a.tensor, a.budget, a.refuse)).collect();
        let most = 900_000;
        let expected = [
            (0, 50_000, most),
            (1, 0, most),
            (2, 0, most),
            (3, 0, most),
            (4, 100_000, 500_000),
            (5, 0, 500_000),
        ];
        assert_eq!(shares, expected);
        assert!(RepairRule::default().tolerance(&layout()).unwrap().is_empty());
    }

    #[test]
    fn a_name_that_no_tensor_has_is_refused_with_the_nearest() {
        for (key, wrong) in [
            ("critical", rule(&["fc.bais"], &[], &[])),
            ("budgets", rule(&[], &[("fc.bais", 0.1)], &[])),
            ("refuse", rule(&[], &[], &[("fc.bais", 0.1)])),
        ] {
            let refused = wrong.tolerance(&layout()).unwrap_err().to_string();
            assert!(refused.contains(&format!("repair.{key} names \"fc.bais\"")), "{refused}");
            assert!(refused.contains("the nearest: \"fc.bias\""), "{refused}");
        }
        let refused = rule(&["bm*"], &[], &[]).tolerance(&layout()).unwrap_err().to_string();
        assert!(
            refused.contains("\"bm*\"") && refused.contains("nearest: \"fc.bias\", \"bn1.bias\""),
            "{refused}"
        );
    }

    #[test]
    fn what_is_no_share_is_refused() {
        for share in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            let refused = rule(&[], &[("fc*", share)], &[]).tolerance(&layout()).unwrap_err();
            assert!(refused.to_string().contains("a share from 0 to 1"), "{refused}");
        }
    }

    #[test]
    fn differences_are_counted_by_the_letter() {
        let cases =
            [("", "", 0), ("abc", "abc", 0), ("abc", "acb", 2), ("kitten", "sitting", 3), ("*.b*", ".b", 0)];
        for (pattern, name, expected) in cases {
            assert_eq!(difference(pattern, name), expected, "{pattern} {name}");
        }
    }

    /// The simplest correct way to match a pattern.
    fn plainly(pattern: &[char], name: &[char]) -> bool {
        match pattern.split_first() {
            None => name.is_empty(),
            Some(('*', rest)) => (0..=name.len()).any(|taken| plainly(rest, &name[taken..])),
            Some((wanted, rest)) => name
                .split_first()
                .is_some_and(|(letter, left)| (*wanted == '?' || wanted == letter) && plainly(rest, left)),
        }
    }

    /// All texts of these letters, up to a length.
    fn texts(letters: &str, most: usize) -> Vec<String> {
        let mut all = vec![String::new()];
        let mut first = 0;
        for _ in 0..most {
            let longer =
                all[first..].iter().flat_map(|text| letters.chars().map(move |c| format!("{text}{c}")));
            let longer: Vec<String> = longer.collect();
            first = all.len();
            all.extend(longer);
        }
        all
    }

    #[test]
    fn patterns_fit_as_they_plainly_do() {
        let letters = |text: &str| text.chars().collect::<Vec<_>>();
        for pattern in texts("ab*?", 5) {
            for name in texts("ab", 5) {
                let expected = plainly(&letters(&pattern), &letters(&name));
                assert_eq!(fits(&pattern, &name), expected, "{pattern:?} {name:?}");
            }
        }
    }
}
