//! Tests of the compressing layer beyond the transport contract: every receiver gets the same values, in
//! fewer bytes.
#![allow(clippy::unwrap_used)] // a panic is how tests report

use std::sync::Arc;

use thalweg_arena::Arena;
use thalweg_conformance::{outgoing, pattern, update_id, Pump, Recorder};
use thalweg_layers::{Compress, Fault, Format, Layer, Links, Side};
use thalweg_transport::memory::Memory;
use thalweg_transport::{
    Address, Capabilities, ErrorKind, Link, LinkLayer, Options, Outgoing, Result, SendReport, Transport,
};
use thalweg_wire::{Dtype, Layout};

/// Both ends of a link, each with a layer of its own.
async fn between(listen: &dyn Transport, connect: &dyn Transport, name: &str) -> [Result<Arc<dyn Link>>; 2] {
    let at = Address::parse(&format!("memory://compress-{name}:0")).unwrap();
    let listener = listen.listen(&at, &Options::default()).await.unwrap();
    let address = listener.address();
    let accept = async { listener.accept().await.unwrap().await };
    let options = Options::default();
    let (client, server) = tokio::join!(connect.connect(&address, &options), accept);
    [client, server]
}

fn weights(values: u64) -> Arc<Layout> {
    Arc::new(Layout::pack([("weights", Dtype::F32, vec![values])]).unwrap())
}

/// Values like those of a model: small, of either sign, all different.
fn model(layout: &Layout) -> Arena {
    let arena = Arena::new(layout.bytes()).unwrap();
    let mut claim = arena.claim(arena.range()).unwrap();
    for (at, place) in claim.chunks_exact_mut(4).enumerate() {
        let value = ((at * 7919 % 2003) as f32 - 1001.0) / 4004.0;
        place.copy_from_slice(&value.to_le_bytes());
    }
    drop(claim);
    arena
}

/// Sends an update over a link of `transport`. Returns what the receiver has, and the sender's report.
async fn sent(
    transport: &dyn Transport,
    name: &str,
    update: &Outgoing,
    bytes: u64,
) -> (Arc<Recorder>, SendReport) {
    let [client, server] = between(transport, transport, name).await;
    let (client, server) = (client.unwrap(), server.unwrap());
    let recorder = Arc::new(Recorder::new(bytes));
    let mut pump = Pump::start(&server, &recorder);
    let report = client.send_update(update).await.unwrap();
    client.send_control("over".into()).await.unwrap();
    pump.next().await.unwrap();
    (recorder, report)
}

#[tokio::test]
async fn values_come_as_every_receiver_gets_them_in_fewer_bytes() {
    for (format, most) in [(Format::F16, 0.52), (Format::Int8, 0.27)] {
        let layout = weights(100_000);
        let arena = model(&layout);
        let update = outgoing(&arena, update_id(1), 64 << 10).of(layout.clone());
        let transport = Compress::from(format).wrap(Arc::new(Memory));
        let (recorder, report) =
            sent(&*transport, &format!("{format:?}").to_lowercase(), &update, layout.bytes()).await;
        let mut expected = arena.lend(arena.range()).unwrap().to_vec();
        format.round(&layout, &mut expected);
        assert_eq!(recorder.bytes(arena.range()), expected);
        assert_eq!(report.payload, layout.bytes());
        let share = report.wire as f64 / layout.bytes() as f64;
        assert!(share < most, "{format:?}: {share} of the bytes");
    }
}

#[tokio::test]
async fn a_chunk_that_is_lost_spoils_no_other() {
    let layout = weights(100_000);
    let arena = model(&layout);
    let update = outgoing(&arena, update_id(1), 8 << 10).of(layout.clone());
    let compress = Compress::from(Format::Int8);
    let lossy = Fault { loss: 0.3, seed: 5, ..Fault::default() };
    let transport = Layer::wrap(&compress, Layer::wrap(&lossy, Arc::new(Memory)));
    let (recorder, _) = sent(&*transport, "lossy", &update, layout.bytes()).await;
    let mut expected = arena.lend(arena.range()).unwrap().to_vec();
    compress.format.round(&layout, &mut expected);
    let (received, bytes) = (recorder.seen().stored.clone(), recorder.bytes(arena.range()));
    assert!(received.len() > 10 && received.len() < update.chunks().len());
    for (chunk, outcome) in received {
        assert_eq!(outcome, Ok(()));
        let range = chunk.offset as usize..chunk.offset as usize + chunk.length as usize;
        assert_eq!(bytes[range.clone()], expected[range]);
    }
}

#[tokio::test]
async fn ends_that_do_not_agree_are_told_how() {
    let (half, byte) = (Compress::from(Format::F16), Compress::from(Format::Int8));
    let (inner, plain): (Arc<dyn Transport>, Arc<dyn Transport>) = (Arc::new(Memory), Arc::new(Memory));
    let (listening, connecting) = (half.wrap(inner.clone()), byte.wrap(inner));
    let [_, server] = between(&*listening, &*connecting, "differ").await;
    let error = server.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("Int8") && error.to_string().contains("F16"), "{error}");
    assert!(format!("{error:?}").contains("layers.compress"), "{error:?}");
    // A peer without the layer sends another message first.
    let at = Address::parse("memory://compress-none:0").unwrap();
    let listener = listening.listen(&at, &Options::default()).await.unwrap();
    let address = listener.address();
    let accept = async { listener.accept().await.unwrap().await };
    let connect = async {
        let link = plain.connect(&address, &Options::default()).await.unwrap();
        link.send_control("something else".into()).await.unwrap();
        link
    };
    let (_client, server) = tokio::join!(connect, accept);
    assert!(server.err().unwrap().to_string().contains("does not compress"));
}

/// Makes links whose chunks are no longer than a datagram.
#[derive(Clone)]
struct Short;

impl Layer for Short {
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        Capabilities { max_chunk: 1344, preferred_chunk: 1344, ..inner }
    }

    fn links(&self, _side: Side) -> Arc<dyn Links> {
        Arc::new(Short)
    }
}

impl Links for Short {
    fn wrap(&self, inner: Arc<dyn Link>, _number: u64) -> Arc<dyn Link> {
        Arc::new(ShortLink { inner })
    }
}

struct ShortLink {
    inner: Arc<dyn Link>,
}

impl LinkLayer for ShortLink {
    fn inner(&self) -> &dyn Link {
        &*self.inner
    }

    fn capabilities(&self) -> Capabilities {
        Short.capabilities(self.inner.capabilities())
    }

    async fn send_update(&self, update: &Outgoing) -> Result<SendReport> {
        assert!(update.chunks().iter().all(|chunk| chunk.range().len() <= 1344), "a chunk is too long");
        self.inner.send_update(update).await
    }
}

#[tokio::test]
async fn datagrams_hold_more_and_what_stays_as_it_is_takes_more_of_them() {
    for (format, holds) in [(Format::F16, 2048), (Format::Int8, 5120)] {
        let compress = Compress::from(format);
        let transport = Layer::wrap(&compress, Layer::wrap(&Short, Arc::new(Memory)));
        assert_eq!(transport.capabilities().preferred_chunk, holds);
        let layout = weights(50_000);
        let (smooth, noise) = (model(&layout), pattern(layout.bytes(), 3));
        for (name, arena, layout) in [("smooth", &smooth, Some(layout)), ("noise", &noise, None)] {
            let update = outgoing(arena, update_id(1), holds);
            let update = layout.iter().fold(update, |update, layout| update.of(layout.clone()));
            let mut expected = arena.lend(arena.range()).unwrap().to_vec();
            if let Some(layout) = &layout {
                format.round(layout, &mut expected);
            }
            let (recorder, report) =
                sent(&*transport, &format!("{name}-{holds}"), &update, arena.len()).await;
            assert_eq!(recorder.bytes(arena.range()), expected);
            assert_eq!(report.chunks, update.chunks().len() as u64);
            let pieces = recorder.seen().stored.len() as u64;
            assert_eq!(pieces > report.chunks, name == "noise", "{pieces} of {}", report.chunks);
        }
    }
}
