//! Tests of LTP over seeded links (`world`): the cost of loss (`table`), early closing, reordering and peers
//! that stop (`trouble`), links shared by senders (`sharing`), repair packets (`repair`), bad paths
//! (`paths`).
#![allow(clippy::unwrap_used)] // a panic is how tests report

mod paths;
#[path = "../../../proto/tests/machines/common/recorded.rs"]
mod recorded;
mod repair;
mod sharing;
mod table;
mod trouble;
mod world;
