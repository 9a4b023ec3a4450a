//! A sharded top: each node is the top for its part of the bytes, and sends that part of the mean to all other
//! nodes and to the root.
//!
//! All parts of the mean contain the same updates: those of the nodes that had sums when all nodes had
//! finished. If one of these nodes is lost before the root has all parts of the mean, the others begin again
//! without it: the next turn.

use std::collections::{BTreeMap, BTreeSet};

use thalweg_wire::tree::{Answer, MeanAnswer, Request};
use thalweg_wire::Range;

use super::round::{Mean, Top, TreeRound, TreeStep};

/// The state of the top.
#[derive(Debug, Default)]
pub(super) struct Sharded {
    turn: u32,
    /// The request that is not over, and the step that it is for.
    step: Option<(u32, Step)>,
    /// The parts of the round that count in this turn.
    counting: Vec<usize>,
    /// The ranges of bytes, and the part of the round whose node is the top for each.
    shares: Vec<(usize, Range)>,
    /// The nodes that get the mean.
    here: Vec<String>,
    answers: BTreeMap<String, Result<(Answer, Option<u64>), String>>,
    /// The mean, once the root has all of it.
    mean: Mean,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Share,
    Settle,
    Confirm,
}

impl TreeRound {
    fn sharded(&mut self) -> Option<&mut Sharded> {
        match &mut self.top {
            Top::Sharded(sharded) => Some(sharded),
            Top::Dedicated | Top::FirstFinished(_) => None,
        }
    }

    pub(super) fn sharded_answered(&mut self, node: &str, answer: Result<(Answer, Option<u64>), &str>) {
        if let Some(sharded) = self.sharded() {
            sharded.answers.insert(node.into(), answer.map_err(str::to_owned));
        }
    }

    /// Begins a turn, or goes on with the next step of one once all nodes have answered.
    pub(super) fn share(&mut self) {
        loop {
            let Some(sharded) = self.sharded() else { return };
            let Some((ask, step)) = sharded.step else {
                if let Err(reason) = self.begin_turn() {
                    self.fail(reason);
                    return;
                }
                continue;
            };
            if !self.is_answered(ask) {
                return;
            }
            let Some(sharded) = self.sharded() else { return };
            sharded.step = None;
            let answers = std::mem::take(&mut sharded.answers);
            match step {
                Step::Share => self.shared(&answers),
                Step::Settle => self.settled(ask, &answers),
                Step::Confirm => return self.confirmed(&answers),
            }
        }
    }

    fn ask_shards(&mut self, request: Request, nodes: Vec<String>, step: Step) {
        let ask = self.ask(request, nodes);
        if let Some(sharded) = self.sharded() {
            sharded.step = Some((ask, step));
        }
    }

    fn begin_turn(&mut self) -> Result<(), String> {
        self.check_enough()?;
        let counting: Vec<usize> = (0..self.parts.len()).filter(|&part| self.parts[part].counts()).collect();
        if counting.is_empty() {
            return Err("no node has the round's sums any more".into());
        }
        let ranges = (self.split)(counting.len());
        let shares: Vec<(usize, Range)> = counting.iter().copied().zip(ranges).collect();
        let here = self.here();
        let name = |part: usize| self.parts[part].node.clone();
        let nodes = counting.iter().map(|&part| (name(part), self.parts[part].claim)).collect();
        let parts = shares.iter().map(|&(part, range)| (name(part), (range.start, range.end))).collect();
        let addresses = shares.iter().map(|&(part, _)| self.address_of(&name(part))).collect();
        let Some(sharded) = self.sharded() else { return Ok(()) };
        sharded.turn += 1;
        (sharded.counting, sharded.shares, sharded.here) = (counting, shares, here.clone());
        let request = Request::FoldPart { turn: sharded.turn, nodes, parts, addresses };
        self.ask_shards(request, here, Step::Share);
        Ok(())
    }

    /// Drops the nodes that could not take the others' sums, and those whose sums were refused.
    fn shared(&mut self, answers: &BTreeMap<String, Result<(Answer, Option<u64>), String>>) {
        let Some(sharded) = self.sharded() else { return };
        let counting = sharded.counting.clone();
        for &part in &counting {
            let node = self.parts[part].node.clone();
            let why = match answers.get(&node) {
                Some(Ok((Answer::Shared(_), _))) => continue,
                Some(Err(reason)) => reason.as_str(),
                Some(Ok(_)) => "it gave another answer",
                None => "it is gone",
            };
            let why = self.why_lost(&node, || format!("its node {node} could not be a top: {why}"));
            self.drop_part(part, why);
        }
        for &part in &counting {
            let by = self.parts[part].node.clone();
            let Some(Ok((Answer::Shared(refused), _))) = answers.get(&by) else { continue };
            for &other in &counting {
                // If two nodes refuse each other, drop only one: a node that was dropped refuses nobody.
                let node = self.parts[other].node.clone();
                let Some(why) = refused.get(&node) else { continue };
                if self.parts[part].counts() && self.parts[other].counts() {
                    let why = self.why_lost(&node, || {
                        format!("the sums of its node {node} were refused by {by}: {why}")
                    });
                    self.drop_part(other, why);
                }
            }
        }
        if counting.iter().all(|&part| self.parts[part].counts()) {
            self.ask_for_parts();
        }
    }

    fn ask_for_parts(&mut self) {
        let to = self.here();
        let nodes = self.tops();
        if let Some(sharded) = self.sharded() {
            sharded.here = to.clone();
        }
        self.ask_shards(Request::ComputePart { to }, nodes, Step::Settle);
    }

    /// The nodes that are the top of a part of the bytes.
    fn tops(&self) -> Vec<String> {
        let Top::Sharded(sharded) = &self.top else { return Vec::new() };
        sharded.shares.iter().map(|&(part, _)| self.parts[part].node.clone()).collect()
    }

    /// Writes the mean to the model if all its parts are here.
    fn settled(&mut self, ask: u32, answers: &BTreeMap<String, Result<(Answer, Option<u64>), String>>) {
        let Some(sharded) = self.sharded() else { return };
        let shares = sharded.shares.clone();
        let mut means: Vec<(String, Range, MeanAnswer)> = Vec::new();
        for (part, range) in shares {
            let node = self.parts[part].node.clone();
            let why = match answers.get(&node) {
                Some(Ok((Answer::Mean(mean), Some(bytes)))) if *bytes >= range.len() => {
                    means.push((node, range, *mean));
                    continue;
                }
                Some(Err(reason)) => reason.as_str(),
                Some(Ok(_)) => "it is none of this model",
                None => "it is gone",
            };
            let why = self.why_lost(&node, || format!("its node {node} gave no part of the mean: {why}"));
            self.drop_part(part, why);
        }
        let nodes = self.tops();
        if means.len() < nodes.len() {
            return;
        }
        let uncovered = means.iter().map(|(.., mean)| mean.fold.uncovered_bytes.unwrap_or(0)).sum();
        let done = means.iter().map(|(.., mean)| mean.done).fold(f64::NEG_INFINITY, f64::max);
        let shares = means.iter().map(|(node, range, _)| (node.clone(), range.len())).collect();
        let parts = means.into_iter().map(|(node, range, _)| (node, range.start, range.end)).collect();
        self.step(TreeStep::Write { ask, parts });
        if let Some(sharded) = self.sharded() {
            let (top, has) = (None, Vec::new());
            sharded.mean = Mean { uncovered_bytes: Some(uncovered), done, top, shares: Some(shares), has };
        }
        self.ask_shards(Request::ConfirmParts, nodes, Step::Confirm);
    }

    /// Ends the round. A node has the whole mean if all tops say that it has their part.
    fn confirmed(&mut self, answers: &BTreeMap<String, Result<(Answer, Option<u64>), String>>) {
        let tops = self.tops();
        let Some(sharded) = self.sharded() else { return };
        let mut mean = std::mem::take(&mut sharded.mean);
        let given: BTreeMap<&String, BTreeSet<&String>> = answers
            .iter()
            .filter_map(|(node, answer)| match answer {
                Ok((Answer::Delivered(has), _)) => Some((node, has.iter().collect())),
                _ => None,
            })
            .collect();
        let has = |node: &String| {
            tops.iter().all(|top| top == node || given.get(top).is_some_and(|has| has.contains(node)))
        };
        mean.has = sharded.here.iter().filter(|node| has(node)).cloned().collect();
        self.over(mean);
    }
}
