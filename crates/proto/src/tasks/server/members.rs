//! Members: how they connect and leave, and how tasks are sent to them.

use thalweg_wire::control::{Control, Hello, Interval, Refusal};
use thalweg_wire::{Layout, Ranges};

use super::{Assigned, LinkId, Outbound, ReplyState, Roster, Stage, TaskAction, TaskServer};
use crate::session::{on_our_clock, Action, Dropped, ServerMachine};
use crate::transfer::Incoming;
use crate::{Liveness, Span, Time};

impl ServerMachine for TaskServer {
    type Member = Assigned;
    type Link = Outbound;
    type Wanted = TaskAction;

    fn roster(&self) -> &Roster<Assigned, Outbound, TaskAction> {
        &self.roster
    }

    fn roster_mut(&mut self) -> &mut Roster<Assigned, Outbound, TaskAction> {
        &mut self.roster
    }

    fn hello(&mut self, now: Time, link: LinkId, hello: &Hello) {
        if let Err((code, reason)) = self.roster.admissible(link, hello, None) {
            return self.refuse(now, link, code, &reason);
        }
        let welcome = self.roster.welcome(Layout::default(), self.config.chunk);
        let (sender, same) = self.let_in(now, link, hello, welcome);
        self.roster.act(Action::Joined { client: hello.name.clone() });
        self.come_back(now, sender, same);
    }

    fn message(&mut self, now: Time, link: LinkId, sender: u32, message: Control) {
        match message {
            Control::Idle => {}
            Control::Grant { parcel, wanted } => self.wanted(now, link, sender, parcel, &wanted),
            Control::Received { parcel, received, duplicates, .. } => {
                self.received(now, link, sender, parcel, received, duplicates);
            }
            Control::Offer(result) => self.offered(now, link, sender, result),
            Control::End { parcel, sent } => self.ended(now, link, sender, parcel, sent),
            Control::Counted { parcel, .. } => self.counted(sender, parcel),
            Control::Rejected { parcel, reason } => self.given_up(now, link, sender, parcel, reason),
            Control::Bye { reason } => {
                let reason = format!("left: {reason}");
                self.end_link(now, link, &reason);
                self.mark_departed(now, sender, &reason);
            }
            _ => self.refuse(now, link, Refusal::Protocol, "this message is the server's to send"),
        }
    }

    /// Updates the tasks of a member whose link has ended. Bytes that have arrived are kept; the rest waits
    /// for the member.
    fn dropped(&mut self, now: Time, dropped: Dropped<Outbound>) {
        let Dropped { member: Some(sender), reason, mut served, .. } = dropped else { return };
        if let Some(part) = served.own.sending.take().and_then(|number| self.part(number, sender)) {
            part.down.carry(served.carried_down());
        }
        let Some(member) = self.roster.member_mut(sender) else { return };
        member.own.returning.clear();
        let tasks: Vec<u32> = member.own.tasks.iter().copied().collect();
        self.waiting.retain(|(_, waiting)| *waiting != sender);
        let mut freed = 0;
        for &number in &tasks {
            let Some(part) = self.part(number, sender) else { continue };
            part.out.forget();
            part.incoming.stop();
            if part.stage == Stage::Staged {
                continue;
            }
            let began =
                part.task_offered && (part.stage == Stage::Sending || part.incoming.reassembly().bytes() > 0);
            let way = if part.stage == Stage::Sending { &mut part.down } else { &mut part.up };
            way.resumed += u32::from(began);
            (part.stage, part.away) = (Stage::Queued, Some(now));
            // Bytes that have arrived are kept, but the staging memory is freed: the result asks for it again
            // when the member is back.
            freed += std::mem::take(&mut part.staged_bytes);
            self.look_later(number);
        }
        self.staged = self.staged.saturating_sub(freed);
        let waits = |number: &u32| {
            let part = self.tasks.get(number).and_then(|task| task.parts.get(&sender));
            part.is_some_and(|part| part.stage == Stage::Queued)
        };
        let (queue, given): (Vec<u32>, Vec<u32>) = tasks.into_iter().partition(waits);
        if let Some(member) = self.roster.member_mut(sender) {
            (member.own.queue, member.own.given) = (queue.into(), given.into_iter().collect());
        }
        self.roster.left(sender, reason);
        self.make_room(now);
    }

    fn link_due(&mut self, now: Time, link: LinkId) {
        self.conclude_settled(now, link);
    }

    fn next_timer(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| *at)
    }

    fn timers_due(&mut self, now: Time) {
        while let Some((_, number)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.overdue(now, number);
            // If something of this task is still due, [`TaskServer::look_later`] sets a new timer; this loop
            // must not handle it again.
            if let Some(task) = self.tasks.get_mut(&number) {
                if let Some(at) = task.timer.take() {
                    self.timers.remove(&(at, number));
                }
                self.look_later(number);
            }
        }
    }

    fn sent(&mut self, now: Time, link: LinkId, number: u32, outcome: Result<Span, String>) {
        let sent = self.roster.on_link(link, |served| {
            let ours = served.own.sending == Some(number);
            ours.then(|| served.carried_down())
        });
        let Some(carried) = sent.flatten() else { return };
        let Some(sender) = self.roster.member_at(link) else { return };
        let mut granted = false;
        if let Some(part) = self.part(number, sender) {
            let span = outcome.as_ref().map_or(Span { start: part.sent_at, end: now }, |span| *span);
            part.down.carry(carried);
            part.down.extend_send(span);
            let ends = part.out.sent(number, span);
            granted = part.out.is_granted();
            // If sending was cut short, for example because another member of the group send gave up, the
            // member asks for the rest.
            ends.for_each(|end| self.roster.send(link, end));
        }
        if granted {
            // Ranges that were granted meanwhile wait behind the other tasks.
            self.roster.on_link(link, |served| served.own.waiting.push_back(number));
        }
        self.free_turn(now, link);
    }

    fn forget(&mut self, now: Time, name: &str, why: &str) {
        let Some(sender) = self.roster.named(name) else { return };
        let why = if why.is_empty() { "its process has ended" } else { why };
        if let Some(link) = self.roster.link_of(sender) {
            self.end_link(now, link, why);
        }
        self.mark_departed(now, sender, why);
    }

    /// Open tasks are cancelled.
    fn finish(&mut self, now: Time, reason: &str) {
        for number in self.tasks.keys().copied().collect::<Vec<_>>() {
            self.end_parts(now, number, ReplyState::Cancelled, |_| format!("the job is over: {reason}"));
        }
        self.end_all_links(now, "the job is over", reason);
    }
}

impl TaskServer {
    /// Updates the tasks of a member that has connected. If it is a new process, it knows nothing of what the
    /// old one was given.
    fn come_back(&mut self, now: Time, sender: u32, same: bool) {
        let Some(member) = self.roster.member_mut(sender) else { return };
        if !same {
            member.own.holds = None;
        }
        let tasks: Vec<u32> = member.own.tasks.iter().copied().collect();
        for number in tasks {
            let Some(part) = self.part(number, sender) else { continue };
            part.away = None;
            if !same && part.stage != Stage::Staged {
                let (begun, room) = (part.is_begun(), std::mem::take(&mut part.staged_bytes));
                (part.task_offered, part.answer, part.incoming) = (false, None, Incoming::new(0));
                part.judgement = part.judgement.outdated();
                if begun {
                    self.roster.want(TaskAction::Discard { task: number, sender });
                }
                self.release(number, sender, room);
            }
            self.look_later(number);
        }
        self.give(now, &[sender]);
    }

    /// Handles a member's Grant: it lacks ranges of a task.
    fn wanted(&mut self, now: Time, link: LinkId, sender: u32, number: u32, wanted: &Ranges) {
        let Some(part) = self.part(number, sender) else { return self.unknown(link, number) };
        if part.stage <= Stage::Sending {
            (part.stage, part.task_offered) = (Stage::Sending, true);
            part.out.grant(wanted);
            self.unqueue(sender, number);
            self.watch(now, link, sender);
            self.send_next(now, link, number);
        }
    }

    /// Handles a member's Received: it has all bytes of a task.
    fn received(&mut self, now: Time, link: LinkId, sender: u32, number: u32, at: Interval, duplicates: u64) {
        let offset = self.roster.link(link).map_or(0, |served| served.offset);
        let Some(task) = self.tasks.get_mut(&number) else { return self.unknown(link, number) };
        let again = task.parts.contains_key(&sender).then(|| self.roster.resent_down(sender)).flatten();
        let (bytes, id, started) = (task.plan.layout.bytes(), task.plan.bytes_id, task.started);
        let Some(part) = task.parts.get_mut(&sender) else { return self.unknown(link, number) };
        if part.stage >= Stage::Working {
            return;
        }
        (part.stage, part.task_offered) = (Stage::Working, true);
        part.down.retransmitted(again);
        if bytes > 0 {
            part.down.receive = Some(on_our_clock(at, offset, Span { start: started, end: now }));
            (part.down.bytes, part.down.duplicates, part.down.complete) = (bytes, duplicates, true);
        }
        if let Some(member) = self.roster.member_mut(sender).filter(|_| bytes > 0) {
            member.own.holds = Some((number, id));
        }
        self.unqueue(sender, number);
        self.watch(now, link, sender);
    }

    /// Notes that the member knows this task, so it is not given again.
    pub(super) fn unqueue(&mut self, sender: u32, number: u32) {
        if let Some(member) = self.roster.member_mut(sender) {
            if member.own.given.insert(number) {
                member.own.queue.retain(|&waiting| waiting != number);
            }
        }
    }

    fn given_up(&mut self, now: Time, link: LinkId, sender: u32, number: u32, reason: String) {
        if self.part(number, sender).is_none() {
            return self.unknown(link, number);
        }
        self.settle(now, number, sender, ReplyState::Failed, Some(reason));
    }

    pub(super) fn unknown(&mut self, link: LinkId, number: u32) {
        self.roster.send(link, Control::Closed { parcel: number });
    }

    /// Reserves the link for a task's chunks. Returns false if other chunks are being sent on it; then the
    /// task waits for its turn.
    pub(super) fn take_turn(&mut self, link: LinkId, number: u32) -> bool {
        let taken = self.roster.on_link(link, |served| {
            let own = &mut served.own;
            if own.sending.is_some() {
                if own.sending != Some(number) && !own.waiting.contains(&number) {
                    own.waiting.push_back(number);
                }
                return false;
            }
            own.sending = Some(number);
            served.count_anew();
            true
        });
        taken == Some(true)
    }

    /// Sends the granted ranges of a task once the link is free.
    fn send_next(&mut self, now: Time, link: LinkId, number: u32) {
        let Some(sender) = self.roster.member_at(link) else { return };
        let total = self.tasks.get(&number).map_or(0, |task| task.plan.layout.bytes());
        if !self.take_turn(link, number) {
            return;
        }
        let wanted = self.part(number, sender).filter(|part| part.stage == Stage::Sending).and_then(|part| {
            part.sent_at = now;
            // The task's chunks should have followed its Offer, but the link was busy. So send all of them
            // now.
            if part.out.is_sending() {
                Some(Ranges::full(total))
            } else {
                part.out.next()
            }
        });
        match wanted {
            Some(wanted) => self.roster.act(Action::SendParcel {
                links: vec![link],
                parcel: number,
                difference: false,
                wanted,
            }),
            None => self.free_turn(now, link),
        }
    }

    /// Frees the link, and sends the next task that waits for it.
    pub(super) fn free_turn(&mut self, now: Time, link: LinkId) {
        let next = self.roster.on_link(link, |served| {
            served.own.sending = None;
            served.own.waiting.pop_front()
        });
        if let Some(number) = next.flatten() {
            self.send_next(now, link, number);
        }
    }

    /// Starts and stops the watch over the link's progress in each direction, as transfers need it.
    pub(super) fn watch(&mut self, now: Time, link: LinkId, sender: u32) {
        let Some(member) = self.roster.member(sender) else { return };
        let stage = |number: &u32| Some(self.tasks.get(number)?.parts.get(&sender)?.stage);
        let sending = member.own.given.iter().any(|number| stage(number) == Some(Stage::Sending));
        let returning = !member.own.returning.is_empty();
        self.roster.on_link(link, |served| {
            let silence = served.session.silence;
            let watched = |wanted: bool, live: &mut Option<Liveness>| match (wanted, live.is_some()) {
                (true, false) => *live = Some(Liveness::new(now, silence)),
                (false, true) => *live = None,
                _ => {}
            };
            watched(sending, &mut served.download);
            watched(returning, &mut served.upload);
        });
    }

    /// Ends all parts of a member that does not come back.
    fn mark_departed(&mut self, now: Time, sender: u32, why: &str) {
        let Some(member) = self.roster.member_mut(sender) else { return };
        member.departed = true;
        let tasks: Vec<u32> = member.own.tasks.iter().copied().collect();
        for number in tasks {
            if self.part(number, sender).is_some_and(|part| part.stage != Stage::Staged) {
                self.settle(now, number, sender, ReplyState::Lost, Some(why.into()));
            }
        }
    }
}
