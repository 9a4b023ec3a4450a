//! A link over one gRPC stream.

use std::sync::atomic::Ordering;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_sockets::socket::Socket;
use thalweg_transport::{Capabilities, Counters, Link, Outgoing, Peer, Result, SendReport, Sink, Transport};
use tokio::sync::Mutex;

use crate::receive::Inbox;
use crate::send::Backs;
use crate::shared::LinkState;
use crate::{send, unary, Grpc};

pub(crate) struct GrpcLink {
    pub peer: Peer,
    pub socket: Socket,
    pub inbox: Mutex<Inbox>,
    pub shared: Arc<LinkState>,
}

#[async_trait]
impl Link for GrpcLink {
    fn peer(&self) -> &Peer {
        &self.peer
    }

    fn capabilities(&self) -> Capabilities {
        // A unary call is a stream of its own, which may overtake messages.
        let ordered = self.shared.unary.is_none();
        Capabilities { ordered, settled: !ordered, ..Grpc.capabilities() }
    }

    async fn send_control(&self, message: Bytes) -> Result<()> {
        send::control(&self.shared, message).await
    }

    async fn send_update(&self, update: &Outgoing) -> Result<SendReport> {
        send::check(update)?;
        self.shared.check("send update")?;
        if update.chunks().is_empty() && !update.cancel().is_cancelled() {
            return Ok(send::nothing());
        }
        let mut lent = Backs::new();
        let report = tokio::select! {
            biased;
            // A message that is already on its way holds no loan: gRPC has its own copy, or is making it.
            () = update.cancel().cancelled() => Err(SendReport::cancelled()),
            report = self.send_uncancelled(update, &mut lent) => report,
        };
        if report.is_err() {
            for back in lent {
                let _ = back.await; // fails when gRPC has dropped the payload
            }
        }
        report
    }

    async fn receive(&self, sink: &dyn Sink) -> Result<Bytes> {
        self.inbox.lock().await.receive(sink, &self.shared).await
    }

    fn admit(&self) {
        self.shared.standing.admit();
    }

    fn counters(&self) -> Counters {
        let mut counters = Counters {
            sent: self.shared.sent.load(Ordering::Relaxed),
            received: self.shared.received.load(Ordering::Relaxed),
            copied: self.shared.copied.load(Ordering::Relaxed),
            ..Counters::default()
        };
        self.socket.tell(&mut counters);
        counters
    }

    async fn close(&self) {
        self.shared.refuse("the link was closed here");
    }
}

impl GrpcLink {
    async fn send_uncancelled(&self, update: &Outgoing, lent: &mut Backs) -> Result<SendReport> {
        match &self.shared.unary {
            Some(unary) => unary::update(&self.shared, unary, update).await,
            None => send::update(&self.shared, update, lent).await,
        }
    }
}

impl Drop for GrpcLink {
    fn drop(&mut self) {
        self.shared.refuse("the link was dropped");
    }
}
