//! The client's side: receive tasks, and answer each.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use thalweg_wire::control::{Content, Control, Holding, Interval, Parcel, Purpose, MAX_HEAD, MAX_HOLES};
use thalweg_wire::text::{plain, MAX_REASON};
use thalweg_wire::{ChunkHeader, Layout, Ranges};

use super::Answer;
use crate::session::{ClientAction, ClientConfig, ClientMachine, Dial};
use crate::transfer::{ChunkReceiver, Incoming, Outgoing, Rule, Step};
use crate::{micros, Span, Time};

/// Maximum number of tasks that a client holds at once. A server normally gives it far fewer.
const MAX_TASKS: usize = 1024;

/// The end of a task, as the server tells the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskVerdict {
    /// The result was handed over to the server's application, or folded.
    Accepted,
    /// The server refused the result, for this reason.
    Rejected(String),
    /// The server does not want a result any more.
    Closed,
}

/// A request to a client's driver about a task.
#[derive(Debug)]
pub enum TaskStep {
    /// All bytes of a task have arrived.
    Ready {
        /// The task's number.
        task: u32,
        /// Bytes for the application.
        head: Vec<u8>,
        /// The layout of the task's tensors.
        layout: Arc<Layout>,
        /// The task's tensor bytes equal those of this earlier task, which the driver still has.
        same_as: Option<u32>,
        /// When the server wants the answer at the latest; `None`: no limit.
        deadline: Option<Time>,
    },
    /// A task is over. The driver no longer needs its result, nor the application's copy of the task.
    Over {
        /// The task's number.
        task: u32,
        /// How it ended.
        verdict: TaskVerdict,
    },
    /// The driver no longer needs the bytes of this task.
    Forget {
        /// The task's number.
        task: u32,
    },
}

/// The stage of a task.
#[derive(Debug)]
enum Stage {
    /// The task's bytes are being received.
    Receiving(Incoming),
    /// The application works on the task.
    Working,
    /// The result is offered, or is being sent.
    Answering { answer: Answer, out: Outgoing },
    /// The application has refused the task.
    Refusing { reason: String },
}

/// A task that the server has given.
#[derive(Debug)]
struct Given {
    head: Vec<u8>,
    layout: Arc<Layout>,
    deadline: Option<Time>,
    stage: Stage,
    /// When the task's first and last byte arrived, in microseconds.
    received: Interval,
    /// Chunks that arrived more than once.
    duplicates: u64,
}

/// The state machine of a client of tasks.
#[derive(Debug)]
pub struct TaskClient {
    dial: Dial<TaskStep>,
    /// Greatest size of a task, in bytes.
    max_bytes: u64,
    tasks: BTreeMap<u32, Given>,
    /// The last task whose bytes have all arrived. They are kept because later tasks may have the same bytes.
    kept: Option<u32>,
    /// The task whose result is being sent.
    sending: Option<u32>,
    /// Tasks whose granted results wait to be sent.
    waiting: VecDeque<u32>,
    rule: Rule,
}

impl TaskClient {
    /// Makes a client that connects at once. It takes tasks of at most `max_bytes` bytes each. `seed` spreads
    /// the retries of many clients.
    pub fn new(config: ClientConfig, purpose: Purpose, max_bytes: u64, seed: u64) -> Self {
        Self {
            dial: Dial::new(config, purpose, seed),
            max_bytes,
            tasks: BTreeMap::new(),
            kept: None,
            sending: None,
            waiting: VecDeque::new(),
            rule: Rule::default(),
        }
    }

    /// Handles an Offer of a task. After a broken link, the server offers its tasks again. It already knows
    /// the stage of a task that this client has.
    fn given(&mut self, now: Time, task: Parcel) {
        let number = task.number;
        if self.tasks.contains_key(&number) {
            return;
        }
        let layout = match self.acceptable(&task) {
            Ok(layout) => Arc::new(layout),
            Err(reason) => return self.dial.send(Control::Rejected { parcel: number, reason }),
        };
        let bytes = layout.bytes();
        let same_as = task.same_as.filter(|&same| bytes > 0 && self.kept == Some(same));
        let deadline = task.deadline.map(|within| now.saturating_add(Time::from_micros(within)));
        let mut incoming = Incoming::new(bytes);
        incoming.begin(self.dial.is_ordered());
        let stage = Stage::Receiving(incoming);
        let received = Interval { start: micros(now), end: micros(now) };
        let given = Given { head: task.head, layout, deadline, stage, received, duplicates: 0 };
        self.tasks.insert(number, given);
        if bytes == 0 || same_as.is_some() {
            self.here(number, same_as);
        } else if !task.pushed {
            self.dial.send(Control::Grant { parcel: number, wanted: Ranges::full(bytes) });
        }
    }

    fn acceptable(&self, task: &Parcel) -> Result<Layout, String> {
        if self.tasks.len() >= MAX_TASKS {
            return Err(format!("has {MAX_TASKS} tasks already"));
        }
        let layout = task.content.layout(&Layout::default()).map_err(|error| error.to_string())?;
        let (bytes, most) = (layout.bytes(), self.max_bytes);
        if bytes > most {
            return Err(format!("takes tasks of at most {most} bytes, and this one has {bytes}"));
        }
        Ok(layout)
    }

    fn ended(&mut self, now: Time, number: u32) {
        let Some(Given { stage: Stage::Receiving(incoming), .. }) = self.tasks.get_mut(&number) else {
            return;
        };
        if incoming.ended(now) {
            self.conclude(now, number);
        }
    }

    fn conclude(&mut self, now: Time, number: u32) {
        let Some(Given { stage: Stage::Receiving(incoming), .. }) = self.tasks.get_mut(&number) else {
            return;
        };
        match incoming.conclude(now, &self.rule) {
            Step::Wait => {}
            Step::Ask(wanted) => self.dial.send(Control::Grant { parcel: number, wanted }),
            Step::Here(_) => self.here(number, None),
        }
    }

    /// Hands a task over to the application, since all its bytes have arrived.
    fn here(&mut self, number: u32, same_as: Option<u32>) {
        let Some(given) = self.tasks.get_mut(&number) else { return };
        if let Stage::Receiving(incoming) = &given.stage {
            if let Some(span) = incoming.span() {
                given.received = Interval { start: micros(span.start), end: micros(span.end) };
            }
            given.duplicates = incoming.reassembly().faults().0;
        }
        given.stage = Stage::Working;
        let (head, layout) = (std::mem::take(&mut given.head), given.layout.clone());
        let deadline = given.deadline;
        let message = received(number, given.received, given.duplicates);
        let has_bytes = layout.bytes() > 0;
        self.dial.send(message);
        self.dial.want(TaskStep::Ready { task: number, head, layout, same_as, deadline });
        if has_bytes {
            if let Some(before) = self.kept.replace(number) {
                self.forget(before);
            }
        }
    }

    /// Tells the driver to free a task's bytes, unless the task is open or its bytes are the last ones.
    fn forget(&mut self, number: u32) {
        if self.kept != Some(number) && !self.tasks.contains_key(&number) {
            self.dial.want(TaskStep::Forget { task: number });
        }
    }

    /// Whether a task was given and is not over.
    pub fn is_open(&self, number: u32) -> bool {
        self.tasks.contains_key(&number)
    }

    /// Answers a task with the application's result.
    ///
    /// # Errors
    /// If the task was not handed out or is over, the head is too long, or the weight is negative or not
    /// finite.
    pub fn answer(&mut self, number: u32, answer: Answer) -> Result<(), String> {
        if answer.head.len() > MAX_HEAD {
            let bytes = answer.head.len();
            return Err(format!("a head of {bytes} bytes is over {MAX_HEAD}; send it as a tensor"));
        }
        if !(answer.weight.is_finite() && answer.weight >= 0.0) {
            return Err(format!("{} is no weight; use a number that is not negative", answer.weight));
        }
        let given = self.working(number)?;
        let message = offer(number, &answer, &given.layout);
        given.stage = Stage::Answering { answer, out: Outgoing::default() };
        self.dial.send(message);
        Ok(())
    }

    /// Tells the server that the application has no result, for this reason.
    ///
    /// # Errors
    /// If the task was not handed out, or is over.
    pub fn refuse(&mut self, number: u32, reason: &str) -> Result<(), String> {
        let given = self.working(number)?;
        let reason = plain(reason, MAX_REASON);
        given.stage = Stage::Refusing { reason: reason.clone() };
        self.dial.send(Control::Rejected { parcel: number, reason });
        Ok(())
    }

    fn working(&mut self, number: u32) -> Result<&mut Given, String> {
        let given = self.tasks.get_mut(&number).filter(|given| matches!(given.stage, Stage::Working));
        given.ok_or_else(|| {
            format!("task {number} is not being worked on: it is over, or was answered before")
        })
    }

    fn granted(&mut self, number: u32, wanted: &Ranges) {
        if let Some(Given { stage: Stage::Answering { out, .. }, .. }) = self.tasks.get_mut(&number) {
            out.grant(wanted);
            if self.sending != Some(number) && !self.waiting.contains(&number) {
                self.waiting.push_back(number);
            }
            self.send_next();
        }
    }

    /// Sends the next granted ranges, if nothing is being sent.
    fn send_next(&mut self) {
        while self.sending.is_none() {
            let Some(number) = self.waiting.pop_front() else { return };
            let given = self.tasks.get_mut(&number);
            let Some(Given { stage: Stage::Answering { out, .. }, .. }) = given else { continue };
            if let Some(wanted) = out.next() {
                self.sending = Some(number);
                self.dial.act(ClientAction::SendParcel { parcel: number, wanted });
            }
        }
    }

    /// Ends a task, as the server says.
    fn over(&mut self, number: u32, verdict: TaskVerdict) {
        if self.tasks.remove(&number).is_none() {
            return;
        }
        self.waiting.retain(|&waiting| waiting != number);
        if self.sending == Some(number) {
            self.dial.act(ClientAction::Cancel { parcel: Some(number) });
        }
        self.dial.want(TaskStep::Over { task: number, verdict });
        self.forget(number);
    }

    fn settling(&self) -> impl Iterator<Item = (Time, u32)> + '_ {
        self.tasks.iter().filter_map(|(&number, given)| match &given.stage {
            Stage::Receiving(incoming) => incoming.settle().map(|at| (at, number)),
            _ => None,
        })
    }
}

impl ClientMachine for TaskClient {
    type Wanted = TaskStep;

    fn dial(&self) -> Option<&Dial<TaskStep>> {
        Some(&self.dial)
    }

    fn dial_mut(&mut self) -> Option<&mut Dial<TaskStep>> {
        Some(&mut self.dial)
    }

    fn holding(&self) -> Holding {
        Holding::Nothing
    }

    /// Tells the server the stage of each task, after a reconnection.
    fn welcomed(&mut self, _now: Time) {
        let ordered = self.dial.is_ordered();
        for (&number, given) in &mut self.tasks {
            let message = match &mut given.stage {
                Stage::Receiving(incoming) => {
                    incoming.begin(ordered);
                    Control::Grant { parcel: number, wanted: incoming.reassembly().holes().first(MAX_HOLES) }
                }
                Stage::Working => received(number, given.received, given.duplicates),
                Stage::Answering { answer, .. } => offer(number, answer, &given.layout),
                Stage::Refusing { reason } => Control::Rejected { parcel: number, reason: reason.clone() },
            };
            self.dial.send(message);
        }
    }

    fn message(&mut self, now: Time, message: Control) {
        match message {
            Control::Offer(task) => self.given(now, task),
            Control::End { parcel, .. } => self.ended(now, parcel),
            Control::Grant { parcel, wanted } => self.granted(parcel, &wanted),
            Control::Accepted { parcel } => self.over(parcel, TaskVerdict::Accepted),
            Control::Rejected { parcel, reason } => self.over(parcel, TaskVerdict::Rejected(reason)),
            Control::Closed { parcel } => self.over(parcel, TaskVerdict::Closed),
            _ => {}
        }
    }

    fn link_lost(&mut self, _now: Time, _reason: &str) {
        self.sending = None;
        self.waiting.clear();
        for given in self.tasks.values_mut() {
            match &mut given.stage {
                Stage::Receiving(incoming) => incoming.stop(),
                Stage::Answering { out, .. } => out.forget(),
                Stage::Working | Stage::Refusing { .. } => {}
            }
        }
    }

    fn next_timer(&self) -> Option<Time> {
        self.settling().map(|(at, _)| at).min()
    }

    fn timers_due(&mut self, now: Time) {
        let due: Vec<u32> = self.settling().filter(|(at, _)| now >= *at).map(|(_, n)| n).collect();
        due.into_iter().for_each(|number| self.conclude(now, number));
    }

    fn sent(&mut self, _now: Time, number: u32, outcome: Result<Span, String>) {
        if self.sending != Some(number) {
            return; // belongs to a link that is over
        }
        self.sending = None;
        if let Some(Given { stage: Stage::Answering { out, .. }, .. }) = self.tasks.get_mut(&number) {
            match outcome {
                Ok(span) => out.sent(number, span).for_each(|end| self.dial.send(end)),
                Err(_) => out.forget(),
            }
            if out.is_granted() {
                self.waiting.push_back(number);
            }
        }
        self.send_next();
    }
}

impl ChunkReceiver for TaskClient {
    fn receiving(&mut self, chunk: &ChunkHeader) -> Option<&mut Incoming> {
        let job = self.dial.welcome()?.job;
        let given = self.tasks.get_mut(&chunk.round)?;
        let ours = chunk.job == job && chunk.sender == 0 && chunk.layout == given.layout.hash();
        match &mut given.stage {
            Stage::Receiving(incoming) if ours => Some(incoming),
            _ => None,
        }
    }
}

fn received(parcel: u32, received: Interval, duplicates: u64) -> Control {
    Control::Received { parcel, received, duplicates, missing: 0 }
}

fn offer(number: u32, answer: &Answer, base: &Layout) -> Control {
    Control::Offer(Parcel {
        number,
        pushed: false,
        head: answer.head.clone(),
        content: Content::of(&answer.layout, base),
        same_as: None,
        weight: answer.weight,
        deadline: None,
    })
}
