//! A top at each node, for its part of the bytes: it adds up all nodes' sums of its part, computes the mean of
//! it, and sends that to all other nodes.
//!
//! The root makes a mean in three requests to all nodes: [`Request::FoldPart`], [`Request::ComputePart`] and
//! [`Request::ConfirmParts`]. If a node is lost meanwhile, it begins another turn with the first of them.
//!
//! [`Request::FoldPart`]: thalweg_wire::tree::Request::FoldPart
//! [`Request::ComputePart`]: thalweg_wire::tree::Request::ComputePart
//! [`Request::ConfirmParts`]: thalweg_wire::tree::Request::ConfirmParts

use std::collections::{BTreeMap, BTreeSet};

use thalweg_wire::tree::{Answer, Bytes, MeanAnswer, PeerRequest, Statement};

use super::{AggregatorNode, AggregatorStep, RequestId, Top};

/// The node's state in the fold of all nodes' sums. It is made anew in each round.
#[derive(Debug, Default)]
pub(super) struct Shard {
    /// The turn that the root began last; 0: none in this round.
    turn: u32,
    /// The part of each node that has one.
    parts: BTreeMap<String, Bytes>,
    /// The parts of this turn's mean that the node has: its own, and those that others have sent.
    means: BTreeSet<Bytes>,
    stage: Stage,
    sending: Option<Sending>,
}

#[derive(Debug, Default)]
enum Stage {
    /// The node has no sums of its part.
    #[default]
    Empty,
    /// Sums of its part are being requested and added.
    Folding(Folding),
    /// The sums of all nodes for its part are added.
    Folded { part: Bytes },
    /// The mean of its part is being computed. It is to be sent to these nodes.
    Computing { request: RequestId, work: u32, part: Bytes, to: Vec<String> },
}

#[derive(Debug)]
struct Folding {
    request: RequestId,
    part: Bytes,
    /// Each node's statement about its sums.
    claims: BTreeMap<String, Statement>,
    /// The request for sums, while answers may come.
    ask: Option<u32>,
    /// The nodes that have not answered it.
    awaited: BTreeSet<String>,
    /// The nodes whose sums are being added, by the number of that work.
    merging: BTreeMap<u32, String>,
    refused: BTreeMap<String, String>,
}

/// The node's part of the mean on its way to the other nodes.
#[derive(Debug)]
struct Sending {
    /// The request that carries it, until it has all answers.
    ask: Option<u32>,
    /// The nodes that have the part.
    has: Vec<String>,
    /// The root's request that this node answers once it has all answers.
    confirm: Option<RequestId>,
}

impl Shard {
    /// Whether the node has all parts of the mean of its last turn.
    pub fn has_whole_mean(&self) -> bool {
        !self.parts.is_empty() && self.parts.values().all(|part| self.means.contains(part))
    }

    /// Gives up all work in progress. Returns the root's requests that it was for, and the requests to other nodes.
    pub fn end(&mut self) -> (Vec<RequestId>, Vec<u32>) {
        let (mut requests, mut asks) = (Vec::new(), Vec::new());
        match std::mem::take(&mut self.stage) {
            Stage::Empty | Stage::Folded { .. } => {}
            Stage::Folding(folding) => {
                requests.push(folding.request);
                asks.extend(folding.ask);
            }
            Stage::Computing { request, .. } => requests.push(request),
        }
        if let Some(sending) = self.sending.take() {
            requests.extend(sending.confirm);
            asks.extend(sending.ask);
        }
        (requests, asks)
    }
}

impl AggregatorNode {
    fn shard(&mut self) -> Option<&mut Shard> {
        match &mut self.top {
            Top::FirstFinished(_) => None,
            Top::Sharded(shard) => Some(shard),
        }
    }

    fn folding(&mut self) -> Option<&mut Folding> {
        match &mut self.shard()?.stage {
            Stage::Folding(folding) => Some(folding),
            Stage::Empty | Stage::Folded { .. } | Stage::Computing { .. } => None,
        }
    }

    pub(super) fn fold_part(
        &mut self,
        request: RequestId,
        turn: u32,
        claims: BTreeMap<String, Statement>,
        parts: BTreeMap<String, Bytes>,
        addresses: Vec<String>,
    ) {
        self.end_work("the root has begun another turn");
        self.step(AggregatorStep::Restore);
        self.step(AggregatorStep::Drop);
        let (own, claim) = (parts.get(&self.name).copied(), claims.get(&self.name).copied());
        if let Some(shard) = self.shard() {
            *shard = Shard { turn, parts, ..Shard::default() };
        }
        let Some(part) = own else {
            self.join_tops(addresses);
            return self.answer(request, Answer::Shared(BTreeMap::new()));
        };
        let Some(claim) = claim else {
            return self.refuse(request, "this node is to fold a part, and nothing is stated of its sums");
        };
        if !self.holds_sums {
            self.join_tops(addresses);
            let refused = BTreeMap::from([(self.name.clone(), "it has no sums".to_owned())]);
            return self.answer(request, Answer::Shared(refused));
        }
        self.step(AggregatorStep::BeginSums { part: Some(part) });
        let awaited: BTreeSet<String> = claims.keys().filter(|node| **node != self.name).cloned().collect();
        let sums = PeerRequest::Sums { round: self.round, part: Some(part) };
        let ask = (!awaited.is_empty()).then(|| self.ask(sums, awaited.iter().cloned().collect()));
        let work = self.next_work();
        self.step(AggregatorStep::MergeOwn { work, claim });
        let merging = BTreeMap::from([(work, self.name.clone())]);
        let refused = BTreeMap::new();
        let folding = Folding { request, part, claims, ask, awaited, merging, refused };
        if let Some(shard) = self.shard() {
            shard.stage = Stage::Folding(folding);
        }
        self.join_tops(addresses);
    }

    /// Connects to the nodes that are to get this node's sums.
    fn join_tops(&mut self, addresses: Vec<String>) {
        for address in addresses {
            if address != self.address {
                self.step(AggregatorStep::Join { address });
            }
        }
    }

    /// A top that this node cannot reach would wait for its sums in vain, so this node ends its own fold, which
    /// tells the root. If this node has no part of its own, the top reports that its sums did not come.
    pub(super) fn joined_top(&mut self, address: &str, outcome: Result<(), String>) {
        let Err(reason) = outcome else { return };
        if self.folding().is_some() {
            self.end_work(&format!("it cannot connect to {address}: {reason}"));
        }
    }

    pub(super) fn shard_answered(&mut self, ask: u32, node: &str, answer: Result<(), String>) {
        let Some(shard) = self.shard() else { return };
        if let Some(sending) = shard.sending.as_mut().filter(|sending| sending.ask == Some(ask)) {
            if answer.is_ok() {
                sending.has.push(node.into());
            }
            return;
        }
        let work = self.last_work + 1;
        let Some(folding) = self.folding().filter(|folding| folding.ask == Some(ask)) else { return };
        if !folding.awaited.remove(node) {
            return;
        }
        let claim = folding.claims.get(node).copied().unwrap_or_default();
        match answer {
            Ok(()) => {
                folding.merging.insert(work, node.into());
                self.last_work = work;
                self.step(AggregatorStep::Merge { work, ask, node: node.into(), claim });
            }
            Err(reason) => _ = folding.refused.insert(node.into(), reason),
        }
        self.end_fold();
    }

    pub(super) fn shard_all_answered(&mut self, ask: u32) {
        let Some(shard) = self.shard() else { return };
        if let Some(sending) = shard.sending.as_mut().filter(|sending| sending.ask == Some(ask)) {
            sending.ask = None;
            return self.confirm_if_over();
        }
        let Some(folding) = self.folding().filter(|folding| folding.ask == Some(ask)) else { return };
        folding.ask = None;
        for node in std::mem::take(&mut folding.awaited) {
            folding.refused.insert(node, "it gave no answer".into());
        }
        self.end_fold();
    }

    pub(super) fn shard_merged(&mut self, work: u32, outcome: Result<(), String>) {
        let Some(folding) = self.folding() else { return };
        let Some(node) = folding.merging.remove(&work) else { return };
        if let Err(reason) = outcome {
            folding.refused.insert(node, reason);
        }
        self.end_fold();
    }

    /// Answers the root once the sums of all nodes were added or refused.
    fn end_fold(&mut self) {
        let Some(folding) = self.folding() else { return };
        if !folding.awaited.is_empty() || !folding.merging.is_empty() {
            return;
        }
        let (request, part) = (folding.request, folding.part);
        let refused = std::mem::take(&mut folding.refused);
        if let Some(shard) = self.shard() {
            // Without the sums of all nodes there is no mean.
            shard.stage = if refused.is_empty() { Stage::Folded { part } } else { Stage::Empty };
        }
        self.answer(request, Answer::Shared(refused));
    }

    pub(super) fn compute_part(&mut self, request: RequestId, to: &[String]) {
        let to: Vec<String> = to.iter().filter(|node| **node != self.name).cloned().collect();
        let work = self.last_work + 1;
        let Some(shard) = self.shard() else { return };
        let Stage::Folded { part } = shard.stage else {
            return self.refuse(request, "this node has no part of the round's sums");
        };
        shard.stage = Stage::Computing { request, work, part, to };
        self.last_work = work;
        self.step(AggregatorStep::Compute { work });
    }

    pub(super) fn part_computed(&mut self, work: u32, outcome: Result<MeanAnswer, String>) {
        let round = self.round;
        let Some(shard) = self.shard() else { return };
        let Stage::Computing { request, work: awaited, part, to } = &mut shard.stage else { return };
        if *awaited != work {
            return;
        }
        let (request, part, to) = (*request, *part, std::mem::take(to));
        shard.stage = Stage::Empty;
        let mean = match outcome {
            Ok(mean) => mean,
            Err(reason) => return self.refuse(request, &reason),
        };
        shard.means.insert(part);
        let turn = shard.turn;
        self.step(AggregatorStep::Answer { request, answer: Answer::Mean(mean), mean: true });
        let ask = (!to.is_empty()).then(|| self.ask(PeerRequest::Mean { round, turn, part }, to));
        if let Some(shard) = self.shard() {
            shard.sending = Some(Sending { ask, has: Vec::new(), confirm: None });
        }
    }

    pub(super) fn confirm_parts(&mut self, request: RequestId) {
        let Some(sending) = self.shard().and_then(|shard| shard.sending.as_mut()) else {
            return self.refuse(request, "this node has sent no part of a mean");
        };
        let before = sending.confirm.replace(request);
        if let Some(before) = before {
            self.refuse(before, "the root has asked again");
        }
        self.confirm_if_over();
    }

    fn confirm_if_over(&mut self) {
        let Some(sending) = self.shard().and_then(|shard| shard.sending.as_mut()) else { return };
        if sending.ask.is_some() {
            return;
        }
        if let Some(request) = sending.confirm.take() {
            let has = sending.has.clone();
            self.answer(request, Answer::Delivered(has));
        }
    }

    /// Keeps a part of the mean that another node has sent.
    pub(super) fn keep_part(
        &mut self,
        request: RequestId,
        turn: u32,
        part: Bytes,
        tensor_bytes: Option<u64>,
    ) {
        let name = self.name.clone();
        let Some(shard) = self.shard() else {
            return self.refuse(request, "this node was not opened for this request");
        };
        if turn != shard.turn {
            return self.refuse(request, "a part of a mean came too late");
        }
        let is_of_another = shard.parts.iter().any(|(node, of)| *of == part && *node != name);
        if !is_of_another || part.0 > part.1 || tensor_bytes.is_none_or(|bytes| bytes < part.1 - part.0) {
            return self.refuse(request, "a part of a mean came that is none of this model");
        }
        shard.means.insert(part);
        self.step(AggregatorStep::Keep { request, part });
        self.answer(request, Answer::Nothing);
    }
}
