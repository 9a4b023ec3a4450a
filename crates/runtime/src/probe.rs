//! Measures how much a path carries: by a raw TCP stream and a thalweg update in turn, several times. Also
//! measures the round-trip time of an empty message.
//!
//! A probe uses an ordinary link. For a raw stream the server opens a separate port for one connection. That
//! connection must present the ticket that the server sent over the link. Where TCP does not pass, there is no
//! raw stream.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{json, Value};
use thalweg_arena::Arena;
use thalweg_transport::{
    Address, AdmissionQueue, Bounds, Cancel, Carriers, ConnectionLimit, Link, NoChunks, Options, Origin,
    Outgoing, Sink, Target, Transport, UnauthenticatedPeer, UpdateId, Ways,
};
use thalweg_wire::{limits, ChunkHeader, LayoutHash, Ranges, WireError};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::engine::descriptor_limit;
use crate::options::{ClientOptions, ServerOptions, DEFAULT_CHUNK};
use crate::{random, registry, Error, Kind};

/// Maximum number of bytes that one transfer of a probe moves.
const MOST: u64 = 256 << 20;
/// Bytes of each read and write of a raw stream: as many as a chunk has.
const BLOCK: usize = DEFAULT_CHUNK as usize;
const REPETITIONS: usize = 5;
/// Maximum number of raw streams at once. Each has a buffer for the whole update at both ends.
const MOST_STREAMS: usize = 16;
const ROUND_TRIPS: usize = 200;
/// How long a raw stream may stand still, and how long its port stays open.
const STALL: Duration = limits::ANSWERED;
/// How long a probe may wait for its place.
const WAIT: Duration = limits::ANSWERED;
/// Maximum number of probes that are answered at once. One address gets half of them. Each needs memory for
/// an update and for its raw streams.
const MOST_PROBES: usize = 4;
/// How long a probe may send no question while none of its data moves.
const SILENCE: Duration = limits::UNMEASURED_SILENCE;
const TICKET: usize = 16;

#[derive(Debug, Serialize, Deserialize)]
enum Ask {
    /// Open a port for a raw stream of this many bytes.
    Raw { bytes: u64 },
    /// An update was sent before this; answer once what arrives of it has arrived.
    Update,
    /// Answer this message.
    Echo,
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Raw {
        port: u16,
        ticket: [u8; TICKET],
    },
    /// This many bytes of the update have arrived. A transport that does not retransmit may lose some.
    Arrived {
        bytes: u64,
    },
    Echo,
}

fn system(what: &str, error: impl std::fmt::Display) -> Error {
    Error::new(Kind::System, "probe", format!("{what}: {error}"))
}

fn corrupt(what: impl std::fmt::Display) -> Error {
    Error::new(Kind::Corrupt, "probe", format!("the peer does not speak the probe's protocol: {what}"))
}

fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().map_err(|e| system("start runtime", e))
}

/// Receives probes' updates into the same arena again and again.
struct Probed {
    arena: Arena,
    /// Bytes received in all, for the time without progress.
    received: AtomicU64,
    /// What has arrived of the update that is being sent. A chunk may arrive more than once.
    arrived: Mutex<Ranges>,
}

impl Probed {
    fn new(bytes: u64) -> Result<Self, Error> {
        let (arena, arrived) = (Arena::new(bytes)?, Mutex::new(Ranges::default()));
        Ok(Self { arena, received: AtomicU64::new(0), arrived })
    }

    fn arrived(&self) -> MutexGuard<'_, Ranges> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sink for Probed {
    fn place(&self, chunk: &ChunkHeader) -> Option<Target> {
        self.arena.claim(chunk.range()).ok().map(Target::Place)
    }

    fn progress(&self, _bytes: u64) {}

    fn stored(&self, chunk: &ChunkHeader, target: Target, outcome: Result<(), WireError>) {
        drop(target);
        if outcome.is_ok() {
            self.received.fetch_add(u64::from(chunk.length), Ordering::Relaxed);
            self.arrived().insert(chunk.range());
        }
    }
}

/// A server of probes. A peer counts as unauthenticated until its first question, and a raw stream until it
/// has presented its ticket.
struct Server {
    host: String,
    admission_queue: AdmissionQueue,
    probes: ConnectionLimit,
    silence: Duration,
}

/// Answers probes at `listen` until `limit` is over or `go_on` returns false. `config` has a server's
/// options. At an address that other machines can reach, it must require client certificates.
///
/// # Errors
/// The transport's error for the address; `security` for an address that other machines can reach, without
/// certificates.
pub fn serve(
    listen: &str,
    config: &str,
    limit: Option<Duration>,
    go_on: impl FnMut() -> bool,
) -> Result<(), Error> {
    serve_and(listen, config, limit, go_on, |_| ())
}

fn serve_and(
    listen: &str,
    config: &str,
    limit: Option<Duration>,
    mut go_on: impl FnMut() -> bool,
    ready: impl FnOnce(Address),
) -> Result<(), Error> {
    let options: ServerOptions = serde_json::from_str(config)?;
    let address = Address::parse(listen)?;
    let certified = options.transport.tls.as_ref().is_some_and(|tls| tls.require_client);
    if !address.is_local() && !certified {
        let what = "probes are answered beyond loopback only with client certificates: give --pki";
        return Err(Error::new(Kind::Security, "serve probes", what));
    }
    let transport = registry::transport_for(&address, &options.transport, &options.layers, options.seed)?;
    let runtime = runtime()?;
    let bounds = Bounds { timeout: WAIT, ..Bounds::of_process(descriptor_limit()) };
    let admission_queue = AdmissionQueue::new(bounds);
    let listening = Options { admission_queue: Some(admission_queue.clone()), ..options.transport.clone() };
    let listener = runtime.block_on(transport.listen(&address, &listening))?;
    let (host, probes) = (listener.address().host, ConnectionLimit::with_half_for_each_address(MOST_PROBES));
    let server = Arc::new(Server { host, admission_queue, probes, silence: SILENCE });
    ready(listener.address());
    runtime.spawn(async move {
        while let Ok(pending) = listener.accept().await {
            let server = server.clone();
            tokio::spawn(async move {
                if let Ok(link) = pending.await {
                    // Ignore an error: it affects only the probe's own peer.
                    let _ = server.answer(&link).await;
                    link.close().await;
                }
            });
        }
    });
    let deadline = limit.map(|limit| Instant::now() + limit);
    while deadline.is_none_or(|at| Instant::now() < at) && go_on() {
        std::thread::sleep(Duration::from_millis(20));
    }
    runtime.shutdown_background();
    Ok(())
}

impl Server {
    async fn answer(&self, link: &Arc<dyn Link>) -> Result<(), Error> {
        // The admission queue ends a link that asks no first question.
        let first = link.receive(&NoChunks).await?;
        let origin = Origin::of(&link.peer().address);
        let permit = timeout(self.admission_queue.bounds().timeout, self.probes.acquire(origin));
        let busy =
            |_| Error::new(Kind::Refused, "probe", "as many probes as there may be are answered already");
        let _permit = permit.await.map_err(busy)?;
        link.admit();
        let sink = Probed::new(MOST)?;
        let raws = Arc::new(Semaphore::new(MOST_STREAMS));
        let mut request = first;
        loop {
            let ask: Ask = serde_json::from_slice(&request)?;
            let reply = match ask {
                Ask::Echo => Answer::Echo,
                Ask::Update => Answer::Arrived { bytes: std::mem::take(&mut *sink.arrived()).bytes() },
                Ask::Raw { bytes } => self.open_raw(&raws, bytes.min(MOST)).await?,
            };
            link.send_control(serde_json::to_vec(&reply)?.into()).await?;
            request = self.next(link, &sink, &raws).await?;
        }
    }

    /// Waits for the peer's next question.
    async fn next(&self, link: &Arc<dyn Link>, sink: &Probed, raws: &Semaphore) -> Result<Bytes, Error> {
        let receiving = link.receive(sink);
        tokio::pin!(receiving);
        let mut before = sink.received.load(Ordering::Relaxed);
        loop {
            if let Ok(received) = timeout(self.silence, &mut receiving).await {
                return Ok(received?);
            }
            let now = sink.received.load(Ordering::Relaxed);
            if now == before && raws.available_permits() == MOST_STREAMS {
                return Err(Error::new(Kind::Timeout, "probe", "the peer asks for nothing"));
            }
            before = now;
        }
    }

    /// Opens a port for one raw stream, which is received into a buffer of its whole length.
    async fn open_raw(&self, raws: &Arc<Semaphore>, bytes: u64) -> Result<Answer, Error> {
        let place = raws.clone().try_acquire_owned().map_err(|_| corrupt("too many raw streams at once"))?;
        let ip: IpAddr = self.host.parse().map_err(|e| system("listen for the raw stream", e))?;
        let listener = TcpListener::bind(SocketAddr::new(ip, 0)).await.map_err(|e| system("listen", e))?;
        let port = listener.local_addr().map_err(|e| system("listen", e))?.port();
        let ticket: [u8; TICKET] = random()?;
        let admission_queue = self.admission_queue.clone();
        tokio::spawn(async move {
            let Ok(Some(stream)) = timeout(STALL, holder(&listener, &admission_queue, ticket)).await else {
                return;
            };
            drop(listener);
            let received = tokio::task::spawn_blocking(move || receive_raw(stream, bytes, place));
            // Ignore an error: it affects only the raw stream's own peer.
            let _ = received.await;
        });
        Ok(Answer::Raw { port, ticket })
    }
}

/// Waits for the connection that presents the ticket. Other connections to the port wait in the admission
/// queue, and are closed.
async fn holder(
    listener: &TcpListener,
    admission_queue: &AdmissionQueue,
    ticket: [u8; TICKET],
) -> Option<TcpStream> {
    let mut unauthenticated_peers = JoinSet::new();
    loop {
        let accepted = async {
            admission_queue.room().await;
            listener.accept().await
        };
        tokio::select! {
            Some(shown) = unauthenticated_peers.join_next() => if let Ok(Some(stream)) = shown {
                return Some(stream);
            },
            accepted = accepted => {
                let (stream, from) = accepted.ok()?;
                unauthenticated_peers.spawn(show(stream, admission_queue.enter(from), ticket));
            }
        }
    }
}

async fn show(
    mut stream: tokio::net::TcpStream,
    unauthenticated_peer: UnauthenticatedPeer,
    ticket: [u8; TICKET],
) -> Option<TcpStream> {
    let mut shown = [0; TICKET];
    let watch = unauthenticated_peer.watch();
    tokio::select! {
        biased;
        read = stream.read_exact(&mut shown) => read.ok()?,
        _ = watch.evicted() => return None,
    };
    let stream = (shown == ticket).then(|| stream.into_std().ok())??;
    stream.set_nonblocking(false).ok()?;
    Some(stream)
}

fn receive_raw(mut stream: TcpStream, bytes: u64, place: OwnedSemaphorePermit) -> std::io::Result<()> {
    stream.set_read_timeout(Some(STALL))?;
    stream.set_write_timeout(Some(STALL))?;
    let mut buffer = vec![1_u8; bytes as usize]; // touch the pages before the measurement
    stream.write_all(&[0])?;
    for block in buffer.chunks_mut(BLOCK) {
        stream.read_exact(block)?;
    }
    drop((buffer, place)); // before the peer may request the next stream
    stream.write_all(&[1])
}

/// The end that runs a probe: it sends the questions and measures.
struct Prober {
    link: Arc<dyn Link>,
    sink: Probed,
    host: String,
    arena: Arena,
}

impl Prober {
    async fn ask(&self, ask: &Ask) -> Result<Answer, Error> {
        self.link.send_control(serde_json::to_vec(ask)?.into()).await?;
        serde_json::from_slice(&self.link.receive(&self.sink).await?).map_err(corrupt)
    }

    /// Measures `streams` raw streams at once, each with the whole update. Returns their total rate, in bytes
    /// per second.
    async fn raw(&self, streams: usize) -> Result<f64, Error> {
        let start = Arc::new(Barrier::new(streams));
        let mut senders = Vec::new();
        for _ in 0..streams {
            let Answer::Raw { port, ticket } = self.ask(&Ask::Raw { bytes: self.arena.len() }).await? else {
                return Err(corrupt("no port for the raw stream"));
            };
            let (host, bytes, start) =
                (self.host.clone(), self.arena.lend(self.arena.range())?, start.clone());
            senders.push(tokio::task::spawn_blocking(move || send_raw(&host, port, ticket, &bytes, &start)));
        }
        let mut span: Option<(Instant, Instant)> = None;
        for sender in senders {
            let sent = sender.await.map_err(|e| system("raw stream", e))?;
            let (from, to) = sent.map_err(|e| system("raw stream", e))?;
            span = Some(span.map_or((from, to), |(a, b)| (a.min(from), b.max(to))));
        }
        let seconds = span.map_or(f64::NAN, |(from, to)| (to - from).as_secs_f64());
        Ok((self.arena.len() * streams as u64) as f64 / seconds)
    }

    /// Sends an update, in chunks as this link takes them. Returns the rate of what arrived, in bytes per
    /// second.
    async fn update(&self, round: u32) -> Result<f64, Error> {
        let id = UpdateId { job: 0, round, sender: 0, layout: LayoutHash::default() };
        let (bytes, cancel) = (self.arena.lend(self.arena.range())?, Cancel::default());
        let chunk = self.link.capabilities().chunk(None, DEFAULT_CHUNK);
        let update = Outgoing::new(id, bytes, &Ranges::full(self.arena.len()), chunk, cancel.clone());
        let started = Instant::now();
        self.link.send_update(&update).await?;
        // On an ordered link this follows the chunks, so the answer says how many of them have arrived.
        let answer = self.ask(&Ask::Update).await?;
        let Answer::Arrived { bytes } = answer else { return Err(corrupt("it does not say what arrived")) };
        cancel.cancel();
        Ok(bytes.min(self.arena.len()) as f64 / started.elapsed().as_secs_f64())
    }

    async fn round_trips(&self) -> Result<Vec<f64>, Error> {
        let mut times = Vec::with_capacity(ROUND_TRIPS);
        for _ in 0..ROUND_TRIPS {
            let started = Instant::now();
            self.ask(&Ask::Echo).await?;
            times.push(started.elapsed().as_secs_f64());
        }
        Ok(times)
    }
}

/// Sends one raw stream. Returns the time when its first byte was sent, and the time when its last byte had
/// arrived. All streams connect before any of them starts; a stream that cannot connect does not delay the
/// others.
fn send_raw(
    host: &str,
    port: u16,
    ticket: [u8; 16],
    bytes: &[u8],
    start: &Barrier,
) -> std::io::Result<(Instant, Instant)> {
    let mut stream = connect_raw(host, port, ticket);
    start.wait();
    let stream = stream.as_mut().map_err(|e| std::io::Error::new(e.kind(), e.to_string()))?;
    let started = Instant::now();
    for block in bytes.chunks(BLOCK) {
        stream.write_all(block)?;
    }
    stream.read_exact(&mut [0])?;
    Ok((started, Instant::now()))
}

fn connect_raw(host: &str, port: u16, ticket: [u8; 16]) -> std::io::Result<TcpStream> {
    let address = (host, port).to_socket_addrs()?.next();
    let address = address.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::AddrNotAvailable))?;
    let mut stream = TcpStream::connect_timeout(&address, STALL)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(STALL))?;
    stream.set_write_timeout(Some(STALL))?;
    stream.write_all(&ticket)?;
    stream.read_exact(&mut [0])?;
    Ok(stream)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// What a probe found out about the link and the ways to the peer, as JSON. Both are null for a transport that
/// has one way only.
fn ways_json(carriers: Option<Carriers>, ways: Option<&Ways>) -> (Value, Value) {
    let way = |way: &Result<Duration, String>| match way {
        Ok(after) => json!({ "passes": true, "seconds": after.as_secs_f64(), "reason": null }),
        Err(reason) => json!({ "passes": false, "seconds": null, "reason": reason }),
    };
    let carriers = carriers.map(|by| json!({ "control": by.control.name(), "chunks": by.chunks.name() }));
    (json!(carriers), json!(ways.map(|ways| json!({ "udp": way(&ways.udp), "tcp": way(&ways.tcp) }))))
}

/// Probes the path to `url`: moves `bytes` bytes in each transfer (at most 256 MiB), over one raw stream,
/// over `streams` raw streams at once, and as an update. `config` is as for a client. Returns the result as
/// JSON. Without TCP to the peer, the figures of raw streams are null.
///
/// # Errors
/// The transport's error, or `corrupt` if the peer serves no probes.
pub fn peer(url: &str, config: &str, bytes: u64, streams: usize) -> Result<String, Error> {
    let options: ClientOptions = serde_json::from_str(config)?;
    let address = Address::parse(url)?;
    let transport = registry::transport_for(&address, &options.transport, &options.layers, options.seed)?;
    let bytes = bytes.clamp(1, MOST);
    runtime()?.block_on(measure(&*transport, &address, &options, bytes, streams.clamp(1, MOST_STREAMS)))
}

async fn measure(
    transport: &dyn Transport,
    address: &Address,
    options: &ClientOptions,
    bytes: u64,
    streams: usize,
) -> Result<String, Error> {
    let link = transport.connect(address, &options.transport).await?;
    let arena = Arena::new(bytes)?;
    arena.claim(arena.range())?.fill(1); // touch the pages before the measurement
    let sink = Probed::new(0)?;
    let prober = Prober { link, sink, host: address.host.clone(), arena };
    prober.ask(&Ask::Echo).await?; // a link may carry no chunks before the first question
    prober.update(0).await?; // the first update touches the receiver's pages
    let trip = prober.link.counters().round_trip.unwrap_or_default();
    let ways = transport.ways(address, trip).await?;
    let by_tcp = ways.as_ref().is_none_or(|ways| ways.tcp.is_ok());
    let (mut raw, mut ours, mut together) = (Vec::new(), Vec::new(), None);
    for repetition in 0..REPETITIONS {
        if by_tcp {
            raw.push(prober.raw(1).await?);
            together = Some(prober.raw(streams).await?.max(together.unwrap_or_default()));
        }
        ours.push(prober.update(repetition as u32 + 1).await?);
    }
    let mut trips = prober.round_trips().await?;
    let counters = prober.link.counters();
    let (carriers, ways) = ways_json(prober.link.carriers(), ways.as_ref());
    prober.link.close().await;
    let (raw, ours) = (by_tcp.then(|| median(&mut raw)), median(&mut ours));
    Ok(json!({
        "bytes": bytes,
        "repetitions": REPETITIONS,
        "raw_bytes_per_second": raw,
        "thalweg_bytes_per_second": ours,
        "streams": streams,
        "best_bytes_per_second_together": together,
        "ratio": raw.map(|raw| ours / raw),
        "control_round_trip_seconds": median(&mut trips),
        "congestion": counters.congestion,
        "retransmissions": counters.retransmissions,
        "encrypted": options.transport.tls.is_some(),
        "carriers": carriers,
        "ways": ways,
    })
    .to_string())
}

/// Probes the loopback path of this machine.
///
/// # Errors
/// The same as [`peer`].
pub fn loopback(bytes: u64, streams: usize) -> Result<String, Error> {
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (ready, address) = std::sync::mpsc::channel();
    let stopped = stop.clone();
    let server = std::thread::spawn(move || {
        let go_on = || !stopped.load(Ordering::Relaxed);
        let report = |address: Address| drop(ready.send(address.to_string()));
        serve_and("tcp://127.0.0.1:0", "{}", None, go_on, report)
    });
    let outcome = match address.recv() {
        Ok(address) => peer(&address, "{}", bytes, streams),
        Err(_) => Err(system("serve probes on loopback", "it did not start")),
    };
    stop.store(true, Ordering::Relaxed);
    let served = server.join().map_err(|_| system("serve probes on loopback", "it panicked"));
    served?.and(outcome)
}

#[cfg(test)]
mod tests {
    use thalweg_transport::memory::Memory;

    use super::*;

    const EVER: Duration = Duration::from_secs(3600);

    fn server(timeout: Duration, silence: Duration) -> Server {
        let admission_queue = AdmissionQueue::new(Bounds { total: 8, share: 4, timeout });
        Server { host: "127.0.0.1".into(), admission_queue, probes: ConnectionLimit::new(1, 1), silence }
    }

    /// A link to the server: both of its ends.
    async fn link(server: &Server, name: &str) -> (Arc<dyn Link>, Arc<dyn Link>) {
        let address = Address::parse(&format!("memory://probe-{name}:0")).unwrap();
        let options = Options { admission_queue: Some(server.admission_queue.clone()), ..Options::default() };
        let listener = Memory.listen(&address, &options).await.unwrap();
        let connecting = Memory.connect(&listener.address(), &options).await;
        (connecting.unwrap(), listener.accept().await.unwrap().await.unwrap())
    }

    async fn ask(link: &Arc<dyn Link>, ask: &Ask) {
        link.send_control(serde_json::to_vec(ask).unwrap().into()).await.unwrap();
    }

    fn run(test: impl std::future::Future<Output = ()>) {
        runtime().unwrap().block_on(test);
    }

    /// Serves probes of `transport` over loopback while one is made. Returns its result.
    fn probed(transport: &str) -> Value {
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (ready, address) = std::sync::mpsc::channel();
        let (stopped, listen) = (stop.clone(), format!("{transport}://127.0.0.1:0"));
        let server = std::thread::spawn(move || {
            let go_on = || !stopped.load(Ordering::Relaxed);
            serve_and(&listen, "{}", None, go_on, |at| drop(ready.send(at.to_string())))
        });
        let found = peer(&address.recv().unwrap(), "{}", 300_000, 1);
        stop.store(true, Ordering::Relaxed);
        server.join().unwrap().unwrap();
        serde_json::from_str(&found.unwrap()).unwrap()
    }

    /// Each transport has chunks of its own length, and says by which ways its link goes.
    #[cfg(all(feature = "ltp", feature = "udp"))]
    #[test]
    fn a_probe_over_datagrams_measures_and_names_the_ways() {
        for transport in ["ltp", "udp"] {
            let found = probed(transport);
            let is_positive = |key: &str| found[key].as_f64().is_some_and(|value| value > 0.0);
            assert!(
                is_positive("raw_bytes_per_second") && is_positive("thalweg_bytes_per_second"),
                "{found}"
            );
            assert!(["udp", "tcp"].map(|way| found["ways"][way]["passes"] == true) == [true; 2], "{found}");
            assert!(found["ways"]["udp"]["seconds"].is_f64() && found["ways"]["udp"]["reason"].is_null());
            assert_eq!(found["carriers"]["chunks"], "udp", "{found}");
            assert!(["udp", "tcp"].contains(&found["carriers"]["control"].as_str().unwrap()), "{found}");
        }
    }

    #[test]
    fn a_transport_with_one_way_names_none() {
        let found = probed("tcp");
        assert!(found["raw_bytes_per_second"].is_f64(), "{found}");
        assert!(found["carriers"].is_null() && found["ways"].is_null(), "{found}");
    }

    #[test]
    fn a_way_that_does_not_pass_has_a_reason() {
        let ways = Ways { udp: Ok(Duration::from_millis(250)), tcp: Err("no answer within 5 s".into()) };
        let (carriers, ways) = ways_json(None, Some(&ways));
        assert!(carriers.is_null());
        assert_eq!(ways["udp"], json!({ "passes": true, "seconds": 0.25, "reason": null }));
        assert_eq!(
            ways["tcp"],
            json!({ "passes": false, "seconds": null, "reason": "no answer within 5 s" })
        );
    }

    #[test]
    fn who_asks_for_nothing_is_no_longer_than_an_unauthenticated_peer_may_be() {
        run(async {
            let server = server(Duration::ZERO, EVER);
            let (_peer, link) = link(&server, "unauthenticated").await;
            assert_eq!(server.answer(&link).await.unwrap_err().kind(), Kind::Timeout);
        });
    }

    #[test]
    fn who_asks_once_and_then_nothing_is_ended() {
        run(async {
            let server = server(EVER, Duration::ZERO);
            let (peer, link) = link(&server, "silent").await;
            ask(&peer, &Ask::Echo).await;
            let error = server.answer(&link).await.unwrap_err();
            assert!(
                error.kind() == Kind::Timeout && error.to_string().contains("asks for nothing"),
                "{error}"
            );
            assert_eq!((server.admission_queue.count(), server.probes.in_use()), (0, 0));
        });
    }

    #[test]
    fn beyond_as_many_as_there_may_be_nobody_is_answered() {
        run(async {
            let server = server(Duration::from_millis(50), EVER);
            let _other = server.probes.acquire(Origin::Unknown).await;
            let (peer, link) = link(&server, "busy").await;
            ask(&peer, &Ask::Echo).await;
            assert_eq!(server.answer(&link).await.unwrap_err().kind(), Kind::Refused);
        });
    }

    #[test]
    fn raw_streams_of_a_probe_are_bounded() {
        run(async {
            let server = server(EVER, EVER);
            let raws = Arc::new(Semaphore::new(1));
            server.open_raw(&raws, 1).await.unwrap();
            assert_eq!(server.open_raw(&raws, 1).await.unwrap_err().kind(), Kind::Corrupt);
        });
    }

    #[test]
    fn a_raw_stream_is_that_of_the_ticket_and_strangers_are_unauthenticated_peers() {
        run(async {
            let server = server(EVER, EVER);
            let ticket = [7; TICKET];
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let at = listener.local_addr().unwrap();
            let connect = |bytes: &[u8]| {
                let mut stream = TcpStream::connect(at).unwrap();
                stream.write_all(bytes).unwrap();
                stream
            };
            // The kernel queues them in this order. The admission queue allows four connections from one
            // address.
            let strangers =
                [connect(&[]), connect(&[9; TICKET]), connect(&[1]), connect(&[2]), connect(&[3])];
            let owner = connect(&ticket);
            let held = holder(&listener, &server.admission_queue, ticket).await.unwrap();
            assert_eq!(held.peer_addr().unwrap(), owner.local_addr().unwrap());
            drop(strangers);
        });
    }
}
