//! A `udp` link: an inner `tcp` link for control messages, and a pair of UDP sockets for each direction of
//! chunks. Three tasks run with it: one receives control messages, one repeats probes, one repeats control
//! messages. The connecting end has a fourth one, which shows the peer its new address when that has changed.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_transport::trace::Trace;
use thalweg_transport::{
    Capabilities, Carriers, Counters, Link, Outgoing, Peer, Result, SendReport, Sink, Transport,
};
use tokio::sync::{mpsc, Mutex};
use tokio::task::AbortHandle;

use crate::deliver::{pass_on, Intake};
use crate::hello::Ends;
use crate::link_state::LinkState;
use crate::moving::announce_moves;
use crate::receive::Reports;
use crate::repetition::repeat_messages;
use crate::send::{self, Sender};
use crate::socket::Lane;
use crate::Udp;

/// Control messages received ahead of the caller. Further ones wait in the kernel.
const CONTROL_AHEAD: usize = 1;

/// One end of a link. Dropping it ends the link and its tasks.
pub(crate) struct UdpLink {
    inner: Arc<dyn Link>,
    carriers: Carriers,
    sender: Arc<Mutex<Sender>>,
    outgoing: Arc<Lane>,
    incoming: Arc<Lane>,
    intake: Mutex<Intake<Reports>>,
    state: Arc<LinkState>,
    tasks: Vec<AbortHandle>,
}

impl UdpLink {
    /// Creates a link from a finished handshake and starts its tasks.
    pub(crate) fn new(ends: Ends, paced: bool, trace: Option<Trace>) -> Self {
        let Ends { inner, outgoing, window, incoming, standing, carriers, moves } = ends;
        let state = Arc::new(LinkState::new(inner.peer().address.clone(), standing));
        let incoming = Arc::new(incoming);
        let (pass, control) = mpsc::channel(CONTROL_AHEAD);
        let outgoing = Arc::new(outgoing);
        let sender = Arc::new(Mutex::new(Sender::new(outgoing.clone(), window, paced, trace)));
        let intake = Mutex::new(Intake::new(incoming.clone(), control, Reports::default()));
        let reading = tokio::spawn(pass_on(inner.clone(), state.clone(), pass));
        let probing = tokio::spawn(send::repeat_probes(state.clone(), sender.clone()));
        let both = (sender.clone(), state.clone());
        let read_reports = move || send::try_read_reports(both.clone());
        let measured = (sender.clone(), inner.clone());
        let round_trip = move || round_trip(&measured.0, &*measured.1);
        let repeating =
            tokio::spawn(repeat_messages(state.clone(), outgoing.clone(), round_trip, read_reports));
        let announcing = moves.map(|moves| {
            let (lanes, both) = ([outgoing.clone(), incoming.clone()], (sender.clone(), state.clone()));
            tokio::spawn(announce_moves(lanes, moves, move || send::try_read_reports(both.clone())))
        });
        let tasks = [reading, probing, repeating].into_iter().chain(announcing);
        let tasks = tasks.map(|task| task.abort_handle()).collect();
        Self { inner, carriers, sender, outgoing, incoming, intake, state, tasks }
    }
}

/// The round trip that the sender has measured, or else that of the control connection. A sender that is sending
/// holds its lock.
fn round_trip(sender: &Mutex<Sender>, inner: &dyn Link) -> Option<Duration> {
    let measured = sender.try_lock().ok().and_then(|sender| sender.round_trip());
    measured.or_else(|| inner.counters().round_trip)
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
        self.state.check("send control")?;
        let _sending = self.state.sending_message.lock().await;
        self.inner.send_control(message.clone()).await?;
        // There is no await below, so cancelling the caller cannot leave a message sent but not counted.
        self.state.note_message(&self.outgoing, message);
        send::probe(&self.outgoing, &self.state);
        self.state.probe_due.notify_one();
        Ok(())
    }

    async fn send_update(&self, update: &Outgoing) -> Result<SendReport> {
        send::update(&self.state, &self.sender, update).await
    }

    async fn receive(&self, sink: &dyn Sink) -> Result<Bytes> {
        let outcome = self.intake.lock().await.next(sink, &self.state).await;
        if let Err(error) = &outcome {
            self.state.refuse(&error.to_string());
        }
        outcome
    }

    fn admit(&self) {
        self.state.standing.admit();
        self.inner.admit();
        self.outgoing.admit();
        self.incoming.admit();
    }

    fn counters(&self) -> Counters {
        let control = self.inner.counters();
        Counters {
            sent: control.sent + self.state.sent.load(Relaxed),
            received: control.received + self.state.received.load(Relaxed),
            copied: control.copied + self.state.copied.load(Relaxed),
            round_trip: round_trip(&self.sender, &*self.inner),
            ..Counters::default()
        }
    }

    fn carriers(&self) -> Option<Carriers> {
        Some(self.carriers)
    }

    async fn close(&self) {
        self.state.refuse("the link was closed here");
        self.inner.close().await;
    }
}

impl Drop for UdpLink {
    fn drop(&mut self) {
        self.state.refuse("the link was dropped");
        // The tasks hold references to the control connection; aborting them releases it.
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}
