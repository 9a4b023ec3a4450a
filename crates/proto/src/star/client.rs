//! The client's side: receive the model, train, offer the update.

use thalweg_wire::control::{
    Content, Control, Holding, Interval, Parcel, Purpose, StandIn, Tracked, HELLO_HOLES, MAX_HOLES,
};
use thalweg_wire::text::MAX_METRICS;
use thalweg_wire::{ChunkHeader, Layout, LayoutHash, Ranges, Tolerance};

use crate::session::{ClientAction, ClientConfig, ClientMachine, Dial};
use crate::transfer::{ChunkReceiver, Incoming, Outgoing, Rule, Step};
use crate::{micros, Span, Time};

/// The result of an update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The update was folded into the round's sums.
    Accepted,
    /// The round was over.
    Late,
    /// The server refused the update, for this reason.
    Rejected(String),
}

/// A request to a client's driver about a round.
#[derive(Debug)]
pub enum RoundStep {
    /// Fill these holes of the model in the arena. [`RoundStep::Ready`] follows.
    Fill {
        /// The ranges that are missing.
        holes: Ranges,
        /// The values that take their place.
        stand_in: StandIn,
    },
    /// The global model of a round is complete in the arena.
    Ready {
        /// The round's number.
        round: u32,
        /// The round's configuration from the server, a JSON object.
        config: String,
        /// How the arena's bytes give the model, if the server compresses models.
        tracked: Option<Tracked>,
    },
    /// The result of the submitted update.
    Verdict {
        /// The round's number.
        round: u32,
        /// The result.
        verdict: Verdict,
        /// The bytes of the update that do not count, as far as the server has named them.
        lost: Ranges,
    },
}

/// An update that the application has submitted.
#[derive(Debug)]
struct Submission {
    round: u32,
    weight: f64,
    metrics: String,
    out: Outgoing,
    /// The ranges that count, if the server has named them.
    counted: Option<Ranges>,
}

/// What the client is doing.
#[derive(Debug)]
enum Phase {
    Idle,
    Receiving {
        round: u32,
        config: String,
        tracked: Option<Tracked>,
        model: Incoming,
        /// Whether the server has already reserved a place for the update. If so, the chunks follow the Offer
        /// at once.
        invited: bool,
    },
    /// The application has the model; `stale` if the round is over.
    Training {
        round: u32,
        stale: bool,
        invited: bool,
    },
    Submitting(Submission),
}

/// The client's state machine.
#[derive(Debug)]
pub struct Client {
    dial: Dial<RoundStep>,
    phase: Phase,
    /// How much of models and updates may be lost, from the server's Welcome.
    rule: Rule,
}

impl Client {
    /// Makes a client that connects at once. `seed` spreads the retries of many clients.
    pub fn new(config: ClientConfig, seed: u64) -> Self {
        Self { dial: Dial::new(config, Purpose::Rounds, seed), phase: Phase::Idle, rule: Rule::default() }
    }

    /// How much of models and updates may be lost. Known once the server has let the client in.
    pub fn tolerance(&self) -> &std::sync::Arc<Tolerance> {
        &self.rule.tolerance
    }

    fn begin(&mut self, round: u32, head: Vec<u8>, content: &Content) {
        let offered = if let Content::Tracked(tracked) = content { Some(*tracked) } else { None };
        let total = self.dial.welcome().map_or(0, |w| w.layout.bytes());
        let ordered = self.dial.is_ordered();
        match &mut self.phase {
            // The same round again after a broken link: the ranges that have arrived are kept.
            // If the round was begun anew meanwhile, its model may be another.
            Phase::Receiving { round: known, tracked, model, .. }
                if *known == round && *tracked == offered =>
            {
                model.begin(ordered);
            }
            Phase::Idle | Phase::Receiving { .. } => {
                let mut model = Incoming::new(total);
                model.begin(ordered);
                let config = String::from_utf8(head).unwrap_or_default();
                self.phase = Phase::Receiving { round, config, tracked: offered, model, invited: false };
            }
            Phase::Training { .. } | Phase::Submitting(_) => {}
        }
    }

    fn model_end(&mut self, now: Time, ended: u32) {
        let Phase::Receiving { round, model, .. } = &mut self.phase else { return };
        if *round == ended && model.ended(now) {
            self.model_conclude(now);
        }
    }

    fn model_conclude(&mut self, now: Time) {
        let Phase::Receiving { round, config, tracked, model, invited } = &mut self.phase else { return };
        let (round, tracked, invited) = (*round, *tracked, *invited);
        let holes = match model.conclude(now, &self.rule) {
            Step::Wait => return,
            Step::Ask(wanted) => return self.dial.send(Control::Grant { parcel: round, wanted }),
            Step::Here(holes) => holes,
        };
        let missing = holes.bytes();
        let span = model.span().unwrap_or(Span { start: now, end: now });
        let received = Interval { start: micros(span.start), end: micros(span.end) };
        let (duplicates, _) = model.reassembly().faults();
        let config = std::mem::take(config);
        let stand_in = self.dial.welcome().and_then(|w| w.stand_in);
        if let Some(stand_in) = stand_in.filter(|_| missing > 0) {
            self.dial.want(RoundStep::Fill { holes, stand_in });
        }
        self.phase = Phase::Training { round, stale: false, invited };
        self.dial.send(Control::Received { parcel: round, received, duplicates, missing });
        self.dial.want(RoundStep::Ready { round, config, tracked });
    }

    /// Submits an update: the application has trained, and the update is in the arena. `weight` is a number
    /// of samples.
    ///
    /// # Errors
    /// If this round's model was not handed out, `weight` is negative or not finite, or the metrics are
    /// longer than the server keeps.
    pub fn submit(&mut self, round: u32, weight: f64, metrics: String) -> Result<(), String> {
        if metrics.len() > MAX_METRICS {
            let length = metrics.len();
            return Err(format!(
                "metrics of {length} bytes are over {MAX_METRICS}; report fewer or shorter ones"
            ));
        }
        if !(weight.is_finite() && weight >= 0.0) {
            return Err(format!("{weight} is no weight; use the number of samples"));
        }
        match self.phase {
            Phase::Training { round: current, stale, invited } if current == round => {
                if stale {
                    self.phase = Phase::Idle;
                    self.verdict(round, Verdict::Late, None);
                    self.dial.send(Control::Idle);
                    return Ok(());
                }
                let out = if invited { Outgoing::pushed() } else { Outgoing::default() };
                let submission = Submission { round, weight, metrics, out, counted: None };
                let offer = offer(&submission, self.dial.layout_hash());
                self.phase = Phase::Submitting(submission);
                self.dial.send(offer);
                if invited {
                    let wanted = Ranges::full(self.dial.welcome().map_or(0, |w| w.layout.bytes()));
                    self.dial.act(ClientAction::SendParcel { parcel: round, wanted });
                }
                Ok(())
            }
            _ => {
                Err(format!("round {round} is not being trained; submit the round that was handed out, once"))
            }
        }
    }

    fn granted(&mut self, granted: u32, wanted: &Ranges) {
        match &mut self.phase {
            Phase::Submitting(submission) if submission.round == granted => {
                submission.out.grant(wanted);
                self.send_next();
            }
            // A grant before the update exists is always for the whole update.
            Phase::Receiving { round, invited, .. } | Phase::Training { round, invited, .. }
                if *round == granted =>
            {
                *invited = true;
            }
            _ => {}
        }
    }

    fn send_next(&mut self) {
        let Phase::Submitting(submission) = &mut self.phase else { return };
        if let Some(wanted) = submission.out.next() {
            self.dial.act(ClientAction::SendParcel { parcel: submission.round, wanted });
        }
    }

    /// Notes which ranges of an update count. The verdict follows.
    fn note_counted(&mut self, round: u32, got: Ranges) {
        if let Phase::Submitting(submission) = &mut self.phase {
            if submission.round == round {
                submission.counted = Some(got);
            }
        }
    }

    fn settled(&mut self, settled: u32, verdict: Verdict) {
        let Phase::Submitting(submission) = &mut self.phase else { return };
        if submission.round != settled {
            return;
        }
        let counted = submission.counted.take();
        // If the server accepted what arrived by the deadline, it needs no more.
        if verdict != Verdict::Accepted || submission.out.is_sending() {
            self.dial.act(ClientAction::Cancel { parcel: None });
        }
        self.phase = Phase::Idle;
        self.verdict(settled, verdict, counted);
    }

    fn round_closed(&mut self, closed: u32) {
        match &mut self.phase {
            Phase::Receiving { round, .. } if *round == closed => {
                self.phase = Phase::Idle;
                self.dial.send(Control::Idle);
            }
            Phase::Training { round, stale, .. } if *round == closed => *stale = true,
            Phase::Submitting(submission) if submission.round == closed => {
                let counted = submission.counted.take();
                self.dial.act(ClientAction::Cancel { parcel: None });
                self.phase = Phase::Idle;
                self.verdict(closed, Verdict::Late, counted);
                self.dial.send(Control::Idle);
            }
            Phase::Idle => self.dial.send(Control::Idle),
            _ => {}
        }
    }

    /// Reports the result of an update, and which bytes of it do not count.
    fn verdict(&mut self, round: u32, verdict: Verdict, counted: Option<Ranges>) {
        let total = self.layout().map_or(0, Layout::bytes);
        let lost = match counted {
            Some(counted) => counted.holes(total),
            None if verdict == Verdict::Accepted => Ranges::new(),
            None => Ranges::full(total),
        };
        self.dial.want(RoundStep::Verdict { round, verdict, lost });
    }

    /// The layout of the global model, once it is known.
    pub fn layout(&self) -> Option<&Layout> {
        self.dial.welcome().map(|w| &w.layout)
    }
}

impl ClientMachine for Client {
    type Wanted = RoundStep;

    fn dial(&self) -> Option<&Dial<RoundStep>> {
        Some(&self.dial)
    }

    fn dial_mut(&mut self) -> Option<&mut Dial<RoundStep>> {
        Some(&mut self.dial)
    }

    fn holding(&self) -> Holding {
        match &self.phase {
            Phase::Idle => Holding::Nothing,
            Phase::Receiving { round, model, .. } => {
                let holes = model.reassembly().holes();
                if holes.count() > MAX_HOLES {
                    return Holding::Nothing;
                }
                Holding::Model { round: *round, holes: holes.longest(HELLO_HOLES) }
            }
            Phase::Training { round, .. } | Phase::Submitting(Submission { round, .. }) => {
                Holding::Round { round: *round }
            }
        }
    }

    fn welcomed(&mut self, _now: Time) {
        let Some(welcome) = self.dial.welcome() else { return };
        match Tolerance::new(&welcome.layout, &welcome.allowances) {
            Ok(tolerance) => {
                self.rule = Rule { stands_in: welcome.stand_in.is_some(), tolerance: tolerance.into() };
            }
            Err(error) => {
                self.dial.act(ClientAction::Close);
                return self.dial.finish(Err(format!("the server's rule for lost bytes: {error}").into()));
            }
        }
        // Offers a running submission again. The server knows which ranges it already has.
        if let Phase::Submitting(submission) = &self.phase {
            let offer = offer(submission, self.dial.layout_hash());
            self.dial.send(offer);
        }
    }

    fn message(&mut self, now: Time, message: Control) {
        match message {
            Control::Offer(Parcel { number, head, content, .. }) => self.begin(number, head, &content),
            Control::End { parcel, .. } => self.model_end(now, parcel),
            Control::Grant { parcel, wanted } => self.granted(parcel, &wanted),
            Control::Accepted { parcel } => self.settled(parcel, Verdict::Accepted),
            Control::Rejected { parcel, reason } => self.settled(parcel, Verdict::Rejected(reason)),
            Control::Have { parcel, got } => self.note_counted(parcel, got),
            Control::Closed { parcel } => self.round_closed(parcel),
            _ => {}
        }
    }

    fn link_lost(&mut self, _now: Time, _reason: &str) {
        match &mut self.phase {
            Phase::Submitting(submission) => submission.out.forget(),
            Phase::Receiving { model, invited, .. } => {
                model.stop();
                *invited = false;
            }
            Phase::Training { invited, .. } => *invited = false,
            Phase::Idle => {}
        }
    }

    fn next_timer(&self) -> Option<Time> {
        match &self.phase {
            Phase::Receiving { model, .. } => model.settle(),
            _ => None,
        }
    }

    fn timers_due(&mut self, now: Time) {
        self.model_conclude(now);
    }

    fn sent(&mut self, _now: Time, round: u32, outcome: Result<Span, String>) {
        let Phase::Submitting(submission) = &mut self.phase else { return };
        if submission.round != round || !submission.out.is_sending() {
            return; // belongs to a link or a submission that is over
        }
        let Ok(span) = outcome else { return submission.out.forget() };
        submission.out.sent(round, span).for_each(|end| self.dial.send(end));
        self.send_next();
    }
}

impl ChunkReceiver for Client {
    fn receiving(&mut self, chunk: &ChunkHeader) -> Option<&mut Incoming> {
        let welcome = self.dial.welcome()?;
        let ours = chunk.job == welcome.job && chunk.sender == 0 && chunk.layout == welcome.layout.hash();
        match &mut self.phase {
            Phase::Receiving { round, model, .. } if ours && *round == chunk.round => Some(model),
            _ => None,
        }
    }
}

fn offer(submission: &Submission, layout: LayoutHash) -> Control {
    Control::Offer(Parcel {
        number: submission.round,
        pushed: submission.out.is_sending(),
        head: submission.metrics.clone().into_bytes(),
        content: Content::Whole(layout),
        same_as: None,
        weight: submission.weight,
        deadline: None,
    })
}
