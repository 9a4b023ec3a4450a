//! More clients than needed, and a round that ends at exactly `goal` updates (sections 2.1 and 3).
//!
//! The root has `goal` admissions. A node draws some at a time, spends one for each update that it counts, and returns
//! what it does not need. Nobody counts without an admission, so no more than `goal` are counted, wherever they come in.
//! The root keeps who was counted. An update that a client offers again through another node is answered, not folded.

use std::collections::{BTreeMap, BTreeSet};

/// What the root answers to a node that wants to count a client's update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Count it.
    Counted,
    /// It has been counted already: tell the client that it was accepted.
    Again,
    /// All of the node's admissions are spent: draw more.
    Spent,
}

/// The root's side.
#[derive(Debug)]
pub struct Root {
    goal: u32,
    nodes: u32,
    /// Admissions that are nobody's.
    left: u32,
    /// Admissions that each node has and has not spent.
    drawn: BTreeMap<u32, u32>,
    /// Who was counted, by which node, until the top has that node's sums.
    pending: BTreeMap<u64, u32>,
    /// Whose updates the top has.
    kept: BTreeSet<u64>,
}

impl Root {
    /// A round of `goal` updates through so many nodes.
    pub fn new(goal: u32, nodes: u32) -> Self {
        let (drawn, pending, kept) = Default::default();
        Self { goal, nodes: nodes.max(1), left: goal, drawn, pending, kept }
    }

    /// Gives a node admissions: half of what is left, divided among the nodes, and at least one. Batches are large at
    /// the start and single at the end, so that no node sits on many while others wait. Zero if none is left.
    pub fn draw(&mut self, node: u32) -> u32 {
        let batch = self.left.div_ceil(2 * self.nodes);
        self.left -= batch;
        *self.drawn.entry(node).or_default() += batch;
        batch
    }

    /// Takes back what a node does not need.
    pub fn give_back(&mut self, node: u32, admissions: u32) {
        let Some(drawn) = self.drawn.get_mut(&node) else { return };
        let back = admissions.min(*drawn);
        *drawn -= back;
        self.left += back;
    }

    /// Counts a client's update at a node, by one of its admissions.
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

    /// The top has a node's sums: what the node counted stays, whatever becomes of it.
    pub fn keep(&mut self, node: u32) {
        let kept = &mut self.kept;
        self.pending.retain(|&client, &mut at| {
            if at == node {
                kept.insert(client);
            }
            at != node
        });
    }

    /// A node is lost: its admissions come back, and so do those of updates that the top does not have. Returns the
    /// clients that have to send again.
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

    /// Admissions that nobody has drawn.
    pub fn left(&self) -> u32 {
        self.left
    }

    /// Updates that are counted now.
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
        /// Whatever happens, no more than the goal is counted; and if all clients offer once more at the end, exactly
        /// the goal.
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
