//! The state that a node keeps for each neighbour.

use std::collections::BTreeMap;

use serde::Serialize;
use thalweg_wire::Ranges;

use super::segments::Passing;
use crate::session::Dial;
use crate::transfer::{Incoming, Outgoing};
use crate::Time;

/// Where the driver puts a neighbour's chunk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Place {
    /// Nowhere: the chunk is late, too early, a duplicate, or not from a neighbour of this iteration.
    Nothing,
    /// Into the sums of this iteration, multiplied by this weight.
    Fold {
        /// The iteration's number.
        round: u32,
        /// The neighbour's weight.
        weight: f64,
    },
    /// Into a buffer until the waiting is over and the weight is known
    /// ([`Node::portions`](super::Node::portions)).
    Stage {
        /// The iteration's number.
        round: u32,
        /// The neighbour's index.
        peer: usize,
    },
    /// To the means of the current iteration.
    Mean {
        /// None of its bytes has arrived before, so the chunk may be received into its final place.
        fresh: bool,
    },
}

/// How much of a neighbour's model of an iteration was used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// All bytes that the neighbour sends.
    Whole,
    /// A part of these bytes.
    Part,
    /// Nothing, although the neighbour was connected.
    Nothing,
    /// Nothing, because the neighbour was not connected.
    Away,
}

/// One neighbour's contribution to an iteration.
#[derive(Debug, Clone, PartialEq)]
pub struct Exchange {
    /// The neighbour's name.
    pub peer: String,
    /// The weight by which the neighbour's model was multiplied.
    pub weight: f64,
    /// Bytes of the neighbour's model that were used.
    pub bytes: u64,
    /// Bytes of its model that the neighbour sends in an iteration.
    pub expected: u64,
    /// Chunks in `expected` bytes.
    pub chunks_expected: u64,
    /// Chunks that were used.
    pub chunks: u64,
    /// Chunks that arrived more than once.
    pub duplicates: u64,
    /// Chunks that arrived damaged.
    pub corrupt: u64,
    /// Chunks of this neighbour that arrived late since the last report, for any iteration.
    pub late: u64,
    /// When the first and the last byte arrived.
    pub span: Option<(Time, Time)>,
    /// The latest iteration for which the neighbour has sent a chunk or an End.
    pub newest: u32,
    /// How much of the model was used.
    pub outcome: Outcome,
}

/// One neighbour's model of one iteration, while it is received.
#[derive(Debug)]
pub(super) struct Arrival {
    pub incoming: Incoming,
    /// Chunks that brought new bytes.
    pub chunks: u64,
    /// The node waits for no more of this model: it is whole, or its sender sends no more.
    pub over: bool,
    /// Ranges of this model that the node has reported to the neighbour with a Have.
    pub reported: Ranges,
}

impl Arrival {
    /// A model of `bytes` bytes, of which its sender sends `part`; `None`: all.
    pub fn new(bytes: u64, part: Option<Ranges>, ordered: bool) -> Self {
        let mut incoming = Incoming::new(bytes);
        if let Some(part) = part {
            incoming.reassembly_mut().expect(part);
        }
        incoming.begin(ordered);
        Self { incoming, chunks: 0, over: false, reported: Ranges::new() }
    }
}

/// Which side opens the link to a neighbour.
#[derive(Debug)]
pub(super) enum Way {
    /// The neighbour dials this node. Its member number in the roster.
    Accepted(u32),
    /// This node dials the neighbour.
    Dialled(Box<Dial<()>>),
}

/// The state of one neighbour.
#[derive(Debug)]
pub(super) struct Peer {
    pub name: String,
    pub way: Way,
    /// The link is up, and the handshake is over.
    pub met: bool,
    /// The neighbour has confirmed that it has met this node. Until then, chunks must follow the messages of
    /// the handshake.
    pub knows_us: bool,
    /// Whether the link keeps the order of messages and chunks.
    pub ordered: bool,
    /// The first iteration in which this node waits for the neighbour.
    pub from: u32,
    /// The latest iteration for which the neighbour has sent a chunk or an End.
    pub newest: u32,
    /// The latest iteration for which the neighbour has sent an End.
    pub ended: u32,
    /// The latest iteration for which the neighbour has sent a chunk or an End on its present link; 0 if
    /// there is none.
    pub begun: u32,
    /// The neighbour's models that are being received, by iteration.
    pub arrivals: BTreeMap<u32, Arrival>,
    /// The ranges of this node's models that the neighbour has, as its Have messages say, by iteration.
    pub had: BTreeMap<u32, Ranges>,
    /// The latest iteration for which the neighbour has sent a Have on its present link.
    pub last_have: u32,
    /// The last iteration for which this node accepted chunks when the neighbour's link last ended. Up to
    /// this iteration, the two nodes can no longer find out what each has of the other's model, unless they
    /// had agreed on it before.
    pub apart: u32,
    /// This node's model while it is sent to the neighbour.
    pub out: Outgoing,
    /// The iteration of the model in `out`.
    pub sending: u32,
    /// The mean of the neighbour's segment, while it is received.
    pub mean: Option<Incoming>,
    /// The mean of this node's segment, while it is sent to the neighbour.
    pub passing: Passing,
    /// The latest iteration for which the neighbour needs no more of this node's model: it has sent a
    /// Received.
    pub acknowledged: u32,
    /// How much later than this node's update the neighbour's update is complete.
    pub lag: super::timing::Lag,
    /// How far the neighbour's latest update has arrived.
    pub course: super::timing::Course,
    /// Chunks that arrived late since the last report.
    pub late: u64,
}

impl Peer {
    pub fn new(name: &str, way: Way) -> Self {
        Self {
            name: name.into(),
            way,
            met: false,
            knows_us: false,
            ordered: false,
            from: 1,
            newest: 0,
            ended: 0,
            begun: 0,
            arrivals: BTreeMap::new(),
            had: BTreeMap::new(),
            last_have: 0,
            apart: 0,
            out: Outgoing::default(),
            sending: 0,
            mean: None,
            passing: Passing::default(),
            acknowledged: 0,
            lag: super::timing::Lag::default(),
            course: super::timing::Course::default(),
            late: 0,
        }
    }

    /// Whether the node waits for no more of the neighbour's model of this iteration.
    pub fn is_over(&self, round: u32) -> bool {
        self.arrivals.get(&round).is_some_and(|arrival| arrival.over)
    }

    /// Whether any byte of the neighbour's model of this iteration has been received.
    pub fn has_sent(&self, round: u32) -> bool {
        self.arrivals.get(&round).is_some_and(|arrival| arrival.incoming.reassembly().bytes() > 0)
    }

    /// When the node stops waiting for chunks that may arrive after their End.
    pub fn settles_at(&self) -> Option<Time> {
        let models = self.arrivals.values().filter(|arrival| !arrival.over).map(|arrival| &arrival.incoming);
        models.chain(&self.mean).filter_map(Incoming::settle).min()
    }
}
