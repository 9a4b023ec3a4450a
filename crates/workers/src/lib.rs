//! A node's workers (LIFL sections 4.1, 5.1 and appendix G): leaf processes that fold the objects of the node's pool into
//! sums, which they keep in memory that they share with the node.
//!
//! ```text
//! node      pool (writes)  --- object --->  workers (read)       memory file 1, only the node writes
//!           mean (reads)   <--- sums -----  workers (write)      a memory file for each worker: slots A and B
//!           ledger         <--- notes ---> workers               64 bytes each, over AF_UNIX or inside the kernel
//! ```
//!
//! | file | what |
//! |---|---|
//! | `ledger/` | who was given what, who has folded it, what is committed; decides, without IO |
//! | `worker_pool/` | drives the ledger: a thread for each worker, which starts it again when it dies |
//! | `worker/` | what runs in a worker's process |
//! | `launch.rs`, `template.rs` | starts worker processes, or has them forked |
//! | `copying.rs` | copies bytes to and from workers, as the systems do that the pool is compared with |
//! | `routes/` | takes notes from process to process inside the kernel, where that is allowed |
//! | `note.rs`, `setup.rs`, `hearing.rs` | what node and worker say to each other, and in which order it is heard |
//!
//! **Exactly once.** An object stays in the pool until the sums that it is in are committed. A worker has two slots for sums.
//! It folds into one while the other holds its last commit, which it does not touch. One that dies is replaced by a process
//! that takes over the commit where it lies, and folds again what was given since.
#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]

mod clock;
mod copying;
mod hearing;
mod launch;
mod ledger;
mod note;
mod routes;
mod setup;
mod template;
mod worker;
mod worker_pool;

pub use copying::{hop, Carriage, DataPlane};
pub use launch::{Launched, Launcher, Origin, Process, Program};
pub use ledger::{Action, Base, Ledger, Lie, Order, Split};
pub use note::{Kind, Note, NOTE_BYTES};
pub use routes::{Count, NodeRoutes, Routes};
pub use template::{asked, forked, Template};
pub use worker::{work, work_with, Step};
pub use worker_pool::{
    Counts, Doing, Handovers, Start, Stretch, Timeline, WorkerPool, WorkerPoolConfig, HANDOVER_BOUNDS,
};
