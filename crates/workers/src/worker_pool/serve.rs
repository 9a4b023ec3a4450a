//! A worker's thread in the node: it starts the worker's process, reads its messages, and starts another when
//! it ends.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::line::{answer, Line, Route, Ways};
use super::timeline::{Doing, Stretch};
use super::{Shared, State};
use crate::clock;
use crate::copying::CopyingPlane;
use crate::hearing::{Hearing, WaitOutcome};
use crate::launch::{Launched, Origin};
use crate::ledger::Base;
use crate::note::Kind;

/// A process that was started and to which its set-up was sent.
struct Started {
    origin: Origin,
    line: Line,
    hearing: Hearing,
}

impl Shared {
    /// Keeps a process running for a worker until the worker pool ends.
    pub(super) fn serve(&self, worker: usize) {
        loop {
            let mut state = self.lock();
            while !state.is_stopping && !self.is_due(&state, worker) {
                state.died_at[worker] = None; // nothing waits for a successor
                state = self.wait(state);
            }
            if state.is_stopping {
                return;
            }
            let began = clock::now();
            let Some(mut state) = self.contained(state, worker) else { continue };
            let (round, base) = (state.ledger.round(), state.ledger.base(worker).cloned());
            let party = state.number();
            drop(state);
            match self.start(worker, (party, began), base) {
                Ok(started) => self.attend(worker, round, started),
                Err(error) => self.give_up(worker, round, &error),
            }
            self.paths.iter().for_each(|paths| paths.routes.leave(party));
            self.lock().parties.remove(&party);
        }
    }

    /// Fails the round because no process could be started, and waits for the next round. A planned worker that
    /// has no work fails no round: it waits for work, the next plan or the next round.
    fn give_up(&self, worker: usize, round: u32, error: &io::Error) {
        let mut state = self.lock();
        state.died_at[worker] = None;
        let decided = state.decided.count();
        let fails = state.planning.is_none() || state.ledger.has_work(worker);
        if fails {
            state.ledger.fail(format!("no worker could be started: {error}"));
            self.act(state);
            state = self.lock();
        }
        while !state.is_stopping && state.ledger.round() == round {
            if !fails && (state.ledger.has_work(worker) || state.decided.count() != decided) {
                return;
            }
            state = self.wait(state);
        }
    }

    /// Waits for as long as a container takes to start. `None`: the worker is not needed any more.
    fn contained<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        worker: usize,
    ) -> Option<MutexGuard<'a, State>> {
        let end = Instant::now() + self.config.container_start;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Some(state);
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if state.is_stopping || !self.is_due(&state, worker) {
                return None;
            }
        }
    }

    /// `began`: when the worker was needed, in nanoseconds of the monotonic clock.
    fn start(&self, worker: usize, (party, began): (u16, u64), base: Option<Base>) -> io::Result<Started> {
        let (Some(pool), Some(sums)) = (self.config.pool.descriptor(), self.sums[worker].descriptor()) else {
            return Err(io::Error::other("the memory cannot be shared"));
        };
        let mut setup = self.setups[worker].clone();
        setup.number = party;
        setup.base = base.map(|base| (base.slot, base.head.encode()));
        let (copying, far) = self.copying(worker)?.unzip();
        let Launched { socket, mut process, origin } = self.launcher.launch()?;
        let (route, own) = self.route(party).unzip();
        let descriptors =
            [Some(pool), Some(sums), far.as_ref().map(AsFd::as_fd), own.as_ref().map(AsFd::as_fd)];
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.into_iter().flatten().collect();
        let sent_setup =
            socket.set_write_timeout(Some(self.look())).and_then(|()| setup.send(&socket, &descriptors));
        if sent_setup.is_err() {
            process.kill(); // `attend` will find it dead
        }
        let route_copy = route.as_ref().map(|route: &Route| route.socket.try_clone()).transpose();
        match socket.try_clone().and_then(|socket| Ok((socket, route_copy?))) {
            Ok((unix, route_copy)) => {
                let line = Line::new((party, began), socket, Ways { route, copying }, process);
                Ok(Started { origin, line, hearing: Hearing::new(unix, route_copy) })
            }
            Err(error) => {
                process.end();
                Err(error)
            }
        }
    }

    /// Opens a connection for notes inside the kernel. Returns the node's end and the process's end. `None`:
    /// the process gets its notes over its Unix socket.
    fn route(&self, party: u16) -> Option<(Route, TcpStream)> {
        let paths = self.paths.as_ref()?;
        let (socket, own) = paths.routes.join(party).ok()?;
        let allowed = [(0, party), (party, 0)].map(|(from, to)| paths.routes.allow(from, to, paths.budget));
        allowed.into_iter().collect::<io::Result<()>>().ok()?;
        Some((Route { outlet: paths.outlet.clone(), socket }, own))
    }

    /// Opens a connection for copies, if the data plane copies. Returns the node's end and the worker's end.
    fn copying(&self, worker: usize) -> io::Result<Option<(CopyingPlane, OwnedFd)>> {
        let plane = self.config.plane;
        // The largest message is an update or one slot of sums.
        let most = self.config.layout.bytes().max(self.setups[worker].sums_bytes / 2);
        plane.copies().then(|| CopyingPlane::new(plane, &*self.launcher, most)).transpose()
    }

    /// Interval at which the node checks whether a worker has answered: a quarter of the timeout.
    fn look(&self) -> Duration {
        (self.config.timeout / 4).max(Duration::from_millis(1))
    }

    /// Runs until the process ends: reads its messages, then updates the ledger and the counts.
    fn attend(&self, worker: usize, round: u32, started: Started) {
        let Started { origin, line, mut hearing } = started;
        let party = line.party;
        let mut state = self.lock();
        state.counts.started += 1;
        state.counts.middles += u64::from(state.own_middle(self.config.middle) == Some(worker));
        state.counts.forked += u64::from(origin == Origin::Template);
        if state.is_stopping {
            line.hang_up();
        }
        state.running[worker] = Some(line);
        self.changed.notify_all();
        state.ledger.started(worker, round);
        self.act(state);
        self.hear((worker, party), &mut hearing);
        let ended = clock::now();
        let line = self.lock().running[worker].take();
        let (cpu, carrying) = line.as_ref().map_or((0, 0), |line| (line.cpu, line.carrying()));
        line.into_iter().for_each(Line::end);
        let mut state = self.lock();
        state.counts.cpu += cpu;
        state.counts.carrying += carrying;
        if std::mem::take(&mut state.is_retired[worker]) {
            state.ledger.left(worker);
        } else if !state.is_stopping {
            state.counts.died += 1;
            let now = clock::now();
            state.timeline.add(Stretch { worker, doing: Doing::Died, start: now, end: now, updates: 0 });
            state.died_at[worker] = Some(ended);
            state.ledger.died(worker);
        }
        self.changed.notify_all();
        self.act(state);
    }

    /// Reads a worker's messages. Returns when the connection ends, when a message is invalid, or when an
    /// answer is overdue.
    fn hear(&self, (worker, party): (usize, u16), hearing: &mut Hearing) {
        let mut quiet = 0;
        loop {
            match hearing.wait(Some(self.look())) {
                Ok(WaitOutcome::Something) => quiet = 0,
                Ok(WaitOutcome::Nothing) => {
                    quiet = if self.lock().ledger.is_awaited(worker) { quiet + 1 } else { 0 };
                    if quiet >= 4 {
                        return;
                    }
                }
                Ok(WaitOutcome::End) | Err(_) => return,
            }
            while let Some(message) = hearing.next() {
                let mut state = self.lock();
                if answer(&mut state.ledger, (worker, party), &message).is_err() {
                    return;
                }
                if let Some(line) = &mut state.running[worker] {
                    let times = line.note_times(&message);
                    let stretch = line.stretch(worker, &message);
                    line.flush();
                    if message.note.kind == Kind::Folded {
                        state.folded(message.note.sequence);
                    }
                    if let Some((handover, fold)) = times {
                        state.counts.handovers.add(handover);
                        state.counts.folds.add(fold);
                    }
                    stretch.into_iter().for_each(|stretch| state.tell(stretch));
                }
                self.act(state);
            }
        }
    }
}
