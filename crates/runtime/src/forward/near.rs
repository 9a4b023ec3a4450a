//! The near end of a forwarded path: it accepts programs, and dials the far end.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use thalweg_pki as pki;
use thalweg_transport::{Accepted, Acceptor, Address, AdmissionQueue, Bounds, ConnectionLimit, Transport};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::carrier::Carrier;
use super::events::{Event, Events};
use super::handshake::{self, Identity, Ready};
use super::http2;
use super::options::ForwardOptions;
use super::{program, stop};
use crate::engine::descriptor_limit;
use crate::{random, registry, Error, Kind};

const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(5);
/// Pause after an accept failed, for example because no descriptor was left.
const BREATH: Duration = Duration::from_millis(100);
const START: &str = "start to forward";

/// How to reach the far end.
struct Way {
    address: Address,
    transport: Arc<dyn Transport>,
    options: ForwardOptions,
    who: Identity,
}

impl Way {
    /// Dials once. Returns a link on which the far end has admitted this end, and the number of streams that
    /// both allow.
    async fn dial(&self) -> Result<(Arc<Carrier>, u32), Error> {
        let link = self.transport.connect(&self.address, &self.options.transport).await?;
        let agreed = handshake::near(&link, &self.who).await;
        let Ready { window, streams, liveness } = match agreed {
            Ok(ready) => ready,
            Err(error) => {
                link.close().await;
                return Err(error);
            }
        };
        let rules = self.options.rules(&link.capabilities(), window, liveness);
        let streams = self.options.connections.min(streams).max(1);
        // The far end must not open streams. If it tries, they are refused, because nobody reads this queue.
        let (opened, _) = mpsc::channel(1);
        Ok((Carrier::new(link, rules, 1, opened), streams))
    }

    /// Dials until one attempt succeeds, but for at most `timeout` if that is given.
    async fn dial_for(&self, timeout: Option<Duration>) -> Result<(Arc<Carrier>, u32), Error> {
        let (began, mut wait) = (Instant::now(), FIRST_RETRY);
        loop {
            let error = match self.dial().await {
                Ok(dialed) => return Ok(dialed),
                Err(error) => error,
            };
            let may_retry =
                matches!(error.kind(), Kind::Unreachable | Kind::Timeout | Kind::Closed | Kind::Corrupt);
            if !may_retry || timeout.is_some_and(|timeout| began.elapsed() + wait > timeout) {
                return Err(error);
            }
            sleep(wait).await;
            wait = (2 * wait).min(LAST_RETRY);
        }
    }
}

/// State that all programs' connections share.
struct Serving {
    events: Events,
    /// How this end terminates HTTP/2, if it does.
    http2: Option<http2::Near>,
}

/// A near end that listens and is connected.
pub(crate) struct Near {
    way: Way,
    listener: TcpListener,
    listen: String,
    /// Admission queue for programs that have not sent a byte yet.
    admission_queue: AdmissionQueue,
    first: (Arc<Carrier>, u32),
    serving: Arc<Serving>,
    connections: u64,
}

impl Near {
    pub async fn open(options: &ForwardOptions, events: Events) -> Result<Self, Error> {
        let via = options.via.as_deref().unwrap_or_default();
        let address = Address::parse(via)?;
        let transport = registry::transport_for(&address, &options.transport, &options.layers, options.seed)?;
        let bad = |e: pki::PkiError| Error::new(Kind::Options, "read token", e.cause()).hint(e.hint());
        let token = options.token.as_deref();
        let token = token.map(|text| pki::Token::of(text, pki::Role::Forward, &options.name));
        let token = token.transpose().map_err(bad)?;
        let who = Identity { name: options.name.clone(), token, instance: u64::from_le_bytes(random()?) };
        let io = |e: std::io::Error| {
            Error::from(thalweg_transport::Error::io(START, format!("listen at {}", options.listen), &e))
        };
        let descriptors = descriptor_limit();
        ConnectionLimit::check(START, options.connections as usize, 1, descriptors)?;
        let bounds = Bounds { timeout: options.first_byte(), ..Bounds::of_process(descriptors) };
        let admission_queue = AdmissionQueue::new(bounds);
        let listener = TcpListener::bind(&options.listen).await.map_err(io)?;
        let listen = listener.local_addr().map_err(io)?.to_string();
        let way = Way { address, transport, options: options.clone(), who };
        let first = way.dial_for(Some(options.timeout())).await?;
        let http2 = options.grpc.then(|| http2::Near::new(options.answers(), options.window));
        let serving = Arc::new(Serving { events, http2 });
        Ok(Self { way, listener, listen, admission_queue, first, serving, connections: 0 })
    }

    pub fn listening(&self) -> Event {
        let answers = self.way.options.answers.iter().map(|answer| answer.method.clone()).collect();
        let via = Some(self.way.address.to_string());
        Event::Listening { listen: self.listen.clone(), via, to: None, answers }
    }

    /// Serves until it is stopped.
    ///
    /// # Errors
    /// An error if the far end refuses this end, or if another error occurs that a retry cannot cure.
    pub async fn run(mut self, mut stopped: watch::Receiver<bool>) -> Result<(), Error> {
        let (mut carrier, mut streams) = self.first.clone();
        let outcome = loop {
            self.link(true, None).await;
            let mut programs = JoinSet::new();
            let why = tokio::select! {
                why = carrier.drive() => why,
                never = self.accept(&carrier, streams, &mut programs) => match never {},
                () = stop(&mut stopped) => {
                    carrier.close("the near end was stopped").await;
                    self.ended(&mut programs).await;
                    break Ok(());
                }
            };
            self.ended(&mut programs).await;
            self.link(false, Some(why)).await;
            let dialed = tokio::select! {
                dialed = self.way.dial_for(None) => dialed,
                never = self.wait_then_reset_programs() => match never {},
                () = stop(&mut stopped) => break Ok(()),
            };
            match dialed {
                Ok(next) => (carrier, streams) = next,
                Err(error) => break Err(error),
            }
        };
        self.serving.events.tell(Event::Stopped { connections: self.connections }).await;
        outcome
    }

    async fn link(&self, up: bool, why: Option<String>) {
        self.serving.events.tell(Event::Link { peer: self.way.address.to_string(), up, why }).await;
    }

    /// Waits for the programs' tasks. These end with their link, and report their end.
    async fn ended(&self, programs: &mut JoinSet<()>) {
        while programs.join_next().await.is_some() {}
    }

    /// Accepts programs. At the limit, further programs wait in the kernel's queue.
    async fn accept(
        &mut self,
        carrier: &Arc<Carrier>,
        streams: u32,
        programs: &mut JoinSet<()>,
    ) -> Infallible {
        let acceptor = Acceptor::new(
            self.admission_queue.clone(),
            ConnectionLimit::with_half_for_each_address(streams as usize),
        );
        loop {
            acceptor.room().await;
            while programs.try_join_next().is_some() {}
            match self.listener.accept().await {
                Ok((program, from)) => {
                    self.connections += 1;
                    let (accepted, serving) = (acceptor.enter(from), self.serving.clone());
                    let who = (self.connections, from.to_string());
                    programs.spawn(welcome(carrier.clone(), program, who, serving, accepted));
                }
                Err(error) => {
                    let what = format!("a connection could not be accepted: {error}");
                    self.serving.events.tell(Event::Note { what }).await;
                    sleep(BREATH).await;
                }
            }
        }
    }

    /// Serves programs while there is no link: they wait for a time limit, and after that they are reset.
    async fn wait_then_reset_programs(&self) -> Infallible {
        sleep(self.way.options.timeout()).await;
        loop {
            match self.listener.accept().await {
                Ok((program, _)) => program::reset(&program),
                Err(_) => sleep(BREATH).await,
            }
        }
    }
}

/// Carries a program's connection as soon as it gets a place.
async fn welcome(
    carrier: Arc<Carrier>,
    program: TcpStream,
    (connection, from): (u64, String),
    serving: Arc<Serving>,
    mut accepted: Accepted,
) {
    let events = &serving.events;
    events.tell(Event::Connection { connection, from: from.clone() }).await;
    let ended = match accepted.wait_for_permit().await {
        Ok(()) => carry(&carrier, program, &serving, &accepted).await,
        Err(error) => reject_connection(&program, error.to_string()),
    };
    drop(accepted);
    let program::Ended { sent, received, error, calls } = ended;
    events.tell(Event::End { connection, from, sent, received, error, calls }).await;
}

async fn carry(
    carrier: &Carrier,
    program: TcpStream,
    serving: &Serving,
    accepted: &Accepted,
) -> program::Ended {
    let Some((stream, signals)) = carrier.open() else {
        return reject_connection(&program, "too many connections are just ending".into());
    };
    let admit = || accepted.admit();
    let carried = async {
        match &serving.http2 {
            Some(calls) => {
                let how = (calls, &serving.events);
                http2::carry_near(carrier, stream, &signals, program, how, &admit).await
            }
            None => program::carry(carrier, stream, &signals, program, &admit).await,
        }
    };
    let silence = async {
        signals.end(accepted.evicted().await.to_string());
        std::future::pending::<Infallible>().await
    };
    let ended = tokio::select! {
        ended = carried => ended,
        never = silence => match never {},
    };
    carrier.forget(stream);
    ended
}

fn reject_connection(program: &TcpStream, why: String) -> program::Ended {
    program::reset(program);
    program::Ended { error: Some(why), ..Default::default() }
}
