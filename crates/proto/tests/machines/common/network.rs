//! A network in virtual time. Its links have rate, delay, reordering, loss, duplicates, damage and cuts, all
//! of them seeded.

use std::collections::{BTreeMap, VecDeque};

use thalweg_proto::{LinkId, Span, Time};
use thalweg_wire::{FrameHeader, HEADER_BYTES};

pub use super::link::{End, Event, Frame, Path, Rng};

/// A parcel that is being sent.
struct Job {
    group: u64,
    round: u32,
    chunks: VecDeque<(FrameHeader, Vec<u8>)>,
    started: Option<Time>,
}

struct Pipe {
    path: Path,
    free: Time,
    last_control: Time,
    last: Time,
    controls: VecDeque<Vec<u8>>,
    jobs: VecDeque<Job>,
    armed: bool,
    carried: u64,
    payload: u64,
    holed: u64,
}

enum Item {
    Frame(Frame),
    Done(u32, Span),
}

impl Pipe {
    fn new(now: Time, path: Path) -> Self {
        let (controls, jobs) = (VecDeque::new(), VecDeque::new());
        Self {
            path,
            free: now,
            last_control: now,
            last: now,
            controls,
            jobs,
            armed: false,
            carried: 0,
            payload: 0,
            holed: 0,
        }
    }

    fn has_work(&self) -> bool {
        self.path.rate > 0 && !(self.controls.is_empty() && self.jobs.is_empty())
    }

    /// Takes the messages that are still to be sent, if the link can send.
    fn flush(&mut self) -> VecDeque<Vec<u8>> {
        let controls = std::mem::take(&mut self.controls);
        if self.path.rate > 0 {
            controls
        } else {
            VecDeque::new()
        }
    }

    /// Takes what is sent next. Messages go between chunks; a parcel starts after all messages that were
    /// queued before it.
    fn next(&mut self, now: Time) -> Option<Item> {
        if let Some(message) = self.controls.pop_front() {
            return Some(Item::Frame(Frame::Control(message)));
        }
        let job = self.jobs.front_mut()?;
        let start = *job.started.get_or_insert(now);
        if let Some((header, payload)) = job.chunks.pop_front() {
            return Some(Item::Frame(Frame::Chunk(header, payload)));
        }
        self.jobs.pop_front().map(|job| Item::Done(job.round, Span { start, end: now }))
    }
}

struct Wire {
    client: usize,
    up: Pipe,
    down: Pipe,
    cut: bool,
    /// Whether each end (server, client) was not told yet that the link has ended.
    open: [bool; 2],
    taken: [u64; 2],
}

impl Wire {
    fn pipe(&mut self, from: End) -> &mut Pipe {
        match from {
            End::Server => &mut self.down,
            End::Client => &mut self.up,
        }
    }
}

/// All links, and all future events.
pub struct Network {
    pub rng: Rng,
    links: BTreeMap<LinkId, Wire>,
    events: BTreeMap<(Time, u64), Event>,
    count: u64,
    groups: u64,
}

impl Network {
    pub fn new(seed: u64) -> Self {
        let (links, events) = (BTreeMap::new(), BTreeMap::new());
        Self { rng: Rng::new(seed), links, events, count: 0, groups: 0 }
    }

    pub fn at(&mut self, time: Time, event: Event) {
        self.count += 1;
        self.events.insert((time, self.count), event);
    }

    pub fn next_time(&self) -> Option<Time> {
        self.events.keys().next().map(|k| k.0)
    }

    pub fn pop(&mut self, now: Time) -> Option<Event> {
        let key = self.events.keys().next().copied().filter(|k| k.0 <= now)?;
        self.events.remove(&key)
    }

    pub fn connect(&mut self, now: Time, client: usize, up: Path, down: Path) -> LinkId {
        let link = self.links.len() as LinkId + 1;
        let (up, down) = (Pipe::new(now, up), Pipe::new(now, down));
        self.at(now + up.path.delay, Event::Accept { link });
        self.links.insert(link, Wire { client, up, down, cut: false, open: [true; 2], taken: [0; 2] });
        link
    }

    pub fn client_of(&self, link: LinkId) -> usize {
        self.links[&link].client
    }

    /// Whether this end was not told yet that the link has ended.
    pub fn is_open(&self, link: LinkId, end: End) -> bool {
        self.links.get(&link).is_some_and(|w| w.open[end as usize])
    }

    /// Whether frames that are in flight to this end arrive.
    pub fn delivers(&self, link: LinkId, to: End) -> bool {
        self.is_open(link, to) && self.links.get(&link).is_some_and(|w| !w.cut)
    }

    /// Bytes that this end has sent and received.
    pub fn counters(&self, link: LinkId, end: End) -> (u64, u64) {
        let Some(wire) = self.links.get(&link) else { return (0, 0) };
        let sent = if end == End::Server { wire.down.carried } else { wire.up.carried };
        (sent, wire.taken[end as usize])
    }

    /// Payload bytes of chunks sent over all links of a client: by the client, or by the server to it.
    pub fn payload(&self, client: usize, from: End) -> u64 {
        let of = |w: &Wire| if from == End::Server { w.down.payload } else { w.up.payload };
        self.links.values().filter(|w| w.client == client).map(of).sum()
    }

    /// Payload bytes that were cut out of chunks on the way.
    pub fn holed(&self, client: usize, from: End) -> u64 {
        let of = |w: &Wire| if from == End::Server { w.down.holed } else { w.up.holed };
        self.links.values().filter(|w| w.client == client).map(of).sum()
    }

    pub fn taken(&mut self, link: LinkId, to: End, bytes: u64) {
        if let Some(wire) = self.links.get_mut(&link) {
            wire.taken[to as usize] += bytes;
        }
    }

    pub fn send_control(&mut self, now: Time, link: LinkId, from: End, message: Vec<u8>) {
        let Some(wire) = self.links.get_mut(&link) else { return };
        let pipe = wire.pipe(from);
        if pipe.path.separate {
            return self.transmit(now, link, from, Frame::Control(message));
        }
        pipe.controls.push_back(message);
        self.arm(now, link, from);
    }

    /// A new number for the parcels that are sent in one call.
    pub fn group(&mut self) -> u64 {
        self.groups += 1;
        self.groups
    }

    pub fn send_update(
        &mut self,
        now: Time,
        link: LinkId,
        from: End,
        group: u64,
        round: u32,
        chunks: VecDeque<(FrameHeader, Vec<u8>)>,
    ) {
        if let Some(wire) = self.links.get_mut(&link) {
            wire.pipe(from).jobs.push_back(Job { group, round, chunks, started: None });
        }
        self.arm(now, link, from);
    }

    /// Stops what is being sent on this link, and on all links of the same group.
    pub fn cancel(&mut self, now: Time, link: LinkId, from: End) {
        let Some(wire) = self.links.get_mut(&link) else { return };
        let groups: Vec<u64> = wire.pipe(from).jobs.iter().map(|j| j.group).collect();
        for link in self.links.keys().copied().collect::<Vec<_>>() {
            self.drop_jobs(now, link, from, |job| groups.contains(&job.group), "cancelled");
        }
    }

    fn drop_jobs(&mut self, now: Time, link: LinkId, from: End, which: impl Fn(&Job) -> bool, why: &str) {
        let Some(wire) = self.links.get_mut(&link) else { return };
        let jobs = std::mem::take(&mut wire.pipe(from).jobs);
        let (dropped, kept): (VecDeque<Job>, VecDeque<Job>) = jobs.into_iter().partition(which);
        wire.pipe(from).jobs = kept;
        for job in dropped {
            self.at(now, Event::Sent { link, from, round: job.round, outcome: Err(why.into()) });
        }
    }

    fn arm(&mut self, now: Time, link: LinkId, from: End) {
        let Some(wire) = self.links.get_mut(&link) else { return };
        let pipe = wire.pipe(from);
        if !pipe.armed && pipe.has_work() {
            pipe.armed = true;
            let at = pipe.free.max(now);
            self.at(at, Event::Pump { link, from });
        }
    }

    /// Hands the next frame of this end to the network.
    pub fn pump(&mut self, now: Time, link: LinkId, from: End) {
        let Some(wire) = self.links.get_mut(&link) else { return };
        let idle = wire.cut || !wire.open[from as usize];
        let pipe = wire.pipe(from);
        pipe.armed = false;
        if idle {
            return;
        }
        if pipe.free > now {
            return self.arm(now, link, from);
        }
        match pipe.next(now) {
            Some(Item::Frame(frame)) => self.transmit(now, link, from, frame),
            Some(Item::Done(round, span)) => {
                self.at(now, Event::Sent { link, from, round, outcome: Ok(span) });
            }
            None => {}
        }
        self.arm(now, link, from);
    }

    fn transmit(&mut self, now: Time, link: LinkId, from: End, frame: Frame) {
        let Some(wire) = self.links.get_mut(&link) else { return };
        let pipe = wire.pipe(from);
        let (path, bytes) = (pipe.path, frame.bytes());
        pipe.carried += bytes;
        let to = from.other();
        if let Frame::Control(_) = frame {
            let mut at = now;
            if !path.separate {
                pipe.free = now + took(bytes, path.rate);
                at = pipe.free;
            }
            pipe.last_control = (at + path.delay).max(pipe.last_control);
            if path.ordered && !path.separate {
                pipe.last_control = pipe.last_control.max(pipe.last);
                pipe.last = pipe.last_control;
            }
            let at = pipe.last_control;
            return self.at(at, Event::Arrive { link, to, frame, counted: 0 });
        }
        pipe.payload += bytes - HEADER_BYTES as u64;
        pipe.free = now + took(bytes, path.rate);
        let (free, over) = (pipe.free, path.cut_after.is_some_and(|n| pipe.payload >= n));
        self.chunk_arrives(now, free, link, from, frame);
        if over {
            self.at(free + path.delay, Event::Cut { link });
        }
    }

    fn chunk_arrives(&mut self, now: Time, free: Time, link: LinkId, from: End, mut frame: Frame) {
        let Some(wire) = self.links.get_mut(&link) else { return };
        let (pipe, to) = (wire.pipe(from), from.other());
        let (path, bytes) = (pipe.path, frame.bytes());
        let late = if path.ordered { Time::ZERO } else { self.rng.time(path.jitter) };
        let mut at = free + path.delay + late;
        if path.ordered {
            at = at.max(pipe.last);
            pipe.last = at;
        }
        if self.rng.chance(path.loss) {
            return;
        }
        if self.rng.chance(path.duplicate) {
            let again = if path.ordered { at } else { at + self.rng.time(path.jitter) };
            self.at(again, Event::Arrive { link, to, frame: frame.clone(), counted: 0 });
        }
        // The parts of a chunk with a hole have checksums of their own.
        let holed = path.holes > 0.0 && self.rng.chance(path.holes);
        if !holed && self.rng.chance(path.corrupt) {
            frame.damage(&mut self.rng);
        }
        let seconds = (free - now).as_secs();
        for second in 1..seconds {
            let event = Event::Progress { link, to, bytes: path.rate };
            self.at(now + Time::from_secs(second) + path.delay, event);
        }
        let counted = (seconds.saturating_sub(1) * path.rate).min(bytes);
        if holed {
            let parts = frame.outer_thirds();
            let payload = |frame: &Frame| frame.bytes() - HEADER_BYTES as u64;
            let lost = bytes - HEADER_BYTES as u64 - parts.iter().map(payload).sum::<u64>();
            for frame in parts {
                self.at(at, Event::Arrive { link, to, frame, counted: 0 });
            }
            if let Some(wire) = self.links.get_mut(&link) {
                wire.pipe(from).holed += lost;
            }
            return;
        }
        self.at(at, Event::Arrive { link, to, frame, counted });
    }

    /// Breaks a link: frames in flight are lost, and both ends are told of it, in any order.
    pub fn cut(&mut self, now: Time, link: LinkId, reason: &str) {
        let Some(wire) = self.links.get_mut(&link).filter(|w| !w.cut) else { return };
        wire.cut = true;
        let later = wire.up.path.delay;
        let first = if self.rng.chance(0.5) { End::Server } else { End::Client };
        for (end, at) in [(first, now), (first.other(), now + later)] {
            let before = self.rng.chance(0.5);
            if before {
                self.drop_jobs(at, link, end, |_| true, "the link is closed");
            }
            self.at(at, Event::Closed { link, end, reason: reason.into() });
            if !before {
                self.drop_jobs(at, link, end, |_| true, "the link is closed");
            }
        }
    }

    /// Notes that this end knows that the link has ended.
    pub fn end_closed(&mut self, link: LinkId, end: End) {
        if let Some(wire) = self.links.get_mut(&link) {
            wire.open[end as usize] = false;
        }
    }

    /// Stops all frames from the client on this link for a while.
    pub fn stall(&mut self, link: LinkId, time: Time) {
        if let Some(wire) = self.links.get_mut(&link) {
            wire.up.free += time;
        }
    }

    /// Delays everything that this end sends by this time.
    pub fn hold_up(&mut self, now: Time, link: LinkId, from: End, time: Time) {
        if let Some(wire) = self.links.get_mut(&link) {
            let pipe = wire.pipe(from);
            pipe.free = pipe.free.max(now) + time;
        }
    }

    /// Tells this end that the link has ended. What it was sending fails.
    pub fn shut(&mut self, now: Time, link: LinkId, end: End) {
        self.drop_jobs(now, link, end, |_| true, "the link is closed");
        self.end_closed(link, end);
    }

    /// Closes the link at this end, after its messages. The other end is told after them.
    pub fn close(&mut self, now: Time, link: LinkId, end: End) {
        if !self.delivers(link, end) {
            return;
        }
        for message in self.links.get_mut(&link).map(|w| w.pipe(end).flush()).unwrap_or_default() {
            self.transmit(now, link, end, Frame::Control(message));
        }
        self.drop_jobs(now, link, end, |_| true, "the link is closed");
        self.end_closed(link, end);
        let Some(wire) = self.links.get_mut(&link) else { return };
        let pipe = wire.pipe(end);
        let at = pipe.last_control.max(now + pipe.path.delay);
        self.at(at, Event::Closed { link, end: end.other(), reason: "the peer closed the link".into() });
    }
}

fn took(bytes: u64, rate: u64) -> Time {
    Time::from_nanos(bytes.saturating_mul(1_000_000_000) / rate.max(1))
}
