//! The driver has the endpoint and its TUN device behind one lock. Callers that send or read data also write
//! the packets that result from it. A thread reads the device and runs the timers.

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

/// Number of packets or superpackets to read before the answers are written, so that one ACK covers many.
const BATCH: usize = 16;
/// The largest IP packet, with the device's header.
const LARGEST: usize = 65_535 + HEADER;
/// How long closed connections may take to end before the driver removes the device.
const LINGER: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_millis(500);
/// All connections are in one group, so that they share their paths fairly.
const GROUP: u32 = 0;

/// A new connection, and its remote address.
pub(crate) type Newcomer = (Handle, String);

pub(crate) struct DriverState {
    core: Mutex<Core>,
    began: Instant,
    wake: EventFd,
    /// Until when the thread sleeps, in microseconds since `began`.
    sleeps_until: AtomicU64,
    /// Whether the listener has been dropped.
    over: AtomicBool,
    limits: Limits,
}

pub(crate) struct Core {
    pub(crate) endpoint: Endpoint,
    device: Device,
    pipes: HashMap<FlowId, Arc<Pipe>>,
    trace: Option<TraceFile>,
    traces: HashMap<FlowId, Trace>,
    /// Flows on which a caller waits for room to send.
    blocked: Vec<FlowId>,
    packet: Vec<u8>,
    newcomers: Option<mpsc::Sender<Newcomer>>,
    /// A flow with at least this many unacknowledged bytes to the client is full.
    full: u64,
}

impl DriverState {
    /// Starts the thread that drives the endpoint. After the listener and the last connection have ended, the
    /// thread removes the routes. The returned receiver is then closed.
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
        let (running, ended) = oneshot::channel();
        thread.spawn(move || {
            if let Err(error) = theirs.run() {
                theirs.fail(&error);
            }
            way.close();
            // Drop the device first, so that the receiver reports its end only after it is gone.
            drop(theirs);
            drop(running);
        })?;
        Ok((shared, ended))
    }

    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Time {
        self.began.elapsed()
    }

    /// Calls the endpoint, and sends the packets that result. Wakes the thread if its next timer is now
    /// earlier.
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

    /// Accepts no more connections. Existing ones continue.
    pub(crate) fn stop_listening(&self) {
        let mut core = self.core();
        core.endpoint.listen(Vec::new());
        let newcomers = core.newcomers.take();
        drop(core);
        // Dropping a connection that nobody accepted ends it, which takes the lock. So drop them after the
        // lock is released.
        drop(newcomers);
        self.over.store(true, Ordering::Release);
        self.rouse();
    }

    /// Wakes the thread.
    fn rouse(&self) {
        // Ignore an error: the counter is full, so the thread is about to wake anyway.
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
            // Round up to whole milliseconds.
            let timeout = idle + if idle.is_zero() { idle } else { Duration::from_micros(999) };
            match epoll.wait(&mut events, EpollTimeout::try_from(timeout).unwrap_or(EpollTimeout::ZERO)) {
                Ok(_) => _ = self.wake.read(),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether no connection is left, and the last connections have had time to end.
    fn is_deserted(&self, since: &mut Option<Instant>) -> bool {
        let core = self.core();
        if !core.pipes.is_empty() {
            *since = None;
            return false;
        }
        core.endpoint.flows() == 0 || since.get_or_insert_with(Instant::now).elapsed() >= LINGER
    }

    /// Reads packets, runs timers, and writes packets. Returns how long the thread may sleep, or `None` if
    /// there is more to read.
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
        // Set this while the lock is held. A caller that later sets an earlier timer then sees how long the
        // thread sleeps, and wakes it.
        self.sleeps_until.store((now + idle).as_micros() as u64, Ordering::Release);
        Ok(Some(idle))
    }

    /// Ends all connections, because the device has failed.
    fn fail(&self, error: &io::Error) {
        let mut core = self.core();
        core.pipes.values().for_each(|pipe| pipe.ended(End::Device(error.to_string())));
        let newcomers = core.newcomers.take();
        drop(core);
        drop(newcomers);
    }
}

impl Core {
    /// Processes a packet from the device.
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
                let kept = pipe.received(offset, bytes);
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
            // Too many connections wait to be accepted. A client that is refused may try again.
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

    /// Updates the bytes that may be lost of flows with new data.
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

    /// Writes all packets that the endpoint has.
    pub(crate) fn flush(&mut self, now: Time) {
        let mut packet = std::mem::take(&mut self.packet);
        while let Some(offload) = self.endpoint.poll_packet(now, &mut packet) {
            // If the host does not accept a packet, it counts as lost, and the endpoint or the peer
            // retransmits it.
            let _ = self.device.write(&[&offload.write(&packet), &packet]);
        }
        self.packet = packet;
    }

    /// Whether a flow accepts no more bytes to send.
    pub(crate) fn is_full(&self, flow: FlowId) -> bool {
        self.endpoint.stats(flow).is_none_or(|stats| stats.unacknowledged >= self.full)
    }

    /// Records that a caller waits for room to send on this flow.
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
