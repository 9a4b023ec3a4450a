//! One member's part in a task.

use std::sync::Arc;

use serde::Serialize;
use thalweg_wire::Layout;

use crate::transfer::{Incoming, Outgoing};
use crate::{Direction, Time, Transfer};

/// How a member's part in a task ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplyState {
    /// Its result was handed over, or folded.
    Done,
    /// The member said that there will be no result, or its result could not be used.
    Failed,
    /// It was away, or its process ended.
    Lost,
    /// It had not answered by the deadline.
    Late,
    /// Nobody wants the result any more.
    Cancelled,
}

/// What a member sends back, but for its bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// For the application.
    pub head: Vec<u8>,
    /// Of its tensors.
    pub layout: Arc<Layout>,
    /// How much it counts in a mean.
    pub weight: f64,
}

/// One member's part in a task, when it is over.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The task.
    pub task: u32,
    /// The member's number, under which the bytes of its result are kept.
    pub sender: u32,
    /// Its name.
    pub member: String,
    /// How it ended.
    pub state: ReplyState,
    /// Why, if it is not done.
    pub reason: Option<String>,
    /// Its result, if it is done.
    pub answer: Option<Answer>,
    /// How much of the result's tensors came, 0 to 1: less than 1 only where something may be missing. 0 if it is not done.
    pub coverage: f64,
    /// The task's way to it, and the result's way back.
    pub transfers: Vec<Transfer>,
}

/// How far a part has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// It waits until the member is there and has fewer tasks.
    Queued,
    /// The task is on its way to the member.
    Sending,
    /// The member has it.
    Working,
    /// Its result waits for room.
    Offered,
    /// Its result is on its way.
    Returning,
    /// Its result is here and is being folded.
    Staged,
}

impl Stage {
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

/// Where the application's judgement of an offered result stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judgement {
    /// It was not asked.
    Unasked,
    /// It was asked, and has not answered.
    Pending,
    /// It was asked about an earlier offer, of a process of the member that has ended, and has not answered.
    Outdated,
    /// It accepts the result.
    Accepted,
}

impl Judgement {
    /// The state for a new process of the member. The application gets one question at a time, so a pending one must be
    /// answered before the next.
    pub fn outdated(self) -> Self {
        match self {
            Self::Pending | Self::Outdated => Self::Outdated,
            Self::Unasked | Self::Accepted => Self::Unasked,
        }
    }
}

#[derive(Debug)]
pub(super) struct Part {
    pub stage: Stage,
    /// Since when its member has been away.
    pub away: Option<Time>,
    /// The process that was given the task.
    pub instance: Option<u64>,
    /// It was offered to that process before.
    pub known: bool,
    pub out: Outgoing,
    pub sent_at: Time,
    /// The member offered a result, and waits to hear what became of it.
    pub offered: bool,
    pub answer: Option<Answer>,
    pub judgement: Judgement,
    pub incoming: Incoming,
    /// Bytes of staging that it has.
    pub room: u64,
    pub down: Transfer,
    pub up: Transfer,
}

impl Part {
    pub fn new(task: u32, member: &str) -> Self {
        Self {
            stage: Stage::Queued,
            away: None,
            instance: None,
            known: false,
            out: Outgoing::default(),
            sent_at: Time::ZERO,
            offered: false,
            answer: None,
            judgement: Judgement::Unasked,
            incoming: Incoming::new(0),
            room: 0,
            down: Transfer::new(task, member, Direction::Down),
            up: Transfer::new(task, member, Direction::Up),
        }
    }

    /// Whether anything of its result may be kept somewhere.
    pub fn is_begun(&self) -> bool {
        self.incoming.came().total() > 0
    }

    /// What is recorded of its ways, once it is over.
    pub fn transfers(&mut self) -> Vec<Transfer> {
        let came = self.incoming.came();
        (self.up.bytes, self.up.receive, self.up.complete) = (came.bytes(), came.span(), came.is_whole());
        if self.stage == Stage::Staged {
            (self.up.missing, self.up.holes) = (came.total() - came.bytes(), came.holes());
        }
        (self.up.duplicates, self.up.corrupt) = came.faults();
        let moved = |transfer: &&Transfer| transfer.span().is_some() || transfer.wire_bytes > 0;
        [&self.down, &self.up].into_iter().filter(moved).cloned().collect()
    }
}
