//! Federated averaging in rounds: one server, many clients, one layout.
//!
//! The server pushes a round's model as a parcel to the clients that take part. Each client answers with a
//! parcel of the same number, its update. The update waits for a grant, is received and is folded.
//!
//! ```text
//! server                                   client
//!   Challenge  ------------------------------>
//!   <------------------------------  Hello (proof, what it still holds)
//!   Welcome (number, layout)  --------------->
//!   Offer (configuration), chunks, End  ----->   into the arena, in place
//!   Grant, if there is a place for each client ->
//!   <------------------------------  Received (or Grant: holes)
//!                                            train
//!   <------------------------------  Offer (weight, metrics)
//!   Grant (ranges)  ------------------------->   when the staging budget admits it, if not granted above
//!   <------------------------------  chunks, End
//!   Accepted, once folded (or Grant: holes, Rejected, Closed) -->
//! ```
//!
//! With a Grant before its Offer, the client sends the update right after the Offer, which then says that it
//! is pushed. That saves a round trip. If the server then has no place, it drops the chunks and grants later.
//!
//! The server may send a Grant of lost ranges also while chunks arrive. The client sends these ranges after
//! the present ones, with an End of their own.
//!
//! If models are compressed on their way to the clients, each round has a [`Version`] of the model. A client that has
//! the version before gets only the difference from it, all others the whole model. The server knows of a client's
//! version by the client's Received. A process that starts anew has none.

mod choice;
mod client;
mod credits;
mod order;
mod outcome;
mod round;
mod server;

pub(crate) use self::choice::lot;
pub use self::choice::Choice;
pub use self::client::{Client, RoundStep, Verdict};
pub use self::credits::Credits;
pub use self::order::{Fanout, Gather};
pub use self::outcome::{Outcome, Participation, State};
pub use self::round::{Ending, Partial, Round, RoundPlan, Selection, Version};
pub use self::server::{Homes, Place, RoundAction, Server, ServerConfig, Stored};
