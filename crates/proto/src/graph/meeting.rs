//! How neighbours connect: who dials, who is let in, what both must have in common, and what happens when a link ends.

use thalweg_wire::control::{Alike, Control, Hello, Holding, Nonce, Purpose, Refusal, Welcome};

use super::node::{Node, Stage};
use super::peer::{Peer, Way};
use super::terms::{Neighbour, NodeAction, NodeStep};
use crate::session::{Action, ClientAction, ClientConfig, Dial, LinkId, MemberEvent, Traffic};
use crate::{micros, Time};

/// A neighbour is dialled for as long as the node lives.
const TIMEOUT: Time = Time::from_secs(100 * 365 * 24 * 3600);

impl Node {
    /// Adds a neighbour. Returns its place, and whether this node dials it: the lower name dials. The actions for a
    /// neighbour that is dialled come from [`Node::poll_dial`]. `seed` spreads the retries.
    ///
    /// # Errors
    /// For a name that nobody can have, or our own.
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

    /// The link of a neighbour that dials, if it has one.
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

    /// Whether a neighbour has said that it has met this node. From then on it knows what to do with each chunk from the
    /// chunk's header alone: chunks need not wait for any message. Before, they would overtake the Welcome.
    pub fn is_known_to(&self, who: Neighbour) -> bool {
        self.resolve(who).is_some_and(|place| self.peers[place].knows_us)
    }

    /// Says something to a neighbour that is there.
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
        // What went both ways of the iteration that is swapped or mixed is agreed on already.
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

    /// Why no honest neighbour says this. Otherwise one neighbour could move this node to the end of the job.
    fn contradiction(&self, place: usize, message: &Control) -> Option<String> {
        let (peer, last) = (&self.peers[place], self.last());
        match *message {
            Control::Closed { parcel } | Control::End { parcel, .. } if parcel > last => Some(format!(
                "{:?} says that it is at iteration {parcel}, and the last one is {last}",
                peer.name
            )),
            // A node leaves out iterations before it sends its first model, and never after.
            Control::Closed { parcel } if peer.begun > 0 && parcel > peer.begun => Some(format!(
                "{:?} leaves out iteration {parcel}, although it has sent a model of iteration {}",
                peer.name, peer.begun
            )),
            _ => None,
        }
    }

    /// Ends the link of a neighbour that broke the rules.
    fn expel(&mut self, now: Time, place: usize, reason: &str) {
        if let Some(link) = self.link_of(place) {
            return self.refuse(now, link, Refusal::Protocol, reason);
        }
        if let Some(dial) = self.dial(place) {
            dial.send(Control::Bye { reason: reason.into() });
            dial.act(ClientAction::Close);
            // This node goes on with its other neighbours, so for the driver this is no failure.
            dial.finish(Ok(reason.into()));
        }
        self.lost(now, place, reason);
    }

    /// Ends a neighbour's link, which may be made anew.
    pub(super) fn hang_up(&mut self, now: Time, place: usize, reason: &str) {
        match self.link_of(place) {
            Some(link) => self.refuse(now, link, Refusal::Liveness, reason),
            None => {
                self.dial_act(place, ClientAction::Close);
                self.dial_closed(now, place, reason);
            }
        }
    }

    /// A neighbour says something of models.
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
                peer.knows_us = true; // it says this first when it has met us
                peer.from = peer.from.max(parcel.saturating_add(1));
                self.advance(now);
            }
            _ => {}
        }
    }
}

/// Links that were accepted.
impl Node {
    /// Whether the node at the other end has been let in, and not out again.
    pub fn is_member(&self, link: LinkId) -> bool {
        self.roster.member_at(link).is_some()
    }

    /// Whether it was reported already why the peer of this link, which has ended, was not let in. To be asked once.
    pub fn take_reported(&mut self, link: LinkId) -> bool {
        self.roster.take_reported(link)
    }

    /// Whether there is something to do for links that were accepted, or for the node itself.
    pub fn has_action(&self) -> bool {
        self.roster.has_action()
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<NodeAction> {
        self.roster.poll_action()
    }

    /// A link was accepted. `nonce` must be fresh random bytes.
    pub fn connected(&mut self, now: Time, link: LinkId, nonce: Nonce, ordered: bool) {
        self.roster.open(now, link, nonce, ordered);
    }

    /// What the link's counters say now.
    pub fn observe(&mut self, link: LinkId, traffic: Traffic) {
        self.roster.observe(link, traffic);
    }

    /// Nothing gets through on this link at the moment, for no fault of its peer.
    pub fn held(&mut self, now: Time, link: LinkId) {
        self.roster.held(now, link);
    }

    /// A message has come on a link that was accepted.
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

    /// The place of whoever says Hello, if it is a neighbour that dials.
    fn expected(&self, name: &str) -> Result<usize, (Refusal, String)> {
        let place = self.roster.named(name).and_then(|number| self.numbers.get(&number).copied());
        // This node may not have met that neighbour yet, so the refusal is one after which the peer tries again.
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

    /// A link that was accepted has ended.
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

    /// The node leaves: whoever dialled it is told, and nobody is let in any more. Those it dials are told by
    /// [`Node::dial_leave`].
    pub fn finish(&mut self, now: Time, reason: &str) {
        self.roster.finish(reason);
        for link in self.roster.links() {
            self.roster.act(Action::Cancel { link, parcel: None });
            self.roster.send(link, Control::Bye { reason: reason.into() });
            self.drop_link(now, link, &format!("this node has left: {reason}"));
            self.roster.close(link);
        }
    }

    /// A neighbour's process has ended for good: that ends its link.
    pub fn forget(&mut self, now: Time, name: &str, why: &str) {
        let place = self.roster.named(name).and_then(|number| self.numbers.get(&number).copied());
        if let Some(link) = place.and_then(|place| self.link_of(place)) {
            self.drop_link(now, link, why);
            self.roster.close(link);
        }
    }

    /// Neighbours that were here and are not, each with why its link ended and whether it left for good.
    pub fn departed(&self) -> impl Iterator<Item = (&str, &str, bool)> {
        self.roster.departed()
    }
}

/// Whether two nodes may average, as far as the digests say.
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
