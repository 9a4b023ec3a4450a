//! The client's side: tasks come in, and each is answered.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use thalweg_wire::control::{
    Content, Control, Holding, Interval, Parcel, Proof, Purpose, MAX_HEAD, MAX_HOLES,
};
use thalweg_wire::text::{plain, MAX_REASON};
use thalweg_wire::{ChunkHeader, Layout, Range, Ranges};

use super::Answer;
use crate::session::{dial_methods, ClientAction, ClientConfig, Dial};
use crate::transfer::{Incoming, Outgoing, Rule, Step};
use crate::{micros, Fit, Span, Time};

/// Most tasks that a client holds at once. A server gives it far fewer.
const MAX_GIVEN: usize = 1024;

/// What became of a task, as its client hears it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskVerdict {
    /// The result was handed over, or folded.
    Accepted,
    /// The result was refused.
    Rejected(String),
    /// Nobody wants a result any more.
    Closed,
}

/// What tasks ask of a client's driver.
#[derive(Debug)]
pub enum TaskStep {
    /// A task is here.
    Ready {
        /// Its number.
        task: u32,
        /// For the application.
        head: Vec<u8>,
        /// Of its tensors.
        layout: Arc<Layout>,
        /// Its bytes are those of this earlier task, which the driver still has.
        same_as: Option<u32>,
        /// Until when an answer is wanted.
        deadline: Option<Time>,
    },
    /// A task is over: its result, and what the application was told of it, is needed no longer.
    Over {
        /// Its number.
        task: u32,
        /// How it ended.
        verdict: TaskVerdict,
    },
    /// The bytes of this task are needed no longer.
    Forget {
        /// Its number.
        task: u32,
    },
}

#[derive(Debug)]
enum Stage {
    /// Its bytes are on their way.
    Receiving(Incoming),
    /// It is with the application.
    Working,
    /// Its result is offered, or on its way.
    Answering { answer: Answer, out: Outgoing },
    /// There will be no result.
    Refusing { reason: String },
}

#[derive(Debug)]
struct Given {
    head: Vec<u8>,
    layout: Arc<Layout>,
    deadline: Option<Time>,
    stage: Stage,
    received: Interval,
    duplicates: u64,
}

/// The state machine of a client of tasks.
#[derive(Debug)]
pub struct TaskClient {
    dial: Dial<TaskStep>,
    max_bytes: u64,
    tasks: BTreeMap<u32, Given>,
    /// The last task whose bytes are all here, for later ones that have the same.
    kept: Option<u32>,
    /// The result that is being sent, and those that wait for that.
    sending: Option<u32>,
    waiting: VecDeque<u32>,
    rule: Rule,
}

impl TaskClient {
    dial_methods!(TaskStep);

    /// A client that wants to connect at once, for tasks or as a node of a tree, and takes tasks of at most `max_bytes`
    /// bytes each.
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

    fn link_lost(&mut self) {
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

    /// The proof is made, or none was wanted.
    pub fn proven(&mut self, now: Time, proof: Option<Proof>) {
        self.dial.proven(now, proof, Holding::Nothing);
    }

    fn told(&mut self, now: Time, message: Control) {
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

    /// After a link was made anew the server hears how far each task is.
    fn welcomed(&mut self) {
        let ordered = self.dial.is_ordered();
        for (&number, given) in &mut self.tasks {
            let message = match &mut given.stage {
                Stage::Receiving(incoming) => {
                    incoming.begin(ordered);
                    Control::Grant { parcel: number, wanted: incoming.came().holes().first(MAX_HOLES) }
                }
                Stage::Working => received(number, given.received, given.duplicates),
                Stage::Answering { answer, .. } => offer(number, answer, &given.layout),
                Stage::Refusing { reason } => Control::Rejected { parcel: number, reason: reason.clone() },
            };
            self.dial.send(message);
        }
    }

    /// The server gives a task. One that is known is offered again after a broken link; it was told how far it is.
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
        if self.tasks.len() >= MAX_GIVEN {
            return Err(format!("has {MAX_GIVEN} tasks already"));
        }
        let layout = task.content.layout(&Layout::default()).map_err(|error| error.to_string())?;
        let (bytes, most) = (layout.bytes(), self.max_bytes);
        if bytes > most {
            return Err(format!("takes tasks of at most {most} bytes, and this one has {bytes}"));
        }
        Ok(layout)
    }

    fn receiving(&mut self, chunk: &ChunkHeader) -> Option<&mut Incoming> {
        let job = self.dial.welcome()?.job;
        let given = self.tasks.get_mut(&chunk.round)?;
        let ours = chunk.job == job && chunk.sender == 0 && chunk.layout == given.layout.hash();
        match &mut given.stage {
            Stage::Receiving(incoming) if ours => Some(incoming),
            _ => None,
        }
    }

    /// How a chunk fits into the task that is being received, and the bytes of all of it.
    pub fn place(&mut self, now: Time, chunk: &ChunkHeader) -> (Fit, u64) {
        let Some(incoming) = self.receiving(chunk) else { return (Fit::Nothing, 0) };
        (incoming.fit(now, chunk.range()), incoming.came().total())
    }

    /// The first bytes of a chunk have come; its place is asked for later.
    pub fn begun(&mut self, now: Time, chunk: &ChunkHeader) {
        if let Some(incoming) = self.receiving(chunk) {
            incoming.came_mut().touch(now);
        }
    }

    /// A chunk is in its place (`ok`), or came damaged. Returns what of it is new.
    pub fn stored(&mut self, now: Time, chunk: &ChunkHeader, ok: bool) -> Vec<Range> {
        let Some(incoming) = self.receiving(chunk) else { return Vec::new() };
        if !ok {
            incoming.came_mut().corrupt();
            return Vec::new();
        }
        incoming.store(now, chunk.range())
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

    /// All of a task is here.
    fn here(&mut self, number: u32, same_as: Option<u32>) {
        let Some(given) = self.tasks.get_mut(&number) else { return };
        if let Stage::Receiving(incoming) = &given.stage {
            if let Some(span) = incoming.span() {
                given.received = Interval { start: micros(span.start), end: micros(span.end) };
            }
            given.duplicates = incoming.came().faults().0;
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

    /// The bytes of a task are needed no longer, unless it is open or the last one.
    fn forget(&mut self, number: u32) {
        if self.kept != Some(number) && !self.tasks.contains_key(&number) {
            self.dial.want(TaskStep::Forget { task: number });
        }
    }

    /// Whether a task was handed out and is not over.
    pub fn is_open(&self, number: u32) -> bool {
        self.tasks.contains_key(&number)
    }

    /// The application has a result.
    ///
    /// # Errors
    /// If the task was not handed out or is over, the head is too long, or the weight is no number or negative.
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

    /// The application has no result, for this reason.
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

    /// Sends what is granted next, if nothing is being sent.
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

    /// The ranges asked for have been sent, or `Err` why not.
    pub fn sent(&mut self, number: u32, outcome: Result<Span, String>) {
        if self.sending != Some(number) {
            return; // of a link that is over
        }
        self.sending = None;
        if let Some(Given { stage: Stage::Answering { out, .. }, .. }) = self.tasks.get_mut(&number) {
            let ends = out.sent();
            match outcome {
                Ok(span) => {
                    let sent = Interval { start: micros(span.start), end: micros(span.end) };
                    (0..ends).for_each(|_| self.dial.send(Control::End { parcel: number, sent }));
                }
                Err(_) => out.forget(),
            }
            if out.is_granted() {
                self.waiting.push_back(number);
            }
        }
        self.send_next();
    }

    /// The server has done with a task.
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

    fn settles_at(&self) -> impl Iterator<Item = (Time, u32)> + '_ {
        let alive = !self.is_done();
        self.tasks.iter().filter(move |_| alive).filter_map(|(&number, given)| match &given.stage {
            Stage::Receiving(incoming) => incoming.settle().map(|at| (at, number)),
            _ => None,
        })
    }

    /// When [`TaskClient::timeout`] wants to be called at the latest.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.dial.poll_timeout().into_iter().chain(self.settles_at().map(|(at, _)| at)).min()
    }

    /// Time has passed.
    pub fn timeout(&mut self, now: Time) {
        let settled: Vec<u32> = self.settles_at().filter(|(at, _)| now >= *at).map(|(_, n)| n).collect();
        match self.dial.timeout(now) {
            Err(reason) => self.closed(now, &reason),
            Ok(()) => settled.into_iter().for_each(|number| self.conclude(now, number)),
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
