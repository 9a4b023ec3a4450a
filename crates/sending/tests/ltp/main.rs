//! The loss-tolerant transport over seeded links (`world`): what loss costs (`table`), closing early,
//! reordering, peers that stop (`trouble`), links that are shared (`sharing`), repair packets (`repair`), bad
//! paths (`paths`).
#![allow(clippy::unwrap_used)] // a panic is how tests report

mod paths;
#[path = "../../../proto/tests/common/recorded.rs"]
mod recorded;
mod repair;
mod sharing;
mod table;
mod trouble;
mod world;
