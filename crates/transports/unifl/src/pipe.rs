//! A connection as the tcp transport sees it. The driver's thread writes what arrives, and the link reads it.

use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use thalweg_masking::{Ended, Excess, FlowId};
use thalweg_tcp::line::{HoledStream, Taken};
use thalweg_transport::{Counters, Sealed};
use thalweg_wire::{Range, Tolerance};

use crate::buffer::Buffer;
use crate::content::{Permits, Watch};
use crate::driver::DriverState;
use crate::proxy::Caller;
use crate::settings::Limits;

/// The window is updated only after the reader has taken this fraction of the buffer (1/8).
const OFFER: u64 = 8;

/// Why the connection ended.
#[derive(Debug, Clone)]
pub(crate) enum End {
    Flow(Ended),
    /// Too many bytes were lost: of the tensor with this name, or of the whole update.
    Lossy(Excess, Option<String>),
    Device(String),
}

pub(crate) struct Pipe {
    flow: FlowId,
    limits: Limits,
    inside: Mutex<Inside>,
}

struct Inside {
    buffer: Buffer,
    watch: Watch,
    permits: Permits,
    /// Offset up to which the endpoint may advertise the window.
    admitted: u64,
    /// Length of the stream, once its end is known.
    length: Option<u64>,
    ended: Option<End>,
    /// Whether this side has closed the connection. Data that still arrives is then dropped.
    shut: bool,
    reader: Option<Waker>,
    writers: Vec<Waker>,
    /// Wakers of tasks that wait for the end of the connection.
    mourners: Vec<Waker>,
}

fn wait(wakers: &mut Vec<Waker>, cx: &Context<'_>) {
    if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
        wakers.push(cx.waker().clone());
    }
}

impl Pipe {
    pub(crate) fn new(flow: FlowId, limits: Limits) -> Self {
        let inside = Inside {
            buffer: Buffer::default(),
            watch: Watch::new(limits.content),
            permits: Permits::default(),
            admitted: limits.buffer,
            length: None,
            ended: None,
            shut: false,
            reader: None,
            writers: Vec::new(),
            mourners: Vec::new(),
        };
        Self { flow, limits, inside: Mutex::new(inside) }
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores bytes that have arrived. Returns the range that the reader has not passed yet.
    pub(crate) fn received(&self, offset: u64, bytes: &[u8]) -> Range {
        let mut inside = self.inside();
        if inside.shut {
            return Range::new(offset, offset);
        }
        let end = offset + bytes.len() as u64;
        let kept = Range::new(inside.buffer.start().clamp(offset, end), end);
        inside.buffer.write(offset, bytes);
        // Let the watch read headers now, because the reader removes them from the buffer when it takes
        // bytes.
        let Inside { buffer, watch, permits, .. } = &mut *inside;
        watch.advance(&self.limits, |at| buffer.header(at), permits);
        kept
    }

    /// Stores a masked hole.
    pub(crate) fn lost(&self, range: Range) {
        let mut inside = self.inside();
        if !inside.shut {
            inside.buffer.lose(range);
            inside.wake_reader();
        }
    }

    /// Returns the bytes that may be lost, now that more bytes have arrived, and wakes the reader.
    pub(crate) fn survey(&self) -> Permits {
        let mut inside = self.inside();
        inside.wake_reader();
        std::mem::take(&mut inside.permits)
    }

    /// Sets the length of the peer's stream, when the peer has closed its side.
    pub(crate) fn finished(&self, length: u64) {
        let mut inside = self.inside();
        inside.length = Some(length);
        inside.wake_all();
    }

    /// Sets the loss that is tolerated in updates that begin from now on.
    pub(crate) fn tolerate(&self, tolerance: &Arc<Tolerance>, lines: usize) {
        self.inside().watch.tolerate(tolerance, lines);
    }

    /// Notes that the flow has ended.
    pub(crate) fn over(&self, ended: Ended) {
        let end = match ended {
            Ended::Lossy(excess) => End::Lossy(excess, self.inside().watch.tensor(excess.budget)),
            other => End::Flow(other),
        };
        self.ended(end);
    }

    pub(crate) fn ended(&self, ended: End) {
        let mut inside = self.inside();
        inside.ended.get_or_insert(ended);
        inside.wake_all();
    }

    /// Drops the data that has arrived and the data that still arrives. Returns whether this side had already
    /// closed.
    fn shut(&self) -> bool {
        let mut inside = self.inside();
        let before = std::mem::replace(&mut inside.shut, true);
        inside.buffer = Buffer::default();
        inside.wake_all();
        before
    }

    /// Wakes writers, since there is room to send.
    pub(crate) fn writable(&self) {
        let writers = std::mem::take(&mut self.inside().writers);
        writers.into_iter().for_each(Waker::wake);
    }

    /// The new offset up to which the sender may send, if it has moved far enough for a window update.
    fn offer(&self, inside: &Inside) -> Option<u64> {
        let place = inside.buffer.start() + self.limits.buffer;
        (place >= inside.admitted + self.limits.buffer / OFFER).then_some(place)
    }
}

impl Inside {
    fn wake_reader(&mut self) {
        if let Some(waker) = self.reader.take() {
            waker.wake();
        }
    }

    fn wake_all(&mut self) {
        self.wake_reader();
        self.writers.drain(..).chain(self.mourners.drain(..)).for_each(Waker::wake);
    }

    /// The reader's result when no data is left to take.
    fn end(&self) -> Option<io::Result<Taken>> {
        let at_end = self.length.is_some_and(|length| self.buffer.start() >= length);
        if at_end || self.shut {
            return Some(Ok(Taken::Bytes(0)));
        }
        Some(self.ended.as_ref()?.failure().map_or(Ok(Taken::Bytes(0)), Err))
    }
}

impl End {
    /// The error that broke the connection. `None` if both sides, or this one, have closed it.
    fn failure(&self) -> Option<io::Error> {
        Some(match self {
            End::Flow(Ended::Closed | Ended::Aborted) => return None,
            End::Flow(Ended::Reset) => io::ErrorKind::ConnectionReset.into(),
            End::Flow(Ended::Silent) => io::ErrorKind::TimedOut.into(),
            End::Flow(Ended::Lossy(excess)) => too_lossy(excess, None),
            End::Lossy(excess, tensor) => too_lossy(excess, tensor.as_deref()),
            End::Device(why) => io::Error::other(format!("the TUN device failed: {why}")),
        })
    }
}

fn too_lossy(excess: &Excess, tensor: Option<&str>) -> io::Error {
    let of = tensor.map(|name| format!(" of {name:?}")).unwrap_or_default();
    let Excess { lost, of: bytes, .. } = excess;
    let why = format!("{lost} of {bytes} bytes{of} were lost on the way, more than `refuse` allows");
    io::Error::new(io::ErrorKind::ConnectionAborted, why)
}

/// The link's handle of a pipe. Dropping it ends the flow.
pub(crate) struct Handle {
    pipe: Arc<Pipe>,
    shared: Arc<DriverState>,
}

impl Handle {
    pub(crate) fn new(pipe: Arc<Pipe>, shared: Arc<DriverState>) -> Self {
        Self { pipe, shared }
    }
}

impl HoledStream for Handle {
    fn frames(&self, start: u64, sealed: Option<Sealed>) {
        self.pipe.inside().watch.frames(start, sealed);
    }

    fn poll_take(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<Taken>> {
        let mut inside = self.pipe.inside();
        if buffer.is_empty() {
            return Poll::Ready(Ok(Taken::Bytes(0)));
        }
        let taken = if inside.shut { None } else { inside.buffer.take(buffer) };
        let Some(taken) = taken else {
            if let Some(end) = inside.end() {
                return Poll::Ready(end);
            }
            inside.reader = Some(cx.waker().clone());
            return Poll::Pending;
        };
        let (start, offer) = (inside.buffer.start(), self.pipe.offer(&inside));
        if let Some(place) = offer {
            inside.admitted = place;
        }
        drop(inside);
        // The reader has passed a hole, so late data can no longer fill it. The hole still counts in the
        // budget.
        if offer.is_some() || matches!(taken, Taken::Hole(_)) {
            self.shared.act(|core, now| {
                core.endpoint.forget(now, self.pipe.flow, start);
                if let Some(place) = offer {
                    core.endpoint.admit(now, self.pipe.flow, place);
                }
            });
        }
        Poll::Ready(Ok(taken))
    }

    fn poll_put(&self, cx: &mut Context<'_>, bytes: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.shared.act(|core, now| {
            let mut inside = self.pipe.inside();
            if inside.shut || inside.ended.is_some() {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            let mut taken = 0;
            for part in bytes.iter().filter(|part| !part.is_empty()) {
                match core.endpoint.send(now, self.pipe.flow, part) {
                    None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
                    Some(0) if taken == 0 => {
                        wait(&mut inside.writers, cx);
                        core.block(self.pipe.flow);
                        return Poll::Pending;
                    }
                    Some(count) => taken += count,
                }
                if core.is_full(self.pipe.flow) {
                    break;
                }
            }
            Poll::Ready(Ok(taken))
        })
    }

    fn poll_hung_up(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut inside = self.pipe.inside();
        if inside.length.is_some() || inside.ended.is_some() || inside.shut {
            return Poll::Ready(());
        }
        wait(&mut inside.mourners, cx);
        Poll::Pending
    }

    fn shut(&self) {
        let flow = self.pipe.flow;
        if self.pipe.shut() {
            return;
        }
        self.shared.act(|core, now| {
            // Data that still arrives is dropped, so it may be lost.
            core.endpoint.permit(now, flow, Range::new(0, u64::MAX));
            core.endpoint.admit(now, flow, u64::MAX);
            core.endpoint.close(now, flow);
        });
    }

    fn tolerate(&self, tolerance: &Arc<Tolerance>, lines: usize) {
        self.pipe.tolerate(tolerance, lines);
    }

    fn tell(&self, counters: &mut Counters) {
        let core = self.shared.core();
        counters.round_trip = core.endpoint.stats(self.pipe.flow).and_then(|stats| stats.rtt);
        // Our own code, not the kernel's TCP, sends to the client. Its cwnd follows the delivery rate.
        counters.congestion = Some("delivery-rate".into());
    }
}

impl Caller for Handle {
    fn finish(&self) {
        self.shared.act(|core, now| core.endpoint.close(now, self.pipe.flow));
    }

    fn abort(&self) {
        self.pipe.shut();
        self.shared.act(|core, now| core.endpoint.abort(now, self.pipe.flow));
    }

    fn poll_broken(&self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let mut inside = self.pipe.inside();
        if let Some(error) = inside.ended.as_ref().and_then(End::failure) {
            return Poll::Ready(error);
        }
        wait(&mut inside.mourners, cx);
        Poll::Pending
    }

    fn poll_begun(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut inside = self.pipe.inside();
        if inside.buffer.take(&mut []).is_some() || inside.end().is_some() {
            return Poll::Ready(());
        }
        inside.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    fn repaired(&self) -> Option<u64> {
        self.shared.core().endpoint.stats(self.pipe.flow).map(|stats| stats.repaired)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shut();
        self.shared.core().forget(self.pipe.flow);
    }
}
