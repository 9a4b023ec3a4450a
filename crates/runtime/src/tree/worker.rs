//! The thread that works on bytes: it does one thing after the other, and reports to the driver.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use thalweg_arena::Arena;
use thalweg_wire::tree::{Bytes, Statement};

use super::folding::Folding;
use super::Event;
use crate::{Error, Kind};

/// Something to do with bytes.
pub(super) enum Work {
    /// Begin to add up sums of these bytes of updates, or of all.
    BeginSums(Option<Bytes>),
    /// Add the node's own sums. The result is [`Event::Merged`].
    MergeOwn { work: u32, claim: Statement },
    /// Add another node's sums. The result is [`Event::Merged`].
    Merge { work: u32, head: Vec<u8>, cells: Option<Arena>, claim: Statement },
    /// Compute the mean. The result is [`Event::Computed`].
    Compute { work: u32 },
    /// Write the saved bytes to the model again.
    Restore,
    /// Keep a part of a mean.
    Keep { part: Bytes, mean: Arena },
    /// Write the kept parts of a mean to the model.
    Adopt,
    /// Drop the kept parts of a mean, and the sums of a part.
    Drop,
    /// A round begins. `replaced`: the root has sent the model. Says whether all before was done.
    Begin { replaced: bool, done: Sender<Result<(), Error>> },
}

/// The thread, and what it is to do.
pub(super) struct Worker {
    works: Sender<Work>,
    thread: JoinHandle<()>,
}

impl Worker {
    /// # Errors
    /// `system` if no thread can be started.
    pub fn start(folding: Folding, events: Sender<Event>) -> Result<Self, Error> {
        let (works, wanted) = mpsc::channel();
        let thread = thread::Builder::new().name("tree-worker".into());
        let thread = thread.spawn(move || run(folding, &wanted, &events));
        let thread = thread.map_err(|e| Error::new(Kind::System, "start a thread", e.to_string()))?;
        Ok(Self { works, thread })
    }

    /// Has the thread do something, after all else.
    pub fn wants(&self, work: Work) {
        _ = self.works.send(work); // an error means that the thread has panicked, which was printed
    }

    /// Waits until all is done, and ends the thread.
    pub fn close(self) {
        let Self { works, thread } = self;
        drop(works);
        _ = thread.join(); // a panic was printed
    }
}

fn run(mut folding: Folding, wanted: &Receiver<Work>, events: &Sender<Event>) {
    // Why the model could not be written.
    let mut fault = None;
    while let Ok(work) = wanted.recv() {
        // An error of sending means that the node leaves the job.
        match work {
            Work::BeginSums(part) => folding.begin_sums(part),
            Work::MergeOwn { work, claim } => {
                let outcome = folding.merge_own(claim);
                _ = events.send(Event::Merged { work, outcome });
            }
            Work::Merge { work, head, cells, claim } => {
                let outcome = folding.merge(&head, cells.as_ref(), claim);
                _ = events.send(Event::Merged { work, outcome });
            }
            Work::Compute { work } => {
                let outcome = folding.compute();
                _ = events.send(Event::Computed { work, outcome });
            }
            Work::Restore => folding.restore(),
            Work::Keep { part, mean } => folding.keep(part, mean),
            Work::Adopt => fault = folding.adopt().err(),
            Work::Drop => folding.drop_parts(),
            Work::Begin { replaced, done } => {
                if replaced {
                    folding.replaced();
                }
                _ = done.send(fault.take().map_or(Ok(()), Err));
            }
        }
    }
}
