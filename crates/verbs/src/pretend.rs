//! A device without hardware. Its pairs write within the process, in any order that verbs allow, and break as they are told
//! to: the same seed, the same order.
//!
//! A write is cut into parts, which land one at each step, in any order, also behind parts of later writes. It may be
//! acknowledged before they have landed, as a device acknowledges what is not yet in memory. Only a note waits for all
//! before it. A part that comes after its key was closed lands nowhere and breaks the pair.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use thalweg_arena::Arena;
use thalweg_dice::Dice;

use crate::{Device, Done, Endpoint, Error, Fault, Limits, Memory, Pair, Remote, Work};

/// Work requests that a pair holds.
const WORKS: usize = 512;
const MTU: u32 = 4096;

/// How a device behaves.
#[derive(Debug, Clone)]
pub struct Behaviour {
    /// What decides the order.
    pub seed: u64,
    /// How often a step does nothing, from 0 to below 1.
    pub delay: f64,
    /// Which writes fail, counted from 0 over all pairs of the device, and how.
    pub faults: Vec<(u64, Fault)>,
    /// Bytes that may be registered.
    pub locked: u64,
    /// Whether it has memory windows.
    pub windows: bool,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self { seed: 1, delay: 0.0, faults: Vec::new(), locked: u64::MAX, windows: true }
    }
}

type Wire = Arc<Mutex<State>>;

/// What devices that reach each other have in common.
#[derive(Default)]
pub struct Fabric {
    /// By their numbers.
    pairs: Mutex<HashMap<u32, Wire>>,
    next: Mutex<u32>,
    /// Held while a part is between two pairs, so that no pair goes meanwhile.
    turn: Mutex<()>,
}

impl Fabric {
    fn number(&self) -> u32 {
        let mut next = locked(&self.next);
        *next += 1;
        *next
    }

    fn find(&self, number: Option<u32>) -> Option<Wire> {
        locked(&self.pairs).get(&number?).cloned()
    }

    /// Breaks every pair there is, as a cut cable does. Returns how many.
    pub fn cut(&self) -> usize {
        let pairs: Vec<Wire> = locked(&self.pairs).values().cloned().collect();
        pairs.iter().for_each(|pair| locked(pair).lose(Fault::Retries));
        pairs.len()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A device.
pub struct Pretend {
    fabric: Arc<Fabric>,
    number: u32,
    shared: Arc<Shared>,
}

struct Shared {
    behaviour: Behaviour,
    writes: Mutex<u64>,
    registered: Arc<Mutex<u64>>,
}

impl Pretend {
    /// A device on a fabric.
    pub fn new(fabric: &Arc<Fabric>, behaviour: Behaviour) -> Self {
        let shared = Shared { behaviour, writes: Mutex::default(), registered: Arc::default() };
        Self { fabric: fabric.clone(), number: fabric.number(), shared: Arc::new(shared) }
    }

    /// Bytes that are registered now.
    pub fn registered(&self) -> u64 {
        *locked(&self.shared.registered)
    }
}

/// Which devices know an arena. As an attachment it goes with the memory.
#[derive(Default)]
struct Known(Mutex<HashMap<u32, Registration>>);

struct Registration {
    bytes: u64,
    of: Arc<Mutex<u64>>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        *locked(&self.of) -= self.bytes;
    }
}

impl Device for Pretend {
    fn name(&self) -> String {
        format!("pretend{}", self.number)
    }

    fn limits(&self) -> Limits {
        let windows = self.shared.behaviour.windows;
        Limits { message: 1 << 30, parts: 16, works: WORKS, windows, mtu: MTU }
    }

    fn register(&self, arena: &Arena) -> Result<(), Error> {
        let known = arena.attach(|| Ok::<_, Error>(Known::default()))?;
        let mut known = locked(&known.0);
        if known.contains_key(&self.number) {
            return Ok(());
        }
        let mut registered = locked(&self.shared.registered);
        let (all, limit) = (registered.saturating_add(arena.len()), self.shared.behaviour.locked);
        if all > limit {
            return Err(Error::Locked(format!("{all} bytes would be locked, {limit} may be")));
        }
        *registered = all;
        let registration = Registration { bytes: arena.len(), of: self.shared.registered.clone() };
        known.insert(self.number, registration);
        Ok(())
    }

    fn pair(&self, _notes: usize) -> Result<Box<dyn Pair>, Error> {
        let number = self.fabric.number();
        let state = State {
            peer: None,
            lost: None,
            open: HashMap::new(),
            queue: VecDeque::new(),
            landing: Vec::new(),
            done: VecDeque::new(),
            waker: None,
            dice: Dice::new(&[self.shared.behaviour.seed, u64::from(number)]),
            next_key: 1,
        };
        let wire = Arc::new(Mutex::new(state));
        locked(&self.fabric.pairs).insert(number, wire.clone());
        let (fabric, shared) = (self.fabric.clone(), self.shared.clone());
        Ok(Box::new(PretendPair { device: self.number, number, fabric, shared, wire }))
    }
}

/// A part of a write on its way.
struct Part {
    to: Remote,
    bytes: Bytes,
}

struct State {
    peer: Option<u32>,
    lost: Option<Fault>,
    open: HashMap<u32, Memory>,
    queue: VecDeque<(u64, Work)>,
    landing: Vec<Part>,
    done: VecDeque<Done>,
    waker: Option<Waker>,
    dice: Dice,
    next_key: u32,
}

impl State {
    fn happened(&mut self, done: Done) {
        self.done.push_back(done);
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn lose(&mut self, fault: Fault) {
        if self.lost.is_none() {
            self.lost = Some(fault);
            // What was to be opened is given back by `break_off`, as what is open. Parts that were acknowledged still land.
            for (_, work) in self.queue.drain(..) {
                if let Work::Open(memory) = work {
                    self.open.insert(self.next_key, memory);
                    self.next_key += 1;
                }
            }
            self.happened(Done::Lost(fault));
        }
    }

    /// Writes a part where the peer wants it, if it may.
    fn land(&mut self, part: &Part) -> Result<(), Fault> {
        let memory = self.open.get_mut(&part.to.key).ok_or(Fault::Access)?;
        let (start, all) =
            (part.to.address.checked_sub(memory.address()).ok_or(Fault::Access)?, memory.len());
        let start = usize::try_from(start).map_err(|_| Fault::Access)?;
        if start.checked_add(part.bytes.len()).is_none_or(|end| end > all) {
            return Err(Fault::Access);
        }
        let (mut skip, mut bytes) = (start, &part.bytes[..]);
        for claim in memory.claims_mut() {
            let here = claim.len().saturating_sub(skip).min(bytes.len());
            if here > 0 {
                claim[skip..skip + here].copy_from_slice(&bytes[..here]);
            }
            bytes = &bytes[here..];
            skip = skip.saturating_sub(claim.len());
        }
        Ok(())
    }
}

struct PretendPair {
    device: u32,
    number: u32,
    fabric: Arc<Fabric>,
    shared: Arc<Shared>,
    wire: Wire,
}

impl PretendPair {
    fn knows(&self, bytes: &[u8]) -> bool {
        let known = |(arena, _): (Arena, _)| arena.attachment::<Known>();
        let known = Arena::of(bytes).and_then(known);
        bytes.is_empty() || known.is_some_and(|known| locked(&known.0).contains_key(&self.device))
    }

    /// Lands a part, if there is one, else begins the next work request. Returns whether there was anything to do.
    fn step(&self) -> bool {
        let _turn = locked(&self.fabric.turn);
        let mut state = locked(&self.wire);
        if state.lost.is_some() || (state.queue.is_empty() && state.landing.is_empty()) {
            return false;
        }
        if state.dice.hits(self.shared.behaviour.delay) {
            return true;
        }
        let may_begin = match state.queue.front() {
            None => false,
            Some((_, Work::Note { .. })) => state.landing.is_empty(),
            Some(_) => state.landing.is_empty() || state.dice.hits(0.5),
        };
        if may_begin {
            let Some((id, work)) = state.queue.pop_front() else { return true };
            drop(state);
            self.begin(id, work);
            return true;
        }
        let count = state.landing.len() as u64;
        let at = state.dice.up_to(count) as usize - 1;
        let (part, peer) = (state.landing.swap_remove(at), state.peer);
        drop(state);
        self.deliver(peer, &part, None);
        true
    }

    /// Lands a part at the peer, and tells it the note.
    fn deliver(&self, peer: Option<u32>, part: &Part, note: Option<u32>) -> bool {
        let landed = match self.fabric.find(peer) {
            None => Err(Fault::Retries),
            Some(peer) => {
                let mut peer = locked(&peer);
                let landed = match peer.lost {
                    Some(_) => Err(Fault::Retries),
                    None if part.bytes.is_empty() && note.is_none() => Ok(()),
                    None => peer.land(part),
                };
                if let (Ok(()), Some(note)) = (landed, note) {
                    peer.happened(Done::Noted(note));
                }
                landed
            }
        };
        if let Err(fault) = landed {
            locked(&self.wire).lose(fault);
        }
        landed.is_ok()
    }

    fn begin(&self, id: u64, work: Work) {
        if let (Work::Write { .. } | Work::Note { .. }, Some(fault)) = (&work, self.fault(&work)) {
            return locked(&self.wire).lose(fault);
        }
        match work {
            Work::Write { bytes, to } => {
                let mut state = locked(&self.wire);
                let mut at = to.address;
                for bytes in bytes {
                    for part in split(&bytes, &mut state.dice) {
                        let to = Remote { address: at, ..to };
                        at += part.len() as u64;
                        state.landing.push(Part { to, bytes: part });
                    }
                }
                // The peer's device has it; its memory, perhaps, has not.
                state.happened(Done::Written(id));
            }
            Work::Note { bytes, to, note } => {
                let peer = locked(&self.wire).peer;
                if self.deliver(peer, &Part { to, bytes }, Some(note)) {
                    locked(&self.wire).happened(Done::Written(id));
                }
            }
            Work::Open(memory) => {
                let mut state = locked(&self.wire);
                let key = state.next_key;
                state.next_key += 1;
                let remote = Remote { address: memory.address(), key };
                state.open.insert(key, memory);
                state.happened(Done::Opened(id, remote));
            }
            Work::Close { key } => {
                let mut state = locked(&self.wire);
                let memory = state.open.remove(&key).unwrap_or_default();
                state.happened(Done::Closed(id, memory));
            }
        }
    }

    /// How this write fails, if it does.
    fn fault(&self, work: &Work) -> Option<Fault> {
        let mut writes = locked(&self.shared.writes);
        let number = *writes;
        *writes += u64::from(matches!(work, Work::Write { .. } | Work::Note { .. }));
        self.shared.behaviour.faults.iter().find(|(at, _)| *at == number).map(|(_, fault)| *fault)
    }
}

/// Up to three parts of the bytes.
fn split(bytes: &Bytes, dice: &mut Dice) -> Vec<Bytes> {
    let length = bytes.len() as u64;
    if length == 0 {
        return Vec::new();
    }
    let mut cuts: BTreeSet<usize> = (0..2).map(|_| dice.up_to(length) as usize).collect();
    cuts.insert(bytes.len());
    let mut start = 0;
    let parts = cuts.into_iter().map(|end| {
        let part = bytes.slice(start..end);
        start = end;
        part
    });
    parts.collect()
}

impl Pair for PretendPair {
    fn endpoint(&self) -> Endpoint {
        Endpoint { gid: [0xfe; 16], number: self.number, first: 0, mtu: MTU }
    }

    fn connect(&mut self, peer: &Endpoint) -> Result<(), Error> {
        locked(&self.wire).peer = Some(peer.number);
        Ok(())
    }

    fn post(&mut self, id: u64, work: Work) -> Result<(), Error> {
        let known = match &work {
            Work::Write { bytes, .. } => bytes.iter().all(|bytes| self.knows(bytes)),
            Work::Note { bytes, .. } => self.knows(bytes),
            Work::Open(memory) => memory.claims().iter().all(|claim| self.knows(claim)),
            Work::Close { .. } => true,
        };
        if !known {
            return Err(Error::Refused("the memory of a work request is not registered".into()));
        }
        let mut state = locked(&self.wire);
        if state.queue.len() >= WORKS {
            return Err(Error::Refused(format!("the pair holds {WORKS} work requests")));
        }
        if state.lost.is_none() {
            state.queue.push_back((id, work));
            state.wake();
        }
        Ok(())
    }

    fn poll(&mut self, context: &mut Context<'_>, done: &mut Vec<Done>) -> Poll<()> {
        let busy = self.step();
        let mut state = locked(&self.wire);
        if state.done.is_empty() {
            if busy {
                context.waker().wake_by_ref();
            }
            state.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        done.extend(state.done.drain(..));
        Poll::Ready(())
    }

    fn peek(&self, key: u32, at: usize, out: &mut [u8]) -> bool {
        let state = locked(&self.wire);
        let found = state.open.get(&key).and_then(|memory| memory.claims().first());
        let bytes = found.and_then(|claim| claim.get(at..at.checked_add(out.len())?));
        bytes.map(|bytes| out.copy_from_slice(bytes)).is_some()
    }

    fn break_off(&mut self) -> Vec<(u32, Memory)> {
        locked(&self.fabric.pairs).remove(&self.number);
        let fabric = self.fabric.clone();
        let _turn = locked(&fabric.turn);
        let (peer, ours) = {
            let mut state = locked(&self.wire);
            state.lose(Fault::Flushed);
            (self.fabric.find(state.peer), std::mem::take(&mut state.landing))
        };
        // What was acknowledged lands before the pair is gone, unless its key was closed.
        let theirs = peer.as_ref().map(|peer| {
            let mut peer = locked(peer);
            for part in &ours {
                let _ = peer.land(part);
            }
            let busy = !peer.queue.is_empty() || !peer.landing.is_empty();
            let parts = std::mem::take(&mut peer.landing);
            // Whoever still writes to this end finds nobody.
            if busy {
                peer.lose(Fault::Retries);
            }
            parts
        });
        let mut state = locked(&self.wire);
        for part in theirs.iter().flatten() {
            let _ = state.land(part);
        }
        let memory = state.open.drain().collect();
        drop(state);
        memory
    }
}

impl Drop for PretendPair {
    fn drop(&mut self) {
        self.break_off();
    }
}
