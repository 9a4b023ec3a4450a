//! Tasks: the server sends a head and tensors to named members, and each answers with a result of its own layout.
//!
//! Many tasks are open at once. A task and its results are parcels of the same number. Results are folded, or handed over
//! one by one. Of results that are folded something may be missing ([`TaskPlan::missing`]). Whatever happens to a member, its
//! part of a task ends in a state with a reason.
//!
//! ```text
//! server                                   client
//!   Offer (head, layout), chunks, End  ----->
//!   <------------------------------  Received (or Grant: holes)
//!                                            works
//!   <------------------------------  Offer (head, layout, weight), or Rejected (reason)
//!   Grant (ranges)  ------------------------->   when the application takes head and weight, and there is room
//!   <------------------------------  chunks, End
//!   Accepted  ------------------------------->   (or Rejected, or Closed: nobody wants it any more)
//! ```
//!
//! After a broken link both say where they are: the client repeats Grant (what it lacks), Received or Offer for each task
//! that it has; the server offers again what the client may not have heard of. What the server does not know is Closed.

mod client;
mod part;
mod server;

pub use self::client::{TaskClient, TaskStep, TaskVerdict};
pub use self::part::{Answer, Reply, ReplyState};
pub use self::server::{TaskAction, TaskConfig, TaskPlace, TaskPlan, TaskServer};
