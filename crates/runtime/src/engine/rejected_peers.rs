//! Log lines about rejected peers. They are counted, so that a peer that tries a million times cannot fill
//! the log.

use std::collections::HashMap;
use std::hash::Hash;

/// Counts rejected peers by kind of reason, and says when to log: at the first, the tenth, the hundredth, and
/// so on.
#[derive(Debug)]
pub(crate) struct RejectedPeers<K> {
    counts: HashMap<K, u64>,
}

impl<K> Default for RejectedPeers<K> {
    fn default() -> Self {
        Self { counts: HashMap::new() }
    }
}

impl<K: Hash + Eq> RejectedPeers<K> {
    /// Counts one more peer. There are few kinds; `reason` is the full text. Returns a log line if one is
    /// due.
    pub fn count(&mut self, kind: K, reason: &str) -> Option<String> {
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        match *count {
            1 => Some(format!("a peer was turned away: {reason}")),
            n if is_power_of_ten(n) => Some(format!("{n} peers were turned away so far, the last: {reason}")),
            _ => None,
        }
    }
}

fn is_power_of_ten(n: u64) -> bool {
    n.checked_ilog10().is_some_and(|digits| n == 10_u64.pow(digits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_peers_are_a_few_lines() {
        let mut rejected = RejectedPeers::default();
        let notes: Vec<String> =
            (0..1_000_000).filter_map(|n| rejected.count("late", &format!("peer {n}"))).collect();
        assert_eq!(notes.len(), 7);
        assert_eq!(notes[0], "a peer was turned away: peer 0");
        assert_eq!(notes[2], "100 peers were turned away so far, the last: peer 99");
    }

    #[test]
    fn each_kind_of_reason_is_logged() {
        let mut rejected = RejectedPeers::default();
        assert!(rejected.count(1, "no TLS").is_some());
        assert!(rejected.count(2, "another protocol").is_some());
        assert!(rejected.count(1, "no TLS").is_none());
    }
}
