//! Tests of the masking TCP endpoint: with a scripted client (`client`), with honest senders over lossy links
//! (`world`), and with arbitrary input (`fuzz`).

#[path = "../../../wire/tests/fuzz/allocator.rs"]
mod allocator;
mod app;
mod choices;
mod client;
mod congestion;
mod estimator;
mod fuzz;
mod hostile;
mod properties;
#[path = "../../../proto/tests/machines/common/recorded.rs"]
mod recorded;
mod rounds;
mod sender;
mod states;
mod table;
mod traps;
mod wire;
mod witness;
mod world;

#[global_allocator]
static ALLOCATOR: allocator::Counting = allocator::Counting;
