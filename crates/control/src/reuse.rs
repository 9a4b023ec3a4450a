//! Which worker takes over the next level's work (section 5.3).

use serde::Serialize;

/// What a worker folds: a level of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkerRole {
    /// Folds clients' updates.
    Leaf,
    /// Folds the sums of a node's leaves.
    Middle,
    /// Folds the sums of nodes.
    Top,
}

/// Where a worker for some work comes from, which is its reason too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Source {
    /// This idle worker, which has this role already.
    Idle {
        /// Its place in the list of idle ones.
        place: usize,
    },
    /// This idle worker, which finished the work of another role.
    Reused {
        /// Its place in the list of idle ones.
        place: usize,
    },
    /// A new one: none is idle, or roles are not changed.
    Start,
}

/// Finds a worker for `role` among idle ones, each with the role that it had, in the order in which they became idle.
///
/// With `reuse` one of the levels below will do, the nearest level first: a leaf becomes the middle, the first middle
/// to finish becomes the top. All run the same program and keep nothing.
pub fn source(role: WorkerRole, idle: &[WorkerRole], reuse: bool) -> Source {
    if let Some(place) = idle.iter().position(|&had| had == role) {
        return Source::Idle { place };
    }
    if !reuse {
        return Source::Start;
    }
    let below = idle.iter().enumerate().filter(|(_, &had)| had < role);
    // Of equal keys `max_by_key` takes the last, and the first to finish is wanted.
    let nearest = below.rev().max_by_key(|(_, &had)| had);
    let any = nearest.map(|(place, _)| place).or_else(|| (!idle.is_empty()).then_some(0));
    any.map_or(Source::Start, |place| Source::Reused { place })
}

#[cfg(test)]
mod tests {
    use super::WorkerRole::{Leaf, Middle, Top};
    use super::*;

    #[test]
    fn a_leaf_becomes_the_middle_and_the_first_middle_the_top() {
        assert_eq!(source(Middle, &[Leaf, Leaf], true), Source::Reused { place: 0 });
        assert_eq!(source(Top, &[Leaf, Middle, Middle], true), Source::Reused { place: 1 });
        assert_eq!(source(Top, &[Leaf], true), Source::Reused { place: 0 });
        assert_eq!(source(Leaf, &[Top], true), Source::Reused { place: 0 });
        assert_eq!(source(Leaf, &[], true), Source::Start);
    }

    #[test]
    fn without_reuse_a_worker_keeps_its_role() {
        assert_eq!(source(Middle, &[Leaf], false), Source::Start);
        assert_eq!(source(Leaf, &[Middle, Leaf], false), Source::Idle { place: 1 });
    }
}
