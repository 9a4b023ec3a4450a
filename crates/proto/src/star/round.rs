//! One round: its clients, the state of each, and when the round ends.

mod selecting;

use std::collections::{BTreeMap, BTreeSet};

use thalweg_wire::Ranges;

use self::selecting::Batch;
pub use self::selecting::Selection;
use super::order::by_name;
use super::outcome::union_seconds;
use super::{Choice, Credits, Fanout, Gather, Outcome, Participation, RoundAction, State};
use crate::transfer::Incoming;
use crate::{Direction, Span, Time, TransferReport};

/// The part of an incomplete update that counts in the mean, if its client dies or sends values that cannot
/// be used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Partial {
    /// Nothing: an update is staged until it is whole.
    #[default]
    Discard,
    /// The chunks that have arrived: each is folded on arrival. Each byte's mean is taken over the updates
    /// that have this byte.
    Keep,
}

/// The settings of one round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoundPlan {
    /// The round's number, from 1.
    pub number: u32,
    /// A JSON object for the clients.
    pub config: String,
    /// How many clients take part.
    pub expected: u32,
    /// Which clients take part if more are connected.
    pub choice: Choice,
    /// Minimum number of updates for a mean, whole or with stand-ins.
    pub enough: u32,
    /// The round ends at once when it has this many updates, even if others may still arrive. If this is less than
    /// `expected`, no further update counts.
    pub goal: u32,
    /// Which of the updates that arrive are folded.
    pub selection: Selection,
    /// How long the round may take; `None`: until no client can deliver any more.
    pub deadline: Option<Time>,
    /// How long a client that has lost its link may take to come back. Then others may have its place.
    pub grace: Time,
    /// The same while the round has too few updates without that client, if it is longer. Such a round would
    /// otherwise fail.
    pub outage: Time,
    /// How the model is sent.
    pub fanout: Fanout,
    /// How updates are received.
    pub gather: Gather,
    /// The version of the model, if clients that have the version before get the difference only.
    pub version: Option<Version>,
}

/// The version of a model that is compressed on its way to the clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    /// The version's number. It rises by 1 from round to round, even if a round is tried again.
    pub number: u32,
    /// The CRC-32C of the whole model that clients have afterwards.
    pub checksum: u32,
    /// Whether there is a difference from the version before. If not, all clients get the whole model.
    pub has_difference: bool,
}

impl Version {
    /// Whether a client that has the version `held` gets only the difference from it.
    pub(crate) fn follows(self, held: Option<u32>) -> bool {
        self.has_difference && held.is_some_and(|held| held.checked_add(1) == Some(self.number))
    }
}

/// How a round ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// The round has a mean.
    Mean,
    /// The round has no mean, for this reason.
    Failed(String),
}

/// The state of one client's participation in a round.
#[derive(Debug, Clone)]
pub(crate) struct Participant {
    pub client: String,
    pub instance: u64,
    /// The round whose model the client trains. It is an earlier one if the client's update is late, and
    /// counts in this round.
    pub parcel: u32,
    /// How many rounds the update is late.
    pub staleness: u32,
    /// The client has sent all granted bytes, but between two rounds: after its own had ended, and before the
    /// next began.
    pub is_all_sent: bool,
    pub state: State,
    /// When the client entered `state`.
    pub since: Time,
    /// The client's process has ended for good.
    pub departed: bool,
    /// The update's weight; 0 until an update is offered.
    pub weight: f64,
    /// The metrics that the client offered with its update, a JSON object.
    pub metrics: String,
    /// Why the update is not whole.
    pub reason: Option<String>,
    pub incoming: Incoming,
    /// The report of the model's transfer to the client.
    pub down: TransferReport,
    /// The report of the update's transfer from the client.
    pub up: TransferReport,
}

impl Participant {
    /// Whether its update is in the mean, whole or in part.
    fn is_in(&self) -> bool {
        matches!(self.state, State::Whole | State::Partial)
    }

    /// The state that an update gets when it is folded: `Whole`, or `Partial` if bytes are missing.
    fn state_when_folded(&self) -> State {
        if self.incoming.reassembly().is_whole() {
            State::Whole
        } else {
            State::Partial
        }
    }

    /// Whether the server's decision about the update is final.
    fn is_settled(&self) -> bool {
        self.is_in() || self.state == State::Rejected
    }

    /// The update's weight in the mean. The weight of an update that is `s` rounds late is divided by the
    /// square root of `1 + s` (FedBuff, Nguyen et al. 2022, section 5).
    pub fn counted_weight(&self) -> f64 {
        self.weight / f64::from(self.staleness + 1).sqrt()
    }

    /// Whether any byte of the client's update has arrived.
    fn is_begun(&self) -> bool {
        self.incoming.reassembly().bytes() > 0 || self.incoming.reassembly().is_folding()
    }
}

/// Counts of the participations in each state, so that no event needs to look at all of them.
#[derive(Debug, Default)]
struct Tally {
    counts: [usize; State::COUNT],
    /// Clients in the state `Lost`.
    lost: BTreeSet<u32>,
    /// Clients that entered the state `Sending` since the last call of [`Round::grants`].
    granted: Vec<u32>,
}

impl Tally {
    fn enter(&mut self, sender: u32, from: Option<State>, to: State) {
        if let Some(from) = from {
            self.counts[from as usize] -= 1;
        }
        self.counts[to as usize] += 1;
        if to == State::Lost {
            self.lost.insert(sender);
        } else {
            self.lost.remove(&sender);
        }
        if to == State::Sending {
            self.granted.push(sender);
        }
    }

    fn leave(&mut self, sender: u32, from: State) {
        self.counts[from as usize] -= 1;
        self.lost.remove(&sender);
    }

    fn of(&self, states: &[State]) -> usize {
        states.iter().map(|&state| self.counts[state as usize]).sum()
    }
}

/// A staged update that is not folded yet, because it will be folded together with updates that may still
/// arrive.
#[derive(Debug)]
pub(crate) struct Deferred {
    pub sender: u32,
    pub weight: f64,
    /// When the update was complete.
    pub since: Time,
    /// The bytes of the update that are missing.
    pub holes: Ranges,
}

impl Deferred {
    pub fn fold(self) -> RoundAction {
        let Self { sender, weight, since, holes } = self;
        RoundAction::Fold { sender, weight, since, holes }
    }
}

/// A round that is running.
#[derive(Debug)]
pub struct Round {
    pub(crate) plan: RoundPlan,
    pub(crate) started: Time,
    /// The participations, by member number.
    parts: BTreeMap<u32, Participant>,
    tally: Tally,
    pub(crate) credits: Credits,
    /// The client whose Offer came last, if its update follows without a Grant.
    pub(crate) pushing: Option<u32>,
    /// Bytes of a whole update.
    total: u64,
    partial: Partial,
    /// Staged updates that wait for others.
    deferred: Vec<Deferred>,
    /// Staged updates that wait to be selected, in the order in which they arrived.
    waiting: Vec<Deferred>,
    batch: Batch,
    /// The senders whose updates earlier batches have exported.
    exported: BTreeSet<u32>,
}

impl Round {
    /// Begins a round. An update has `total` bytes.
    pub fn new(now: Time, plan: RoundPlan, total: u64, partial: Partial, credits: Credits) -> Self {
        Self {
            plan,
            started: now,
            parts: BTreeMap::new(),
            tally: Tally::default(),
            credits,
            pushing: None,
            total,
            partial,
            deferred: Vec::new(),
            waiting: Vec::new(),
            batch: Batch::default(),
            exported: BTreeSet::new(),
        }
    }

    /// All participations, by member number.
    pub(crate) fn parts(&self) -> &BTreeMap<u32, Participant> {
        &self.parts
    }

    pub(crate) fn part(&self, sender: u32) -> Option<&Participant> {
        self.parts.get(&sender)
    }

    /// A participation, to be changed in anything but its state.
    pub(crate) fn part_mut(&mut self, sender: u32) -> Option<&mut Participant> {
        self.parts.get_mut(&sender)
    }

    fn enter(&mut self, now: Time, sender: u32, state: State) {
        if let Some(part) = self.parts.get_mut(&sender) {
            self.tally.enter(sender, Some(part.state), state);
            (part.state, part.since) = (state, now);
        }
    }

    /// Takes a client into the round, or takes it back after it lost its model or update. Returns false if
    /// that is not possible: the client's update was received or refused, the round has all the clients that
    /// it wants, or part of the client's earlier update was folded; or a batch of the round is over.
    pub(crate) fn assign(&mut self, now: Time, sender: u32, client: &str, instance: u64) -> bool {
        if self.is_exported() {
            return false;
        }
        let (full, number) = (self.room(now) == 0, self.plan.number);
        // With a choice by lot, a client that comes back too late may find that another client has its place.
        let replaced = full && self.part(sender).is_some_and(|p| !self.has_place(p, now));
        match self.parts.get_mut(&sender) {
            Some(part) if part.is_settled() || part.state == State::Staged => false,
            Some(part) if part.is_begun() && self.partial == Partial::Keep => {
                self.forsake(now, sender);
                false
            }
            Some(_) if replaced && self.plan.choice != Choice::ByName => false,
            Some(part) => {
                part.instance = instance;
                (part.parcel, part.staleness, part.is_all_sent) = (number, 0, false);
                part.weight = 0.0;
                part.departed = false;
                part.reason = None;
                if self.partial == Partial::Discard {
                    part.incoming = Incoming::new(self.total);
                    self.credits.release(sender);
                }
                self.enter(now, sender, State::Receiving);
                true
            }
            None if full => false,
            None => {
                let part = Participant {
                    client: client.into(),
                    instance,
                    parcel: number,
                    staleness: 0,
                    is_all_sent: false,
                    state: State::Receiving,
                    since: now,
                    departed: false,
                    weight: 0.0,
                    metrics: "{}".into(),
                    reason: None,
                    incoming: Incoming::new(self.total),
                    down: TransferReport::new(number, client, Direction::Down),
                    up: TransferReport::new(number, client, Direction::Up),
                };
                self.tally.enter(sender, None, part.state);
                self.parts.insert(sender, part);
                true
            }
        }
    }

    /// Takes in a client that still works on an earlier round. Its update counts in this round.
    pub(crate) fn adopt(&mut self, sender: u32, mut part: Participant) {
        let number = self.plan.number;
        part.staleness = number.saturating_sub(part.parcel);
        part.down = TransferReport::new(number, &part.client, Direction::Down);
        part.up = TransferReport::new(number, &part.client, Direction::Up);
        part.is_all_sent = false;
        // The client's link broke, it came back before this round began, and it kept its place. It sends at
        // once.
        let goes_on = part.state == State::Offered
            && self.credits.holds(sender)
            && self.plan.gather == Gather::Concurrent;
        if goes_on {
            part.state = State::Sending;
        }
        self.tally.enter(sender, None, part.state);
        if !goes_on {
            // The client has its grant already, or asks for it when it is back.
            self.tally.granted.retain(|&granted| granted != sender);
        }
        self.parts.insert(sender, part);
    }

    /// The clients whose updates may still count in the next round, if an update may be `limit` rounds late:
    /// they have the whole model, and the server has not decided about their updates.
    pub(crate) fn late(&self, now: Time, limit: u32) -> BTreeMap<u32, Participant> {
        // With `Partial::Keep` a part of an update may be in the sums of the round that is over.
        let limit = if self.partial == Partial::Keep { 0 } else { limit };
        let next = self.plan.number.saturating_add(1);
        let works = |part: &Participant| match part.state {
            State::Training | State::Offered | State::Sending | State::Staged => true,
            State::Lost => part.down.complete || part.parcel < self.plan.number,
            _ => false,
        };
        let stays = |part: &Participant| part.state != State::Lost || self.has_grace(part, now);
        let is_late =
            |part: &Participant| works(part) && stays(part) && next.saturating_sub(part.parcel) <= limit;
        let late = self.parts.iter().filter(|(_, part)| is_late(part));
        late.map(|(&sender, part)| (sender, part.clone())).collect()
    }

    /// Ends the participation of a client that has lost its update after part of it was folded. That part
    /// stays in the sums, so the client must not send another update in this round.
    fn forsake(&mut self, now: Time, sender: u32) {
        if self.part(sender).is_some_and(|part| part.state != State::Lost) {
            self.enter(now, sender, State::Lost);
        }
        if let Some(part) = self.parts.get_mut(&sender) {
            part.departed = true;
            part.reason =
                Some("lost its update when part of it had been folded; it waits for the next round".into());
        }
    }

    /// How many places of the round are free.
    pub(crate) fn room(&self, now: Time) -> usize {
        let lost = self.tally.lost.iter().filter_map(|&sender| self.part(sender));
        let free = lost.filter(|part| !self.has_place(part, now)).count();
        (self.plan.expected as usize).saturating_sub(self.parts.len() - free)
    }

    /// Whether a client keeps its place in the round. With a choice by name, the place of a lost client is
    /// free at once. With a choice by lot, it is free only when the client's grace is over, since the lot
    /// takes precedence over the order of arrival.
    fn has_place(&self, part: &Participant, now: Time) -> bool {
        match self.plan.choice {
            Choice::ByName => part.state != State::Lost,
            Choice::ByLot { .. } => part.state != State::Lost || self.has_grace(part, now),
        }
    }

    /// Whether a lost client is within its grace.
    fn has_grace(&self, part: &Participant, now: Time) -> bool {
        !part.departed && now < part.since.saturating_add(self.plan.grace)
    }

    /// Whether the round waits for a lost client.
    fn may_come_back(&self, part: &Participant, now: Time) -> bool {
        !part.departed && now < part.since.saturating_add(self.awaits_absent())
    }

    /// The clients for which the round waits although their grace is over, if it waits for nobody else.
    pub(crate) fn awaited_after_grace(&self, now: Time) -> Vec<&str> {
        use State::{Offered, Receiving, Sending, Staged, Training};
        if self.tally.of(&[Receiving, Training, Offered, Sending, Staged]) > 0 {
            return Vec::new();
        }
        let lost = self.tally.lost.iter().filter_map(|&sender| self.part(sender));
        let awaited = lost.filter(|part| !self.has_grace(part, now) && self.may_come_back(part, now));
        awaited.map(|part| part.client.as_str()).collect()
    }

    /// How long the round waits for clients that are away.
    fn awaits_absent(&self) -> Time {
        if self.has_enough() {
            self.plan.grace
        } else {
            self.plan.grace.max(self.plan.outage)
        }
    }

    /// Notes that the client has the global model, which it received during `span`. `faults`: the number of
    /// duplicate chunks, and of missing bytes.
    pub(crate) fn received(&mut self, now: Time, sender: u32, span: Span, faults: (u64, u64)) {
        let total = self.total;
        if let Some(part) = self.parts.get_mut(&sender).filter(|p| p.state == State::Receiving) {
            part.down.receive = Some(span);
            let (duplicates, missing) = (faults.0, faults.1.min(total));
            (part.down.bytes, part.down.missing) = (total - missing, missing);
            part.down.duplicates = duplicates;
            part.down.complete = missing == 0;
            self.enter(now, sender, State::Training);
        }
    }

    /// Notes that the client's update is ready. It queues for a place in the staging area.
    pub(crate) fn offer(&mut self, now: Time, sender: u32, weight: f64, metrics: String) {
        let offers = |p: &&mut Participant| !p.is_settled() && p.state != State::Staged;
        let Some(part) = self.parts.get_mut(&sender).filter(offers) else { return };
        if part.incoming.reassembly().bytes() > 0 && part.state != State::Sending {
            part.up.resumed += 1;
        }
        part.weight = weight;
        part.metrics = metrics;
        self.credits.request(sender);
        // A client that kept its place while its link was broken goes on at once.
        let goes_on = self.credits.holds(sender) && self.plan.gather == Gather::Concurrent;
        self.enter(now, sender, if goes_on { State::Sending } else { State::Offered });
    }

    /// Whether the server can grant each client's update before its Offer: there is a place for each, and no
    /// client waits for another.
    pub(crate) fn invites(&self) -> bool {
        self.plan.gather == Gather::Concurrent && self.credits.places() >= self.plan.expected as usize
    }

    /// Grants places. Returns the clients that may send now, each with the ranges to send.
    pub(crate) fn grants(&mut self, now: Time) -> Vec<(u32, Ranges)> {
        let granted = match self.plan.gather {
            Gather::Concurrent => self.next_by_place(),
            Gather::InOrder => self.next_in_order(),
        };
        for sender in granted {
            self.enter(now, sender, State::Sending);
        }
        let mut fresh = std::mem::take(&mut self.tally.granted);
        fresh.sort_unstable();
        fresh.dedup();
        let sending = fresh.into_iter().filter_map(|sender| Some((sender, self.part(sender)?)));
        let sending = sending.filter(|(_, part)| part.state == State::Sending);
        sending.map(|(sender, part)| (sender, part.incoming.reassembly().holes())).collect()
    }

    /// Grants free places in the order that [`Credits`] decides.
    fn next_by_place(&mut self) -> Vec<u32> {
        let comes = |p: &Participant| matches!(p.state, State::Receiving | State::Training);
        let parts = &self.parts;
        let coming = || parts.iter().filter(|(_, p)| comes(p)).map(|(&sender, _)| sender);
        std::iter::from_fn(|| self.credits.grant(coming)).collect()
    }

    /// The first client by name whose update is still to come, if it is ready and no other client sends. A
    /// lost client does not hold up the others. If it comes back in time, it regains its rank. If it kept its
    /// place in the staging area, it goes before all others, since they may have to wait for that place.
    fn next_in_order(&mut self) -> Vec<u32> {
        use State::{Offered, Receiving, Sending, Training};
        if self.tally.of(&[Sending]) > 0 {
            return Vec::new();
        }
        let mut awaited: Vec<(&u32, &Participant)> =
            self.parts.iter().filter(|(_, p)| matches!(p.state, Receiving | Training | Offered)).collect();
        awaited.sort_by(|(_, one), (_, other)| by_name(&one.client, &other.client));
        let kept = awaited.iter().find(|(&sender, p)| p.state == Offered && self.credits.holds(sender));
        let next = kept.or(awaited.first()).filter(|(_, p)| p.state == Offered).map(|(&sender, _)| sender);
        let placed = next.filter(|&sender| self.credits.holds(sender) || self.credits.grant_to(sender));
        placed.into_iter().collect()
    }

    /// Notes that no more bytes of the client's update are expected. With [`Partial::Discard`] the update
    /// must still be folded.
    pub(crate) fn arrived(&mut self, now: Time, sender: u32) {
        let Some(part) = self.parts.get(&sender) else { return };
        let next = if self.partial == Partial::Discard { State::Staged } else { part.state_when_folded() };
        if let Some(span) = part.incoming.span().filter(|s| s.end > s.start) {
            let seconds = (span.end - span.start).as_secs_f64();
            self.credits.measured(sender, part.incoming.reassembly().bytes() as f64 / seconds);
        }
        self.enter(now, sender, next);
        if next != State::Staged {
            self.credits.release(sender);
        }
    }

    /// Keeps a staged update until it can be folded together with others.
    pub(crate) fn defer(&mut self, staged: Deferred) {
        self.deferred.push(staged);
    }

    /// Whether the client's staged update waits for others, or to be selected. If so, the driver has not been asked
    /// to fold it.
    pub(crate) fn is_deferred(&self, sender: u32) -> bool {
        self.deferred.iter().any(|staged| staged.sender == sender) || self.waits_for_selection(sender)
    }

    /// Takes the staged updates that waited for others, if no other update can arrive or all places are
    /// taken.
    pub(crate) fn due_together(
        &mut self,
        now: Time,
        absent_since: Option<Time>,
        busy: bool,
    ) -> Vec<Deferred> {
        let is_full = self.deferred.len() + self.waiting.len() >= self.credits.places();
        let is_over = self.is_selection_over() || !self.may_get_more(now, absent_since, busy);
        if is_full || !self.deferred.is_empty() && is_over {
            return std::mem::take(&mut self.deferred);
        }
        Vec::new()
    }

    /// Notes that the client's staged update was folded.
    pub(crate) fn folded(&mut self, now: Time, sender: u32) {
        let staged = self.part(sender).filter(|p| p.state == State::Staged);
        if let Some(state) = staged.map(Participant::state_when_folded) {
            self.enter(now, sender, state);
            self.credits.release(sender);
        }
    }

    /// Notes that the client's link has ended. The client keeps its place until its grace is over.
    pub(crate) fn lost(&mut self, now: Time, sender: u32, reason: &str) {
        let Some(part) = self.parts.get_mut(&sender) else { return };
        if part.is_settled() || matches!(part.state, State::Staged | State::Lost) {
            return;
        }
        part.reason = Some(reason.into());
        self.enter(now, sender, State::Lost);
        if !self.credits.holds(sender) {
            self.credits.release(sender); // a client without a link must not be granted a place
        }
    }

    /// Notes that the client is back and still has its model or update. `whole`: clients need the whole model
    /// to train. So this client has it, even if its Received was lost.
    pub(crate) fn back(&mut self, now: Time, sender: u32, whole: bool) {
        if let Some(part) = self.parts.get_mut(&sender).filter(|p| p.state == State::Lost) {
            part.reason = None;
            part.departed = false;
            if whole {
                part.down.bytes = self.total;
                part.down.complete = true;
            }
            self.enter(now, sender, State::Training);
        }
    }

    /// Refuses the client's update.
    pub(crate) fn reject(&mut self, now: Time, sender: u32, reason: &str) {
        if let Some(part) = self.parts.get_mut(&sender).filter(|p| !p.is_settled()) {
            part.reason = Some(reason.into());
            self.enter(now, sender, State::Rejected);
            self.note_refusal(sender);
        }
        self.credits.release(sender);
    }

    /// Takes back the places in the staging area of lost clients for which the round does not wait any more,
    /// and of those whose grace is over if other clients wait for a place. Returns the clients whose staged
    /// bytes the driver must drop.
    pub(crate) fn expire(&mut self, now: Time) -> Vec<u32> {
        let keeps = |part: &Participant| {
            self.has_grace(part, now) || !self.credits.is_awaited() && self.may_come_back(part, now)
        };
        let over = |sender: &u32| self.part(*sender).is_some_and(|part| !keeps(part));
        let expired: Vec<u32> = self.tally.lost.iter().copied().filter(over).collect();
        let held: Vec<u32> = expired.iter().copied().filter(|&s| self.credits.holds(s)).collect();
        expired.iter().for_each(|&s| self.credits.release(s));
        if self.partial == Partial::Discard {
            for sender in &held {
                if let Some(part) = self.parts.get_mut(sender) {
                    part.incoming = Incoming::new(self.total);
                }
            }
        }
        held
    }

    /// Whether folds of chunks are running.
    pub(crate) fn is_folding(&self) -> bool {
        self.partial == Partial::Keep
            && self.parts.values().any(|part| part.incoming.reassembly().is_folding())
    }

    /// Whether the deadline has passed.
    pub(crate) fn is_overdue(&self, now: Time) -> bool {
        self.deadline().is_some_and(|at| now >= at)
    }

    /// How the round ends; `None` if it continues. `absent_since`: since when clients that the round wants
    /// have been missing; `None` if no more clients can connect. `busy`: a connected client may still join
    /// the round later.
    pub(crate) fn ending(&self, now: Time, absent_since: Option<Time>, busy: bool) -> Option<Ending> {
        use State::{Partial, Staged, Whole};
        let tally = &self.tally;
        let whole = tally.of(&[Whole, Partial]) - self.exported();
        // Wait for updates that are being folded. They all count: with a goal, no more than the goal were selected.
        if self.is_exported() || tally.of(&[Staged]) > self.waiting.len() {
            return None;
        }
        if self.is_selected_elsewhere() {
            return self.batch_ending(now, whole, self.may_get_more(now, absent_since, busy));
        }
        if whole >= self.wanted() {
            return Some(Ending::Mean);
        }
        if self.may_get_more(now, absent_since, busy) {
            return None;
        }
        Some(self.settle(whole, self.is_overdue(now)))
    }

    /// Whether an update may still come.
    fn may_get_more(&self, now: Time, absent_since: Option<Time>, busy: bool) -> bool {
        use State::{Lost, Offered, Receiving, Sending, Training};
        let (tally, expected) = (&self.tally, self.plan.expected as usize);
        let mut lost = tally.lost.iter().filter_map(|&sender| self.part(sender));
        let delivers = tally.of(&[Receiving, Training, Offered, Sending]) > 0
            || lost.any(|part| self.may_come_back(part, now));
        let joins = busy && self.parts.len() - tally.of(&[Lost]) < expected;
        !self.is_overdue(now) && (delivers || joins || self.may_appear(now, absent_since))
    }

    /// The round ends at once when it has this many updates.
    fn wanted(&self) -> usize {
        self.plan.goal.min(self.plan.expected) as usize
    }

    fn settle(&self, whole: usize, overdue: bool) -> Ending {
        let (enough, expected) = (self.plan.enough as usize, self.wanted());
        if whole >= enough.max(1) {
            return Ending::Mean;
        }
        let when = match self.plan.deadline {
            Some(limit) if overdue => format!("by the deadline of {} s", limit.as_secs_f64()),
            _ => "and nobody is left who could send one".into(),
        };
        let reasons: Vec<String> = self.parts.values().filter_map(reason_of).collect();
        Ending::Failed(format!(
            "round {}: {whole} of {expected} updates came {when}, {enough} are needed{}{}",
            self.plan.number,
            if reasons.is_empty() { "" } else { ": " },
            super::server::named(&reasons)
        ))
    }

    /// Whether a client that the round wants may still connect.
    fn may_appear(&self, now: Time, absent_since: Option<Time>) -> bool {
        let room = self.parts.len() < self.plan.expected as usize;
        room && absent_since.is_some_and(|since| now < since.saturating_add(self.awaits_absent()))
    }

    /// The latest time at which the round ends; `None` without a limit.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.plan.deadline.map(|limit| self.started.saturating_add(limit))
    }

    /// The first time after `seen` at which a client's grace, the longest outage or the deadline ends.
    pub(crate) fn next_timeout(&self, seen: Time, absent_since: Option<Time>) -> Option<Time> {
        let waits = [self.plan.grace, self.awaits_absent()];
        let lost = self.tally.lost.iter().filter_map(|&sender| self.part(sender));
        let lost = lost.filter(|p| !p.departed).map(|p| p.since);
        let absent = absent_since.filter(|_| self.may_appear(seen, absent_since));
        let over = lost.chain(absent).flat_map(|since| waits.map(|wait| since.saturating_add(wait)));
        over.chain(self.deadline()).filter(|&at| at > seen).min()
    }

    /// Ends the round and returns its results.
    pub(crate) fn outcome(mut self, now: Time, ending: &Ending) -> Outcome {
        let parts = std::mem::take(&mut self.parts).into_values().collect();
        self.outcome_of(parts, now, ending)
    }

    fn outcome_of(&self, parts: Vec<Participant>, now: Time, ending: &Ending) -> Outcome {
        let (keep, total, started) = (self.partial == Partial::Keep, self.total, self.started);
        let unselected = match self.is_selection_over() {
            true => "arrived after the updates with which the round reached its goal",
            false => "arrived, but the round ended before it was selected",
        };
        let parts: Vec<Participant> =
            parts.into_iter().map(|part| close(part, keep, total, started, unselected)).collect();
        let transfers: Vec<TransferReport> =
            parts.iter().flat_map(|p| [p.down.clone(), p.up.clone()]).collect();
        let transfers: Vec<TransferReport> =
            transfers.into_iter().filter(|t| t.span().is_some() || t.wire_bytes > 0).collect();
        let wire = |d| transfers.iter().filter(|t| t.direction == d).map(|t| t.wire_bytes).sum();
        let (whole, wanted) = (parts.iter().filter(|p| p.state == State::Whole).count(), self.wanted());
        Outcome {
            round: self.plan.number,
            expected: wanted as u32,
            complete: whole >= wanted,
            failure: match ending {
                Ending::Mean => None,
                Ending::Failed(reason) => Some(reason.clone()),
            },
            span: Span { start: self.started, end: now },
            communication_seconds: union_seconds(transfers.iter().filter_map(TransferReport::span)),
            bytes_down: wire(Direction::Down),
            bytes_up: wire(Direction::Up),
            participants: parts.iter().map(participation).collect(),
            transfers,
        }
    }
}

fn reason_of(part: &Participant) -> Option<String> {
    part.reason.as_ref().map(|reason| format!("{} {reason}", part.client))
}

/// Closes a client's part of a round. `unselected`: why its update does not count if it is staged.
fn close(mut part: Participant, keep: bool, total: u64, started: Time, unselected: &str) -> Participant {
    let reassembly = part.incoming.reassembly();
    part.up.bytes = reassembly.bytes();
    // Bytes of a late update may have arrived before the round began. Do not count that time.
    let within = |span: Span| Span { start: span.start.max(started), end: span.end.max(started) };
    part.up.receive = reassembly.span().map(within);
    (part.up.duplicates, part.up.corrupt) = reassembly.faults();
    part.up.complete = reassembly.is_whole();
    if part.is_in() {
        // Chunks that were being folded when the update was concluded are in the sums now.
        part.state = part.state_when_folded();
    }
    if part.state == State::Partial {
        part.up.missing = total - part.up.bytes;
        part.up.holes = part.incoming.reassembly().holes();
        part.reason = Some(format!("{} of its {total} bytes did not arrive", part.up.missing));
    }
    if part.is_in() {
        return part;
    }
    let ended = matches!(part.state, State::Rejected | State::Lost);
    if part.state == State::Staged {
        part.reason = Some(unselected.into());
    } else if !ended {
        part.reason = Some(format!("was still {} when the round ended", doing(part.state)));
    }
    if keep && part.incoming.reassembly().bytes() > 0 {
        part.state = State::Partial;
    } else if !ended {
        part.state = State::Late;
    }
    part
}

fn doing(state: State) -> &'static str {
    match state {
        State::Receiving => "receiving the model",
        State::Training => "training",
        State::Offered => "waiting to send its update",
        _ => "sending its update",
    }
}

/// The record's reason for an update that counts although it is late.
fn lateness(part: &Participant) -> Option<String> {
    let (round, samples) = (part.parcel, part.weight);
    (part.staleness > 0)
        .then(|| format!("trained the model of round {round}; its {samples} samples count less"))
}

fn participation(part: &Participant) -> Participation {
    Participation {
        client: part.client.clone(),
        state: part.state,
        samples: part.counted_weight(),
        metrics: part.metrics.clone(),
        coverage: if part.is_in() { part.incoming.reassembly().fraction() } else { 0.0 },
        reason: part.reason.clone().or_else(|| lateness(part)),
        staleness: part.staleness,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_wire::Range;

    const SECOND: Time = Time::from_secs(1);

    fn round(expected: u32, enough: u32, deadline: Option<Time>, partial: Partial) -> Round {
        let plan = RoundPlan {
            number: 1,
            config: "{}".into(),
            expected,
            choice: Choice::ByName,
            enough,
            goal: expected,
            selection: Selection::First,
            deadline,
            grace: 10 * SECOND,
            outage: Time::ZERO,
            fanout: Fanout::Concurrent,
            gather: Gather::Concurrent,
            version: None,
        };
        let mut round = Round::new(Time::ZERO, plan, 100, partial, Credits::unbounded());
        for sender in 1..=expected {
            assert!(round.assign(Time::ZERO, sender, &format!("c{sender}"), 7));
        }
        round
    }

    fn deliver(round: &mut Round, now: Time, sender: u32) {
        round.offer(now, sender, 10.0, "{}".into());
        assert!(round.grants(now).iter().any(|(s, _)| *s == sender));
        if let Some(part) = round.parts.get_mut(&sender) {
            part.incoming.store(now, Range::new(0, 100));
        }
        round.arrived(now, sender);
        round.folded(now, sender);
    }

    #[test]
    fn ends_complete_when_all_are_whole() {
        let mut round = round(2, 1, None, Partial::Discard);
        deliver(&mut round, SECOND, 1);
        assert_eq!(round.ending(SECOND, Some(Time::ZERO), false), None);
        deliver(&mut round, 2 * SECOND, 2);
        let ending = round.ending(2 * SECOND, Some(Time::ZERO), false).unwrap();
        let outcome = round.outcome(2 * SECOND, &ending);
        assert!(outcome.complete);
        assert_eq!(outcome.participants.len(), 2);
    }

    #[test]
    fn ends_with_k_of_n_at_the_deadline_and_names_the_late_clients() {
        let mut round = round(3, 2, Some(5 * SECOND), Partial::Discard);
        deliver(&mut round, SECOND, 1);
        deliver(&mut round, SECOND, 2);
        assert_eq!(round.ending(4 * SECOND, Some(Time::ZERO), false), None);
        let ending = round.ending(5 * SECOND, Some(Time::ZERO), false).unwrap();
        assert_eq!(ending, Ending::Mean);
        let outcome = round.outcome(5 * SECOND, &ending);
        assert!(!outcome.complete);
        assert_eq!(outcome.participants[2].state, State::Late);
        assert!(outcome.participants[2].reason.as_ref().unwrap().contains("receiving the model"));
    }

    #[test]
    fn fails_below_k_with_the_reasons() {
        let mut round = round(2, 2, None, Partial::Discard);
        deliver(&mut round, SECOND, 1);
        round.reject(SECOND, 2, "sent NaN in \"w\"");
        let Some(Ending::Failed(reason)) = round.ending(SECOND, Some(Time::ZERO), false) else {
            panic!("should fail")
        };
        assert!(reason.contains("1 of 2") && reason.contains("c2 sent NaN"), "{reason}");
    }

    #[test]
    fn a_lost_client_has_its_grace_and_a_departed_one_has_none() {
        let mut round = round(2, 1, None, Partial::Discard);
        deliver(&mut round, SECOND, 1);
        round.lost(2 * SECOND, 2, "the link broke");
        assert_eq!(round.ending(11 * SECOND, Some(Time::ZERO), false), None);
        assert_eq!(round.ending(12 * SECOND, Some(Time::ZERO), false), Some(Ending::Mean));
        round.parts.get_mut(&2).unwrap().departed = true;
        assert_eq!(round.ending(3 * SECOND, Some(Time::ZERO), false), Some(Ending::Mean));
    }

    #[test]
    fn the_round_waits_for_a_staged_update_even_at_the_deadline() {
        let mut round = round(1, 1, Some(SECOND), Partial::Discard);
        round.offer(Time::ZERO, 1, 1.0, "{}".into());
        round.grants(Time::ZERO);
        round.arrived(SECOND, 1);
        assert_eq!(round.ending(2 * SECOND, Some(Time::ZERO), false), None);
        round.folded(2 * SECOND, 1);
        assert_eq!(round.ending(2 * SECOND, Some(Time::ZERO), false), Some(Ending::Mean));
    }

    #[test]
    fn keep_counts_the_bytes_that_arrived_and_discard_does_not() {
        for (partial, state, coverage) in
            [(Partial::Keep, State::Partial, 0.5), (Partial::Discard, State::Lost, 0.0)]
        {
            let mut round = round(2, 1, None, partial);
            deliver(&mut round, SECOND, 1);
            round.offer(SECOND, 2, 5.0, "{}".into());
            round.grants(SECOND);
            round.parts.get_mut(&2).unwrap().incoming.store(SECOND, Range::new(0, 50));
            round.lost(SECOND, 2, "the link broke");
            let outcome = round.outcome(20 * SECOND, &Ending::Mean);
            assert_eq!(outcome.participants[1].state, state);
            assert_eq!(outcome.participants[1].coverage, coverage);
            assert!(!outcome.complete);
        }
    }

    #[test]
    fn the_same_process_resumes_and_a_new_one_starts_over() {
        let mut round = round(1, 1, None, Partial::Discard);
        round.offer(SECOND, 1, 5.0, "{}".into());
        round.grants(SECOND);
        round.parts.get_mut(&1).unwrap().incoming.store(SECOND, Range::new(0, 50));
        round.lost(2 * SECOND, 1, "the link broke");
        round.back(3 * SECOND, 1, true);
        round.offer(4 * SECOND, 1, 5.0, "{}".into());
        let wanted = round.grants(4 * SECOND);
        assert_eq!(wanted[0].1.iter().collect::<Vec<_>>(), [Range::new(50, 100)]);
        round.lost(5 * SECOND, 1, "the process died");
        assert!(round.assign(6 * SECOND, 1, "c1", 8));
        assert_eq!(round.parts[&1].incoming.reassembly().bytes(), 0);
    }

    #[test]
    fn after_the_grace_a_place_is_given_to_others() {
        let mut round = round(2, 1, None, Partial::Discard);
        round.credits = Credits::new(100, 100);
        round.offer(SECOND, 1, 5.0, "{}".into());
        round.offer(SECOND, 2, 5.0, "{}".into());
        assert_eq!(round.grants(SECOND).len(), 1);
        round.lost(2 * SECOND, 1, "the link broke");
        assert_eq!(round.expire(5 * SECOND), Vec::<u32>::new());
        assert_eq!(round.expire(12 * SECOND), [1]);
        assert_eq!(round.grants(12 * SECOND)[0].0, 2);
    }

    #[test]
    fn a_round_with_too_few_updates_is_patient_and_one_with_enough_is_not() {
        let mut round = round(3, 2, None, Partial::Discard);
        round.plan.outage = 60 * SECOND;
        round.offer(SECOND, 3, 5.0, "{}".into());
        round.grants(SECOND);
        deliver(&mut round, SECOND, 1);
        round.lost(2 * SECOND, 2, "the link broke");
        round.lost(2 * SECOND, 3, "the link broke");
        assert_eq!(round.ending(12 * SECOND, Some(Time::ZERO), false), None);
        assert_eq!(round.expire(12 * SECOND), Vec::<u32>::new(), "its bytes stay, as nobody needs the place");
        assert_eq!(round.next_timeout(12 * SECOND, None), Some(62 * SECOND));
        assert_eq!(round.awaited_after_grace(11 * SECOND), Vec::<&str>::new());
        assert_eq!(round.awaited_after_grace(12 * SECOND), ["c2", "c3"]);
        let failed = round.ending(62 * SECOND, Some(Time::ZERO), false);
        assert!(matches!(failed, Some(Ending::Failed(_))));
        round.back(50 * SECOND, 2, true);
        deliver(&mut round, 51 * SECOND, 2);
        assert_eq!(round.ending(51 * SECOND, Some(Time::ZERO), false), Some(Ending::Mean));
        assert_eq!(round.expire(51 * SECOND), [3]);
    }

    #[test]
    fn a_patient_round_still_gives_a_place_in_the_staging_area_to_others_after_the_grace() {
        let mut round = round(2, 2, None, Partial::Discard);
        round.plan.outage = 60 * SECOND;
        round.credits = Credits::new(100, 100);
        round.offer(SECOND, 1, 5.0, "{}".into());
        round.offer(SECOND, 2, 5.0, "{}".into());
        assert_eq!(round.grants(SECOND).len(), 1);
        round.lost(2 * SECOND, 1, "the link broke");
        assert_eq!(round.expire(11 * SECOND), Vec::<u32>::new());
        assert_eq!(round.expire(12 * SECOND), [1]);
        assert_eq!(round.ending(12 * SECOND, Some(Time::ZERO), false), None);
    }

    #[test]
    fn settled_clients_and_a_full_round_take_nobody() {
        let mut round = round(1, 1, None, Partial::Discard);
        assert!(!round.assign(SECOND, 2, "extra", 1));
        deliver(&mut round, SECOND, 1);
        assert!(!round.assign(SECOND, 1, "c1", 9));
    }
}
