//! A link that fell back to tcp, because one of its ends or the path has no RDMA.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_transport::{Capabilities, Counters, Link, Outgoing, Peer, Result, SendReport, Sink, Transport};

use crate::Rdma;

pub(crate) struct Plain {
    pub(crate) inner: Arc<dyn Link>,
    /// The reason for the fallback, for people; `None` if the listener's notice gives it.
    pub(crate) notice: Option<String>,
}

#[async_trait]
impl Link for Plain {
    fn peer(&self) -> &Peer {
        self.inner.peer()
    }

    fn capabilities(&self) -> Capabilities {
        let Capabilities { ordered, settled, zero_copy, .. } = self.inner.capabilities();
        Capabilities { ordered, settled, zero_copy, ..Rdma::default().capabilities() }
    }

    async fn send_control(&self, message: Bytes) -> Result<()> {
        self.inner.send_control(message).await
    }

    async fn send_update(&self, update: &Outgoing) -> Result<SendReport> {
        self.inner.send_update(update).await
    }

    async fn receive(&self, sink: &dyn Sink) -> Result<Bytes> {
        self.inner.receive(sink).await
    }

    fn admit(&self) {
        self.inner.admit();
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }

    fn notice(&self) -> Option<String> {
        self.notice.clone()
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
