//! Confirms updates late, at a server whose sums must still count at another server: a node of a tree.
//!
//! A client that hears that its update was accepted forgets it. If its node is lost before the top has the node's
//! sums, the update would be lost although it was accepted. So a node confirms an update only when the top counts
//! it ([`ServerConfig::withhold`](super::ServerConfig)). A client that is not told offers its update again,
//! perhaps at another node, which knows what counted ([`Homes`](super::Homes)).

use std::collections::BTreeMap;

use super::Server;

impl Server {
    /// The sums of a round count at the top, or do not for a reason. `refused` has the clients whose updates do
    /// not count although others of this round do, with reasons.
    pub fn confirm(&mut self, round: u32, outcome: &Result<(), String>, refused: &BTreeMap<String, String>) {
        self.confirm_if(
            |of| of == round,
            |client| match refused.get(client) {
                Some(reason) => Err(reason.clone()),
                None => outcome.clone(),
            },
        );
    }

    /// Whether a client's update is in sums of which nobody has said whether they count.
    pub(super) fn is_withheld(&self, sender: u32, round: u32) -> bool {
        let answer = self.roster.member(sender).and_then(|member| member.own.answer.as_ref());
        answer.is_some_and(|answer| answer.round == round && answer.withheld.is_some())
    }

    /// Before a round begins: nobody will say any more what became of other rounds' sums.
    pub(super) fn give_up_withheld(&mut self, next: u32) {
        self.confirm_if(|of| of != next, |_| Err("nobody said whether the sums that it is in count".into()));
    }

    fn confirm_if(&mut self, is_over: impl Fn(u32) -> bool, verdict: impl Fn(&str) -> Result<(), String>) {
        let senders: Vec<u32> = self.roster.members().keys().copied().collect();
        for sender in senders {
            let Some(member) = self.roster.member_mut(sender) else { continue };
            let name = member.name.clone();
            let Some(answer) = member.own.answer.as_mut() else { continue };
            if !answer.withheld.is_some_and(&is_over) {
                continue;
            }
            (answer.withheld, answer.verdict) = (None, verdict(&name));
            let answer = answer.clone();
            if let Some(link) = self.roster.link_of(sender) {
                self.send_answer(link, answer);
            }
        }
    }
}
