//! Federated averaging in rounds: one server, many clients, one layout.
//!
//! A round's model is a parcel that is pushed to the clients that take part. Each answers with a parcel of the same
//! number, its update, which waits for a grant and is folded.
//!
//! ```text
//! server                                   client
//!   Challenge  ------------------------------>
//!   <------------------------------  Hello (proof, what it still holds)
//!   Welcome (number, layout)  --------------->
//!   Offer (configuration), chunks, End  ----->   into the arena, in place
//!   <------------------------------  Received (or Grant: holes)
//!                                            train
//!   <------------------------------  Offer (weight, metrics)
//!   Grant (ranges)  ------------------------->   when the staging budget admits it
//!   <------------------------------  chunks, End
//!   Accepted, once folded (or Grant: holes, Rejected, Closed) -->
//! ```
//!
//! A Grant of holes may also come while chunks are sent: what it is about follows them, and has an End of its own.

mod choice;
mod client;
mod credits;
mod order;
mod outcome;
mod round;
mod server;

pub use self::choice::Choice;
pub use self::client::{Client, RoundStep, Verdict};
pub use self::credits::Credits;
pub use self::order::{Fanout, Gather};
pub use self::outcome::{Outcome, Participation, State};
pub use self::round::{Ending, Partial, Round, RoundPlan};
pub use self::server::{Homes, Place, RoundAction, Server, ServerConfig, Stored};
