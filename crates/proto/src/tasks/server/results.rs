//! Receives the members' results, from the offer to the fold.

use std::sync::Arc;

use thalweg_wire::control::{Control, Interval, Parcel, MAX_HOLES};
use thalweg_wire::text::{plain, MAX_REASON};
use thalweg_wire::{ChunkHeader, Layout, Range, Ranges};

use super::{Judgement, LinkId, Part, ReplyState, Stage, TaskAction, TaskPlace, TaskServer};
use crate::session::on_our_clock;
use crate::tasks::Answer;
use crate::transfer::{Incoming, Rule, Step};
use crate::{Fit, Span, Time};

impl TaskServer {
    /// Handles a member's Offer of a result.
    pub(super) fn offered(&mut self, now: Time, link: LinkId, sender: u32, result: Parcel) {
        let number = result.number;
        let Some(task) = self.tasks.get(&number) else { return self.unknown(link, number) };
        // A member may not offer a result of a task that it was never given. Otherwise it could have more
        // results open than `ahead` allows.
        let given = task.parts.get(&sender).filter(|part| part.task_offered);
        let Some(part) = given else { return self.unknown(link, number) };
        let (base, fold) = (task.plan.layout.clone(), task.plan.fold.clone());
        let (before, on_its_way) = (part.answer.clone(), part.stage >= Stage::Offered);
        let offered = self.acceptable(&base, fold, &result).and_then(|layout| {
            let answer = Answer { head: result.head, layout, weight: result.weight };
            let same = before.as_ref().is_none_or(|before| *before == answer);
            same.then_some(answer).ok_or_else(|| "sent two different results for one task".into())
        });
        let Some(part) = self.part(number, sender) else { return };
        let answer = match offered {
            Ok(_) if on_its_way => return,
            Ok(answer) => answer,
            Err(_) if part.stage == Stage::Staged => return, // the first result is being folded
            Err(reason) => {
                part.offered = true; // so that the member gets the reason
                return self.settle(now, number, sender, ReplyState::Failed, Some(reason));
            }
        };
        if part.answer.is_none() {
            part.incoming = Incoming::new(answer.layout.bytes());
        }
        (part.answer, part.offered, part.task_offered) = (Some(answer), true, true);
        part.stage = Stage::Offered;
        self.unqueue(sender, number);
        self.watch(now, link, sender);
        self.judge_or_take(now, number, sender);
    }

    /// Takes an offered result. If the task is judged, it asks the application first.
    fn judge_or_take(&mut self, now: Time, number: u32, sender: u32) {
        let Some(task) = self.tasks.get_mut(&number) else { return };
        let Some(part) = task.parts.get_mut(&sender) else { return };
        if !task.plan.judged || part.judgement == Judgement::Accepted {
            return self.take(now, number, sender);
        }
        let Some(answer) = part.answer.as_ref().filter(|_| part.judgement == Judgement::Unasked) else {
            return;
        };
        let (head, weight) = (answer.head.clone(), answer.weight);
        part.judgement = Judgement::Pending;
        let member = self.roster.member(sender).map(|member| member.name.clone()).unwrap_or_default();
        self.roster.want(TaskAction::Judge { task: number, sender, member, head, weight });
    }

    /// Reports that the application accepts an offered result, or refuses it with a reason (`Err`).
    pub fn judged(&mut self, now: Time, number: u32, sender: u32, verdict: Result<(), String>) {
        let Some(part) = self.part(number, sender) else { return };
        let offered = part.stage == Stage::Offered;
        match (part.judgement, verdict) {
            (Judgement::Pending, Err(reason)) => {
                let reason = plain(&reason, MAX_REASON);
                self.settle(now, number, sender, ReplyState::Failed, Some(reason));
            }
            (Judgement::Pending, Ok(())) => {
                part.judgement = Judgement::Accepted;
                // Without a link, the result waits until the member offers it again.
                if offered {
                    self.take(now, number, sender);
                }
            }
            (Judgement::Outdated, _) => {
                part.judgement = Judgement::Unasked;
                if offered {
                    self.judge_or_take(now, number, sender);
                }
            }
            (Judgement::Unasked | Judgement::Accepted, _) => {}
        }
    }

    /// Queues an offered result until there is staging memory for it.
    fn take(&mut self, now: Time, number: u32, sender: u32) {
        self.waiting.push_back((number, sender));
        self.make_room(now);
    }

    fn acceptable(
        &self,
        base: &Layout,
        fold: Option<Arc<Layout>>,
        result: &Parcel,
    ) -> Result<Arc<Layout>, String> {
        let layout = result.content.layout(base);
        let layout = layout.map_err(|error| format!("offered a result that cannot be: {error}"))?;
        let (bytes, most) = (layout.bytes(), self.config.max_result);
        if bytes > most {
            return Err(format!("offered a result of {bytes} bytes; {most} is the most"));
        }
        let Some(wanted) = fold else { return Ok(Arc::new(layout)) };
        if let Some(difference) = layout.difference(&wanted) {
            let described = difference.describe("in this result", "in the others");
            return Err(format!(
                "offered a result that cannot be folded with the others: {described}; return the same tensors"
            ));
        }
        let (weight, heaviest) = (result.weight, self.config.max_weight);
        if weight == 0.0 || weight > heaviest {
            return Err(format!(
                "offered a result of weight {weight}; a mean takes weights above 0, of at most {heaviest}"
            ));
        }
        Ok(wanted)
    }

    /// Grants the waiting results in order, as far as there is memory. Results that are folded share the
    /// staging memory. Results that are handed over have memory of their own.
    pub(super) fn make_room(&mut self, now: Time) {
        let (mut granted, mut full) = (Vec::new(), false);
        let (tasks, staged, staging) = (&mut self.tasks, &mut self.staged, self.config.staging);
        self.waiting.retain(|&(number, sender)| {
            let Some(task) = tasks.get_mut(&number) else { return false };
            let folds = task.plan.fold.is_some();
            let Some(part) = task.parts.get_mut(&sender) else { return false };
            let bytes = part.incoming.reassembly().total();
            if folds && part.staged_bytes == 0 {
                full |= *staged > 0 && staged.saturating_add(bytes) > staging;
                if full {
                    return true;
                }
                part.staged_bytes = bytes;
                *staged += bytes;
            }
            granted.push((number, sender));
            false
        });
        for (number, sender) in granted {
            self.grant(now, number, sender);
        }
    }

    /// Frees the staging memory that a result had, and removes it from the queue.
    pub(super) fn release(&mut self, number: u32, sender: u32, room: u64) {
        self.staged = self.staged.saturating_sub(room);
        self.waiting.retain(|waiting| *waiting != (number, sender));
    }

    fn grant(&mut self, now: Time, number: u32, sender: u32) {
        let Some(link) = self.roster.link_of(sender) else { return };
        let Some(ordered) = self.roster.link(link).map(|served| served.session.ordered) else { return };
        let Some(part) = self.part(number, sender) else { return };
        part.stage = Stage::Returning;
        part.incoming.begin(ordered);
        let holes = part.incoming.reassembly().holes();
        if holes.is_empty() {
            return self.here(now, link, number, sender, holes);
        }
        if let Some(member) = self.roster.member_mut(sender) {
            member.own.returning.insert(number);
        }
        self.roster.on_link(link, |served| served.count_anew());
        self.watch(now, link, sender);
        self.roster.send(link, Control::Grant { parcel: number, wanted: holes.first(MAX_HOLES) });
    }

    fn returning(&mut self, link: LinkId, chunk: &ChunkHeader) -> Option<(u32, &mut Part)> {
        let sender = self.roster.member_at(link).filter(|&s| s == chunk.sender)?;
        let ours = chunk.job == self.config.job;
        let part = self.part(chunk.round, sender).filter(|part| ours && part.stage == Stage::Returning)?;
        let layout = part.answer.as_ref().map(|answer| answer.layout.hash());
        (layout == Some(chunk.layout)).then_some((sender, part))
    }

    /// The weight of the result to which a chunk belongs; `None` if that result is not being received.
    pub fn weight_of(&mut self, link: LinkId, chunk: &ChunkHeader) -> Option<f64> {
        self.returning(link, chunk).and_then(|(_, part)| part.answer.as_ref()).map(|answer| answer.weight)
    }

    /// Decides where the driver puts a chunk.
    pub fn place(&mut self, now: Time, link: LinkId, chunk: &ChunkHeader) -> TaskPlace {
        let task = chunk.round;
        let Some((sender, part)) = self.returning(link, chunk) else { return TaskPlace::Nothing };
        let total = part.incoming.reassembly().total();
        match part.incoming.fit(now, chunk.range()) {
            Fit::New => TaskPlace::New { task, sender, total },
            Fit::Part => TaskPlace::Part { task, sender, total },
            Fit::Nothing => TaskPlace::Nothing,
        }
    }

    /// Reports that the first bytes of a chunk have arrived. The driver asks for its place later.
    pub fn begun(&mut self, now: Time, link: LinkId, chunk: &ChunkHeader) {
        if let Some((_, part)) = self.returning(link, chunk) {
            part.incoming.reassembly_mut().touch(now);
        }
    }

    /// Reports that a chunk was received intact (`ok`) or damaged. Returns its new ranges.
    pub fn stored(&mut self, now: Time, link: LinkId, chunk: &ChunkHeader, ok: bool) -> Vec<Range> {
        let (grid, rule) = (self.config.chunk, self.rule(chunk.round));
        let Some((sender, part)) = self.returning(link, chunk) else { return Vec::new() };
        if !ok {
            part.incoming.reassembly_mut().corrupt();
            return Vec::new();
        }
        let fresh = part.incoming.store(now, chunk.range());
        let lost = part.incoming.lost(chunk, grid, &rule);
        if let Some(wanted) = lost {
            self.roster.send(link, Control::Grant { parcel: chunk.round, wanted });
        }
        self.wake_to_settle(link, sender);
        fresh
    }

    /// Handles a member's End: it has sent all ranges of a grant.
    pub(super) fn ended(&mut self, now: Time, link: LinkId, sender: u32, number: u32, sent: Interval) {
        let started = self.tasks.get(&number).map_or(now, |task| task.started);
        if self.part(number, sender).is_none_or(|part| part.stage != Stage::Returning) {
            return;
        }
        let counted = self.roster.on_link(link, |served| (served.offset, served.carried_up()));
        let again = self.roster.resent_up(sender);
        let Some(((offset, carried), part)) = counted.zip(self.part(number, sender)) else { return };
        part.up.carry(carried);
        part.up.retransmitted(again);
        part.up.extend_send(on_our_clock(sent, offset, Span { start: started, end: now }));
        if part.incoming.ended(now) {
            self.conclude(now, link, number, sender);
        }
        self.wake_to_settle(link, sender);
    }

    /// Handles a member's count of retransmissions. If the result's task is over, the count goes to the next
    /// result's transfer.
    pub(super) fn counted(&mut self, sender: u32, number: u32) {
        if self.part(number, sender).is_none() {
            return;
        }
        let again = self.roster.resent_up(sender);
        if let Some(part) = self.part(number, sender) {
            part.up.retransmitted(again);
        }
    }

    /// Sets the link's timer. After an End, the server waits some time for late chunks; the timer fires at
    /// the end of the first such wait.
    fn wake_to_settle(&mut self, link: LinkId, sender: u32) {
        let Some(member) = self.roster.member(sender) else { return };
        let settles = |number: &u32| self.tasks.get(number)?.parts.get(&sender)?.incoming.settle();
        let at = member.own.returning.iter().filter_map(settles).min();
        if at != self.roster.wake_at(link) {
            self.roster.wake(link, at);
        }
    }

    pub(super) fn conclude_settled(&mut self, now: Time, link: LinkId) {
        let Some(sender) = self.roster.member_at(link) else { return };
        let returning = self.roster.member(sender).map(|member| member.own.returning.clone());
        for number in returning.unwrap_or_default() {
            let due = self.part(number, sender).and_then(|part| part.incoming.settle());
            if due.is_some_and(|at| now >= at) {
                self.conclude(now, link, number, sender);
            }
        }
        self.wake_to_settle(link, sender);
    }

    fn conclude(&mut self, now: Time, link: LinkId, number: u32, sender: u32) {
        let rule = self.rule(number);
        let Some(part) = self.part(number, sender) else { return };
        match part.incoming.conclude(now, &rule) {
            Step::Wait => {}
            Step::Ask(wanted) => self.roster.send(link, Control::Grant { parcel: number, wanted }),
            Step::Here(holes) => self.here(now, link, number, sender, holes),
        }
    }

    /// Which bytes of a task's results may be missing.
    fn rule(&self, number: u32) -> Rule {
        self.tasks.get(&number).map(|task| task.plan.rule()).unwrap_or_default()
    }

    /// Notes that a result is received, except for `holes`.
    fn here(&mut self, now: Time, link: LinkId, number: u32, sender: u32, holes: Ranges) {
        if let Some(member) = self.roster.member_mut(sender) {
            member.own.returning.remove(&number);
        }
        let folds = self.tasks.get(&number).is_some_and(|task| task.plan.fold.is_some());
        let Some(part) = self.part(number, sender) else { return };
        part.stage = Stage::Staged;
        let weight = part.answer.as_ref().map_or(0.0, |answer| answer.weight);
        self.watch(now, link, sender);
        if folds {
            self.roster.want(TaskAction::Fold { task: number, sender, weight, holes });
        } else {
            self.settle(now, number, sender, ReplyState::Done, None);
        }
    }

    /// Reports that a result was folded. `Err` says why none of it was.
    pub fn folded(&mut self, now: Time, number: u32, sender: u32, outcome: Result<(), String>) {
        if self.part(number, sender).is_some_and(|part| part.stage == Stage::Staged) {
            let (state, reason) = match outcome {
                Ok(()) => (ReplyState::Done, None),
                Err(reason) => (ReplyState::Failed, Some(reason)),
            };
            self.settle(now, number, sender, state, reason);
        }
    }
}
