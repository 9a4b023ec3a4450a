//! Plays the drivers' part for all parties, one event after the other.

use std::cell::Cell;
use std::collections::BTreeMap;

use thalweg_proto::{Action, ClientAction, LinkId, Partial, RoundPlan, Span, State, Time, Traffic, Verdict};
use thalweg_wire::control::Control;
use thalweg_wire::{ChunkHeader, Ranges};

use super::network::{End, Event, Frame, Network};
use super::party::{chunks, model, update, ClientParty, RoundResult, ServerParty};
use super::{prove, Profile, Setup, JOB};

/// Everything there is, at one point in virtual time.
pub struct World {
    pub now: Time,
    pub net: Network,
    pub server: ServerParty,
    pub clients: Vec<ClientParty>,
    /// Whether the server can be reached.
    pub up: bool,
    /// The server's process hangs: links stay up, nothing is read, written or timed.
    pub hangs: bool,
    /// Update bytes each process of a client made, by name and round.
    made: BTreeMap<(String, u32), Vec<u64>>,
    round: u32,
    recut: bool,
    model: Vec<u8>,
    /// The earliest timer, unless a machine has been touched since it was looked up.
    due: Cell<Option<Option<Time>>>,
}

impl World {
    pub fn new(setup: &Setup) -> Self {
        let (net, server) = (Network::new(setup.seed), ServerParty::new(setup));
        let (clients, made) = (Vec::new(), BTreeMap::new());
        Self {
            now: Time::ZERO,
            net,
            server,
            clients,
            up: true,
            hangs: false,
            made,
            round: 0,
            recut: setup.recut,
            model: Vec::new(),
            due: Cell::new(None),
        }
    }

    /// A job with these clients, all of which have joined.
    pub fn joined(setup: &Setup, profiles: impl IntoIterator<Item = Profile>) -> Self {
        let mut world = Self::new(setup);
        for profile in profiles {
            world.add(profile);
        }
        let all = world.clients.len();
        world.run("all have joined", super::SECOND * 60, |w| {
            w.server.machine.connected_clients().count() == all
        });
        world
    }

    pub fn add(&mut self, profile: Profile) -> usize {
        let instance = self.net.rng.next();
        self.clients.push(ClientParty::new(profile, instance));
        self.client_actions(self.clients.len() - 1);
        self.clients.len() - 1
    }

    pub fn start(&mut self, plan: RoundPlan) {
        let seed = plan.number;
        self.start_with(plan, seed);
    }

    /// Starts a round with another model than its number stands for.
    pub fn start_with(&mut self, plan: RoundPlan, seed: u32) {
        self.round = plan.number;
        self.model = model(seed, self.server.bytes());
        self.server.machine.start_round(self.now, plan).expect("no round is under way");
        self.server_actions();
    }

    /// Runs until the round is over.
    pub fn finish_round(&mut self, limit: Time) -> RoundResult {
        let before = self.server.results.len();
        self.run("the round is over", limit, |w| w.server.results.len() > before);
        self.server.results[before].clone()
    }

    pub fn round(&mut self, plan: RoundPlan, limit: Time) -> RoundResult {
        let before = self.server.results.len();
        self.start(plan);
        if self.server.results.len() > before {
            return self.server.results[before].clone();
        }
        self.finish_round(limit)
    }

    /// Steps until `done`, for at most `limit` of virtual time.
    pub fn run(&mut self, what: &str, limit: Time, mut done: impl FnMut(&Self) -> bool) {
        let end = self.now + limit;
        while !done(self) {
            let next = self.next_time();
            assert!(
                next.is_some_and(|at| at <= end),
                "waiting in vain until {end:?} for: {what}; next event at {next:?}; {:?}; {:?}; {:#?}",
                self.server.machine.progress_report(),
                self.server.log,
                self.clients.iter().map(|c| (&c.machine, &c.seen)).collect::<Vec<_>>(),
            );
            self.step();
        }
    }

    /// Lets this much time pass.
    pub fn pass(&mut self, time: Time) {
        let end = self.now + time;
        while self.next_time().is_some_and(|at| at <= end) {
            self.step();
        }
        self.now = end;
    }

    fn next_time(&self) -> Option<Time> {
        let due = self.due.get().unwrap_or_else(|| self.next_timer());
        self.due.set(Some(due));
        due.into_iter().chain(self.net.next_time()).min().map(|at| at.max(self.now))
    }

    fn next_timer(&self) -> Option<Time> {
        let clients = self.clients.iter().filter(|c| c.alive);
        let clients = clients.filter_map(|c| Some(c.machine.poll_timeout()?.saturating_sub(c.profile.skew)));
        clients.chain(self.server.machine.poll_timeout(self.now).filter(|_| !self.hangs)).min()
    }

    /// Goes to the next point in time at which anything happens; one event, or all timers that are due.
    pub fn step(&mut self) {
        let Some(next) = self.next_time() else { return };
        self.now = next;
        match self.net.pop(next) {
            Some(event) => self.happen(event),
            None => self.timers(),
        }
    }

    fn timers(&mut self) {
        let now = self.now;
        self.due.set(None);
        if !self.hangs && self.server.machine.poll_timeout(now).is_some_and(|at| at <= now) {
            self.server.machine.timeout(now);
            let next = self.server.machine.poll_timeout(now);
            assert!(next.is_none_or(|at| at > now), "the server's timer stands still: {next:?} at {now:?}");
            self.server_actions();
        }
        for index in 0..self.clients.len() {
            let client = &mut self.clients[index];
            let now = now + client.profile.skew;
            if client.alive && client.machine.poll_timeout().is_some_and(|at| at <= now) {
                client.machine.timeout(now);
                let next = client.machine.poll_timeout();
                assert!(next.is_none_or(|at| at > now), "a client's timer stands still: {next:?} at {now:?}");
                self.client_actions(index);
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive { link, to, frame, counted } => self.arrive(link, to, frame, counted),
            Event::Progress { link, to, bytes } => self.progress(link, to, bytes),
            Event::Pump { link, from } => self.net.pump(self.now, link, from),
            Event::Sent { link, from, round, outcome } => self.sent(link, from, round, outcome),
            Event::Accept { link } => self.accept(link),
            Event::Cut { link } => self.net.cut(self.now, link, "the link broke"),
            Event::Closed { link, end, reason } => self.closed(link, end, &reason),
            Event::Connect { client, instance } => self.connect(client, instance),
            Event::Trained { client, instance, round } => self.trained(client, instance, round),
            Event::Folded { sender } => {
                self.server.machine.folded(self.now, sender);
                self.server_actions();
            }
        }
    }

    fn connect(&mut self, index: usize, instance: u64) {
        let nonce = self.net.rng.nonce();
        let client = &mut self.clients[index];
        if !client.alive || client.instance != instance || client.machine.is_done() {
            return;
        }
        let (up, down) = client.paths();
        client.seen.connections += 1;
        let now = self.now + client.profile.skew;
        if self.up {
            client.greeted = false;
            client.link = Some(self.net.connect(self.now, index, up, down));
            client.machine.connected(now, nonce, down.ordered);
        } else {
            client.machine.unreachable(now, "nobody listens", true);
        }
        self.client_actions(index);
    }

    fn accept(&mut self, link: LinkId) {
        if self.up && !self.hangs && self.net.delivers(link, End::Server) {
            let nonce = self.net.rng.nonce();
            let ordered = self.clients[self.net.client_of(link)].profile.paths[0].0.ordered;
            self.server.machine.connected(self.now, link, nonce, ordered);
            self.server_actions();
        }
    }

    fn arrive(&mut self, link: LinkId, to: End, frame: Frame, counted: u64) {
        if !self.net.delivers(link, to) {
            return;
        }
        self.net.taken(link, to, frame.bytes());
        let index = self.net.client_of(link);
        let deaf = if to == End::Server { self.hangs } else { !self.clients[index].alive };
        if deaf {
            return;
        }
        let left = frame.bytes().saturating_sub(counted);
        let now = self.now + self.clients[index].profile.skew;
        match (frame, to) {
            (Frame::Control(message), End::Server) => {
                self.observe(link);
                let message = Control::decode(&message).expect("what was encoded");
                self.server.machine.control(self.now, link, message);
            }
            (Frame::Control(message), End::Client) => {
                let message = Control::decode(&message).expect("what was encoded");
                if let Control::Refused { reason, .. } = &message {
                    self.clients[index].seen.refused.push(reason.clone());
                }
                self.clients[index].machine.control(now, message);
            }
            (Frame::Chunk(header, payload), End::Server) => {
                self.clients[index].seen.update_chunks += 1;
                self.server.chunk(self.now, link, &header, &payload, left);
            }
            (Frame::Chunk(header, payload), End::Client) => {
                self.clients[index].chunk(now, &header, &payload, left);
            }
        }
        match to {
            End::Server => self.server_actions(),
            End::Client => self.client_actions(index),
        }
    }

    fn progress(&mut self, link: LinkId, to: End, bytes: u64) {
        if !self.net.delivers(link, to) {
            return;
        }
        self.due.set(None);
        match to {
            End::Server => self.server.machine.progress(self.now, link, bytes),
            End::Client => {
                let client = &mut self.clients[self.net.client_of(link)];
                client.machine.progress(self.now + client.profile.skew, bytes);
            }
        }
    }

    fn observe(&mut self, link: LinkId) {
        let (sent, received) = self.net.counters(link, End::Server);
        let traffic = Traffic { sent, received, copied: 0, retransmissions: None };
        self.server.machine.observe(link, traffic);
    }

    fn sent(&mut self, link: LinkId, from: End, round: u32, outcome: Result<Span, String>) {
        let index = self.net.client_of(link);
        if from == End::Server {
            self.observe(link);
            self.server.machine.sent(self.now, link, round, outcome);
            return self.server_actions();
        }
        let client = &mut self.clients[index];
        let skew = client.profile.skew;
        if client.alive {
            let outcome = outcome.map(|s| Span { start: s.start + skew, end: s.end + skew });
            client.machine.sent(round, outcome, None);
            self.client_actions(index);
        }
    }

    fn closed(&mut self, link: LinkId, end: End, reason: &str) {
        if !self.net.is_open(link, end) {
            return;
        }
        self.net.shut(self.now, link, end);
        let index = self.net.client_of(link);
        if end == End::Server {
            self.observe(link);
            self.server.dead.insert(link);
            self.server.machine.closed(self.now, link, reason);
            return self.server_actions();
        }
        let client = &mut self.clients[index];
        if client.alive && client.link == Some(link) {
            client.link = None;
            client.machine.closed(self.now + client.profile.skew, reason);
            self.client_actions(index);
        }
    }

    fn trained(&mut self, index: usize, instance: u64, round: u32) {
        let client = &mut self.clients[index];
        if !client.alive || client.instance != instance || client.machine.is_done() {
            return;
        }
        client.train(round);
        client.machine.submit(round, client.profile.samples, "{}".into()).expect("it was handed out");
        self.client_actions(index);
    }

    pub fn server_actions(&mut self) {
        self.due.set(None);
        while let Some(action) = self.server.machine.poll_action() {
            self.server_action(action);
        }
        self.server.check();
    }

    fn server_action(&mut self, action: Action) {
        let now = self.now;
        match action {
            Action::Send { link, message } => {
                assert!(!self.server.dead.contains(&link), "{message:?} for the dead link {link}");
                if let Control::Welcome(welcome) = &message {
                    let name = self.clients[self.net.client_of(link)].profile.name.clone();
                    self.server.names.insert(welcome.sender, name);
                }
                let message = message.encode().expect("a small message");
                self.net.send_control(now, link, End::Server, message);
            }
            Action::SendUpdate { links, round, wanted } => self.send_model(&links, round, &wanted),
            Action::CancelUpdate { link } => {
                assert!(!self.server.dead.contains(&link), "cancel for the dead link {link}");
                self.net.cancel(now, link, End::Server);
            }
            Action::Close { link } => {
                self.server.dead.insert(link);
                self.net.close(now, link, End::Server);
            }
            Action::Fold { sender, weight } => {
                let (made, round, nan) = (&self.made, self.round, self.nan());
                self.server.fold_staged(sender, weight, |name, bytes| {
                    let of = made.get(&(name.to_string(), round)).into_iter().flatten();
                    nan || of.into_iter().any(|&i| update(name, i, round, bytes.len()) == bytes)
                });
                self.net.at(now + self.server.folding, Event::Folded { sender });
            }
            Action::Unstage { sender } => drop(self.server.staged.remove(&sender)),
            Action::Joined { client } => self.server.log.push(format!("+{client}")),
            Action::Left { client, reason } => self.server.log.push(format!("-{client}: {reason}")),
            Action::Ended(outcome) => self.server.ended(*outcome),
        }
    }

    fn nan(&self) -> bool {
        self.clients.iter().any(|c| c.profile.nan_at.is_some())
    }

    fn send_model(&mut self, links: &[LinkId], round: u32, wanted: &Ranges) {
        let layout = self.server.layout.hash();
        let id = ChunkHeader { job: JOB, round, sender: 0, layout, offset: 0, length: 0 };
        let chunk = self.cut_at(self.server.chunk);
        let frames = chunks(&self.model, wanted, chunk, id);
        let group = self.net.group();
        for &link in links {
            assert!(!self.server.dead.contains(&link), "the model for the dead link {link}");
            self.net.send_update(self.now, link, End::Server, group, round, frames.clone());
        }
    }

    pub fn client_actions(&mut self, index: usize) {
        self.due.set(None);
        while let Some(action) = self.clients[index].machine.poll_action() {
            self.client_action(index, action);
        }
    }

    fn client_action(&mut self, index: usize, action: ClientAction) {
        let now = self.now;
        let client = &mut self.clients[index];
        let instance = client.instance;
        match action {
            ClientAction::Connect { after } => {
                self.net.at(now + after, Event::Connect { client: index, instance });
            }
            ClientAction::Prove { challenge, .. } => {
                let nonce = client.machine.nonce().expect("there is a link");
                let proof = client.profile.token.map(|t| prove(t, &challenge, &nonce, &client.profile.name));
                client.machine.proven(now + client.profile.skew, proof);
            }
            ClientAction::Send(message) => self.client_sends(index, &message),
            ClientAction::SendUpdate { round, wanted } => self.send_client_update(index, round, &wanted),
            ClientAction::CancelUpdate => {
                if let Some(link) = client.link {
                    self.net.cancel(now, link, End::Client);
                }
            }
            ClientAction::Close => {
                if let Some(link) = client.link.take() {
                    self.net.close(now, link, End::Client);
                }
            }
            ClientAction::Joined(welcome) => client.arena = vec![0; welcome.layout.bytes() as usize],
            ClientAction::Ready { round, .. } => {
                let given =
                    if round == self.round { self.model.clone() } else { model(round, client.arena.len()) };
                assert!(client.arena == given, "not the model of round {round}");
                client.seen.ready.push(round);
                self.made.entry((client.profile.name.clone(), round)).or_default().push(instance);
                let at = now + client.profile.train;
                self.net.at(at, Event::Trained { client: index, instance, round });
            }
            ClientAction::Verdict { round, verdict } => client.seen.verdicts.push((round, verdict)),
            ClientAction::Finished(outcome) => client.seen.finished = Some(outcome),
        }
    }

    fn client_sends(&mut self, index: usize, message: &Control) {
        let client = &mut self.clients[index];
        let link = client.link.unwrap_or_else(|| unreachable!("{message:?} without a link"));
        match message {
            Control::Hello(_) => {
                client.seen.hellos += 1;
                client.greeted = true;
            }
            Control::Offer { .. } => client.seen.offers += 1,
            Control::End { .. } => client.seen.ends += 1,
            _ => {}
        }
        assert!(client.greeted, "{message:?} before the Hello");
        let message = message.encode().expect("a small message");
        self.net.send_control(self.now, link, End::Client, message);
    }

    /// Where chunks are cut this time.
    fn cut_at(&mut self, chunk: u32) -> u32 {
        if !self.recut {
            return chunk;
        }
        chunk / 4 * (1 + self.net.rng.below(4) as u32)
    }

    fn send_client_update(&mut self, index: usize, round: u32, wanted: &Ranges) {
        let chunk = self.cut_at(self.server.chunk);
        let client = &self.clients[index];
        let link = client.link.expect("there is a link");
        let welcome = client.machine.welcome().expect("it was let in");
        let (sender, layout) = (welcome.sender, welcome.layout.hash());
        let id = ChunkHeader { job: JOB, round, sender, layout, offset: 0, length: 0 };
        let frames = chunks(&client.arena, wanted, chunk, id);
        let group = self.net.group();
        self.net.send_update(self.now, link, End::Client, group, round, frames);
    }

    /// Breaks a client's link.
    pub fn cut(&mut self, index: usize) {
        if let Some(link) = self.clients[index].link {
            self.net.cut(self.now, link, "the link broke");
        }
    }

    /// A client's process hangs: its link stays up, and nothing comes of it any more.
    pub fn hang(&mut self, index: usize) {
        self.clients[index].alive = false;
        self.due.set(None);
    }

    /// The server's process hangs, or goes on.
    pub fn hang_server(&mut self, hangs: bool) {
        self.hangs = hangs;
        self.due.set(None);
    }

    /// Ends a client's process; its link breaks.
    pub fn kill(&mut self, index: usize) {
        self.cut(index);
        self.clients[index].alive = false;
        self.due.set(None);
        self.clients[index].link = None;
    }

    /// The server's process dies, and a new one with the same plan takes its place.
    pub fn restart_server(&mut self, setup: &Setup) {
        for index in 0..self.clients.len() {
            self.cut(index);
        }
        self.server = ServerParty::new(setup);
        self.made.clear();
        self.server_actions();
    }

    /// Starts a client's program again, in a new process.
    pub fn restart(&mut self, index: usize) {
        let instance = self.net.rng.next();
        let old = &self.clients[index];
        let mut fresh = ClientParty::new(old.profile.clone(), instance);
        fresh.seen = old.seen.clone();
        self.clients[index] = fresh;
        self.client_actions(index);
    }

    /// Checks a round's result against what its clients made: who counts, how often, and the mean.
    pub fn check(&self, result: &RoundResult) {
        let outcome = &result.outcome;
        let bytes = self.server.bytes();
        for part in &outcome.participants {
            let sender = result.names.iter().find(|(_, n)| **n == part.client).map_or(0, |(&s, _)| s);
            let counts = result.fold.counts.get(&sender).cloned().unwrap_or_else(|| vec![0; bytes]);
            let counted = counts.iter().filter(|&&c| c > 0).count();
            assert!(counts.iter().all(|&c| c <= 1), "{} counts twice", part.client);
            match part.state {
                State::Whole => assert_eq!(counted, bytes, "{} is whole", part.client),
                State::Partial => assert!(counted > 0 && self.server.partial == Partial::Keep),
                _ => assert_eq!(counted, 0, "{part:?}"),
            }
            assert_eq!(counted as f64 / bytes as f64, part.coverage, "{part:?}");
            assert_eq!(part.state == State::Whole, part.reason.is_none(), "{part:?}");
        }
        let whole = outcome.participants.iter().filter(|p| p.state == State::Whole).count();
        assert_eq!(outcome.complete, whole >= outcome.expected as usize);
        if outcome.participants.iter().all(|p| matches!(p.state, State::Whole) || p.coverage == 0.0) {
            assert!(self.is_mean_of_some_instances(result), "the mean is not of what was sent");
        }
    }

    /// Whether the mean is that of the whole participants' updates, each of one of its processes.
    fn is_mean_of_some_instances(&self, result: &RoundResult) -> bool {
        let bytes = self.server.bytes();
        let mut sums = vec![0.0; bytes / 4];
        let mut weight = 0.0;
        for part in result.outcome.participants.iter().filter(|p| p.state == State::Whole) {
            let made = &self.made[&(part.client.clone(), result.outcome.round)];
            if made.len() > 1 && self.server.partial == Partial::Keep {
                return true; // Two processes' halves: covered by the counts.
            }
            // The last process to have got the model is the one whose update came in.
            let Some(&instance) = made.last() else { return false };
            let update = update(&part.client, instance, result.outcome.round, bytes);
            for (sum, v) in sums.iter_mut().zip(update.chunks_exact(4)) {
                *sum += part.samples as f64 * f64::from(f32::from_le_bytes([v[0], v[1], v[2], v[3]]));
            }
            weight += part.samples as f64;
        }
        let expected: Vec<f64> = sums.iter().map(|s| if weight > 0.0 { s / weight } else { 0.0 }).collect();
        expected == result.fold.mean()
    }

    /// How a client's updates fared.
    pub fn verdicts(&self, index: usize) -> &[(u32, Verdict)] {
        &self.clients[index].seen.verdicts
    }
}
