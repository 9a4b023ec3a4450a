//! The nodes of a tree in virtual time. Each is an `AggregatorNode` with a driver whose work takes time. A
//! message between two nodes takes a random time, so messages overtake each other.
//!
//! Sums and means are sets of clients, one bit each. The model has a set for each of its cells.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{json, Value};
use thalweg_proto::{AggregatorNode, AggregatorStep, RequestId, Time, TopKind};
use thalweg_wire::tree::{Admit, Bytes, MeanAnswer, MeanFold, PeerRequest, Request, Statement};
use thalweg_wire::Range;

use super::batches::Batch;
use crate::common::network::Rng;
use crate::common::{MS, SECOND};

/// The clients whose updates are in sums or in a mean: bit 0 is the client `a`.
pub type Mask = u32;

/// Cells of the model. There are more than nodes.
pub const CELLS: u64 = 6;
/// Bytes of a cell.
const CELL: u64 = 400;
pub const BYTES: u64 = CELL * CELLS;
/// The task of a request whose answer nobody reads.
pub const UNREAD: u32 = u32::MAX;
/// How long another node may be away before an ask does not wait for it any more.
const GRACE: Time = Time::from_secs(5);
/// How long another node may be silent until it is away.
pub const LIVENESS: Time = Time::from_secs(10);

pub fn split(count: usize) -> Vec<Range> {
    let cut = |part: u64| CELLS * part / count as u64 * CELL;
    (0..count as u64).map(|part| Range::new(cut(part), cut(part + 1))).collect()
}

pub fn bit(client: &str) -> Mask {
    1 << (client.bytes().last().unwrap_or(b'a') - b'a')
}

pub fn weight(client: &str) -> f64 {
    1.0 + f64::from(bit(client).trailing_zeros())
}

pub fn names(updates: Mask) -> BTreeSet<String> {
    let letters = ('a'..='z').enumerate();
    letters.filter(|(at, _)| updates >> at & 1 == 1).map(|(_, letter)| letter.to_string()).collect()
}

/// What is stated of sums of these clients' updates.
pub fn statement(updates: Mask) -> Statement {
    let weight = (0..Mask::BITS).filter(|at| updates >> at & 1 == 1).map(|at| 1.0 + f64::from(at)).sum();
    Statement(updates.count_ones(), weight, true)
}

/// What a node answers the root: the head, and the updates and bytes of what comes with it; or why not.
pub type Answered = Result<(Value, Option<Mask>, u64), String>;

enum Asker {
    Root(u32),
    Peer { from: usize, instance: u64, ask: u32, content: Option<Mask> },
}

/// What happens at a node.
pub(super) enum Happens {
    Root {
        task: u32,
        request: Request,
        model: Vec<Mask>,
    },
    RoundOver {
        task: u32,
        round: u32,
        only: Option<BTreeMap<String, Vec<String>>>,
    },
    /// A client's update has arrived whole.
    Arrives {
        round: u32,
        client: String,
    },
    /// Clients that take part in a batch of a round have been away for too long.
    OutageEnds {
        at: (u32, u32),
    },
    Peer {
        from: usize,
        instance: u64,
        ask: u32,
        request: PeerRequest,
        content: Option<Mask>,
    },
    Reply {
        ask: u32,
        node: usize,
        answer: Result<Option<Mask>, String>,
    },
    /// A node had so long to join this one.
    Overdue {
        ask: u32,
        node: usize,
    },
    Merged {
        work: u32,
        outcome: Result<(), String>,
    },
    Computed {
        work: u32,
    },
}

/// An ask that is not over.
struct PeerAsk {
    request: PeerRequest,
    content: Option<Mask>,
    /// The nodes that have not answered.
    awaited: BTreeSet<usize>,
    /// The nodes that have not joined the asking node, so the request has not left it.
    held: BTreeSet<usize>,
}

/// A node's process.
pub(super) struct Process {
    pub(super) name: String,
    pub(super) clients: Vec<String>,
    alive: bool,
    instance: u64,
    /// Nothing happens at it before.
    paused: Time,
    /// When its work is over.
    busy: Time,
    machine: Option<AggregatorNode>,
    is_open: bool,
    requests: BTreeMap<RequestId, Asker>,
    last_request: RequestId,
    asks: BTreeMap<u32, PeerAsk>,
    joined: BTreeSet<String>,
    /// The sums of its own clients' updates.
    sums: Option<Mask>,
    /// Its part in a round whose root admits updates.
    pub(super) batch: Option<Batch>,
    /// Requests for a batch that has not begun.
    pub(super) early: Vec<(u32, Admit)>,
    /// What it adds up: the bytes, and the updates so far.
    adding: Option<(Option<Bytes>, Mask)>,
    /// The sums that other nodes have sent, by ask and node.
    sent: BTreeMap<(u32, String), Mask>,
    mean: Option<(Mask, u64)>,
    model: Vec<Mask>,
    /// The model with which the round began.
    began: Vec<Mask>,
    saved: Option<(Bytes, Vec<Mask>)>,
    kept: BTreeMap<Bytes, Mask>,
}

impl Process {
    fn new(name: &str, clients: &[&str]) -> Self {
        Self {
            name: name.into(),
            clients: clients.iter().map(|client| (*client).to_owned()).collect(),
            alive: true,
            instance: 1,
            paused: Time::ZERO,
            busy: Time::ZERO,
            machine: None,
            is_open: false,
            requests: BTreeMap::new(),
            last_request: 0,
            asks: BTreeMap::new(),
            joined: BTreeSet::new(),
            sums: None,
            batch: None,
            early: Vec::new(),
            adding: None,
            sent: BTreeMap::new(),
            mean: None,
            model: Vec::new(),
            began: Vec::new(),
            saved: None,
            kept: BTreeMap::new(),
        }
    }

    fn address(&self) -> String {
        format!("tcp://{}:{}", self.name, self.instance)
    }

    fn cells(part: Bytes) -> std::ops::Range<usize> {
        (part.0 / CELL) as usize..(part.1 / CELL) as usize
    }

    fn write(&mut self, part: Bytes, updates: Mask) {
        self.model[Self::cells(part)].fill(updates);
    }

    fn add(&mut self, updates: Mask, claim: Statement) -> Result<(), String> {
        let (_, sum) = self.adding.as_mut().expect("it adds up sums");
        if claim != statement(updates) {
            return Err("they are not what was stated".into());
        }
        assert_eq!(*sum & updates, 0, "an update counts twice at {}", self.name);
        *sum |= updates;
        Ok(())
    }
}

/// All nodes, and the network between them.
pub struct Nodes {
    pub(super) processes: Vec<Process>,
    events: BTreeMap<(Time, u64), (usize, u64, Happens)>,
    count: u64,
    pub(super) rng: Rng,
    /// The root's model: what comes with a round's request, and what a node must have if none comes.
    pub model: Vec<Mask>,
    /// What nodes have answered the root: the node, its instance, the task, and the answer.
    pub answers: Vec<(usize, u64, u32, Answered)>,
    /// The chance that a client's update does not come.
    pub absent: f64,
    /// The chance that an update cannot be folded.
    pub unfoldable: f64,
    /// The clients that deliver nothing that could be folded.
    pub failing: BTreeSet<String>,
    /// The chance that a node cannot connect to another one.
    pub unreachable: f64,
    /// The clients that were asked for an update.
    pub asked: Vec<String>,
    /// How long a message between nodes takes at most.
    pub delay: Time,
    /// How many messages nodes have sent each other.
    pub messages: u64,
}

impl Nodes {
    pub fn new(seed: u64, nodes: &[(&str, &[&str])]) -> Self {
        Self {
            processes: nodes.iter().map(|(name, clients)| Process::new(name, clients)).collect(),
            events: BTreeMap::new(),
            count: 0,
            rng: Rng::new(seed ^ 0x0d35),
            model: vec![0; CELLS as usize],
            answers: Vec::new(),
            absent: 0.0,
            unfoldable: 0.0,
            failing: BTreeSet::new(),
            unreachable: 0.0,
            asked: Vec::new(),
            delay: 50 * MS,
            messages: 0,
        }
    }

    /// Opens a node that runs, unless it is open. Returns the address at which other nodes find it.
    pub fn open(&mut self, index: usize, kind: TopKind) -> String {
        let process = &mut self.processes[index];
        let address = process.address();
        if !process.is_open {
            process.is_open = true;
            process.machine = AggregatorNode::new(&process.name, &address, kind);
        }
        address
    }

    pub fn is_alive(&self, index: usize) -> bool {
        self.processes[index].alive
    }

    pub fn instance(&self, index: usize) -> u64 {
        self.processes[index].instance
    }

    /// Until when nothing happens at a node.
    pub fn paused_until(&self, index: usize) -> Time {
        self.processes[index].paused
    }

    /// Ends a node's process. Other nodes notice it after a while.
    pub fn kill(&mut self, now: Time, index: usize) {
        self.processes[index].alive = false;
        self.lose(now + GRACE, index, "its link broke");
    }

    /// Starts a node's process anew. It is not open.
    pub fn restart(&mut self, now: Time, index: usize) {
        self.kill(now, index);
        let old = &self.processes[index];
        let clients: Vec<&str> = old.clients.iter().map(String::as_str).collect();
        let instance = old.instance + 1;
        self.processes[index] = Process { instance, ..Process::new(&old.name, &clients) };
    }

    /// Nothing happens at a node for this time. Other nodes give up if that is too long.
    pub fn pause(&mut self, now: Time, index: usize, time: Time) {
        let process = &mut self.processes[index];
        process.paused = process.paused.max(now + time);
        if time > LIVENESS {
            self.lose(now + LIVENESS + GRACE, index, "it was silent");
        }
    }

    /// Ends the parts of a node in all asks at a moment.
    fn lose(&mut self, at: Time, index: usize, why: &str) {
        for asking in 0..self.processes.len() {
            let awaits = |ask: &&PeerAsk| ask.awaited.contains(&index);
            let asks = &self.processes[asking].asks;
            let asks: Vec<u32> = asks.iter().filter(|(_, ask)| awaits(ask)).map(|(ask, _)| *ask).collect();
            for ask in asks {
                self.at(at, asking, Happens::Reply { ask, node: index, answer: Err(why.into()) });
            }
        }
    }

    pub(super) fn at(&mut self, at: Time, index: usize, what: Happens) {
        self.count += 1;
        let instance = self.processes[index].instance;
        self.events.insert((at, self.count), (index, instance, what));
    }

    /// A message to a node's process, as it is now.
    fn send(&mut self, now: Time, index: usize, what: Happens) {
        self.messages += 1;
        let at = now + self.rng.time(self.delay);
        self.at(at, index, what);
    }

    pub fn next_time(&self) -> Option<Time> {
        self.events.keys().next().map(|key| key.0)
    }

    /// Lets the next thing happen. Its time has come.
    pub fn step(&mut self, now: Time) {
        let Some((_, (index, instance, what))) = self.events.pop_first() else { return };
        let process = &self.processes[index];
        if !process.alive || process.instance != instance {
            return;
        }
        if process.paused > now {
            let paused = process.paused;
            return self.at(paused, index, what);
        }
        self.happen(now, index, what);
        self.pump(now, index);
    }

    /// A request that the root sends now arrives at a node.
    pub fn request(&mut self, at: Time, index: usize, task: u32, request: Request) {
        let model = self.model.clone();
        self.at(at, index, Happens::Root { task, request, model });
    }

    /// The root tells the other nodes that one is lost.
    pub fn forget(&mut self, at: Time, lost: usize, why: &str) {
        let node = self.processes[lost].name.clone();
        for index in (0..self.processes.len()).filter(|&index| index != lost) {
            if self.processes[index].machine.is_some() {
                let request = Request::ForgetNode { node: node.clone(), why: why.into() };
                self.request(at, index, UNREAD, request);
            }
        }
    }

    fn machine(&mut self, index: usize) -> &mut AggregatorNode {
        self.processes[index].machine.as_mut().expect("it is open, and there is no dedicated top")
    }

    fn asked_by(&mut self, index: usize, asker: Asker) -> RequestId {
        let process = &mut self.processes[index];
        process.last_request += 1;
        process.requests.insert(process.last_request, asker);
        process.last_request
    }

    fn happen(&mut self, now: Time, index: usize, what: Happens) {
        match what {
            Happens::Root { task, request, model } => self.requested(now, index, task, request, model),
            Happens::RoundOver { task, round, only } => self.round_over(index, task, round, only.as_ref()),
            Happens::Arrives { round, client } => self.client_arrives(index, round, client),
            Happens::OutageEnds { at } => self.outage_ends(index, at),
            Happens::Peer { from, instance, ask, request, content } => {
                let bytes = match &request {
                    PeerRequest::Mean { part, .. } => content.map(|_| part.1 - part.0),
                    PeerRequest::Sums { .. } => None,
                };
                let id = self.asked_by(index, Asker::Peer { from, instance, ask, content });
                self.machine(index).peer_requested(id, request, bytes);
            }
            Happens::Reply { ask, node, answer } => {
                let name = self.processes[node].name.clone();
                let process = &mut self.processes[index];
                let Some(open) = process.asks.get_mut(&ask) else { return };
                if !open.awaited.remove(&node) {
                    return;
                }
                let is_over = open.awaited.is_empty();
                if is_over {
                    process.asks.remove(&ask);
                }
                let answer = answer.map(|content| {
                    if let Some(sums) = content {
                        process.sent.insert((ask, name.clone()), sums);
                    }
                });
                self.machine(index).peer_answered(ask, &name, answer);
                self.pump(now, index);
                if is_over {
                    self.machine(index).all_answered(ask);
                }
            }
            Happens::Overdue { ask, node } => {
                let asks = &self.processes[index].asks;
                if asks.get(&ask).is_some_and(|open| open.held.contains(&node)) {
                    let answer = Err("was not there within 5 s".into());
                    self.happen(now, index, Happens::Reply { ask, node, answer });
                }
            }
            Happens::Merged { work, outcome } => self.machine(index).merged(work, outcome),
            Happens::Computed { work } => {
                let mean = MeanAnswer { fold: MeanFold { uncovered_bytes: Some(0) }, done: 1.0 };
                self.machine(index).computed(work, Ok(mean));
            }
        }
    }

    pub(super) fn answer_root(&mut self, index: usize, task: u32, answer: Answered) {
        self.answers.push((index, self.processes[index].instance, task, answer));
    }

    fn requested(&mut self, now: Time, index: usize, task: u32, request: Request, model: Vec<Mask>) {
        if !self.processes[index].is_open {
            return self.answer_root(index, task, Ok((json!({ "unopened": true }), None, 0)));
        }
        match request {
            Request::Wait { .. } => {
                let clients = self.processes[index].clients.clone();
                self.answer_root(index, task, Ok((json!({ "clients": clients }), None, 0)));
            }
            Request::Admit(admit) => {
                self.processes[index].early.push((task, admit));
                self.settle_batch(index);
            }
            Request::Round { round, only, batch: Some(batch), .. } => {
                let drawn = only.expect("clients are drawn")[&self.processes[index].name].clone();
                self.begin_batch(now, index, (task, round, batch), drawn);
            }
            Request::Round { round, kept, only, .. } => {
                if let Some(machine) = &mut self.processes[index].machine {
                    let begun = machine.begin(round, kept);
                    self.pump(now, index);
                    if let Err(reason) = begun {
                        return self.answer_root(index, task, Err(reason));
                    }
                }
                let process = &mut self.processes[index];
                if kept {
                    assert_eq!(process.model, model, "{} has another mean", process.name);
                } else {
                    process.model.clone_from(&model);
                    process.saved = None;
                }
                process.began = model;
                let at = now + self.rng.time(SECOND);
                self.at(at, index, Happens::RoundOver { task, round, only });
            }
            request => {
                let id = self.asked_by(index, Asker::Root(task));
                self.machine(index).requested(id, request);
            }
        }
    }

    fn round_over(
        &mut self,
        index: usize,
        task: u32,
        round: u32,
        only: Option<&BTreeMap<String, Vec<String>>>,
    ) {
        let process = &mut self.processes[index];
        let drawn = only.map_or(&process.clients, |only| &only[&process.name]).clone();
        let (mut participants, mut sums) = (Vec::new(), 0);
        for client in drawn {
            let comes = !self.rng.chance(self.absent);
            participants.push(json!({
                "client": client, "state": if comes { "whole" } else { "lost" }, "samples": weight(&client),
            }));
            if comes {
                sums |= bit(&client);
            } else {
                self.failing.insert(client.clone());
            }
            self.asked.push(client);
        }
        let held = sums != 0;
        process.sums = held.then_some(sums);
        if let Some(machine) = &mut process.machine {
            machine.ended(held);
        }
        let outcome = json!({ "round": round, "participants": participants, "failure": null });
        let head = json!({ "outcome": outcome, "held": held, "clients": process.clients });
        let sums = process.sums.filter(|_| process.machine.is_none());
        let bytes = if sums.is_some() { BYTES } else { 0 };
        self.answer_root(index, task, Ok((head, sums, bytes)));
    }

    fn pump(&mut self, now: Time, index: usize) {
        loop {
            let machine = self.processes[index].machine.as_mut();
            let Some(step) = machine.and_then(AggregatorNode::poll_step) else { return };
            self.perform(now, index, step);
        }
    }

    /// When work that begins now is over. A node does one thing after the other.
    fn work(&mut self, now: Time, index: usize) -> Time {
        let took = self.rng.time(SECOND / 4) + MS;
        let process = &mut self.processes[index];
        process.busy = process.busy.max(now) + took;
        process.busy
    }

    fn perform(&mut self, now: Time, index: usize, step: AggregatorStep) {
        match step {
            AggregatorStep::Join { address } => self.join(now, index, &address),
            AggregatorStep::Ask { ask, request, nodes } => self.ask(now, index, ask, request, &nodes),
            AggregatorStep::CancelAsk { ask } => drop(self.processes[index].asks.remove(&ask)),
            AggregatorStep::BeginSums { part } => self.processes[index].adding = Some((part, 0)),
            AggregatorStep::MergeOwn { work, claim } => {
                let process = &mut self.processes[index];
                let outcome = process.sums.ok_or_else(|| "it has no sums".to_owned());
                let outcome = outcome.and_then(|sums| process.add(sums, claim));
                let at = self.work(now, index);
                self.at(at, index, Happens::Merged { work, outcome });
            }
            AggregatorStep::Merge { work, ask, node, claim } => {
                let process = &mut self.processes[index];
                let sums = process.sent.remove(&(ask, node)).expect("its sums have come");
                let outcome = process.add(sums, claim);
                let at = self.work(now, index);
                self.at(at, index, Happens::Merged { work, outcome });
            }
            AggregatorStep::Compute { work } => {
                let process = &mut self.processes[index];
                let (part, sum) = process.adding.take().expect("it has added up sums");
                let bytes = part.unwrap_or((0, BYTES));
                if part.is_some() {
                    process.saved = Some((bytes, process.model[Process::cells(bytes)].to_vec()));
                }
                process.write(bytes, sum);
                process.mean = Some((sum, bytes.1 - bytes.0));
                let at = self.work(now, index);
                self.at(at, index, Happens::Computed { work });
            }
            AggregatorStep::Restore => {
                let process = &mut self.processes[index];
                if let Some((part, cells)) = process.saved.take() {
                    process.model[Process::cells(part)].copy_from_slice(&cells);
                }
                assert_eq!(process.model, process.began, "{} begins from another model", process.name);
            }
            AggregatorStep::Keep { request, part } => {
                let process = &mut self.processes[index];
                let Some(Asker::Peer { content: Some(mean), .. }) = process.requests.get(&request) else {
                    panic!("a part of the mean has come")
                };
                process.kept.insert(part, *mean);
            }
            AggregatorStep::Adopt => {
                let process = &mut self.processes[index];
                for (part, mean) in process.kept.clone() {
                    process.write(part, mean);
                }
                process.saved = None;
            }
            AggregatorStep::Drop => {
                let process = &mut self.processes[index];
                process.kept.clear();
                (process.mean, process.adding) = (None, None);
            }
            AggregatorStep::Answer { request, answer, mean } => {
                let process = &mut self.processes[index];
                let head = serde_json::to_value(&answer).expect("JSON");
                let mean = process.mean.filter(|_| mean);
                match process.requests.remove(&request).expect("a request is answered once") {
                    Asker::Root(task) => {
                        let (content, bytes) = mean.unzip();
                        self.answer_root(index, task, Ok((head, content, bytes.unwrap_or(0))));
                    }
                    peer => self.reply(now, index, &peer, Ok(None)),
                }
            }
            AggregatorStep::GiveSums { request, .. } => {
                let process = &mut self.processes[index];
                let peer = process.requests.remove(&request).expect("a request is answered once");
                let sums = process.sums.ok_or_else(|| "it has no sums".to_owned());
                self.reply(now, index, &peer, sums.map(Some));
            }
            AggregatorStep::Refuse { request, reason } => {
                let asker = self.processes[index].requests.remove(&request);
                match asker.expect("a request is answered once") {
                    Asker::Root(task) => self.answer_root(index, task, Err(reason)),
                    peer => self.reply(now, index, &peer, Err(reason)),
                }
            }
            AggregatorStep::Forget { node, why } => {
                let other = self.processes.iter().position(|process| process.name == node).expect("a node");
                let asks: Vec<u32> = self.processes[index].asks.keys().copied().collect();
                for ask in asks {
                    self.at(now, index, Happens::Reply { ask, node: other, answer: Err(why.clone()) });
                }
            }
        }
    }

    fn reply(&mut self, now: Time, index: usize, to: &Asker, answer: Result<Option<Mask>, String>) {
        let Asker::Peer { from, instance, ask, .. } = to else { panic!("the root is answered elsewhere") };
        if self.processes[*from].instance == *instance {
            self.send(now, *from, Happens::Reply { ask: *ask, node: index, answer });
        }
    }

    /// Connects a node to another one, which now sends it what it has held.
    fn join(&mut self, now: Time, index: usize, address: &str) {
        if self.rng.chance(self.unreachable) {
            return self.machine(index).joined(address, Err("there is no way".into()));
        }
        self.processes[index].joined.insert(address.into());
        self.machine(index).joined(address, Ok(()));
        let other = self.processes.iter().position(|process| process.address() == address);
        let Some(other) = other.filter(|&other| self.processes[other].alive) else { return };
        let asks = &mut self.processes[other].asks;
        let held: Vec<u32> =
            asks.iter_mut().filter_map(|(ask, open)| open.held.remove(&index).then_some(*ask)).collect();
        for ask in held {
            self.send_ask(now, other, ask, index);
        }
    }

    fn send_ask(&mut self, now: Time, from: usize, ask: u32, to: usize) {
        let instance = self.processes[from].instance;
        let Some(open) = self.processes[from].asks.get(&ask) else { return };
        let (request, content) = (open.request.clone(), open.content);
        if self.processes[to].alive {
            self.send(now, to, Happens::Peer { from, instance, ask, request, content });
        }
        if !self.processes[to].alive {
            self.at(now + GRACE, from, Happens::Reply { ask, node: to, answer: Err("is away".into()) });
        } else if self.processes[to].paused > now + LIVENESS {
            let at = now + LIVENESS + GRACE;
            self.at(at, from, Happens::Reply { ask, node: to, answer: Err("it was silent".into()) });
        }
    }

    fn ask(&mut self, now: Time, index: usize, ask: u32, request: PeerRequest, nodes: &[String]) {
        assert!(!nodes.is_empty(), "nobody is asked");
        let address = self.processes[index].address();
        let place = |name: &String| self.processes.iter().position(|process| process.name == *name);
        let awaited: BTreeSet<usize> = nodes.iter().filter_map(place).collect();
        assert_eq!(awaited.len(), nodes.len(), "each is asked once");
        let has_joined = |other: &usize| self.processes[*other].joined.contains(&address);
        let (joined, held): (BTreeSet<usize>, BTreeSet<usize>) =
            awaited.iter().copied().partition(|other| has_joined(other));
        let content = match &request {
            PeerRequest::Mean { .. } => self.processes[index].mean.map(|(mean, _)| mean),
            PeerRequest::Sums { .. } => None,
        };
        let open = PeerAsk { request, content, awaited, held: held.clone() };
        self.processes[index].asks.insert(ask, open);
        for other in joined {
            self.send_ask(now, index, ask, other);
        }
        for node in held {
            self.at(now + GRACE, index, Happens::Overdue { ask, node });
        }
    }
}
