//! What all machines that dial have in common: they connect, prove who they are, and pass messages on.

use thalweg_wire::control::{Control, Holding, Nonce, Proof, Welcome};

use super::dial::{ClientAction, Dial, ServerEvent};
use super::Failure;
use crate::{Span, Time};

/// A machine that dials. Its [`Dial`] keeps the link to the server. The machine adds a policy: what messages
/// mean, and what follows when the link ends.
///
/// The methods of this trait call those that are marked "Policy"; a driver does not. A driver reports each input
/// by the method for it, then calls [`ClientMachine::poll_action`] until there is no action.
pub trait ClientMachine: Sized {
    /// The actions that only this policy asks for.
    type Wanted;

    /// The link to the server; `None` if the machine does not dial.
    fn dial(&self) -> Option<&Dial<Self::Wanted>>;

    /// The link to the server, to change it.
    fn dial_mut(&mut self) -> Option<&mut Dial<Self::Wanted>>;

    /// Policy: the model, update or tasks that the client still has from before its link broke.
    fn holding(&self) -> Holding;

    /// Policy: the server has let the client in, on a new link.
    fn welcomed(&mut self, now: Time);

    /// Policy: handles a message from the server that has let the client in.
    fn message(&mut self, now: Time, message: Control);

    /// Policy: the link has ended. Grants and waits that belong to it are forgotten.
    fn link_lost(&mut self, now: Time, reason: &str);

    /// Policy: the next time at which a timer of the policy is due.
    fn next_timer(&self) -> Option<Time>;

    /// Policy: handles the policy's timers that are due at `now`.
    fn timers_due(&mut self, now: Time);

    /// Reports that the requested ranges were sent; `Err` says why not.
    fn sent(&mut self, now: Time, parcel: u32, outcome: Result<Span, String>);

    /// Takes the next action.
    fn poll_action(&mut self) -> Option<ClientAction<Self::Wanted>> {
        self.dial_mut()?.poll_action()
    }

    /// The server's Welcome, once it has let the client in.
    fn welcome(&self) -> Option<&Welcome> {
        self.dial()?.welcome()
    }

    /// Interval at which further attempts to connect begin, in parallel to those without an answer. `None` if
    /// no server has let the client in yet.
    fn pace(&self) -> Option<Time> {
        self.dial()?.pace()
    }

    /// Whether the client's part in the job is over.
    fn is_done(&self) -> bool {
        self.dial().is_none_or(Dial::is_done)
    }

    /// This client's nonce of the present connection, for the proof.
    fn nonce(&self) -> Option<Nonce> {
        self.dial()?.nonce()
    }

    /// Reports that the link is up. `nonce` must be fresh random bytes; `ordered`: the link keeps the order
    /// of messages and chunks.
    fn connected(&mut self, now: Time, nonce: Nonce, ordered: bool) {
        if let Some(dial) = self.dial_mut() {
            dial.connected(now, nonce, ordered);
        }
    }

    /// Reports that the server could not be reached. `may_retry`: another attempt can succeed.
    fn unreachable(&mut self, now: Time, why: impl Into<Failure>, may_retry: bool) {
        if let Some(dial) = self.dial_mut() {
            dial.unreachable(now, why, may_retry);
        }
    }

    /// Reports how many segments were retransmitted so far over all links. The driver must call this before
    /// it passes on a message that settles a parcel.
    fn observe(&mut self, retransmissions: Option<u64>) {
        if let Some(dial) = self.dial_mut() {
            dial.observe(retransmissions);
        }
    }

    /// Reports that the proof is made; `None` if the server wanted none.
    fn proven(&mut self, now: Time, proof: Option<Proof>) {
        let holding = self.holding();
        if let Some(dial) = self.dial_mut() {
            dial.proven(now, proof, holding);
        }
    }

    /// Handles a message from the server.
    fn control(&mut self, now: Time, message: Control) {
        let Some(dial) = self.dial_mut() else { return };
        match dial.control(now, message) {
            ServerEvent::Nothing => {}
            ServerEvent::Lost(reason) => self.link_lost(now, &reason),
            ServerEvent::Welcomed => self.welcomed(now),
            ServerEvent::Message(message) => self.message(now, message),
        }
    }

    /// Reports that `bytes` more bytes of chunks have arrived.
    fn progress(&mut self, now: Time, bytes: u64) {
        if let Some(dial) = self.dial_mut() {
            dial.progress(now, bytes);
        }
    }

    /// Reports that the link is held up, for example by a broker, and that the server is not the cause. This
    /// time does not count as silence of the server.
    fn held(&mut self, now: Time) {
        if let Some(dial) = self.dial_mut() {
            dial.held(now);
        }
    }

    /// Reports that the link has ended.
    fn closed(&mut self, now: Time, reason: &str) {
        if self.dial_mut().is_some_and(|dial| dial.closed(now, reason)) {
            self.link_lost(now, reason);
        }
    }

    /// Leaves for good, as the application asked.
    fn leave(&mut self, reason: &str) {
        if let Some(dial) = self.dial_mut() {
            dial.leave(reason);
        }
    }

    /// When the driver must call [`ClientMachine::timeout`] at the latest.
    fn poll_timeout(&self) -> Option<Time> {
        let policy = self.next_timer().filter(|_| !self.is_done());
        self.dial()?.poll_timeout().into_iter().chain(policy).min()
    }

    /// Handles all timers that are due at `now`.
    fn timeout(&mut self, now: Time) {
        let due = !self.is_done() && self.next_timer().is_some_and(|at| now >= at);
        let Some(dial) = self.dial_mut() else { return };
        match dial.timeout(now) {
            Err(reason) => self.closed(now, &reason),
            Ok(()) if due => self.timers_due(now),
            Ok(()) => {}
        }
    }
}
