//! [`LinkLayer`]: a link around another link.

use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_wire::Tolerance;

use crate::{Capabilities, Carriers, Counters, Link, Outgoing, Peer, Result, SendReport, Sink};

/// A link around another link. A layer implements only the methods that it changes; the others call the inner
/// link. Every layer is a [`Link`].
pub trait LinkLayer: Send + Sync {
    /// The link that this layer is around.
    fn inner(&self) -> &dyn Link;

    /// See [`Link::capabilities`].
    fn capabilities(&self) -> Capabilities {
        self.inner().capabilities()
    }

    /// See [`Link::send_control`].
    fn send_control(&self, message: Bytes) -> impl Future<Output = Result<()>> + Send {
        async move { self.inner().send_control(message).await }
    }

    /// See [`Link::send_update`].
    fn send_update(&self, update: &Outgoing) -> impl Future<Output = Result<SendReport>> + Send {
        async move { self.inner().send_update(update).await }
    }

    /// See [`Link::receive`].
    fn receive(&self, sink: &dyn Sink) -> impl Future<Output = Result<Bytes>> + Send {
        async move { self.inner().receive(sink).await }
    }

    /// See [`Link::tolerate`].
    fn tolerate(&self, tolerance: &Arc<Tolerance>) {
        self.inner().tolerate(tolerance);
    }

    /// See [`Link::counters`].
    fn counters(&self) -> Counters {
        self.inner().counters()
    }

    /// See [`Link::notice`].
    fn notice(&self) -> Option<String> {
        self.inner().notice()
    }

    /// See [`Link::carriers`].
    fn carriers(&self) -> Option<Carriers> {
        self.inner().carriers()
    }

    /// See [`Link::close`].
    fn close(&self) -> impl Future<Output = ()> + Send {
        async move { self.inner().close().await }
    }
}

#[async_trait]
impl<L: LinkLayer> Link for L {
    fn peer(&self) -> &Peer {
        self.inner().peer()
    }

    fn capabilities(&self) -> Capabilities {
        LinkLayer::capabilities(self)
    }

    async fn send_control(&self, message: Bytes) -> Result<()> {
        LinkLayer::send_control(self, message).await
    }

    async fn send_update(&self, update: &Outgoing) -> Result<SendReport> {
        LinkLayer::send_update(self, update).await
    }

    async fn receive(&self, sink: &dyn Sink) -> Result<Bytes> {
        LinkLayer::receive(self, sink).await
    }

    fn tolerate(&self, tolerance: &Arc<Tolerance>) {
        LinkLayer::tolerate(self, tolerance);
    }

    fn admit(&self) {
        self.inner().admit();
    }

    fn counters(&self) -> Counters {
        LinkLayer::counters(self)
    }

    fn held(&self) -> Option<String> {
        self.inner().held()
    }

    fn notice(&self) -> Option<String> {
        LinkLayer::notice(self)
    }

    fn carriers(&self) -> Option<Carriers> {
        LinkLayer::carriers(self)
    }

    async fn close(&self) {
        LinkLayer::close(self).await;
    }
}
