//! The `Transport` and `Link` over a message protocol. The other modules do the work.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_transport::{
    Address, Capabilities, Counters, Link, Listener, Options, Outgoing, Peer, Result, SendReport, Setting,
    Sink, Transport,
};

use crate::shared::LinkState;
use crate::{listener, member, receive, send, Post};

/// A transport over the protocol `P`.
#[derive(Debug, Clone)]
pub struct Messages<P>(Arc<P>);

impl<P: Post> Messages<P> {
    /// A transport over `post`.
    pub fn new(post: P) -> Self {
        Self(Arc::new(post))
    }
}

#[async_trait]
impl<P: Post> Transport for Messages<P> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn settings(&self) -> &'static [Setting] {
        self.0.settings()
    }

    async fn listen(&self, address: &Address, options: &Options) -> Result<Box<dyn Listener>> {
        Ok(Box::new(listener::listen(self.0.clone(), address, options).await?))
    }

    async fn connect(&self, address: &Address, options: &Options) -> Result<Arc<dyn Link>> {
        Ok(Arc::new(member::connect(&*self.0, address, options).await?))
    }
}

/// One end of a link. Dropping it ends the link.
pub(crate) struct MessageLink(pub Arc<LinkState>);

#[async_trait]
impl Link for MessageLink {
    fn peer(&self) -> &Peer {
        &self.0.ends.peer
    }

    fn capabilities(&self) -> Capabilities {
        self.0.ends.capabilities
    }

    async fn send_control(&self, message: Bytes) -> Result<()> {
        send::control(&self.0, message).await
    }

    async fn send_update(&self, update: &Outgoing) -> Result<SendReport> {
        send::update(&self.0, update).await
    }

    async fn receive(&self, sink: &dyn Sink) -> Result<Bytes> {
        receive::receive(&self.0, sink).await
    }

    fn admit(&self) {
        self.0.admit();
    }

    fn counters(&self) -> Counters {
        self.0.counters()
    }

    fn held(&self) -> Option<String> {
        self.0.ends.carrier.held()
    }

    async fn close(&self) {
        self.0.refuse("the link was closed here");
    }
}

impl Drop for MessageLink {
    fn drop(&mut self) {
        self.0.refuse("the link was dropped");
    }
}
