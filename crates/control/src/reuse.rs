//! Which idle worker takes over work of the next level (LIFL, section 5.3).

use serde::Serialize;

/// The level of the tree whose inputs a worker folds.
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

/// Where the worker for a task comes from. It is also the reason of the choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Source {
    /// An idle worker that has this role already.
    Idle {
        /// The worker's index in the list of idle workers.
        place: usize,
    },
    /// An idle worker that had another role.
    Reused {
        /// The worker's index in the list of idle workers.
        place: usize,
    },
    /// A new worker: none is idle, or workers keep their roles.
    Start,
}

/// Finds a worker for `role`. `idle` has the role of each idle worker, in the order in which they became
/// idle.
///
/// With `reuse`, a worker of a lower level will do, the nearest level first: a leaf becomes the middle, and
/// the first middle to finish becomes the top. If there is none, any idle worker will do. All workers run the
/// same program and keep no state.
pub fn source(role: WorkerRole, idle: &[WorkerRole], reuse: bool) -> Source {
    if let Some(place) = idle.iter().position(|&had| had == role) {
        return Source::Idle { place };
    }
    if !reuse {
        return Source::Start;
    }
    let below = idle.iter().enumerate().filter(|(_, &had)| had < role);
    // `max_by_key` returns the last of equal maxima. The reversed order makes that the first to finish.
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
