//! Receives the committed sums from the workers, for data planes that copy.

use std::io;
use std::net::TcpStream;

use thalweg_wire::Range;

use super::Shared;
use crate::copying::receive_within;
use crate::ledger::Base;

/// Number of times that a worker may be replaced while it sends, before the round fails.
const TRIES: usize = 4;

impl Shared {
    /// Receives a copy of the sums of each worker that has committed sums. All workers send at the same time.
    pub(super) fn gather(&self, bases: &[Option<Base>]) -> io::Result<()> {
        let workers = (0..self.setups.len()).filter(|&worker| bases.get(worker).is_some_and(Option::is_some));
        let streams: Vec<_> = workers.map(|worker| (worker, self.fetch(worker))).collect();
        for (worker, stream) in streams {
            self.receive(worker, stream)?;
        }
        Ok(())
    }

    /// Orders a worker to send its sums, as soon as it runs. Returns the stream on which they arrive.
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
            // Replace the worker: its successor has the same commit and sends it instead.
            self.replace(worker);
            stream = self.fetch(worker);
        }
        Err(io::Error::other("a worker died again and again"))
    }

    /// Kills a worker's process. Waits until another one runs or the ledger wants none.
    fn replace(&self, worker: usize) {
        let mut state = self.lock();
        let started = state.counts.started;
        state.running[worker].iter_mut().for_each(|line| line.kill());
        while !state.is_stopping && state.ledger.is_wanted(worker) && state.counts.started == started {
            state = self.wait(state);
        }
    }
}
