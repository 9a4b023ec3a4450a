//! Measures one large update over loopback against a raw TCP stream, interleaved in one process.
//!
//! `cargo run --release -p thalweg-tcp --example loopback -- [bytes=SIZE] [repeats=N] [chunk=SIZE]
//! [streams=N] [buffer=SIZE] [tls=1]` prints one JSON line. Both move the same bytes out of one arena into
//! another, whose pages are all touched before. Both use the same socket buffers and congestion control
//! (cubic). `raw` uses a blocking thread on each side; `thalweg` uses a task on each side, and computes its
//! checksums. `raw_reused` receives into one small buffer instead, which no real receiver could do, because
//! it needs all the bytes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{json, Value};
use socket2::{Domain, Socket, Type};
use thalweg_arena::Arena;
use thalweg_tcp::{Tcp, BEST_CHUNK};
use thalweg_transport::{
    Address, Cancel, Identity, Link, Options, Outgoing, Sink, Target, Tls, Transport, UpdateId,
};
use thalweg_wire::{ChunkHeader, LayoutHash, Ranges, WireError};
use tokio::runtime::Runtime;
use tokio::sync::Notify;

type Fallible<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const PINGS: usize = 2000;

/// One measured transfer.
struct Sample {
    seconds: f64,
    cpu: f64,
}

struct Setup {
    bytes: u64,
    chunk: u32,
    options: Options,
    listen: Options,
    source: Arena,
    place: Arena,
}

/// A sink that claims the chunk's own range, releases it when the bytes have arrived, and notifies when all
/// have.
struct InPlace {
    arena: Arena,
    missing: AtomicU64,
    whole: Notify,
}

impl InPlace {
    fn new(arena: Arena) -> Arc<Self> {
        Arc::new(Self { missing: arena.len().into(), arena, whole: Notify::new() })
    }
}

impl Sink for InPlace {
    fn place(&self, chunk: &ChunkHeader) -> Option<Target> {
        self.arena.claim(chunk.range()).ok().map(Target::Place)
    }

    fn progress(&self, _: u64) {}

    fn stored(&self, chunk: &ChunkHeader, _: Target, outcome: Result<(), WireError>) {
        assert_eq!(outcome, Ok(()), "chunk at {}", chunk.offset);
        let length = chunk.length.into();
        if self.missing.fetch_sub(length, Ordering::AcqRel) == length {
            self.whole.notify_one();
        }
    }
}

/// Each end has a runtime with one thread, as if it were a process. The raw ends have one thread each, too.
struct Ends {
    client: Runtime,
    server: Runtime,
}

fn one_thread() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()
}

fn main() -> Fallible<()> {
    let setup = Setup::from_args()?;
    let ends = Ends { client: one_thread()?, server: one_thread()? };
    let (client, server) = setup.link(&ends)?;
    let repeats = argument("repeats", 9)?;
    let (mut raw, mut reused, mut ours) = (Vec::new(), Vec::new(), Vec::new());
    for repeat in 0..=repeats {
        let round = [
            measure(|| setup.raw(false))?,
            measure(|| setup.thalweg(&ends, &client, &server))?,
            measure(|| setup.raw(true))?,
        ];
        if repeat > 0 {
            // The first round only warms up.
            let [a, b, c] = round;
            raw.push(a);
            ours.push(b);
            reused.push(c);
        }
    }
    let mut trips = ping(&ends, client.clone(), server.clone())?;
    trips.sort();
    let ratio = |of: &[Sample]| median(of, |s| s.seconds) / median(&ours, |s| s.seconds);
    let line = json!({
        "bytes": setup.bytes, "chunk": setup.chunk, "streams": setup.options.streams,
        "tls": setup.options.tls.is_some(), "socket_buffer": setup.options.send_buffer,
        "congestion": client.counters().congestion, "repeats": repeats,
        "raw": summary(&setup, &raw), "raw_reused": summary(&setup, &reused), "thalweg": summary(&setup, &ours),
        "ratio": ratio(&raw), "ratio_reused": ratio(&reused),
        "copied": server.counters().copied, "retransmissions": client.counters().retransmissions,
        "round_trip_us": {"median": micros(trips[PINGS / 2]), "p99": micros(trips[PINGS * 99 / 100])},
    });
    println!("{line}");
    Ok(())
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn argument(name: &str, default: u64) -> Fallible<u64> {
    let prefix = format!("{name}=");
    let given = std::env::args().find_map(|a| a.strip_prefix(&prefix).map(str::to_owned));
    Ok(given.map_or(Ok(default), |text| text.parse())?)
}

fn median(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> f64 {
    let mut values: Vec<f64> = samples.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn summary(setup: &Setup, samples: &[Sample]) -> Value {
    let seconds: Vec<f64> = samples.iter().map(|s| s.seconds).collect();
    let middle = median(samples, |s| s.seconds);
    json!({
        "median_s": middle,
        "min_s": seconds.iter().copied().fold(f64::MAX, f64::min),
        "max_s": seconds.iter().copied().fold(0.0, f64::max),
        "gbit_s": setup.bytes as f64 * 8e-9 / middle,
        "cpu_s": median(samples, |s| s.cpu),
    })
}

fn measure(transfer: impl FnOnce() -> Fallible<f64>) -> Fallible<Sample> {
    let before = cpu_seconds();
    let seconds = transfer()?;
    Ok(Sample { seconds, cpu: cpu_seconds() - before })
}

/// User and system time of this process in seconds, from /proc/self/stat, whose ticks are 10 ms. 0 on other
/// systems.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(") ").next().unwrap_or_default();
    let ticks = after_name.split(' ').skip(11).take(2).filter_map(|t| t.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.0
}

impl Setup {
    fn from_args() -> Fallible<Self> {
        let bytes = argument("bytes", 1 << 30)?;
        let buffer = argument("buffer", 0)?;
        let buffer = (buffer > 0).then_some(u32::try_from(buffer)?);
        let options = Options {
            congestion: Some("cubic".into()),
            streams: u8::try_from(argument("streams", 1)?)?,
            send_buffer: buffer,
            receive_buffer: buffer,
            ..Options::default()
        };
        let (source, place) = (Arena::new(bytes)?, Arena::new(bytes)?);
        source.claim(source.range())?.iter_mut().enumerate().for_each(|(i, b)| *b = (i / 7) as u8);
        place.claim(place.range())?.fill(1);
        let mut listen = options.clone();
        let mut connect = options;
        if argument("tls", 0)? == 1 {
            let authority = thalweg_pki::Authority::new("loopback", 1)?;
            let own = authority.issue("server", &["127.0.0.1".into()], 1, thalweg_pki::Role::Server)?;
            let identity = Some(Identity { certificate: own.certificate, key: own.key });
            let tls = |identity| {
                let authority = authority.certificate_pem().to_owned();
                Some(Tls { authority, identity, require_client: false, server_name: None })
            };
            listen.tls = tls(identity);
            connect.tls = tls(None);
        }
        let chunk = u32::try_from(argument("chunk", BEST_CHUNK.into())?)?;
        Ok(Self { bytes, chunk, options: connect, listen, source, place })
    }

    fn link(&self, ends: &Ends) -> Fallible<(Arc<dyn Link>, Arc<dyn Link>)> {
        let (at, options) = (Address::parse("tcp://127.0.0.1:0")?, self.listen.clone());
        let listener = ends.server.block_on(async move { Tcp.listen(&at, &options).await })?;
        let (address, options) = (listener.address(), self.options.clone());
        let client = ends.client.spawn(async move { Tcp.connect(&address, &options).await });
        let server = ends.server.block_on(async { listener.accept().await?.await })?;
        Ok((ends.client.block_on(client)??, server))
    }

    fn thalweg(&self, ends: &Ends, client: &Arc<dyn Link>, server: &Arc<dyn Link>) -> Fallible<f64> {
        let id = UpdateId { job: 1, round: 1, sender: 1, layout: LayoutHash(1) };
        let (client, server) = (client.clone(), server.clone());
        let (loan, wanted) = (self.source.lend(self.source.range())?, Ranges::full(self.bytes));
        let update = Outgoing::new(id, loan, &wanted, self.chunk, Cancel::default());
        let sink = InPlace::new(self.place.clone());
        let place = sink.clone();
        let receiver = ends.server.spawn(async move { server.receive(&*place).await });
        let started = Instant::now();
        let sender =
            ends.client.spawn(async move { client.send_update(&update).await.map(|_| (client, update)) });
        ends.server.block_on(sink.whole.notified());
        let seconds = started.elapsed().as_secs_f64();
        ends.client.block_on(async {
            let (client, _) = sender.await??;
            client.send_control(Bytes::from_static(b"done")).await?;
            Fallible::Ok(receiver.await??)
        })?;
        Ok(seconds)
    }

    fn raw_pair(&self) -> Fallible<(TcpStream, TcpStream)> {
        let make = || -> Fallible<Socket> {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            socket.set_tcp_congestion(b"cubic")?;
            if let Some(bytes) = self.options.send_buffer {
                socket.set_send_buffer_size(bytes as usize)?;
                socket.set_recv_buffer_size(bytes as usize)?;
            }
            socket.set_tcp_nodelay(true)?;
            Ok(socket)
        };
        let (server, client) = (make()?, make()?);
        server.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>()?.into())?;
        server.listen(1)?;
        let server: TcpListener = server.into();
        client.connect(&server.local_addr()?.into())?;
        Ok((client.into(), server.accept()?.0))
    }

    fn raw(&self, reuse: bool) -> Fallible<f64> {
        let (mut client, mut server) = self.raw_pair()?;
        let (loan, total) = (self.source.lend(self.source.range())?, self.bytes as usize);
        let (mut place, size) = (self.place.claim(self.place.range())?, self.chunk as usize);
        let receiver = std::thread::spawn(move || -> std::io::Result<Instant> {
            let mut small = vec![1; size];
            let mut have = 0;
            while have < total {
                let end = total.min(have + size);
                let got = server.read(if reuse { &mut small } else { &mut place[have..end] })?;
                if got == 0 {
                    return Err(std::io::ErrorKind::UnexpectedEof.into());
                }
                have += got;
            }
            Ok(Instant::now())
        });
        let started = Instant::now();
        let sender =
            std::thread::spawn(move || loan.chunks(size).try_for_each(|part| client.write_all(part)));
        sender.join().map_err(|_| "the sender panicked")??;
        let ended = receiver.join().map_err(|_| "the receiver panicked")??;
        Ok((ended - started).as_secs_f64())
    }
}

fn ping(ends: &Ends, client: Arc<dyn Link>, server: Arc<dyn Link>) -> Fallible<Vec<Duration>> {
    let (here, there) = (InPlace::new(Arena::new(0)?), InPlace::new(Arena::new(0)?));
    let echo = ends.server.spawn(async move {
        for _ in 0..PINGS {
            let message = server.receive(&*there).await?;
            server.send_control(message).await?;
        }
        Ok::<(), thalweg_transport::Error>(())
    });
    let trips = ends.client.spawn(async move {
        let mut trips = Vec::with_capacity(PINGS);
        for _ in 0..PINGS {
            let started = Instant::now();
            client.send_control(Bytes::from_static(b"ping")).await?;
            client.receive(&*here).await?;
            trips.push(started.elapsed());
        }
        Ok::<_, thalweg_transport::Error>(trips)
    });
    ends.client.block_on(async {
        echo.await??;
        Ok(trips.await??)
    })
}
