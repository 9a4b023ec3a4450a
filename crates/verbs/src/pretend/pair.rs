//! One end of a simulated queue pair, and what it does at each step.

use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll};

use thalweg_arena::Arena;

use super::state::State;
use super::{locked, Fabric, Known, Shared, Wire, Written, MTU, WORKS};
use crate::{Done, Endpoint, Error, Fault, Memory, Pair, Remote, Work};

/// One end of a simulated queue pair.
pub(super) struct PretendPair {
    pub(super) device: u32,
    pub(super) number: u32,
    pub(super) fabric: Arc<Fabric>,
    pub(super) shared: Arc<Shared>,
    pub(super) wire: Wire,
}

impl PretendPair {
    fn knows(&self, bytes: &[u8]) -> bool {
        let known = |(arena, _): (Arena, _)| arena.attachment::<Known>();
        let known = Arena::of(bytes).and_then(known);
        bytes.is_empty() || known.is_some_and(|known| locked(&known.0).contains_key(&self.device))
    }

    /// Begins the next work request, or continues one. Returns whether there was anything to do.
    fn step(&self) -> bool {
        let _turn = locked(&self.fabric.turn);
        let mut state = locked(&self.wire);
        if state.lost.is_some() || state.stalled || state.is_idle() {
            return false;
        }
        if state.rng.hits(self.shared.behaviour.delay) {
            return true;
        }
        if self.shared.behaviour.lost_at_once.contains(&self.number) {
            state.lose(Fault::Flushed);
            return true;
        }
        if self.may_begin(&mut state) {
            let Some((id, work)) = state.queue.pop_front() else { return true };
            drop(state);
            self.begin(id, work);
        } else if state.landing.is_empty() {
            match state.telling.take() {
                Some((id, note)) => self.tell(state, id, note),
                None => self.fetch(state),
            }
        } else {
            self.land(state);
        }
        true
    }

    fn may_begin(&self, state: &mut State) -> bool {
        let (landing, reading) = (!state.landing.is_empty(), state.reading.len());
        match state.queue.front() {
            _ if state.telling.is_some() => false,
            None => false,
            Some((_, Work::Read { .. })) => {
                reading < self.shared.behaviour.reads && (reading == 0 || state.rng.hits(0.5))
            }
            Some((_, Work::Note { .. })) => !landing && reading == 0,
            Some(_) => reading == 0 && (!landing || state.rng.hits(0.5)),
        }
    }

    /// Runs `f` on the peer's end. If the peer is gone or `f` fails, this end is lost.
    fn at_peer<T>(&self, peer: Option<u32>, f: impl FnOnce(&mut State) -> Result<T, Fault>) -> Option<T> {
        let done = match self.fabric.find(peer) {
            None => Err(Fault::Retries),
            Some(peer) => {
                let mut peer = locked(&peer);
                if peer.lost.is_some() {
                    Err(Fault::Retries)
                } else {
                    f(&mut peer)
                }
            }
        };
        done.map_err(|fault| locked(&self.wire).lose(fault)).ok()
    }

    /// Lands one part of a write at the peer.
    fn land(&self, mut state: MutexGuard<'_, State>) {
        let count = state.landing.len() as u64;
        let at = state.rng.up_to(count) as usize - 1;
        let (part, peer) = (state.landing.swap_remove(at), state.peer);
        drop(state);
        self.at_peer(peer, |peer| peer.land(&part));
    }

    /// Delivers a note to the peer. If the peer has no room for it, a later step tries again.
    fn tell(&self, state: MutexGuard<'_, State>, id: u64, note: u32) {
        let peer = state.peer;
        drop(state);
        let reached = self.at_peer(peer, |peer| Ok(peer.noted(note)));
        let mut state = locked(&self.wire);
        match reached {
            Some(true) => state.happened(Done::Written(id)),
            Some(false) if state.lost.is_none() => state.telling = Some((id, note)),
            _ => {}
        }
    }

    /// Fetches one part of a read from the peer.
    fn fetch(&self, mut state: MutexGuard<'_, State>) {
        let (next, peer) = (state.next_part(), state.peer);
        drop(state);
        let Some((at, part, from)) = next else { return };
        if let Some(bytes) = self.at_peer(peer, |peer| peer.fetch(part.len(), from)) {
            locked(&self.wire).fetched(at, part, &bytes);
        }
    }

    fn begin(&self, id: u64, work: Work) {
        let number = self.count(&work);
        let behaviour = &self.shared.behaviour;
        let fault = number.and_then(|number| behaviour.faults.iter().find(|(at, _)| *at == number));
        if let Some(&(_, fault)) = fault {
            let mut state = locked(&self.wire);
            if let Work::Read { into, .. } = work {
                state.unread.push(into.into());
            }
            return state.lose(fault);
        }
        if let Work::Write { bytes, to } | Work::Note { bytes, to, .. } = &work {
            let (bytes, note) =
                (bytes.iter().map(|part| part.len() as u64).sum(), matches!(work, Work::Note { .. }));
            locked(&self.fabric.writes).push(Written { pair: self.number, to: *to, bytes, note });
        }
        let mut state = locked(&self.wire);
        state.stalled = number.is_some_and(|number| behaviour.stalls.contains(&number));
        match work {
            Work::Write { bytes, to } => {
                state.write(&bytes, to);
                // The peer's device has the data, but perhaps not yet in memory.
                state.happened(Done::Written(id));
            }
            Work::Note { bytes, to, note } => {
                state.write(&bytes, to);
                state.telling = Some((id, note));
            }
            Work::Read { into, from } => {
                state.read(id, into, from);
                state.end_reads();
            }
            Work::Open(memory) => {
                let key = state.key();
                let remote = Remote { address: memory.address(), key };
                state.open.insert(key, memory);
                state.happened(Done::Opened(id, remote));
            }
            Work::Lend(bytes) => {
                let remote = Remote { address: bytes.as_ptr() as u64, key: state.key() };
                state.lent.insert(remote.key, bytes);
                state.happened(Done::Opened(id, remote));
            }
            Work::Close { key } => {
                state.lent.remove(&key);
                let memory = state.open.remove(&key).unwrap_or_default();
                state.happened(Done::Closed(id, memory));
            }
        }
    }

    /// The number of this write or read among those of the device; `None` for any other work.
    fn count(&self, work: &Work) -> Option<u64> {
        if !matches!(work, Work::Write { .. } | Work::Note { .. } | Work::Read { .. }) {
            return None;
        }
        let mut writes = locked(&self.shared.writes);
        let number = *writes;
        *writes += 1;
        Some(number)
    }
}

impl Pair for PretendPair {
    fn endpoint(&self) -> Endpoint {
        Endpoint {
            gid: [0xfe; 16],
            number: self.number,
            first: 0,
            mtu: MTU,
            reads: self.shared.behaviour.reads as u32,
        }
    }

    fn connect(&mut self, peer: &Endpoint) -> Result<(), Error> {
        locked(&self.wire).peer = Some(peer.number);
        Ok(())
    }

    fn post(&mut self, id: u64, work: Work) -> Result<(), Error> {
        let known = match &work {
            Work::Write { bytes, .. } | Work::Note { bytes, .. } => {
                bytes.iter().all(|bytes| self.knows(bytes))
            }
            Work::Read { into, .. } => self.knows(into),
            Work::Lend(bytes) => self.knows(bytes),
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
        if state.lost.is_some() {
            state.flush(work);
        } else {
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
        // Acknowledged parts land before the pair is gone, unless their key was closed.
        let theirs = peer.as_ref().map(|peer| {
            let mut peer = locked(peer);
            for part in &ours {
                let _ = peer.land(part);
            }
            let busy = !peer.is_idle();
            let parts = std::mem::take(&mut peer.landing);
            // If the peer still writes to this end or reads from it, it finds nobody.
            if busy {
                peer.lose(Fault::Retries);
            }
            parts
        });
        let mut state = locked(&self.wire);
        for part in theirs.iter().flatten() {
            let _ = state.land(part);
        }
        state.lent.clear();
        let unread = std::mem::take(&mut state.unread).into_iter().map(|memory| (0, memory));
        state.open.drain().chain(unread).collect()
    }
}

impl Drop for PretendPair {
    fn drop(&mut self) {
        self.break_off();
    }
}
