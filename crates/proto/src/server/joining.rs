//! Who is let in, under which number, and where a client that came back goes on.

use thalweg_wire::control::{Control, Hello, Holding, Refusal, Welcome, VERSIONS};
use thalweg_wire::text::check_name;
use thalweg_wire::Ranges;

use super::{Action, Duty, LinkId, Member, Server};
use crate::{micros, State, Time};

impl Server {
    pub(super) fn hello(&mut self, now: Time, link: LinkId, hello: &Hello) {
        if let Err((code, reason)) = self.admissible(link, hello) {
            return self.refuse(now, link, code, &reason);
        }
        let (sender, same) = self.enrol(now, link, hello);
        let heartbeat = micros(self.heartbeat());
        if let Some(state) = self.links.get_mut(&link) {
            let (sent, heard) = (micros(state.opened), micros(now));
            state.offset = (sent.saturating_add(heard) / 2).wrapping_sub(hello.clock) as i64;
            state.sender = Some(sender);
        }
        let layout = (*self.config.layout).clone();
        let (job, chunk) = (self.config.job, self.config.chunk);
        let liveness = micros(self.config.liveness);
        let (stand_in, spread) = (self.config.stand_in, self.config.spread);
        let allowances = self.config.tolerance.allowances().to_vec();
        let welcome =
            Welcome { sender, job, layout, chunk, heartbeat, liveness, stand_in, spread, allowances };
        self.send(link, Control::Welcome(welcome));
        self.actions.push_back(Action::Joined { client: hello.name.clone() });
        self.resume(now, link, sender, same, &hello.holding);
    }

    fn admissible(&self, link: LinkId, hello: &Hello) -> Result<(), (Refusal, String)> {
        if hello.version < VERSIONS.0 || hello.version > VERSIONS.1 {
            let (low, high) = VERSIONS;
            let reason =
                format!("session version {} is not within {low}..={high}; use one release", hello.version);
            return Err((Refusal::Version, reason));
        }
        check_name(&hello.name).map_err(|why| (Refusal::Protocol, why))?;
        let nonce = self.links.get(&link).map_or([0; 32], |l| l.nonce);
        self.admission.admit(link, &nonce, hello).map_err(|why| (Refusal::Authentication, why))?;
        if let Some(reason) = &self.finished {
            return Err((Refusal::Job, format!("the job is over: {reason}")));
        }
        let ours = self.config.layout.hash();
        if let Some(theirs) = hello.layout.filter(|&l| l != ours) {
            let reason = format!(
                "client {:?} has layout {theirs}, the server {ours}: another model, other shapes or dtypes, or another \
                 choice of tensors; use the same model and the same tensors at both ends",
                hello.name
            );
            return Err((Refusal::Layout, reason));
        }
        let namesake = self.members.values().find(|m| m.name == hello.name);
        if namesake.is_some_and(|m| m.link.is_some() && m.instance != hello.instance) {
            let reason = format!("a client named {:?} is connected; choose another name", hello.name);
            return Err((Refusal::Name, reason));
        }
        if namesake.is_none() && self.members.len() >= self.config.max_clients as usize {
            return Err((Refusal::Job, format!("the job has its {} clients", self.config.max_clients)));
        }
        Ok(())
    }

    /// The client's number, and whether it is a process that we know.
    fn enrol(&mut self, now: Time, link: LinkId, hello: &Hello) -> (u32, bool) {
        let known = self.members.iter().find(|(_, m)| m.name == hello.name).map(|(&s, m)| (s, m.link));
        if let Some((sender, old)) = known {
            if let Some(old) = old {
                self.drop_link(now, old, "it connected anew");
                self.actions.push_back(Action::Close { link: old });
            }
            let mut same = false;
            if let Some(member) = self.members.get_mut(&sender) {
                same = member.instance == hello.instance;
                member.instance = hello.instance;
                member.link = Some(link);
                member.gone = false;
                member.parting = None;
            }
            return (sender, same);
        }
        let sender = self.members.keys().next_back().map_or(1, |s| s + 1);
        let (name, instance) = (hello.name.clone(), hello.instance);
        let (link, duty) = (Some(link), Duty::Idle);
        let (gone, verdict, parting, told) = (false, None, None, false);
        self.members.insert(sender, Member { name, instance, link, duty, gone, verdict, parting, told });
        (sender, false)
    }

    /// Goes on where a client that came back left off. What it holds counts only if we gave it to this very
    /// process for the round under way; the round may have ended, or the server have been restarted.
    fn resume(&mut self, now: Time, link: LinkId, sender: u32, same: bool, holding: &Holding) {
        let current = self.round.as_ref().map(|r| r.plan.number);
        let current = current.filter(|&number| same && self.takes_part(sender, number));
        let verdict = self.members.get(&sender).and_then(|m| m.verdict.clone()).filter(|_| same);
        let verdict = |round: u32| verdict.filter(|(of, _)| *of == round).map(|(_, verdict)| verdict);
        match holding {
            Holding::Round { round } if current == Some(*round) => self.go_on(now, sender, *round),
            Holding::Round { round } => match verdict(*round) {
                Some(verdict) => {
                    self.set_duty(sender, Duty::Idle);
                    self.tell(link, *round, verdict);
                    self.assign(now, sender, None);
                }
                None => {
                    self.set_duty(sender, Duty::Behind);
                    self.send(link, Control::Closed { round: *round });
                }
            },
            Holding::Model { round, holes } if current == Some(*round) => {
                self.start_over(now, sender, Some(holes.clone()));
            }
            Holding::Model { round, .. } => {
                self.send(link, Control::Closed { round: *round }); // or it would keep what it has of it
                self.start_over(now, sender, None);
            }
            Holding::Nothing => self.start_over(now, sender, None),
        }
    }

    pub(super) fn start_over(&mut self, now: Time, sender: u32, holes: Option<Ranges>) {
        self.set_duty(sender, Duty::Idle);
        self.drop_staging_of(sender);
        self.assign(now, sender, holes);
        self.say_closed(sender);
    }

    /// Tells a process, of whose client part of another update was folded, that this round is none of its business.
    fn say_closed(&mut self, sender: u32) {
        let Some(round) = self.round.as_ref().map(|r| r.plan.number) else { return };
        let forsaken = self.part(sender, round).is_some_and(|part| part.state == State::Lost && part.gone);
        let link = self.members.get(&sender).and_then(|m| m.link);
        if let Some(link) = link.filter(|_| forsaken) {
            self.send(link, Control::Closed { round });
        }
    }

    fn go_on(&mut self, now: Time, sender: u32, number: u32) {
        if !self.answered(sender, number) {
            if let Some(round) = &mut self.round {
                round.back(now, sender, self.config.stand_in.is_none());
            }
            self.set_duty(sender, Duty::Round);
        }
    }
}
