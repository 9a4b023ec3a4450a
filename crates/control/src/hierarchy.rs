//! How many workers a node needs (LIFL, section 5.2).

use crate::{Config, Load, Scaling, Split, UPDATE};

/// The workers of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Number of leaves, or of workers that fold ranges.
    pub leaves: u32,
    /// Whether a middle folds the leaves' sums.
    pub middle: bool,
    /// Number of leaves that the queue needs. `leaves` is lower if `config.workers` allows fewer.
    pub wanted: u32,
}

impl Shape {
    /// The workers that a queue of this length needs.
    pub fn of(queue: Load, config: &Config) -> Self {
        if queue == 0 {
            return Self { leaves: 0, middle: false, wanted: 0 };
        }
        let most = config.workers.max(1);
        let wanted = match (config.split, config.scaling) {
            (Split::Ranges, _) | (_, Scaling::Fixed) => most,
            (Split::Clients, _) => leaves_for(queue, config.inputs),
        };
        let leaves = wanted.min(most);
        Self { leaves, middle: config.split == Split::Clients && leaves > 1, wanted }
    }
}

/// Number of leaves for a queue: ceil(Q / I). The last leaf may get fewer updates.
pub fn leaves_for(queue: Load, inputs: u32) -> u32 {
    let each = u64::from(inputs.max(1)).saturating_mul(UPDATE);
    u32::try_from(queue.div_ceil(each)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_gets_two_updates_and_the_last_one_what_is_left() {
        let leaves = |updates| leaves_for(updates * UPDATE, 2);
        assert_eq!([0, 1, 2, 3, 20, 21].map(leaves), [0, 1, 1, 2, 10, 11]);
        assert_eq!(leaves_for(2001, 2), 2, "an estimate between two numbers of updates rounds up");
        assert_eq!(leaves_for(u64::MAX, 0), u32::MAX);
    }

    #[test]
    fn a_middle_stands_above_several_leaves_and_never_above_ranges() {
        let clients = Config { split: Split::Clients, workers: 64, ..Config::default() };
        assert_eq!(Shape::of(20_000, &clients), Shape { leaves: 10, middle: true, wanted: 10 });
        assert_eq!(Shape::of(2_000, &clients), Shape { leaves: 1, middle: false, wanted: 1 });
        let few = Config { workers: 4, ..clients };
        assert_eq!(Shape::of(20_000, &few), Shape { leaves: 4, middle: true, wanted: 10 });
        let ranges = Config { workers: 4, ..Config::default() };
        assert_eq!(Shape::of(1_000, &ranges), Shape { leaves: 4, middle: false, wanted: 4 });
        assert_eq!(Shape::of(0, &ranges), Shape { leaves: 0, middle: false, wanted: 0 });
    }
}
