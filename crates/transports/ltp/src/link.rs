//! A link: an inner tcp link for control messages, and a pair of sockets for the packets of each direction.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_transport::trace::Trace;
use thalweg_transport::{
    Capabilities, Carriers, Counters, Link, Outgoing, Peer, Result, SendReport, Sink, Transport,
};
use thalweg_udp::deliver::{pass_on, Intake};
use thalweg_udp::hello::Ends;
use thalweg_udp::link_state::LinkState;
use thalweg_udp::moving::announce_moves;
use thalweg_udp::repetition::repeat_messages;
use thalweg_udp::socket::Lane;
use thalweg_wire::Tolerance;
use tokio::sync::{mpsc, Mutex};
use tokio::task::AbortHandle;

use crate::critical::Critical;
use crate::options::Choice;
use crate::receive::Acks;
use crate::send::{self, Driver, Order, Protection, Stats};
use crate::Ltp;

/// Control messages that may wait to be received. Further messages wait in the kernel.
const CONTROL: usize = 1;
/// Updates that may wait to be sent. Callers with further updates wait.
const ORDERS: usize = 1;

pub(crate) struct LtpLink {
    inner: Arc<dyn Link>,
    carriers: Carriers,
    orders: mpsc::Sender<Order>,
    lanes: [Arc<Lane>; 2],
    intake: Mutex<Intake<Acks>>,
    state: Arc<LinkState>,
    stats: Arc<Stats>,
    critical: Arc<Critical>,
    tasks: Vec<AbortHandle>,
}

impl LtpLink {
    /// Makes a link from the results of the handshake.
    pub(crate) fn new(ends: Ends, choice: Choice, trace: Option<Trace>) -> Self {
        let Ends { inner, outgoing, window, incoming, standing, carriers, moves } = ends;
        let state = Arc::new(LinkState::new(inner.peer().address.clone(), standing));
        let lanes = [Arc::new(incoming), Arc::new(outgoing)];
        let [incoming, outgoing] = lanes.clone();
        let stats = Arc::new(Stats::default());
        let critical = Arc::new(Critical::new(choice.critical));
        let (pass, control) = mpsc::channel(CONTROL);
        let (orders, taken) = mpsc::channel(ORDERS);
        let intake = Mutex::new(Intake::new(incoming, control, Acks::new(choice.rule, stats.clone())));
        let protection = Protection { critical: critical.clone(), repair: choice.repair };
        let measured = (stats.clone(), inner.clone());
        let round_trip = move || measured.0.round_trip().or_else(|| measured.1.counters().round_trip);
        let repeating =
            tokio::spawn(repeat_messages(state.clone(), outgoing.clone(), round_trip, || async {}));
        let driver =
            Driver::new(outgoing, window, protection, state.clone(), stats.clone(), taken).traced(trace);
        let reading = tokio::spawn(pass_on(inner.clone(), state.clone(), pass));
        let sending = tokio::spawn(driver.run());
        let announcing = moves.map(|moves| {
            let [incoming, outgoing] = lanes.clone();
            tokio::spawn(announce_moves([outgoing, incoming], moves, || async {}))
        });
        let tasks = [reading, sending, repeating].into_iter().chain(announcing);
        let tasks = tasks.map(|task| task.abort_handle()).collect();
        Self { inner, carriers, orders, lanes, intake, state, stats, critical, tasks }
    }
}

#[async_trait]
impl Link for LtpLink {
    fn peer(&self) -> &Peer {
        self.inner.peer()
    }

    fn capabilities(&self) -> Capabilities {
        Ltp.capabilities()
    }

    async fn send_control(&self, message: Bytes) -> Result<()> {
        self.state.check("send control")?;
        let _sending = self.state.sending_message.lock().await;
        self.inner.send_control(message.clone()).await?;
        // Count the message in the same poll that has sent it. Else a caller that is dropped in between would
        // leave it uncounted. A probe follows.
        self.state.note_message(&self.lanes[1], message);
        self.state.probe_due.notify_one();
        Ok(())
    }

    async fn send_update(&self, update: &Outgoing) -> Result<SendReport> {
        send::update(&self.orders, &self.state, update).await
    }

    async fn receive(&self, sink: &dyn Sink) -> Result<Bytes> {
        let outcome = self.intake.lock().await.next(sink, &self.state).await;
        if let Err(error) = &outcome {
            self.state.refuse(&error.to_string());
        }
        outcome
    }

    fn tolerate(&self, tolerance: &Arc<Tolerance>) {
        self.critical.tolerate(tolerance);
    }

    fn admit(&self) {
        self.state.standing.admit();
        self.inner.admit();
        self.lanes.iter().for_each(|lane| lane.admit());
    }

    fn counters(&self) -> Counters {
        let control = self.inner.counters();
        Counters {
            sent: control.sent + self.state.sent.load(Relaxed),
            received: control.received + self.state.received.load(Relaxed),
            copied: control.copied + self.state.copied.load(Relaxed),
            retransmissions: Some(self.stats.again.load(Relaxed)),
            repair: Some(self.stats.repair.load(Relaxed)),
            rebuilt: Some(self.stats.rebuilt.load(Relaxed)),
            round_trip: self.stats.round_trip().or(control.round_trip),
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

impl Drop for LtpLink {
    fn drop(&mut self) {
        self.state.refuse("the link was dropped");
        self.tasks.iter().for_each(AbortHandle::abort); // drops the last control connection handle
    }
}
