//! The reasons of a decision, as data and in words.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::{Load, Policy, Time, UPDATE};

/// All reasons of a decision, in the order of its steps.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Reason(pub Vec<Because>);

impl Reason {
    /// Each reason as data together with its words.
    pub fn texts(&self) -> Vec<ReasonText<'_>> {
        self.0.iter().map(|because| ReasonText { because, text: because.to_string() }).collect()
    }
}

/// A reason as data, and its words.
#[derive(Debug, Serialize)]
pub struct ReasonText<'a> {
    #[serde(flatten)]
    because: &'a Because,
    text: String,
}

/// A reason of a decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[allow(missing_docs)] // `Display` below says what each means
pub enum Because {
    Lost {
        node: u32,
        #[serde(with = "crate::seconds")]
        silent: Duration,
    },
    NoNodes,
    NoNodeForGroup {
        group: u32,
        clients: u32,
    },
    Kept {
        clients: u32,
    },
    NoLongerFit {
        clients: u32,
    },
    Homeless {
        clients: u32,
    },
    Placed {
        clients: u32,
        nodes: u32,
        policy: Policy,
    },
    Overflow {
        clients: u32,
        nodes: u32,
        room: Load,
    },
    NotYet {
        #[serde(with = "crate::seconds")]
        next: Time,
    },
    Single {
        node: u32,
        queue: Load,
    },
    Leaves {
        node: u32,
        queue: Load,
        estimate: Load,
        inputs: u32,
        leaves: u32,
    },
    Capped {
        node: u32,
        wanted: u32,
        workers: u32,
    },
    Held {
        node: u32,
        needed: u32,
        leaves: u32,
        plans: u32,
    },
    Ranges {
        node: u32,
        workers: u32,
    },
    Fixed {
        node: u32,
        workers: u32,
    },
    Autoscaled {
        node: u32,
    },
    OneNode {
        node: u32,
    },
    FirstFinished {
        nodes: u32,
    },
    Dedicated {
        node: u32,
    },
    Sharded {
        nodes: u32,
    },
}

/// Displays a load in updates: 20, or 17.5.
struct Updates(Load);

impl fmt::Display for Updates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0 / UPDATE)?;
        match self.0 % UPDATE {
            0 => Ok(()),
            rest => write!(f, ".{}", format!("{rest:03}").trim_end_matches('0')),
        }
    }
}

/// Displays a count with its noun: 1 node, 2 nodes.
struct Count(u32, &'static str);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}", self.0, self.1, if self.0 == 1 { "" } else { "s" })
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BestFit => "best fit: the fullest node with room",
            Self::WorstFit => "worst fit: the emptiest node",
            Self::FirstFit => "first fit: the first node with room",
        })
    }
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost { node, silent } => write!(f, "node {node} is lost: not heard for {:.1} s", silent.as_secs_f64()),
            Self::NoNodes => write!(f, "no node is there, so no client has one"),
            Self::NoNodeForGroup { group, clients } => {
                write!(f, "{} of group {group} without a node: none that is there serves it", Count(*clients, "client"))
            }
            Self::Kept { clients } => write!(f, "{} stay at their node, where they fit", Count(*clients, "client")),
            Self::NoLongerFit { clients } => write!(f, "{} without room where they were", Count(*clients, "client")),
            Self::Homeless { clients } => write!(f, "{} without their node, which is lost or not for them", Count(*clients, "client")),
            Self::Placed { clients, nodes, policy } => write!(f, "{} placed on {} by {policy}", Count(*clients, "client"), Count(*nodes, "node")),
            Self::Overflow { clients, nodes, room } => write!(
                f,
                "{} without room anywhere placed on {} by worst fit; the largest room left was {}",
                Count(*clients, "client"),
                Count(*nodes, "node"),
                Updates(*room)
            ),
            Self::NotYet { next } => {
                write!(f, "hierarchies stay as they are until {:.1} s, when they are planned again", next.as_secs_f64())
            }
            Self::Single { node, queue } => {
                write!(f, "node {node}: one worker, for a queue of {} is no more than a leaf's share", Updates(*queue))
            }
            Self::Leaves { node, queue, estimate, inputs, leaves } => write!(
                f,
                "node {node}: {leaves} leaves and a middle, for a smoothed queue of {} (now {}) at {inputs} a leaf",
                Updates(*estimate),
                Updates(*queue)
            ),
            Self::Capped { node, wanted, workers } => {
                write!(f, "node {node}: {workers} leaves and no more, though the queue asks for {wanted}")
            }
            Self::Held { node, needed, leaves, plans } => {
                write!(f, "node {node}: {leaves} leaves stay, though {needed} would do now: one of the last {plans} plans needed them")
            }
            Self::Ranges { node, workers: 1 } => write!(f, "node {node}: one worker folds all bytes of each update"),
            Self::Ranges { node, workers } => {
                write!(f, "node {node}: {workers} workers, each for its range of the bytes of all updates")
            }
            Self::Fixed { node, workers } => write!(f, "node {node}: {}, always", Count(*workers, "fixed worker")),
            Self::Autoscaled { node } => write!(f, "node {node}: the autoscaler starts workers when requests come"),
            Self::OneNode { node } => write!(f, "the top is at node {node}: no other has clients"),
            Self::FirstFinished { nodes } => write!(f, "the top is at whichever of {nodes} nodes finishes first"),
            Self::Dedicated { node } => write!(f, "the top is at node {node}, which takes no clients"),
            Self::Sharded { nodes } => write!(f, "each of {nodes} nodes is the top for 1/{nodes} of the bytes"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = self.0.iter();
        lines.next().map_or(Ok(()), |first| write!(f, "{first}"))?;
        lines.try_for_each(|line| write!(f, "\n{line}"))
    }
}
