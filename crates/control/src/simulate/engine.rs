//! The event queue: rounds, tasks, workers, transfers.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::arrivals::{counted, Arrival};
use super::costs::at_rate;
use super::machine::{Machine, Range2, Standing, Transfer, Work, Worker};
use super::tasks::{dealt, Leaves, Task};
use super::{Costs, Impossible, Levels, Outcome, Scenario, Start};
use crate::reuse::{source, Role, Source};
use crate::{decide, leaves_for, share, Config, Plan, Scaling, Split, State, Time, Top, UPDATE};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// An update is counted at a node.
    Arrived { node: u32 },
    /// A core of a node has finished.
    Worked { node: u32, work: Work },
    /// An input is there for each of these tasks.
    Delivered { to: Range2 },
    /// A node's sums, or a share of them, are whole at another node.
    Received { transfer: Transfer },
    /// The autoscalers decide.
    Tick,
}

pub struct Engine<'a> {
    scenario: &'a Scenario,
    config: Config,
    state: State,
    now: Time,
    numbered: u64,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    machines: Vec<Machine>,
    round: Round,
}

/// What belongs to one round.
#[derive(Default)]
struct Round {
    open: Time,
    tasks: Vec<Task>,
    leaves: Vec<Leaves>,
    /// Nodes that have updates.
    used: Vec<u32>,
    /// Tasks of the top by its place in `tops`.
    tops: Vec<(u32, Range2)>,
    /// Tasks of the top that are not done.
    left: u32,
    done: Option<Time>,
    policy: Option<Top>,
    bytes: u64,
    peak: u64,
    outcome: Outcome,
}

impl<'a> Engine<'a> {
    pub fn new(scenario: &'a Scenario) -> Self {
        let config = scenario.configured();
        let knobs =
            crate::autoscaler::Knobs { concurrency: config.inputs.min(1 << 20), ..scenario.autoscaler };
        let machines = scenario.nodes.iter().map(|spec| Machine::new(spec, knobs)).collect();
        let (state, events, round) = (scenario.state(), BinaryHeap::new(), Round::default());
        let mut engine =
            Self { scenario, config, state, now: Time::ZERO, numbered: 0, events, machines, round };
        if engine.config.scaling == Scaling::Knative {
            engine.after(knobs.tick, Event::Tick);
        }
        engine
    }

    pub fn rounds(mut self) -> Result<Vec<Outcome>, Impossible> {
        (1..=self.scenario.rounds).map(|round| self.one(round)).collect()
    }

    /// Plays one round.
    fn one(&mut self, round: u32) -> Result<Outcome, Impossible> {
        let (plan, reason) = decide(self.now, &self.state, &self.config);
        let (arrivals, draws) = counted(self.scenario, round, self.now, &plan.homes);
        if arrivals.len() as u32 != self.scenario.goal() {
            let (placed, goal) = (plan.homes.iter().flatten().count() as u32, self.scenario.goal());
            return Err(Impossible::Placement {
                round,
                placed,
                goal,
                reasons: reason.to_string().replace('\n', ", "),
            });
        }
        self.open(round, &plan, &arrivals, draws);
        while self.round.done.is_none() {
            let Some(Reverse((at, _, event))) = self.events.pop() else { break };
            // What was left of an earlier round comes while its model spreads.
            self.now = self.now.max(at);
            self.handle(event);
        }
        let outcome = self.close(&arrivals);
        self.remember(plan);
        Ok(outcome)
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrived { node } => self.arrived(node),
            Event::Worked { node, work } => self.worked(node, work),
            Event::Delivered { to } => (to.0..to.1).for_each(|task| self.delivered(task)),
            Event::Received { transfer } => self.received(transfer),
            Event::Tick => self.tick(),
        }
    }

    fn costs(&self) -> &'a Costs {
        &self.scenario.costs
    }

    fn at(&mut self, at: Time, event: Event) {
        self.numbered += 1;
        self.events.push(Reverse((at, self.numbered, event)));
    }

    fn after(&mut self, delay: Duration, event: Event) {
        self.at(self.now.saturating_add(delay), event);
    }

    // ---- a round's beginning and end

    fn open(&mut self, round: u32, plan: &Plan, arrivals: &[Arrival], draws: u32) {
        let mut come = vec![0_u32; self.machines.len()];
        arrivals.iter().for_each(|arrival| come[arrival.node as usize] += 1);
        let used = (0..).zip(&come).filter(|(_, &come)| come > 0).map(|(node, _)| node).collect();
        let outcome = Outcome {
            round,
            counted: arrivals.len() as u32,
            nodes_used: come.iter().filter(|&&come| come > 0).count() as u32,
            arrival: arrivals[arrivals.len() - 1].at - arrivals[0].at,
            draws,
            ..Outcome::default()
        };
        self.round =
            Round { open: self.now, used, outcome, policy: Some(plan.top.clone()), ..Round::default() };
        self.scale(plan);
        for (node, &come) in (0..).zip(&come) {
            let leaves = self.lay_out(node, come);
            self.round.leaves.push(leaves);
        }
        self.open_tops(&plan.top);
        arrivals.iter().for_each(|arrival| self.at(arrival.at, Event::Arrived { node: arrival.node }));
    }

    /// Starts and ends workers as the plan says; the autoscaler's are its own.
    fn scale(&mut self, plan: &Plan) {
        if self.config.scaling == Scaling::Knative {
            return;
        }
        for tree in &plan.trees {
            self.machines[tree.node as usize].leaves = tree.leaves;
            (0..tree.start).for_each(|_| self.start(tree.node, Role::Leaf));
            (0..tree.stop).for_each(|_| self.end_idle(tree.node, Role::Leaf));
        }
    }

    /// Makes the tasks of a node that so many updates come to.
    fn lay_out(&mut self, node: u32, come: u32) -> Leaves {
        let first = self.round.tasks.len();
        if come == 0 {
            return Leaves { first, end: first, ..Leaves::default() };
        }
        let flat = self.scenario.switches.levels == Levels::Flat;
        let ranges = self.config.split == Split::Ranges && !flat;
        let workers = self.config.workers.max(1);
        let (bytes, fixed) = (self.scenario.bytes, self.config.scaling == Scaling::Fixed);
        if ranges {
            for part in 0..workers {
                let range = share(bytes, part, workers);
                self.round.tasks.push(Task::new(node, Role::Leaf, range.end - range.start, come));
            }
        } else {
            let wanted = leaves_for(u64::from(come) * UPDATE, self.config.inputs);
            let (leaves, each) = match (flat, fixed) {
                (true, _) => (1, None),
                (_, true) => (workers.min(come), None),
                _ => (wanted, Some(self.config.inputs.max(1))),
            };
            let goals = dealt(come, leaves, each);
            self.round.tasks.extend(goals.into_iter().map(|goal| Task::new(node, Role::Leaf, bytes, goal)));
        }
        let end = self.round.tasks.len();
        let has_middle = !ranges && end - first > 1;
        let middle = has_middle.then_some(end);
        if has_middle {
            self.round.tasks.push(Task::new(node, Role::Middle, bytes, (end - first) as u32));
        }
        let left = if has_middle { 1 } else { (end - first) as u32 };
        Leaves { first, end, ranges, round: fixed && !ranges, come: 0, middle, left }
    }

    /// Makes the top's tasks where it is known where they are.
    fn open_tops(&mut self, top: &Top) {
        let (nodes, bytes) = (self.round.used.len() as u32, self.scenario.bytes);
        match top {
            Top::Node { node } => {
                let own = self.round.used == [*node];
                if !(own && self.config.reuse) {
                    self.make_top(*node, bytes, nodes);
                }
            }
            Top::Sharded { .. } => {
                for (part, node) in (0..nodes).zip(self.round.used.clone()) {
                    let range = share(bytes, part, nodes);
                    self.make_top(node, range.end - range.start, nodes);
                }
            }
            Top::FirstFinished | Top::Nowhere => {}
        }
    }

    fn make_top(&mut self, node: u32, bytes: u64, inputs: u32) {
        let first = self.round.tasks.len();
        let parts = if self.config.split == Split::Ranges { self.config.workers.max(1) } else { 1 };
        for part in 0..parts {
            let range = share(bytes, part, parts);
            self.round.tasks.push(Task::new(node, Role::Top, range.end - range.start, inputs));
        }
        self.round.left += parts;
        self.round.tops.push((node, Range2(first, first + parts as usize)));
    }

    fn close(&mut self, arrivals: &[Arrival]) -> Outcome {
        let done = self.round.done.unwrap_or(self.now);
        self.now = done;
        let spread = self.spread();
        let bytes_peak = self.round.peak;
        let open = self.round.open;
        let lived: Duration = self
            .machines
            .iter()
            .flat_map(|machine| &machine.workers)
            .filter(|worker| worker.standing != Standing::Ended)
            .map(|worker| done.saturating_sub(worker.since.max(open)))
            .sum();
        let reuse = self.config.reuse;
        for machine in &mut self.machines {
            machine.workers.iter_mut().filter(|_| reuse).for_each(|worker| worker.role = Role::Leaf);
        }
        let top = self.round.tops.first().map(|(node, _)| *node).or(self.round.used.first().copied());
        let sharded = self.round.tops.len() > 1;
        let mut outcome = std::mem::take(&mut self.round.outcome);
        outcome.top = top.filter(|_| !sharded);
        outcome.completion = done.saturating_sub(arrivals[0].at);
        outcome.spread = spread.saturating_sub(done);
        outcome.worker_seconds += lived;
        outcome.peak_bytes = bytes_peak;
        self.now = spread;
        outcome
    }

    /// Sends the new model to all used nodes. Returns when the last one has it.
    ///
    /// In each turn every top sends to another node, so that no link waits for another.
    fn spread(&self) -> Time {
        let (used, bytes) = (&self.round.used, self.scenario.bytes);
        let from: Vec<u32> = match self.round.tops.len() {
            0 => used.first().copied().into_iter().collect(),
            _ => self.round.tops.iter().map(|(node, _)| *node).collect(),
        };
        let parts = from.len() as u32;
        let mut last = self.now;
        let mut free = vec![(self.now, self.now); self.machines.len()];
        for turn in 0..used.len() {
            for (part, &source) in (0..parts).zip(&from) {
                let target = used[(part as usize + turn) % used.len()];
                if target != source {
                    let range = share(bytes, part, parts);
                    let begin = free[source as usize].0.max(free[target as usize].1);
                    let end = begin.saturating_add(self.on_link(source, target, range.end - range.start));
                    (free[source as usize].0, free[target as usize].1) = (end, end);
                    last = last.max(end);
                }
            }
        }
        last
    }

    /// What the next decision is made from.
    fn remember(&mut self, plan: Plan) {
        for (client, home) in self.state.clients.iter_mut().zip(&plan.homes) {
            client.home = *home;
        }
        if plan.planned {
            self.state.planned = plan.next.checked_sub(self.config.every);
            plan.trees
                .iter()
                .for_each(|tree| self.state.nodes[tree.node as usize].estimate = Some(tree.estimate));
        }
        for (node, machine) in self.state.nodes.iter_mut().zip(&self.machines) {
            (node.workers, node.heard) = (machine.count(Role::Leaf), self.now);
        }
    }

    // ---- inputs

    fn arrived(&mut self, node: u32) {
        let leaves = &mut self.round.leaves[node as usize];
        let (first, end, come) = (leaves.first, leaves.end, leaves.come);
        leaves.come += 1;
        let to = if leaves.ranges {
            Range2(first, end)
        } else {
            let place = if leaves.round {
                first + come % (end - first)
            } else {
                // Leaves are filled one after the other; all before the last one get as many.
                first + come / self.config.inputs.max(1) as usize
            };
            let place = place.min(end - 1);
            Range2(place, place + 1)
        };
        let bytes = self.scenario.bytes;
        self.hold(bytes * self.scenario.switches.copies());
        let (core, delay) = self.costs().to_worker(bytes, &self.scenario.switches);
        self.move_to(node, core, delay, to);
    }

    /// Brings an input to tasks: by so much time of a core, or after a delay.
    fn move_to(&mut self, node: u32, core: Duration, delay: Duration, to: Range2) {
        if core > Duration::ZERO {
            self.submit(node, Work::Move { to }, core);
        } else {
            self.after(delay, Event::Delivered { to });
        }
    }

    fn delivered(&mut self, task: usize) {
        self.round.tasks[task].waiting += 1;
        self.pump(task);
    }

    /// Goes on with a task, if there is something to fold and somebody to do it.
    fn pump(&mut self, at: usize) {
        let task = &mut self.round.tasks[at];
        if !task.is_ready(self.config.timing) {
            return;
        }
        if task.worker.is_none() {
            if !std::mem::replace(&mut task.asked, true) {
                self.ask(at);
            }
            return;
        }
        let inputs = Costs::many(task.waiting);
        task.waiting -= inputs;
        task.running = true;
        let (node, bytes, is_first) = (task.node, task.bytes, task.done == 0);
        if is_first {
            self.hold(bytes);
        }
        self.submit(node, Work::Fold { task: at, inputs }, self.costs().folding(inputs, bytes));
    }

    // ---- cores

    fn submit(&mut self, node: u32, work: Work, lasting: Duration) {
        let begun = self.machines[node as usize].submit(work, lasting);
        self.begin(node, begun);
    }

    fn begin(&mut self, node: u32, begun: Option<(Work, Duration)>) {
        let Some((work, lasting)) = begun else { return };
        let cpu = &mut self.round.outcome.cpu;
        match work {
            Work::Fold { .. } => cpu.fold += lasting,
            Work::Move { .. } | Work::Out { .. } => cpu.moving += lasting,
            Work::Start { .. } => cpu.start += lasting,
        }
        self.after(lasting, Event::Worked { node, work });
    }

    fn worked(&mut self, node: u32, work: Work) {
        let next = self.machines[node as usize].next();
        self.begin(node, next);
        match work {
            Work::Fold { task, inputs } => self.folded(task, inputs),
            Work::Move { to } => (to.0..to.1).for_each(|task| self.delivered(task)),
            Work::Out { node } => self.send(node),
            Work::Start { worker } => self.started(node, worker),
        }
    }

    fn folded(&mut self, at: usize, inputs: u32) {
        let task = &mut self.round.tasks[at];
        task.running = false;
        task.done += inputs;
        let (role, is_done) = (task.role, task.is_done());
        let copies = if role == Role::Leaf { self.scenario.switches.copies() } else { 1 };
        let freed = task.bytes * u64::from(inputs) * copies;
        self.round.bytes = self.round.bytes.saturating_sub(freed);
        self.round.outcome.folded += if role == Role::Leaf { inputs } else { 0 };
        if is_done {
            self.finished(at);
        } else {
            self.pump(at);
        }
    }

    fn hold(&mut self, bytes: u64) {
        self.round.bytes += bytes;
        self.round.peak = self.round.peak.max(self.round.bytes);
    }

    // ---- results

    fn finished(&mut self, at: usize) {
        let (node, role) = (self.round.tasks[at].node, self.round.tasks[at].role);
        if let Some(worker) = self.round.tasks[at].worker.take() {
            self.rest(node, worker);
        }
        if role == Role::Top {
            self.round.left -= 1;
            self.round.done = self.round.done.or((self.round.left == 0).then_some(self.now));
            return;
        }
        let leaves = &mut self.round.leaves[node as usize];
        match leaves.middle.filter(|_| role == Role::Leaf) {
            Some(middle) => {
                let (core, delay) =
                    self.costs().between_workers(self.scenario.bytes, &self.scenario.switches);
                self.move_to(node, core, delay, Range2(middle, middle + 1));
            }
            None => {
                leaves.left -= 1;
                if leaves.left == 0 {
                    self.node_finished(node);
                }
            }
        }
    }

    /// A node has its sums: they go to the top.
    fn node_finished(&mut self, node: u32) {
        let nodes = self.round.used.len() as u32;
        let is_first = self.round.policy == Some(Top::FirstFinished) && self.round.tops.is_empty();
        if is_first && !(nodes == 1 && self.config.reuse) {
            // With reuse the first worker to finish goes on with its own sums.
            self.make_top(node, self.scenario.bytes, nodes - u32::from(self.config.reuse));
            if self.config.reuse {
                return;
            }
        }
        if self.round.tops.is_empty() {
            // The node's worker is the top, and there is nothing to add.
            self.round.done = Some(self.now);
            return;
        }
        let is_alone = self.round.tops.iter().all(|(top, _)| *top == node);
        let core = match self.scenario.switches.side_process && !is_alone {
            true => at_rate(self.scenario.bytes, self.costs().side),
            false => Duration::ZERO,
        };
        if core > Duration::ZERO {
            self.submit(node, Work::Out { node }, core);
        } else {
            self.send(node);
        }
    }

    /// Sends a node's sums to the top, or its shares to all tops: to the next one first, so that no two nodes send to
    /// the same one at the same time.
    fn send(&mut self, node: u32) {
        let (tops, bytes) = (self.round.tops.clone(), self.scenario.bytes);
        let parts = tops.len() as u32;
        let own = tops.iter().position(|(top, _)| *top == node).unwrap_or(0);
        for turn in 1..=tops.len() {
            let place = (own + turn) % tops.len();
            let (top, to) = tops[place];
            let range = share(bytes, place as u32, parts);
            let size = range.end - range.start;
            if top == node {
                let (core, delay) = self.costs().between_workers(size, &self.scenario.switches);
                self.move_to(node, core, delay, to);
                continue;
            }
            let transfer = Transfer { from: node, node: top, to, bytes: size };
            self.machines[node as usize].outbox.push_back(transfer);
        }
        self.transmit(node);
    }

    /// Begins the first transfer of a node whose receiver receives nothing else, if the node sends nothing else.
    fn transmit(&mut self, from: u32) {
        let machine = &self.machines[from as usize];
        let is_free = |transfer: &Transfer| !self.machines[transfer.node as usize].is_receiving;
        let Some(place) = machine.outbox.iter().position(is_free).filter(|_| !machine.is_sending) else {
            return;
        };
        let Some(transfer) = self.machines[from as usize].outbox.remove(place) else { return };
        self.machines[from as usize].is_sending = true;
        self.machines[transfer.node as usize].is_receiving = true;
        self.round.outcome.bytes_between += transfer.bytes;
        self.after(self.on_link(from, transfer.node, transfer.bytes), Event::Received { transfer });
    }

    fn received(&mut self, transfer: Transfer) {
        self.machines[transfer.from as usize].is_sending = false;
        self.machines[transfer.node as usize].is_receiving = false;
        let (core, delay) = self.costs().to_worker(transfer.bytes, &self.scenario.switches);
        self.move_to(transfer.node, core, delay, transfer.to);
        // First whoever just sent, then the others, for whom the receiver is free now.
        self.transmit(transfer.from);
        (0..self.machines.len() as u32).for_each(|node| self.transmit(node));
    }

    /// Time of a transfer: the slower end's rate counts.
    fn on_link(&self, from: u32, to: u32, bytes: u64) -> Duration {
        let rates = [from, to].map(|node| self.machines[node as usize].rate);
        let rate = rates.into_iter().filter(|&rate| rate > 0).min().unwrap_or(0);
        at_rate(bytes.saturating_mul(8), rate)
    }

    // ---- workers

    /// Finds a worker for a task, or lets it wait.
    fn ask(&mut self, at: usize) {
        let (node, role) = (self.round.tasks[at].node, self.round.tasks[at].role);
        let machine = &self.machines[node as usize];
        let is_scaled = self.config.scaling == Scaling::Knative;
        match source(role, &machine.idle_roles(), self.config.reuse && !is_scaled) {
            Source::Idle { place } => self.assign(at, place),
            Source::Reused { place } => {
                self.round.outcome.reused += 1;
                self.assign(at, place);
            }
            Source::Start => {
                let enough = match role {
                    Role::Leaf => machine.count(Role::Leaf) >= machine.leaves.max(1),
                    Role::Middle => self.config.reuse && machine.count(Role::Leaf) > 0,
                    Role::Top => false,
                };
                self.machines[node as usize].waiting[role as usize].push_back(at);
                if is_scaled {
                    self.autoscale(node, role);
                } else if !enough {
                    self.start(node, role);
                }
            }
        }
    }

    fn assign(&mut self, at: usize, place: usize) {
        let task = &mut self.round.tasks[at];
        let machine = &mut self.machines[task.node as usize];
        let worker = machine.idle.remove(place);
        (machine.workers[worker].standing, machine.workers[worker].role) = (Standing::Busy, task.role);
        task.worker = Some(worker);
        self.pump(at);
    }

    fn start(&mut self, node: u32, role: Role) {
        let machine = &mut self.machines[node as usize];
        let worker = machine.workers.len();
        machine.workers.push(Worker { role, standing: Standing::Starting, since: self.now });
        self.round.outcome.aggregators_created += 1;
        match self.scenario.switches.start {
            Start::Always => self.started(node, worker),
            start => self.submit(node, Work::Start { worker }, self.costs().starting(start)),
        }
    }

    fn started(&mut self, node: u32, worker: usize) {
        if self.machines[node as usize].workers[worker].standing == Standing::Starting {
            self.rest(node, worker);
        }
    }

    /// A worker has nothing to do: it takes what waits. Leaves come first: higher levels wait for their sums.
    fn rest(&mut self, node: u32, worker: usize) {
        let machine = &mut self.machines[node as usize];
        machine.workers[worker].standing = Standing::Idle;
        machine.idle.push(worker);
        let role = machine.workers[worker].role;
        let is_free = self.config.reuse && self.config.scaling != Scaling::Knative;
        let roles = if is_free { vec![Role::Leaf, Role::Middle, Role::Top] } else { vec![role] };
        for wanted in roles {
            let machine = &mut self.machines[node as usize];
            if let Some(task) = machine.waiting[wanted as usize].pop_front() {
                let place = machine.idle.len() - 1;
                self.round.outcome.reused += u32::from(wanted != role);
                self.assign(task, place);
                break;
            }
        }
    }

    fn end_idle(&mut self, node: u32, role: Role) {
        let now = self.now;
        let machine = &mut self.machines[node as usize];
        let Some(place) = machine.idle.iter().rposition(|&worker| machine.workers[worker].role == role)
        else {
            return;
        };
        let worker = machine.idle.remove(place);
        machine.workers[worker].standing = Standing::Ended;
        let lived = now.saturating_sub(machine.workers[worker].since.max(self.round.open));
        self.round.outcome.worker_seconds += lived;
    }

    // ---- the autoscaler

    fn tick(&mut self) {
        for node in 0..self.machines.len() as u32 {
            [Role::Leaf, Role::Middle, Role::Top].into_iter().for_each(|role| self.autoscale(node, role));
        }
        self.after(self.scenario.autoscaler.tick, Event::Tick);
    }

    fn autoscale(&mut self, node: u32, role: Role) {
        let under_way: u32 = self
            .round
            .tasks
            .iter()
            .filter(|task| task.node == node && task.role == role && task.asked && !task.is_done())
            .map(|task| task.goal - task.done)
            .sum();
        let machine = &mut self.machines[node as usize];
        let there = machine.count(role);
        let scaler = &mut machine.scalers[role as usize];
        scaler.observe(self.now, under_way);
        let (wanted, _) = scaler.decide(self.now, there);
        (there..wanted).for_each(|_| self.start(node, role));
        (wanted..there).for_each(|_| self.end_idle(node, role));
    }
}
