//! Admits updates: says which updates the nodes fold, in a round in which more clients take part than updates count.
//!
//! A node tells the root of each update that can be folded, and folds it only after the root has admitted it.
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
    /// Whether the node was told to wait only for the grace for clients that are away.
    knows_enough: bool,
    /// Whether the node has said that its batch is over.
    is_over: bool,
}

/// The state of a round that admits updates.
#[derive(Debug, Default)]
pub(super) struct Admitting {
    /// The number of the batch.
    batch: u32,
    /// The index of the batch's first part.
    first: usize,
    /// By the index of the part.
    nodes: BTreeMap<usize, AtNode>,
    /// Updates that are not admitted, in the order in which the root learned of them: the part's index, and the client.
    waiting: VecDeque<(usize, String)>,
    /// Whether no other update of this batch will be admitted.
    is_closed: bool,
    /// Nodes that have refused to tell of arrivals. They get no further batch in this round.
    refusing: BTreeSet<String>,
}

impl Admitting {
    /// Begins a batch. Returns its number.
    pub fn next_batch(&mut self) -> u32 {
        self.batch += 1;
        self.is_closed = false;
        self.waiting.clear();
        self.batch
    }

    /// Whether a node has refused to tell of arrivals.
    pub fn is_refusing(&self, node: &str) -> bool {
        self.refusing.contains(node)
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
        let clients = &self.parts[at].clients;
        // Two requests may be answered with the same arrivals.
        for Arrival(client, can_fold) in arrivals.into_iter().skip(known.seen.saturating_sub(admit.seen)) {
            known.seen += 1;
            // An update arrives once, and may then turn out to be one that cannot be folded.
            if known.seen > 2 * clients.len() || !clients.contains(&client) {
                let why = format!("its node {node} tells of clients without being asked, or too often");
                return self.drop_refusing(at, why);
            }
            if !can_fold {
                known.admitted.remove(&client);
                admitting.waiting.retain(|waiting| *waiting != (at, client.clone()));
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
            self.drop_refusing(
                at,
                format!("its node {node} does not say which updates have arrived: {reason}"),
            );
        }
    }

    /// Drops the part of a node that does not do what the root asks for. It is not waited for, and gets no further batch.
    fn drop_refusing(&mut self, at: usize, why: String) {
        let (node, ask) = (self.parts[at].node.clone(), self.parts[at].ask);
        self.drop_part(at, why);
        if let Some(ask) = ask {
            self.take_turn(ask, &node);
        }
        if let Some(admitting) = &mut self.admitting {
            admitting.refusing.insert(node);
        }
    }

    /// How many of the goal's updates are admitted already, or count.
    fn taken(&self) -> usize {
        let Some(admitting) = &self.admitting else { return 0 };
        let taken = |(at, part): (usize, &Part)| match part.stage {
            Stage::Asked => admitting.nodes.get(&at).map_or(0, |node| node.admitted.len()),
            Stage::Proving(_) | Stage::Merging | Stage::Counts => part.counting.len(),
            Stage::Empty(_) | Stage::Dropped(_) => 0,
        };
        self.parts.iter().enumerate().map(taken).sum()
    }

    /// Whether nodes wait only for the grace for clients that are away: the round has enough updates, or other clients can
    /// be drawn in their place.
    fn has_enough(&self) -> bool {
        let draws_others = self.drawing.as_ref().is_some_and(Drawing::draws_clients);
        draws_others || self.taken() >= self.plan.enough.max(1) as usize
    }

    /// Admits updates that wait, as far as the goal allows. When the goal is reached, ends the batch. When the round has
    /// enough updates, all nodes learn it. `answered`: the part whose node has just answered.
    pub(super) fn admit(&mut self, answered: Option<usize>) {
        let goal = self.drawing.as_ref().map_or(0, |drawing| drawing.goal());
        let mut room = goal.saturating_sub(self.taken());
        let Some(admitting) = self.admitting.as_mut().filter(|admitting| !admitting.is_closed) else {
            return;
        };
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
        admitting.is_closed = true;
        let admitted =
            |at: &usize| admitting.nodes.get(at).map(|node| node.admitted.iter().cloned().collect());
        let parts: Vec<usize> = admitting.nodes.keys().copied().collect();
        let asked = parts.into_iter().filter(|at| self.parts[*at].stage == Stage::Asked);
        let asked: Vec<(usize, Vec<String>)> = asked.filter_map(|at| Some((at, admitted(&at)?))).collect();
        for (at, clients) in asked {
            self.ask_for_arrivals(at, clients, true);
        }
    }

    /// The clients that may still deliver in a further batch, by node. They leave their parts.
    ///
    /// These are the clients of nodes whose batch the root has ended. A node that has ended its batch by itself waited for
    /// its clients as long as it had to, unless it was told that the round had enough updates, and some were lost since.
    pub(super) fn take_going_on(&mut self) -> BTreeMap<String, Vec<String>> {
        let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let has_enough = self.has_enough();
        let Some(admitting) = &self.admitting else { return all };
        for (at, part) in self.parts.iter_mut().enumerate().skip(admitting.first) {
            let knew_enough = admitting.nodes.get(&at).is_some_and(|node| node.knows_enough);
            let may_go_on = admitting.is_closed || knew_enough && !has_enough;
            let lost = self.nodes.iter().any(|known| known.name == part.node && known.loss.is_some());
            if lost || !may_go_on || !matches!(part.stage, Stage::Counts | Stage::Empty(_)) {
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
