//! Tasks: the server sends a head and tensors to named members, and each member answers with a result that
//! has a layout of its own.
//!
//! Many tasks are open at the same time. A task and its results are parcels of the same number. Results are
//! folded, or handed over one by one. Folded results may have missing bytes, as far as [`TaskPlan::missing`]
//! allows. Whatever happens to a member, its part of a task ends in a state with a reason.
//!
//! ```text
//! server                                   client
//!   Offer (head, layout), chunks, End  ----->
//!   <------------------------------  Received (or Grant: holes)
//!                                            works
//!   <------------------------------  Offer (head, layout, weight), or Rejected (reason)
//!   Grant (ranges)  ------------------------->   once the judge accepts it and there is memory
//!   <------------------------------  chunks, End
//!   Accepted  ------------------------------->   (or Rejected, or Closed: the result is not wanted any more)
//! ```
//!
//! After a reconnection, both ends repeat the stage of each task. For each of its tasks the client sends a
//! Grant (the ranges that it lacks), a Received or an Offer. The server offers again the tasks that the
//! client may not have received. It answers with Closed if it does not know a task.

mod client;
mod part;
mod server;

pub use self::client::{TaskClient, TaskStep, TaskVerdict};
pub use self::part::{Answer, Reply, ReplyState};
pub use self::server::{TaskAction, TaskConfig, TaskPlace, TaskPlan, TaskServer};
