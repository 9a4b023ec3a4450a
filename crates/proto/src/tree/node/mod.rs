//! A node of an aggregation tree, as the other side of [`TreeRound`](super::TreeRound): it does what the root
//! asks for, takes the sums of other nodes, and gives them its own.
//!
//! The node is a server of tasks for the other nodes, and a member of their tasks. It asks them with
//! [`AggregatorStep::Ask`], and gets their requests with [`AggregatorNode::peer_requested`]. Its driver folds and
//! moves bytes: each step names the bytes that it is about. The driver must carry out steps on bytes in their order.
//! Steps that take long have a number, by which the driver reports their end.
//!
//! A node gives its sums only in the round to which they belong. It keeps a part of a mean that it received, and writes
//! it to its model only when the root begins a round with the last round's mean ([`AggregatorNode::begin`]). So if
//! a node is lost, the root can start over with the nodes that are left, whose state has not changed.

mod first_finished;
mod sharded;

use std::collections::VecDeque;

use thalweg_wire::tree::{Answer, Bytes, MeanAnswer, PeerRequest, Request, Statement};

use self::first_finished::Gathering;
use self::sharded::Shard;
use super::round::TopKind;

/// The number of a request to a node. Its driver chooses it, for requests of the root and of nodes alike.
pub type RequestId = u64;

/// A request to a node's driver.
#[derive(Debug, Clone, PartialEq)]
pub enum AggregatorStep {
    /// Connect to the node at this address, unless that is done, and call [`AggregatorNode::joined`].
    Join {
        /// The address.
        address: String,
    },
    /// Send a request to these nodes, with the part of the mean that was computed last if it is
    /// [`PeerRequest::Mean`]. Their answers come back with [`AggregatorNode::peer_answered`], and
    /// [`AggregatorNode::all_answered`] is called after the last.
    Ask {
        /// The request's number.
        ask: u32,
        /// The request.
        request: PeerRequest,
        /// The nodes; at least one.
        nodes: Vec<String>,
    },
    /// Do not wait for further answers to this request.
    CancelAsk {
        /// The request's number.
        ask: u32,
    },
    /// Start new sums, and drop the existing ones.
    BeginSums {
        /// The bytes of updates that the sums cover; `None`: all.
        part: Option<Bytes>,
    },
    /// Add this node's own sums, then call [`AggregatorNode::merged`].
    MergeOwn {
        /// The number by which the driver reports the end of this step.
        work: u32,
        /// This node's statement about its sums.
        claim: Statement,
    },
    /// Add the sums that came with a node's answer, then call [`AggregatorNode::merged`].
    Merge {
        /// The number by which the driver reports the end of this step.
        work: u32,
        /// The request that the node answered.
        ask: u32,
        /// The node.
        node: String,
        /// That node's statement about its sums.
        claim: Statement,
    },
    /// Compute the mean of the sums and write it to the model, then call [`AggregatorNode::computed`]. If the
    /// sums are of a part of the bytes, save these bytes of the model first.
    Compute {
        /// The number by which the driver reports the end of this step.
        work: u32,
    },
    /// Write the bytes that [`AggregatorStep::Compute`] saved to the model again, if it saved any.
    Restore,
    /// Keep the part of a mean that came with this request.
    Keep {
        /// The request.
        request: RequestId,
        /// The bytes of the model that the part covers.
        part: Bytes,
    },
    /// Write the kept parts of the mean to the model.
    Adopt,
    /// Drop the computed mean, the kept parts of a mean, and the sums of a part.
    Drop,
    /// Answer a request, with the mean that was computed last if `mean`.
    Answer {
        /// The request.
        request: RequestId,
        /// The answer.
        answer: Answer,
        /// Whether the mean comes with it.
        mean: bool,
    },
    /// Answer another node's request with this node's own sums.
    GiveSums {
        /// The request.
        request: RequestId,
        /// The bytes of updates that the sums cover; `None`: all.
        part: Option<Bytes>,
    },
    /// Refuse a request.
    Refuse {
        /// The request.
        request: RequestId,
        /// Why.
        reason: String,
    },
    /// Stop waiting for another node, whose process has ended.
    Forget {
        /// The node.
        node: String,
        /// How it was lost.
        why: String,
    },
}

/// The node's part in folding the sums of all nodes, by the kind of top.
enum Top {
    FirstFinished(Gathering),
    Sharded(Shard),
}

/// The state machine of a node in the rounds of a tree whose top is one of the nodes, or each for its part.
pub struct AggregatorNode {
    name: String,
    /// Where other nodes connect to this node.
    address: String,
    top: Top,
    /// The round that the root began last; 0: none.
    round: u32,
    /// Whether the node has the sums of that round.
    holds_sums: bool,
    last_ask: u32,
    last_work: u32,
    steps: VecDeque<AggregatorStep>,
}

impl AggregatorNode {
    /// A node that has taken part in no round. Other nodes connect to `address`; `None` for a dedicated top
    /// and for a middle node, which need nothing of the nodes.
    pub fn new(name: &str, address: &str, kind: TopKind) -> Option<Self> {
        let top = match kind {
            TopKind::Dedicated | TopKind::Middle => return None,
            TopKind::FirstFinished => Top::FirstFinished(Gathering::default()),
            TopKind::Sharded => Top::Sharded(Shard::default()),
        };
        Some(Self {
            name: name.into(),
            address: address.into(),
            top,
            round: 0,
            holds_sums: false,
            last_ask: 0,
            last_work: 0,
            steps: VecDeque::new(),
        })
    }

    /// The root begins a round. With `kept`, the round's model is the mean that the nodes have computed in the
    /// round before; without it, the root has sent the model. The round begins once the steps are done.
    ///
    /// # Errors
    /// If `kept` is true and this node lacks a part of that mean; if a later round has begun already.
    pub fn begin(&mut self, round: u32, kept: bool) -> Result<(), String> {
        if round < self.round {
            return Err(format!("round {round} is over: this node is in round {}", self.round));
        }
        let begun = match &self.top {
            Top::FirstFinished(_) if kept => Err("the root has the mean, and must send it".to_owned()),
            Top::FirstFinished(_) => Ok(()),
            Top::Sharded(shard) if kept && !shard.has_whole_mean() => {
                Err("it has not got all parts of the last mean".to_owned())
            }
            Top::Sharded(_) => Ok(()),
        };
        self.end_work("the root has begun another round");
        if let Top::Sharded(shard) = &mut self.top {
            *shard = Shard::default();
            if kept && begun.is_ok() {
                self.step(AggregatorStep::Adopt);
            }
            self.step(AggregatorStep::Drop);
        }
        (self.round, self.holds_sums) = (round, false);
        begun
    }

    /// The node's own round is over. `holds_sums`: it has sums of updates.
    pub fn ended(&mut self, holds_sums: bool) {
        self.holds_sums = holds_sums;
    }

    /// A request of the root has arrived. The answer is a step, now or later.
    pub fn requested(&mut self, request: RequestId, what: Request) {
        match (self.kind(), what) {
            (_, Request::ForgetNode { node, why }) => {
                self.step(AggregatorStep::Forget { node, why });
                self.answer(request, Answer::Nothing);
            }
            (TopKind::FirstFinished, Request::BecomeTop { claim }) => self.become_top(request, claim),
            (TopKind::FirstFinished, Request::SendSums { to }) => self.send_sums(request, to),
            (TopKind::FirstFinished, Request::ReceiveSums { node, claim }) => {
                self.receive_sums(request, node, claim);
            }
            (TopKind::FirstFinished, Request::ComputeMean) => self.compute_mean(request),
            (TopKind::Sharded, Request::FoldPart { turn, nodes, parts, addresses }) => {
                self.fold_part(request, turn, nodes, parts, addresses);
            }
            (TopKind::Sharded, Request::ComputePart { to }) => self.compute_part(request, &to),
            (TopKind::Sharded, Request::ConfirmParts) => self.confirm_parts(request),
            _ => self.refuse(request, "this node was not opened for this request"),
        }
    }

    /// A request of another node has arrived. `tensor_bytes`: the size of the tensors that came with it, if any.
    pub fn peer_requested(&mut self, request: RequestId, what: PeerRequest, tensor_bytes: Option<u64>) {
        let (PeerRequest::Sums { round, .. } | PeerRequest::Mean { round, .. }) = &what;
        if *round != self.round {
            let reason = format!("it is asked about round {round}, and is in round {}", self.round);
            return self.refuse(request, &reason);
        }
        match what {
            PeerRequest::Sums { .. } if !self.holds_sums => self.refuse(request, "it has no sums"),
            PeerRequest::Sums { part, .. } => self.step(AggregatorStep::GiveSums { request, part }),
            PeerRequest::Mean { turn, part, .. } => self.keep_part(request, turn, part, tensor_bytes),
        }
    }

    /// The node has connected to the node at this address, or cannot for this reason.
    pub fn joined(&mut self, address: &str, outcome: Result<(), String>) {
        match self.top {
            Top::FirstFinished(_) => self.gives_to(address, outcome),
            Top::Sharded(_) => self.joined_top(address, outcome),
        }
    }

    /// Another node has answered a request, or there is no answer for this reason.
    pub fn peer_answered(&mut self, ask: u32, node: &str, answer: Result<(), String>) {
        match self.top {
            Top::FirstFinished(_) => self.sums_arrived(ask, node, answer),
            Top::Sharded(_) => self.shard_answered(ask, node, answer),
        }
    }

    /// No further answer to this request will come.
    pub fn all_answered(&mut self, ask: u32) {
        match self.top {
            Top::FirstFinished(_) => self.sums_arrived(ask, "", Err("it gave no answer".into())),
            Top::Sharded(_) => self.shard_all_answered(ask),
        }
    }

    /// Sums were added, or refused for this reason. Then nothing of them was added.
    pub fn merged(&mut self, work: u32, outcome: Result<(), String>) {
        match self.top {
            Top::FirstFinished(_) => self.gathered(work, outcome),
            Top::Sharded(_) => self.shard_merged(work, outcome),
        }
    }

    /// The mean is in the model, or there is none for this reason. The sums are dropped in either case.
    pub fn computed(&mut self, work: u32, outcome: Result<MeanAnswer, String>) {
        match self.top {
            Top::FirstFinished(_) => self.mean_computed(work, outcome),
            Top::Sharded(_) => self.part_computed(work, outcome),
        }
    }

    /// What the driver has to do next.
    pub fn poll_step(&mut self) -> Option<AggregatorStep> {
        self.steps.pop_front()
    }

    /// Gives up all work in progress, and refuses the root's requests that it was for.
    fn end_work(&mut self, reason: &str) {
        let (requests, asks) = match &mut self.top {
            Top::FirstFinished(gathering) => gathering.end(),
            Top::Sharded(shard) => shard.end(),
        };
        for ask in asks {
            self.step(AggregatorStep::CancelAsk { ask });
        }
        for request in requests {
            self.refuse(request, reason);
        }
    }

    fn kind(&self) -> TopKind {
        match self.top {
            Top::FirstFinished(_) => TopKind::FirstFinished,
            Top::Sharded(_) => TopKind::Sharded,
        }
    }

    fn step(&mut self, step: AggregatorStep) {
        self.steps.push_back(step);
    }

    fn answer(&mut self, request: RequestId, answer: Answer) {
        self.step(AggregatorStep::Answer { request, answer, mean: false });
    }

    fn refuse(&mut self, request: RequestId, reason: &str) {
        self.step(AggregatorStep::Refuse { request, reason: reason.into() });
    }

    /// Asks other nodes, at least one.
    fn ask(&mut self, request: PeerRequest, nodes: Vec<String>) -> u32 {
        self.last_ask += 1;
        self.step(AggregatorStep::Ask { ask: self.last_ask, request, nodes });
        self.last_ask
    }

    fn next_work(&mut self) -> u32 {
        self.last_work += 1;
        self.last_work
    }
}
