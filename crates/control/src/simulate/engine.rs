//! The event loop of the simulation, with the inputs of tasks and the use of cores.

mod opening;
mod results;
mod workers;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::arrivals::counted;
use super::machine::{Machine, Range2, Transfer, Work};
use super::tasks::{Leaves, Task};
use super::{Costs, Impossible, Outcome, Scenario, Start};
use crate::reuse::WorkerRole;
use crate::{decide, Config, Scaling, State, Time, Top};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// An update was counted at a node.
    Arrived { node: u32 },
    /// A core of a node has finished its work.
    Worked { node: u32, work: Work },
    /// An input has arrived for each of these tasks.
    Delivered { to: Range2 },
    /// A node's sums, or a share of them, have arrived at another node.
    Received { transfer: Transfer },
    /// The container of a worker has started, and its program starts now.
    Contained { node: u32, worker: usize },
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

/// The state of the current round.
#[derive(Default)]
struct Round {
    open: Time,
    tasks: Vec<Task>,
    leaves: Vec<Leaves>,
    /// Nodes that have updates.
    used: Vec<u32>,
    /// The top's nodes, and the tasks at each.
    tops: Vec<(u32, Range2)>,
    /// Number of tasks of the top that are not done.
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

    /// Simulates one round.
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
            // An event of the round before may be due while its model is sent, so time does not go back.
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
            Event::Contained { node, worker } => self.begin_program(node, worker, Start::Cold),
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

    fn arrived(&mut self, node: u32) {
        if self.round.leaves[node as usize].come == 0 && self.is_cold() {
            self.start_planned(node);
        }
        let leaves = &mut self.round.leaves[node as usize];
        let (first, end, come) = (leaves.first, leaves.end, leaves.come);
        leaves.come += 1;
        let to = if leaves.ranges {
            Range2(first, end)
        } else {
            let place = if leaves.round {
                first + come % (end - first)
            } else {
                // Fill one leaf after the other: all but the last get the same number.
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

    /// Brings an input to tasks: either a core works on it, or it arrives after a delay.
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

    /// Continues a task if it has inputs to fold and a worker.
    fn pump(&mut self, at: usize) {
        let task = &mut self.round.tasks[at];
        if !task.is_ready(self.config.timing) {
            return;
        }
        if task.worker.is_none() {
            if !std::mem::replace(&mut task.requested, true) {
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
        let copies = if role == WorkerRole::Leaf { self.scenario.switches.copies() } else { 1 };
        let freed = task.bytes * u64::from(inputs) * copies;
        self.round.bytes = self.round.bytes.saturating_sub(freed);
        self.round.outcome.folded += if role == WorkerRole::Leaf { inputs } else { 0 };
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
}
