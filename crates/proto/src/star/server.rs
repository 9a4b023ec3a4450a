//! The server's side: its clients, and the round that they take part in.

mod choosing;
mod confirming;
mod counting;
mod fanout;
mod joining;
mod lateness;
mod leaving;
mod moving;
mod selecting;
mod taking;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use thalweg_wire::control::{Content, Control, Hello, Parcel, Purpose, Refusal, StandIn, MAX_HOLES};
use thalweg_wire::{Layout, Range, Ranges, Tolerance};

use self::counting::counted;
pub(crate) use self::leaving::named;
pub use self::moving::Homes;
use super::round::{Deferred, Participant};
use super::{Credits, Outcome, Partial, Round, RoundPlan, Selection, State};
use crate::session::{
    on_our_clock, Action, Admission, Dropped, LinkId, Roster, ServerMachine, SessionConfig,
};
use crate::transfer::{Outgoing, Rule};
use crate::{Liveness, Span, Time};

/// The settings of a job, which never change.
pub struct ServerConfig {
    /// The job's number, which every chunk carries.
    pub job: u64,
    /// The layout of the global model.
    pub layout: Arc<Layout>,
    /// Payload bytes of a chunk.
    pub chunk: u32,
    /// The part of an incomplete update that counts in the mean.
    pub partial: Partial,
    /// The values that take the place of lost bytes; `None`: the server asks for lost bytes again.
    pub stand_in: Option<StandIn>,
    /// The seed of the order in which clients send an update's elements ([`thalweg_wire::Spread`]); `None`:
    /// the layout's order.
    pub spread: Option<u64>,
    /// How much of models and updates may be lost. The rest is asked for again, even with a stand-in.
    pub tolerance: Arc<Tolerance>,
    /// Bytes of updates that may be staged at the same time.
    pub staging: u64,
    /// Whether staged updates are folded together, as late as possible: when no other update can arrive, or
    /// all places are taken.
    pub lazy: bool,
    /// The greatest weight that an update may have.
    pub max_weight: f64,
    /// A link without progress for this long, or longer on a slow link, counts as broken.
    pub liveness: Time,
    /// Maximum number of clients that the job may ever have.
    pub max_clients: u32,
    /// How many rounds an update may be late and still count; 0: a late update does not count.
    pub stale: u32,
    /// Whether an accepted update is confirmed only by [`Server::confirm`], because the sums that it is in must
    /// still count at another server.
    pub withhold: bool,
}

/// Where the driver puts a chunk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Place {
    /// Nowhere: the chunk is late, a duplicate, or not of this job.
    Nothing,
    /// Directly into the update's memory, since none of the chunk's bytes have arrived yet. With staging,
    /// that is the sender's staged update.
    New {
        /// The sender's number.
        sender: u32,
        /// The update's weight. Values are checked with it before [`Server::stored`] is called.
        weight: f64,
    },
    /// Into a buffer first: some of the chunk's bytes have already arrived, and must not be overwritten.
    Part {
        /// The sender's number.
        sender: u32,
        /// The update's weight.
        weight: f64,
    },
}

/// A received chunk that the driver must use.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    /// The sender's number.
    pub sender: u32,
    /// The update's weight.
    pub weight: f64,
    /// The chunk's new ranges. With [`Partial::Keep`] the driver must fold them, if there are any, and then
    /// call [`Server::kept`].
    pub fresh: Vec<Range>,
}

/// A request to the server's driver about a round.
#[derive(Debug)]
pub enum RoundAction {
    /// Fold a staged update with this weight, free its staging memory, then call [`Server::folded`] with the
    /// result.
    Fold {
        /// The sender's number.
        sender: u32,
        /// The update's weight.
        weight: f64,
        /// When the update was complete.
        since: Time,
        /// The bytes of the update that are missing, for which stand-ins are needed.
        holes: Ranges,
    },
    /// Free a staged update without folding it.
    Unstage {
        /// The sender's number.
        sender: u32,
    },
    /// An update has arrived whole, or a batch is over: [`Server::admit`] may have news.
    Arrived,
    /// The round, or a batch of it, is over.
    Ended(Box<Outcome>),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
/// What a client is doing now, as far as the server knows.
enum Duty {
    /// Ready for a round.
    #[default]
    Idle,
    /// Takes part in the current round.
    Round,
    /// Still works on an earlier round, which has ended.
    Behind,
}

/// The result of a client's update.
#[derive(Debug, Clone)]
struct Answer {
    round: u32,
    verdict: Result<(), String>,
    /// The ranges that count. `None`: all of an accepted update, or none of a refused one.
    counted: Option<Ranges>,
    /// The round whose sums contain the update, until [`Server::confirm`] says whether they count. Until then
    /// the client is not told.
    withheld: Option<u32>,
}

/// The state of a client, beyond its membership.
#[derive(Debug, Default)]
pub struct Known {
    duty: Duty,
    /// The result of its last judged update: repeated if the link breaks before the client reads it.
    answer: Option<Answer>,
    /// Whether the log already has a line that its metrics were dropped.
    metrics_reported: bool,
    /// The version of the model that its process has ([`super::Version`]), if it is known.
    held: Option<u32>,
    /// Whether it gets the model of its round as the difference from that version.
    gets_difference: bool,
}

/// The model while it is sent to a client.
#[derive(Debug)]
pub struct Model {
    round: u32,
    /// When the present sending began.
    since: Time,
    out: Outgoing,
}

/// The server's state machine.
pub struct Server {
    config: ServerConfig,
    rule: Rule,
    roster: Roster<Known, Option<Model>, RoundAction>,
    /// Clients that still work on a round that is over.
    behind: BTreeSet<u32>,
    round: Option<Round>,
    /// Between rounds: clients that still work on a round that is over, and whose updates count in the next.
    late: BTreeMap<u32, Participant>,
    /// Those of their updates that are staged and whole.
    late_staged: Vec<Deferred>,
    /// The latest batch that is over: the round's number, and the batch's.
    ended_batch: (u32, u32),
    /// With [`Fanout::Sequential`](crate::Fanout): the link on which the model is being sent.
    turn: Option<LinkId>,
    /// The links that wait for their turn, each with the ranges to send.
    turns: VecDeque<(LinkId, Ranges)>,
    /// The senders' rates, kept from round to round.
    rates: Credits,
    /// Since when clients have been missing: the first round's start, or the last loss of a client since
    /// then.
    absent_since: Option<Time>,
    /// The time of the last [`Server::advance`]: everything that was due by then is done.
    advanced: Time,
    /// A decision is due, but must wait for chunks that are being folded.
    waits: bool,
    /// Where clients belong, if this server is one of several nodes of a tree.
    homes: Homes,
}

impl Server {
    /// Makes a server without clients.
    pub fn new(config: ServerConfig, admission: Box<dyn Admission>) -> Self {
        let sessions = SessionConfig {
            job: config.job,
            purpose: Purpose::Rounds,
            liveness: config.liveness,
            max_members: config.max_clients,
        };
        let rates = Credits::new(config.staging, config.layout.bytes());
        let rule = Rule { stands_in: config.stand_in.is_some(), tolerance: config.tolerance.clone() };
        Self {
            config,
            rule,
            roster: Roster::new(sessions, admission),
            behind: BTreeSet::new(),
            round: None,
            late: BTreeMap::new(),
            late_staged: Vec::new(),
            ended_batch: (0, 0),
            turn: None,
            turns: VecDeque::new(),
            rates,
            absent_since: None,
            advanced: Time::ZERO,
            waits: false,
            homes: Homes::default(),
        }
    }

    /// Whether a round is running.
    pub fn is_in_round(&self) -> bool {
        self.round.is_some()
    }

    /// Each participant's name, state and received fraction of its update, 0 to 1.
    pub fn progress_report(&self) -> Vec<(String, State, f64)> {
        let parts = self.round.iter().flat_map(|r| r.parts().values());
        parts.map(|p| (p.client.clone(), p.state, p.incoming.reassembly().fraction())).collect()
    }

    /// The clients for which the round under way still waits although their grace is over, because it has too
    /// few updates. None while it waits for others, too.
    pub fn awaited_after_grace(&self, now: Time) -> Vec<&str> {
        self.round.as_ref().map_or_else(Vec::new, |round| round.awaited_after_grace(now))
    }

    fn acceptable(&self, update: &Parcel) -> Result<(), String> {
        let ours = self.config.layout.hash();
        match &update.content {
            Content::Whole(layout) if *layout == ours => {}
            Content::Whole(layout) => {
                return Err(format!("offered layout {layout}, the model has {ours}; use the same model"))
            }
            _ => return Err("offered other tensors than the model's; send all of the model".into()),
        }
        if update.weight == 0.0 {
            return Err("offered an update of 0 samples; train on at least one".into());
        }
        let (weight, most) = (update.weight, self.config.max_weight);
        if weight > most {
            return Err(format!(
                "offered an update of {weight} samples; at most {most} are allowed: divide all clients' \
                 numbers by the same factor"
            ));
        }
        Ok(())
    }

    fn drop_staging_of(&mut self, sender: u32) {
        let staged =
            |r: &Round| r.credits.holds(sender) && r.part(sender).is_some_and(|p| p.state != State::Staged);
        if self.config.partial == Partial::Discard && self.round.as_ref().is_some_and(staged) {
            self.roster.want(RoundAction::Unstage { sender });
        }
    }

    /// Begins a round with the connected clients that are ready and that the plan's choice selects. If the plan is a
    /// further batch of the last round, the clients that have not delivered go on.
    ///
    /// # Errors
    /// If a round is running, or the plan can never be fulfilled.
    pub fn start_round(&mut self, now: Time, plan: RoundPlan) -> Result<(), String> {
        if let Some(round) = self.round.as_ref().filter(|round| !round.is_exported()) {
            return Err(format!("round {} is still under way", round.plan.number));
        }
        let wanted = plan.goal.min(plan.expected);
        if wanted == 0 || plan.enough > wanted {
            return Err(format!(
                "{} of {wanted} updates are wanted: a round needs at least one client and no more updates than clients",
                plan.enough
            ));
        }
        self.give_up_withheld(plan.number);
        self.absent_since.get_or_insert(now);
        let total = self.config.layout.bytes();
        match self.round.as_mut().filter(|round| round.is_continued_by(&plan)) {
            Some(round) => {
                round.resume(now, plan);
                self.roster.want(RoundAction::Arrived); // it lists the updates that wait
            }
            None => {
                self.drop_exported();
                let credits = match self.config.partial {
                    Partial::Discard => self.rates.clone(),
                    Partial::Keep => Credits::unbounded(),
                };
                self.round = Some(Round::new(now, plan, total, self.config.partial, credits));
                self.adopt_late(now);
            }
        }
        let links: Vec<LinkId> =
            self.candidates(now).into_iter().filter_map(|s| self.enlist(now, s)).collect();
        self.send_model(now, links, Ranges::full(total));
        self.advance(now);
        Ok(())
    }

    fn offered(&mut self, now: Time, link: LinkId, sender: u32, update: Parcel) {
        let number = update.number;
        let offered = self.acceptable(&update);
        let (weight, metrics) = (update.weight, self.bounded_metrics(sender, update.head));
        if self.is_withheld(sender, number) {
            return;
        }
        if !self.takes_part(sender, number) {
            return self.roster.send(link, Control::Closed { parcel: number });
        }
        if self.answered(sender, number) {
            return;
        }
        let before = self.part(sender, number).map_or(0.0, |part| part.weight);
        match (offered, &mut self.round) {
            // Refuse another weight: chunks were checked, and perhaps folded, with the first one.
            (Ok(()), _) if before > 0.0 && weight != before => {
                let reason =
                    format!("offered an update of {weight} samples; it had offered it with {before} before");
                self.reject(now, sender, number, &reason);
            }
            (Ok(()), Some(current)) => {
                current.offer(now, sender, weight, metrics);
                current.pushing = update.pushed.then_some(sender);
            }
            (Err(reason), _) => self.reject(now, sender, number, &reason),
            (Ok(()), None) => self.offered_late(now, sender, weight, metrics),
        }
    }

    fn set_duty(&mut self, sender: u32, duty: Duty) {
        if let Some(member) = self.roster.member_mut(sender) {
            member.own.duty = duty;
            if duty == Duty::Behind {
                self.behind.insert(sender);
            } else {
                self.behind.remove(&sender);
            }
        }
    }

    fn idle(&mut self, now: Time, sender: u32) {
        if self.roster.member(sender).is_some_and(|m| m.own.duty == Duty::Behind) {
            // The client may already take part in this round, if its Hello said that it held the model of
            // another one.
            self.start_over(now, sender, None);
        }
    }

    fn mark_departed(&mut self, sender: u32) {
        if let Some(member) = self.roster.member_mut(sender) {
            member.departed = true;
        }
        if let Some(part) = self.any_part(sender) {
            part.departed = true;
        }
    }

    /// Since when a missing client may still come; `None` if no client can.
    fn absent_since(&self) -> Option<Time> {
        self.absent_since.filter(|_| !self.roster.is_finished() && !self.is_everybody_accounted_for())
    }

    /// The client's part in the round, or between rounds its part in the next.
    fn any_part(&mut self, sender: u32) -> Option<&mut Participant> {
        match &mut self.round {
            Some(round) => round.part_mut(sender),
            None => self.late.get_mut(&sender),
        }
    }

    /// The same, if the client trains the model of this round.
    fn part(&mut self, sender: u32, round: u32) -> Option<&mut Participant> {
        self.any_part(sender).filter(|part| part.parcel == round)
    }

    /// The round whose model the client trains.
    fn parcel_of(&self, sender: u32) -> Option<u32> {
        let part = self.round.as_ref().map_or_else(|| self.late.get(&sender), |round| round.part(sender));
        part.map(|part| part.parcel)
    }

    /// Acts on the present state: takes back expired places, sends grants, ends the round.
    fn advance(&mut self, now: Time) {
        self.advanced = self.advanced.max(now);
        self.waits = false;
        self.conclude_overdue(now);
        self.replace(now);
        self.fold_selected();
        let (absent_since, busy) = (self.absent_since(), self.is_somebody_busy());
        let Some(round) = &mut self.round else { return };
        let expired = round.expire(now);
        let grants = round.grants(now);
        let pushing = round.pushing.take();
        let together = round.due_together(now, absent_since, busy);
        together.into_iter().for_each(|staged| self.roster.want(staged.fold()));
        let ending = round.ending(now, absent_since, busy);
        // Chunks that are being folded get into the mean, so the outcome must wait for them.
        let held = ending.is_some() && round.is_folding();
        self.waits |= held;
        let ending = ending.filter(|_| !held);
        if self.config.partial == Partial::Discard {
            expired.into_iter().for_each(|sender| self.roster.want(RoundAction::Unstage { sender }));
        }
        for (sender, wanted) in grants {
            if let Some(parcel) = self.parcel_of(sender) {
                self.grant(now, sender, parcel, &wanted, pushing == Some(sender));
            }
        }
        if let Some(ending) = ending {
            let ending = self.with_farewells(ending);
            if self.is_selected_elsewhere() {
                self.end_batch(now, &ending);
            } else if let Some(round) = self.leave_round(now) {
                self.roster.want(RoundAction::Ended(Box::new(round.outcome(now, &ending))));
            }
        }
    }

    /// Whether a connected client still works on a round that is over, and may join this one later.
    fn is_somebody_busy(&self) -> bool {
        self.behind.iter().any(|&sender| self.roster.link_of(sender).is_some())
    }

    /// Lets a client send these ranges of its update. `pushing`: the client is already sending the whole
    /// update.
    fn grant(&mut self, now: Time, sender: u32, round: u32, wanted: &Ranges, pushing: bool) {
        let Some(link) = self.roster.link_of(sender) else { return };
        let began = self.roster.on_link(link, |served| {
            if served.upload.is_some() {
                return None;
            }
            served.upload = Some(Liveness::new(now, served.session.silence));
            // The update followed its Offer at once, so its first bytes may have arrived before the Offer was
            // read.
            if pushing {
                served.count_since_ping();
            } else {
                served.count_anew();
            }
            Some(served.session.ordered)
        });
        let Some(ordered) = began.flatten() else { return };
        if let Some(part) = self.part(sender, round) {
            part.incoming.begin(ordered);
        }
        if !pushing || wanted.bytes() < self.config.layout.bytes() {
            self.roster.send(link, Control::Grant { parcel: round, wanted: wanted.first(MAX_HOLES) });
        }
    }

    /// Ends the round for all its clients.
    fn leave_round(&mut self, now: Time) -> Option<Round> {
        let mut round = self.round.take()?;
        self.end_turns();
        self.rates = round.credits.clone();
        self.late = round.late(now, self.config.stale);
        self.late_staged = round.take_waiting();
        self.late_staged.retain(|staged| self.late.contains_key(&staged.sender));
        for (&sender, part) in round.parts() {
            if self.late.contains_key(&sender) {
                continue;
            }
            let number = part.parcel;
            self.rates.release(sender);
            // A client that holds a place may have a staged update, even if only damaged chunks arrived.
            if self.config.partial == Partial::Discard && round.credits.holds(sender) {
                self.roster.want(RoundAction::Unstage { sender });
            }
            if self.roster.member(sender).is_none_or(|m| m.own.duty != Duty::Round) {
                continue;
            }
            self.set_duty(sender, Duty::Behind);
            self.close_part(sender, number, counted(part, self.config.partial, false));
        }
        Some(round)
    }

    /// Tells a client that the round is over without it. `got`: the ranges of its update that count.
    fn close_part(&mut self, sender: u32, number: u32, got: Option<Ranges>) {
        let Some(link) = self.roster.link_of(sender) else { return };
        self.roster.on_link(link, |served| (served.upload, served.download) = (None, None));
        self.roster.wake(link, None);
        self.roster.act(Action::Cancel { link, parcel: None });
        if let Some(got) = got {
            self.roster.send(link, Control::Have { parcel: number, got });
        }
        self.roster.send(link, Control::Closed { parcel: number });
    }
}

impl ServerMachine for Server {
    type Member = Known;
    type Link = Option<Model>;
    type Wanted = RoundAction;

    fn roster(&self) -> &Roster<Known, Option<Model>, RoundAction> {
        &self.roster
    }

    fn roster_mut(&mut self) -> &mut Roster<Known, Option<Model>, RoundAction> {
        &mut self.roster
    }

    fn hello(&mut self, now: Time, link: LinkId, hello: &Hello) {
        self.join(now, link, hello);
    }

    fn message(&mut self, now: Time, link: LinkId, sender: u32, message: Control) {
        match message {
            Control::Received { parcel, received, duplicates, missing } => {
                self.received(now, link, sender, parcel, received, (duplicates, missing));
            }
            Control::Grant { parcel, wanted } => self.resend(now, link, parcel, &wanted),
            Control::Offer(update) => self.offered(now, link, sender, update),
            Control::End { parcel, sent } => self.end(now, link, sender, parcel, sent),
            Control::Counted { parcel, .. } => self.counted(sender, parcel),
            Control::Idle => self.idle(now, sender),
            Control::Bye { reason } => {
                self.mark_departed(sender);
                self.end_link(now, link, &format!("left: {reason}"));
            }
            _ => self.refuse(now, link, Refusal::Protocol, "this message is the server's to send"),
        }
    }

    /// Updates the round after a link has ended.
    fn dropped(&mut self, now: Time, dropped: Dropped<Option<Model>>) {
        let Dropped { link, member, reason, mut served, .. } = dropped;
        self.end_turn(now, link);
        let Some(sender) = member else { return };
        let departed = self.roster.member(sender).is_some_and(|m| m.departed);
        if !departed && self.absent_since.is_some() {
            self.absent_since = Some(now);
        }
        if let Some(round) = &mut self.round {
            let number = round.plan.number;
            if let Some(part) = round.part_mut(sender) {
                let model = served.own.take().filter(|m| m.round == number && m.out.is_sending());
                if let Some(model) = model {
                    part.down.carry(served.carried_down());
                    part.down.extend_send(Span { start: model.since, end: now });
                } else if part.state == State::Sending {
                    part.up.carry(served.carried_up());
                }
            }
            round.lost(now, sender, &reason);
        } else {
            self.lost_late(now, sender, &reason);
        }
        self.roster.left(sender, reason);
    }

    fn link_due(&mut self, now: Time, link: LinkId) {
        self.settle(now, link);
    }

    fn next_timer(&self) -> Option<Time> {
        self.round.as_ref().and_then(|r| r.next_timeout(self.advanced, self.absent_since()))
    }

    /// Does nothing: [`Server::advance`] checks a round's timers after each input.
    fn timers_due(&mut self, _now: Time) {}

    fn after_input(&mut self, now: Time) {
        self.advance(now);
    }

    fn sent(&mut self, now: Time, link: LinkId, round: u32, outcome: Result<Span, String>) {
        self.model_sent(now, link, round, outcome);
        self.advance(now);
    }

    /// The client's process has ended, so no round waits for it any more.
    fn forget(&mut self, now: Time, client: &str, why: &str) {
        self.expel(now, client, &ended(why));
    }

    fn expel(&mut self, now: Time, client: &str, why: &str) {
        if let Some(sender) = self.roster.named(client) {
            self.mark_departed(sender);
            if let Some(link) = self.roster.link_of(sender) {
                self.end_link(now, link, why);
            }
        }
        self.advance(now);
    }

    fn finish(&mut self, now: Time, reason: &str) {
        self.end_turns();
        self.end_all_links(now, "the job is over", reason);
        for sender in self.roster.members().keys().copied().collect::<Vec<_>>() {
            self.mark_departed(sender);
        }
        self.advance(now);
    }
}

fn ended(why: &str) -> String {
    let (what, colon) = ("its process has ended", if why.is_empty() { "" } else { ": " });
    format!("{what}{colon}{why}")
}
