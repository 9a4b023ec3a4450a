//! Lets clients in, and decides what a client that came back does next.

use thalweg_wire::control::{Control, Hello, Holding, Refusal, Welcome};
use thalweg_wire::Ranges;

use super::{Action, Answer, Duty, LinkId, Server, ServerMachine};
use crate::{State, Time};

impl Server {
    pub(super) fn join(&mut self, now: Time, link: LinkId, hello: &Hello) {
        let layout = self.config.layout.hash();
        match self.roster.admissible(link, hello, Some(layout)) {
            Ok(()) => {}
            Err((Refusal::Layout, reason)) => {
                return self.roster.compare(link, hello, self.config.layout.clone(), reason);
            }
            Err((code, reason)) => return self.refuse(now, link, code, &reason),
        }
        if self.is_elsewhere(&hello.name) {
            return self.send_elsewhere(now, link, &hello.name);
        }
        let welcome = Welcome {
            stand_in: self.config.stand_in,
            spread: self.config.spread,
            allowances: self.config.tolerance.allowances().to_vec(),
            ..self.roster.welcome((*self.config.layout).clone(), self.config.chunk)
        };
        let (sender, same) = self.let_in(now, link, hello, welcome);
        if let Some(member) = self.roster.member_mut(sender).filter(|_| !same) {
            member.own.held = None; // an earlier process of this client had it
        }
        self.tell_others(link);
        self.roster.act(Action::Joined { client: hello.name.clone() });
        self.resume(now, link, sender, same, &hello.holding);
    }

    /// Resumes a client that came back. Its model or update counts only if the same process got the model
    /// from this server for the current round. Meanwhile the round may have ended, or the server may have
    /// been restarted.
    fn resume(&mut self, now: Time, link: LinkId, sender: u32, same: bool, holding: &Holding) {
        let current = self.parcel_of(sender);
        let current = current.filter(|&number| same && self.takes_part(sender, number));
        let answer = self.roster.member(sender).and_then(|m| m.own.answer.clone()).filter(|_| same);
        let elsewhere = |round: u32| {
            let was_counted = self.was_counted(sender, round);
            was_counted.then_some(Answer { round, verdict: Ok(()), counted: None, withheld: None })
        };
        let answer = |round: u32| answer.filter(|answer| answer.round == round).or_else(|| elsewhere(round));
        match holding {
            Holding::Round { round } if current == Some(*round) => self.go_on(now, sender, *round),
            Holding::Round { round } => match answer(*round) {
                Some(answer) => {
                    self.set_duty(sender, Duty::Idle);
                    self.send_answer(link, answer);
                    self.assign(now, sender, None);
                }
                None => {
                    self.set_duty(sender, Duty::Behind);
                    self.roster.send(link, Control::Closed { parcel: *round });
                }
            },
            Holding::Model { round, holes } if current == Some(*round) => {
                self.start_over(now, sender, Some(holes.clone()));
            }
            Holding::Model { round, .. } => {
                self.roster.send(link, Control::Closed { parcel: *round }); // else the client keeps its part
                self.start_over(now, sender, None);
            }
            Holding::Nothing | Holding::Node(_) => self.start_over(now, sender, None),
        }
    }

    pub(super) fn start_over(&mut self, now: Time, sender: u32, holes: Option<Ranges>) {
        self.set_duty(sender, Duty::Idle);
        if self.round.is_none() {
            self.drop_late(sender);
        }
        self.drop_staging_of(sender);
        self.assign(now, sender, holes);
        self.say_closed(sender);
    }

    /// Tells a new process that it has no part in this round, if part of the update of an earlier process of
    /// its client was folded.
    fn say_closed(&mut self, sender: u32) {
        let Some(round) = self.round.as_ref().map(|r| r.plan.number) else { return };
        let forsaken =
            self.part(sender, round).is_some_and(|part| part.state == State::Lost && part.departed);
        let link = self.roster.link_of(sender);
        if let Some(link) = link.filter(|_| forsaken) {
            self.roster.send(link, Control::Closed { parcel: round });
        }
    }

    fn go_on(&mut self, now: Time, sender: u32, number: u32) {
        if !self.answered(sender, number) {
            match &mut self.round {
                Some(round) => round.back(now, sender, self.config.stand_in.is_none()),
                None => self.back_late(now, sender),
            }
            self.set_duty(sender, Duty::Round);
        }
    }
}
