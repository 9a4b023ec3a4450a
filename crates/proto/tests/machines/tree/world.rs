//! Rounds of a tree in virtual time: the root and its nodes are members of tasks over the virtual network. A
//! node's sums are the names of the clients whose updates they contain.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{json, Value};
use thalweg_proto::{
    Mean, PartOutcome, PartState, Reply, ReplyState, ServerMachine, TaskPlan, Time, TopKind, TreeNode,
    TreePlan, TreeRound, TreeStep,
};
use thalweg_wire::tree::{Answer, MeanAnswer, MeanFold, Request, Statement};
use thalweg_wire::{Layout, Range};

use crate::common::network::{Path, Rng};
use crate::common::tasks::{config, tensors, Does, TaskWorld};
use crate::common::{MS, SECOND};

/// The names of the clients whose updates are in sums or in a mean.
pub type Updates = BTreeSet<String>;

/// Elements of the model. It has more parts than there are nodes.
const ELEMENTS: u64 = 600;
const BYTES: u64 = 4 * ELEMENTS;

fn split(count: usize) -> Vec<Range> {
    let cut = |part: u64| BYTES * part / count as u64 / 4 * 4;
    (0..count as u64).map(|part| Range::new(cut(part), cut(part + 1))).collect()
}

pub fn weight(client: &str) -> f64 {
    1.0 + f64::from(client.bytes().last().unwrap_or(b'a') - b'a')
}

fn statement(updates: &Updates) -> Statement {
    Statement(updates.len() as u32, updates.iter().map(|client| weight(client)).sum(), true)
}

/// What a node's process keeps.
#[derive(Debug, Clone, Default)]
struct Process {
    is_open: bool,
    sums: Option<Updates>,
    /// What it has folded as the top, and of which sums.
    top: Updates,
    /// The addresses of the nodes that may take its sums.
    joined: BTreeSet<String>,
    turn: u32,
    part: Option<(Range, Updates)>,
    /// Parts of the mean, of this turn.
    means: BTreeMap<u64, Updates>,
    delivered: Vec<String>,
}

/// How a round ended.
#[derive(Debug, Clone)]
pub enum End {
    Over { parts: Vec<PartOutcome>, mean: Mean, counting: Updates },
    Failed(String),
}

/// What a node will do at a moment.
struct Later {
    index: usize,
    instance: u64,
    task: u32,
    request: Request,
}

/// Something bad that happens to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Its link breaks, and is made anew.
    Cut,
    /// It hangs for a time.
    Pause(Time),
    /// Its process is killed. The root is notified, or learns it from the link.
    Kill { seen: bool },
    /// Its process is killed, and started anew.
    Restart,
}

pub struct TreeWorld {
    pub tasks: TaskWorld,
    pub rng: Rng,
    pub nodes: Vec<TreeNode>,
    processes: Vec<Process>,
    round: Option<TreeRound>,
    /// The request that each task is for.
    asks: BTreeMap<u32, u32>,
    later: BTreeMap<(Time, u64), Later>,
    count: u64,
    replies: usize,
    /// The sums or the mean that came with a node's answer to a request.
    contents: BTreeMap<(u32, String), Updates>,
    sent: BTreeMap<(u32, usize), Updates>,
    root: Updates,
    /// The updates in each element range of the model, by its first byte.
    pub model: BTreeMap<u64, Updates>,
    end: Option<End>,
    /// The chance that a client's update does not come.
    pub absent: f64,
    /// Clients that are asked for an update, by round.
    pub asked: Vec<String>,
    /// Messages of the root and of the nodes so far.
    pub messages: u64,
    /// What happens when so many messages were sent, and to which node.
    pub faults: BTreeMap<u64, (usize, Fault)>,
}

impl TreeWorld {
    /// A world with these nodes and their clients. All nodes have joined and are open.
    pub fn new(seed: u64, nodes: &[(&str, &[&str])]) -> Self {
        Self::over(seed, nodes, |rng| Path { delay: rng.time(50 * MS) + MS, ..Path::PERFECT })
    }

    /// A world in which `path` makes the path of each node to the root.
    pub fn over(seed: u64, nodes: &[(&str, &[&str])], path: impl Fn(&mut Rng) -> Path) -> Self {
        let mut rng = Rng::new(seed ^ 0x7ee);
        let mut tasks = TaskWorld::new(seed, config());
        for (name, _) in nodes {
            let path = path(&mut rng);
            tasks.add(name, Does::Acts, path);
        }
        tasks.run("all have joined", 100 * SECOND, |w| w.server.connected_count() == nodes.len());
        let names = |clients: &[&str]| clients.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let nodes: Vec<_> = nodes
            .iter()
            .map(|(name, clients)| TreeNode {
                name: (*name).into(),
                clients: names(clients),
                connected: names(clients),
                peers: format!("tcp://{name}:1"),
                ..TreeNode::default()
            })
            .collect();
        let processes = vec![Process { is_open: true, ..Process::default() }; nodes.len()];
        Self {
            tasks,
            rng,
            nodes,
            processes,
            round: None,
            asks: BTreeMap::new(),
            later: BTreeMap::new(),
            count: 0,
            replies: 0,
            contents: BTreeMap::new(),
            sent: BTreeMap::new(),
            root: Updates::new(),
            model: BTreeMap::new(),
            end: None,
            absent: 0.0,
            asked: Vec::new(),
            messages: 0,
            faults: BTreeMap::new(),
        }
    }

    /// Runs a round to its end.
    pub fn run(&mut self, plan: TreePlan) -> End {
        (self.root, self.end, self.contents, self.asked) =
            (Updates::new(), None, BTreeMap::new(), Vec::new());
        // Nodes that were lost and are connected again are opened anew.
        for (index, node) in self.nodes.iter_mut().enumerate() {
            if node.loss.is_some() && self.tasks.members[index].alive {
                (node.loss, node.has_model) = (None, false);
                self.processes[index].is_open = true;
            }
        }
        let now = self.tasks.now;
        self.round = Some(TreeRound::new(now, plan, self.nodes.clone(), Box::new(split)));
        self.pump();
        let limit = now + 1000 * SECOND;
        while self.end.is_none() {
            self.step(limit);
        }
        let end = self.end.take().expect("the round has ended");
        if let End::Over { mean, .. } = &end {
            for (index, node) in self.nodes.iter_mut().enumerate() {
                node.has_model = mean.has.contains(&node.name);
                // A process that was started anew has nothing, and says so in the next round.
                if node.has_model && self.processes[index].is_open {
                    let kept = &self.processes[index];
                    let own = kept.part.iter().map(|(range, updates)| (range.start, updates.clone()));
                    let all: BTreeMap<_, _> = own.chain(kept.means.clone()).collect();
                    assert_eq!(all, self.model, "{} has another mean", node.name);
                }
            }
        }
        end
    }

    fn step(&mut self, limit: Time) {
        let now = self.tasks.now;
        let timer = self.round.as_ref().and_then(TreeRound::poll_timeout);
        let later = self.later.keys().next().map(|key| key.0);
        let other = self.tasks.next_time();
        let next = [timer, later, other].into_iter().flatten().min().map(|at| at.max(now));
        let next = next.filter(|at| *at <= limit);
        let next = next.unwrap_or_else(|| panic!("the round hangs at {now:?}: {:?}", self.nodes));
        if timer.is_some_and(|at| at <= next) {
            self.tasks.now = next;
            if let Some(round) = &mut self.round {
                round.timeout(next);
                assert!(round.poll_timeout().is_none_or(|at| at > next), "the timer stands still");
            }
        } else if later.is_some_and(|at| at <= next) {
            self.tasks.now = next;
            if let Some((_, later)) = self.later.pop_first() {
                self.act(later);
            }
        } else {
            self.tasks.step();
        }
        self.pump();
    }

    /// Passes on what the root asks, and what nodes answer, until nothing happens any more at this moment.
    fn pump(&mut self) {
        loop {
            if let Some(step) = self.round.as_mut().and_then(TreeRound::poll_step) {
                self.perform(step);
            } else if let Some((index, instance, task)) = self.tasks.requested.pop() {
                self.requested(index, instance, task);
            } else if self.replies < self.tasks.replies.len() {
                self.replies += 1;
                let reply = self.tasks.replies[self.replies - 1].0.clone();
                self.replied(&reply);
            } else {
                return;
            }
        }
    }

    /// Counts a message, and does what is to happen then.
    fn message(&mut self) {
        self.messages += 1;
        if let Some((index, fault)) = self.faults.remove(&self.messages) {
            self.happen(index, fault);
        }
    }

    pub fn happen(&mut self, index: usize, fault: Fault) {
        let name = self.nodes[index].name.clone();
        match fault {
            Fault::Cut => self.tasks.cut(index),
            Fault::Pause(time) => self.tasks.pause(index, time),
            Fault::Kill { seen } => {
                self.tasks.kill(index);
                if seen {
                    self.lose(index, "is gone: killed by signal 9");
                    self.tasks.forget(&name);
                }
            }
            Fault::Restart => {
                self.tasks.kill(index);
                self.processes[index] = Process::default();
                self.tasks.restart(index);
            }
        }
    }

    fn lose(&mut self, index: usize, loss: &str) {
        self.nodes[index].loss.get_or_insert_with(|| loss.into());
        if let Some(round) = &mut self.round {
            round.update(self.tasks.now, self.nodes.clone(), BTreeSet::new());
        }
    }

    fn perform(&mut self, step: TreeStep) {
        let now = self.tasks.now;
        match step {
            TreeStep::Ask { ask, request, nodes, model } => {
                let plan = TaskPlan {
                    head: serde_json::to_vec(&request).expect("a small request"),
                    layout: if model { tensors("w", ELEMENTS) } else { Arc::default() },
                    bytes_id: u64::from(ask) << 32 | u64::from(model),
                    members: nodes,
                    deadline: None,
                    fold: None,
                    missing: None,
                    judged: false,
                };
                let task = self.tasks.open_plan(plan).expect("a task");
                self.asks.insert(task, ask);
                self.message();
            }
            TreeStep::Prove { .. } => unreachable!("nobody has to prove anything"),
            TreeStep::Merge { part, ask, node, claim } => {
                let sums = self.contents.remove(&(ask, node)).expect("its sums have come");
                assert_eq!(claim, statement(&sums));
                assert!(self.root.is_disjoint(&sums), "an update counts twice: {sums:?}");
                self.root.extend(sums);
                self.round().merged(now, part, None);
            }
            TreeStep::Finish => {
                self.model = BTreeMap::from([(0, self.root.clone())]);
                let mean = MeanAnswer { fold: MeanFold::default(), done: now.as_secs_f64() };
                self.round().finished(mean);
            }
            TreeStep::Write { ask, parts } => {
                let all: u64 = parts.iter().map(|(_, start, end)| end - start).sum();
                assert_eq!(all, BYTES, "the whole model is written");
                let of = |(node, start, _)| {
                    (start, self.contents.remove(&(ask, node)).expect("its part of the mean has come"))
                };
                self.model = parts.into_iter().map(of).collect();
            }
            TreeStep::Over { parts, mean } => {
                let counting = self.round().counting().map(str::to_owned).collect();
                self.end = Some(End::Over { parts, mean, counting });
            }
            TreeStep::Failed { reason } => self.end = Some(End::Failed(reason)),
        }
    }

    fn round(&mut self) -> &mut TreeRound {
        self.round.as_mut().expect("a round")
    }

    /// The root has a node's reply.
    fn replied(&mut self, reply: &Reply) {
        self.message();
        let now = self.tasks.now;
        let Some(&ask) = self.asks.get(&reply.task) else { return };
        let (node, reason) = (reply.member.as_str(), reply.reason.clone().unwrap_or_default());
        let index = self.nodes.iter().position(|known| known.name == node).expect("a node");
        let Some(request) = self.round().request(ask).cloned() else { return };
        match (&reply.state, &reply.answer) {
            (ReplyState::Done, Some(answer)) => {
                let head: Value = serde_json::from_slice(&answer.head).expect("JSON");
                if head.get("unopened").is_some() {
                    self.nodes[index].loss = Some("was started anew".into());
                    return self.round().unanswered(now, ask, node, "", Some("was started anew".into()));
                }
                if let Some(content) = self.sent.remove(&(reply.task, index)) {
                    self.contents.insert((ask, node.into()), content);
                }
                let bytes = Some(answer.layout.bytes()).filter(|bytes| *bytes > 0);
                let answer = Answer::read(&request, head).expect("an answer to the request");
                self.round().answered(now, ask, node, answer, bytes);
            }
            (ReplyState::Lost, _) => {
                let loss = format!("is gone: {reason}");
                self.nodes[index].loss.get_or_insert(loss.clone());
                self.round().unanswered(now, ask, node, &reason, Some(loss));
            }
            _ => self.round().unanswered(now, ask, node, &reason, None),
        }
    }

    /// A node has a request. It will answer after some time.
    fn requested(&mut self, index: usize, instance: u64, task: u32) {
        self.message();
        let request = serde_json::from_slice(&self.tasks.members[index].heads[&task]).expect("a request");
        self.count += 1;
        let at = self.tasks.now + self.rng.time(SECOND) + MS;
        self.later.insert((at, self.count), Later { index, instance, task, request });
    }

    fn is_alive(&self, index: usize) -> bool {
        self.tasks.members[index].alive && self.processes[index].is_open
    }

    /// The sums that another node gives, if it is there.
    fn sums_of(&self, name: &str) -> Result<Updates, String> {
        let index = self.nodes.iter().position(|node| node.name == name).expect("a node");
        if !self.is_alive(index) {
            return Err("is gone".into());
        }
        self.processes[index].sums.clone().ok_or_else(|| "it has no sums".into())
    }

    /// A node does what it was asked, and answers.
    fn act(&mut self, later: Later) {
        let Later { index, instance, task, request } = later;
        if !self.tasks.members[index].alive || self.tasks.members[index].instance != instance {
            return;
        }
        let answered = if self.processes[index].is_open {
            self.answer(index, &request)
        } else {
            Ok((json!({ "unopened": true }), None, 0))
        };
        match answered {
            Err(reason) => self.tasks.respond(index, instance, task, Err(&reason)),
            Ok((head, content, bytes)) => {
                if let Some(content) = content {
                    self.sent.insert((task, index), content);
                }
                let layout = if bytes == 0 { Arc::<Layout>::default() } else { tensors("a", bytes / 4) };
                let head = serde_json::to_vec(&head).expect("JSON");
                self.tasks.respond(index, instance, task, Ok((head, layout)));
            }
        }
    }

    fn answer(&mut self, index: usize, request: &Request) -> Result<(Value, Option<Updates>, u64), String> {
        let name = self.nodes[index].name.clone();
        let plain = |value: Value| Ok((value, None, 0));
        match request {
            Request::Wait { .. } => plain(json!({ "clients": self.nodes[index].connected })),
            Request::Round { round, only, .. } => Ok(self.run_round(index, *round, only.as_ref())),
            Request::BecomeTop { claim } => {
                let own = self.processes[index].sums.clone().ok_or("it has no sums")?;
                assert_eq!(*claim, statement(&own));
                self.processes[index].top = own;
                plain(json!({}))
            }
            Request::SendSums { to } => {
                self.processes[index].joined.insert(to.clone());
                plain(json!({}))
            }
            Request::ReceiveSums { node, claim } => {
                match self.sums_of(node) {
                    Err(why) => return plain(json!({ "refused": why })),
                    Ok(sums) => {
                        assert_eq!(*claim, statement(&sums));
                        let top = &mut self.processes[index].top;
                        assert!(top.is_disjoint(&sums), "an update counts twice: {sums:?}");
                        top.extend(sums);
                    }
                }
                plain(json!({}))
            }
            Request::ComputeMean => {
                let mean = json!({ "fold": { "uncovered_bytes": 0 }, "done": 1.0 });
                Ok((mean, Some(self.processes[index].top.clone()), BYTES))
            }
            Request::FoldPart { turn, nodes, parts, .. } => {
                let process = &mut self.processes[index];
                (process.turn, process.part) = (*turn, None);
                process.means.clear();
                let Some(&(start, end)) = parts.get(&name) else { return plain(json!({ "refused": {} })) };
                let (mut folded, mut refused) = (Updates::new(), BTreeMap::new());
                for (other, claim) in nodes {
                    match self.sums_of(other) {
                        Err(why) => drop(refused.insert(other.clone(), why)),
                        Ok(sums) => {
                            assert_eq!(*claim, statement(&sums));
                            assert!(folded.is_disjoint(&sums), "an update counts twice: {sums:?}");
                            folded.extend(sums);
                        }
                    }
                }
                self.processes[index].part = Some((Range::new(start, end), folded));
                plain(json!({ "refused": refused }))
            }
            Request::ComputePart { to } => {
                let part = self.processes[index].part.clone();
                let (range, mean) = part.ok_or("it has no part of the sums")?;
                let turn = self.processes[index].turn;
                self.processes[index].delivered.clear();
                for other in to.iter().filter(|other| **other != name) {
                    let at = self.nodes.iter().position(|node| node.name == *other).expect("a node");
                    if self.is_alive(at) && self.processes[at].turn == turn {
                        self.processes[at].means.insert(range.start, mean.clone());
                        self.processes[index].delivered.push(other.clone());
                    }
                }
                let head = json!({ "fold": { "uncovered_bytes": 0 }, "done": 1.0 });
                Ok((head, Some(mean), range.len()))
            }
            Request::ConfirmParts => plain(json!({ "has": self.processes[index].delivered })),
        }
    }

    fn run_round(
        &mut self,
        index: usize,
        round: u32,
        only: Option<&BTreeMap<String, Vec<String>>>,
    ) -> (Value, Option<Updates>, u64) {
        let node = self.nodes[index].clone();
        let drawn = only.map_or(&node.clients, |only| &only[&node.name]).clone();
        let mut participants = Vec::new();
        let mut sums = Updates::new();
        for client in drawn {
            self.asked.push(client.clone());
            let comes = !self.rng.chance(self.absent);
            participants.push(json!({
                "client": client, "state": if comes { "whole" } else { "lost" }, "samples": weight(&client),
            }));
            if comes {
                sums.insert(client);
            }
        }
        let sums = Some(sums).filter(|sums| !sums.is_empty());
        let process = &mut self.processes[index];
        *process = Process { is_open: true, sums: sums.clone(), ..Process::default() };
        let outcome = json!({ "round": round, "participants": participants, "failure": null });
        let head = json!({ "outcome": outcome, "held": sums.is_some(), "clients": node.clients });
        let bytes = if sums.is_some() { BYTES } else { 0 };
        (head, sums, bytes)
    }
}

/// A round in which all clients take part.
pub fn plan(number: u32, top: TopKind) -> TreePlan {
    TreePlan { number, config: "{}".into(), top, enough: 1, draw: None, placed: true, proofs: false }
}

/// Checks that a round's mean is of the same updates everywhere, and that all other clients are named with a
/// reason.
pub fn check(world: &TreeWorld, end: &End) -> Updates {
    let End::Over { parts, counting, .. } = end else { panic!("{end:?}") };
    for updates in world.model.values() {
        assert_eq!(updates, counting, "what is said to count, and what the mean is of: {parts:?}");
    }
    let mut named = Updates::new();
    for part in parts {
        assert_eq!(part.state == PartState::Counts, part.reason.is_empty(), "{part:?}");
        for client in &part.clients {
            assert!(named.insert(client.clone()), "{client} is named twice: {parts:?}");
            assert!(part.state == PartState::Counts || !counting.contains(client), "{part:?}");
        }
    }
    assert!(counting.is_subset(&named), "{parts:?}");
    counting.clone()
}
