//! How neighbours connect: which node dials, which peers are let in, what both must have in common, and what
//! happens when a link ends.

use thalweg_wire::control::{Alike, Control, Hello, Holding, Purpose, Refusal};

use super::node::{Node, Stage};
use super::peer::{Peer, Way};
use super::terms::{Neighbour, NodeStep};
use crate::session::{
    ClientAction, ClientConfig, ClientMachine, Dial, Dropped, LinkId, Roster, ServerMachine,
};
use crate::transfer::Incoming;
use crate::{Span, Time};

impl Node {
    /// How long a node tries to connect to a neighbour: for as long as the node lives.
    pub const TIMEOUT: Time = Time::from_secs(100 * 365 * 24 * 3600);

    /// Adds a neighbour. Returns its index, and whether the driver must now begin to dial it: the node with
    /// the lower name dials. The actions for a neighbour that is dialled come from
    /// [`Node::dialled`].
    /// `seed` spreads the retries of many nodes.
    ///
    /// # Errors
    /// If the name is this node's own, or is not valid.
    pub fn meet(&mut self, name: &str, seed: u64) -> Result<(usize, bool), String> {
        if name == self.config.name {
            return Err(format!("{name:?} is this node itself; give each node a name of its own"));
        }
        if let Some(index) = self.peers.iter().position(|peer| peer.name == name) {
            return Ok((index, false));
        }
        let index = self.peers.len();
        let dials = self.config.name.as_str() < name;
        let way = if dials {
            thalweg_wire::text::check_name(name)?;
            let config = ClientConfig {
                name: self.config.name.clone(),
                instance: self.config.instance,
                layout: Some(self.config.layout.clone()),
                timeout: Self::TIMEOUT,
                outage: Time::ZERO,
            };
            Way::Dialled(Box::new(Dial::new(config, Purpose::Graph, seed)))
        } else {
            let number = self.roster.reserve(name)?;
            self.numbers.insert(number, index);
            Way::Accepted(number)
        };
        self.peers.push(Peer::new(name, way));
        Ok((index, dials))
    }

    /// The link of a neighbour that dials this node, if there is one.
    pub(super) fn link_of(&self, index: usize) -> Option<LinkId> {
        match self.peers[index].way {
            Way::Accepted(number) => self.roster.link_of(number),
            Way::Dialled(_) => None,
        }
    }

    pub(super) fn dial(&mut self, index: usize) -> Option<&mut Dial<()>> {
        match &mut self.peers.get_mut(index)?.way {
            Way::Dialled(dial) => Some(dial),
            Way::Accepted(_) => None,
        }
    }

    pub(super) fn dial_act(&mut self, index: usize, action: ClientAction<()>) {
        if let Some(dial) = self.dial(index) {
            dial.act(action);
        }
    }

    /// Whether the neighbour has confirmed that it has met this node. From then on, a chunk's header alone
    /// tells it where the chunk belongs, so chunks need not wait for any message. Earlier, chunks could
    /// overtake the Welcome.
    pub fn is_known_to(&self, who: Neighbour) -> bool {
        self.resolve(who).is_some_and(|index| self.peers[index].knows_us)
    }

    /// Sends a message to a neighbour, if it is connected.
    pub(super) fn tell(&mut self, index: usize, message: Control) {
        if !self.peers[index].met {
            return;
        }
        match self.link_of(index) {
            Some(link) => self.roster.send(link, message),
            None => {
                if let Some(dial) = self.dial(index) {
                    dial.send(message);
                }
            }
        }
    }

    pub(super) fn met(&mut self, index: usize, ordered: bool) {
        let round = self.round;
        let peer = &mut self.peers[index];
        (peer.met, peer.knows_us, peer.ordered, peer.begun) = (true, false, ordered, 0);
        peer.from = round.saturating_add(1);
        (peer.sending, peer.acknowledged, peer.last_have) = (0, 0, 0);
        peer.out.forget();
        (peer.mean, peer.passing) = (None, super::segments::Passing::default());
        let name = peer.name.clone();
        self.tell(index, Control::Closed { parcel: round });
        self.retry_segments();
        self.roster.want(NodeStep::Met { peer: name });
    }

    pub(super) fn lost(&mut self, now: Time, index: usize, reason: &str) {
        // In these stages the two nodes have already agreed which bytes of the current iteration both have.
        let agreed = matches!(self.stage, Stage::Swapping | Stage::Mixing).then_some(self.round);
        let top = self.top();
        let peer = &mut self.peers[index];
        if !std::mem::take(&mut peer.met) {
            return;
        }
        peer.out.forget();
        (peer.mean, peer.passing) = (None, super::segments::Passing::default());
        peer.sending = 0;
        peer.apart = top;
        peer.had.retain(|&round, _| agreed == Some(round));
        for arrival in peer.arrivals.values_mut() {
            arrival.incoming.stop();
        }
        let (peer, reason) = (peer.name.clone(), reason.to_owned());
        self.roster.want(NodeStep::Left { peer, reason });
        self.fall_back_if(now, self.round, self.weights.contains_key(&index));
        self.swap();
        self.advance(now);
    }

    /// Why an honest neighbour would not send this message. Without this check, one neighbour could move this
    /// node to the end of the job.
    fn contradiction(&self, index: usize, message: &Control) -> Option<String> {
        let (peer, last) = (&self.peers[index], self.last());
        match *message {
            Control::Closed { parcel } | Control::End { parcel, .. } if parcel > last => Some(format!(
                "{:?} says that it is at iteration {parcel}, and the last one is {last}",
                peer.name
            )),
            // A node skips iterations only before it sends its first model.
            Control::Closed { parcel } if peer.begun > 0 && parcel > peer.begun => Some(format!(
                "{:?} leaves out iteration {parcel}, although it has sent a model of iteration {}",
                peer.name, peer.begun
            )),
            _ => None,
        }
    }

    /// Ends the link of a neighbour that broke the protocol.
    fn expel(&mut self, now: Time, index: usize, reason: &str) {
        if let Some(link) = self.link_of(index) {
            return self.refuse(now, link, Refusal::Protocol, reason);
        }
        if let Some(dial) = self.dial(index) {
            dial.send(Control::Bye { reason: reason.into() });
            dial.act(ClientAction::Close);
            // This node goes on with its other neighbours, so the driver must not see this as a failure.
            dial.finish(Ok(reason.into()));
        }
        self.lost(now, index, reason);
    }

    /// Ends a neighbour's link. The neighbour may connect again.
    pub(super) fn hang_up(&mut self, now: Time, index: usize, reason: &str) {
        match self.link_of(index) {
            Some(link) => self.refuse(now, link, Refusal::Liveness, reason),
            None => {
                self.dial_act(index, ClientAction::Close);
                self.dialled(index).closed(now, reason);
            }
        }
    }

    /// Handles a neighbour's message about models.
    pub(super) fn neighbour_says(&mut self, now: Time, index: usize, message: Control) {
        if self.handle_mean_message(now, index, &message) {
            return;
        }
        if let Some(reason) = self.contradiction(index, &message) {
            return self.expel(now, index, &reason);
        }
        match message {
            Control::Grant { parcel, wanted } => self.granted(now, index, parcel, &wanted),
            Control::End { parcel, .. } => self.ended(now, index, parcel),
            Control::Received { parcel, .. } => {
                let peer = &mut self.peers[index];
                peer.acknowledged = peer.acknowledged.max(parcel.min(peer.sending));
            }
            Control::Have { parcel, got } => self.has(index, parcel, got),
            Control::Closed { parcel } => {
                let peer = &mut self.peers[index];
                peer.knows_us = true; // A node sends Closed first when it has met this node
                peer.from = peer.from.max(parcel.saturating_add(1));
                let leaves_out = peer.from > self.round && self.is_averaging(self.round);
                self.fall_back_if(now, self.round, leaves_out);
                self.advance(now);
            }
            _ => {}
        }
    }
}

/// The links that were accepted.
impl ServerMachine for Node {
    type Member = ();
    type Link = ();
    type Wanted = NodeStep;

    fn roster(&self) -> &Roster<(), (), NodeStep> {
        &self.roster
    }

    fn roster_mut(&mut self) -> &mut Roster<(), (), NodeStep> {
        &mut self.roster
    }

    fn hello(&mut self, now: Time, link: LinkId, hello: &Hello) {
        let layout = self.config.layout.hash();
        let admissible = self.roster.admissible(link, hello, Some(layout));
        let admissible = admissible
            .and_then(|()| self.expected(&hello.name))
            .and_then(|index| self.config.alike.check(&hello.holding, &hello.name).map(|()| index));
        let index = match admissible {
            Ok(index) => index,
            Err((Refusal::Layout, reason)) => {
                return self.roster.compare(link, hello, self.config.layout.clone(), reason);
            }
            Err((code, reason)) => {
                let grave = code == Refusal::Job && self.expected(&hello.name).is_ok();
                self.report_refusal(&hello.name, &reason, grave);
                return self.refuse(now, link, code, &reason);
            }
        };
        let welcome = self.roster.welcome((*self.config.layout).clone(), self.config.chunk);
        self.let_in(now, link, hello, welcome);
        let ordered = self.roster.link(link).is_some_and(|served| served.session.ordered);
        self.met(index, ordered);
    }
    fn message(&mut self, now: Time, link: LinkId, number: u32, message: Control) {
        match message {
            Control::Bye { reason } => self.end_link(now, link, &format!("left: {reason}")),
            Control::Challenge(_) | Control::Welcome(_) | Control::Refused { .. } => {
                self.refuse(
                    now,
                    link,
                    Refusal::Protocol,
                    "only the node that was dialled may send this message",
                );
            }
            message => {
                if let Some(index) = self.numbers.get(&number).copied() {
                    self.neighbour_says(now, index, message);
                }
            }
        }
    }

    fn dropped(&mut self, now: Time, dropped: Dropped<()>) {
        if let Some((name, how)) = dropped.mismatch {
            let grave = self.expected(&name).is_ok();
            self.report_refusal(&name, &format!("{name:?} is not let in: {how}"), grave);
        }
        let index = dropped.member.and_then(|number| self.numbers.get(&number).copied());
        if let Some(index) = index {
            self.lost(now, index, &dropped.reason);
        }
    }

    fn next_timer(&self) -> Option<Time> {
        self.peers.iter().filter_map(Peer::settles_at).chain(self.deadline).min()
    }

    fn timers_due(&mut self, now: Time) {
        for index in 0..self.peers.len() {
            let arrivals = self.peers[index].arrivals.iter();
            let settled =
                arrivals.filter(|(_, a)| !a.over && a.incoming.settle().is_some_and(|at| now >= at));
            for round in settled.map(|(&round, _)| round).collect::<Vec<_>>() {
                self.conclude(now, index, round);
            }
            let mean = self.peers[index].mean.as_ref();
            if mean.and_then(Incoming::settle).is_some_and(|at| now >= at) {
                self.conclude_mean(now, index);
            }
        }
        self.stop_swapping(now);
        self.advance(now);
    }

    fn sent(&mut self, now: Time, link: LinkId, round: u32, outcome: Result<Span, String>) {
        if let Some(index) = self.resolve(Neighbour::Link(link)) {
            self.was_sent(now, index, round, outcome);
        }
    }

    fn forget(&mut self, now: Time, name: &str, why: &str) {
        let index = self.roster.named(name).and_then(|number| self.numbers.get(&number).copied());
        if let Some(link) = index.and_then(|index| self.link_of(index)) {
            self.end_link(now, link, why);
        }
    }

    /// Ends the links to the neighbours that dialled this node. [`ClientMachine::leave`] ends the others.
    fn finish(&mut self, now: Time, reason: &str) {
        self.end_all_links(now, "this node has left", reason);
    }

    /// Names of the neighbours that are connected, whichever side dialled.
    fn connected_clients(&self) -> impl Iterator<Item = &str> {
        self.peers.iter().filter(|peer| peer.met).map(|peer| peer.name.as_str())
    }

    /// How many neighbours are connected, whichever side dialled.
    fn connected_count(&self) -> usize {
        self.peers.iter().filter(|peer| peer.met).count()
    }
}

impl Node {
    /// The index of the neighbour with this name, if it is one that dials this node.
    fn expected(&self, name: &str) -> Result<usize, (Refusal, String)> {
        let index = self.roster.named(name).and_then(|number| self.numbers.get(&number).copied());
        // This node may not have met that neighbour yet, so the peer may try again after this refusal.
        index.ok_or_else(|| {
            let reason = format!(
                "{name:?} is no neighbour that {:?} expects to dial it; check the graph and the names of both",
                self.config.name
            );
            (Refusal::Name, reason)
        })
    }

    /// Reports a refused peer once, however often it tries again.
    fn report_refusal(&mut self, name: &str, reason: &str, grave: bool) {
        let refusal = (name.to_owned(), reason.to_owned());
        if self.reported_refusal.as_ref() != Some(&refusal) {
            self.reported_refusal = Some(refusal);
            self.roster.want(NodeStep::Refused { peer: name.into(), reason: reason.into(), grave });
        }
    }
}

/// Whether two nodes may average: compares the digests of plan, graph and initial model.
trait Agrees {
    fn check(&self, theirs: &Holding, name: &str) -> Result<(), (Refusal, String)>;
}

impl Agrees for Alike {
    fn check(&self, theirs: &Holding, name: &str) -> Result<(), (Refusal, String)> {
        let Holding::Node(theirs) = theirs else {
            return Err((Refusal::Protocol, format!("{name:?} does not say what it is a node of")));
        };
        let start = self.start.zip(theirs.start).is_some_and(|(ours, theirs)| ours != theirs);
        let (what, hint) = if self.plan != theirs.plan {
            ("plan", "start all nodes with the same plan")
        } else if self.graph != theirs.graph {
            ("graph", "give all nodes the same graph, with the same seed")
        } else if start {
            ("initial model", "start all nodes from the same weights, with the same seed")
        } else {
            return Ok(());
        };
        Err((Refusal::Job, format!("{name:?} has another {what} than this node; {hint}")))
    }
}
