//! The endpoint and its device, behind one lock. Callers that send or take data write the packets that result
//! from it. A thread reads the device and runs the timers.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use thalweg_masking::Time;
use thalweg_masking::{Agreed, Endpoint, FlowId, Offload, What};
use thalweg_transport::trace::{Trace, TraceFile};
use thalweg_tun::{Device, HEADER};
use tokio::sync::{mpsc, oneshot};

use crate::believed;
use crate::pipe::{End, Handle, Pipe};
use crate::route::Way;
use crate::settings::Limits;

/// Packets or superpackets to read before writing the answers, so that one acknowledgement covers many.
const BATCH: usize = 16;
/// The largest IP packet, with the header of the device.
const LARGEST: usize = 65_535 + HEADER;
/// How long closed connections may take to end before the device is removed.
const LINGER: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_millis(500);
/// All connections share their paths fairly.
const GROUP: u32 = 0;

/// A new connection, and its remote address.
pub(crate) type Newcomer = (Handle, String);

pub(crate) struct DriverState {
    core: Mutex<Core>,
    began: Instant,
    wake: EventFd,
    /// Until when the thread sleeps, in microseconds of `began`.
    sleeps_until: AtomicU64,
    /// Nobody listens any more.
    over: AtomicBool,
    limits: Limits,
}

pub(crate) struct Core {
    pub(crate) endpoint: Endpoint,
    device: Device,
    pipes: HashMap<FlowId, Arc<Pipe>>,
    trace: Option<TraceFile>,
    traces: HashMap<FlowId, Trace>,
    /// Flows on which a caller waits to send.
    blocked: Vec<FlowId>,
    packet: Vec<u8>,
    newcomers: Option<mpsc::Sender<Newcomer>>,
    /// A flow with more bytes than this to the client is full.
    full: u64,
}

impl DriverState {
    /// Starts the thread that drives the endpoint. After the last connection has ended, it closes the routes;
    /// then the receiver is closed.
    pub(crate) fn start(
        endpoint: Endpoint,
        device: Device,
        way: Way,
        (limits, trace, full): (Limits, Option<TraceFile>, u64),
        newcomers: mpsc::Sender<Newcomer>,
    ) -> io::Result<(Arc<Self>, oneshot::Receiver<()>)> {
        let core = Core {
            endpoint,
            device,
            pipes: HashMap::new(),
            trace,
            traces: HashMap::new(),
            blocked: Vec::new(),
            packet: Vec::new(),
            newcomers: Some(newcomers),
            full,
        };
        let shared = Arc::new(Self {
            core: Mutex::new(core),
            began: Instant::now(),
            wake: EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?,
            sleeps_until: AtomicU64::new(0),
            over: AtomicBool::new(false),
            limits,
        });
        let thread = std::thread::Builder::new().name("thalweg-unifl".into());
        let theirs = shared.clone();
        let (running, gone) = oneshot::channel();
        thread.spawn(move || {
            if let Err(error) = theirs.run() {
                theirs.fail(&error);
            }
            way.close();
            // First drop the device, then report it.
            drop(theirs);
            drop(running);
        })?;
        Ok((shared, gone))
    }

    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Time {
        self.began.elapsed()
    }

    /// Lets the endpoint do something, and sends the resulting packets.
    pub(crate) fn act<T>(&self, what: impl FnOnce(&mut Core, Time) -> T) -> T {
        let mut core = self.core();
        let now = self.now();
        let done = what(&mut core, now);
        core.flush(now);
        let due = core.endpoint.poll_timeout();
        drop(core);
        if due.is_some_and(|at| (at.as_micros() as u64) < self.sleeps_until.load(Ordering::Acquire)) {
            self.rouse();
        }
        done
    }

    /// Takes no further connections; existing ones go on.
    pub(crate) fn stop_listening(&self) {
        let mut core = self.core();
        core.endpoint.listen(Vec::new());
        let newcomers = core.newcomers.take();
        drop(core);
        // An untaken connection ends when it is dropped, and needs the lock for that.
        drop(newcomers);
        self.over.store(true, Ordering::Release);
        self.rouse();
    }

    /// Wakes the thread.
    fn rouse(&self) {
        // It fails only if it is full; then the thread is about to wake anyway.
        let _ = self.wake.write(1);
    }

    fn run(self: &Arc<Self>) -> io::Result<()> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&self.wake, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        {
            let core = self.core();
            epoll.add(core.device.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, 1))?;
        }
        let mut buffer = vec![0; LARGEST];
        let mut events = [EpollEvent::empty(); 2];
        let mut lonely: Option<Instant> = None;
        loop {
            let idle = self.turn(&mut buffer)?;
            if self.over.load(Ordering::Acquire) && self.is_deserted(&mut lonely) {
                return Ok(());
            }
            let Some(idle) = idle else { continue };
            // Whole milliseconds, rounded up.
            let timeout = idle + if idle.is_zero() { idle } else { Duration::from_micros(999) };
            match epoll.wait(&mut events, EpollTimeout::try_from(timeout).unwrap_or(EpollTimeout::ZERO)) {
                Ok(_) => _ = self.wake.read(),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether no connection is left, and the last ones have had time to end.
    fn is_deserted(&self, since: &mut Option<Instant>) -> bool {
        let core = self.core();
        if !core.pipes.is_empty() {
            *since = None;
            return false;
        }
        core.endpoint.flows() == 0 || since.get_or_insert_with(Instant::now).elapsed() >= LINGER
    }

    /// Reads packets, runs timers, writes packets. Returns how long the thread may wait, or `None` if there
    /// is more to read.
    fn turn(self: &Arc<Self>, buffer: &mut [u8]) -> io::Result<Option<Duration>> {
        let mut core = self.core();
        let mut more = true;
        for _ in 0..BATCH {
            let Some(length) = core.device.read(buffer)? else {
                more = false;
                break;
            };
            core.take_in(self, &buffer[..length]);
        }
        let now = self.now();
        core.endpoint.handle_timeout(now);
        core.flush(now);
        let mut touched = Vec::new();
        while let Some(event) = core.endpoint.poll_event() {
            core.happened(self, event.flow, event.what, &mut touched);
        }
        core.after(now, &touched);
        core.flush(now);
        core.unblock();
        if more {
            return Ok(None);
        }
        let idle = core.endpoint.poll_timeout().map_or(IDLE, |at| at.saturating_sub(now).min(IDLE));
        // Set it while the lock is held: whoever sets an earlier timer after us then sees until when the
        // thread sleeps.
        self.sleeps_until.store((now + idle).as_micros() as u64, Ordering::Release);
        Ok(Some(idle))
    }

    /// The device has failed; nothing comes any more.
    fn fail(&self, error: &io::Error) {
        let mut core = self.core();
        core.pipes.values().for_each(|pipe| pipe.ended(End::Device(error.to_string())));
        let newcomers = core.newcomers.take();
        drop(core);
        drop(newcomers);
    }
}

impl Core {
    /// A packet from the device.
    fn take_in(&mut self, shared: &Arc<DriverState>, bytes: &[u8]) {
        let Some((vnet, packet)) = bytes.split_first_chunk::<HEADER>() else { return };
        let now = shared.now();
        let mut touched = Vec::new();
        let mut events = Vec::new();
        let mut turn = self.endpoint.handle_packet(now, packet, Offload::read(vnet));
        while let Some(event) = turn.poll_event() {
            events.push(event);
        }
        drop(turn);
        for event in events {
            self.happened(shared, event.flow, event.what, &mut touched);
        }
        self.after(now, &touched);
    }

    fn happened(
        &mut self,
        shared: &Arc<DriverState>,
        flow: FlowId,
        what: What<'_>,
        touched: &mut Vec<FlowId>,
    ) {
        if let What::Connected(agreed) = what {
            return self.connected(shared, flow, &agreed);
        }
        let Some(pipe) = self.pipes.get(&flow) else { return };
        match what {
            What::Connected(_) => {}
            What::Bytes { offset, bytes, late } => {
                let kept = pipe.came(offset, bytes);
                if late && !kept.is_empty() {
                    self.endpoint.filled(shared.now(), flow, kept);
                }
                if !touched.contains(&flow) {
                    touched.push(flow);
                }
            }
            What::Hole(range) => pipe.lost(range),
            What::Finished(length) => pipe.finished(length),
            What::Ended(ended) => pipe.over(ended),
        }
    }

    fn connected(&mut self, shared: &Arc<DriverState>, flow: FlowId, agreed: &Agreed) {
        let now = shared.now();
        let Some(place) = self.newcomers.as_ref().and_then(|newcomers| newcomers.try_reserve().ok()) else {
            // Too many at a time. A refused client may try again.
            return self.endpoint.abort(now, flow);
        };
        let pipe = Arc::new(Pipe::new(flow, shared.limits));
        place.send((Handle::new(pipe.clone(), shared.clone()), agreed.tuple.remote.to_string()));
        self.pipes.insert(flow, pipe);
        if let Some(trace) = &self.trace {
            self.traces.insert(flow, trace.of(&agreed.tuple.remote.to_string()));
        }
        self.endpoint.join(now, flow, GROUP);
        self.endpoint.admit(now, flow, shared.limits.buffer);
    }

    fn note(&mut self, flow: FlowId) {
        if let Some((trace, stats)) = self.traces.get_mut(&flow).zip(self.endpoint.stats(flow)) {
            trace.note(|at| believed::json(at, &stats));
        }
    }

    /// Updates what may be lost, for flows with new data.
    fn after(&mut self, now: Time, touched: &[FlowId]) {
        for &flow in touched {
            self.note(flow);
            let Some(pipe) = self.pipes.get(&flow) else { continue };
            let permits = pipe.survey();
            if permits.is_empty() {
                continue;
            }
            if let Some(more) = permits.expects {
                self.endpoint.expect(now, flow, more);
            }
            self.endpoint.change(now, flow, |policy| {
                if let Some(budgets) = permits.budgets {
                    policy.unlimit();
                    budgets.into_iter().for_each(|budget| policy.limit(budget));
                }
                permits.shares.iter().for_each(|&(budget, range)| policy.extend(budget, range));
                permits.ranges.iter().for_each(|&range| policy.permit(range));
            });
        }
    }

    /// Writes all packets there are.
    pub(crate) fn flush(&mut self, now: Time) {
        let mut packet = std::mem::take(&mut self.packet);
        while let Some(offload) = self.endpoint.poll_packet(now, &mut packet) {
            // If the host does not take a packet, it counts as lost and is retransmitted.
            let _ = self.device.write(&[&offload.write(&packet), &packet]);
        }
        self.packet = packet;
    }

    /// Whether a flow takes no more bytes.
    pub(crate) fn is_full(&self, flow: FlowId) -> bool {
        self.endpoint.stats(flow).is_none_or(|stats| stats.unacknowledged >= self.full)
    }

    /// Records that a caller waits to send on this flow.
    pub(crate) fn block(&mut self, flow: FlowId) {
        if !self.blocked.contains(&flow) {
            self.blocked.push(flow);
        }
    }

    fn unblock(&mut self) {
        let (endpoint, pipes, half) = (&self.endpoint, &self.pipes, self.full / 2);
        self.blocked.retain(|flow| {
            let full = endpoint.stats(*flow).is_some_and(|stats| stats.unacknowledged > half);
            if !full {
                pipes.get(flow).iter().for_each(|pipe| pipe.writable());
            }
            full
        });
    }

    pub(crate) fn forget(&mut self, flow: FlowId) {
        self.pipes.remove(&flow);
        self.traces.remove(&flow);
    }
}
