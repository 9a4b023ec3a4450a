//! Selects more clients than needed, and ends a round at exactly `goal` updates (LIFL, sections 2.1 and 3).
//!
//! The root has `goal` admissions. A node draws several at a time, spends one for each update that it counts,
//! and returns those that it does not need. An update counts only with an admission, so no more than `goal`
//! count, whichever node receives them. The root records which clients were counted. If a client offers a
//! counted update again through another node, it gets an answer, but the update is not folded again.

use std::collections::{BTreeMap, BTreeSet};

/// The root's answer to a node that wants to count a client's update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Count the update.
    Counted,
    /// The update was already counted: tell the client that it was accepted.
    Again,
    /// The node has spent its admissions: it must draw more.
    Spent,
}

/// The root's record of a round's admissions.
#[derive(Debug)]
pub struct Root {
    goal: u32,
    nodes: u32,
    /// Admissions that no node holds.
    left: u32,
    /// Admissions that each node has drawn and not spent.
    drawn: BTreeMap<u32, u32>,
    /// Clients that were counted, with the node that counted them, until the top has that node's sums.
    pending: BTreeMap<u64, u32>,
    /// Clients whose updates are in the top's sums.
    kept: BTreeSet<u64>,
}

impl Root {
    /// Begins a round of `goal` updates that arrive through this many nodes.
    pub fn new(goal: u32, nodes: u32) -> Self {
        let (drawn, pending, kept) = Default::default();
        Self { goal, nodes: nodes.max(1), left: goal, drawn, pending, kept }
    }

    /// Gives a node half of the admissions that are left, divided by the number of nodes, but at least one.
    /// So batches are large at first and single at the end, and no node holds many while others wait. Returns
    /// 0 if none is left.
    pub fn draw(&mut self, node: u32) -> u32 {
        let batch = self.left.div_ceil(2 * self.nodes);
        self.left -= batch;
        *self.drawn.entry(node).or_default() += batch;
        batch
    }

    /// Takes back admissions that a node does not need.
    pub fn give_back(&mut self, node: u32, admissions: u32) {
        let Some(drawn) = self.drawn.get_mut(&node) else { return };
        let back = admissions.min(*drawn);
        *drawn -= back;
        self.left += back;
    }

    /// Counts a client's update at a node, which spends one of its admissions.
    pub fn count(&mut self, node: u32, client: u64) -> Answer {
        if self.kept.contains(&client) || self.pending.contains_key(&client) {
            return Answer::Again;
        }
        match self.drawn.get_mut(&node) {
            Some(drawn) if *drawn > 0 => {
                *drawn -= 1;
                self.pending.insert(client, node);
                Answer::Counted
            }
            _ => Answer::Spent,
        }
    }

    /// Records that the top has a node's sums. Its counted updates stay counted, even if the node is lost
    /// later.
    pub fn keep(&mut self, node: u32) {
        let kept = &mut self.kept;
        self.pending.retain(|&client, &mut at| {
            if at == node {
                kept.insert(client);
            }
            at != node
        });
    }

    /// Records that a node is lost. The root takes back the node's admissions, and those of its updates that
    /// the top does not have. Returns the clients that must send again.
    pub fn lose(&mut self, node: u32) -> Vec<u64> {
        self.left += self.drawn.remove(&node).unwrap_or(0);
        let lost: Vec<u64> =
            self.pending.iter().filter(|(_, &at)| at == node).map(|(&client, _)| client).collect();
        for client in &lost {
            self.pending.remove(client);
            self.left += 1;
        }
        lost
    }

    /// Number of admissions that no node holds.
    pub fn left(&self) -> u32 {
        self.left
    }

    /// Number of updates that are counted now.
    pub fn counted(&self) -> u32 {
        (self.pending.len() + self.kept.len()) as u32
    }

    /// Whether all admissions are spent, and the round can close.
    pub fn reached(&self) -> bool {
        self.counted() == self.goal
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn batches_shrink_towards_the_end() {
        let mut root = Root::new(100, 5);
        let batches: Vec<u32> = (0..30).map(|turn| root.draw(turn % 5)).collect();
        assert_eq!(batches[..5], [10, 9, 9, 8, 7]);
        assert_eq!(batches.iter().sum::<u32>(), 100);
        assert_eq!(batches[29], 0);
    }

    #[test]
    fn a_client_counts_once_through_whatever_node() {
        let mut root = Root::new(10, 2);
        root.draw(0);
        root.draw(1);
        assert_eq!(root.count(0, 7), Answer::Counted);
        assert_eq!(root.count(1, 7), Answer::Again);
        root.keep(0);
        assert_eq!(root.lose(0), Vec::<u64>::new(), "the top has its sums");
        assert_eq!((root.count(1, 7), root.counted()), (Answer::Again, 1));
    }

    #[test]
    fn a_lost_node_gives_back_what_the_top_does_not_have() {
        let mut root = Root::new(2, 1);
        root.draw(0);
        assert_eq!(root.count(0, 1), Answer::Counted);
        assert_eq!(root.count(0, 2), Answer::Spent);
        assert_eq!(root.lose(0), [1]);
        assert_eq!((root.draw(1), root.draw(1)), (1, 1));
        assert_eq!((root.count(1, 1), root.count(1, 2)), (Answer::Counted, Answer::Counted));
        assert!(root.reached());
    }

    #[derive(Debug, Clone)]
    enum Step {
        Offer(u32, u64),
        Keep(u32),
        Lose(u32),
        GiveBack(u32),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            10 => (0_u32..4, 0_u64..40).prop_map(|(node, client)| Step::Offer(node, client)),
            1 => (0_u32..4).prop_map(Step::Keep),
            1 => (0_u32..4).prop_map(Step::Lose),
            1 => (0_u32..4).prop_map(Step::GiveBack),
        ];
        proptest::collection::vec(step, 0..200)
    }

    proptest! {
        /// No more than the goal may count at any time. If all clients offer once more at the end, exactly
        /// the goal must count.
        #[test]
        fn a_round_ends_at_exactly_its_goal(goal in 1_u32..30, steps in steps()) {
            let mut root = Root::new(goal, 4);
            let offer = |root: &mut Root, node, client| {
                while root.count(node, client) == Answer::Spent && root.draw(node) > 0 {}
            };
            for step in steps {
                match step {
                    Step::Offer(node, client) => offer(&mut root, node, client),
                    Step::Keep(node) => root.keep(node),
                    Step::Lose(node) => drop(root.lose(node)),
                    Step::GiveBack(node) => root.give_back(node, u32::MAX),
                }
                prop_assert!(root.counted() <= goal);
            }
            (0..4).for_each(|node| root.give_back(node, u32::MAX));
            (0..40).for_each(|client| offer(&mut root, 0, client));
            prop_assert!(root.reached());
        }
    }
}
