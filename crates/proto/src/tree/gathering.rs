//! A top that is the first node that has finished its round: the other nodes send it their sums, and it sends
//! the root the mean.

use std::collections::BTreeSet;

use thalweg_wire::tree::{Answer, Request};

use super::round::{Mean, Top, TreeRound, TreeStep};

/// The state of the top. Parts are named by their place in the round.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    /// The part of the node that is the top.
    leader: Option<usize>,
    /// The parts whose sums the top has.
    inside: BTreeSet<usize>,
    /// What was asked last, and is not answered.
    step: Option<(u32, Step)>,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Lead(usize),
    Send(usize),
    Receive(usize),
    Mean,
}

impl TreeRound {
    fn gathering(&mut self) -> Option<&mut Gathering> {
        match &mut self.top {
            Top::FirstFinished(gathering) => Some(gathering),
            Top::Dedicated | Top::Sharded(_) => None,
        }
    }

    /// Asks for the next step, one at a time. With `are_settled` no other sums will come.
    pub(super) fn gather(&mut self, are_settled: bool) {
        loop {
            let Some(gathering) = self.gathering() else { return };
            if gathering.step.is_some() {
                return;
            }
            let leader = gathering.leader;
            let next = (0..self.parts.len()).find(|part| {
                let Top::FirstFinished(gathering) = &self.top else { return false };
                self.parts[*part].counts() && !gathering.inside.contains(part)
            });
            if let Some(leader) = leader.filter(|&leader| self.is_lost(&self.parts[leader].node)) {
                self.lose_leader(leader, "");
                continue;
            }
            let Some(part) = next else {
                if are_settled {
                    self.ask_for_mean(leader);
                }
                return;
            };
            let (node, claim) = (self.parts[part].node.clone(), self.parts[part].claim);
            if self.is_lost(&node) {
                let why = self.why_lost(&node, String::new);
                self.drop_part(part, why);
                continue;
            }
            let (request, step) = match leader {
                None => (Request::BecomeTop { claim }, Step::Lead(part)),
                Some(leader) => {
                    let to = self.address_of(&self.parts[leader].node);
                    (Request::SendSums { to }, Step::Send(part))
                }
            };
            return self.ask_step(request, node, step);
        }
    }

    fn ask_step(&mut self, request: Request, node: String, step: Step) {
        let ask = self.ask(request, vec![node]);
        if let Some(gathering) = self.gathering() {
            gathering.step = Some((ask, step));
        }
    }

    fn ask_for_mean(&mut self, leader: Option<usize>) {
        if let Err(reason) = self.check_enough() {
            return self.fail(reason);
        }
        match leader {
            None => self.fail("no node has the round's sums any more".into()),
            Some(leader) => {
                let node = self.parts[leader].node.clone();
                self.ask_step(Request::ComputeMean, node, Step::Mean);
            }
        }
    }

    /// Takes the answer of a node to the step that was asked last.
    pub(super) fn gathering_answered(&mut self, answer: Result<(Answer, Option<u64>), &str>) {
        let Some(gathering) = self.gathering() else { return };
        let (Some((ask, step)), leader) = (gathering.step.take(), gathering.leader) else { return };
        match (step, leader, answer) {
            (Step::Lead(part), _, Ok((Answer::Refusable(None), _))) => self.take_in(part, true),
            (Step::Lead(part), _, answer) => self.refuse_sums(part, answer),
            (Step::Send(part), Some(leader), Ok(_)) => {
                let (node, claim) = (self.parts[part].node.clone(), self.parts[part].claim);
                let top = self.parts[leader].node.clone();
                self.ask_step(Request::ReceiveSums { node, claim }, top, Step::Receive(part));
            }
            (Step::Send(part), _, answer) => self.refuse_sums(part, answer),
            (Step::Receive(part), _, Ok((Answer::Refusable(None), _))) => self.take_in(part, false),
            (Step::Receive(part), _, answer @ Ok(_)) => self.refuse_sums(part, answer),
            (Step::Receive(_), Some(leader), Err(reason)) => self.lose_leader(leader, reason),
            (Step::Mean, Some(leader), answer) => self.mean_of(ask, leader, answer),
            // There is a top while one of these steps is under way.
            (Step::Receive(_) | Step::Mean, None, _) => {}
        }
    }

    fn take_in(&mut self, part: usize, leads: bool) {
        if let Some(gathering) = self.gathering() {
            gathering.inside.insert(part);
            if leads {
                gathering.leader = Some(part);
            }
        }
    }

    /// Drops a part whose sums are not in the top.
    fn refuse_sums(&mut self, part: usize, answer: Result<(Answer, Option<u64>), &str>) {
        let why = match answer {
            Ok((Answer::Refusable(Some(why)), _)) => why,
            Ok(_) => "it gave another answer".into(),
            Err(reason) => reason.into(),
        };
        let node = self.parts[part].node.clone();
        let why = self.why_lost(&node, || format!("the sums of its node {node} were refused: {why}"));
        self.drop_part(part, why);
    }

    /// Gives the top up. The next one takes all sums anew, but for those of the lost node itself.
    fn lose_leader(&mut self, leader: usize, reason: &str) {
        let node = self.parts[leader].node.clone();
        let why = self.why_lost(&node, || format!("its node {node} could not be the top: {reason}"));
        self.drop_part(leader, why);
        if let Some(gathering) = self.gathering() {
            (gathering.leader, gathering.inside) = (None, BTreeSet::new());
        }
    }

    fn mean_of(&mut self, ask: u32, leader: usize, answer: Result<(Answer, Option<u64>), &str>) {
        let node = self.parts[leader].node.clone();
        let bytes = (self.split)(1).last().map_or(0, |range| range.end);
        match answer {
            Ok((Answer::Mean(mean), Some(came))) if came == bytes => {
                self.step(TreeStep::Write { ask, parts: vec![(node.clone(), 0, bytes)] });
                let (uncovered_bytes, done) = (mean.fold.uncovered_bytes, mean.done);
                self.over(Mean { uncovered_bytes, done, top: Some(node), ..Mean::default() });
            }
            Ok(_) => self.lose_leader(leader, "its mean is none of this model"),
            Err(reason) => self.lose_leader(leader, reason),
        }
    }
}
