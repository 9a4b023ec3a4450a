//! Who has left, and why; and what of a client's words is kept.

use thalweg_wire::text::{plain, MAX_METRICS, MAX_REASON};

use super::{Action, Member, Server};
use crate::{Choice, Ending};

/// Most clients that a sentence names; the others are counted.
const NAMED: usize = 8;

impl Member {
    /// Its link has ended.
    pub(super) fn depart(&mut self, reason: &str) {
        self.link = None;
        self.parting = Some(plain(reason, MAX_REASON));
    }

    fn farewell(&self) -> Option<String> {
        self.parting.as_ref().filter(|_| self.gone).map(|reason| format!("{} {reason}", self.name))
    }
}

impl Server {
    /// Clients that were here and are not connected, each with why its link ended and whether it left for good.
    pub fn departed(&self) -> impl Iterator<Item = (&str, &str, bool)> {
        let away = self.members.values().filter(|m| m.link.is_none() && self.finished.is_none());
        away.filter_map(|m| m.parting.as_deref().map(|reason| (m.name.as_str(), reason, m.gone)))
    }

    /// Whether all clients that the round wants either take part or have left for good, so that no other is waited for.
    pub(super) fn is_everybody_accounted_for(&self) -> bool {
        let Some(round) = self.round.as_ref().filter(|r| r.plan.choice == Choice::ByName) else {
            return false;
        };
        let gone = self.members.iter().filter(|(sender, m)| m.gone && !round.parts.contains_key(sender));
        round.parts.len() + gone.count() >= round.plan.expected as usize
    }

    /// A round's failure also says why those are missing that had left before it.
    pub(super) fn with_farewells(&self, ending: Ending) -> Ending {
        let Ending::Failed(reason) = ending else { return ending };
        let parts = self.round.as_ref().map(|r| &r.parts);
        let before = self.members.iter().filter(|(sender, _)| parts.is_none_or(|p| !p.contains_key(sender)));
        let farewells: Vec<String> = before.filter_map(|(_, m)| m.farewell()).collect();
        if farewells.is_empty() {
            return Ending::Failed(reason);
        }
        Ending::Failed(format!("{reason}, and before it {}", named(&farewells)))
    }

    /// An offer's metrics, if they are not too long to be kept. What is dropped is said once of each client.
    pub(super) fn bounded_metrics(&mut self, sender: u32, metrics: String) -> String {
        if metrics.len() <= MAX_METRICS {
            return metrics;
        }
        let Some(member) = self.members.get_mut(&sender).filter(|m| !m.told) else { return "{}".into() };
        member.told = true;
        let what =
            format!("its metrics of {} bytes are dropped: at most {MAX_METRICS} are kept", metrics.len());
        self.actions.push_back(Action::Note { client: member.name.clone(), what });
        "{}".into()
    }
}

/// The first of some sentences, and how many more there are.
pub(crate) fn named(sentences: &[String]) -> String {
    let first = sentences[..sentences.len().min(NAMED)].join(", ");
    match sentences.len().saturating_sub(NAMED) {
        0 => first,
        more => format!("{first}, and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_names_only_so_many() {
        let all: Vec<String> = (0..NAMED + 3).map(|n| format!("c{n} left")).collect();
        assert_eq!(named(&all[..2]), "c0 left, c1 left");
        assert!(named(&all).ends_with("c7 left, and 3 more"));
        assert_eq!(named(&[]), "");
    }
}
