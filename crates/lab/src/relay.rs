//! The thread between the hosts' devices: reads packets, lets the fabric decide, writes them when they are due.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{ppoll, PollFd, PollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use nix::time::{clock_gettime, ClockId};

use crate::device::Device;
use crate::fabric::{Fabric, Time};
use crate::packet::Packet;
use crate::{Error, Result};

/// Packets of one device before the others have their turn.
const BATCH: usize = 16;
/// Smaller packets are copied, so that a large buffer does not wait with a few bytes in it.
const SMALL: usize = 16 << 10;
/// Real-time priority: above all that is not real time, below the kernel's own threads.
const PRIORITY: libc::c_int = 10;
const IDLE: Duration = Duration::from_millis(200);

/// What the thread shares with those who ask it.
pub(crate) struct Shared {
    fabric: Mutex<Fabric>,
    began: Instant,
    stop: AtomicBool,
    wake: EventFd,
    failure: Mutex<Option<String>>,
    realtime: AtomicBool,
    cpu_nanos: AtomicU64,
}

impl Shared {
    /// The fabric, and the time on its clock. Not to be held for long: packets wait.
    pub(crate) fn fabric(&self) -> (MutexGuard<'_, Fabric>, Time) {
        let fabric = self.fabric.lock().unwrap_or_else(PoisonError::into_inner);
        (fabric, self.began.elapsed())
    }

    /// Makes the thread look at its fabric again.
    pub(crate) fn wake(&self) {
        // It only fails when it is full, and then the thread is about to wake.
        let _ = self.wake.write(1);
    }

    pub(crate) fn realtime(&self) -> bool {
        self.realtime.load(Ordering::Relaxed)
    }

    pub(crate) fn cpu(&self) -> Duration {
        Duration::from_nanos(self.cpu_nanos.load(Ordering::Relaxed))
    }
}

pub(crate) struct Relay {
    pub shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    pub(crate) fn start(fabric: Fabric, devices: Vec<Device>) -> Result<Self> {
        let wake = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC);
        let shared = Arc::new(Shared {
            fabric: Mutex::new(fabric),
            began: Instant::now(),
            stop: AtomicBool::new(false),
            wake: wake.map_err(|e| Error::io("lab", "eventfd", &e.into()))?,
            failure: Mutex::new(None),
            realtime: AtomicBool::new(false),
            cpu_nanos: AtomicU64::new(0),
        });
        let its = shared.clone();
        let thread = std::thread::Builder::new().name("thalweg-relay".into()).spawn(move || {
            its.realtime.store(become_realtime(), Ordering::Relaxed);
            if let Err(error) = run(&its, &devices) {
                *its.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
            }
        });
        let thread = thread.map_err(|e| Error::io("lab", "the relay's thread", &e))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Why it has ended, if it has.
    pub(crate) fn failure(&self) -> Option<String> {
        let said = self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        said.or_else(|| ended.then(|| "the relay has ended".into()))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake();
        // A relay that panicked has said so already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Whether the calling thread could be made real time (sched(7)): then it is never milliseconds late because
/// others compute.
fn become_realtime() -> bool {
    let parameter = libc::sched_param { sched_priority: PRIORITY };
    // SAFETY: 0 is the calling thread, and the parameter outlives the call, which only reads it.
    let scheduled = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameter) } == 0;
    // SAFETY: the arguments are plain numbers. Where it is not granted timers are 50 microseconds late.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
    scheduled
}

fn run(shared: &Shared, devices: &[Device]) -> Result<()> {
    let failed = |what: &'static str| move |e: nix::Error| Error::io("relay", what, &e.into());
    let mut polled: Vec<PollFd<'_>> =
        devices.iter().map(|d| PollFd::new(d.as_fd(), PollFlags::POLLIN)).collect();
    polled.push(PollFd::new(shared.wake.as_fd(), PollFlags::POLLIN));
    while !shared.stop.load(Ordering::Acquire) {
        let wait = turn(shared, devices, &polled)?;
        ppoll(&mut polled, Some(TimeSpec::from_duration(wait)), None).map_err(failed("poll")).or_else(
            |e| {
                // A signal is for the other threads.
                if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted {
                    Ok(0)
                } else {
                    Err(e)
                }
            },
        )?;
        if polled.last().is_some_and(ready) {
            let _ = shared.wake.read();
        }
        let cpu = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_err(failed("clock"))?;
        shared.cpu_nanos.store(Duration::from(cpu).as_nanos() as u64, Ordering::Relaxed);
    }
    Ok(())
}

fn ready(polled: &PollFd<'_>) -> bool {
    polled.revents().is_some_and(|events| !events.is_empty())
}

/// Takes what the devices have, hands over what is due, and says how long to sleep.
fn turn(shared: &Shared, devices: &[Device], polled: &[PollFd<'_>]) -> Result<Duration> {
    let (mut fabric, now) = shared.fabric();
    hand_over(&mut fabric, now, devices);
    let mut more = false;
    for (host, device) in devices.iter().enumerate().filter(|(host, _)| ready(&polled[*host])) {
        more |= take(&mut fabric, shared, host, device)?;
    }
    let now = shared.began.elapsed();
    hand_over(&mut fabric, now, devices);
    fabric.sample(now);
    if more {
        return Ok(Duration::ZERO);
    }
    let due = [fabric.next_due(), fabric.next_sample()].into_iter().flatten().min();
    Ok(due.map_or(IDLE, |due| due.saturating_sub(shared.began.elapsed()).min(IDLE)))
}

fn hand_over(fabric: &mut Fabric, now: Time, devices: &[Device]) {
    while let Some(arrival) = fabric.output(now) {
        match devices[arrival.host].write(&arrival.packet.parts()) {
            Ok(()) => fabric.recycle(arrival.packet),
            // The host's kernel has no room, or its user has taken the device down.
            Err(_) => fabric.refused(arrival),
        }
    }
}

/// Reads packets of a device; says whether there may be more.
fn take(fabric: &mut Fabric, shared: &Shared, host: usize, device: &Device) -> Result<bool> {
    for _ in 0..BATCH {
        let mut buffer = fabric.buffer();
        let read = device.read(&mut buffer).map_err(|e| Error::io("relay", "a host's device", &e))?;
        let Some(length) = read else {
            fabric.keep(buffer);
            return Ok(false);
        };
        if length < SMALL {
            let small = buffer[..length].to_vec();
            fabric.keep(std::mem::replace(&mut buffer, small));
        }
        match Packet::read(Arc::new(buffer), length) {
            Some(packet) => fabric.input(shared.began.elapsed(), host, packet),
            None => fabric.stray(),
        }
    }
    Ok(true)
}
