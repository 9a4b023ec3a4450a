//! Sends an update through a lab, from a kernel client to a server that masks loss.

use std::sync::mpsc;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use thalweg_arena::Arena;
use thalweg_conformance::{outgoing, pattern, update_id, Recorder};
use thalweg_layers::{Layer, Seal};
use thalweg_tcp::Tcp;
use thalweg_transport::{Address, Counters, ErrorKind, Options, Sink, Transport};
use thalweg_unifl::Unifl;
use thalweg_wire::{Allowance, Dtype, Layout, Tolerance, WHOLE};

use super::Trust;

pub const UPDATE: u64 = 8 << 20;
pub const CHUNK: u32 = 64 << 10;

/// The data and counters that arrived at the server.
pub struct Received {
    pub recorder: Recorder,
    pub message: Result<Bytes, ErrorKind>,
    pub counters: Counters,
}

impl Received {
    /// Number of bytes of each tensor that did not arrive.
    pub fn missing(&self, layout: &Layout, tensor: usize) -> u64 {
        let seen = self.recorder.seen();
        seen.ranges.missing_in(layout.tensors()[tensor].range()).iter().map(|hole| hole.len()).sum()
    }
}

/// Sixteen tensors of half a MiB. They do not begin or end with chunks or segments.
pub fn layout() -> Layout {
    Layout::pack((0..16).map(|at| (format!("t{at}"), Dtype::F32, vec![131_072 - 16 * (at % 3)]))).unwrap()
}

/// Checks that critical tensors arrive whole with this back end, while bytes of other tensors are missing.
pub fn critical_tensors(backend: &str) {
    let layout = layout();
    let critical = [0, 3, 7, 8, 15];
    let allowances = critical.map(|tensor| Allowance { tensor, budget: 0, refuse: WHOLE });
    for streams in [1, 3] {
        let tolerance = Tolerance::new(&layout, &allowances).unwrap();
        let own = format!(r#"{{"backend": "{backend}", "budget": 0.2}}"#);
        let job = Transfer { loss: 0.02, own, streams, tolerance, ..Transfer::default() };
        let Some((received, source)) = job.run() else { return };
        received.recorder.check(&source);
        let lost: Vec<u64> = (0..16).map(|tensor| received.missing(&layout, tensor)).collect();
        assert!(critical.iter().all(|&tensor| lost[tensor as usize] == 0), "{lost:?}");
        assert!(lost.iter().filter(|&&bytes| bytes > 0).count() > 8, "{lost:?}");
    }
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// How an update is sent.
#[derive(Clone)]
pub struct Transfer {
    /// Where the server listens.
    pub host: &'static str,
    /// Fraction of the packets to the server that the link loses.
    pub loss: f64,
    /// Options of the listener, as JSON.
    pub own: String,
    /// Number of connections of the link.
    pub streams: u8,
    /// Congestion control of the sender.
    pub congestion: &'static str,
    /// How updates are sealed. If updates are sealed, all other data is under TLS.
    pub layer: Option<Seal>,
    /// The loss that is tolerated, by tensor.
    pub tolerance: Tolerance,
}

impl Default for Transfer {
    fn default() -> Self {
        let (own, tolerance) = ("{}".into(), Tolerance::default());
        Self { host: super::SERVER, loss: 0.01, own, streams: 1, congestion: "cubic", layer: None, tolerance }
    }
}

/// A client on one host sends an update and a message to a server on the other host. The link loses the
/// fraction `loss` of the packets to the server. `None` if this machine cannot emulate networks.
pub fn send(loss: f64, own: &str, streams: u8) -> Option<(Received, Arena)> {
    Transfer { loss, own: own.into(), streams, ..Transfer::default() }.run()
}

impl Transfer {
    /// Runs the transfer. `None` if this machine cannot emulate networks.
    pub fn run(self) -> Option<(Received, Arena)> {
        let Self { host, loss, own, streams, congestion, layer, tolerance } = self;
        let way = |loss: f64| json!({"rate": 100_000_000, "delay": 0.005, "loss": loss});
        let lab = match super::lab(way(loss), way(0.0)) {
            Ok(lab) => Arc::new(lab),
            Err(why) => {
                println!("skipped: {why}");
                return None;
            }
        };
        let trust = layer.as_ref().map(|_| Trust::new());
        let own = serde_json::from_str(&own).unwrap();
        let options =
            Options { own, tls: trust.as_ref().and_then(|t| t.listen(false).tls), ..Options::default() };
        let [unifl, tcp]: [Arc<dyn Transport>; 2] = match &layer {
            None => [Arc::new(Unifl), Arc::new(Tcp)],
            Some(layer) => [layer.wrap(Arc::new(Unifl)), layer.wrap(Arc::new(Tcp))],
        };
        let (ready, addresses) = mpsc::channel();
        let theirs = lab.clone();
        let server = std::thread::spawn(move || {
            super::go_to(&theirs, "b");
            if host == super::SERVER_V6 {
                super::forward_ipv6();
            }
            runtime().block_on(async {
                let address = Address::parse(&format!("unifl://{host}:0")).unwrap();
                let listener = unifl.listen(&address, &options).await.unwrap();
                assert_eq!(listener.notice(), None);
                ready.send(listener.address()).unwrap();
                let link = listener.accept().await.unwrap().await.unwrap();
                assert!(!link.capabilities().reliable);
                link.tolerate(&Arc::new(tolerance));
                let recorder = Recorder::new(UPDATE);
                let message = link.receive(&recorder as &dyn Sink).await.map_err(|e| e.kind());
                let _ = link.send_control(Bytes::from_static(b"thanks")).await;
                // Wait until the client has disconnected.
                let _ = link.receive(&recorder).await;
                Received { recorder, message, counters: link.counters() }
            })
        });
        let to = Address { scheme: "tcp".into(), ..addresses.recv().unwrap() };
        let client = std::thread::spawn(move || {
            super::go_to(&lab, "a");
            runtime().block_on(async {
                let tls = trust.as_ref().and_then(|trust| trust.connect(None).tls);
                let congestion = Some(congestion.into());
                let options = Options { congestion, streams, tls, ..Options::default() };
                let link = tcp.connect(&to, &options).await.unwrap();
                let source = pattern(UPDATE, 3);
                let sent = link.send_update(&outgoing(&source, update_id(1), CHUNK)).await;
                if sent.is_ok() && link.send_control(Bytes::from_static(b"that was all")).await.is_ok() {
                    let _ = link.receive(&Recorder::new(0)).await;
                }
                link.close().await;
                source
            })
        });
        let source = client.join().unwrap();
        Some((server.join().unwrap(), source))
    }
}
