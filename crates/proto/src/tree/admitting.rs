//! Admits updates: says which updates the nodes fold, in a round in which more clients take part than it counts
//! updates.
//!
//! A node tells the root of each update that has arrived whole, and folds it only after the root has admitted it.
//! The root admits updates in the order in which it learns of them, until as many as the goal are admitted. Then it
//! ends the batch at all nodes. If a node is lost before that, the updates that wait at other nodes take the place of
//! its admitted ones. If it is lost later, the next batch begins with them: nodes keep the updates that they have not
//! folded until the round is over.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use thalweg_wire::tree::{Admit, Arrival, Request};

use super::draw::Drawing;
use super::round::{Part, Stage, TreeRound};

/// What the root knows of a node's updates in a batch.
#[derive(Debug, Default)]
struct AtNode {
    /// The clients whose updates have not arrived.
    awaited: BTreeSet<String>,
    /// How many of the batch's arrivals the root knows.
    seen: usize,
    admitted: BTreeSet<String>,
    /// Requests to the node that are not answered.
    requests: u32,
    /// Whether the node was told that the round can do without clients that are away for longer than the grace.
    knows_enough: bool,
    /// Whether the node has said that its batch is over.
    is_over: bool,
}

/// The state of a round that admits updates.
#[derive(Debug, Default)]
pub(super) struct Admitting {
    /// The number of the batch.
    batch: u32,
    /// The first part of the batch.
    first: usize,
    /// By part.
    nodes: BTreeMap<usize, AtNode>,
    /// Whole updates that are not admitted, in the order in which the root learned of them: part and client.
    waiting: VecDeque<(usize, String)>,
    /// Whether no other update of this batch will be admitted.
    is_last: bool,
}

impl Admitting {
    /// Begins a batch. Returns its number.
    pub fn next_batch(&mut self) -> u32 {
        self.batch += 1;
        self.is_last = false;
        self.waiting.clear();
        self.batch
    }

    /// Whether the root has admitted a client's update at its node.
    pub fn has_admitted(&self, part: usize, client: &str) -> bool {
        self.nodes.get(&part).is_some_and(|node| node.admitted.contains(client))
    }
}

impl TreeRound {
    /// Asks the nodes of these parts for the updates that have arrived.
    pub(super) fn begin_admitting(&mut self, parts: std::ops::Range<usize>) {
        if let Some(admitting) = &mut self.admitting {
            admitting.first = parts.start;
        }
        for part in parts {
            let awaited = self.parts[part].clients.iter().cloned().collect();
            if let Some(admitting) = &mut self.admitting {
                admitting.nodes.insert(part, AtNode { awaited, ..AtNode::default() });
            }
            self.ask_for_arrivals(part, Vec::new(), false);
        }
    }

    fn ask_for_arrivals(&mut self, part: usize, clients: Vec<String>, last: bool) {
        let enough = self.has_enough();
        let Some(admitting) = &mut self.admitting else { return };
        let (batch, node) = (admitting.batch, admitting.nodes.entry(part).or_default());
        node.requests += 1;
        node.knows_enough |= enough;
        let admit = Admit { round: self.plan.number, batch, clients, last, seen: node.seen, enough };
        let name = self.parts[part].node.clone();
        self.ask(Request::Admit(admit), vec![name]);
    }

    /// The part of a node in the batch to which a request belongs; `None` if that batch is over.
    fn part_of_batch(&self, admit: &Admit, node: &str) -> Option<usize> {
        let admitting = self.admitting.as_ref().filter(|admitting| admitting.batch == admit.batch)?;
        let of_batch = self.parts[admitting.first..].iter().position(|part| part.node == node)?;
        Some(admitting.first + of_batch)
    }

    /// A node has told of arrivals, or that its batch is over.
    pub(super) fn arrived(&mut self, admit: &Admit, node: &str, arrivals: Vec<Arrival>) {
        let Some(at) = self.part_of_batch(admit, node) else { return };
        let Some(admitting) = &mut self.admitting else { return };
        let Some(known) = admitting.nodes.get_mut(&at) else { return };
        known.requests -= 1;
        known.is_over |= arrivals.is_empty();
        // Two requests may be answered with the same arrivals.
        for Arrival(client, is_whole) in arrivals.into_iter().skip(known.seen.saturating_sub(admit.seen)) {
            known.seen += 1;
            if !is_whole {
                known.admitted.remove(&client);
            } else if known.awaited.remove(&client) {
                admitting.waiting.push_back((at, client));
            }
        }
        self.admit(Some(at));
    }

    /// A node that is not lost does not tell of arrivals, for this reason.
    pub(super) fn not_arrived(&mut self, admit: &Admit, node: &str, reason: &str) {
        let Some(at) = self.part_of_batch(admit, node) else { return };
        if let Some(known) = self.admitting.as_mut().and_then(|admitting| admitting.nodes.get_mut(&at)) {
            known.requests -= 1;
            known.is_over = true;
        }
        if self.parts[at].stage == Stage::Asked && !self.is_lost(node) {
            self.drop_part(at, format!("its node {node} does not say which updates have arrived: {reason}"));
        }
    }

    /// How many updates are admitted, or count.
    fn taken(&self) -> usize {
        let Some(admitting) = &self.admitting else { return 0 };
        let taken = |(at, part): (usize, &Part)| match part.stage {
            Stage::Asked => admitting.nodes.get(&at).map_or(0, |node| node.admitted.len()),
            Stage::Proving(_) | Stage::Merging | Stage::Counts => part.counting.len(),
            Stage::Empty(_) | Stage::Dropped(_) => 0,
        };
        self.parts.iter().enumerate().map(taken).sum()
    }

    /// Whether nodes do not wait for clients that are away for longer than the grace: the round has enough updates, or
    /// other clients can be drawn in their place.
    fn has_enough(&self) -> bool {
        let draws_others = self.drawing.as_ref().is_some_and(Drawing::is_of_some);
        draws_others || self.taken() >= self.plan.enough.max(1) as usize
    }

    /// Admits updates that wait, as far as the goal allows. When the goal is reached, ends the batch. When the round has
    /// enough updates, all nodes learn it. `answered`: the part whose node has just answered.
    pub(super) fn admit(&mut self, answered: Option<usize>) {
        let goal = self.drawing.as_ref().map_or(0, |drawing| drawing.goal());
        let mut room = goal.saturating_sub(self.taken());
        let Some(admitting) = self.admitting.as_mut().filter(|admitting| !admitting.is_last) else { return };
        let is_asked = |parts: &[Part], at: usize| parts[at].stage == Stage::Asked;
        admitting.waiting.retain(|(at, _)| is_asked(&self.parts, *at));
        let mut fresh: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        while room > 0 {
            let Some((at, client)) = admitting.waiting.pop_front() else { break };
            if let Some(node) = admitting.nodes.get_mut(&at) {
                node.admitted.insert(client.clone());
            }
            fresh.entry(at).or_default().push(client);
            room -= 1;
        }
        if room == 0 {
            return self.end_admitting();
        }
        if let Some(at) = answered {
            let waits = admitting.nodes.get(&at).is_some_and(|node| node.requests > 0 || node.is_over);
            if !waits && is_asked(&self.parts, at) {
                fresh.entry(at).or_default();
            }
        }
        if self.has_enough() {
            for at in self.parts_to_tell() {
                fresh.entry(at).or_default();
            }
        }
        for (at, clients) in fresh {
            self.ask_for_arrivals(at, clients, false);
        }
    }

    /// The parts whose nodes run their rounds, and do not know yet that the round has enough updates.
    fn parts_to_tell(&self) -> Vec<usize> {
        let nodes = self.admitting.iter().flat_map(|admitting| &admitting.nodes);
        let untold = nodes.filter(|(at, node)| {
            !node.knows_enough && !node.is_over && self.parts[**at].stage == Stage::Asked
        });
        untold.map(|(at, _)| *at).collect()
    }

    /// Tells all nodes that run their rounds that no other updates of this batch will be folded.
    fn end_admitting(&mut self) {
        let Some(admitting) = &mut self.admitting else { return };
        admitting.is_last = true;
        let admitted =
            |at: &usize| admitting.nodes.get(at).map(|node| node.admitted.iter().cloned().collect());
        let parts: Vec<usize> = admitting.nodes.keys().copied().collect();
        let asked = parts.into_iter().filter(|at| self.parts[*at].stage == Stage::Asked);
        let asked: Vec<(usize, Vec<String>)> = asked.filter_map(|at| Some((at, admitted(&at)?))).collect();
        for (at, clients) in asked {
            self.ask_for_arrivals(at, clients, true);
        }
    }

    /// The clients that may still deliver after a batch that the root has ended, by node. They leave their parts.
    pub(super) fn take_going_on(&mut self) -> BTreeMap<String, Vec<String>> {
        let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let Some(admitting) = self.admitting.as_ref().filter(|admitting| admitting.is_last) else {
            return all;
        };
        for part in &mut self.parts[admitting.first..] {
            let lost = self.nodes.iter().any(|known| known.name == part.node && known.loss.is_some());
            if lost || !matches!(part.stage, Stage::Counts | Stage::Empty(_)) {
                continue;
            }
            let mut going_on = std::mem::take(&mut part.going_on);
            going_on.retain(|client| !self.ended.contains(client));
            if !going_on.is_empty() {
                part.clients.retain(|client| !going_on.contains(client));
                all.entry(part.node.clone()).or_default().extend(going_on);
            }
        }
        all
    }
}
