//! A device without hardware, for tests. Its pairs write within the process, in any order that verbs allow,
//! and break when a test says so. The same seed gives the same order.
//!
//! A write is cut into parts. At each step one part lands, in any order, even after parts of later writes. A
//! write may be acknowledged before its parts have landed, as a real device acknowledges data that is not yet
//! in memory. Only a note waits for everything before it, and until the peer has room for it. A part that
//! arrives after its key was closed lands nowhere, and breaks the pair.
//!
//! A read is cut likewise. Its parts are fetched in any order, mixed with those of other reads; each part has
//! the bytes of that moment. Reads complete in the order in which they began. [`Behaviour::reads`] limits how
//! many are in flight.

mod pair;
mod state;
mod steps;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thalweg_arena::Arena;

use crate::{Device, Error, Fault, Limits, Pair, Remote};
use pair::PretendPair;
use state::State;

pub use steps::{connected, settle, step, Ends};

/// Maximum number of work requests that a pair holds.
const WORKS: usize = 512;
const MTU: u32 = 4096;

/// How a device behaves.
#[derive(Debug, Clone)]
pub struct Behaviour {
    /// Seed that decides the order of steps.
    pub seed: u64,
    /// Probability that a step does nothing, from 0 to below 1.
    pub delay: f64,
    /// Which writes and reads fail, and how. They are counted from 0 over all pairs of the device.
    pub faults: Vec<(u64, Fault)>,
    /// Which writes and reads stall their pair until [`Fabric::go_on`], as if a packet was lost behind them. A
    /// write itself still completes; what is queued behind it waits. They are counted in the same way.
    pub stalls: Vec<u64>,
    /// Which pairs are lost at their first work request: their numbers on the fabric, as in [`Written::pair`].
    pub lost_at_once: Vec<u32>,
    /// Maximum number of bytes that may be registered.
    pub locked: u64,
    /// Whether the device has memory windows.
    pub windows: bool,
    /// Maximum number of reads that a pair has in flight.
    pub reads: usize,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            seed: 1,
            delay: 0.0,
            faults: Vec::new(),
            stalls: Vec::new(),
            lost_at_once: Vec::new(),
            locked: u64::MAX,
            windows: true,
            reads: 16,
        }
    }
}

/// A write that has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Number of the pair's end that writes, over all pairs of the device.
    pub pair: u32,
    /// Where it goes.
    pub to: Remote,
    /// How many bytes it has.
    pub bytes: u64,
    /// Whether the peer gets a note.
    pub note: bool,
}

type Wire = Arc<Mutex<State>>;

/// The network of the devices that reach each other.
#[derive(Default)]
pub struct Fabric {
    /// All pairs, by their numbers.
    pairs: Mutex<HashMap<u32, Wire>>,
    next: Mutex<u32>,
    writes: Mutex<Vec<Written>>,
    /// Held while a part moves between two pairs, so that neither disappears meanwhile.
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

    /// The writes that have begun and did not fail at once, in order.
    pub fn writes(&self) -> Vec<Written> {
        locked(&self.writes).clone()
    }

    /// Lets all pairs that have stalled go on.
    pub fn go_on(&self) {
        let pairs: Vec<Wire> = locked(&self.pairs).values().cloned().collect();
        for pair in &pairs {
            let mut state = locked(pair);
            state.stalled = false;
            state.wake();
        }
    }

    /// Breaks all pairs, like a cut cable. Returns how many.
    pub fn cut(&self) -> usize {
        let pairs: Vec<Wire> = locked(&self.pairs).values().cloned().collect();
        pairs.iter().for_each(|pair| locked(pair).lose(Fault::Retries));
        pairs.len()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A pretend device.
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
    /// Makes a device on a fabric.
    pub fn new(fabric: &Arc<Fabric>, behaviour: Behaviour) -> Self {
        let shared = Shared { behaviour, writes: Mutex::default(), registered: Arc::default() };
        Self { fabric: fabric.clone(), number: fabric.number(), shared: Arc::new(shared) }
    }

    /// Bytes that are registered now.
    pub fn registered(&self) -> u64 {
        *locked(&self.shared.registered)
    }
}

/// The devices that know an arena. As an attachment it is dropped with the arena.
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
        let Behaviour { windows, reads, .. } = self.shared.behaviour;
        Limits { message: 1 << 30, parts: 16, works: WORKS, reads, windows, mtu: MTU }
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

    fn pair(&self, notes: usize) -> Result<Box<dyn Pair>, Error> {
        let number = self.fabric.number();
        let state = State::new(&[self.shared.behaviour.seed, u64::from(number)], notes);
        let wire = Arc::new(Mutex::new(state));
        locked(&self.fabric.pairs).insert(number, wire.clone());
        let (fabric, shared) = (self.fabric.clone(), self.shared.clone());
        Ok(Box::new(PretendPair { device: self.number, number, fabric, shared, wire }))
    }
}
