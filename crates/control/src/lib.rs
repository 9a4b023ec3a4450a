//! The control plane of aggregation trees, without IO or clock. It decides which node a client sends to, how
//! many workers a node needs, where the top is, and when to scale.
//!
//! Every decision is a function of the time, the state and the configuration, and comes with its reasons:
//! [`decide`] returns `(Plan, Reason)`. [`simulate`] runs the same decisions in virtual time.
//!
//! The source is LIFL (Qi et al. 2024), sections 5.1 to 5.4 and appendix E.

#![forbid(unsafe_code)]

pub mod admission;
pub mod autoscaler;
mod balance;
pub mod capacity;
mod config;
mod decide;
mod estimate;
pub mod heartbeat;
mod hierarchy;
mod placement;
mod planner;
mod reason;
pub mod reuse;
mod seconds;
pub mod simulate;
mod state;
pub mod tag;
mod top;

pub use balance::{Balance, BalanceConfig, Balancer, Measurement, Move, NodeLoad, Residual};
pub use config::{Config, Policy, Scaling, Split, Timing, TopPolicy};
pub use decide::decide;
pub use estimate::smoothed;
pub use hierarchy::{leaves_for, Shape};
pub use placement::Placer;
pub use planner::{Decision, Planner, Sample};
pub use reason::{Because, Reason, ReasonText};
pub use state::{Client, Node, NodeTree, Plan, State, Top};
pub use top::share;

/// Time since some fixed moment, on a monotonic clock. The caller passes the current time.
pub type Time = std::time::Duration;

/// How much a node holds or can hold at once, in thousandths of an update. Integers make every machine decide
/// alike.
pub type Load = u64;

/// The load of one update.
pub const UPDATE: Load = 1000;
