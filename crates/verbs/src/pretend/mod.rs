//! A device without hardware. Its pairs write within the process, in any order that verbs allow, and break as they are told
//! to: the same seed, the same order.
//!
//! A write is cut into parts, which land one at each step, in any order, also behind parts of later writes. It may be
//! acknowledged before they have landed, as a device acknowledges what is not yet in memory. Only a note waits for all
//! before it. A part that comes after its key was closed lands nowhere and breaks the pair.
//!
//! A read is cut likewise. Its parts are fetched in any order, also those of several reads, as the bytes are then; reads end
//! in the order in which they began, and as many are under way as the device has been told.

mod pair;
mod state;
mod steps;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thalweg_arena::Arena;

use crate::{Device, Error, Fault, Limits, Pair};
use pair::PretendPair;
use state::State;

pub use steps::{connected, settle, step, Ends};

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
    /// Which writes and reads fail, counted from 0 over all pairs of the device, and how.
    pub faults: Vec<(u64, Fault)>,
    /// Bytes that may be registered.
    pub locked: u64,
    /// Whether it has memory windows.
    pub windows: bool,
    /// Reads that a pair has under way.
    pub reads: usize,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self { seed: 1, delay: 0.0, faults: Vec::new(), locked: u64::MAX, windows: true, reads: 16 }
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

    fn pair(&self, _notes: usize) -> Result<Box<dyn Pair>, Error> {
        let number = self.fabric.number();
        let state = State::new(&[self.shared.behaviour.seed, u64::from(number)]);
        let wire = Arc::new(Mutex::new(state));
        locked(&self.fabric.pairs).insert(number, wire.clone());
        let (fabric, shared) = (self.fabric.clone(), self.shared.clone());
        Ok(Box::new(PretendPair { device: self.number, number, fabric, shared, wire }))
    }
}
