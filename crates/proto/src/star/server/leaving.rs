//! Clients that have left, the reasons in a round's failure, and the limit on a client's metrics.

use thalweg_wire::text::MAX_METRICS;

use super::{Action, Server};
use crate::{Choice, Ending};

/// A message names at most this many clients, and only counts the others.
const NAMED: usize = 8;

impl Server {
    /// Whether each client that the round wants takes part or has left for good. If so, the round waits for
    /// no other client.
    pub(super) fn is_everybody_accounted_for(&self) -> bool {
        let Some(round) = self.round.as_ref().filter(|r| r.plan.choice == Choice::ByName) else {
            return false;
        };
        let (parts, expected) = (round.parts().len(), round.plan.expected as usize);
        let members = self.roster.members();
        // A client that has moved to another node is none of those that this round wants.
        let departed = members.iter().filter(|(_, m)| m.departed && !self.is_elsewhere(&m.name));
        let departed = departed.filter(|(&sender, _)| round.part(sender).is_none());
        parts >= expected || (members.len() > parts && parts + departed.count() >= expected)
    }

    /// Adds to a round's failure the reasons of clients that left before the round or were not let in.
    pub(super) fn with_farewells(&self, ending: Ending) -> Ending {
        let Ending::Failed(reason) = ending else { return ending };
        let round = self.round.as_ref();
        let members = self.roster.members().iter();
        let before = members.filter(|(&sender, _)| round.is_none_or(|r| r.part(sender).is_none()));
        let here = before.filter(|(_, m)| !self.is_elsewhere(&m.name));
        let farewells = here.filter_map(|(_, m)| m.farewell());
        let refused = self.roster.mismatches().map(|(name, how)| format!("{name} was not let in: {how}"));
        let farewells: Vec<String> = farewells.chain(refused).collect();
        if farewells.is_empty() {
            return Ending::Failed(reason);
        }
        Ending::Failed(format!("{reason}, and before it {}", named(&farewells)))
    }

    /// The metrics of an offer, if they are UTF-8 and not too long. If not, `{}`; the log says so once for
    /// each client.
    pub(super) fn bounded_metrics(&mut self, sender: u32, metrics: Vec<u8>) -> String {
        let bytes = metrics.len();
        if bytes <= MAX_METRICS {
            if let Ok(metrics) = String::from_utf8(metrics) {
                return metrics;
            }
        }
        let Some(member) = self.roster.member_mut(sender).filter(|m| !m.own.metrics_reported) else {
            return "{}".into();
        };
        member.own.metrics_reported = true;
        let what =
            format!("its metrics of {bytes} bytes are dropped: at most {MAX_METRICS} of JSON are kept");
        let client = member.name.clone();
        self.roster.act(Action::Note { client, what });
        "{}".into()
    }
}

/// Joins the first of these reasons, and counts the others.
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
