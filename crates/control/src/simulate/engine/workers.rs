//! Assigns workers to tasks, and starts and ends workers.

use super::super::machine::{Standing, Work, Worker};
use super::super::Start;
use super::{Engine, Event};
use crate::reuse::{source, Source, WorkerRole};
use crate::Scaling;

impl Engine<'_> {
    /// Assigns a worker to a task. If none is idle, the task waits.
    pub(super) fn ask(&mut self, at: usize) {
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
                    WorkerRole::Leaf => machine.count(WorkerRole::Leaf) >= machine.leaves.max(1),
                    WorkerRole::Middle => {
                        self.config.reuse && machine.count(WorkerRole::Leaf) > 0
                            || machine.count(WorkerRole::Middle) > 0
                    }
                    WorkerRole::Top => machine.count(WorkerRole::Top) >= self.tops_at(node),
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

    pub(super) fn assign(&mut self, at: usize, place: usize) {
        let task = &mut self.round.tasks[at];
        let machine = &mut self.machines[task.node as usize];
        let worker = machine.idle.remove(place);
        (machine.workers[worker].standing, machine.workers[worker].role) = (Standing::Busy, task.role);
        task.worker = Some(worker);
        self.pump(at);
    }

    pub(super) fn start(&mut self, node: u32, role: WorkerRole) {
        let machine = &mut self.machines[node as usize];
        let worker = machine.workers.len();
        machine.workers.push(Worker { role, standing: Standing::Starting, since: self.now });
        self.round.outcome.aggregators_created += 1;
        match self.scenario.switches.start {
            Start::Always => self.started(node, worker),
            Start::Cold if !self.costs().container_start.is_zero() => {
                self.after(self.costs().container_start, Event::Contained { node, worker });
            }
            start => self.begin_program(node, worker, start),
        }
    }

    /// Whether workers start with a round's first update and end with the round.
    pub(super) fn is_cold(&self) -> bool {
        self.scenario.switches.start == Start::Cold && self.config.scaling != Scaling::Knative
    }

    /// Starts all levels that are planned at a node.
    pub(super) fn start_planned(&mut self, node: u32) {
        let leaves = &self.round.leaves[node as usize];
        let tasks = leaves.middle.unwrap_or(leaves.end) - leaves.first;
        let has_middle = leaves.middle.is_some() && !self.config.reuse;
        let planned = self.machines[node as usize].leaves.max(1) as usize;
        (0..planned.min(tasks)).for_each(|_| self.start(node, WorkerRole::Leaf));
        if has_middle {
            self.start(node, WorkerRole::Middle);
        }
        let tops = if self.config.reuse { 0 } else { self.tops_at(node) };
        (0..tops).for_each(|_| self.start(node, WorkerRole::Top));
    }

    /// Number of the top's tasks at a node.
    fn tops_at(&self, node: u32) -> u32 {
        self.round
            .tops
            .iter()
            .filter(|(top, _)| *top == node)
            .map(|(_, tasks)| (tasks.1 - tasks.0) as u32)
            .sum()
    }

    pub(super) fn begin_program(&mut self, node: u32, worker: usize, start: Start) {
        self.submit(node, Work::Start { worker }, self.costs().starting(start));
    }

    pub(super) fn started(&mut self, node: u32, worker: usize) {
        if self.machines[node as usize].workers[worker].standing == Standing::Starting {
            self.rest(node, worker);
        }
    }

    /// Makes a worker idle and gives it a waiting task. Leaves come first, because higher levels wait for
    /// their sums.
    pub(super) fn rest(&mut self, node: u32, worker: usize) {
        let machine = &mut self.machines[node as usize];
        machine.workers[worker].standing = Standing::Idle;
        machine.idle.push(worker);
        let role = machine.workers[worker].role;
        let is_free = self.config.reuse && self.config.scaling != Scaling::Knative;
        let roles =
            if is_free { vec![WorkerRole::Leaf, WorkerRole::Middle, WorkerRole::Top] } else { vec![role] };
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

    pub(super) fn end_idle(&mut self, node: u32, role: WorkerRole) {
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

    pub(super) fn tick(&mut self) {
        for node in 0..self.machines.len() as u32 {
            [WorkerRole::Leaf, WorkerRole::Middle, WorkerRole::Top]
                .into_iter()
                .for_each(|role| self.autoscale(node, role));
        }
        self.after(self.scenario.autoscaler.tick, Event::Tick);
    }

    pub(super) fn autoscale(&mut self, node: u32, role: WorkerRole) {
        let under_way: u32 = self
            .round
            .tasks
            .iter()
            .filter(|task| task.node == node && task.role == role && task.requested && !task.is_done())
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
