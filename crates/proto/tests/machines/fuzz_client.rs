//! Gives a client well-formed input in a senseless order. Nothing may panic, and the invariants must hold.

use crate::common::{model_offer, ClientAction};
use thalweg_proto::{ChunkReceiver, ClientMachine, RoundStep};

use crate::common::party::layout;
use crate::common::senseless::{challenge, chunk, from_server, welcome};
use crate::common::{Rng, MS, SECOND};
use thalweg_proto::{Client, ClientConfig, Span, Time};
use thalweg_wire::control::{Control, Interval};
use thalweg_wire::{ChunkHeader, Layout, Ranges};

/// A client with a senseless server, and an application that submits now and then.
struct Fuzzed {
    rng: Rng,
    client: Client,
    layout: Layout,
    now: Time,
    /// The link is up.
    up: bool,
    /// The client has sent its Hello on this link.
    greeted: bool,
    welcomed: bool,
    /// The round that the application trains.
    due: Option<u32>,
    ready: u32,
    submitted: u32,
    verdicts: u32,
}

fn client(seed: u64) -> Client {
    let config = ClientConfig {
        name: "c0".into(),
        instance: seed,
        layout: None,
        timeout: 30 * SECOND,
        outage: Time::ZERO,
    };
    let mut client = Client::new(config, seed);
    assert!(matches!(client.poll_action(), Some(ClientAction::Connect { after: Time::ZERO, .. })));
    client
}

impl Fuzzed {
    fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            client: client(seed),
            layout: layout(1000),
            now: Time::ZERO,
            up: false,
            greeted: false,
            welcomed: false,
            due: None,
            ready: 0,
            submitted: 0,
            verdicts: 0,
        }
    }

    fn step(&mut self) {
        let now = self.now;
        match self.rng.below(12) {
            0 if self.client.is_done() => {
                self.client = client(self.rng.next());
                (self.up, self.due) = (false, None);
            }
            0 | 1 if !self.up && !self.client.is_done() => {
                self.client.connected(now, [3; 32], self.rng.chance(0.5));
                (self.up, self.greeted, self.welcomed) = (true, false, false);
            }
            2 if self.rng.chance(0.05) => self.client.closed(now, "cut"),
            3..=6 => {
                let helps = self.rng.chance(0.5);
                let message = if helps { self.sensible() } else { from_server(&mut self.rng, &self.layout) };
                self.welcomed |= matches!(message, Control::Welcome(_)) && self.greeted;
                self.client.control(now, message);
            }
            7 | 8 => self.chunk(),
            9 => self.client.sent(now, self.rng.below(4) as u32, Ok(Span { start: now, end: now })),
            10 => self.pass(),
            _ => self.submit(),
        }
        while let Some(action) = self.client.poll_action() {
            self.act(action);
        }
        let (verdicts, submitted, ready) = (self.verdicts, self.submitted, self.ready);
        assert!(verdicts <= submitted && submitted <= ready, "at most a verdict for each update");
    }

    /// A message that an honest server might send.
    fn sensible(&mut self) -> Control {
        let round = 1 + self.rng.below(3) as u32;
        match self.rng.below(4) {
            _ if !self.greeted => challenge(&mut self.rng),
            _ if !self.welcomed => welcome(&mut self.rng, &self.layout),
            0 => model_offer(round, self.layout.hash()),
            1 => Control::End { parcel: round, sent: Interval::default() },
            2 => Control::Grant { parcel: round, wanted: Ranges::full(self.layout.bytes()) },
            _ => Control::Accepted { parcel: round },
        }
    }

    fn chunk(&mut self) {
        let chunk = chunk(&mut self.rng, &self.layout);
        self.client.begun(self.now, &chunk);
        self.client.fit(self.now, &chunk);
        self.client.progress(self.now, self.rng.below(2000));
        let whole = ChunkHeader { offset: 0, length: self.layout.bytes() as u32, ..chunk };
        let chunk = if self.rng.chance(0.2) { ChunkHeader { sender: 0, ..whole } } else { chunk };
        for range in self.client.stored(self.now, &chunk, self.rng.chance(0.9)) {
            assert!(range.end <= self.layout.bytes());
        }
    }

    fn pass(&mut self) {
        let bound = if self.rng.chance(0.05) { 10 * SECOND } else { 100 * MS };
        self.now += self.rng.time(bound);
        if self.client.poll_timeout().is_some_and(|at| at <= self.now) {
            self.client.timeout(self.now);
            assert!(self.client.poll_timeout().is_none_or(|at| at > self.now), "the timer stands still");
        }
    }

    fn submit(&mut self) {
        match self.due.filter(|_| self.rng.chance(0.5)) {
            Some(round) => {
                assert_eq!(self.client.submit(round, 1.0, "{}".into()), Ok(()));
                self.submitted += 1;
                self.due = None;
            }
            None => assert!(self.client.submit(9, 1.0, "{}".into()).is_err(), "never handed out"),
        }
    }

    fn act(&mut self, action: ClientAction) {
        match action {
            ClientAction::Send(message) => {
                assert!(self.up, "{message:?} without a link");
                self.greeted |= matches!(message, Control::Hello(_));
                assert!(self.greeted, "{message:?} before the Hello");
            }
            ClientAction::SendParcel { .. } => assert!(self.up),
            ClientAction::Prove { .. } => self.client.proven(self.now, None),
            ClientAction::Close | ClientAction::Connect { .. } => self.up = false,
            ClientAction::Policy(RoundStep::Ready { round, .. }) => {
                assert_eq!(self.due, None, "a model while it trains");
                self.ready += 1;
                self.due = Some(round);
            }
            ClientAction::Policy(RoundStep::Verdict { .. }) => self.verdicts += 1,
            ClientAction::Policy(RoundStep::Fill { .. }) => unreachable!("what is missing is asked for"),
            ClientAction::Cancel { .. } | ClientAction::Joined(_) | ClientAction::Finished(_) => {}
        }
    }
}

#[test]
fn a_client_given_anything_keeps_in_step() {
    let (mut ready, mut verdicts) = (0, 0);
    for seed in 0..200 {
        let mut fuzzed = Fuzzed::new(seed);
        (0..3000).for_each(|_| fuzzed.step());
        ready += fuzzed.ready;
        verdicts += fuzzed.verdicts;
    }
    assert!(ready > 100 && verdicts > 100, "it gets somewhere: {ready} models, {verdicts} verdicts");
}
