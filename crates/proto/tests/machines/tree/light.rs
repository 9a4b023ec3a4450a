//! The root and the nodes of a tree on a network of whole messages, which overtake each other. A round takes
//! microseconds, so tens of thousands of seeds are tried.

use std::collections::{BTreeMap, BTreeSet};

use thalweg_proto::{PartState, Time, TopKind, TreeNode, TreePlan, TreeRound, TreeStep};
use thalweg_wire::tree::{Answer, Request};

use super::nodes::{names, split, Answered, Mask, Nodes, BYTES, CELLS, LIVENESS, UNREAD};
use super::world::{check_end, plan, End, Fault, Updates};
use super::{all, of, NODES};
use crate::common::network::Rng;
use crate::common::{MS, SECOND};

/// How long a lost link may take to come back.
const GRACE: Time = Time::from_secs(5);

/// What happens at the root.
enum Happens {
    Answered { task: u32, answer: Answered },
    Lost { task: u32 },
}

/// A request that is not answered.
#[derive(Debug)]
struct Open {
    ask: u32,
    index: usize,
    request: Request,
}

struct Light {
    now: Time,
    rng: Rng,
    top: TopKind,
    known: Vec<TreeNode>,
    nodes: Nodes,
    round: Option<TreeRound>,
    events: BTreeMap<(Time, u64), Happens>,
    count: u64,
    open: BTreeMap<u32, Open>,
    last_task: u32,
    /// What came with answers.
    contents: BTreeMap<(u32, String), Mask>,
    end: Option<End>,
    messages: u64,
    faults: BTreeMap<u64, (usize, Fault)>,
}

impl Light {
    fn new(seed: u64, top: TopKind) -> Self {
        let mut nodes = Nodes::new(seed, &NODES);
        let owned = |clients: &[&str]| clients.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let known = NODES.iter().enumerate().map(|(index, (name, clients))| TreeNode {
            name: (*name).into(),
            clients: owned(clients),
            connected: owned(clients),
            peers: nodes.open(index, top),
            ..TreeNode::default()
        });
        let known = known.collect();
        Self {
            now: Time::ZERO,
            rng: Rng::new(seed ^ 0x11f7),
            top,
            known,
            nodes,
            round: None,
            events: BTreeMap::new(),
            count: 0,
            open: BTreeMap::new(),
            last_task: 0,
            contents: BTreeMap::new(),
            end: None,
            messages: 0,
            faults: BTreeMap::new(),
        }
    }

    fn at(&mut self, at: Time, what: Happens) {
        self.count += 1;
        self.events.insert((at, self.count), what);
    }

    /// When a message between the root and a node arrives.
    fn arrival(&mut self) -> Time {
        self.now + self.rng.time(100 * MS) + MS
    }

    fn run(&mut self, plan: TreePlan) -> End {
        for index in 0..self.known.len() {
            if self.known[index].loss.is_some() && self.nodes.is_alive(index) {
                let peers = self.nodes.open(index, self.top);
                let node = &mut self.known[index];
                (node.loss, node.has_model, node.peers) = (None, false, peers);
            }
        }
        self.open.clear();
        self.contents.clear();
        self.round = Some(TreeRound::new(self.now, plan, self.known.clone(), Box::new(split)));
        self.pump();
        let limit = self.now + 1000 * SECOND;
        while self.end.is_none() {
            self.step(limit);
        }
        let end = self.end.take().expect("the round has ended");
        for node in &mut self.known {
            node.has_model = match &end {
                End::Over { mean, .. } => mean.has.contains(&node.name),
                End::Failed(_) => false,
            };
        }
        end
    }

    fn step(&mut self, limit: Time) {
        let own = self.events.keys().next().map(|key| key.0);
        let others = self.nodes.next_time();
        let next = own.into_iter().chain(others).min().map(|at| at.max(self.now)).filter(|at| *at <= limit);
        self.now = next.unwrap_or_else(|| panic!("the round hangs at {:?}: {:?}", self.now, self.open));
        if own.is_some_and(|at| at <= self.now) {
            if let Some((_, what)) = self.events.pop_first() {
                self.happen(what);
            }
        } else {
            self.nodes.step(self.now);
            for (index, instance, task, answer) in std::mem::take(&mut self.nodes.answers) {
                if task != UNREAD && self.nodes.instance(index) == instance {
                    self.message();
                    let at = self.arrival();
                    self.at(at, Happens::Answered { task, answer });
                }
            }
        }
        self.pump();
    }

    fn happen(&mut self, what: Happens) {
        let now = self.now;
        match what {
            Happens::Lost { task } => {
                let Some(Open { ask, index, .. }) = self.open.remove(&task) else { return };
                let node = &mut self.known[index];
                let loss = node.loss.get_or_insert_with(|| "is gone: its link broke".into());
                let (name, loss) = (node.name.clone(), loss.clone());
                self.round().unanswered(now, ask, &name, "its link broke", Some(loss));
            }
            Happens::Answered { task, answer } => {
                let Some(Open { ask, index, request }) = self.open.remove(&task) else { return };
                let name = self.known[index].name.clone();
                match answer {
                    Err(reason) => self.round().unanswered(now, ask, &name, &reason, None),
                    Ok((head, ..)) if head.get("unopened").is_some() => {
                        let loss = Some("was started anew".to_owned());
                        self.known[index].loss.clone_from(&loss);
                        self.round().unanswered(now, ask, &name, "", loss);
                    }
                    Ok((head, content, bytes)) => {
                        if let Some(content) = content {
                            self.contents.insert((ask, name.clone()), content);
                        }
                        let answer = Answer::read(&request, head).expect("an answer to the request");
                        self.round().answered(
                            now,
                            ask,
                            &name,
                            answer,
                            Some(bytes).filter(|bytes| *bytes > 0),
                        );
                    }
                }
            }
        }
    }

    fn round(&mut self) -> &mut TreeRound {
        self.round.as_mut().expect("a round")
    }

    fn pump(&mut self) {
        while let Some(step) = self.round.as_mut().and_then(TreeRound::poll_step) {
            match step {
                TreeStep::Ask { ask, request, nodes, .. } => {
                    for name in nodes {
                        let index = self.known.iter().position(|node| node.name == name).expect("a node");
                        self.last_task += 1;
                        self.open.insert(self.last_task, Open { ask, index, request: request.clone() });
                        self.deliver(self.last_task, index, request.clone());
                        self.message();
                    }
                }
                TreeStep::Write { ask, parts } => {
                    let all: u64 = parts.iter().map(|(_, start, end)| end - start).sum();
                    assert_eq!(all, BYTES, "the whole model is written");
                    for (node, start, end) in parts {
                        let mean = self.contents.remove(&(ask, node)).expect("its part of the mean has come");
                        let cell = BYTES / CELLS;
                        self.nodes.model[(start / cell) as usize..(end / cell) as usize].fill(mean);
                    }
                }
                TreeStep::Over { parts, mean } => {
                    let counting = self.round().counting().map(str::to_owned).collect();
                    self.end = Some(End::Over { parts, mean, counting });
                }
                TreeStep::Failed { reason } => self.end = Some(End::Failed(reason)),
                other => unreachable!("{other:?} is for a dedicated top, or for proofs"),
            }
        }
    }

    fn deliver(&mut self, task: u32, index: usize, request: Request) {
        if !self.nodes.is_alive(index) {
            return self.at(self.now + GRACE, Happens::Lost { task });
        }
        let at = self.arrival();
        self.nodes.request(at, index, task, request);
        if self.nodes.paused_until(index) > self.now + LIVENESS {
            self.at(self.now + LIVENESS + GRACE, Happens::Lost { task });
        }
    }

    /// Counts a message, and does what is to happen then.
    fn message(&mut self) {
        self.messages += 1;
        if let Some((index, fault)) = self.faults.remove(&self.messages) {
            self.fault(index, fault);
        }
    }

    fn open_at(&self, index: usize) -> Vec<(u32, Request)> {
        let open = self.open.iter().filter(|(_, open)| open.index == index);
        open.map(|(task, open)| (*task, open.request.clone())).collect()
    }

    fn fault(&mut self, index: usize, fault: Fault) {
        let now = self.now;
        match fault {
            // A task goes on when its link is back.
            Fault::Cut => self.nodes.pause(now, index, SECOND),
            Fault::Pause(time) => {
                self.nodes.pause(now, index, time);
                if time > LIVENESS {
                    for (task, _) in self.open_at(index) {
                        self.at(now + LIVENESS + GRACE, Happens::Lost { task });
                    }
                }
            }
            Fault::Kill { seen } => {
                self.nodes.kill(now, index);
                let after = if seen { Time::ZERO } else { GRACE };
                for (task, _) in self.open_at(index) {
                    self.at(now + after, Happens::Lost { task });
                }
                if seen {
                    self.known[index].loss.get_or_insert_with(|| "is gone: killed by signal 9".into());
                    let at = self.arrival();
                    self.nodes.forget(at, index, "killed by signal 9");
                    let known = self.known.clone();
                    if let Some(round) = &mut self.round {
                        round.update(now, known, BTreeSet::new());
                    }
                }
            }
            Fault::Restart => {
                self.nodes.restart(now, index);
                // The root offers the new process the tasks that it has not answered.
                for (task, request) in self.open_at(index) {
                    self.deliver(task, index, request);
                }
            }
        }
    }

    /// Checks a round's end, and returns the clients whose updates count.
    fn check(&self, end: &End) -> Updates {
        check_end(self.nodes.model.iter().map(|cell| names(*cell)), end)
    }
}

const TOPS: [TopKind; 2] = [TopKind::FirstFinished, TopKind::Sharded];

#[test]
fn all_updates_count_and_all_nodes_have_the_mean_when_nothing_happens() {
    for top in TOPS {
        for seed in 0..200 {
            let mut world = Light::new(seed, top);
            for number in 1..4 {
                let end = world.run(plan(number, top));
                assert_eq!(world.check(&end), all(), "{top:?} {seed}");
                let End::Over { mean, .. } = end else { unreachable!() };
                let has: &[&str] = if top == TopKind::Sharded { &["n1", "n2", "n3"] } else { &[] };
                assert_eq!(mean.has, has);
                assert!(world.known.iter().all(|node| node.loss.is_none()));
            }
        }
    }
}

/// Each fault, at each message of the root, at each node. Returns how many runs there were.
fn at_each_message(seeds: u64, faults: &[Fault], mut judge: impl FnMut(&Light, &End, usize)) -> u64 {
    let mut runs = 0;
    for top in TOPS {
        for seed in 0..seeds {
            let mut world = Light::new(seed, top);
            world.run(plan(1, top));
            world.run(plan(2, top));
            for at in 1..=world.messages {
                for index in 0..NODES.len() {
                    for &fault in faults {
                        let mut world = Light::new(seed, top);
                        world.faults.insert(at, (index, fault));
                        for number in 1..3 {
                            let end = world.run(plan(number, top));
                            judge(&world, &end, index);
                        }
                        runs += 1;
                    }
                }
            }
        }
    }
    runs
}

#[test]
fn a_node_that_is_lost_at_any_message_costs_its_own_updates_or_none() {
    let faults =
        [Fault::Kill { seen: true }, Fault::Kill { seen: false }, Fault::Restart, Fault::Pause(500 * SECOND)];
    let mut counts = BTreeSet::new();
    let runs = at_each_message(8, &faults, |world, end, index| {
        let counted = world.check(end);
        let left: Updates = all().difference(&of(index)).cloned().collect();
        assert!(counted == all() || counted == left, "{counted:?}: {end:?}");
        counts.insert(counted.len() == all().len());
    });
    assert_eq!(counts.len(), 2, "some nodes are lost before their sums have left them, and some after");
    assert!(runs > 1000, "{runs}");
}

#[test]
fn a_node_that_is_slow_at_any_message_costs_no_update() {
    at_each_message(8, &[Fault::Cut, Fault::Pause(2 * SECOND)], |world, end, _| {
        assert_eq!(world.check(end), all(), "{end:?}");
    });
}

/// Any number of faults, at any time, over several rounds, with nodes that cannot always connect.
fn random(top: TopKind, seed: u64) {
    let mut world = Light::new(seed, top);
    world.nodes.absent = if seed.is_multiple_of(3) { 0.3 } else { 0.0 };
    world.nodes.unreachable = if seed.is_multiple_of(5) { 0.1 } else { 0.0 };
    world.nodes.delay = [MS, 50 * MS, 2 * SECOND][world.rng.below(3) as usize];
    for _ in 0..world.rng.below(6) {
        let at = 1 + world.rng.below(60);
        let index = world.rng.below(3) as usize;
        let time = world.rng.time(20 * SECOND);
        let seen = world.rng.chance(0.5);
        let faults = [Fault::Cut, Fault::Pause(time), Fault::Kill { seen }, Fault::Restart, Fault::Restart];
        let fault = faults[world.rng.below(5) as usize];
        world.faults.insert(at, (index, fault));
    }
    for number in 1..4 {
        let enough = 1 + world.rng.below(5) as u32;
        let before = world.nodes.model.clone();
        match world.run(TreePlan { enough, ..plan(number, top) }) {
            end @ End::Over { .. } => {
                let counted = world.check(&end);
                assert!(counted.len() >= enough as usize);
                let End::Over { parts, .. } = &end else { unreachable!() };
                let counts = |node: &str| {
                    parts.iter().any(|part| part.node == node && part.state == PartState::Counts)
                };
                let of_parts = NODES.iter().enumerate().filter(|(_, (name, _))| counts(name));
                let whole: Updates = of_parts.flat_map(|(index, _)| of(index)).collect();
                assert!(world.nodes.absent > 0.0 || counted == whole, "a node counts whole, or not at all");
            }
            End::Failed(reason) => {
                assert!(
                    reason.contains(&format!("round {number}")) || reason.contains("no node"),
                    "{reason}"
                );
                assert_eq!(world.nodes.model, before, "a round that fails leaves the model");
            }
        }
    }
}

#[test]
fn whatever_happens_a_mean_is_of_the_same_updates_everywhere_or_the_round_fails_by_name() {
    for top in TOPS {
        (0..6000).for_each(|seed| random(top, seed));
    }
}
