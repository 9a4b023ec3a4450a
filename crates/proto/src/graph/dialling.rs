//! The links that a node dials. `place` is the neighbour's index, which [`Node::meet`] returns.

use thalweg_wire::control::{Control, Holding, Nonce, Proof, Welcome};

use super::node::Node;
use super::peer::{Peer, Way};
use super::terms::Neighbour;
use crate::session::{ClientAction, Failure, ServerEvent};
use crate::{Span, Time};

impl Node {
    /// Indices of the dialled neighbours for which there is an action to do.
    pub fn dials_waiting(&self) -> Vec<usize> {
        let waiting = |peer: &Peer| matches!(&peer.way, Way::Dialled(dial) if dial.has_action());
        let places = self.peers.iter().enumerate();
        places.filter(|(_, peer)| waiting(peer)).map(|(place, _)| place).collect()
    }

    /// Takes the next action for a neighbour that is dialled.
    pub fn poll_dial(&mut self, place: usize) -> Option<ClientAction<()>> {
        self.dial(place)?.poll_action()
    }

    /// Reports that the link is up. `nonce` must be fresh random bytes; `ordered`: the link keeps the order
    /// of messages and chunks.
    pub fn dial_connected(&mut self, now: Time, place: usize, nonce: Nonce, ordered: bool) {
        if let Some(dial) = self.dial(place) {
            dial.connected(now, nonce, ordered);
        }
    }

    /// Reports that the neighbour could not be reached.
    pub fn dial_unreachable(&mut self, now: Time, place: usize, why: Failure, may_retry: bool) {
        if let Some(dial) = self.dial(place) {
            dial.unreachable(now, why, may_retry);
        }
    }

    /// Reports that the link has ended.
    pub fn dial_closed(&mut self, now: Time, place: usize, reason: &str) {
        if let Some(dial) = self.dial(place) {
            dial.closed(now, reason);
            self.lost(now, place, reason);
        }
    }

    /// Reports that nothing gets through at the moment, and that the neighbour is not the cause.
    pub fn dial_held(&mut self, now: Time, place: usize) {
        if let Some(dial) = self.dial(place) {
            dial.held(now);
        }
    }

    /// Reports that the proof is made; `None` if the neighbour wanted none.
    pub fn dial_proven(&mut self, now: Time, place: usize, proof: Option<Proof>) {
        let holding = Holding::Node(self.config.alike);
        if let Some(dial) = self.dial(place) {
            dial.proven(now, proof, holding);
        }
    }

    /// This node's nonce of the present connection, for the proof.
    pub fn dial_nonce(&self, place: usize) -> Option<Nonce> {
        match &self.peers.get(place)?.way {
            Way::Dialled(dial) => dial.nonce(),
            Way::Accepted(_) => None,
        }
    }

    /// The Welcome that the neighbour sent.
    pub fn dial_welcome(&self, place: usize) -> Option<&Welcome> {
        match &self.peers.get(place)?.way {
            Way::Dialled(dial) => dial.welcome(),
            Way::Accepted(_) => None,
        }
    }

    /// Whether nothing more will happen with this neighbour. True if it is not dialled.
    pub fn dial_is_done(&self, place: usize) -> bool {
        match self.peers.get(place).map(|peer| &peer.way) {
            Some(Way::Dialled(dial)) => dial.is_done(),
            _ => true,
        }
    }

    /// Leaves this neighbour for good.
    pub fn dial_leave(&mut self, place: usize, reason: &str) {
        if let Some(dial) = self.dial(place) {
            dial.leave(reason);
            self.peers[place].met = false;
        }
    }

    /// Handles a message from a neighbour that is dialled.
    pub fn dial_control(&mut self, now: Time, place: usize, message: Control) {
        let farewell = match &message {
            Control::Bye { reason } | Control::Refused { reason, .. } => Some(format!("left: {reason}")),
            _ => None,
        };
        let (job, ours) = (self.config.job, self.config.layout.clone());
        let Some(dial) = self.dial(place) else { return };
        match dial.control(now, message) {
            ServerEvent::Nothing | ServerEvent::Lost => {
                if let Some(reason) = farewell {
                    self.lost(now, place, &reason);
                }
            }
            ServerEvent::Welcomed => {
                let ordered = dial.is_ordered();
                let Some(welcome) = dial.welcome() else { return };
                // The neighbour checks this node's Hello; this node checks the neighbour's Welcome.
                let why = match ours.difference(&welcome.layout) {
                    None if welcome.job == job => return self.met(place, ordered),
                    None => Failure::hinted("the neighbour has another job", "start both with the same plan"),
                    Some(difference) => dial.mismatch(&difference),
                };
                dial.act(ClientAction::Close);
                dial.finish(Err(why));
            }
            ServerEvent::Message(message) => self.neighbour_says(now, place, message),
        }
    }

    /// Reports that this node's model was sent to a neighbour that is dialled; `Err` says why not.
    pub fn dial_sent(&mut self, now: Time, place: usize, round: u32, outcome: Result<Span, String>) {
        if self.resolve(Neighbour::Dialled(place)).is_some() {
            self.was_sent(now, place, round, outcome);
        }
    }

    /// When the driver must call [`Node::dial_timeout`] at the latest.
    pub fn dial_poll_timeout(&self, place: usize) -> Option<Time> {
        match &self.peers.get(place)?.way {
            Way::Dialled(dial) => dial.poll_timeout(),
            Way::Accepted(_) => None,
        }
    }

    /// Handles the link's timers that are due at `now`.
    pub fn dial_timeout(&mut self, now: Time, place: usize) {
        let Some(dial) = self.dial(place) else { return };
        if let Err(reason) = dial.timeout(now) {
            self.dial_closed(now, place, &reason);
        }
    }
}
