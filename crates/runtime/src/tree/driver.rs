//! Carries out the steps of a node's machine, on a thread of its own.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::Arc;
use std::thread;

use serde_json::Value;
use thalweg_arena::Arena;
use thalweg_proto::{AggregatorNode, AggregatorStep, ReplyState, RequestId};
use thalweg_wire::tree::{Answer, Bytes, PeerRequest, Request};
use thalweg_wire::Range;

use super::worker::{Work, Worker};
use super::{await_replies, over, serve, Event, Outcome, SumsSource, Tensors};
use crate::options::ClientOptions;
use crate::tasks::{NewTask, TaskClient, TaskReply, TaskServer};
use crate::{Error, Kind};

/// Who waits for the answer to a request.
enum Asker {
    /// The root. `between`: the answer reports the transfers between nodes.
    Root { between: bool, done: Sender<Outcome> },
    /// Another node, whose request came with these tensors.
    Peer { link: Arc<TaskClient>, task: u32, tensors: Option<Tensors> },
}

/// The machine, and what its steps are about.
pub(super) struct Driver {
    machine: AggregatorNode,
    name: String,
    member: ClientOptions,
    server: Arc<TaskServer>,
    worker: Worker,
    sums: SumsSource,
    events: Sender<Event>,
    requests: HashMap<RequestId, Asker>,
    last_request: RequestId,
    /// Links to the nodes that this node has joined, by address.
    joined: HashMap<String, Arc<TaskClient>>,
    /// The task of each ask that is not over.
    tasks: HashMap<u32, u32>,
    /// What distinguishes the bytes of tasks.
    last_bytes: u64,
    /// The sums that other nodes have sent: their head and cells, by ask and node.
    sent: HashMap<(u32, String), (Vec<u8>, Option<Arena>)>,
    /// Transfers between nodes that the root does not know yet.
    between: Vec<Value>,
    /// The mean that was computed last.
    mean: Option<Tensors>,
}

impl Driver {
    pub fn new(
        machine: AggregatorNode,
        name: String,
        member: ClientOptions,
        server: Arc<TaskServer>,
        worker: Worker,
        sums: SumsSource,
        events: Sender<Event>,
    ) -> Self {
        Self {
            machine,
            name,
            member,
            server,
            worker,
            sums,
            events,
            requests: HashMap::new(),
            last_request: 0,
            joined: HashMap::new(),
            tasks: HashMap::new(),
            last_bytes: 0,
            sent: HashMap::new(),
            between: Vec::new(),
            mean: None,
        }
    }

    /// Takes events until the job is over.
    pub fn run(mut self, happened: &Receiver<Event>) {
        while let Ok(event) = happened.recv() {
            if let Event::Close { why } = event {
                return self.close(&why);
            }
            self.happen(event);
        }
    }

    fn close(self, why: &str) {
        for link in self.joined.values() {
            link.close(why);
        }
        for asker in self.requests.into_values() {
            if let Asker::Root { done, .. } = asker {
                _ = done.send(Err(over())); // an error means that nobody waits for it
            }
        }
        self.worker.close();
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Begin { round, kept, done } => self.begin(round, kept, done),
            Event::Ended { holds_sums } => self.machine.ended(holds_sums),
            Event::Request { request, done } => {
                let between = matches!(
                    request,
                    Request::ReceiveSums { .. } | Request::FoldPart { .. } | Request::ConfirmParts
                );
                let id = self.asked_by(Asker::Root { between, done });
                self.machine.requested(id, request);
            }
            Event::Peer { link, task, request, tensors } => {
                let bytes = tensors.as_ref().map(|(_, layout)| layout.bytes());
                let id = self.asked_by(Asker::Peer { link, task, tensors });
                self.machine.peer_requested(id, request, bytes);
            }
            Event::Left { address } => {
                // A node that takes the place of one that has ended has another address.
                self.joined.remove(&address);
            }
            Event::Reply { ask, reply } => self.replied(ask, reply),
            Event::AllReplied { ask } => {
                self.tasks.remove(&ask);
                self.machine.all_answered(ask);
                self.pump();
                self.sent.retain(|(of, _), _| *of != ask);
            }
            Event::Merged { work, outcome } => self.machine.merged(work, outcome),
            Event::Computed { work, outcome } => {
                let outcome = outcome.map(|(answer, mean)| {
                    self.mean = Some(mean);
                    answer
                });
                self.machine.computed(work, outcome);
            }
            Event::Close { .. } => {}
        }
        self.pump();
    }

    fn asked_by(&mut self, asker: Asker) -> RequestId {
        self.last_request += 1;
        self.requests.insert(self.last_request, asker);
        self.last_request
    }

    fn begin(&mut self, round: u32, kept: bool, done: Sender<Result<(), Error>>) {
        let begun = self.machine.begin(round, kept);
        self.pump();
        match begun {
            Ok(()) => self.worker.wants(Work::Begin { replaced: !kept, done }),
            Err(reason) => {
                // An error means that nobody waits for it.
                _ = done.send(Err(Error::new(Kind::Round, "begin a round", reason)));
            }
        }
    }

    fn replied(&mut self, ask: u32, reply: TaskReply) {
        let transfers: Vec<Value> = serde_json::from_str(&reply.transfers).unwrap_or_default();
        self.between.extend(transfers);
        let node = reply.member;
        let outcome = match reply.state {
            ReplyState::Done => Ok(()),
            _ => Err(reply.reason.unwrap_or_else(|| "it gave no answer".into())),
        };
        if outcome.is_ok() && self.tasks.contains_key(&ask) {
            let cells = reply.tensors.map(|(arena, _)| arena);
            self.sent.insert((ask, node.clone()), (reply.head, cells));
        }
        self.machine.peer_answered(ask, &node, outcome);
    }

    fn pump(&mut self) {
        while let Some(step) = self.machine.poll_step() {
            self.perform(step);
        }
    }

    fn perform(&mut self, step: AggregatorStep) {
        match step {
            AggregatorStep::Join { address } => {
                let outcome = self.join(&address).map_err(|error| error.to_string());
                self.machine.joined(&address, outcome);
            }
            AggregatorStep::Ask { ask, request, nodes } => self.ask(ask, &request, nodes),
            AggregatorStep::CancelAsk { ask } => {
                if let Some(task) = self.tasks.remove(&ask) {
                    self.server.release(task);
                }
            }
            AggregatorStep::BeginSums { part } => self.worker.wants(Work::BeginSums(part)),
            AggregatorStep::MergeOwn { work, claim } => self.worker.wants(Work::MergeOwn { work, claim }),
            AggregatorStep::Merge { work, ask, node, claim } => {
                let (head, cells) = self.sent.remove(&(ask, node)).unwrap_or_default();
                self.worker.wants(Work::Merge { work, head, cells, claim });
            }
            AggregatorStep::Compute { work } => self.worker.wants(Work::Compute { work }),
            AggregatorStep::Restore => self.worker.wants(Work::Restore),
            AggregatorStep::Keep { request, part } => {
                if let Some(Asker::Peer { tensors: Some((mean, _)), .. }) = self.requests.get(&request) {
                    self.worker.wants(Work::Keep { part, mean: mean.clone() });
                }
            }
            AggregatorStep::Adopt => self.worker.wants(Work::Adopt),
            AggregatorStep::Drop => {
                self.mean = None;
                self.worker.wants(Work::Drop);
            }
            AggregatorStep::Answer { request, answer, mean } => self.answer(request, &answer, mean),
            AggregatorStep::GiveSums { request, part } => self.give_sums(request, part),
            AggregatorStep::Refuse { request, reason } => self.refuse(request, reason),
            AggregatorStep::Forget { node, why } => self.server.forget(&node, &why),
        }
    }

    /// Connects to the node at an address, unless it is connected.
    fn join(&mut self, address: &str) -> Result<(), Error> {
        if self.joined.contains_key(address) {
            return Ok(());
        }
        let link = Arc::new(TaskClient::start(address, &self.name, self.member.clone())?);
        self.joined.insert(address.into(), link.clone());
        let (address, events) = (address.to_owned(), self.events.clone());
        spawn("tree-link", move || serve(&link, address, &events))
    }

    fn ask(&mut self, ask: u32, request: &PeerRequest, nodes: Vec<String>) {
        let opened = self.open(ask, request, nodes.clone());
        if let Err(error) = opened {
            let reason = error.to_string();
            for node in nodes {
                self.machine.peer_answered(ask, &node, Err(reason.clone()));
            }
            self.machine.all_answered(ask);
        }
    }

    fn open(&mut self, ask: u32, request: &PeerRequest, members: Vec<String>) -> Result<(), Error> {
        let tensors = match request {
            PeerRequest::Sums { .. } => None,
            PeerRequest::Mean { .. } => self.mean.clone(),
        };
        self.last_bytes += 1;
        let (head, bytes_id) = (serde_json::to_vec(request)?, self.last_bytes);
        let (deadline, fold, missing, judge) = (None, None, None, None);
        let task = NewTask { head, tensors, bytes_id, members, deadline, fold, missing, judge };
        let task = self.server.open(task)?;
        self.tasks.insert(ask, task);
        let (server, events) = (self.server.clone(), self.events.clone());
        spawn("tree-ask", move || await_replies(&server, task, ask, &events))
    }

    fn answer(&mut self, request: RequestId, answer: &Answer, mean: bool) {
        match self.requests.remove(&request) {
            Some(Asker::Root { between, done }) => {
                let head = self.head(answer, between);
                let tensors = self.mean.clone().filter(|_| mean);
                _ = done.send(head.map(|head| (head, tensors))); // an error means that nobody waits for it
            }
            // An error means that the other node does not wait for it any more.
            Some(Asker::Peer { link, task, .. }) => _ = link.answer(task, b"{}".to_vec(), None, 1.0),
            None => {}
        }
    }

    /// The head of an answer for the root.
    fn head(&mut self, answer: &Answer, between: bool) -> Result<Vec<u8>, Error> {
        let mut head = serde_json::to_value(answer)?;
        if let Value::Object(table) = &mut head {
            if between {
                table.insert("between".into(), std::mem::take(&mut self.between).into());
            }
        }
        Ok(serde_json::to_vec(&head)?)
    }

    fn refuse(&mut self, request: RequestId, reason: String) {
        match self.requests.remove(&request) {
            Some(Asker::Root { done, .. }) => {
                // An error means that nobody waits for it.
                _ = done.send(Err(Error::new(Kind::Round, "", reason)));
            }
            // An error means that the other node does not wait for it any more.
            Some(Asker::Peer { link, task, .. }) => _ = link.refuse(task, &reason),
            None => {}
        }
    }

    fn give_sums(&mut self, request: RequestId, part: Option<Bytes>) {
        let Some(Asker::Peer { link, task, .. }) = self.requests.remove(&request) else { return };
        let sums = self.sums.clone();
        let give = link.clone();
        let begun = spawn("tree-sums", move || {
            let part = part.map(|(start, end)| Range::new(start, end.max(start)));
            // An error means that the other node does not wait for it any more.
            _ = match sums(part) {
                Ok(Some(sums)) => give.answer(task, sums.head, Some((sums.cells, sums.layout)), 1.0),
                Ok(None) => give.refuse(task, "it has no sums"),
                Err(error) => give.refuse(task, &error.to_string()),
            };
        });
        if let Err(error) = begun {
            _ = link.refuse(task, &error.to_string());
        }
    }
}

/// Starts a thread that ends by itself when the node leaves the job.
fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let thread = thread::Builder::new().name(name.into()).spawn(work);
    thread.map(drop).map_err(|error| Error::new(Kind::System, "start a thread", error.to_string()))
}
