//! A client's end of a job of rounds: takes the model into its arena, sends its update.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use thalweg_arena::Arena;
use thalweg_proto as proto;
use thalweg_proto::{ClientAction, ClientConfig, RoundStep, Span, Time, Verdict};
use thalweg_transport::Sink;
use thalweg_wire::control::{Control, Nonce, Proof, StandIn};
use thalweg_wire::{Layout, Ranges, Spread, Tolerance};

use super::client_sink::ClientSink;
use super::repair::mend_model;
use crate::engine::{dialer_machine, DialOptions, Dialer, DialerPolicy, GoOn, Lent, Scratch, CHUNK_PATIENCE};
use crate::options::{seconds, ClientOptions};
use crate::{lock, shared_arena, Error};

/// What a client tells its application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientEvent {
    /// The server has let it in.
    Joined,
    /// The global model of a round is in the arena; train it, then submit.
    Ready {
        /// The round.
        round: u32,
        /// JSON object from the server.
        config: String,
    },
    /// How the update submitted fared.
    Verdict {
        /// The round.
        round: u32,
        /// How.
        verdict: Verdict,
    },
    /// The job is over.
    Finished(Result<String, String>),
}

/// An update as it is sent.
#[derive(Default)]
struct Spreading {
    wire: Option<Arena>,
    /// It is the update of the round that was handed out last.
    is_done: bool,
}

/// What the driver of a client of rounds has besides its link.
pub(crate) struct Trainer {
    place: Mutex<Option<(Arena, Arc<Layout>)>>,
    /// Its transport spares a copy of what lies in shared memory.
    lends: bool,
    /// The last model as it was handed out, if that is to stand in.
    last: Mutex<Option<Vec<u8>>>,
    /// The update in the order in which it is sent, if that is not the model's.
    spread: Mutex<Spreading>,
    events: Mutex<VecDeque<ClientEvent>>,
}

type StarDialer = Dialer<Trainer>;

/// A client of a job.
pub struct Client {
    dialer: Option<Arc<StarDialer>>,
}

impl Client {
    /// Starts to connect. Without a model of its own (`None`) it takes the server's layout.
    ///
    /// # Errors
    /// For an impossible address, option or token; reaching the server is [`Client::next_event`]'s to tell.
    pub fn start(
        address: &str,
        name: &str,
        options: ClientOptions,
        model: Option<(Arena, Layout)>,
    ) -> Result<Self, Error> {
        let (patience, seed) = (seconds(options.patience), options.seed);
        let to = DialOptions::new(address, name, options, thalweg_pki::Role::Client)?;
        let model = model.map(|(arena, layout)| (arena, Arc::new(layout)));
        let layout = model.as_ref().map(|(_, layout)| layout.clone());
        let config = ClientConfig { name: name.into(), instance: to.instance, layout, patience };
        let trainer = Trainer {
            lends: to.transport.capabilities().lends,
            place: Mutex::new(model),
            last: Mutex::default(),
            spread: Mutex::default(),
            events: Mutex::default(),
        };
        Ok(Self { dialer: Some(Dialer::start(to, proto::Client::new(config, seed), trainer)?) })
    }

    /// The next event, waiting as long as `go_on` says yes; `None` once it says no.
    pub fn next_event(&self, go_on: GoOn<'_>) -> Option<ClientEvent> {
        let dialer = self.dialer.as_ref()?;
        dialer.wait_for(|| lock(&dialer.policy.events).pop_front(), go_on)
    }

    /// The arena and its layout, once joined.
    pub fn model(&self) -> Option<(Arena, Arc<Layout>)> {
        lock(&self.dialer.as_ref()?.policy.place).clone()
    }

    /// Offers the update of this weight (a number of samples) that is in the arena; [`ClientEvent::Verdict`] follows.
    ///
    /// # Errors
    /// `round` if that round was not handed out, or the weight is no number.
    pub fn submit(&self, round: u32, weight: f64, metrics: String) -> Result<(), Error> {
        let closed = || Error::new("closed", "submit", "the client is closed");
        let dialer = self.dialer.as_ref().ok_or_else(closed)?;
        let outcome = lock(&dialer.machine).submit(round, weight, metrics);
        dialer.wake();
        outcome.map_err(|e| Error::new("round", "submit", e))
    }

    /// Bytes sent and received so far on the current connection.
    pub fn traffic(&self) -> (u64, u64) {
        let link = self.dialer.as_ref().and_then(|dialer| dialer.link());
        link.map(|link| link.counters()).map_or((0, 0), |c| (c.sent, c.received))
    }

    /// Congestion control of the current connection, as the kernel names it.
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

dialer_machine!(proto::Client, RoundStep);

impl DialerPolicy for Trainer {
    type Machine = proto::Client;

    fn perform(dialer: &Arc<StarDialer>, wanted: RoundStep) {
        match wanted {
            RoundStep::Mend { holes, stand_in } => {
                if let Err(reason) = dialer.policy.mend(&holes, stand_in) {
                    dialer.fail(&reason);
                }
            }
            RoundStep::Ready { round, config } => {
                let stand_in = lock(&dialer.machine).welcome().and_then(|w| w.stand_in);
                dialer.policy.ready(stand_in);
                post(dialer, ClientEvent::Ready { round, config });
            }
            RoundStep::Verdict { round, verdict } => post(dialer, ClientEvent::Verdict { round, verdict }),
        }
    }

    fn joined(dialer: &Arc<StarDialer>) {
        post(dialer, ClientEvent::Joined);
    }

    fn finished(dialer: &Arc<StarDialer>, outcome: Result<String, String>) {
        post(dialer, ClientEvent::Finished(outcome));
    }

    fn lend(dialer: &Arc<StarDialer>, _parcel: u32) -> Result<Lent, String> {
        let spread = lock(&dialer.machine).welcome().and_then(|welcome| welcome.spread);
        let policy = &dialer.policy;
        let (arena, layout) = lock(&policy.place).clone().ok_or("there is no model")?;
        let mut bytes = arena.lend(arena.range()).map_err(|e| e.to_string())?;
        if let Some(seed) = spread {
            bytes = tokio::task::block_in_place(|| policy.spread_out(Spread::new(seed), &layout, &bytes))?;
        }
        Ok(Lent { bytes, layout })
    }

    fn tolerance(machine: &proto::Client) -> Arc<Tolerance> {
        machine.tolerance().clone()
    }

    fn sink(dialer: &Arc<StarDialer>, ordered: bool) -> Box<dyn Sink> {
        Box::new(ClientSink { dialer: dialer.clone(), ordered, scratch: Scratch::default() })
    }

    /// A client without a model of its own takes the server's layout.
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
    lock(&dialer.policy.events).push_back(event);
    dialer.announce();
}

impl Trainer {
    pub fn arena(&self) -> Option<Arena> {
        lock(&self.place).as_ref().map(|(arena, _)| arena.clone())
    }

    /// Puts into the model what stands in for what did not come of it. A late chunk may still be written: others
    /// take this thread's work meanwhile.
    fn mend(&self, holes: &Ranges, stand_in: StandIn) -> Result<(), String> {
        tokio::task::block_in_place(|| {
            let (arena, layout) = lock(&self.place).clone().ok_or("there is no model")?;
            let model = arena.claim_within(arena.range(), CHUNK_PATIENCE);
            let mut model = model.map_err(|e| e.to_string())?;
            let last = lock(&self.last);
            mend_model(&layout, &mut model, holes, stand_in, last.as_deref()).map_err(|e| e.to_string())
        })
    }

    /// A model is about to be handed out.
    fn ready(&self, stand_in: Option<StandIn>) {
        lock(&self.spread).is_done = false;
        if let (Some(StandIn::Last), Some(arena)) = (stand_in, self.arena()) {
            let mut last = lock(&self.last);
            let kept = last.get_or_insert_default();
            kept.clear();
            if let Ok(model) = arena.lend(arena.range()) {
                kept.extend_from_slice(&model);
            } else {
                *last = None; // then own values stand in
            }
        }
    }

    /// The update in the order in which it is sent; made once, however often parts of it are sent.
    fn spread_out(&self, order: Spread, layout: &Layout, update: &[u8]) -> Result<Bytes, String> {
        let mut spread = lock(&self.spread);
        if spread.wire.is_none() {
            spread.wire = Some(Arena::new(update.len() as u64).map_err(|e| e.to_string())?);
        }
        let wire = spread.wire.clone().ok_or("there is no memory")?;
        if !spread.is_done {
            let claim = wire.claim_within(wire.range(), CHUNK_PATIENCE);
            order.to_wire(layout, update, &mut claim.map_err(|e| e.to_string())?);
            spread.is_done = true;
        }
        wire.lend(wire.range()).map_err(|e| e.to_string())
    }
}
