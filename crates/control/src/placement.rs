//! Places clients on nodes by bin packing (LIFL, section 5.1): in integers, and in O(log n) per client.

use std::collections::BTreeSet;

use crate::{Load, Policy};

/// The nodes and the room that each has left. Of equal nodes, all policies take the one with the lower index.
#[derive(Debug)]
pub struct Placer {
    policy: Policy,
    /// Room left at each node; negative if the node is overloaded.
    room: Vec<i64>,
    /// A binary tree of the largest room below each position. The nodes are its leaves, from `half` on.
    largest: Vec<i64>,
    half: usize,
    /// For best fit: all nodes except `open`, ordered by room.
    by_room: BTreeSet<(i64, u32)>,
    /// For best fit: the node chosen last, and the load placed there. It stays best for an equal load while
    /// that fits, so `by_room` need not change.
    open: Option<(u32, i64)>,
}

impl Placer {
    /// A placer for nodes with this much room each.
    pub fn new(policy: Policy, room: Vec<i64>) -> Self {
        let half = room.len().next_power_of_two();
        let mut largest = vec![i64::MIN; 2 * half];
        largest[half..half + room.len()].copy_from_slice(&room);
        for place in (1..half).rev() {
            largest[place] = largest[2 * place].max(largest[2 * place + 1]);
        }
        let by_room = match policy {
            Policy::BestFit => room.iter().zip(0..).map(|(&room, node)| (room, node)).collect(),
            Policy::WorstFit | Policy::FirstFit => BTreeSet::new(),
        };
        Self { policy, room, largest, half, by_room, open: None }
    }

    /// Places a load. Returns the node, and whether the load fits there. A load that fits nowhere goes to the
    /// emptiest node. `None` if there are no nodes.
    pub fn place(&mut self, load: Load) -> Option<(u32, bool)> {
        if self.room.is_empty() {
            return None;
        }
        let load = i64::try_from(load).unwrap_or(i64::MAX);
        let fits = self.largest[1] >= load;
        if !fits {
            self.close();
        }
        let node = match self.policy {
            _ if !fits => self.leftmost(self.largest[1]),
            Policy::WorstFit => self.leftmost(self.largest[1]),
            Policy::FirstFit => self.leftmost(load),
            Policy::BestFit => self.fullest(load),
        };
        self.take(node, load);
        Some((node, fits))
    }

    /// Room left at a node; negative if it is overloaded.
    pub fn room(&self, node: u32) -> i64 {
        self.room[node as usize]
    }

    /// The first node with at least this room. There must be such a node.
    fn leftmost(&self, room: i64) -> u32 {
        let mut place = 1;
        while place < self.half {
            place *= 2;
            place += usize::from(self.largest[place] < room);
        }
        (place - self.half) as u32
    }

    /// The node with the least room that is enough for the load. There must be such a node.
    fn fullest(&mut self, load: i64) -> u32 {
        if let Some((node, last)) = self.open {
            if last == load && self.room(node) >= load {
                return node;
            }
            self.close();
        }
        let (room, node) = self.by_room.range((load, 0)..).next().copied().unwrap_or((0, 0));
        self.by_room.remove(&(room, node));
        self.open = Some((node, load));
        node
    }

    /// Puts the open node back into `by_room`.
    fn close(&mut self) {
        if let Some((node, _)) = self.open.take() {
            self.by_room.insert((self.room(node), node));
        }
    }

    fn take(&mut self, node: u32, load: i64) {
        let at = node as usize;
        let left = self.room[at].saturating_sub(load);
        if self.policy == Policy::BestFit && self.open.is_none_or(|(open, _)| open != node) {
            self.by_room.remove(&(self.room[at], node));
            self.by_room.insert((left, node));
        }
        self.room[at] = left;
        let mut place = self.half + at;
        self.largest[place] = left;
        while place > 1 {
            place /= 2;
            let larger = self.largest[2 * place].max(self.largest[2 * place + 1]);
            if self.largest[place] == larger {
                break;
            }
            self.largest[place] = larger;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The policies exactly as section 5.1 describes them, by a scan of all nodes.
    fn plainly(policy: Policy, room: &[i64], load: i64) -> (u32, bool) {
        let nodes = || room.iter().zip(0..).map(|(&room, node)| (room, node));
        let fitting = nodes().filter(|&(room, _)| room >= load);
        let emptiest = nodes().max_by_key(|&(room, node)| (room, std::cmp::Reverse(node))).unwrap();
        let found = match policy {
            Policy::BestFit => fitting.min(),
            Policy::FirstFit => fitting.min_by_key(|&(_, node)| node),
            Policy::WorstFit => fitting.max_by_key(|&(room, node)| (room, std::cmp::Reverse(node))),
        };
        (found.unwrap_or(emptiest).1, found.is_some())
    }

    /// The least number of nodes with this room that can hold all loads, by trying every assignment.
    fn fewest(room: i64, loads: &[u64]) -> usize {
        fn put(bins: &mut Vec<i64>, room: i64, loads: &[u64], best: &mut usize) {
            let Some((&load, rest)) = loads.split_first() else {
                *best = (*best).min(bins.len());
                return;
            };
            for bin in 0..bins.len() {
                if bins[bin] >= load as i64 {
                    bins[bin] -= load as i64;
                    put(bins, room, rest, best);
                    bins[bin] += load as i64;
                }
            }
            if bins.len() + 1 < *best {
                bins.push(room - load as i64);
                put(bins, room, rest, best);
                bins.pop();
            }
        }
        let mut best = usize::MAX;
        put(&mut Vec::new(), room, loads, &mut best);
        best
    }

    proptest! {
        #[test]
        fn every_policy_chooses_as_one_that_looks_at_all_nodes(
            mut room in proptest::collection::vec(0_i64..40, 1..12),
            loads in proptest::collection::vec(prop_oneof![Just(5_u64), 0_u64..20], 0..80),
            policy in prop_oneof![Just(Policy::BestFit), Just(Policy::WorstFit), Just(Policy::FirstFit)],
        ) {
            let mut placer = Placer::new(policy, room.clone());
            for load in loads {
                let (node, fits) = plainly(policy, &room, load as i64);
                prop_assert_eq!(placer.place(load), Some((node, fits)));
                room[node as usize] -= load as i64;
                prop_assert_eq!(placer.room(node), room[node as usize]);
            }
        }

        /// Best fit needs at most 1.7 times the fewest nodes, rounded down (Dosa and Sgall 2014).
        #[test]
        fn best_fit_is_near_the_fewest_nodes_there_are(loads in proptest::collection::vec(1_u64..=20, 1..9)) {
            let mut placer = Placer::new(Policy::BestFit, vec![20; loads.len()]);
            for &load in &loads {
                prop_assert!(placer.place(load).unwrap().1);
            }
            let used = (0..loads.len() as u32).filter(|&node| placer.room(node) < 20).count();
            prop_assert!(used <= 17 * fewest(20, &loads) / 10);
        }
    }

    #[test]
    fn equal_updates_fill_node_after_node_by_best_fit_and_all_alike_by_worst_fit() {
        let used = |policy, updates| {
            let mut placer = Placer::new(policy, vec![20_000; 5]);
            (0..updates).for_each(|_| assert!(placer.place(1000).unwrap().1));
            (0..5).filter(|&node| placer.room(node) < 20_000).count()
        };
        assert_eq!([20, 60, 100].map(|updates| used(Policy::BestFit, updates)), [1, 3, 5]);
        assert_eq!([20, 60, 100].map(|updates| used(Policy::WorstFit, updates)), [5, 5, 5]);
    }

    #[test]
    fn what_fits_nowhere_goes_to_the_emptiest_node() {
        let mut placer = Placer::new(Policy::BestFit, vec![1000, 1500]);
        assert_eq!(placer.place(2000), Some((1, false)));
        assert_eq!(placer.place(2000), Some((0, false)));
        assert_eq!((placer.room(0), placer.room(1)), (-1000, -500));
        assert_eq!(Placer::new(Policy::BestFit, Vec::new()).place(1), None);
    }
}
