//! Confirms updates late, at a server whose sums must still count at another server: a node of a tree.
//!
//! A client that hears that its update was accepted forgets it. If its node is lost before the top has the node's
//! sums, the update would be lost although it was accepted. So a node confirms an update only when the top counts
//! it ([`ServerConfig::withhold`](super::ServerConfig)). A client that is not told offers its update again,
//! perhaps at another node, which knows what counted ([`Homes`](super::Homes)). An update that does not count is
//! late: its round is over without it.

use std::collections::BTreeSet;

use thalweg_wire::control::Control;

use super::{Duty, Server};

impl Server {
    /// The sums of a round count at the top, or do not. The updates of the clients in `left_out` do not count in
    /// any case.
    pub fn confirm(&mut self, round: u32, counts: bool, left_out: &BTreeSet<String>) {
        self.confirm_if(|of| of == round, |client| counts && !left_out.contains(client));
        if self.round.as_ref().is_some_and(|running| running.plan.number == round) {
            self.drop_exported();
        }
    }

    /// Whether a client's update is in sums of which nobody has said whether they count.
    pub(super) fn is_withheld(&self, sender: u32, round: u32) -> bool {
        let answer = self.roster.member(sender).and_then(|member| member.own.answer.as_ref());
        answer.is_some_and(|answer| answer.round == round && answer.withheld.is_some())
    }

    /// Before a round begins: nobody will say any more what became of other rounds' sums.
    pub(super) fn give_up_withheld(&mut self, next: u32) {
        self.confirm_if(|of| of != next, |_| false);
    }

    fn confirm_if(&mut self, is_over: impl Fn(u32) -> bool, counts: impl Fn(&str) -> bool) {
        let senders: Vec<u32> = self.roster.members().keys().copied().collect();
        for sender in senders {
            let link = self.roster.link_of(sender);
            let Some(member) = self.roster.member_mut(sender) else { continue };
            let Some(mut answer) = member.own.answer.clone() else { continue };
            if !answer.withheld.is_some_and(&is_over) {
                continue;
            }
            let does_count = counts(&member.name);
            answer.withheld = None;
            member.own.answer = does_count.then(|| answer.clone());
            if !does_count {
                self.set_duty(sender, Duty::Behind);
            }
            match link {
                Some(link) if does_count => self.send_answer(link, answer),
                Some(link) => self.roster.send(link, Control::Closed { parcel: answer.round }),
                None => {}
            }
        }
    }
}
