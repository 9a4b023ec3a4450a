//! The requests of an aggregation tree's root to its nodes in a round, the nodes' answers, and the requests
//! between nodes.
//!
//! They travel as heads of tasks, as JSON objects. A request's key `do` has its kind. An answer has no kind:
//! [`Answer::read`] knows it from the request. Keys of an answer that only the record needs are not read here.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::{Deserializer, Error};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use crate::text::{self, MAX_NAME, MAX_REASON};

/// Maximum number of clients in one answer.
pub const MAX_CLIENTS: usize = 1_000_000;
/// The greatest weight of one update.
const MAX_WEIGHT: f64 = 1e300;

/// What is stated of a node's sums: the number of updates in them, the total weight of these updates, and
/// whether all of them are whole. The top refuses sums of more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Statement(pub u32, pub f64, pub bool);

/// The first byte of a part of an update, and the one after the last.
pub type Bytes = (u64, u64);

/// A request of the root to a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub enum Request {
    /// Wait at most `seconds` until the node's clients are connected. The answer says which are.
    Wait {
        /// Seconds.
        seconds: f64,
    },
    /// Run a round.
    Round {
        /// The round's number.
        round: u32,
        /// The round's configuration, for the clients' application.
        config: String,
        /// Whether the node already has the last round's model. The request then carries no model.
        kept: bool,
        /// The clients that take part, by node; `None`: all.
        #[serde(skip_serializing_if = "Option::is_none")]
        only: Option<BTreeMap<String, Vec<String>>>,
        /// The number of the batch, from 1, if the node folds only the updates that [`Request::Admit`] names. A
        /// later batch goes on with the updates that were not folded in the batch before. `None`: the node folds
        /// all updates.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        batch: Option<u32>,
    },
    /// Fold the updates of these clients. The node answers when it has more news than the root knows of, or
    /// the batch is over.
    Admit(Admit),
    /// Become the top of this round, beginning with the node's own sums.
    #[serde(rename = "lead")]
    BecomeTop {
        /// What is stated of the node's sums.
        claim: Statement,
    },
    /// Let the node at this address take the sums of this node's round.
    #[serde(rename = "give")]
    SendSums {
        /// The address.
        to: String,
    },
    /// Take the sums of another node.
    #[serde(rename = "take")]
    ReceiveSums {
        /// The other node.
        node: String,
        /// What is stated of its sums.
        claim: Statement,
    },
    /// Compute the mean of all sums that the node has. The mean comes with the answer.
    #[serde(rename = "finish")]
    ComputeMean,
    /// Take the sums of this node's part of the bytes from all other nodes.
    #[serde(rename = "share")]
    FoldPart {
        /// The number of this try, from 1.
        turn: u32,
        /// The nodes that count, and what is stated of their sums.
        nodes: BTreeMap<String, Statement>,
        /// The part of each node that has one.
        parts: BTreeMap<String, Bytes>,
        /// The addresses of the nodes that have a part.
        addresses: Vec<String>,
    },
    /// Compute the mean of this node's part, and send it to these nodes. It comes with the answer, too.
    #[serde(rename = "settle")]
    ComputePart {
        /// The nodes.
        to: Vec<String>,
    },
    /// Wait until the other nodes have this node's part of the mean.
    #[serde(rename = "told")]
    ConfirmParts,
    /// Wait no more for another node.
    #[serde(rename = "gone")]
    ForgetNode {
        /// The other node.
        node: String,
        /// How it was lost.
        why: String,
    },
}

/// Which updates of a batch a node folds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admit {
    /// The round's number.
    pub round: u32,
    /// The batch's number.
    pub batch: u32,
    /// The clients whose updates are folded, beside those of earlier requests.
    pub clients: Vec<String>,
    /// Whether this request closes the batch: `clients` then names all of it, and it ends when their updates are folded.
    pub last: bool,
    /// How many of the batch's arrivals the root knows.
    pub seen: usize,
    /// Whether the node waits only for the grace for clients that are away: the round has enough updates, or draws others
    /// in their place. If not, it waits for them as long as the longest outage.
    pub enough: bool,
}

/// News of an update, in a round whose root says which updates are folded: the client, and whether its update can be
/// folded (with stand-ins for missing bytes, if the job has these). If not, it was refused after it had arrived.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival(pub String, pub bool);

/// A request of a node to another node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub enum PeerRequest {
    /// Send the sums of your round. The answer's head is that of the sums, and their cells are its tensor.
    Sums {
        /// The round's number.
        round: u32,
        /// The bytes of updates whose sums are wanted; `None`: all.
        #[serde(skip_serializing_if = "Option::is_none")]
        part: Option<Bytes>,
    },
    /// Keep a part of a round's mean, which comes with the request.
    Mean {
        /// The round's number.
        round: u32,
        /// The number of the try ([`Request::FoldPart`]) in which the part was computed.
        turn: u32,
        /// The bytes of the model that the part is of.
        part: Bytes,
    },
}

/// A node's answer to a [`Request`].
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// To [`Request::Wait`].
    State(State),
    /// To [`Request::Round`].
    Round(RoundAnswer),
    /// To [`Request::Admit`]: the batch's arrivals that the root does not know. An empty list: the batch is over.
    Arrived(Vec<Arrival>),
    /// To [`Request::BecomeTop`] and [`Request::ReceiveSums`]: done, or refused for a reason.
    Refusable(Option<String>),
    /// To [`Request::SendSums`] and [`Request::ForgetNode`].
    Nothing,
    /// To [`Request::ComputeMean`] and [`Request::ComputePart`].
    Mean(MeanAnswer),
    /// To [`Request::FoldPart`]: why the sums of other nodes were refused, by node.
    Shared(BTreeMap<String, String>),
    /// To [`Request::ConfirmParts`]: the nodes that have this node's part of the mean.
    Delivered(Vec<String>),
}

/// A node's clients.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The clients that are connected to the node.
    pub clients: Vec<String>,
}

/// The outcome of a node's round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoundAnswer {
    /// What the node says of the round.
    pub outcome: Outcome,
    /// Whether the node has sums of updates.
    pub held: bool,
    /// The clients that are connected to the node.
    pub clients: Vec<String>,
}

/// What a node says of its round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The round's number.
    pub round: u32,
    /// The clients of the node, and what became of their updates.
    pub participants: Vec<Participant>,
    /// Why the round failed at the node; `None` if it did not.
    pub failure: Option<String>,
}

/// A client's part in a node's round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Participant {
    /// The client's name.
    pub client: String,
    /// What became of its update.
    pub state: UpdateState,
    /// The update's weight.
    pub samples: f64,
}

/// What became of a client's update.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UpdateState {
    /// The sums contain all of it.
    Whole,
    /// The sums contain some of it.
    Partial,
    /// It did not arrive.
    Lost,
    /// It was refused.
    Rejected,
    /// It arrived after the round.
    Late,
}

impl Participant {
    /// Whether the node's sums contain the client's update, whole or in part.
    pub fn counts(&self) -> bool {
        matches!(self.state, UpdateState::Whole | UpdateState::Partial)
    }
}

/// What a node says of the mean that it has computed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MeanAnswer {
    /// The summary of the fold.
    pub fold: MeanFold,
    /// When the mean was made: seconds since 1970.
    pub done: f64,
}

/// The summary of a mean.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeanFold {
    /// Bytes of the model that no update covers; `None` if they were not counted.
    pub uncovered_bytes: Option<u64>,
}

impl RoundAnswer {
    /// What is stated of the node's sums, by its own account of the participants.
    pub fn statement(&self) -> Statement {
        let counting = || self.outcome.participants.iter().filter(|one| one.counts());
        let updates = u32::try_from(counting().count()).unwrap_or(u32::MAX);
        let whole = counting().all(|one| one.state == UpdateState::Whole);
        Statement(updates, counting().map(|one| one.samples).sum(), whole)
    }

    fn check(&self) -> Result<(), String> {
        let participants = &self.outcome.participants;
        if participants.len() > MAX_CLIENTS {
            return Err(format!("{} participants are over {MAX_CLIENTS}", participants.len()));
        }
        if let Some(one) = participants.iter().find(|one| !(0.0..=MAX_WEIGHT).contains(&one.samples)) {
            return Err(format!("an update of weight {}", one.samples));
        }
        names(participants.iter().map(|one| &one.client))?;
        names(&self.clients)
    }
}

impl Answer {
    /// Reads the answer to a request. Keys that are not of this answer are skipped.
    ///
    /// # Errors
    /// The deserializer's error if the answer has another form, or has a name or a number that is out of
    /// bounds.
    pub fn read<'de, D: Deserializer<'de>>(request: &Request, from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Refusable {
            #[serde(default)]
            refused: Option<String>,
        }
        #[derive(Deserialize)]
        struct Shared {
            refused: BTreeMap<String, String>,
        }
        #[derive(Deserialize)]
        struct Delivered {
            has: Vec<String>,
        }
        #[derive(Deserialize)]
        struct Arrived {
            arrivals: Vec<Arrival>,
        }
        #[derive(Deserialize)]
        struct Nothing {}
        let shown = |reason: String| text::plain(&reason, MAX_REASON);
        let answer = match request {
            Request::Wait { .. } => Self::State(State::deserialize(from)?),
            Request::Round { .. } => Self::Round(RoundAnswer::deserialize(from)?),
            Request::Admit(_) => Self::Arrived(Arrived::deserialize(from)?.arrivals),
            Request::BecomeTop { .. } | Request::ReceiveSums { .. } => {
                Self::Refusable(Refusable::deserialize(from)?.refused.map(shown))
            }
            Request::SendSums { .. } | Request::ForgetNode { .. } => {
                let Nothing {} = Nothing::deserialize(from)?;
                Self::Nothing
            }
            Request::ComputeMean | Request::ComputePart { .. } => Self::Mean(MeanAnswer::deserialize(from)?),
            Request::FoldPart { .. } => {
                let refused = Shared::deserialize(from)?.refused;
                Self::Shared(refused.into_iter().map(|(name, why)| (name, shown(why))).collect())
            }
            Request::ConfirmParts => Self::Delivered(Delivered::deserialize(from)?.has),
        };
        answer.check().map_err(D::Error::custom)?;
        Ok(answer)
    }

    fn check(&self) -> Result<(), String> {
        match self {
            Self::State(state) => names(&state.clients),
            Self::Round(answer) => answer.check(),
            Self::Arrived(arrivals) => names(arrivals.iter().map(|Arrival(client, _)| client)),
            Self::Refusable(_) | Self::Nothing => Ok(()),
            Self::Mean(mean) if mean.done.is_finite() => Ok(()),
            Self::Mean(_) => Err("a time that is no number".into()),
            Self::Shared(refused) => names(refused.keys()),
            Self::Delivered(has) => names(has),
        }
    }
}

impl Serialize for Answer {
    /// Writes the answer as [`Answer::read`] reads it.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::State(state) => state.serialize(to),
            Self::Round(answer) => answer.serialize(to),
            Self::Arrived(arrivals) => to.collect_map([("arrivals", arrivals)]),
            Self::Refusable(refused) => to.collect_map([("refused", refused)]),
            Self::Nothing => to.collect_map::<&str, u32, _>([]),
            Self::Mean(mean) => mean.serialize(to),
            Self::Shared(refused) => to.collect_map([("refused", refused)]),
            Self::Delivered(has) => to.collect_map([("has", has)]),
        }
    }
}

/// Checks the names of clients or nodes.
fn names<'a>(all: impl IntoIterator<Item = &'a String>) -> Result<(), String> {
    for (at, name) in all.into_iter().enumerate() {
        if at >= MAX_CLIENTS {
            return Err(format!("more than {MAX_CLIENTS} names"));
        }
        if name.is_empty() || name.len() > MAX_NAME || !text::is_plain(name) {
            return Err(format!("{:?} is no name", text::plain(name, MAX_NAME)));
        }
    }
    Ok(())
}

/// The first name that comes twice.
pub fn repeated<'a>(all: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let mut seen = BTreeSet::new();
    all.into_iter().find(|name| !seen.insert(*name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{json, Value};

    fn round(participants: Value) -> Value {
        let outcome = json!({ "round": 3, "participants": participants, "failure": null, "seconds": 1.5 });
        json!({ "outcome": outcome, "held": true, "clients": ["a"], "notes": [] })
    }

    fn read(request: &Request, answer: Value) -> Result<Answer, String> {
        Answer::read(request, answer).map_err(|error| error.to_string())
    }

    #[test]
    fn a_request_has_its_kind_and_its_fields() {
        let request = Request::ReceiveSums { node: "west".into(), claim: Statement(2, 3.5, true) };
        let value = serde_json::to_value(&request).unwrap();
        assert_eq!(value, json!({ "do": "take", "node": "west", "claim": [2, 3.5, true] }));
        assert_eq!(serde_json::from_value::<Request>(value).unwrap(), request);
        let round = Request::Round { round: 1, config: "{}".into(), kept: false, only: None, batch: None };
        let value = json!({ "do": "round", "round": 1, "config": "{}", "kept": false });
        assert_eq!(serde_json::to_value(&round).unwrap(), value);
        let admit =
            Admit { round: 1, batch: 2, clients: vec!["a".into()], last: false, seen: 3, enough: true };
        let value = json!({
            "do": "admit", "round": 1, "batch": 2, "clients": ["a"], "last": false, "seen": 3, "enough": true,
        });
        assert_eq!(serde_json::to_value(Request::Admit(admit.clone())).unwrap(), value);
        assert_eq!(serde_json::from_value::<Request>(value).unwrap(), Request::Admit(admit));
    }

    #[test]
    fn an_answer_is_read_by_its_request() {
        let request = Request::Round { round: 3, config: String::new(), kept: true, only: None, batch: None };
        let one = |client: &str, state: &str| json!({ "client": client, "state": state, "samples": 2 });
        let participants = json!([one("a", "whole"), one("b", "partial"), one("c", "late")]);
        let Ok(Answer::Round(answer)) = read(&request, round(participants)) else { panic!() };
        assert_eq!(answer.statement(), Statement(2, 4.0, false));
        let why = |bad: Value| read(&request, round(json!([bad]))).unwrap_err();
        assert!(why(one("a\nb", "whole")).contains("is no name"));
        assert!(why(one("a", "king")).contains("king"));
        assert!(why(json!({ "client": "a", "state": "whole", "samples": -1 })).contains("weight -1"));
        assert!(why(json!({ "client": "a", "state": "whole", "samples": true })).contains("boolean"));
    }

    #[test]
    fn an_answer_is_written_as_it_is_read() {
        let sums = Request::ReceiveSums { node: "west".into(), claim: Statement::default() };
        let fold = Request::FoldPart {
            turn: 1,
            nodes: BTreeMap::new(),
            parts: BTreeMap::new(),
            addresses: Vec::new(),
        };
        let mean = MeanAnswer { fold: MeanFold { uncovered_bytes: Some(4) }, done: 2.5 };
        let gone = Request::ForgetNode { node: "west".into(), why: "killed".into() };
        let refused = BTreeMap::from([("west".to_owned(), "too heavy".to_owned())]);
        let admit = Admit { round: 1, batch: 1, clients: Vec::new(), last: true, seen: 0, enough: true };
        let admit = Request::Admit(admit);
        for (request, answer) in [
            (&sums, Answer::Refusable(None)),
            (&sums, Answer::Refusable(Some("it has no sums".into()))),
            (&gone, Answer::Nothing),
            (&admit, Answer::Arrived(vec![Arrival("a".into(), true), Arrival("b".into(), false)])),
            (&Request::ComputeMean, Answer::Mean(mean)),
            (&fold, Answer::Shared(refused)),
            (&Request::ConfirmParts, Answer::Delivered(vec!["west".into()])),
        ] {
            let written = serde_json::to_value(&answer).unwrap();
            assert_eq!(read(request, written), Ok(answer));
        }
    }

    #[test]
    fn a_reason_is_one_line_that_can_be_shown() {
        let request = Request::BecomeTop { claim: Statement::default() };
        assert_eq!(read(&request, json!({})), Ok(Answer::Refusable(None)));
        let Ok(Answer::Refusable(Some(why))) = read(&request, json!({ "refused": "no\nway\u{1b}" })) else {
            panic!()
        };
        assert_eq!(why, "no way\u{fffd}");
    }

    #[test]
    fn a_repeated_name_is_found() {
        assert_eq!(repeated(["a", "b", "a"]), Some("a"));
        assert_eq!(repeated(["a", "b"]), None);
    }
}
