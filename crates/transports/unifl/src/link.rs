//! The client's end of a link: a tcp link whose other end may mask lost bytes.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_transport::{Capabilities, Counters, Link, Outgoing, Peer, Result, SendReport, Sink, Transport};

use crate::Unifl;

pub(crate) struct Connected(pub Arc<dyn Link>);

#[async_trait]
impl Link for Connected {
    fn peer(&self) -> &Peer {
        self.0.peer()
    }

    fn capabilities(&self) -> Capabilities {
        let Capabilities { ordered, settled, .. } = self.0.capabilities();
        Capabilities { ordered, settled, ..Unifl.capabilities() }
    }

    async fn send_control(&self, message: Bytes) -> Result<()> {
        self.0.send_control(message).await
    }

    async fn send_update(&self, update: &Outgoing) -> Result<SendReport> {
        self.0.send_update(update).await
    }

    async fn receive(&self, sink: &dyn Sink) -> Result<Bytes> {
        self.0.receive(sink).await
    }

    fn admit(&self) {
        self.0.admit();
    }

    fn counters(&self) -> Counters {
        self.0.counters()
    }

    async fn close(&self) {
        self.0.close().await;
    }
}
