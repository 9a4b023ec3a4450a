//! Gives a server well-formed input in a senseless order. Nothing may panic, and the invariants must hold.

use crate::common::Action;
use thalweg_proto::{RoundAction, ServerMachine};

use std::collections::{BTreeMap, BTreeSet};

use crate::common::party::ServerParty;
use crate::common::senseless::{chunk, from_client};
use crate::common::{plan, Rng, Setup, JOB, MS, SECOND};
use thalweg_proto::{Choice, Fanout, Gather, LinkId, Outcome, Partial, Place, RoundPlan, Span, State, Time};
use thalweg_wire::control::{Control, Interval};
use thalweg_wire::{ChunkHeader, Layout, Range, Ranges};

/// A server that gets random input, and the state from which its invariants are checked.
struct Fuzzed {
    rng: Rng,
    party: ServerParty,
    now: Time,
    links: Vec<LinkId>,
    next: LinkId,
    /// The round and ranges of the last Grant on each link.
    granted: BTreeMap<LinkId, (u32, Ranges)>,
    senders: BTreeMap<LinkId, u32>,
    /// The ranges of each sender's update that the server returned as new.
    fresh: BTreeMap<u32, Ranges>,
    folding: Vec<u32>,
    folded: BTreeSet<u32>,
    /// How many bytes of each sender's update were folded.
    counted: BTreeMap<u32, u64>,
    /// Chunks that are being folded.
    keeping: Vec<(LinkId, ChunkHeader, Vec<Range>)>,
    rounds: u32,
    ended: u32,
    whole: u32,
}

impl Fuzzed {
    fn new(seed: u64) -> Self {
        let partial = if seed.is_multiple_of(2) { Partial::Discard } else { Partial::Keep };
        let setup =
            Setup { partial, places: 1 + seed % 3, lazy: seed % 5 == 4, max_clients: 4, ..Setup::default() };
        Self {
            rng: Rng::new(seed),
            party: ServerParty::new(&setup),
            now: Time::ZERO,
            links: Vec::new(),
            next: 0,
            granted: BTreeMap::new(),
            senders: BTreeMap::new(),
            fresh: BTreeMap::new(),
            folding: Vec::new(),
            folded: BTreeSet::new(),
            counted: BTreeMap::new(),
            keeping: Vec::new(),
            rounds: 0,
            ended: 0,
            whole: 0,
        }
    }

    fn link(&mut self) -> LinkId {
        match self.rng.below(self.links.len() as u64 + 1) as usize {
            n if n < self.links.len() => self.links[n],
            _ => self.rng.below(self.next + 2),
        }
    }

    fn step(&mut self) {
        let (now, link, layout) = (self.now, self.link(), self.party.layout.clone());
        match self.rng.below(24) {
            0 | 1 => {
                self.next += 1;
                let ordered = self.rng.chance(0.5);
                self.links.push(self.next);
                self.party.machine.connected(now, self.next, [0; 32], ordered);
            }
            2 if self.rng.chance(0.3) => {
                self.links.retain(|&l| l != link);
                self.party.machine.closed(now, link, "cut");
                self.party.dead.insert(link);
            }
            3..=10 => {
                let message = from_client(&mut self.rng, &layout);
                self.party.machine.control(now, link, message);
            }
            11..=16 => self.chunk(link, &layout),
            17 => {
                let outcome =
                    if self.rng.chance(0.8) { Ok(Span { start: now, end: now }) } else { Err("no".into()) };
                let round = self.rng.below(4) as u32;
                self.party.machine.sent(now, link, round, outcome);
            }
            18 => self.fold(),
            19 => self.start(),
            20 => self.pass(),
            22 => self.keep(),
            21 if self.rng.chance(0.1) => {
                let name = format!("c{}", self.rng.below(5));
                self.party.machine.forget(now, &name, "");
            }
            _ => self.party.machine.progress(now, link, self.rng.below(5000)),
        }
        self.actions();
        self.party.check();
        let report = self.party.machine.progress_report();
        assert!(report.iter().all(|(_, _, fraction)| (0.0..=1.0).contains(fraction)));
        assert!(report.len() <= 4, "no more parts than clients");
    }

    fn chunk(&mut self, link: LinkId, layout: &Layout) {
        let mut chunk = chunk(&mut self.rng, layout);
        let wanted = self.granted.get(&link).map(|(round, wanted)| (*round, wanted.iter().next()));
        if let (Some((round, first)), true) = (wanted, self.rng.chance(0.8)) {
            let Some(first) = first else { return self.end(link, round) };
            chunk = ChunkHeader { round, sender: self.senders[&link], offset: first.start, ..chunk };
            (chunk.job, chunk.layout, chunk.length) = (JOB, layout.hash(), first.len() as u32);
            let rest = Ranges::from_iter(self.granted[&link].1.iter().skip(1));
            self.granted.insert(link, (round, rest));
        }
        self.party.machine.begun(self.now, link, &chunk);
        let place = self.party.machine.place(self.now, link, &chunk);
        if place == Place::Nothing && self.rng.chance(0.9) {
            return;
        }
        let outcome = match self.rng.below(40) {
            0 => Err(Some("bad".into())),
            1..=3 => Err(None),
            _ => Ok(()),
        };
        let Some(stored) = self.party.machine.stored(self.now, link, &chunk, outcome) else { return };
        assert_eq!(stored.sender, chunk.sender);
        assert!(stored.weight > 0.0, "an update was taken that nobody offered");
        let known = self.fresh.entry(stored.sender).or_default();
        for range in &stored.fresh {
            assert!(range.end <= layout.bytes());
            assert_eq!(layout.cut_by(*range), None, "part of an element was taken");
            assert_eq!(known.insert(*range), [*range], "bytes of sender {} count twice", stored.sender);
        }
        if self.party.partial == Partial::Keep && !stored.fresh.is_empty() {
            self.keeping.push((link, chunk, stored.fresh));
            if self.rng.chance(0.7) {
                self.keep();
            }
        }
    }

    /// Reports that a chunk was folded, or could not be.
    fn keep(&mut self) {
        let count = self.keeping.len() as u64;
        if count == 0 {
            return;
        }
        let (link, chunk, fresh) = self.keeping.swap_remove(self.rng.below(count) as usize);
        let outcome = if self.rng.chance(0.97) { Ok(()) } else { Err("it cannot be folded".into()) };
        if outcome.is_ok() {
            *self.counted.entry(chunk.sender).or_default() += fresh.iter().map(|r| r.len()).sum::<u64>();
        }
        self.party.machine.kept(self.now, link, &chunk, &fresh, outcome);
    }

    /// The client sends the End of a grant.
    fn end(&mut self, link: LinkId, round: u32) {
        let sent = Interval { start: 0, end: 1 };
        self.party.machine.control(self.now, link, Control::End { parcel: round, sent });
    }

    fn fold(&mut self) {
        let outcome = if self.rng.chance(0.9) { Ok(()) } else { Err("it cannot be folded".into()) };
        let sender = self.folding.pop();
        if let (Some(sender), true) = (sender, outcome.is_ok()) {
            self.counted.insert(sender, self.party.layout.bytes());
        }
        // If no sender has anything to fold, report a random one.
        let sender = sender.unwrap_or_else(|| self.rng.below(5) as u32);
        self.party.machine.folded(self.now, sender, outcome);
    }

    fn start(&mut self) {
        let (expected, number) = (1 + self.rng.below(4) as u32, self.rounds % 3 + 1);
        let enough = 1 + self.rng.below(u64::from(expected)) as u32;
        let deadline = self.rng.chance(0.5).then(|| self.rng.time(20 * SECOND));
        let grace = self.rng.time(5 * SECOND);
        let fanout = if self.rng.chance(0.5) { Fanout::Concurrent } else { Fanout::Sequential };
        let gather = if self.rng.chance(0.5) { Gather::Concurrent } else { Gather::InOrder };
        let choice = if self.rng.chance(0.5) { Choice::ByName } else { Choice::ByLot { seed: 3 } };
        let goal = enough + self.rng.below(u64::from(expected - enough) + 1) as u32;
        let plan =
            RoundPlan { enough, goal, choice, deadline, grace, fanout, gather, ..plan(number, expected) };
        if self.party.machine.start_round(self.now, plan).is_ok() {
            self.rounds += 1;
            assert_eq!(self.rounds, self.ended + 1);
        }
    }

    fn pass(&mut self) {
        let bound = if self.rng.chance(0.1) { 5 * SECOND } else { 100 * MS };
        self.now += self.rng.time(bound);
        let machine = &mut self.party.machine;
        if machine.poll_timeout().is_some_and(|at| at <= self.now) {
            machine.timeout(self.now);
            assert!(machine.poll_timeout().is_none_or(|at| at > self.now), "the timer stands still");
        }
    }

    fn actions(&mut self) {
        while let Some(action) = self.party.machine.poll_action() {
            match action {
                Action::Send { link, message } => {
                    assert!(self.links.contains(&link), "{message:?} for the dead link {link}");
                    if let Control::Welcome(welcome) = &message {
                        self.senders.insert(link, welcome.sender);
                    }
                    if let Control::Grant { parcel: round, wanted } = message {
                        self.granted.insert(link, (round, wanted));
                    }
                }
                Action::SendParcel { links, .. } => assert!(links.iter().all(|l| self.links.contains(l))),
                Action::Cancel { link, .. } => assert!(self.links.contains(&link)),
                Action::Close { link } => self.links.retain(|&l| l != link),
                Action::Policy(RoundAction::Fold { sender, weight, holes, .. }) => {
                    assert!(holes.is_empty(), "nothing stands in");
                    let whole = self.fresh.remove(&sender).unwrap_or_default().bytes();
                    assert_eq!(whole, self.party.layout.bytes(), "folds what has not come");
                    assert!(weight > 0.0);
                    assert!(self.folded.insert(sender), "{sender} is folded twice");
                    self.folding.push(sender);
                }
                Action::Policy(RoundAction::Unstage { sender }) => drop(self.fresh.remove(&sender)),
                Action::Policy(RoundAction::Arrived)
                | Action::Joined { .. }
                | Action::Left { .. }
                | Action::Note { .. }
                | Action::TurnedAway { .. } => {}
                Action::Policy(RoundAction::Ended(outcome)) => self.ended(&outcome),
            }
        }
    }

    fn ended(&mut self, outcome: &Outcome) {
        self.ended += 1;
        let whole = outcome.participants.iter().filter(|p| p.state == State::Whole).count();
        self.whole += whole as u32;
        assert_eq!(outcome.complete, whole >= outcome.expected as usize);
        let kept = self.fresh.values().map(Ranges::bytes).filter(|&b| b > 0).count();
        if self.party.partial == Partial::Discard {
            assert_eq!(kept, 0, "what is staged outlives the round: {:?}", self.fresh);
        }
        assert!(self.folding.is_empty() && self.keeping.is_empty(), "the round ends before what is folded");
        // The mean counts exactly what was folded.
        let total = self.party.layout.bytes() as f64;
        let mut folded: Vec<f64> = self.counted.values().map(|&bytes| bytes as f64 / total).collect();
        let mut said: Vec<f64> =
            outcome.participants.iter().map(|p| p.coverage).filter(|&c| c > 0.0).collect();
        folded.sort_by(f64::total_cmp);
        said.sort_by(f64::total_cmp);
        assert_eq!(said, folded, "{outcome:?}");
        for transfer in &outcome.transfers {
            let span = transfer.span().unwrap_or(outcome.span);
            assert!(outcome.span.start <= span.start && span.end <= outcome.span.end, "{transfer:?}");
        }
        let length = (outcome.span.end - outcome.span.start).as_secs_f64();
        assert!((0.0..=length).contains(&outcome.communication_seconds));
        self.fresh.clear();
        self.folded.clear();
        self.counted.clear();
    }
}

#[test]
fn a_server_given_anything_keeps_its_books() {
    let (mut rounds, mut whole) = (0, 0);
    for seed in 0..80 {
        let mut fuzzed = Fuzzed::new(seed);
        (0..3000).for_each(|_| fuzzed.step());
        rounds += fuzzed.ended;
        whole += fuzzed.whole;
    }
    assert!(rounds > 200 && whole > 20, "it gets somewhere: {rounds} rounds, {whole} whole updates");
}
