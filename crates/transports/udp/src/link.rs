//! A `udp` link: an inner `tcp` link for control messages, and a pair of UDP sockets for each direction of
//! chunks. Three tasks run with it: one receives control messages, one repeats probes, one repeats control
//! messages.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_transport::trace::Trace;
use thalweg_transport::{Capabilities, Counters, Link, Outgoing, Peer, Result, SendReport, Sink, Transport};
use tokio::sync::{mpsc, Mutex};
use tokio::task::AbortHandle;

use crate::deliver::{pass_on, Intake};
use crate::hello::Ends;
use crate::link_state::LinkState;
use crate::receive::Reports;
use crate::repetition::keep_saying;
use crate::send::{self, Sender};
use crate::socket::Lane;
use crate::Udp;

/// Control messages received ahead of the caller. Further ones wait in the kernel.
const CONTROL: usize = 1;

/// One end of a link. Dropping it ends the link and its tasks.
pub(crate) struct UdpLink {
    inner: Arc<dyn Link>,
    sender: Arc<Mutex<Sender>>,
    outgoing: Arc<Lane>,
    incoming: Arc<Lane>,
    intake: Mutex<Intake<Reports>>,
    shared: Arc<LinkState>,
    tasks: [AbortHandle; 3],
}

impl UdpLink {
    /// Creates a link from a finished handshake and starts its tasks.
    pub(crate) fn new(ends: Ends, paced: bool, trace: Option<Trace>) -> Self {
        let Ends { inner, outgoing, window, incoming, standing } = ends;
        let shared = Arc::new(LinkState::new(inner.peer().address.clone(), standing));
        let incoming = Arc::new(incoming);
        let (pass, control) = mpsc::channel(CONTROL);
        let outgoing = Arc::new(outgoing);
        let sender = Arc::new(Mutex::new(Sender::new(outgoing.clone(), window, paced, trace)));
        let intake = Mutex::new(Intake::new(incoming.clone(), control, Reports::default()));
        let reading = tokio::spawn(pass_on(inner.clone(), shared.clone(), pass));
        let telling = tokio::spawn(send::keep_telling(shared.clone(), sender.clone()));
        let state = (sender.clone(), shared.clone());
        let hear = move || send::hear(state.clone());
        let saying = tokio::spawn(keep_saying(shared.clone(), outgoing.clone(), hear));
        let tasks = [reading, telling, saying].map(|task| task.abort_handle());
        Self { inner, sender, outgoing, incoming, intake, shared, tasks }
    }
}

#[async_trait]
impl Link for UdpLink {
    fn peer(&self) -> &Peer {
        self.inner.peer()
    }

    fn capabilities(&self) -> Capabilities {
        Udp.capabilities()
    }

    async fn send_control(&self, message: Bytes) -> Result<()> {
        self.shared.check("send control")?;
        let _speaking = self.shared.speaking.lock().await;
        self.inner.send_control(message.clone()).await?;
        // There is no await below, so cancelling the caller cannot leave a message sent but not counted.
        self.shared.spoken(&self.outgoing, message);
        send::probe(&self.outgoing, &self.shared);
        self.shared.spoke.notify_one();
        Ok(())
    }

    async fn send_update(&self, update: &Outgoing) -> Result<SendReport> {
        send::update(&self.shared, &self.sender, update).await
    }

    async fn receive(&self, sink: &dyn Sink) -> Result<Bytes> {
        let outcome = self.intake.lock().await.next(sink, &self.shared).await;
        if let Err(error) = &outcome {
            self.shared.refuse(&error.to_string());
        }
        outcome
    }

    fn admit(&self) {
        self.shared.standing.admit();
        self.inner.admit();
        self.outgoing.admit();
        self.incoming.admit();
    }

    fn counters(&self) -> Counters {
        let control = self.inner.counters();
        let measured = self.sender.try_lock().ok().and_then(|sender| sender.round_trip());
        Counters {
            sent: control.sent + self.shared.sent.load(Relaxed),
            received: control.received + self.shared.received.load(Relaxed),
            copied: control.copied + self.shared.copied.load(Relaxed),
            round_trip: measured.or(control.round_trip),
            ..Counters::default()
        }
    }

    async fn close(&self) {
        self.shared.refuse("the link was closed here");
        self.inner.close().await;
    }
}

impl Drop for UdpLink {
    fn drop(&mut self) {
        self.shared.refuse("the link was dropped");
        // The tasks hold references to the control connection; aborting them releases it.
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}
