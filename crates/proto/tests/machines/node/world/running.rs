//! Advances virtual time: packets arrive, timers fire, and drivers carry out the nodes' actions.

use super::*;
use thalweg_proto::{ClientMachine, ServerMachine};

impl World {
    pub fn run_until(&mut self, what: &str, limit: Time, mut done: impl FnMut(&Self) -> bool) {
        let end = self.now + limit;
        while !done(self) {
            let next = self.next_time();
            assert!(
                next.is_some_and(|at| at <= end),
                "waiting in vain until {end:?} for: {what}; at {:?}, next {next:?}: {:?}",
                self.now,
                self.parties.iter().map(|p| (&p.name, p.done(), p.node.round())).collect::<Vec<_>>(),
            );
            self.step();
        }
    }

    pub fn pass(&mut self, time: Time) {
        let end = self.now + time;
        while self.next_time().is_some_and(|at| at <= end) {
            self.step();
        }
        self.now = end;
    }

    fn timer(party: &mut Party) -> Option<Time> {
        if !party.alive || party.hangs {
            return None;
        }
        let own = party.node.poll_timeout();
        let dials = (0..party.neighbours + 1).filter_map(|place| party.node.dialled(place).poll_timeout());
        dials.chain(own).min()
    }

    fn next_time(&self) -> Option<Time> {
        let runs = |(party, due): (&Party, &Option<Time>)| due.filter(|_| party.alive && !party.hangs);
        let timers = self.parties.iter().zip(&self.due).filter_map(runs);
        timers.chain(self.net.next_time()).min().map(|at| at.max(self.now))
    }

    fn step(&mut self) {
        let Some(next) = self.next_time() else { return };
        self.now = next;
        if let Some(event) = self.net.pop(next) {
            return self.happen(event);
        }
        for index in 0..self.parties.len() {
            if self.due[index].is_none_or(|at| at > next) {
                continue;
            }
            if Self::timer(&mut self.parties[index]).is_some_and(|at| at <= next) {
                let party = &mut self.parties[index];
                party.node.timeout(next);
                (0..party.neighbours + 1).for_each(|place| {
                    if party.node.dialled(place).poll_timeout().is_some_and(|at| at <= next) {
                        party.node.dialled(place).timeout(next);
                    }
                });
                let again = Self::timer(party);
                assert!(again.is_none_or(|at| at > next), "a timer stands still: {again:?} at {next:?}");
                self.act(index);
            }
        }
    }

    /// The node at an end of a link, and how it addresses the other node. `None` if its process was replaced.
    fn at(&self, link: LinkId, end: End) -> Option<(usize, Neighbour)> {
        let edge = &self.links[&link];
        let (index, instance, who) = match end {
            End::Client => (edge.dialer, edge.instances.0, Neighbour::Dialled(edge.place)),
            End::Server => (edge.acceptor, edge.instances.1, Neighbour::Link(link)),
        };
        let party = &self.parties[index];
        let current = match who {
            Neighbour::Dialled(place) => party.dialled.get(&place) == Some(&link),
            Neighbour::Link(_) => true,
        };
        (party.alive && !party.hangs && party.instance == instance && current).then_some((index, who))
    }

    fn happen(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Pump { link, from } => self.net.pump(now, link, from),
            Event::Cut { link } => self.net.cut(now, link, "the link broke"),
            Event::Progress { .. } | Event::Folded { .. } | Event::Judged { .. } => {}
            Event::Accept { link } => {
                let nonce = self.net.rng.nonce();
                if !self.net.delivers(link, End::Server) {
                    return;
                }
                match self.at(link, End::Server) {
                    Some((index, _)) => {
                        self.parties[index].node.connected(now, link, nonce, self.path.ordered);
                        self.act(index);
                    }
                    None => self.net.cut(now, link, "nobody listens"),
                }
            }
            Event::Arrive { link, to, frame, .. } => self.arrive(link, to, frame),
            Event::Sent { link, from, round, outcome } => {
                if let Some((index, who)) = self.at(link, from) {
                    let node = &mut self.parties[index].node;
                    match who {
                        Neighbour::Link(link) => node.sent(now, link, round, outcome),
                        Neighbour::Dialled(place) => node.dialled(place).sent(now, round, outcome),
                    }
                    self.act(index);
                }
            }
            Event::Closed { link, end, reason } => self.closed(link, end, &reason),
            Event::Connect { client, instance } => self.connect(client, instance),
            Event::Trained { client, instance, round } => {
                let party = &mut self.parties[client];
                if party.alive && party.instance == instance && round == 0 {
                    self.begin(client, 1); // its rest is over
                    self.act(client);
                } else if party.alive && party.instance == instance {
                    party.trained = Some(round);
                    party.node.hush();
                    self.act(client);
                }
            }
        }
    }

    fn arrive(&mut self, link: LinkId, to: End, frame: Frame) {
        if !self.net.delivers(link, to) {
            return;
        }
        let Some((index, who)) = self.at(link, to) else { return };
        let now = self.now;
        let party = &mut self.parties[index];
        match frame {
            Frame::Control(message) => {
                let message = Control::decode(&message).unwrap();
                match who {
                    Neighbour::Link(link) => party.node.control(now, link, message),
                    Neighbour::Dialled(place) => party.node.dialled(place).control(now, message),
                }
            }
            Frame::Chunk(header, payload) => party.chunk(now, who, &header, &payload),
        }
        self.act(index);
    }

    fn closed(&mut self, link: LinkId, end: End, reason: &str) {
        if !self.net.is_open(link, end) {
            return;
        }
        self.net.shut(self.now, link, end);
        let Some((index, who)) = self.at(link, end) else { return };
        let party = &mut self.parties[index];
        match who {
            Neighbour::Link(link) => party.node.closed(self.now, link, reason),
            Neighbour::Dialled(place) => {
                party.dialled.remove(&place);
                party.node.dialled(place).closed(self.now, reason);
            }
        }
        self.act(index);
    }

    /// `client` is the node times 2^16, plus the index that it dials.
    fn connect(&mut self, client: usize, instance: u64) {
        let (dialer, place) = (client >> 16, client & 0xffff);
        let party = &mut self.parties[dialer];
        if !party.alive || party.instance != instance || party.node.dialled(place).is_done() {
            return;
        }
        let acceptor = self.met_by(dialer, place);
        let nonce = self.net.rng.nonce();
        if self.parties[acceptor].alive && !self.is_apart(dialer, acceptor) {
            let link = self.net.connect(self.now, dialer, self.path, self.path);
            let instances = (instance, self.parties[acceptor].instance);
            self.links.insert(link, Edge { dialer, place, acceptor, instances });
            self.parties[dialer].dialled.insert(place, link);
            self.parties[dialer].node.dialled(place).connected(self.now, nonce, self.path.ordered);
        } else {
            self.parties[dialer].node.dialled(place).unreachable(self.now, "nobody listens", true);
        }
        self.act(dialer);
    }

    /// The node that was met under an index: the neighbours in order, then a node that is no neighbour.
    fn met_by(&self, index: usize, place: usize) -> usize {
        self.neighbours(index).into_iter().nth(place).unwrap_or(2)
    }

    pub(super) fn act(&mut self, index: usize) {
        loop {
            let mut quiet = true;
            while let Some(action) = self.parties[index].node.poll_action() {
                quiet = false;
                self.perform(index, action);
            }
            for place in 0..self.parties[index].neighbours + 1 {
                while let Some(action) = self.parties[index].node.dialled(place).poll_action() {
                    quiet = false;
                    self.perform_dial(index, place, action);
                }
            }
            self.go_on(index);
            if quiet && !self.parties[index].node.has_action() {
                self.due[index] = Self::timer(&mut self.parties[index]);
                return;
            }
        }
    }

    /// The application's work: begins when all nodes have met, and sends when it has trained and may send.
    fn go_on(&mut self, index: usize) {
        let now = self.now;
        let party = &mut self.parties[index];
        if !party.begun && party.node.connected_count() == party.neighbours {
            party.begun = true;
            let (client, instance) = (index, party.instance);
            if party.rest > Time::ZERO {
                self.net.at(now + party.rest, Event::Trained { client, instance, round: 0 });
            } else {
                self.begin(index, 1);
            }
        }
        let party = &mut self.parties[index];
        if let Some(round) = party.trained.filter(|_| party.node.is_hushed()) {
            party.trained = None;
            party.copy = party.model.iter().flat_map(|v| v.to_le_bytes()).collect();
            party.copied = party.node.ready(now, round).unwrap();
            party.numbers.push(party.copied);
            party.average(now);
        }
    }

    /// How late a node begins to send its model of an iteration, to all its neighbours.
    fn late(&self, index: usize, round: u32) -> Time {
        let mut rng = Rng::new((index as u64) << 32 | u64::from(round));
        if rng.chance(0.3) {
            rng.time(self.hiccup)
        } else {
            Time::ZERO
        }
    }

    fn perform(&mut self, index: usize, action: Action<NodeStep>) {
        let now = self.now;
        match action {
            Action::Send { link, message } => {
                self.net.send_control(now, link, End::Server, message.encode().unwrap());
            }
            Action::SendParcel { links, parcel, wanted, .. } => {
                let group = self.net.group();
                let frames = self.parties[index].frames(parcel, &wanted, 0);
                let late = self.late(index, parcel);
                for link in links {
                    self.net.hold_up(now, link, End::Server, late);
                    self.net.send_update(now, link, End::Server, group, parcel, frames.clone().into());
                }
            }
            Action::Cancel { link, .. } => self.net.cancel(now, link, End::Server),
            Action::Close { link } => self.net.close(now, link, End::Server),
            Action::Joined { .. } | Action::Note { .. } | Action::TurnedAway { .. } | Action::Left { .. } => {
            }
            Action::Policy(NodeStep::Forget { below }) => {
                self.parties[index].sums.retain(|&round, _| round >= below);
                self.parties[index].staged.retain(|&(round, _), _| round >= below);
            }
            Action::Policy(NodeStep::Met { .. }) => {}
            Action::Policy(NodeStep::Left { peer, reason }) => self.parties[index].left.push((peer, reason)),
            Action::Policy(NodeStep::Refused { reason, .. }) => self.parties[index].refused.push(reason),
            Action::Policy(NodeStep::Mix(mixing)) => {
                let party = &mut self.parties[index];
                let (exchanges, portions) = party.mix(mixing);
                let heard = exchanges.iter().filter(|e| e.bytes > 0).map(|e| number(&e.peer)).collect();
                let whole = exchanges.iter().all(|e| e.outcome == ExchangeState::Whole);
                let sum = |of: fn(&Exchange) -> u64| exchanges.iter().map(of).sum::<u64>() as f64;
                let used = sum(|e| e.bytes) / sum(|e| e.expected).max(1.0);
                let Mixing { fresh, timed_out, by_segments, .. } = mixing;
                party.reports.push(Report { heard, whole, fresh, timed_out, by_segments, used, portions });
                party.mixed_at.push(now);
                party.after.insert(mixing.round, party.model.clone());
                self.begin(index, mixing.round + 1);
            }
        }
    }

    fn perform_dial(&mut self, index: usize, place: usize, action: ClientAction<()>) {
        let now = self.now;
        let instance = self.parties[index].instance;
        let link = self.parties[index].dialled.get(&place).copied();
        match action {
            ClientAction::Connect { after, .. } => {
                self.net.at(now + after, Event::Connect { client: index << 16 | place, instance });
            }
            ClientAction::Prove { .. } => self.parties[index].node.dialled(place).proven(now, None),
            ClientAction::Send(message) => {
                if let Some(link) = link {
                    self.net.send_control(now, link, End::Client, message.encode().unwrap());
                }
            }
            ClientAction::SendParcel { parcel, wanted } => {
                let sender = self.parties[index].node.dialled(place).welcome().map_or(0, |w| w.sender);
                let frames = self.parties[index].frames(parcel, &wanted, sender);
                let group = self.net.group();
                let late = self.late(index, parcel);
                if let Some(link) = link {
                    self.net.hold_up(now, link, End::Client, late);
                    self.net.send_update(now, link, End::Client, group, parcel, frames.into());
                }
            }
            ClientAction::Cancel { .. } => {
                if let Some(link) = link {
                    self.net.cancel(now, link, End::Client);
                }
            }
            ClientAction::Close => {
                if let Some(link) = self.parties[index].dialled.remove(&place) {
                    self.net.close(now, link, End::Client);
                }
            }
            ClientAction::Finished(Err(why)) => self.parties[index].finished.push(why.to_string()),
            ClientAction::Finished(Ok(_)) | ClientAction::Joined(_) | ClientAction::Policy(()) => {}
        }
    }
}
