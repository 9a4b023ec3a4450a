//! One member's part in a task: its stage, its result and how it ended.

use std::sync::Arc;

use serde::Serialize;
use thalweg_wire::Layout;

use crate::transfer::{Incoming, Outgoing};
use crate::{Direction, Time, TransferReport};

/// How a member's part in a task ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplyState {
    /// The result was handed over, or folded.
    Done,
    /// The member said that there will be no result, or its result could not be used.
    Failed,
    /// The member was away for too long, or its process ended.
    Lost,
    /// The member had not answered by the deadline.
    Late,
    /// The task was cancelled.
    Cancelled,
}

/// A member's result, without its bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// Bytes for the application.
    pub head: Vec<u8>,
    /// The layout of the result's tensors.
    pub layout: Arc<Layout>,
    /// The result's weight in a mean.
    pub weight: f64,
}

/// The report of one member's part in a task, when that part is over.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The task's number.
    pub task: u32,
    /// The member's number. The driver keeps the result's bytes under this number.
    pub sender: u32,
    /// The member's name.
    pub member: String,
    /// How the part ended.
    pub state: ReplyState,
    /// Why it did not end as `Done`.
    pub reason: Option<String>,
    /// The result, if the part ended as `Done`.
    pub answer: Option<Answer>,
    /// The fraction of the result's tensor bytes that arrived, 0 to 1. It is less than 1 only if bytes may be
    /// missing. 0 if the part did not end as `Done`.
    pub coverage: f64,
    /// The reports of the task's transfer to the member and of the result's transfer back.
    pub transfers: Vec<TransferReport>,
}

/// The stage of a part. Later stages compare as greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// The task waits until the member is connected and has fewer tasks.
    Queued,
    /// The server is sending the task to the member.
    Sending,
    /// The member has the task and works on it.
    Working,
    /// The result waits for the judge or for staging memory.
    Offered,
    /// The member is sending the result.
    Returning,
    /// The result is received and is being folded.
    Staged,
}

impl Stage {
    /// What the member is doing, for an error message.
    pub fn doing(self) -> &'static str {
        match self {
            Self::Queued => "not there, or busy with other tasks",
            Self::Sending => "receiving the task",
            Self::Working => "working",
            Self::Offered => "waiting to send its result",
            Self::Returning => "sending its result",
            Self::Staged => "being folded",
        }
    }
}

/// Whether the application has judged the offered result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judgement {
    /// The application was not asked.
    Unasked,
    /// The application was asked, and has not answered.
    Pending,
    /// The application was asked about an earlier offer, by a process of the member that has ended, and has
    /// not answered.
    Outdated,
    /// The application accepts the result.
    Accepted,
}

impl Judgement {
    /// The state for a new process of the member. The application gets one question at a time, so it must
    /// answer a pending one before the next.
    pub fn outdated(self) -> Self {
        match self {
            Self::Pending | Self::Outdated => Self::Outdated,
            Self::Unasked | Self::Accepted => Self::Unasked,
        }
    }
}

/// The state of one member's part in a task.
#[derive(Debug)]
pub(super) struct Part {
    pub stage: Stage,
    /// Since when the member has been away; `None` while it is connected.
    pub away: Option<Time>,
    /// The random number of the process that was given the task.
    pub instance: Option<u64>,
    /// The task was already offered to that process.
    pub task_offered: bool,
    /// The task while it is sent to the member.
    pub out: Outgoing,
    /// When the present sending began.
    pub sent_at: Time,
    /// The member has offered a result, and waits for an answer.
    pub offered: bool,
    pub answer: Option<Answer>,
    pub judgement: Judgement,
    /// The result while it is received.
    pub incoming: Incoming,
    /// Bytes of staging memory that the result has.
    pub staged_bytes: u64,
    /// The report of the task's transfer to the member.
    pub down: TransferReport,
    /// The report of the result's transfer from the member.
    pub up: TransferReport,
}

impl Part {
    pub fn new(task: u32, member: &str) -> Self {
        Self {
            stage: Stage::Queued,
            away: None,
            instance: None,
            task_offered: false,
            out: Outgoing::default(),
            sent_at: Time::ZERO,
            offered: false,
            answer: None,
            judgement: Judgement::Unasked,
            incoming: Incoming::new(0),
            staged_bytes: 0,
            down: TransferReport::new(task, member, Direction::Down),
            up: TransferReport::new(task, member, Direction::Up),
        }
    }

    /// Whether the driver may hold bytes of the result.
    pub fn is_begun(&self) -> bool {
        self.incoming.reassembly().total() > 0
    }

    /// The reports of the part's transfers, once it is over.
    pub fn transfers(&mut self) -> Vec<TransferReport> {
        let reassembly = self.incoming.reassembly();
        (self.up.bytes, self.up.receive, self.up.complete) =
            (reassembly.bytes(), reassembly.span(), reassembly.is_whole());
        if self.stage == Stage::Staged {
            (self.up.missing, self.up.holes) = (reassembly.total() - reassembly.bytes(), reassembly.holes());
        }
        (self.up.duplicates, self.up.corrupt) = reassembly.faults();
        let moved = |transfer: &&TransferReport| transfer.span().is_some() || transfer.wire_bytes > 0;
        [&self.down, &self.up].into_iter().filter(moved).cloned().collect()
    }
}
