//! A client of a job of rounds: it receives the model into its arena and sends its update.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use thalweg_arena::Arena;
use thalweg_proto as proto;
use thalweg_proto::{ClientConfig, ClientMachine, Failure, RoundStep, Verdict};
use thalweg_transport::Sink;
use thalweg_wire::control::{Control, StandIn, Tracked};
use thalweg_wire::{Layout, Ranges, Spread, Tolerance};

use super::client_sink::ClientSink;
use super::feedback::Feedback;
use super::repair::fill_model;
use crate::engine::{DialOptions, Dialer, DialerPolicy, EventQueue, GoOn, Lent, Scratch, CHUNK_TIMEOUT};
use crate::options::{seconds, ClientOptions};
use crate::{lock, shared_arena, Error, Kind};

/// Events for the application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientEvent {
    /// The server has admitted the client.
    Joined,
    /// The round's global model is in the arena. The application trains it and then submits.
    Ready {
        /// Number of the round.
        round: u32,
        /// The round's configuration, a JSON object from the server.
        config: String,
    },
    /// The server's verdict on the submitted update.
    Verdict {
        /// Number of the round.
        round: u32,
        /// The verdict.
        verdict: Verdict,
    },
    /// The job is over: with a reason, or with an error.
    Finished(Result<String, Failure>),
}

/// The update in the order on the wire.
#[derive(Default)]
struct Spreading {
    wire: Option<Arena>,
    /// Whether `wire` holds the update of the round that was handed out last.
    is_done: bool,
}

/// The policy of a client of rounds.
pub(crate) struct Trainer {
    place: Mutex<Option<(Arena, Arc<Layout>)>>,
    /// Whether the transport can send shared memory without a copy.
    lends: bool,
    /// The last model as it was handed out. It is kept if its values may stand in for lost ones.
    last: Mutex<Option<Vec<u8>>>,
    /// The update in the order on the wire, if that is not the model's order.
    spread: Mutex<Spreading>,
    /// Makes compressed updates, if the job compresses them with error feedback.
    feedback: Option<Feedback>,
    events: EventQueue<ClientEvent>,
}

type StarDialer = Dialer<Trainer>;

/// A client of a job.
pub struct Client {
    dialer: Option<Arc<StarDialer>>,
}

impl Client {
    /// Starts connecting. A client that has no model (`None`) uses the server's layout.
    ///
    /// # Errors
    /// An error for an impossible address, option or token. [`Client::next_event`] reports whether the server
    /// was reached.
    pub fn start(
        address: &str,
        name: &str,
        options: ClientOptions,
        model: Option<(Arena, Layout)>,
    ) -> Result<Self, Error> {
        let (timeout, outage, seed) = (seconds(options.timeout), seconds(options.outage), options.seed);
        let scheme = options.layers.compress.and_then(|compress| compress.scheme);
        let feedback = scheme.map(|scheme| Feedback::new(scheme, options.residual.clone(), seed));
        let to = DialOptions::new(address, name, options, thalweg_pki::Role::Client)?;
        let model = model.map(|(arena, layout)| (arena, Arc::new(layout)));
        let layout = model.as_ref().map(|(_, layout)| layout.clone());
        let config = ClientConfig { name: name.into(), instance: to.instance, layout, timeout, outage };
        let trainer = Trainer {
            lends: to.transport.capabilities().lends,
            place: Mutex::new(model),
            last: Mutex::default(),
            spread: Mutex::default(),
            feedback,
            events: EventQueue::default(),
        };
        let machine = Mutex::new(proto::Client::new(config, seed));
        Ok(Self { dialer: Some(Dialer::start(to, machine, trainer)?) })
    }

    /// Waits for the next event; `None` once `go_on` returns false. [`ClientEvent::Finished`] is the last, and comes
    /// again with each later call.
    pub fn next_event(&self, go_on: GoOn<'_>) -> Option<ClientEvent> {
        let dialer = self.dialer.as_ref()?;
        dialer.wait_for(|| dialer.policy.events.next(ClientEvent::Finished), go_on)
    }

    /// The arena and its layout, once joined.
    pub fn model(&self) -> Option<(Arena, Arc<Layout>)> {
        lock(&self.dialer.as_ref()?.policy.place).clone()
    }

    /// Offers the update in the arena. Its weight is usually a number of samples. [`ClientEvent::Verdict`]
    /// follows.
    ///
    /// # Errors
    /// `round` if that round was not handed out, or the weight or the metrics are impossible; `closed` after
    /// [`Client::close`].
    pub fn submit(&self, round: u32, weight: f64, metrics: String) -> Result<(), Error> {
        let closed = || Error::new(Kind::Closed, "submit", "the client is closed");
        let dialer = self.dialer.as_ref().ok_or_else(closed)?;
        dialer.policy.make_update().map_err(|why| Error::new(Kind::System, "compress the update", why))?;
        let outcome = lock(&dialer.machine).submit(round, weight, metrics);
        dialer.wake();
        outcome.map_err(|e| Error::new(Kind::Round, "submit", e))
    }

    /// Bytes sent and received so far on the current connection.
    pub fn traffic(&self) -> (u64, u64) {
        let link = self.dialer.as_ref().and_then(|dialer| dialer.link());
        link.map(|link| link.counters()).map_or((0, 0), |c| (c.sent, c.received))
    }

    /// Congestion control of the current connection, by the kernel's name for it.
    pub fn congestion(&self) -> Option<String> {
        self.dialer.as_ref()?.link()?.counters().congestion
    }

    /// Leaves for good.
    pub fn close(&mut self, reason: &str) {
        if let Some(dialer) = self.dialer.take() {
            dialer.close(reason);
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.close("the client has stopped");
    }
}

impl DialerPolicy for Trainer {
    type Lock = Mutex<proto::Client>;

    fn perform(dialer: &Arc<StarDialer>, wanted: RoundStep) {
        match wanted {
            RoundStep::Fill { holes, stand_in } => {
                if let Err(reason) = dialer.policy.fill(&holes, stand_in) {
                    dialer.fail(reason);
                }
            }
            RoundStep::Ready { round, config, tracked } => {
                let stand_in = lock(&dialer.machine).welcome().and_then(|w| w.stand_in);
                dialer.policy.ready(stand_in);
                if let Err(reason) = dialer.policy.keep_model(tracked) {
                    return dialer.fail(reason);
                }
                post(dialer, ClientEvent::Ready { round, config });
            }
            RoundStep::Verdict { round, verdict, lost } => {
                if let Err(reason) = dialer.policy.settle(&lost) {
                    return dialer.fail(reason);
                }
                post(dialer, ClientEvent::Verdict { round, verdict });
            }
        }
    }

    fn joined(dialer: &Arc<StarDialer>) {
        post(dialer, ClientEvent::Joined);
    }

    fn finished(dialer: &Arc<StarDialer>, outcome: Result<String, Failure>) {
        dialer.policy.events.finish(outcome);
        dialer.announce();
    }

    fn lend(dialer: &Arc<StarDialer>, _parcel: u32, _wanted: &Ranges) -> Result<Lent, String> {
        let spread = lock(&dialer.machine).welcome().and_then(|welcome| welcome.spread);
        let policy = &dialer.policy;
        let (arena, layout) = lock(&policy.place).clone().ok_or("there is no model")?;
        let mut bytes = match &policy.feedback {
            Some(feedback) => feedback.lend()?,
            None => arena.lend(arena.range()).map_err(|e| e.to_string())?,
        };
        if let Some(seed) = spread {
            bytes = tokio::task::block_in_place(|| policy.spread_out(Spread::new(seed), &layout, &bytes))?;
        }
        Ok(Lent::whole(bytes, layout))
    }

    fn tolerance(machine: &proto::Client) -> Arc<Tolerance> {
        machine.tolerance().clone()
    }

    fn sink(dialer: &Arc<StarDialer>, ordered: bool) -> Box<dyn Sink> {
        Box::new(ClientSink { dialer: dialer.clone(), ordered, scratch: Scratch::default() })
    }

    /// A client that has no model takes the server's layout.
    fn before(&self, message: &Control) -> Result<(), String> {
        let Control::Welcome(welcome) = message else { return Ok(()) };
        let mut place = lock(&self.place);
        if place.is_none() {
            let bytes = welcome.layout.bytes();
            let arena = if self.lends { shared_arena(bytes) } else { Arena::new(bytes) };
            let arena = arena.map_err(|e| e.to_string())?;
            *place = Some((arena, Arc::new(welcome.layout.clone())));
        }
        Ok(())
    }
}

fn post(dialer: &StarDialer, event: ClientEvent) {
    dialer.policy.events.post(event);
    dialer.announce();
}

impl Trainer {
    pub fn arena(&self) -> Option<Arena> {
        lock(&self.place).as_ref().map(|(arena, _)| arena.clone())
    }

    /// Fills the holes of the model with stand-in values. Waits for the memory, since late chunks may still
    /// be being written. Other tasks move to another thread meanwhile.
    fn fill(&self, holes: &Ranges, stand_in: StandIn) -> Result<(), String> {
        tokio::task::block_in_place(|| {
            let (arena, layout) = lock(&self.place).clone().ok_or("there is no model")?;
            let model = arena.claim_within(arena.range(), CHUNK_TIMEOUT);
            let mut model = model.map_err(|e| e.to_string())?;
            let last = lock(&self.last);
            fill_model(&layout, &mut model, holes, stand_in, last.as_deref()).map_err(|e| e.to_string())
        })
    }

    /// Before a model is handed out, stores the values that may stand in for lost ones later.
    fn ready(&self, stand_in: Option<StandIn>) {
        lock(&self.spread).is_done = false;
        if let (Some(StandIn::Last), Some(arena)) = (stand_in, self.arena()) {
            let mut last = lock(&self.last);
            let kept = last.get_or_insert_default();
            kept.clear();
            if let Ok(model) = arena.lend(arena.range()) {
                kept.extend_from_slice(&model);
            } else {
                *last = None; // the client's own values stand in then
            }
        }
    }

    /// Copies the received model, if updates are differences from it. A model that was sent as a difference is put
    /// together first.
    fn keep_model(&self, tracked: Option<Tracked>) -> Result<(), String> {
        let (Some(feedback), Some((arena, layout))) = (&self.feedback, lock(&self.place).clone()) else {
            return tracked
                .map_or(Ok(()), |_| Err("the server compresses its model, and this end not".into()));
        };
        tokio::task::block_in_place(|| {
            if let Some(tracked) = tracked {
                feedback.follow(&arena, &layout, tracked)?;
            }
            feedback.begin(&arena, &layout)
        })
    }

    /// Makes the compressed update of the trained model, if updates are compressed with error feedback.
    fn make_update(&self) -> Result<(), String> {
        let (Some(feedback), Some((arena, layout))) = (&self.feedback, lock(&self.place).clone()) else {
            return Ok(());
        };
        feedback.make(&arena, &layout)
    }

    /// Puts the bytes of the update that do not count back into the residual.
    fn settle(&self, lost: &Ranges) -> Result<(), String> {
        let (Some(feedback), Some((_, layout))) = (&self.feedback, lock(&self.place).clone()) else {
            return Ok(());
        };
        tokio::task::block_in_place(|| feedback.settle(&layout, lost))
    }

    /// The update in the order on the wire. It is reordered once, however often parts of it are sent.
    fn spread_out(&self, order: Spread, layout: &Layout, update: &[u8]) -> Result<Bytes, String> {
        let mut spread = lock(&self.spread);
        if spread.wire.is_none() {
            spread.wire = Some(Arena::new(update.len() as u64).map_err(|e| e.to_string())?);
        }
        let wire = spread.wire.clone().ok_or("there is no memory")?;
        if !spread.is_done {
            let claim = wire.claim_within(wire.range(), CHUNK_TIMEOUT);
            order.to_wire(layout, update, &mut claim.map_err(|e| e.to_string())?);
            spread.is_done = true;
        }
        wire.lend(wire.range()).map_err(|e| e.to_string())
    }
}
