//! Control messages: everything two peers say to each other besides chunks.
//!
//! Small, reliable, in order within a connection. What is moved is a [`Parcel`]: a model, an update, or any tensors.
//! Every message about a parcel bears its number, and goes from its sender to its receiver or back. Reasons are one
//! plain line once decoded, whatever the peer wrote ([`text::plain`]).
//!
//! | who | message | meaning |
//! |---|---|---|
//! | sender | Offer | the parcel: head, layout, weight; its chunks follow at once, or when they are granted |
//! | receiver | Grant | send these ranges: all, what a broken link did not carry, or what was lost |
//! | sender | End | the ranges of one grant have been sent |
//! | receiver | Received | the parcel is here |
//! | receiver | Accepted, Rejected | it counts, or does not, with the reason |
//! | receiver | Have | this much of it is here, on a graph where neighbours use what went both ways |
//! | either | Closed | the sender's or receiver's interest in it has ended |

use serde::{Deserialize, Serialize};

pub use crate::forward::Forward;
pub use crate::parcel::{Content, Parcel, MAX_HEAD};
pub use crate::text::{MAX_METRICS, MAX_NAME, MAX_REASON, MAX_URL};

use crate::{difference, text, Allowance, Layout, LayoutHash, Ranges, TensorSpec, WireError, MAX_CONTROL};

/// Oldest and newest version of the session protocol that this build speaks.
pub const VERSIONS: (u16, u16) = (8, 8);
/// Most separate holes one message names; more are asked for in a further pass.
pub const MAX_HOLES: usize = 4096;
/// Most separate holes a [`Hello`] names, so that it has no more than [`crate::MAX_HELLO`] bytes.
pub const HELLO_HOLES: usize = 128;

/// Most other nodes that a client is told of.
pub const MAX_OTHERS: usize = 8;

/// A number drawn anew for each connection, so that no proof can be replayed.
pub type Nonce = [u8; 32];
/// The holder's public key, the issuer's signature over role, name and key, and the holder's over role, both nonces, the
/// job, the name and the channel binding (Ed25519), each in parts of 32 bytes.
pub type Proof = Box<[[u8; 32]; 5]>;

/// What a peer says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Control {
    /// Server, at once after a connection is made.
    Challenge(Challenge),
    /// Client, in answer.
    Hello(Hello),
    /// Server: the client is in.
    Welcome(Welcome),
    /// Server: the client is not let in, or out again. The connection ends.
    Refused {
        /// Why.
        code: Refusal,
        /// Cause and hint, for a person.
        #[serde(deserialize_with = "text::reason")]
        reason: String,
    },
    /// Sender: a parcel. Its chunks follow at once if it is pushed, else they wait for a [`Control::Grant`].
    Offer(Parcel),
    /// Sender: all ranges of one grant, or of a pushed parcel, have been sent once.
    End {
        /// The parcel's number.
        parcel: u32,
        /// When sending began and ended, in microseconds of the sender's clock.
        sent: Interval,
    },
    /// Receiver: send these ranges now. They have not been sent yet, did not come, or came damaged.
    Grant {
        /// The parcel's number.
        parcel: u32,
        /// What to send, at most [`MAX_HOLES`] ranges.
        wanted: Ranges,
    },
    /// Receiver: the parcel is here, whole or mended.
    Received {
        /// The parcel's number.
        parcel: u32,
        /// First and last byte, in microseconds of the receiver's clock.
        received: Interval,
        /// Chunks that came more than once.
        duplicates: u64,
        /// Bytes that did not come, for which something stands in.
        missing: u64,
    },
    /// Receiver: the parcel counts. An update was folded into the sums, whole or mended; a result was handed over.
    Accepted {
        /// The parcel's number.
        parcel: u32,
    },
    /// The parcel is refused and nothing more of it is wanted; or, from a member that was given a task, there will be
    /// no result.
    Rejected {
        /// The parcel's number.
        parcel: u32,
        /// Why, for a person.
        #[serde(deserialize_with = "text::reason")]
        reason: String,
    },
    /// The round or task of this number is over; whatever belongs to it is late. Nodes of a graph say it when they meet: the
    /// first round that both may have in common is a later one.
    Closed {
        /// The parcel's number.
        parcel: u32,
    },
    /// Client: nothing in hand; ready for a round.
    Idle,
    /// Either, when it has nothing else to say.
    Ping {
        /// Returned in the answer: microseconds of the sender's clock.
        clock: u64,
        /// Bytes of updates the sender has received so far: tells a slow receiver from a stuck one.
        received: u64,
    },
    /// Answer to a ping.
    Pong {
        /// The ping's.
        clock: u64,
    },
    /// Server: the job is done. Client: it leaves for good.
    Bye {
        /// Why, for a person.
        #[serde(deserialize_with = "text::reason")]
        reason: String,
    },
    /// Receiver, between nodes of a graph: what it has of a model when it stops waiting. Both use what went both ways.
    Have {
        /// The parcel's number.
        parcel: u32,
        /// What came, at most [`MAX_HOLES`] ranges.
        got: Ranges,
    },
    /// Between the two ends of forwarded TCP streams.
    Forward(Forward),
    /// Server, a node of an aggregation tree: this client's home is there now. It connects to that URL, and goes on.
    Elsewhere {
        /// Where.
        #[serde(deserialize_with = "text::url")]
        url: String,
    },
    /// Server, a node of an aggregation tree: other nodes of the job, which know where a client's home is if this one is
    /// gone. At most [`MAX_OTHERS`].
    Others {
        /// Where they listen.
        #[serde(deserialize_with = "text::urls")]
        urls: Vec<String>,
    },
    /// Client, once the server has answered its parcel ([`Control::settles`]): how much its transport retransmitted. Right after
    /// the last send, some bytes are still in the kernel's buffer; by the server's answer they have been sent.
    Counted {
        /// The parcel's number.
        parcel: u32,
        /// Segments retransmitted over all its links since its last such message; `None` where the transport cannot tell.
        retransmissions: Option<u64>,
    },
    /// Server: the client's Hello names another layout than this, the job's. A [`Control::Differs`] follows; then the client
    /// is refused.
    Layout(Layout),
    /// Client: the first tensor in which its layout differs from the server's, and what that tensor is in its own.
    Differs {
        /// The tensor's name.
        #[serde(deserialize_with = "difference::name")]
        tensor: String,
        /// `None`: its layout has no such tensor.
        spec: Option<TensorSpec>,
    },
}

impl Control {
    /// The number of the parcel, if this is a receiver's last word on it.
    pub fn settles(&self) -> Option<u32> {
        match self {
            Self::Accepted { parcel } | Self::Rejected { parcel, .. } | Self::Closed { parcel } => {
                Some(*parcel)
            }
            _ => None,
        }
    }
}

/// First message of a connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Challenge {
    /// Oldest and newest version the server speaks.
    pub versions: (u16, u16),
    /// The server's nonce, which begins with the job's number.
    pub nonce: Nonce,
    /// Whether a proof of a token is wanted.
    pub token: bool,
    /// Microseconds of the server's clock.
    pub clock: u64,
}

impl Challenge {
    /// A challenge of this job. The job's number takes the place of the first bytes of `random`: this message has the same
    /// fields in every version.
    pub fn new(mut random: Nonce, token: bool, job: u64, clock: u64) -> Self {
        for (place, byte) in random.iter_mut().zip(job.to_le_bytes()) {
            *place = byte;
        }
        Self { versions: VERSIONS, nonce: random, token, clock }
    }

    /// The job, for which the proof is to be.
    pub fn job(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.nonce;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }
}

/// What a client says of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// The version chosen.
    pub version: u16,
    /// Name, unique in the job, at most [`MAX_NAME`] bytes.
    pub name: String,
    /// Drawn once a process: the same name with the same instance is the same client come back.
    pub instance: u64,
    /// The client's nonce.
    pub nonce: Nonce,
    /// Proof of the token, if one is wanted.
    pub proof: Option<Proof>,
    /// The layout of its own model; a client without one takes the server's.
    pub layout: Option<LayoutHash>,
    /// What the client already has, after a broken connection.
    pub holding: Holding,
    /// Microseconds of the client's clock.
    pub clock: u64,
    /// What the client is there for.
    pub purpose: Purpose,
}

/// What the members of a job do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// They take part in rounds of federated averaging.
    #[default]
    Rounds,
    /// They are given tasks, and answer each with a result.
    Tasks,
    /// They are neighbours in a graph, and average their models with each other.
    Graph,
    /// They carry other programs' TCP streams.
    Forward,
    /// They are nodes of an aggregation tree, which are given tasks by its root and by each other.
    Tree,
}

/// What a client that comes back still has in hand.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub enum Holding {
    /// Nothing.
    #[default]
    Nothing,
    /// Part of a round's global model, without `holes`.
    Model {
        /// The round.
        round: u32,
        /// What did not come: at most [`HELLO_HOLES`] ranges, the longest. The rest is asked for when these have come.
        holes: Ranges,
    },
    /// All of a round's global model: it is training, or has an update.
    Round {
        /// The round.
        round: u32,
    },
    /// A model of its own, as a node of a graph.
    Node(Alike),
}

/// What all nodes of a graph must have alike, besides the layout. Each is the start of a digest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alike {
    /// Of the plan's sections that all nodes share.
    pub plan: u64,
    /// Of the graph.
    pub graph: u64,
    /// Of the model that training starts from; `None` if it is not to be compared.
    pub start: Option<u64>,
}

/// What the server tells a client it lets in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    /// The client's number in chunks, from 1.
    pub sender: u32,
    /// The job.
    pub job: u64,
    /// The layout of the global model.
    pub layout: Layout,
    /// Bytes of payload in a chunk.
    pub chunk: u32,
    /// Microseconds between heartbeats.
    pub heartbeat: u64,
    /// Microseconds without progress that end a connection.
    pub liveness: u64,
    /// What stands in for parts of a model or an update that did not come; `None`: they are asked for again.
    pub stand_in: Option<StandIn>,
    /// The seed of the [`crate::Spread`] in which updates are sent; `None`: as they are.
    pub spread: Option<u64>,
    /// What of models and updates may be lost, by tensor; of those without an allowance all may.
    pub allowances: Vec<Allowance>,
}

/// What stands in for parts that did not come. What each means is defined where updates are folded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StandIn {
    /// Nothing: each element's mean is over those who sent it.
    #[default]
    Renormalise,
    /// The receiver's own value.
    KeepLocal,
    /// Zero.
    Zero,
    /// What the sender sent last.
    Last,
    /// The receiver's own value, and the changes that came count for those that did not.
    Rescale,
    /// What comes after a hole slips into it.
    FedcommLegacy,
}

/// Why a client is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// No common protocol version.
    Version,
    /// No token, a wrong one, or a certificate for another name.
    Authentication,
    /// A live client has this name.
    Name,
    /// Another layout than the server's.
    Layout,
    /// A message that makes no sense at this point.
    Protocol,
    /// No progress.
    Liveness,
    /// The job is over or full.
    Job,
}

impl Refusal {
    /// Whether a new attempt may succeed without anybody changing anything.
    pub const fn may_retry(self) -> bool {
        matches!(self, Refusal::Name | Refusal::Liveness)
    }
}

/// A span of time, in microseconds of one party's clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    /// Begin.
    pub start: u64,
    /// End.
    pub end: u64,
}

impl Control {
    /// The message's bytes.
    ///
    /// # Errors
    /// [`WireError::Length`] for a message over [`MAX_CONTROL`], such as metrics of many megabytes.
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        let bytes = postcard::to_stdvec(self).map_err(|e| WireError::Message(e.to_string()))?;
        let limit = u64::from(MAX_CONTROL);
        if bytes.len() as u64 > limit {
            return Err(WireError::Length { length: bytes.len() as u64, limit });
        }
        Ok(bytes)
    }

    /// Decodes a message; what it allocates is bounded by the bytes given.
    ///
    /// # Errors
    /// [`WireError::Message`] for bytes that are no message, or have more behind it.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let (message, rest) =
            postcard::take_from_bytes::<Self>(bytes).map_err(|e| WireError::Message(e.to_string()))?;
        if !rest.is_empty() {
            return Err(WireError::Message(format!("{} bytes behind its end", rest.len())));
        }
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dtype, Range};
    use proptest::prelude::*;

    fn samples() -> Vec<Control> {
        let layout = Layout::pack([("w", Dtype::F16, vec![4, 4])]).unwrap();
        let holes: Ranges = [Range::new(0, 64), Range::new(128, 192)].into_iter().collect();
        vec![
            Control::Challenge(Challenge { versions: VERSIONS, nonce: [1; 32], token: true, clock: 5 }),
            Control::Hello(Hello {
                version: 1,
                name: "client-1".into(),
                instance: 9,
                nonce: [2; 32],
                proof: Some(Box::new([[3; 32]; 5])),
                layout: Some(layout.hash()),
                holding: Holding::Model { round: 2, holes: holes.clone() },
                clock: 6,
                purpose: Purpose::Tasks,
            }),
            Control::Welcome(Welcome {
                sender: 1,
                job: 2,
                layout: layout.clone(),
                chunk: 65536,
                heartbeat: 1,
                liveness: 2,
                stand_in: Some(StandIn::Last),
                spread: Some(4),
                allowances: vec![Allowance { tensor: 0, budget: 50_000, refuse: 1_000_000 }],
            }),
            Control::Hello(Hello {
                version: 6,
                name: "node-1".into(),
                instance: 1,
                nonce: [4; 32],
                proof: None,
                layout: None,
                holding: Holding::Node(Alike { plan: 1, graph: u64::MAX, start: Some(2) }),
                clock: 0,
                purpose: Purpose::Graph,
            }),
            Control::Have { parcel: 7, got: holes.clone() },
            Control::Grant { parcel: 1, wanted: holes.clone() },
            Control::Forward(Forward::Missing { stream: 7, wanted: holes }),
            Control::Offer(Parcel {
                number: 1,
                pushed: true,
                head: b"{}".to_vec(),
                content: Content::Whole(LayoutHash(3)),
                same_as: Some(2),
                weight: 10.0,
                deadline: Some(5_000_000),
            }),
            Control::Idle,
            Control::Layout(layout),
            Control::Differs {
                tensor: "w".into(),
                spec: Some(TensorSpec { dtype: Dtype::F32, shape: vec![4, u64::MAX] }),
            },
            Control::Differs { tensor: "w".into(), spec: None },
            Control::Elsewhere { url: "tcp://10.0.0.1:7070".into() },
            Control::Others { urls: vec!["tcp://10.0.0.1:7070".into(), "tcp://[::1]:7071".into()] },
        ]
    }

    #[test]
    fn round_trips() {
        for message in samples() {
            assert_eq!(Control::decode(&message.encode().unwrap()), Ok(message));
        }
    }

    /// Whoever speaks another version has to be able to read the first message, or nobody could say why it ends.
    #[test]
    fn a_challenge_reads_the_same_in_every_version() {
        let challenge = Challenge { versions: (5, 6), nonce: [7; 32], token: true, clock: 300 };
        let mut bytes = vec![0, 5, 6];
        bytes.extend([7; 32]);
        bytes.extend([1, 0xac, 2]);
        assert_eq!(Control::Challenge(challenge).encode().unwrap(), bytes);
    }

    #[test]
    fn a_challenge_names_its_job() {
        for job in [0, 1, u64::MAX, 0x0102_0304_0506_0708] {
            let challenge = Challenge::new([9; 32], true, job, 3);
            assert_eq!(challenge.job(), job);
            assert_eq!(challenge.nonce[8..], [9; 24], "the rest is as random as it was");
        }
    }

    #[test]
    fn every_honest_hello_is_short() {
        let far = u64::MAX / 2;
        let holes: Ranges =
            (0..HELLO_HOLES as u64).map(|n| Range::new(far + 4 * n, far + 4 * n + 2)).collect();
        let hello = Hello {
            version: u16::MAX,
            name: "n".repeat(MAX_NAME),
            instance: u64::MAX,
            nonce: [255; 32],
            proof: Some(Box::new([[255; 32]; 5])),
            layout: Some(LayoutHash(u64::MAX)),
            holding: Holding::Model { round: u32::MAX, holes },
            clock: u64::MAX,
            purpose: Purpose::Tasks,
        };
        let bytes = Control::Hello(hello).encode().unwrap();
        assert!(bytes.len() <= crate::MAX_HELLO as usize, "{} bytes", bytes.len());
    }

    #[test]
    fn refuses_truncation_and_trailing_bytes() {
        for message in samples() {
            let mut bytes = message.encode().unwrap();
            for cut in 0..bytes.len() {
                assert!(Control::decode(&bytes[..cut]).is_err(), "{message:?} cut at {cut}");
            }
            bytes.push(0);
            assert!(Control::decode(&bytes).is_err());
        }
    }

    #[test]
    fn reasons_are_one_plain_line_once_decoded() {
        let evil = |text: &str| text.repeat(2000);
        for said in [evil("\x1b[2J"), evil("\r\nforged line"), evil("\u{202e}x")] {
            let (code, parcel) = (Refusal::Protocol, 1);
            for message in [
                Control::Refused { code, reason: said.clone() },
                Control::Rejected { parcel, reason: said.clone() },
                Control::Bye { reason: said.clone() },
                Control::Forward(Forward::Reset { stream: 1, reason: said.clone() }),
            ] {
                let told = match Control::decode(&message.encode().unwrap()) {
                    Ok(
                        Control::Refused { reason, .. }
                        | Control::Rejected { reason, .. }
                        | Control::Forward(Forward::Reset { reason, .. })
                        | Control::Bye { reason },
                    ) => reason,
                    other => panic!("{other:?}"),
                };
                assert!(told.len() <= MAX_REASON && text::is_plain(&told), "{told}");
            }
        }
    }

    #[test]
    fn addresses_are_plain_short_and_few() {
        for url in ["tcp://a\nb".into(), "tcp://\u{202e}x".into(), "x".repeat(MAX_URL + 1)] {
            let message = Control::Elsewhere { url };
            assert!(Control::decode(&message.encode().unwrap()).is_err(), "{message:?}");
        }
        let many = Control::Others { urls: vec!["tcp://a:1".into(); MAX_OTHERS + 1] };
        assert!(Control::decode(&many.encode().unwrap()).is_err());
    }

    /// The server has not let in whoever says it.
    #[test]
    fn a_difference_is_short() {
        let of = |tensor: String, shape| {
            let spec = Some(TensorSpec { dtype: Dtype::F32, shape });
            Control::Differs { tensor, spec }.encode().unwrap()
        };
        let longest = of("n".repeat(1024), vec![u64::MAX; 16]);
        assert!(longest.len() <= crate::MAX_HELLO as usize, "{} bytes", longest.len());
        assert!(Control::decode(&longest).is_ok());
        for bad in [of("n".repeat(1025), vec![1]), of(String::new(), vec![1]), of("n".into(), vec![1; 17])] {
            assert!(Control::decode(&bad).is_err());
        }
    }

    #[test]
    fn a_layout_from_the_wire_is_validated() {
        let bad = [Tensor { name: "t".into(), dtype: Dtype::F32, shape: vec![1], offset: 3 }];
        let bytes = postcard::to_stdvec(&bad[..]).unwrap();
        assert!(postcard::from_bytes::<Layout>(&bytes).is_err());
    }

    use crate::Tensor;

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Control::decode(&bytes);
        }

        #[test]
        fn flipped_bytes_never_panic(which in 0..samples().len(), at in any::<prop::sample::Index>(), value in any::<u8>()) {
            let mut bytes = samples()[which].encode().unwrap();
            let at = at.index(bytes.len());
            bytes[at] = value;
            let _ = Control::decode(&bytes);
        }
    }
}
