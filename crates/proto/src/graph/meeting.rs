//! How neighbours connect: which node dials, which peers are let in, what both must have in common, and what
//! happens when a link ends.

use thalweg_wire::control::{Alike, Control, Hello, Holding, Nonce, Purpose, Refusal, Welcome};

use super::node::{Node, Stage};
use super::peer::{Peer, Way};
use super::terms::{Neighbour, NodeAction, NodeStep};
use crate::session::{Action, ClientAction, ClientConfig, Dial, LinkId, MemberEvent, Traffic};
use crate::{micros, Time};

/// A node goes on dialling a neighbour for as long as the node lives.
const TIMEOUT: Time = Time::from_secs(100 * 365 * 24 * 3600);

impl Node {
    /// Adds a neighbour. Returns its index, and whether the driver must now begin to dial it: the node with
    /// the lower name dials. The actions for a neighbour that is dialled come from [`Node::poll_dial`].
    /// `seed` spreads the retries of many nodes.
    ///
    /// # Errors
    /// If the name is this node's own, or is not valid.
    pub fn meet(&mut self, name: &str, seed: u64) -> Result<(usize, bool), String> {
        if name == self.config.name {
            return Err(format!("{name:?} is this node itself; give each node a name of its own"));
        }
        if let Some(place) = self.peers.iter().position(|peer| peer.name == name) {
            return Ok((place, false));
        }
        let place = self.peers.len();
        let dials = self.config.name.as_str() < name;
        let way = if dials {
            thalweg_wire::text::check_name(name)?;
            let config = ClientConfig {
                name: self.config.name.clone(),
                instance: self.config.instance,
                layout: Some(self.config.layout.clone()),
                timeout: TIMEOUT,
            };
            Way::Dialled(Box::new(Dial::new(config, Purpose::Graph, seed)))
        } else {
            let number = self.roster.reserve(name)?;
            self.numbers.insert(number, place);
            Way::Accepted(number)
        };
        self.peers.push(Peer::new(name, way));
        Ok((place, dials))
    }

    /// The link of a neighbour that dials this node, if there is one.
    pub(super) fn link_of(&self, place: usize) -> Option<LinkId> {
        match self.peers[place].way {
            Way::Accepted(number) => self.roster.link_of(number),
            Way::Dialled(_) => None,
        }
    }

    pub(super) fn dial(&mut self, place: usize) -> Option<&mut Dial<()>> {
        match &mut self.peers.get_mut(place)?.way {
            Way::Dialled(dial) => Some(dial),
            Way::Accepted(_) => None,
        }
    }

    pub(super) fn dial_act(&mut self, place: usize, action: ClientAction<()>) {
        if let Some(dial) = self.dial(place) {
            dial.act(action);
        }
    }

    /// Whether the neighbour has confirmed that it has met this node. From then on, a chunk's header alone
    /// tells it where the chunk belongs, so chunks need not wait for any message. Earlier, chunks could
    /// overtake the Welcome.
    pub fn is_known_to(&self, who: Neighbour) -> bool {
        self.resolve(who).is_some_and(|place| self.peers[place].knows_us)
    }

    /// Sends a message to a neighbour, if it is connected.
    pub(super) fn tell(&mut self, place: usize, message: Control) {
        if !self.peers[place].met {
            return;
        }
        match self.link_of(place) {
            Some(link) => self.roster.send(link, message),
            None => {
                if let Some(dial) = self.dial(place) {
                    dial.send(message);
                }
            }
        }
    }

    pub(super) fn met(&mut self, place: usize, ordered: bool) {
        let round = self.round;
        let peer = &mut self.peers[place];
        (peer.met, peer.knows_us, peer.ordered, peer.begun) = (true, false, ordered, 0);
        peer.from = round.saturating_add(1);
        (peer.sending, peer.acknowledged, peer.told) = (0, 0, 0);
        peer.out.forget();
        let name = peer.name.clone();
        self.tell(place, Control::Closed { parcel: round });
        self.roster.want(NodeStep::Met { peer: name });
    }

    pub(super) fn lost(&mut self, now: Time, place: usize, reason: &str) {
        // In these stages the two nodes have already agreed which bytes of the current iteration both have.
        let agreed = matches!(self.stage, Stage::Swapping | Stage::Mixing).then_some(self.round);
        let top = self.top();
        let peer = &mut self.peers[place];
        if !std::mem::take(&mut peer.met) {
            return;
        }
        peer.out.forget();
        peer.sending = 0;
        peer.apart = top;
        peer.had.retain(|&round, _| agreed == Some(round));
        for arrival in peer.arrivals.values_mut() {
            arrival.incoming.stop();
        }
        let (peer, reason) = (peer.name.clone(), reason.to_owned());
        self.roster.want(NodeStep::Left { peer, reason });
        self.swap();
        self.advance(now);
    }

    /// Why an honest neighbour would not send this message. Without this check, one neighbour could move this
    /// node to the end of the job.
    fn contradiction(&self, place: usize, message: &Control) -> Option<String> {
        let (peer, last) = (&self.peers[place], self.last());
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
    fn expel(&mut self, now: Time, place: usize, reason: &str) {
        if let Some(link) = self.link_of(place) {
            return self.refuse(now, link, Refusal::Protocol, reason);
        }
        if let Some(dial) = self.dial(place) {
            dial.send(Control::Bye { reason: reason.into() });
            dial.act(ClientAction::Close);
            // This node goes on with its other neighbours, so the driver must not see this as a failure.
            dial.finish(Ok(reason.into()));
        }
        self.lost(now, place, reason);
    }

    /// Ends a neighbour's link. The neighbour may connect again.
    pub(super) fn hang_up(&mut self, now: Time, place: usize, reason: &str) {
        match self.link_of(place) {
            Some(link) => self.refuse(now, link, Refusal::Liveness, reason),
            None => {
                self.dial_act(place, ClientAction::Close);
                self.dial_closed(now, place, reason);
            }
        }
    }

    /// Handles a neighbour's message about models.
    pub(super) fn neighbour_says(&mut self, now: Time, place: usize, message: Control) {
        if let Some(reason) = self.contradiction(place, &message) {
            return self.expel(now, place, &reason);
        }
        match message {
            Control::Grant { parcel, wanted } => self.granted(place, parcel, &wanted),
            Control::End { parcel, .. } => self.ended(now, place, parcel),
            Control::Received { parcel, .. } => {
                let peer = &mut self.peers[place];
                peer.acknowledged = peer.acknowledged.max(parcel.min(peer.sending));
            }
            Control::Have { parcel, got } => self.has(place, parcel, got),
            Control::Closed { parcel } => {
                let peer = &mut self.peers[place];
                peer.knows_us = true; // A node sends Closed first when it has met this node
                peer.from = peer.from.max(parcel.saturating_add(1));
                self.advance(now);
            }
            _ => {}
        }
    }
}

/// Methods for links that were accepted.
impl Node {
    /// Whether the node at the other end of this link is let in.
    pub fn is_member(&self, link: LinkId) -> bool {
        self.roster.member_at(link).is_some()
    }

    /// Whether the node has already reported why the peer of this ended link was not let in. True once.
    pub fn take_reported(&mut self, link: LinkId) -> bool {
        self.roster.take_reported(link)
    }

    /// Whether there is an action to do, for an accepted link or for the node itself.
    pub fn has_action(&self) -> bool {
        self.roster.has_action()
    }

    /// Takes the next action.
    pub fn poll_action(&mut self) -> Option<NodeAction> {
        self.roster.poll_action()
    }

    /// Reports an accepted link. `nonce` must be fresh random bytes; `ordered`: the link keeps the order of
    /// messages and chunks.
    pub fn connected(&mut self, now: Time, link: LinkId, nonce: Nonce, ordered: bool) {
        self.roster.open(now, link, nonce, ordered);
    }

    /// Reports the current values of the link's counters.
    pub fn observe(&mut self, link: LinkId, traffic: Traffic) {
        self.roster.observe(link, traffic);
    }

    /// Reports that nothing gets through on this link at the moment, and that its peer is not the cause.
    pub fn held(&mut self, now: Time, link: LinkId) {
        self.roster.held(now, link);
    }

    /// Handles a message from an accepted link.
    pub fn control(&mut self, now: Time, link: LinkId, message: Control) {
        match self.roster.control(now, link, message) {
            MemberEvent::Nothing => {}
            MemberEvent::Hello(hello) => self.hello(now, link, &hello),
            MemberEvent::Senseless(why) => self.refuse(now, link, Refusal::Protocol, why),
            MemberEvent::LayoutMismatch(how) => self.refuse(now, link, Refusal::Layout, &how),
            MemberEvent::Message(_, Control::Bye { reason }) => {
                self.drop_link(now, link, &format!("left: {reason}"));
                self.roster.close(link);
            }
            MemberEvent::Message(
                _,
                Control::Challenge(_) | Control::Welcome(_) | Control::Refused { .. },
            ) => {
                self.refuse(now, link, Refusal::Protocol, "this message is for whoever was dialled to send");
            }
            MemberEvent::Message(number, message) => {
                if let Some(place) = self.numbers.get(&number).copied() {
                    self.neighbour_says(now, place, message);
                }
            }
        }
    }

    fn hello(&mut self, now: Time, link: LinkId, hello: &Hello) {
        let layout = self.config.layout.hash();
        let admissible = self.roster.admissible(link, hello, Some(layout));
        let admissible = admissible
            .and_then(|()| self.expected(&hello.name))
            .and_then(|place| self.config.alike.check(&hello.holding, &hello.name).map(|()| place));
        let place = match admissible {
            Ok(place) => place,
            Err((Refusal::Layout, reason)) => {
                return self.roster.compare(link, hello, self.config.layout.clone(), reason);
            }
            Err((code, reason)) => {
                let grave = code == Refusal::Job && self.expected(&hello.name).is_ok();
                self.turn_away(&hello.name, &reason, grave);
                return self.refuse(now, link, code, &reason);
            }
        };
        if let Some(old) = self.link_of(place) {
            self.drop_link(now, old, "it connected anew");
            self.roster.close(old);
        }
        let (sender, _) = self.roster.enrol(now, link, hello);
        let welcome = Welcome {
            sender,
            job: self.config.job,
            layout: (*self.config.layout).clone(),
            chunk: self.config.chunk,
            heartbeat: micros(self.roster.heartbeat()),
            liveness: micros(self.config.liveness),
            stand_in: None,
            spread: None,
            allowances: Vec::new(),
        };
        self.roster.send(link, Control::Welcome(welcome));
        let ordered = self.roster.link(link).is_some_and(|served| served.session.ordered);
        self.met(place, ordered);
    }

    /// The index of the neighbour with this name, if it is one that dials this node.
    fn expected(&self, name: &str) -> Result<usize, (Refusal, String)> {
        let place = self.roster.named(name).and_then(|number| self.numbers.get(&number).copied());
        // This node may not have met that neighbour yet, so the peer may try again after this refusal.
        place.ok_or_else(|| {
            let reason = format!(
                "{name:?} is no neighbour that {:?} expects to dial it; check the graph and the names of both",
                self.config.name
            );
            (Refusal::Name, reason)
        })
    }

    /// Reports a refused peer once, however often it tries again.
    fn turn_away(&mut self, name: &str, reason: &str, grave: bool) {
        let refusal = (name.to_owned(), reason.to_owned());
        if self.turned_away.as_ref() != Some(&refusal) {
            self.turned_away = Some(refusal);
            self.roster.want(NodeStep::Refused { peer: name.into(), reason: reason.into(), grave });
        }
    }

    pub(super) fn look_at_links(&mut self, now: Time) {
        for link in self.roster.due(now) {
            if let Err(reason) = self.roster.look(now, link) {
                self.refuse(now, link, Refusal::Liveness, &reason);
            }
        }
    }

    fn refuse(&mut self, now: Time, link: LinkId, code: Refusal, reason: &str) {
        self.roster.send(link, Control::Refused { code, reason: reason.into() });
        self.drop_link(now, link, reason);
        self.roster.close(link);
    }

    /// Reports that an accepted link has ended.
    pub fn closed(&mut self, now: Time, link: LinkId, reason: &str) {
        self.drop_link(now, link, reason);
    }

    fn drop_link(&mut self, now: Time, link: LinkId, reason: &str) {
        let Some(dropped) = self.roster.drop_link(link, reason) else { return };
        if let Some((name, how)) = dropped.mismatch {
            let grave = self.expected(&name).is_ok();
            self.turn_away(&name, &format!("{name:?} is not let in: {how}"), grave);
        }
        let place = dropped.member.and_then(|number| self.numbers.get(&number).copied());
        if let Some(place) = place {
            self.lost(now, place, &dropped.reason);
        }
    }

    /// Leaves the job: sends a Bye to the neighbours that dialled this node, and lets nobody in any more.
    /// [`Node::dial_leave`] does the same for neighbours that this node dials.
    pub fn finish(&mut self, now: Time, reason: &str) {
        self.roster.finish(reason);
        for link in self.roster.links() {
            self.roster.act(Action::Cancel { link, parcel: None });
            self.roster.send(link, Control::Bye { reason: reason.into() });
            self.drop_link(now, link, &format!("this node has left: {reason}"));
            self.roster.close(link);
        }
    }

    /// Reports that a neighbour's process has ended for good. Ends its link.
    pub fn forget(&mut self, now: Time, name: &str, why: &str) {
        let place = self.roster.named(name).and_then(|number| self.numbers.get(&number).copied());
        if let Some(link) = place.and_then(|place| self.link_of(place)) {
            self.drop_link(now, link, why);
            self.roster.close(link);
        }
    }

    /// Neighbours that were connected before and are not now, each with why its link ended and whether it
    /// left for good.
    pub fn departed(&self) -> impl Iterator<Item = (&str, &str, bool)> {
        self.roster.departed()
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
