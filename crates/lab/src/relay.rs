//! The relay: threads that read packets from the hosts' devices, pass them to the fabric, and write them to
//! the destination when they are due.
//!
//! The slowest step is to write a packet to a host's device, because the host's TCP runs inside the write. So
//! there are two threads. Each reads and writes the devices of its own hosts. The lock on the fabric is held
//! only while it decides.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{ppoll, PollFd, PollFlags};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use nix::time::{clock_gettime, ClockId};
use thalweg_tun::Device;

use crate::fabric::{Arrival, Fabric, Time};
use crate::packet::{Packet, LARGEST};
use crate::{Error, Result};

/// Maximum number of packets that are read from one device before the other devices.
const BATCH: usize = 16;
/// Packets smaller than this many bytes are copied, so that they do not occupy a large buffer.
const SMALL: usize = 16 << 10;
/// Real-time priority (SCHED_FIFO): above all normal threads, below the kernel's own threads.
const PRIORITY: libc::c_int = 10;
/// Packets that are due within this time are delivered together at its end. On many slow links packets are
/// due every few microseconds, and waking up for each would cost too much.
const QUANTUM: Duration = Duration::from_micros(50);
const IDLE: Duration = Duration::from_millis(200);

/// State that the relay's threads share with each other and with the lab.
pub(crate) struct RelayState {
    fabric: Mutex<Fabric>,
    began: Instant,
    stop: AtomicBool,
    failure: Mutex<Option<String>>,
    workers: Vec<Worker>,
}

/// State of one relay thread that other threads may see.
struct Worker {
    wake: EventFd,
    /// When it will wake up, in nanoseconds of the fabric's clock.
    sleeps_until: AtomicU64,
    realtime: AtomicBool,
    cpu_nanos: AtomicU64,
}

impl Worker {
    fn new() -> Result<Self> {
        let wake = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC);
        Ok(Self {
            wake: wake.map_err(|e| Error::io("lab", "eventfd", &e.into()))?,
            sleeps_until: AtomicU64::new(0),
            realtime: AtomicBool::new(false),
            cpu_nanos: AtomicU64::new(0),
        })
    }

    fn wake(&self) {
        // The write fails only if the eventfd is full; then the thread wakes up anyway.
        let _ = self.wake.write(1);
    }

    /// Wakes the thread if it would sleep beyond `due`.
    fn expect(&self, due: Option<Time>) {
        if due.is_some_and(|due| nanos(due) < self.sleeps_until.load(Ordering::Acquire)) {
            self.wake();
        }
    }
}

fn nanos(time: Time) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl RelayState {
    /// Locks the fabric; also returns the time of its clock. Hold it only briefly, because packets wait.
    pub(crate) fn fabric(&self) -> (MutexGuard<'_, Fabric>, Time) {
        let fabric = self.fabric.lock().unwrap_or_else(PoisonError::into_inner);
        (fabric, self.began.elapsed())
    }

    /// Wakes all threads, so that they read the fabric again.
    pub(crate) fn wake(&self) {
        self.workers.iter().for_each(Worker::wake);
    }

    /// Whether all threads have real-time priority.
    pub(crate) fn realtime(&self) -> bool {
        self.workers.iter().all(|worker| worker.realtime.load(Ordering::Relaxed))
    }

    /// CPU time of all threads together.
    pub(crate) fn cpu(&self) -> Duration {
        Duration::from_nanos(self.workers.iter().map(|worker| worker.cpu_nanos.load(Ordering::Relaxed)).sum())
    }
}

pub(crate) struct Relay {
    pub shared: Arc<RelayState>,
    threads: Vec<JoinHandle<()>>,
}

/// Number of relay threads for this many hosts.
pub(crate) fn threads(hosts: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    2.min(hosts).min(cores)
}

impl Relay {
    pub(crate) fn start(fabric: Fabric, workers: usize, devices: Vec<Device>) -> Result<Self> {
        let shared = Arc::new(RelayState {
            fabric: Mutex::new(fabric),
            began: Instant::now(),
            stop: AtomicBool::new(false),
            failure: Mutex::new(None),
            workers: (0..workers).map(|_| Worker::new()).collect::<Result<_>>()?,
        });
        let mut relay = Self { shared: shared.clone(), threads: Vec::new() };
        let devices = Arc::new(devices);
        for number in 0..workers {
            let (shared, devices) = (shared.clone(), devices.clone());
            let thread = std::thread::Builder::new().name(format!("thalweg-relay-{number}"));
            let thread = thread.spawn(move || {
                shared.workers[number].realtime.store(become_realtime(), Ordering::Relaxed);
                if let Err(error) = Hand::new(number, &shared, &devices).and_then(|mut hand| hand.run()) {
                    *shared.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
                }
            });
            relay.threads.push(thread.map_err(|e| Error::io("lab", "the relay's thread", &e))?);
        }
        Ok(relay)
    }

    /// Why the relay has ended; `None` while it runs.
    pub(crate) fn failure(&self) -> Option<String> {
        let failure = self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let ended = self.threads.iter().any(JoinHandle::is_finished);
        failure.or_else(|| ended.then(|| "the relay has ended".into()))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake();
        for thread in self.threads.drain(..) {
            // A thread that panicked has already reported it.
            let _ = thread.join();
        }
    }
}

/// Gives the calling thread real-time priority (sched(7)), so that other threads cannot delay it by
/// milliseconds. Returns whether that was allowed.
fn become_realtime() -> bool {
    let parameter = libc::sched_param { sched_priority: PRIORITY };
    // SAFETY: 0 is the calling thread, and the parameter outlives the call, which only reads it.
    let scheduled = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameter) } == 0;
    // SAFETY: the arguments are plain numbers. If the call is refused, timers are up to 50 microseconds late.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
    scheduled
}

/// How a relay thread waits for its next step.
enum Wait {
    /// Waits until a device is readable, but no longer than this.
    Listening(Duration),
    /// Sleeps for this time without watching devices: packets due in it are delivered together.
    Asleep(Duration),
}

fn failed(what: &'static str) -> impl Fn(Errno) -> Error {
    move |error| Error::io("relay", what, &error.into())
}

/// One relay thread.
struct Hand<'a> {
    number: usize,
    shared: &'a RelayState,
    devices: &'a [Device],
    epoll: Epoll,
    /// Devices that are readable, and the thread's eventfd.
    events: Vec<EpollEvent>,
    buffers: Vec<Vec<u8>>,
    /// Packets that its hosts have sent: host, time and packet.
    sent: Vec<(usize, Time, Packet)>,
    strays: u64,
    arrived: Vec<Arrival>,
    done: Vec<Packet>,
    refused: Vec<Arrival>,
}

impl<'a> Hand<'a> {
    fn new(number: usize, shared: &'a RelayState, devices: &'a [Device]) -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed("epoll"))?;
        let mine: Vec<_> = {
            let (fabric, _) = shared.fabric();
            (0..devices.len()).filter(|&host| fabric.worker_of(host) == number).collect()
        };
        let ends = mine.iter().map(|&host| (host, devices[host].as_fd()));
        let wake = (devices.len(), shared.workers[number].wake.as_fd());
        for (place, end) in ends.chain([wake]) {
            epoll.add(end, EpollEvent::new(EpollFlags::EPOLLIN, place as u64)).map_err(failed("epoll"))?;
        }
        let (buffers, sent, arrived) = (Vec::new(), Vec::new(), Vec::new());
        let (events, done, refused) = (Vec::with_capacity(mine.len() + 1), Vec::new(), Vec::new());
        Ok(Self { number, shared, devices, epoll, events, buffers, sent, strays: 0, arrived, done, refused })
    }

    fn run(&mut self) -> Result<()> {
        let me = &self.shared.workers[self.number];
        while !self.shared.stop.load(Ordering::Acquire) {
            let more = self.take()?;
            let due = self.decide();
            self.hand_over();
            let wait = self.until(due);
            match wait {
                _ if more => {}
                Wait::Asleep(time) => std::thread::sleep(time),
                Wait::Listening(time) => self.listen(time)?,
            }
            self.look()?;
            let cpu = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_err(failed("clock"))?;
            me.cpu_nanos.store(nanos(cpu.into()), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Reads from the readable devices. Returns whether they may have more.
    fn take(&mut self) -> Result<bool> {
        let mut more = false;
        for event in &self.events {
            let host = event.data() as usize;
            let Some(device) = self.devices.get(host) else {
                // This is the eventfd, which has the index after all devices.
                let _ = self.shared.workers[self.number].wake.read();
                continue;
            };
            for left in (0..BATCH).rev() {
                let mut buffer = self.buffers.pop().unwrap_or_else(|| vec![0; LARGEST]);
                let read = device.read(&mut buffer).map_err(|e| Error::io("relay", "a host's device", &e))?;
                let Some(length) = read else {
                    self.buffers.push(buffer);
                    break;
                };
                if length < SMALL {
                    let small = buffer[..length].to_vec();
                    self.buffers.push(std::mem::replace(&mut buffer, small));
                }
                match Packet::read(Arc::new(buffer), length) {
                    Some(packet) => self.sent.push((host, self.shared.began.elapsed(), packet)),
                    None => self.strays += 1,
                }
                more |= left == 0;
            }
        }
        Ok(more)
    }

    /// Passes packets to the fabric and takes those that have arrived. Returns when the next step is due.
    fn decide(&mut self) -> Option<Time> {
        let (mut fabric, now) = self.shared.fabric();
        self.done.drain(..).for_each(|packet| fabric.recycle(packet));
        self.refused.drain(..).for_each(|arrival| fabric.refused(arrival));
        fabric.strays(std::mem::take(&mut self.strays));
        let others = self.sent.len();
        for (host, at, packet) in self.sent.drain(..) {
            fabric.input(at, host, packet);
        }
        while let Some(arrival) = fabric.output(now, self.number) {
            self.arrived.push(arrival);
        }
        fabric.sample(now);
        fabric.fill_up(&mut self.buffers, BATCH);
        if others > 0 {
            for (number, worker) in self.shared.workers.iter().enumerate().filter(|(n, _)| *n != self.number)
            {
                worker.expect(fabric.next_due(number));
            }
        }
        let sample = (self.number == 0).then(|| fabric.next_sample()).flatten();
        let due = [fabric.next_due(self.number), sample].into_iter().flatten().min();
        // Set while the fabric is locked, so that no other thread can add an earlier packet without noticing
        // it.
        let until = due.map_or(u64::MAX, nanos);
        self.shared.workers[self.number].sleeps_until.store(until, Ordering::Release);
        due
    }

    fn hand_over(&mut self) {
        for arrival in self.arrived.drain(..) {
            match self.devices[arrival.host].write(&arrival.packet.parts()) {
                Ok(()) => self.done.push(arrival.packet),
                // The host's kernel has no room, or the user has shut the device down.
                Err(_) => self.refused.push(arrival),
            }
        }
    }

    fn until(&self, due: Option<Time>) -> Wait {
        let Some(due) = due else { return Wait::Listening(IDLE) };
        let wait = due.saturating_sub(self.shared.began.elapsed());
        if wait < QUANTUM {
            Wait::Asleep(QUANTUM)
        } else {
            Wait::Listening(wait.min(IDLE))
        }
    }

    /// Waits for a device, the eventfd or the timeout. `ppoll` is used because epoll waits only in whole
    /// milliseconds.
    fn listen(&self, time: Duration) -> Result<()> {
        let mut polled = [PollFd::new(self.epoll.0.as_fd(), PollFlags::POLLIN)];
        match ppoll(&mut polled, Some(TimeSpec::from_duration(time)), None) {
            // The signal is meant for other threads.
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(failed("poll")(error)),
        }
    }

    /// Finds out which devices are readable.
    fn look(&mut self) -> Result<()> {
        // The thread is awake and will ask the fabric again before it sleeps, so others need not wake it.
        self.shared.workers[self.number].sleeps_until.store(0, Ordering::Release);
        self.events.resize(self.events.capacity(), EpollEvent::empty());
        let ready = match self.epoll.wait(&mut self.events, EpollTimeout::ZERO) {
            Err(Errno::EINTR) => 0,
            count => count.map_err(failed("epoll"))?,
        };
        self.events.truncate(ready);
        Ok(())
    }
}
