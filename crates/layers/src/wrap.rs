//! A transport around another transport: the parts that all layers have in common.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use thalweg_transport::{
    Address, Capabilities, Link, Listener, Options, Outgoing, Pending, Result, SendReport, Setting,
    Transport, Ways,
};

/// Which side made a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// This side connected.
    Connected,
    /// A listener accepted it.
    Accepted,
}

/// A layer, which wraps transports.
pub trait Layer: Clone + Send + Sync + 'static {
    /// The capabilities of a wrapped transport or link.
    fn capabilities(&self, inner: Capabilities) -> Capabilities;

    /// The options of the inner transport, if they differ from those of the outer one.
    fn options(&self, outer: &Options) -> Options {
        outer.clone()
    }

    /// The layer's state for the links of one listener, or for all links that connect.
    fn links(&self, side: Side) -> Arc<dyn Links>;

    /// Wraps a transport: each of its links gets this layer.
    fn wrap(&self, inner: Arc<dyn Transport>) -> Arc<dyn Transport> {
        let connected = self.links(Side::Connected);
        let layer = self.clone();
        let numbers = [Side::Connected, Side::Accepted].map(|side| Arc::new(Numbers::new(side)));
        Arc::new(Wrapped { inner, layer, connected, numbers })
    }
}

/// Wraps the links of one side.
#[async_trait]
pub trait Links: Send + Sync {
    /// Wraps a link. Links are numbered in the order of the calls that make them: those that connect 0, 2, 4,
    /// ..., accepted ones 1, 3, 5, ...
    fn wrap(&self, inner: Arc<dyn Link>, number: u64) -> Arc<dyn Link>;

    /// Like [`Self::wrap`], for layers whose two sides must first agree.
    ///
    /// # Errors
    /// Errors of the link; or the other side does not have the same layer.
    async fn open(&self, inner: Arc<dyn Link>, number: u64) -> Result<Arc<dyn Link>> {
        Ok(self.wrap(inner, number))
    }
}

struct Numbers(AtomicU64);

impl Numbers {
    fn new(side: Side) -> Self {
        Self(AtomicU64::new(u64::from(side == Side::Accepted)))
    }

    fn next(&self) -> u64 {
        self.0.fetch_add(2, Ordering::Relaxed)
    }
}

struct Wrapped<L> {
    inner: Arc<dyn Transport>,
    layer: L,
    connected: Arc<dyn Links>,
    numbers: [Arc<Numbers>; 2],
}

#[async_trait]
impl<L: Layer> Transport for Wrapped<L> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.layer.capabilities(self.inner.capabilities())
    }

    fn settings(&self) -> &'static [Setting] {
        self.inner.settings()
    }

    async fn listen(&self, address: &Address, options: &Options) -> Result<Box<dyn Listener>> {
        let inner = self.inner.listen(address, &self.layer.options(options)).await?;
        let (links, numbers) = (self.layer.links(Side::Accepted), self.numbers[1].clone());
        // Leave room for the bytes that the layer adds to a chunk.
        let within = Capabilities { max_chunk: inner.max_chunk(), ..self.inner.capabilities() };
        let max_chunk = match within.max_chunk {
            u32::MAX => u32::MAX,
            _ => self.layer.capabilities(within).max_chunk,
        };
        Ok(Box::new(WrappedListener { inner, links, numbers, max_chunk }))
    }

    async fn connect(&self, address: &Address, options: &Options) -> Result<Arc<dyn Link>> {
        let number = self.numbers[0].next();
        let inner = self.inner.connect(address, &self.layer.options(options)).await?;
        self.connected.open(inner, number).await
    }

    async fn ways(&self, address: &Address, round_trip: Duration) -> Result<Option<Ways>> {
        self.inner.ways(address, round_trip).await
    }
}

struct WrappedListener {
    inner: Box<dyn Listener>,
    links: Arc<dyn Links>,
    numbers: Arc<Numbers>,
    max_chunk: u32,
}

#[async_trait]
impl Listener for WrappedListener {
    fn address(&self) -> Address {
        self.inner.address()
    }

    fn notice(&self) -> Option<String> {
        self.inner.notice()
    }

    fn max_chunk(&self) -> u32 {
        self.max_chunk
    }

    async fn accept(&self) -> Result<Pending> {
        let pending = self.inner.accept().await?;
        let (links, number) = (self.links.clone(), self.numbers.next());
        Ok(Box::pin(async move { links.open(pending.await?, number).await }))
    }
}

/// Adds the report of the next send to `total`.
pub(crate) fn add(total: &mut SendReport, piece: &SendReport) {
    total.chunks += piece.chunks;
    total.payload += piece.payload;
    total.wire += piece.wire;
    total.ended = total.ended.max(piece.ended);
}

/// A report of nothing sent. Its times are those of tokio's clock, which tests can pause.
pub(crate) fn nothing() -> SendReport {
    let now = tokio::time::Instant::now().into_std();
    SendReport { chunks: 0, payload: 0, wire: 0, started: now, ended: now }
}

/// Sends what a layer has made of an update. If `update` is cancelled, stops, and waits until nothing uses
/// the bytes any more.
pub(crate) async fn send_instead(
    inner: &Arc<dyn Link>,
    update: &Outgoing,
    made: &Outgoing,
) -> Result<SendReport> {
    let mut send = inner.send_update(made);
    let sent = tokio::select! {
        biased;
        () = update.cancel().cancelled() => None,
        sent = &mut send => Some(sent),
    };
    made.cancel().cancel(); // ends its loan of the bytes
    match sent {
        Some(sent) => sent,
        None => send.await,
    }
}

/// An update that consists of a single chunk of `update`.
pub(crate) fn piece(update: &Outgoing, index: usize) -> Outgoing {
    update.with_chunks([update.chunks()[index].clone()])
}
