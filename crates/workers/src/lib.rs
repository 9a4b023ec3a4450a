//! The workers of a tree's node (LIFL, sections 4.1 and 5.1 and appendix G). A worker is a process that folds
//! the objects of the node's pool into sums. The sums lie in memory that the worker shares with the node.
//!
//! ```text
//! node      pool (writes)  --- object --->  workers (read)       a memory file that only the node writes
//!           mean (reads)   <--- sums -----  workers (write)      a memory file per worker: slots A and B
//!           ledger         <--- notes ---> workers               64 bytes each, by AF_UNIX or the kernel
//! ```
//!
//! | file | what |
//! |---|---|
//! | `ledger/` | which worker was given, has folded and has committed which update; decides, without IO |
//! | `worker_pool/` | drives the ledger: one thread for each worker, which restarts the worker's process |
//! | `worker/` | what runs in a worker's process |
//! | `launch.rs`, `template.rs` | starts worker processes, directly or by a template that forks them |
//! | `data_plane.rs` | how updates and sums get between node and workers |
//! | `copying.rs` | copies updates and sums through sockets: baselines that the pool is compared with |
//! | `routes/` | sends notes from process to process inside the kernel, where the system allows that |
//! | `note.rs`, `setup.rs`, `hearing.rs` | messages between node and worker, and the order of reading |
//!
//! **Exactly once.** An object stays in the pool until the sums that contain it are committed. A worker has
//! two slots for sums. It folds into one slot and does not touch the other, which holds its last commit. If a
//! worker dies, a new process takes over the commit in place and folds again all updates that were given
//! since.
#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]

mod clock;
#[cfg_attr(not(feature = "baselines"), path = "no_copying.rs")]
mod copying;
mod data_plane;
mod hearing;
mod launch;
mod ledger;
mod note;
mod routes;
mod setup;
mod template;
mod worker;
mod worker_pool;

pub use copying::hop;
pub use data_plane::{Carriage, DataPlane};
pub use launch::{Launched, Launcher, Origin, Process, Program};
pub use ledger::{Action, Base, Ledger, Lie, Middle, Order, Split};
pub use note::{Kind, Note, NOTE_BYTES};
pub use routes::{Count, NodeRoutes, Routes};
pub use template::{forked, next_request, Template};
pub use worker::{work, work_with, Step};
pub use worker_pool::{
    Counts, Doing, Handovers, Plans, Start, Stretch, Timeline, WorkerPool, WorkerPoolConfig, HANDOVER_BOUNDS,
};
