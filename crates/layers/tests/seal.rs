//! Tests of the sealing layer beyond the transport contract: what it refuses, and what it costs.
#![allow(clippy::unwrap_used)] // a panic is how tests report

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use thalweg_conformance::{outgoing, pattern, update_id, Pump, Recorder, Router};
use thalweg_layers::{Layer, Links, Seal, Side};
use thalweg_seal::{Cipher, Grid, Suite};
use thalweg_tcp::Tcp;
use thalweg_transport::memory::Memory;
use thalweg_transport::{
    Address, Cancel, Capabilities, Error, ErrorKind, Link, LinkLayer, Listener, Options, Outgoing, Result,
    SendReport, Transport, UpdateId,
};
use thalweg_wire::{WireError, HEADER_BYTES};

mod common;
use common::Trust;

async fn meet(
    listener: &dyn Listener,
    connect: &dyn Transport,
    options: &Options,
) -> [Result<Arc<dyn Link>>; 2] {
    let address = listener.address();
    let accept = async { listener.accept().await.unwrap().await };
    let (client, server) = tokio::join!(connect.connect(&address, options), accept);
    [client, server]
}

/// Both ends of a tcp link under TLS, each with a layer of its own.
async fn between(listen: &Seal, connect: &Seal) -> [Result<Arc<dyn Link>>; 2] {
    let (trust, at) = (Trust::new(), Address::parse("tcp://localhost:0").unwrap());
    let listener = listen.wrap(Arc::new(Tcp)).listen(&at, &trust.listen(false)).await.unwrap();
    meet(&*listener, &*connect.wrap(Arc::new(Tcp)), &trust.connect(None)).await
}

/// A chunk in flight.
struct Passing {
    id: UpdateId,
    offset: u64,
    payload: Vec<u8>,
}

/// Changes chunks in flight, as an attacker between the ends could. It also gets all earlier payloads.
type Meddle = dyn Fn(&mut Passing, &[Vec<u8>]) + Send + Sync;

#[derive(Clone)]
struct Meddler {
    meddle: Arc<Meddle>,
    /// Whether an update ends with an ACK, as on transports that send datagrams.
    acknowledged: bool,
    /// Number of updates that were sent.
    updates: Arc<AtomicU64>,
}

impl Meddler {
    fn new(meddle: impl Fn(&mut Passing, &[Vec<u8>]) + Send + Sync + 'static) -> Self {
        Self { meddle: Arc::new(meddle), acknowledged: false, updates: Arc::default() }
    }
}

impl Layer for Meddler {
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        inner
    }

    fn links(&self, _side: Side) -> Arc<dyn Links> {
        Arc::new(self.clone())
    }
}

impl Links for Meddler {
    fn wrap(&self, inner: Arc<dyn Link>, _number: u64) -> Arc<dyn Link> {
        Arc::new(Meddled { inner, meddler: self.clone(), before: Mutex::default() })
    }
}

struct Meddled {
    inner: Arc<dyn Link>,
    meddler: Meddler,
    before: Mutex<Vec<Vec<u8>>>,
}

impl LinkLayer for Meddled {
    fn inner(&self) -> &dyn Link {
        &*self.inner
    }

    fn capabilities(&self) -> Capabilities {
        let inner = self.inner.capabilities();
        let stays = !self.meddler.acknowledged;
        Capabilities { reliable: stays && inner.reliable, ordered: stays && inner.ordered, ..inner }
    }

    async fn send_update(&self, update: &Outgoing) -> Result<SendReport> {
        self.meddler.updates.fetch_add(1, Ordering::Relaxed);
        let mut last = Err(Error::new(ErrorKind::System, "send update", "no chunks"));
        for chunk in update.chunks() {
            let (header, payload) = update.frame(chunk).unwrap();
            let payload = payload.to_vec();
            let mut passing =
                Passing { id: update.id(), offset: header.chunk.offset, payload: payload.clone() };
            {
                let mut before = self.before.lock().unwrap();
                (self.meddler.meddle)(&mut passing, &before);
                before.push(payload);
            }
            let (offset, length) = (passing.offset, passing.payload.len() as u32);
            let bytes = passing.payload.into();
            let sent = Outgoing::packed(passing.id, bytes, [(offset, length)], Cancel::default());
            last = self.inner.send_update(&sent).await;
        }
        last
    }
}

const CHUNK: u32 = 1000;
const UPDATE: u64 = 3000;
type Outcomes = Vec<(u64, std::result::Result<(), WireError>)>;

/// Sends the same update in rounds 1 and 2. An attacker changes round 2. Returns what the receiver was told
/// of chunks of round 2, and what it has of them.
async fn meddled(
    cipher: Suite,
    meddle: impl Fn(&mut Passing, &[Vec<u8>]) + Send + Sync + 'static,
) -> (Outcomes, Arc<Recorder>) {
    let layer = Seal { cipher, record: Some(400), ..Seal::default() };
    let (trust, at) = (Trust::new(), Address::parse("tcp://localhost:0").unwrap());
    let tcp: Arc<dyn Transport> = Arc::new(Tcp);
    let meddler = Meddler::new(move |passing, before| {
        if passing.id.round == 2 {
            meddle(passing, before);
        }
    });
    let listener = layer.wrap(tcp.clone()).listen(&at, &trust.listen(false)).await.unwrap();
    let transport = layer.wrap(Layer::wrap(&meddler, tcp));
    let [client, server] = meet(&*listener, &*transport, &trust.connect(None)).await.map(Result::unwrap);
    let recorders: Vec<_> = (0..2).map(|_| Arc::new(Recorder::new(UPDATE))).collect();
    let mut pump = Pump::start(&server, &Arc::new(Router(recorders.clone())));
    let source = pattern(UPDATE, 1);
    for round in [1, 2] {
        client.send_update(&outgoing(&source, update_id(round), CHUNK)).await.unwrap();
    }
    client.send_control(Bytes::from_static(b"end")).await.unwrap();
    assert_eq!(pump.next().await.unwrap(), "end");
    recorders[0].check(&source);
    assert_eq!(recorders[0].seen().ranges.bytes(), UPDATE, "round 1 is left alone");
    let outcomes =
        recorders[1].seen().stored.iter().map(|(chunk, outcome)| (chunk.offset, outcome.clone())).collect();
    (outcomes, recorders[1].clone())
}

fn forged(outcomes: &Outcomes) -> bool {
    outcomes.len() == 3 && outcomes.iter().all(|(_, outcome)| matches!(outcome, Err(WireError::Sealed(_))))
}

const AEAD: [Suite; 2] = [Suite::Aead(Cipher::Aes256Gcm), Suite::Aead(Cipher::ChaCha20Poly1305)];

#[tokio::test]
async fn nobody_meddles_and_all_is_there() {
    for cipher in Suite::ALL {
        let (outcomes, recorder) = meddled(cipher, |_, _| {}).await;
        assert_eq!(outcomes, [0, 1000, 2000].map(|offset| (offset, Ok(()))));
        recorder.check(&pattern(UPDATE, 1));
        assert_eq!(recorder.seen().begun, 3, "the sink knows of a chunk before it is whole");
    }
}

/// On such a link, each batch waits for an ACK.
#[tokio::test]
async fn links_that_acknowledge_updates_get_them_in_few_batches() {
    let bytes = 3 << 20;
    for (acknowledged, batches) in [(false, 3), (true, 1)] {
        let (layer, trust) = (Seal::default(), Trust::new());
        let meddler = Meddler { acknowledged, ..Meddler::new(|_, _| {}) };
        let listener = layer.wrap(Arc::new(Tcp));
        let at = Address::parse("tcp://localhost:0").unwrap();
        let listener = listener.listen(&at, &trust.listen(false)).await.unwrap();
        let transport = layer.wrap(Layer::wrap(&meddler, Arc::new(Tcp)));
        let [client, server] = meet(&*listener, &*transport, &trust.connect(None)).await.map(Result::unwrap);
        let recorder = Arc::new(Recorder::new(bytes));
        let mut pump = Pump::start(&server, &Arc::new(Router(vec![recorder.clone()])));
        let source = pattern(bytes, 1);
        client.send_update(&outgoing(&source, update_id(1), 64 << 10)).await.unwrap();
        client.send_control(Bytes::from_static(b"end")).await.unwrap();
        assert_eq!(pump.next().await.unwrap(), "end");
        recorder.check(&source);
        assert_eq!(recorder.seen().ranges.bytes(), bytes);
        assert_eq!(meddler.updates.load(Ordering::Relaxed), batches);
    }
}

#[tokio::test]
async fn what_is_on_the_wire_is_not_what_was_sent() {
    let source = pattern(UPDATE, 1);
    let plain = source.lend(source.range()).unwrap();
    for cipher in Suite::ALL {
        let plain = plain.clone();
        meddled(cipher, move |passing, before| {
            let window = &plain[passing.offset as usize..passing.offset as usize + 16];
            assert!(!passing.payload.windows(16).any(|bytes| bytes == window));
            assert!(!before.contains(&passing.payload), "the same chunk is sealed anew");
        })
        .await;
    }
}

#[tokio::test]
async fn bits_turned_over_are_refused() {
    for cipher in AEAD {
        for at in [0, 7, 16, 300, 1000] {
            let (outcomes, recorder) = meddled(cipher, move |passing, _| passing.payload[at] ^= 64).await;
            assert!(forged(&outcomes), "byte {at}: {outcomes:?}");
            assert!(recorder.seen().ranges.is_empty());
        }
        let (outcomes, _) = meddled(cipher, |passing, _| passing.payload[13] ^= 4).await;
        assert!(outcomes
            .iter()
            .all(|(_, outcome)| matches!(outcome, Err(WireError::PayloadChecksum { .. }))));
    }
}

#[tokio::test]
async fn a_chunk_that_is_cut_or_says_another_length_is_dropped() {
    for cut in [1, 16, 416, 1060] {
        let (outcomes, _) = meddled(AEAD[0], move |passing, _| {
            let length = passing.payload.len();
            passing.payload.truncate(length - cut);
        })
        .await;
        assert_eq!(outcomes, [], "{cut} bytes cut");
    }
    let (outcomes, _) = meddled(AEAD[0], |passing, _| passing.payload[9] ^= 4).await;
    assert_eq!(outcomes, []);
}

#[tokio::test]
async fn a_chunk_at_another_place_or_of_another_client_is_refused() {
    let (outcomes, _) =
        meddled(AEAD[0], |passing, _| passing.offset = (passing.offset + 1000) % UPDATE).await;
    assert!(forged(&outcomes), "{outcomes:?}");
    let (outcomes, _) = meddled(AEAD[0], |passing, _| passing.id.sender += 1).await;
    assert!(forged(&outcomes), "{outcomes:?}");
    let (outcomes, _) = meddled(AEAD[0], |passing, _| passing.id.job += 1).await;
    assert!(forged(&outcomes), "{outcomes:?}");
}

/// The payloads of round 1 again, as chunks of round 2. The receiver has seen them before.
#[tokio::test]
async fn a_chunk_of_another_round_is_dropped() {
    let (outcomes, recorder) = meddled(AEAD[0], |passing, before| {
        passing.payload.clone_from(&before[passing.offset as usize / 1000])
    })
    .await;
    assert_eq!(outcomes, []);
    assert!(recorder.seen().placed.is_empty());
}

/// This is why `aes-cbc` is for comparison only. Flipping a bit of the vector flips a bit of the plaintext,
/// and the attacker can correct the checksum.
#[cfg(feature = "baselines")]
#[tokio::test]
async fn with_cbc_anybody_can_choose_bits() {
    let mut change = vec![0; CHUNK as usize];
    change[5] = 0x40;
    let checksum = thalweg_wire::checksum;
    let delta = checksum(&change) ^ checksum(&vec![0; CHUNK as usize]);
    let (outcomes, recorder) = meddled(Suite::AesCbc, move |passing, _| {
        passing.payload[16 + 5] ^= 0x40;
        for (byte, part) in passing.payload[12..16].iter_mut().zip(delta.to_le_bytes()) {
            *byte ^= part;
        }
    })
    .await;
    assert_eq!(outcomes, [0, 1000, 2000].map(|offset| (offset, Ok(()))), "nobody notices");
    let source = pattern(UPDATE, 1);
    let (sent, received) = (source.lend(source.range()).unwrap(), recorder.bytes(source.range()));
    assert_eq!(received[5], sent[5] ^ 0x40);
    assert_eq!(received[6..1000], sent[6..1000]);
}

fn refused(end: &Result<Arc<dyn Link>>, words: &[&str]) {
    let error = end.as_ref().map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Security, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{word:?} is not in: {error}");
    }
}

#[tokio::test]
async fn links_without_a_secret_are_refused_with_the_hint() {
    let memory = Seal::default().wrap(Arc::new(Memory));
    let listener =
        memory.listen(&Address::parse("memory://seal:0").unwrap(), &Options::default()).await.unwrap();
    for end in &meet(&*listener, &*memory, &Options::default()).await {
        refused(end, &["share no secret", "security.tls", "layers.seal"]);
    }
}

#[tokio::test]
async fn ends_that_do_not_agree_are_told_how() {
    let ours = Seal::default();
    let other = Seal { cipher: AEAD[1], record: Some(1432), ..Seal::default() };
    let [_, server] = between(&ours, &other).await;
    refused(
        &server,
        &["chacha20-poly1305 in records of 1432 bytes", "aes-256-gcm in records of 1504", "both ends"],
    );
    let chosen = Seal { record: Some(1504), loss: 0.5, ..Seal::default() };
    for end in between(&ours, &chosen).await {
        end.unwrap();
    }
}

#[tokio::test]
async fn a_peer_without_the_layer_is_refused() {
    let (trust, at) = (Trust::new(), Address::parse("tcp://localhost:0").unwrap());
    let listener = Seal::default().wrap(Arc::new(Tcp)).listen(&at, &trust.listen(false)).await.unwrap();
    let (address, options) = (listener.address(), trust.connect(None));
    let accept = async { listener.accept().await.unwrap().await };
    let connect = async {
        let client = Tcp.connect(&address, &options).await.unwrap();
        client.send_control(Bytes::from_static(b"hello")).await.unwrap();
        client
    };
    let (_client, server) = tokio::join!(connect, accept);
    refused(&server, &["does not seal", "both sides"]);
}

/// The header and preface of each chunk, and a tag for each record.
#[tokio::test]
async fn what_sealing_adds_is_counted() {
    let layer = Seal { record: Some(1432), ..Seal::default() };
    let [client, server] = between(&layer, &layer).await.map(Result::unwrap);
    let bytes = 100 * 1432 + 1;
    let recorder = Arc::new(Recorder::new(bytes));
    let mut pump = Pump::start(&server, &recorder);
    let report = client.send_update(&outgoing(&pattern(bytes, 1), update_id(1), 1 << 20)).await.unwrap();
    client.send_control(Bytes::from_static(b"end")).await.unwrap();
    pump.next().await.unwrap();
    assert_eq!((report.chunks, report.payload), (1, bytes));
    let sealed = bytes + 101 * 16 + 16;
    assert_eq!(report.wire, sealed + HEADER_BYTES as u64);
    // TLS copies the sealed bytes once more.
    for end in [client, server] {
        assert_eq!(end.counters().copied, bytes + sealed);
    }
}

/// A chunk as long as the layer says fits the transport, and one byte more does not.
#[test]
fn the_room_in_a_chunk_is_used() {
    for cipher in Suite::ALL {
        for record in [16, 100, 1432, 1 << 20] {
            let layer = Seal { cipher, record: Some(record), ..Seal::default() };
            for max_chunk in [0, 1, 31, 32, 33, 100, 1400, 61_440, 4 << 20] {
                let room =
                    layer.capabilities(Capabilities { max_chunk, ..Capabilities::default() }).max_chunk;
                let sealed = |plain: u32| {
                    let grid = Grid::new(cipher, plain.into(), record).unwrap();
                    16 + grid.sealed_bytes()
                };
                assert!(room == 0 || sealed(room) <= u64::from(max_chunk), "{cipher:?} {record} {max_chunk}");
                assert!(sealed(room + 1) > u64::from(max_chunk), "{cipher:?} {record} {max_chunk}: {room}");
            }
        }
    }
}

#[test]
fn impossible_choices_are_named() {
    for (layer, word) in [
        (Seal { record: Some(15), ..Seal::default() }, "15 bytes"),
        (Seal { record: Some(5 << 20), ..Seal::default() }, "5242880 bytes"),
        (Seal { loss: 1.5, ..Seal::default() }, "1.5"),
        (Seal { loss: f64::NAN, ..Seal::default() }, "NaN"),
    ] {
        let error = layer.check().unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    assert!(Seal::default().check().is_ok());
    assert!(serde_json::from_str::<Seal>(r#"{"cipher": "rot13"}"#)
        .unwrap_err()
        .to_string()
        .contains("aes-cbc"));
    assert!(serde_json::from_str::<Seal>(r#"{"size": 3}"#).is_err());
    let named: Seal = serde_json::from_str(r#"{"cipher": "aes-cbc", "record": null}"#).unwrap();
    assert_eq!(named, Seal { cipher: Suite::AesCbc, ..Seal::default() });
    assert_eq!(named.check().is_ok(), cfg!(feature = "baselines"));
}
