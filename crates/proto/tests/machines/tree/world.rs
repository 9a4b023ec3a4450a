//! Rounds of a tree in virtual time: the nodes are members of the root's tasks over the virtual network. A node
//! may be a middle node, which is such a world itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;
use thalweg_proto::{
    Mean, PartOutcome, PartState, Reply, ReplyState, ServerMachine, TaskPlan, Time, TopKind, TreeNode,
    TreePlan, TreeRound, TreeStep,
};
use thalweg_wire::tree::{Answer, Arrival, MeanAnswer, MeanFold};
use thalweg_wire::Layout;

use super::middle::Middle;
use super::nodes::{bit, names, split, statement, Answered, Mask, Nodes, BYTES, CELLS, UNREAD};
use crate::common::network::{Path, Rng};
use crate::common::tasks::{config, tensors, Does, TaskWorld};
use crate::common::{MS, SECOND};

/// The names of the clients whose updates are in sums or in a mean.
pub type Updates = BTreeSet<String>;

/// How a round ended.
#[derive(Debug, Clone)]
pub enum End {
    Over { parts: Vec<PartOutcome>, mean: Mean, counting: Updates },
    Failed(String),
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
    /// The nodes' own side.
    pub below: Nodes,
    /// The nodes that have nodes below them, by index.
    pub middles: BTreeMap<usize, Middle>,
    round: Option<TreeRound>,
    /// The request that each task is for.
    asks: BTreeMap<u32, u32>,
    replies: usize,
    /// The round that began last.
    pub number: u32,
    /// The sums or the mean that came with a node's answer to a request.
    contents: BTreeMap<(u32, String), Mask>,
    sent: BTreeMap<(u32, usize), Mask>,
    /// The updates in the root's sums.
    root: Mask,
    end: Option<End>,
    /// The clients of whose updates the root has learned, in that order.
    pub learned: Vec<String>,
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
        let below = Nodes::new(seed, nodes);
        let owned = |clients: &[&str]| clients.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let nodes: Vec<_> = nodes
            .iter()
            .map(|(name, clients)| TreeNode {
                name: (*name).into(),
                clients: owned(clients),
                connected: owned(clients),
                ..TreeNode::default()
            })
            .collect();
        Self {
            tasks,
            rng,
            nodes,
            below,
            middles: BTreeMap::new(),
            round: None,
            asks: BTreeMap::new(),
            replies: 0,
            number: 0,
            contents: BTreeMap::new(),
            sent: BTreeMap::new(),
            root: 0,
            end: None,
            learned: Vec::new(),
            messages: 0,
            faults: BTreeMap::new(),
        }
    }

    /// Runs a round to its end.
    pub fn run(&mut self, plan: TreePlan) -> End {
        let limit = self.tasks.now + 1000 * SECOND;
        self.below.asked.clear();
        self.begin(plan);
        loop {
            if let Some(end) = self.take_end() {
                return end;
            }
            self.step(limit);
        }
    }

    /// Begins a round. If another one is under way, its tasks are cancelled first.
    pub fn begin(&mut self, plan: TreePlan) {
        for task in std::mem::take(&mut self.asks).into_keys() {
            self.tasks.server.cancel(self.tasks.now, task);
        }
        self.tasks.server_actions();
        (self.root, self.end, self.number) = (0, None, plan.number);
        self.contents.clear();
        // Nodes that were lost and are connected again are opened anew.
        for (index, node) in self.nodes.iter_mut().enumerate() {
            let is_back = node.loss.is_some() && self.tasks.members[index].alive;
            if is_back || node.peers.is_empty() {
                (node.loss, node.has_model) = (None, false);
                node.peers = self.below.open(index, plan.top);
                if let Some(middle) = self.middles.get_mut(&index) {
                    middle.open();
                }
            }
        }
        let now = self.tasks.now;
        self.round = Some(TreeRound::new(now, plan, self.nodes.clone(), Box::new(split)));
        self.pump();
    }

    /// How the round has ended; `None` while it is under way.
    pub fn take_end(&mut self) -> Option<End> {
        let end = self.end.take()?;
        for node in &mut self.nodes {
            // After a round that has failed, all nodes are sent the model.
            node.has_model = matches!(&end, End::Over { mean, .. } if mean.has.contains(&node.name));
        }
        Some(end)
    }

    /// The updates in the sums that the root has merged.
    pub fn sums(&self) -> Mask {
        self.root
    }

    /// When the next thing happens.
    pub fn next_time(&self) -> Option<Time> {
        let timer = self.round.as_ref().and_then(TreeRound::poll_timeout);
        let middles = self.middles.values().filter_map(Middle::next_time);
        let others = [timer, self.below.next_time(), self.tasks.next_time()];
        others.into_iter().flatten().chain(middles).min().map(|at| at.max(self.tasks.now))
    }

    pub fn step(&mut self, limit: Time) {
        let now = self.tasks.now;
        let timer = self.round.as_ref().and_then(TreeRound::poll_timeout);
        let below = self.below.next_time();
        let next = self.next_time().filter(|at| *at <= limit);
        let next = next.unwrap_or_else(|| panic!("the round hangs at {now:?}: {:?}", self.nodes));
        if timer.is_some_and(|at| at <= next) {
            self.tasks.now = next;
            if let Some(round) = &mut self.round {
                round.timeout(next);
                assert!(round.poll_timeout().is_none_or(|at| at > next), "the timer stands still");
            }
        } else if below.is_some_and(|at| at <= next) {
            self.tasks.now = next;
            self.below.step(next);
            for (index, instance, task, answer) in std::mem::take(&mut self.below.answers) {
                if task != UNREAD && self.below.instance(index) == instance {
                    self.respond(index, task, answer);
                }
            }
        } else if let Some((&index, middle)) = self.middles.iter_mut().find(|(_, middle)| middle.is_due(next))
        {
            self.tasks.now = next;
            if let Some((task, answer)) = middle.step() {
                self.respond(index, task, answer);
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
            Fault::Pause(time) => {
                self.tasks.pause(index, time);
                if let Some(middle) = self.middles.get_mut(&index) {
                    middle.pause(time);
                }
            }
            Fault::Kill { seen } => {
                self.tasks.kill(index);
                self.below.kill(self.tasks.now, index);
                if let Some(middle) = self.middles.get_mut(&index) {
                    middle.kill();
                }
                if seen {
                    self.lose(index, "is gone: killed by signal 9");
                    self.tasks.forget(&name);
                    self.below.forget(self.tasks.now + MS, index, "killed by signal 9");
                }
            }
            Fault::Restart => {
                self.tasks.kill(index);
                self.below.restart(self.tasks.now, index);
                if let Some(middle) = self.middles.get_mut(&index) {
                    middle.restart(self.tasks.now);
                }
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
                    layout: if model { tensors("w", BYTES / 4) } else { Arc::default() },
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
                assert_eq!(claim, statement(sums));
                assert_eq!(self.root & sums, 0, "an update counts twice");
                self.root |= sums;
                self.round().merged(now, part, None);
            }
            TreeStep::Finish => {
                self.below.model.fill(self.root);
                let mean = MeanAnswer { fold: MeanFold::default(), done: now.as_secs_f64() };
                self.round().finished(mean);
            }
            TreeStep::Export => {
                let counting = self.round().counting().fold(0, |sums, client| sums | bit(client));
                assert_eq!(self.root, counting, "the sums are of what is said to count");
                self.round().exported();
            }
            TreeStep::Write { ask, parts } => {
                let all: u64 = parts.iter().map(|(_, start, end)| end - start).sum();
                assert_eq!(all, BYTES, "the whole model is written");
                for (node, start, end) in parts {
                    let mean = self.contents.remove(&(ask, node)).expect("its part of the mean has come");
                    let cell = BYTES / CELLS;
                    self.below.model[(start / cell) as usize..(end / cell) as usize].fill(mean);
                }
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
                if let Answer::Arrived(arrivals) = &answer {
                    self.learned.extend(arrivals.iter().map(|Arrival(client, _)| client.clone()));
                }
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
        if self.tasks.members[index].alive && self.tasks.members[index].instance == instance {
            let request = serde_json::from_slice(&self.tasks.members[index].heads[&task]);
            let request = request.expect("a request");
            match self.middles.get_mut(&index) {
                None => self.below.request(self.tasks.now, index, task, request),
                Some(middle) => {
                    if let Some(answer) = middle.request(self.tasks.now, task, request) {
                        self.respond(index, task, answer);
                    }
                }
            }
        }
    }

    /// A node answers a request.
    fn respond(&mut self, index: usize, task: u32, answer: Answered) {
        let instance = self.tasks.members[index].instance;
        match answer {
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
}

/// A round in which all clients take part.
pub fn plan(number: u32, top: TopKind) -> TreePlan {
    let config = "{}".into();
    TreePlan { number, config, top, enough: 1, draw: None, only: None, placed: true, proofs: false }
}

/// Checks that a round's mean is of the same updates everywhere, and that all other clients are named with a
/// reason.
pub fn check(world: &TreeWorld, end: &End) -> Updates {
    check_end(world.below.model.iter().map(|cell| names(*cell)), end)
}

/// As [`check`], of a model each of whose cells has these updates.
pub fn check_end(model: impl Iterator<Item = Updates>, end: &End) -> Updates {
    let End::Over { parts, counting, .. } = end else { panic!("{end:?}") };
    for updates in model {
        assert_eq!(updates, *counting, "what is said to count, and what the mean is of: {parts:?}");
    }
    check_names(end)
}

/// Checks that each client is named once, and counts or is named with a reason. Returns those that count.
pub fn check_names(end: &End) -> Updates {
    let End::Over { parts, counting, .. } = end else { panic!("{end:?}") };
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
