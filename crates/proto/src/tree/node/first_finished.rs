//! A top at one node: it begins with its own sums, takes those of the other nodes one after the other, and
//! computes the mean.

use std::collections::{BTreeMap, BTreeSet};

use thalweg_wire::tree::{Answer, MeanAnswer, PeerRequest, Statement};

use super::{AggregatorNode, AggregatorStep, RequestId, Top};

/// The node's state in the fold of all nodes' sums.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    stage: Stage,
    /// The nodes whose sums the top has.
    inside: BTreeSet<String>,
    /// Requests that are answered once the node has connected to the address.
    joining: BTreeMap<String, RequestId>,
}

#[derive(Debug, Default)]
enum Stage {
    /// It is not the top.
    #[default]
    Apart,
    /// Its own sums are being added.
    Starting { request: RequestId, work: u32 },
    /// It is the top, and nothing is in progress.
    Leading,
    /// It has asked another node for its sums.
    Asking { request: RequestId, ask: u32, node: String, claim: Statement },
    /// The sums of another node are being added.
    Merging { request: RequestId, work: u32, node: String },
    /// The mean is being computed.
    Computing { request: RequestId, work: u32 },
}

impl Gathering {
    /// Gives up all work in progress. Returns the root's requests that it was for, and the requests to other nodes.
    pub fn end(&mut self) -> (Vec<RequestId>, Vec<u32>) {
        let mut asks = Vec::new();
        let mut requests: Vec<RequestId> = std::mem::take(&mut self.joining).into_values().collect();
        self.inside.clear();
        match std::mem::take(&mut self.stage) {
            Stage::Apart | Stage::Leading => {}
            Stage::Asking { request, ask, .. } => {
                asks.push(ask);
                requests.push(request);
            }
            Stage::Starting { request, .. }
            | Stage::Merging { request, .. }
            | Stage::Computing { request, .. } => requests.push(request),
        }
        (requests, asks)
    }
}

impl AggregatorNode {
    fn gathering(&mut self) -> Option<&mut Gathering> {
        match &mut self.top {
            Top::FirstFinished(gathering) => Some(gathering),
            Top::Sharded(_) => None,
        }
    }

    fn enter(&mut self, stage: Stage) {
        if let Some(gathering) = self.gathering() {
            gathering.stage = stage;
        }
    }

    pub(super) fn become_top(&mut self, request: RequestId, claim: Statement) {
        self.end_work("the root has chosen the top anew");
        if !self.holds_sums {
            return self.answer(request, Answer::Refusable(Some("it has no sums".into())));
        }
        self.step(AggregatorStep::BeginSums { part: None });
        let work = self.next_work();
        self.step(AggregatorStep::MergeOwn { work, claim });
        self.enter(Stage::Starting { request, work });
    }

    pub(super) fn send_sums(&mut self, request: RequestId, to: String) {
        let Some(gathering) = self.gathering() else { return };
        let before = gathering.joining.insert(to.clone(), request);
        if let Some(before) = before {
            self.refuse(before, "the root has asked again");
        }
        self.step(AggregatorStep::Join { address: to });
    }

    pub(super) fn gives_to(&mut self, address: &str, outcome: Result<(), String>) {
        let Some(request) = self.gathering().and_then(|gathering| gathering.joining.remove(address)) else {
            return;
        };
        match outcome {
            Ok(()) => self.answer(request, Answer::Nothing),
            Err(reason) => self.refuse(request, &reason),
        }
    }

    pub(super) fn receive_sums(&mut self, request: RequestId, node: String, claim: Statement) {
        let name = self.name.clone();
        let Some(gathering) = self.gathering() else { return };
        if !matches!(gathering.stage, Stage::Leading) {
            return self.refuse(request, "this node is not the top, or still takes other sums");
        }
        if node == name || gathering.inside.contains(&node) {
            return self.refuse(request, &format!("this node has the sums of {node} already"));
        }
        let ask = self.ask(PeerRequest::Sums { round: self.round, part: None }, vec![node.clone()]);
        self.enter(Stage::Asking { request, ask, node, claim });
    }

    pub(super) fn sums_arrived(&mut self, ask: u32, from: &str, answer: Result<(), String>) {
        let Some(gathering) = self.gathering() else { return };
        let Stage::Asking { request, ask: asked, node, claim } = &gathering.stage else { return };
        if *asked != ask || (answer.is_ok() && node != from) {
            return;
        }
        let (request, node, claim) = (*request, node.clone(), *claim);
        match answer {
            Ok(()) => {
                let work = self.next_work();
                self.step(AggregatorStep::Merge { work, ask, node: node.clone(), claim });
                self.enter(Stage::Merging { request, work, node });
            }
            Err(reason) => {
                self.enter(Stage::Leading);
                self.answer(request, Answer::Refusable(Some(reason)));
            }
        }
    }

    pub(super) fn gathered(&mut self, work: u32, outcome: Result<(), String>) {
        let name = self.name.clone();
        let Some(gathering) = self.gathering() else { return };
        let refused = outcome.err();
        let (request, stage) = match &gathering.stage {
            Stage::Starting { request, work: awaited } if *awaited == work => {
                if refused.is_none() {
                    gathering.inside.insert(name);
                }
                (*request, if refused.is_none() { Stage::Leading } else { Stage::Apart })
            }
            Stage::Merging { request, work: awaited, node } if *awaited == work => {
                if refused.is_none() {
                    gathering.inside.insert(node.clone());
                }
                (*request, Stage::Leading)
            }
            _ => return,
        };
        self.enter(stage);
        self.answer(request, Answer::Refusable(refused));
    }

    pub(super) fn compute_mean(&mut self, request: RequestId) {
        let leads = self.gathering().is_some_and(|gathering| matches!(gathering.stage, Stage::Leading));
        if !leads {
            return self.refuse(request, "this node is not the top, or still takes other sums");
        }
        let work = self.next_work();
        self.step(AggregatorStep::Compute { work });
        self.enter(Stage::Computing { request, work });
    }

    pub(super) fn mean_computed(&mut self, work: u32, outcome: Result<MeanAnswer, String>) {
        let Some(gathering) = self.gathering() else { return };
        let Stage::Computing { request, work: awaited } = gathering.stage else { return };
        if awaited != work {
            return;
        }
        gathering.stage = Stage::Apart;
        gathering.inside.clear();
        match outcome {
            Ok(mean) => self.step(AggregatorStep::Answer { request, answer: Answer::Mean(mean), mean: true }),
            Err(reason) => self.refuse(request, &reason),
        }
    }
}
