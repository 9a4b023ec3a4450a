//! Injects faults by a seed: loss, duplication, reordering, damage and delay of chunks, and links that break.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thalweg_transport::{
    Capabilities, Counters, Error, ErrorKind, Link, LinkLayer, Outgoing, Result, SendReport, Sink,
};
use thalweg_wire::HEADER_BYTES;
use tokio::time::Instant;

use crate::ended::Ended;
use crate::script::{DelayLine, Fate};
use crate::wrap::{add, nothing, piece};
use crate::{Layer, Links, Script, Side, Step};

/// The faults of the chunks that one side sends. By default there are none.
///
/// Each link draws random numbers from the seed and its own number (see [`Links::wrap`]), for each update. So
/// a run can be repeated. Control messages stay reliable. Only `cut_after` ends them, with the link.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fault {
    /// Seed of all random decisions.
    pub seed: u64,
    /// Probability, 0 to 1, that a chunk never arrives.
    pub loss: f64,
    /// Probability that a chunk arrives a second time, at most 8 chunks later.
    pub duplicate: f64,
    /// Probability that a chunk is delayed by up to 8 chunks.
    pub reorder: f64,
    /// Probability that a chunk arrives with one flipped bit. Its checksum shows that.
    pub corrupt: f64,
    /// Delay of a chunk in milliseconds. At most 256 chunks of an update are in flight.
    pub delay_ms: f64,
    /// The delay of each chunk varies uniformly by up to this much in both directions.
    pub jitter_ms: f64,
    /// Maximum number of bytes that this side sends. The link closes instead of sending the frame that would
    /// exceed it.
    pub cut_after: Option<u64>,
}

impl Fault {
    /// Checks that all probabilities and times are valid.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] with the name of the field.
    pub fn check(&self) -> Result<()> {
        let shares = [
            ("loss", self.loss),
            ("duplicate", self.duplicate),
            ("reorder", self.reorder),
            ("corrupt", self.corrupt),
        ];
        let times = [("delay_ms", self.delay_ms), ("jitter_ms", self.jitter_ms)];
        let bad = |(name, value): &(&str, f64)| {
            Error::new(ErrorKind::Unsupported, "check faults", format!("{name} is {value}"))
                .hint("probabilities go from 0 to 1, times from 0 to 3600000 ms")
        };
        let outside = |most: f64| move |(_, value): &&(&str, f64)| !(0.0..=most).contains(value);
        let first = shares.iter().find(outside(1.0)).or_else(|| times.iter().find(outside(3.6e6)));
        first.map_or(Ok(()), |entry| Err(bad(entry)))
    }

    /// The delay of a chunk, for a random number `chance` from 0 to 1.
    pub(crate) fn delay(&self, chance: f64) -> Duration {
        let milliseconds = self.delay_ms + self.jitter_ms * (2.0 * chance - 1.0);
        Duration::try_from_secs_f64(milliseconds.max(0.0) / 1e3).unwrap_or_default()
    }
}

impl Layer for Fault {
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        let reliable = inner.reliable && self.loss == 0.0 && self.corrupt == 0.0;
        let keeps = self.reorder == 0.0 && self.duplicate == 0.0 && self.jitter_ms == 0.0;
        let (ordered, settled) = (inner.ordered && keeps, inner.settled && keeps);
        Capabilities { reliable, ordered, settled, fan_out: false, ..inner }
    }

    fn links(&self, _side: Side) -> Arc<dyn Links> {
        Arc::new(self.clone())
    }
}

impl Links for Fault {
    fn wrap(&self, inner: Arc<dyn Link>, number: u64) -> Arc<dyn Link> {
        let (fault, script) = (self.clone(), Mutex::new(Script::new(self, number)));
        let (spent, lost, repeated) = Default::default();
        Arc::new(FaultLink { inner, fault, script, spent, lost, repeated, ended: Ended::new() })
    }
}

struct FaultLink {
    inner: Arc<dyn Link>,
    fault: Fault,
    script: Mutex<Script>,
    /// Bytes sent so far, for `cut_after`.
    spent: AtomicU64,
    /// Bytes that counted as sent but never reached the inner link.
    lost: AtomicU64,
    /// Bytes that the inner link has sent a second time.
    repeated: AtomicU64,
    ended: Ended,
}

/// The same chunk with one bit flipped, but with the checksum of the original chunk.
fn damaged(update: &Outgoing, index: usize) -> Result<Outgoing> {
    let chunk = &update.chunks()[index];
    let (_, payload) = update.frame(chunk).ok_or_else(SendReport::cancelled)?;
    let mut payload = payload.to_vec();
    if let Some(first) = payload.first_mut() {
        *first ^= 1;
    }
    Ok(update.with_payload(chunk, payload.into()))
}

impl FaultLink {
    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a frame. If the limit is exceeded, cuts the link.
    async fn spend(&self, operation: &'static str, bytes: u64) -> Result<()> {
        let limit = self.fault.cut_after.unwrap_or(u64::MAX);
        let spent = self.spent.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if spent <= limit {
            return Ok(());
        }
        LinkLayer::close(self).await;
        Err(Error::closed(operation, format!("the fault layer cuts the link after {limit} bytes")))
    }

    async fn send_step(&self, update: &Outgoing, step: &Step) -> Result<SendReport> {
        let payload = update.chunks()[step.chunk].range().len();
        let bytes = payload + HEADER_BYTES as u64;
        if step.fate != Fate::Repeated {
            self.spend("send update", bytes).await?;
        }
        match step.fate {
            Fate::Arrives => self.inner.send_update(&piece(update, step.chunk)).await,
            Fate::Damaged => self.send_damaged(update, step.chunk).await,
            Fate::Lost => {
                self.lost.fetch_add(bytes, Ordering::Relaxed);
                Ok(SendReport { chunks: 1, payload, wire: bytes, ..nothing() })
            }
            Fate::Repeated => {
                self.inner.send_update(&piece(update, step.chunk)).await?;
                self.repeated.fetch_add(bytes, Ordering::Relaxed);
                Ok(nothing())
            }
        }
    }

    async fn send_damaged(&self, update: &Outgoing, chunk: usize) -> Result<SendReport> {
        let damaged = damaged(update, chunk)?;
        let mut send = self.inner.send_update(&damaged);
        tokio::select! {
            biased;
            () = update.cancel().cancelled() => damaged.cancel().cancel(),
            sent = &mut send => return sent,
        }
        send.await
    }
}

impl LinkLayer for FaultLink {
    fn inner(&self) -> &dyn Link {
        &*self.inner
    }

    fn capabilities(&self) -> Capabilities {
        self.fault.capabilities(self.inner.capabilities())
    }

    async fn send_control(&self, message: Bytes) -> Result<()> {
        self.spend("send control", (HEADER_BYTES + message.len()) as u64).await?;
        self.ended.note(self.inner.send_control(message).await)
    }

    /// A lost chunk counts as sent, since its sender cannot know. A repeated chunk counts once.
    async fn send_update(&self, update: &Outgoing) -> Result<SendReport> {
        let mut steps = self.script().update(update.chunks().len()).into_iter();
        let (start, mut line, mut report) = (Instant::now(), DelayLine::default(), nothing());
        loop {
            while !line.is_full() {
                let Some(step) = steps.next() else { break };
                line.push(start.elapsed(), step);
            }
            let Some((due, step)) = line.pop() else { return Ok(report) };
            if !step.delay.is_zero() {
                self.ended.sleep_sending(start + due, update).await?;
            }
            if update.cancel().is_cancelled() {
                return Err(SendReport::cancelled());
            }
            let sent = self.send_step(update, &step).await;
            add(&mut report, &self.ended.note(sent)?);
        }
    }

    async fn receive(&self, sink: &dyn Sink) -> Result<Bytes> {
        self.ended.note(self.inner.receive(sink).await)
    }

    fn counters(&self) -> Counters {
        let inner = self.inner.counters();
        let (lost, repeated) = (self.lost.load(Ordering::Relaxed), self.repeated.load(Ordering::Relaxed));
        Counters { sent: (inner.sent + lost).saturating_sub(repeated), ..inner }
    }

    async fn close(&self) {
        self.ended.set();
        self.inner.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_number_is_named() {
        let bad = [
            Fault { loss: 1.5, ..Fault::default() },
            Fault { loss: f64::NAN, ..Fault::default() },
            Fault { loss: -0.1, ..Fault::default() },
        ];
        for fault in bad {
            let error = fault.check().unwrap_err().to_string();
            assert!(error.contains("loss is ") && error.contains("from 0 to 1"), "{error}");
        }
        let error = Fault { jitter_ms: f64::INFINITY, ..Fault::default() }.check().unwrap_err();
        assert!(error.to_string().contains("jitter_ms"));
        assert!(Fault { loss: 1.0, delay_ms: 20.0, ..Fault::default() }.check().is_ok());
    }

    #[test]
    fn unknown_keys_are_refused_and_missing_ones_are_none() {
        let fault: Fault = serde_json::from_str(r#"{"seed": 3, "loss": 0.02}"#).unwrap();
        assert_eq!(fault, Fault { seed: 3, loss: 0.02, ..Fault::default() });
        assert!(serde_json::from_str::<Fault>(r#"{"lost": 0.02}"#).is_err());
    }

    #[test]
    fn capabilities_follow_the_faults() {
        let inner = Capabilities { reliable: true, ordered: true, fan_out: true, ..Capabilities::default() };
        let left = |fault: Fault| {
            let capabilities = fault.capabilities(inner);
            (capabilities.reliable, capabilities.ordered, capabilities.fan_out)
        };
        assert_eq!(left(Fault::default()), (true, true, false));
        assert_eq!(left(Fault { loss: 0.1, ..Fault::default() }), (false, true, false));
        assert_eq!(left(Fault { reorder: 0.1, ..Fault::default() }), (true, false, false));
        assert_eq!(
            left(Fault { cut_after: Some(1), delay_ms: 1.0, ..Fault::default() }),
            (true, true, false)
        );
    }
}
