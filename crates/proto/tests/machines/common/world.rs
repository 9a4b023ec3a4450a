//! All parties and the network at one moment of virtual time, and the steps that advance it.

use std::cell::Cell;
use std::collections::BTreeMap;

use thalweg_proto::{ClientMachine, RoundPlan, ServerMachine, Time, Verdict, Version};
use thalweg_wire::checksum;

use super::network::Network;
use super::party::{model, ClientParty, RoundResult, ServerParty};
use super::{Profile, Setup};

/// The versions of models that are sent as differences. The machines know nothing of values, so a difference here is
/// the exclusive or of two models' bytes.
#[derive(Default)]
pub struct Versions {
    pub number: u32,
    pub difference: Vec<u8>,
    /// How often clients got a difference, and how often the whole model.
    pub ready: (u32, u32),
}

impl Versions {
    fn next(&mut self, before: &[u8], next: &[u8]) -> Version {
        self.number += 1;
        self.difference = exclusive_or(before, next);
        Version { number: self.number, checksum: checksum(next), has_difference: !before.is_empty() }
    }
}

pub fn exclusive_or(one: &[u8], other: &[u8]) -> Vec<u8> {
    one.iter().zip(other).map(|(one, other)| one ^ other).collect()
}

/// All parties and the network at one moment of virtual time.
pub struct World {
    pub now: Time,
    pub net: Network,
    pub server: ServerParty,
    pub clients: Vec<ClientParty>,
    /// Whether the server can be reached.
    pub up: bool,
    /// Whether the server's process hangs: its links stay up, but it reads nothing, writes nothing and
    /// handles no timer.
    pub hangs: bool,
    /// The instances of each client's processes that made an update, by name and round.
    pub(super) made: BTreeMap<(String, u32), Vec<u64>>,
    pub(super) round: u32,
    pub(super) recut: bool,
    /// Whether the server leaves lost bytes lost, instead of asking for them again.
    pub(super) lossy: bool,
    pub(super) model: Vec<u8>,
    /// The differences of models, if those are sent.
    pub versions: Option<Versions>,
    /// The earliest timer; `None` if a machine was called since it was computed.
    pub(super) due: Cell<Option<Option<Time>>>,
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
            lossy: setup.stand_in.is_some(),
            model: Vec::new(),
            versions: None,
            due: Cell::new(None),
        }
    }

    /// A world with these clients, all of which have joined.
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
        if let Some(at) = profile.unfoldable_at {
            self.server.unfoldable.insert(profile.name.clone(), at);
        }
        self.clients.push(ClientParty::new(profile, instance));
        self.client_actions(self.clients.len() - 1);
        self.clients.len() - 1
    }

    pub fn start(&mut self, plan: RoundPlan) {
        let seed = plan.number;
        self.start_with(plan, seed);
    }

    /// Starts a round whose model is that of `seed`, not that of the round's number.
    pub fn start_with(&mut self, plan: RoundPlan, seed: u32) {
        self.round = plan.number;
        let next = model(seed, self.server.bytes());
        let version = self.versions.as_mut().map(|versions| versions.next(&self.model, &next));
        self.model = next;
        let plan = RoundPlan { version, ..plan };
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

    /// Runs until `done`, for at most `limit` of virtual time.
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
        clients.chain(self.server.machine.poll_timeout().filter(|_| !self.hangs)).min()
    }

    /// Advances to the next moment at which anything happens. Handles one event, or all timers that are due.
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
        if !self.hangs && self.server.machine.poll_timeout().is_some_and(|at| at <= now) {
            if self.server.machine.ends_updates(now) {
                let links: Vec<_> = self.clients.iter().filter_map(|client| client.link).collect();
                links.into_iter().for_each(|link| self.observe(link));
            }
            self.server.machine.timeout(now);
            let next = self.server.machine.poll_timeout();
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

    /// Breaks a client's link.
    pub fn cut(&mut self, index: usize) {
        if let Some(link) = self.clients[index].link {
            self.net.cut(self.now, link, "the link broke");
        }
    }

    /// A client's process hangs: its link stays up, and nothing is sent on it any more.
    pub fn hang(&mut self, index: usize) {
        self.clients[index].alive = false;
        self.due.set(None);
    }

    /// Makes the server's process hang, or go on.
    pub fn hang_server(&mut self, hangs: bool) {
        self.hangs = hangs;
        self.due.set(None);
    }

    /// Ends a client's process, and so its link.
    pub fn kill(&mut self, index: usize) {
        self.cut(index);
        self.clients[index].alive = false;
        self.due.set(None);
        self.clients[index].link = None;
    }

    /// Ends the server's process, and starts a new one with the same plan.
    pub fn restart_server(&mut self, setup: &Setup) {
        for index in 0..self.clients.len() {
            self.cut(index);
        }
        self.server = ServerParty::new(setup);
        self.made.clear();
        self.server_actions();
    }

    /// Starts a client's program again in a new process.
    pub fn restart(&mut self, index: usize) {
        let instance = self.net.rng.next();
        let old = &self.clients[index];
        let mut fresh = ClientParty::new(old.profile.clone(), instance);
        fresh.seen = old.seen.clone();
        self.clients[index] = fresh;
        self.client_actions(index);
    }

    /// How many updates were made in a round.
    pub fn made_count(&self, round: u32) -> usize {
        self.made.iter().filter(|((_, of), _)| *of == round).map(|(_, instances)| instances.len()).sum()
    }

    /// The results of a client's updates.
    pub fn verdicts(&self, index: usize) -> &[(u32, Verdict)] {
        &self.clients[index].seen.verdicts
    }
}
