//! The links that a node dials.

use thalweg_wire::control::{Control, Holding};

use super::node::Node;
use super::peer::{Peer, Way};
use super::terms::Neighbour;
use crate::session::{ClientAction, ClientMachine, Dial, Failure};
use crate::{Span, Time};

/// A node, seen from its link to one neighbour. The machine does nothing if the neighbour dials this node.
pub struct DialledNeighbour<'a> {
    node: &'a mut Node,
    /// The neighbour's index, which [`Node::meet`] returns.
    index: usize,
}

impl Node {
    /// Indices of the dialled neighbours for which there is an action to do.
    pub fn dials_waiting(&self) -> Vec<usize> {
        let waiting = |peer: &Peer| matches!(&peer.way, Way::Dialled(dial) if dial.has_action());
        let peers = self.peers.iter().enumerate();
        peers.filter(|(_, peer)| waiting(peer)).map(|(index, _)| index).collect()
    }

    /// The machine of the link to the neighbour with this index.
    pub fn dialled(&mut self, index: usize) -> DialledNeighbour<'_> {
        DialledNeighbour { node: self, index }
    }
}

impl DialledNeighbour<'_> {
    /// See [`Node::is_known_to`].
    pub fn knows_this_node(&self) -> bool {
        self.node.is_known_to(Neighbour::Dialled(self.index))
    }
}

impl ClientMachine for DialledNeighbour<'_> {
    type Wanted = ();

    fn dial(&self) -> Option<&Dial<()>> {
        match &self.node.peers.get(self.index)?.way {
            Way::Dialled(dial) => Some(dial),
            Way::Accepted(_) => None,
        }
    }

    fn dial_mut(&mut self) -> Option<&mut Dial<()>> {
        self.node.dial(self.index)
    }

    fn holding(&self) -> Holding {
        Holding::Node(self.node.config.alike)
    }

    /// The neighbour has checked this node's Hello; this node checks the neighbour's Welcome.
    fn welcomed(&mut self, _now: Time) {
        let (job, ours) = (self.node.config.job, self.node.config.layout.clone());
        let Some(dial) = self.node.dial(self.index) else { return };
        let ordered = dial.is_ordered();
        let Some(welcome) = dial.welcome() else { return };
        let why = match ours.difference(&welcome.layout) {
            None if welcome.job == job => return self.node.met(self.index, ordered),
            None => Failure::hinted("the neighbour has another job", "start both with the same plan"),
            Some(difference) => dial.mismatch(&difference),
        };
        dial.act(ClientAction::Close);
        dial.finish(Err(why));
    }

    fn message(&mut self, now: Time, message: Control) {
        self.node.neighbour_says(now, self.index, message);
    }

    fn link_lost(&mut self, now: Time, reason: &str) {
        self.node.lost(now, self.index, reason);
    }

    fn next_timer(&self) -> Option<Time> {
        None
    }

    /// The node handles its timers as a [`ServerMachine`](crate::ServerMachine), for this neighbour too.
    fn timers_due(&mut self, _now: Time) {}

    fn sent(&mut self, now: Time, round: u32, outcome: Result<Span, String>) {
        if self.node.resolve(Neighbour::Dialled(self.index)).is_some() {
            self.node.was_sent(now, self.index, round, outcome);
        }
    }

    fn leave(&mut self, reason: &str) {
        if let Some(dial) = self.dial_mut() {
            dial.leave(reason);
            self.node.peers[self.index].met = false;
        }
    }
}
