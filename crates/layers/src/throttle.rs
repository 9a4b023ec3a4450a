//! Limits the rate of links without root, like an access link of that many bits per second.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use thalweg_transport::{Capabilities, Link, LinkLayer, Outgoing, Result, SendReport, Sink};
use thalweg_wire::HEADER_BYTES;
use tokio::time::Instant;

use crate::ended::Ended;
use crate::wrap::{add, nothing, piece};
use crate::{Layer, Links, Pacer, Rate, Side};

/// Limits the rate at which each link sends chunks and control messages, with their headers.
///
/// A chunk is sent when its last bit would have left a link of that rate. So an update of n bytes takes the
/// time of n bytes. Chunks are not cut, so choose a chunk size that takes only a small part of an update's
/// time.
#[derive(Debug, Clone)]
pub struct Throttle {
    rate: Rate,
    shared: bool,
}

impl Throttle {
    /// Limits each link by itself.
    pub const fn new(rate: Rate) -> Self {
        Self { rate, shared: false }
    }

    /// Limits all links of a listener together, like a server's access link. Links that connect are limited
    /// by themselves.
    #[must_use]
    pub const fn shared(self) -> Self {
        Self { shared: true, ..self }
    }

    fn lane(&self) -> Arc<Lane> {
        Arc::new(Lane { start: Instant::now(), pacer: Mutex::new(Pacer::new(self.rate)) })
    }
}

impl Layer for Throttle {
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        Capabilities { fan_out: false, ..inner }
    }

    fn links(&self, side: Side) -> Arc<dyn Links> {
        let shared = (self.shared && side == Side::Accepted).then(|| self.lane());
        Arc::new(Throttled { layer: self.clone(), shared })
    }
}

/// One direction of one link, or of all links of a listener.
struct Lane {
    start: Instant,
    pacer: Mutex<Pacer>,
}

impl Lane {
    fn pacer(&self) -> MutexGuard<'_, Pacer> {
        self.pacer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ready(&self) -> Duration {
        self.pacer().ready(self.start.elapsed())
    }

    fn book(&self, ready: Duration, bytes: u64) -> Duration {
        self.pacer().book(self.start.elapsed(), ready, bytes)
    }

    fn woken(&self) {
        self.pacer().woken(self.start.elapsed());
    }
}

struct Throttled {
    layer: Throttle,
    shared: Option<Arc<Lane>>,
}

impl Links for Throttled {
    fn wrap(&self, inner: Arc<dyn Link>, _number: u64) -> Arc<dyn Link> {
        let lane = self.shared.clone().unwrap_or_else(|| self.layer.lane());
        Arc::new(ThrottledLink { inner, lane, ended: Ended::new() })
    }
}

struct ThrottledLink {
    inner: Arc<dyn Link>,
    lane: Arc<Lane>,
    ended: Ended,
}

impl LinkLayer for ThrottledLink {
    fn inner(&self) -> &dyn Link {
        &*self.inner
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { fan_out: false, ..self.inner.capabilities() }
    }

    async fn send_control(&self, message: Bytes) -> Result<()> {
        let due = self.lane.book(self.lane.ready(), (HEADER_BYTES + message.len()) as u64);
        self.ended.sleep_until(self.lane.start + due).await;
        self.lane.woken();
        self.ended.note(self.inner.send_control(message).await)
    }

    async fn send_update(&self, update: &Outgoing) -> Result<SendReport> {
        let (mut report, mut ready) = (nothing(), self.lane.ready());
        for (index, chunk) in update.chunks().iter().enumerate() {
            // Book one chunk at a time, so that other updates and control messages get their turn.
            ready = self.lane.book(ready, chunk.range().len() + HEADER_BYTES as u64);
            self.ended.sleep_sending(self.lane.start + ready, update).await?;
            self.lane.woken();
            let sent = self.inner.send_update(&piece(update, index)).await;
            add(&mut report, &self.ended.note(sent)?);
        }
        report.ended = report.ended.max(nothing().ended);
        Ok(report)
    }

    async fn receive(&self, sink: &dyn Sink) -> Result<Bytes> {
        self.ended.note(self.inner.receive(sink).await)
    }

    async fn close(&self) {
        self.ended.set();
        self.inner.close().await;
    }
}
