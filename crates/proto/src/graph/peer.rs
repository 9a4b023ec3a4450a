//! What a node knows of one neighbour.

use std::collections::BTreeMap;

use thalweg_wire::Ranges;

use super::sharing::Size;
use crate::session::Dial;
use crate::transfer::{Incoming, Outgoing};
use crate::Time;

/// Where a neighbour's chunk goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Place {
    /// Nowhere: it is late, too early, a duplicate, or not from a neighbour of this iteration.
    Nothing,
    /// Into the sums of this iteration, with this weight.
    Fold {
        /// The iteration.
        round: u32,
        /// The neighbour's weight.
        weight: f64,
    },
    /// Aside, until the waiting is over and its weight is known ([`Node::portions`](super::Node::portions)).
    Stage {
        /// The iteration.
        round: u32,
        /// The neighbour, by place.
        peer: usize,
    },
}

/// How far a neighbour's model of an iteration came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All of it.
    Whole,
    /// Part of it.
    Part,
    /// Nothing, though the neighbour was there.
    Nothing,
    /// Nothing, for the neighbour was not there.
    Away,
}

/// One neighbour's part in an iteration.
#[derive(Debug, Clone, PartialEq)]
pub struct Exchange {
    /// Its name.
    pub peer: String,
    /// Its weight.
    pub weight: f64,
    /// Bytes of its model that were used.
    pub bytes: u64,
    /// Bytes that are sent of a whole model.
    pub expected: u64,
    /// Chunks that these are.
    pub chunks_expected: u64,
    /// Chunks that were used.
    pub chunks: u64,
    /// Chunks that came more than once.
    pub duplicates: u64,
    /// Chunks that came damaged.
    pub corrupt: u64,
    /// Its chunks that were late since the last report, of whatever iteration.
    pub late: u64,
    /// When its first and its last byte came.
    pub span: Option<(Time, Time)>,
    /// The latest iteration of which it has sent anything.
    pub newest: u32,
    /// How far it came.
    pub outcome: Outcome,
}

/// A neighbour's model of one iteration, on its way in.
#[derive(Debug)]
pub(super) struct Arrival {
    pub incoming: Incoming,
    pub chunks: u64,
    /// Nothing more is waited for: it is whole, or its sender has said that this is all.
    pub over: bool,
    /// Ranges of it that we have reported to the neighbour.
    pub reported: Ranges,
}

impl Arrival {
    pub fn new(size: Size, round: u32, ordered: bool) -> Self {
        let mut incoming = Incoming::new(size.bytes);
        if let Some(part) = size.part(round) {
            incoming.came_mut().expect(part);
        }
        incoming.begin(ordered);
        Self { incoming, chunks: 0, over: false, reported: Ranges::new() }
    }
}

/// How a neighbour is reached.
#[derive(Debug)]
pub(super) enum Way {
    /// It dials: its number among the members.
    Accepted(u32),
    /// We dial.
    Dialled(Box<Dial<()>>),
}

/// A neighbour.
#[derive(Debug)]
pub(super) struct Peer {
    pub name: String,
    pub way: Way,
    /// Its link is up, and the one who was dialled has let the other in.
    pub met: bool,
    /// It has said that it has met us, so chunks need not come after what we said when the link came up.
    pub knows_us: bool,
    pub ordered: bool,
    /// The first iteration in which this node waits for it.
    pub from: u32,
    /// The latest iteration of which it has sent anything, and the latest that it has ended.
    pub newest: u32,
    pub ended: u32,
    /// The latest iteration of which it has sent anything on its present link, 0 if nothing came.
    pub begun: u32,
    pub arrivals: BTreeMap<u32, Arrival>,
    /// What it says that it has of our models, by iteration.
    pub had: BTreeMap<u32, Ranges>,
    /// The latest iteration of which it has said so.
    pub told: u32,
    /// The last iteration that was open when its link ended: what went both ways of it cannot be agreed on any more.
    pub apart: u32,
    /// Our model on its way to it, and of which iteration.
    pub out: Outgoing,
    pub sending: u32,
    /// The latest of our models that it has whole.
    pub acknowledged: u32,
    pub lag: super::timing::Lag,
    pub course: super::timing::Course,
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
            told: 0,
            apart: 0,
            out: Outgoing::default(),
            sending: 0,
            acknowledged: 0,
            lag: super::timing::Lag::default(),
            course: super::timing::Course::default(),
            late: 0,
        }
    }

    /// Whether nothing more comes of its model of this iteration.
    pub fn is_over(&self, round: u32) -> bool {
        self.arrivals.get(&round).is_some_and(|arrival| arrival.over)
    }

    /// Whether anything has come of its model of this iteration.
    pub fn is_heard(&self, round: u32) -> bool {
        self.arrivals.get(&round).is_some_and(|arrival| arrival.incoming.came().bytes() > 0)
    }

    /// Its model of this iteration, on its way in.
    pub fn arrival(&mut self, round: u32, size: Size) -> &mut Arrival {
        let ordered = self.ordered;
        self.arrivals.entry(round).or_insert_with(|| Arrival::new(size, round, ordered))
    }

    /// When chunks no longer trail behind an End.
    pub fn settles_at(&self) -> Option<Time> {
        self.arrivals.values().filter(|arrival| !arrival.over).filter_map(|a| a.incoming.settle()).min()
    }
}
