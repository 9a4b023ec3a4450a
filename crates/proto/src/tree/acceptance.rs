//! Which nodes' parts of a round count.
//!
//! A node has a token of its own, and counts the updates of clients. So the root looks for each client's own
//! proof. The client signs it for this job alone; the node passes it on and cannot make one. A node can still
//! lie about the values of its own clients' updates, as any aggregator can.

use std::collections::BTreeSet;

use thalweg_wire::tree::{repeated, RoundAnswer, UpdateState};

use super::round::TreeRound;

impl TreeRound {
    /// Checks what a node says of its round, and notes which clients it counts. The error says what the node
    /// does wrong.
    pub(super) fn check_report(&mut self, part: usize, answer: &RoundAnswer) -> Result<(), String> {
        let outcome = &answer.outcome;
        if outcome.round != self.plan.number {
            return Err(format!("speaks of round {}", outcome.round));
        }
        if repeated(outcome.participants.iter().map(|one| one.client.as_str())).is_some() {
            return Err("names a client twice".into());
        }
        let counting = outcome.participants.iter().filter(|one| one.counts());
        self.parts[part].counting = counting.map(|one| one.client.clone()).collect();
        self.parts[part].claim = answer.statement();
        let may_deliver = |state| matches!(state, UpdateState::Late | UpdateState::Lost);
        let going_on = outcome.participants.iter().filter(|one| may_deliver(one.state));
        let going_on = going_on.filter(|one| self.parts[part].clients.contains(&one.client));
        self.parts[part].going_on = going_on.map(|one| one.client.clone()).collect();
        self.check_others(part)
    }

    /// Checks the clients that a node counts, after their proofs were looked up.
    pub(super) fn check_clients(&self, at: usize, unproven: Option<&str>) -> Result<(), String> {
        // Another node may have counted one of them meanwhile.
        self.check_others(at)?;
        if let Some(client) = unproven {
            return Err(format!("counts {client}, and has no proof that it was there"));
        }
        let part = &self.parts[at];
        let own = self.nodes.iter().filter(|node| node.name == part.node).flat_map(|node| &node.clients);
        let own: BTreeSet<&String> = own.collect();
        if let Some(client) = part.counting.iter().find(|client| self.plan.placed && !own.contains(client)) {
            return Err(format!("counts {client}, who is none of its clients"));
        }
        let drawn: BTreeSet<&String> = part.clients.iter().collect();
        let is_drawn = self.drawing.is_some() || self.plan.only.is_some();
        if is_drawn && part.counting.iter().any(|client| !drawn.contains(client)) {
            return Err("counted clients that were not drawn".into());
        }
        if let Some(admitting) = &self.admitting {
            if let Some(client) = part.counting.iter().find(|client| !admitting.has_admitted(at, client)) {
                return Err(format!("counts {client}, whose update was not admitted"));
            }
        }
        Ok(())
    }

    /// Checks that a node counts no client of another node, and none whose update counts already.
    fn check_others(&self, part: usize) -> Result<(), String> {
        let part = &self.parts[part];
        let counting: BTreeSet<&String> = part.counting.iter().collect();
        for other in self.nodes.iter().filter(|other| other.name != part.node) {
            if let Some(client) = other.clients.iter().find(|client| counting.contains(client)) {
                return Err(format!("counts {client}, who is a client of {}", other.name));
            }
        }
        for client in &part.counting {
            if let Some(node) = self.counted.get(client) {
                return Err(format!("counts {client}, whose update counts at {node}"));
            }
        }
        Ok(())
    }
}
