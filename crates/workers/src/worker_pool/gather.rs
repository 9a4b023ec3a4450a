//! Brings the sums that workers have committed to the node, where the data plane copies them.

use std::io;
use std::net::TcpStream;

use thalweg_wire::Range;

use super::Shared;
use crate::copying::receive_within;
use crate::ledger::Base;

/// How often a worker that dies while it sends is replaced before the round fails.
const TRIES: usize = 4;

impl Shared {
    /// Receives a copy of the sums of each worker that has some. All send at once.
    pub(super) fn gather(&self, bases: &[Option<Base>]) -> io::Result<()> {
        let workers = (0..self.setups.len()).filter(|&worker| bases.get(worker).is_some_and(Option::is_some));
        let streams: Vec<_> = workers.map(|worker| (worker, self.fetch(worker))).collect();
        for (worker, stream) in streams {
            self.receive(worker, stream)?;
        }
        Ok(())
    }

    /// Has a worker send its sums, once it runs; returns where they come.
    fn fetch(&self, worker: usize) -> io::Result<TcpStream> {
        let mut state = self.lock();
        loop {
            if let Some(line) = &mut state.running[worker] {
                return line.fetch();
            }
            if state.is_stopping || !state.ledger.is_wanted(worker) {
                return Err(io::Error::other("its process has ended"));
            }
            state = self.wait(state);
        }
    }

    fn receive(&self, worker: usize, mut stream: io::Result<TcpStream>) -> io::Result<()> {
        let arena = &self.copies[worker];
        for _ in 0..TRIES {
            let mut claim = arena.claim(Range::new(0, arena.len())).map_err(io::Error::other)?;
            let received =
                stream.and_then(|mut stream| receive_within(&mut stream, &mut claim, self.config.timeout));
            if received.is_ok() {
                return Ok(());
            }
            // Its successor takes over what it has committed.
            self.replace(worker);
            stream = self.fetch(worker);
        }
        Err(io::Error::other("a worker died again and again"))
    }

    /// Kills a worker's process, and waits until another runs or none is wanted.
    fn replace(&self, worker: usize) {
        let mut state = self.lock();
        let started = state.counts.started;
        state.running[worker].iter_mut().for_each(|line| line.kill());
        while !state.is_stopping && state.ledger.is_wanted(worker) && state.counts.started == started {
            state = self.wait(state);
        }
    }
}
