//! Control messages: everything that two peers send each other besides chunks.
//!
//! Control messages are small and reliable, and keep their order within a connection. Most are about a
//! [`Parcel`]: a model, an update, or other tensors. A message about a parcel carries the parcel's number.
//! After decoding, a reason is one line of plain text, whatever the peer wrote ([`text::plain`]).
//!
//! | who | message | meaning |
//! |---|---|---|
//! | sender | Offer | describes the parcel: head, layout, weight; chunks follow at once, or on a Grant |
//! | receiver | Grant | send these ranges: all, those that a broken link did not carry, or lost ones; before the Offer: send all of it without a further Grant |
//! | sender | End | the ranges of one grant were sent |
//! | receiver | Received | the parcel is here |
//! | receiver | Accepted, Rejected | the parcel counts, or it does not, for this reason |
//! | receiver | Have | these ranges arrived; nodes of a graph use only ranges that both of them have |
//! | server | Have | before its last message about an update: these ranges count, and no others |
//! | either | Closed | the round or task of the parcel is over |

use serde::{Deserialize, Serialize};

pub use crate::forward::Forward;
pub use crate::parcel::{Content, Parcel, Tracked, MAX_HEAD};
pub use crate::text::{MAX_METRICS, MAX_NAME, MAX_REASON, MAX_URL};

use crate::{difference, text, Allowance, Layout, LayoutHash, Ranges, TensorSpec, WireError, MAX_CONTROL};

/// Oldest and newest version of the session protocol that this build supports.
pub const VERSIONS: (u16, u16) = (8, 8);
/// Maximum number of separate holes that one message names. A receiver asks for more in a later message.
pub const MAX_HOLES: usize = 4096;
/// Maximum number of separate holes that a [`Hello`] names, so that it has at most [`crate::MAX_HELLO`]
/// bytes.
pub const HELLO_HOLES: usize = 128;

/// Maximum number of other nodes that are named to a client.
pub const MAX_OTHERS: usize = 8;

/// A random number, drawn anew for each connection, so that no proof can be replayed.
pub type Nonce = [u8; 32];
/// A proof of a token, in parts of 32 bytes. It holds the holder's public key, and the issuer's signature
/// over role, name and key. It also holds the holder's signature over role, both nonces, the job, the name
/// and the channel binding. Signatures are Ed25519.
pub type Proof = Box<[[u8; 32]; 5]>;

/// A message between two peers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Control {
    /// Server: the first message on a connection.
    Challenge(Challenge),
    /// Client: the answer to the Challenge.
    Hello(Hello),
    /// Server: the client is let in.
    Welcome(Welcome),
    /// Server: the client is refused, or its membership ends. The connection ends.
    Refused {
        /// The kind of the reason.
        code: Refusal,
        /// Cause and hint, for the user.
        #[serde(deserialize_with = "text::reason")]
        reason: String,
    },
    /// Sender: describes a parcel. If the parcel is pushed, its chunks follow at once; else they wait for a
    /// [`Control::Grant`].
    Offer(Parcel),
    /// Sender: all ranges of one grant, or of a pushed parcel, were sent once.
    End {
        /// The parcel's number.
        parcel: u32,
        /// When sending began and ended, in microseconds of the sender's clock.
        sent: Interval,
    },
    /// Receiver: send these ranges now. They were not sent yet, were lost, or arrived damaged.
    Grant {
        /// The parcel's number.
        parcel: u32,
        /// The ranges to send, at most [`MAX_HOLES`].
        wanted: Ranges,
    },
    /// Receiver: the parcel is here. Stand-ins replace what is missing.
    Received {
        /// The parcel's number.
        parcel: u32,
        /// When the first and the last byte arrived, in microseconds of the receiver's clock.
        received: Interval,
        /// Chunks that arrived more than once.
        duplicates: u64,
        /// Bytes that did not arrive, for which stand-ins are used.
        missing: u64,
    },
    /// Receiver: the parcel counts. An update was folded into the sums; a result was folded or handed over.
    Accepted {
        /// The parcel's number.
        parcel: u32,
    },
    /// Receiver: the parcel is refused, and no more of it is wanted. From a member that was given a task: it
    /// will send no result.
    Rejected {
        /// The parcel's number.
        parcel: u32,
        /// Why, for the user.
        #[serde(deserialize_with = "text::reason")]
        reason: String,
    },
    /// The round or task of this number is over; everything that belongs to it is late. A node of a graph
    /// sends this when it meets a neighbour: the two can exchange models only in later rounds. It also sends
    /// this for a round in which it sends no model.
    Closed {
        /// The number of the round or task.
        parcel: u32,
    },
    /// Client: it holds nothing, and is ready for a round.
    Idle,
    /// Either peer: sent at regular intervals to show that it is alive.
    Ping {
        /// Microseconds of the sender's clock, which the answer repeats.
        clock: u64,
        /// Bytes of chunks that the sender has received so far. They distinguish a slow receiver from a stuck
        /// one.
        received: u64,
    },
    /// The answer to a ping.
    Pong {
        /// The clock of the ping.
        clock: u64,
    },
    /// Server: the job is over. Client: it leaves for good.
    Bye {
        /// Why, for the user.
        #[serde(deserialize_with = "text::reason")]
        reason: String,
    },
    /// Receiver, a node of a graph: the ranges of a model that it has when it stops waiting. Both nodes use
    /// only ranges that arrived in both directions. Server, before its last message about an update: the
    /// ranges that count, if they are neither all of an accepted update nor none of another.
    Have {
        /// The parcel's number.
        parcel: u32,
        /// The ranges that arrived, at most [`MAX_HOLES`].
        got: Ranges,
    },
    /// A message between the two ends of forwarded TCP streams.
    Forward(Forward),
    /// Server, a node of an aggregation tree: this client's home is now another node. The client connects to
    /// that URL, and goes on there.
    Elsewhere {
        /// The URL of the other node.
        #[serde(deserialize_with = "text::url")]
        url: String,
    },
    /// Server, a node of an aggregation tree: other nodes of the job, at most [`MAX_OTHERS`]. They know where
    /// the client's home is if this node is gone.
    Others {
        /// The URLs at which they listen.
        #[serde(deserialize_with = "text::urls")]
        urls: Vec<String>,
    },
    /// Client: how many segments its transport retransmitted. The client sends this once the server has
    /// answered its parcel ([`Control::settles`]). Right after the last send, some bytes are still in the
    /// kernel's buffer; when the server answers, they have been sent.
    Counted {
        /// The parcel's number.
        parcel: u32,
        /// Segments retransmitted over all links of the client since its last Counted; `None` if the
        /// transport cannot tell.
        retransmissions: Option<u64>,
    },
    /// Server: the job's layout. The client's Hello named another one. The client answers with
    /// [`Control::Differs`], and is then refused.
    Layout(Layout),
    /// Client: the first tensor in which its layout differs from the server's.
    Differs {
        /// The tensor's name.
        #[serde(deserialize_with = "difference::name")]
        tensor: String,
        /// The tensor in the client's layout; `None` if it has no tensor of this name.
        spec: Option<TensorSpec>,
    },
}

impl Control {
    /// The parcel's number, if this message is a receiver's last one about it.
    pub fn settles(&self) -> Option<u32> {
        match self {
            Self::Accepted { parcel } | Self::Rejected { parcel, .. } | Self::Closed { parcel } => {
                Some(*parcel)
            }
            _ => None,
        }
    }
}

/// The first message of a connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Challenge {
    /// Oldest and newest version of the session protocol that the server supports.
    pub versions: (u16, u16),
    /// The server's nonce. Its first 8 bytes are the job's number.
    pub nonce: Nonce,
    /// Whether the client must prove that it has a token.
    pub token: bool,
    /// The server's clock, in microseconds.
    pub clock: u64,
}

impl Challenge {
    /// Makes a challenge for a job. The job's number replaces the first 8 bytes of `random`, because this
    /// message has the same fields in every version.
    pub fn new(mut random: Nonce, token: bool, job: u64, clock: u64) -> Self {
        for (place, byte) in random.iter_mut().zip(job.to_le_bytes()) {
            *place = byte;
        }
        Self { versions: VERSIONS, nonce: random, token, clock }
    }

    /// The job's number, which the client's proof must cover.
    pub fn job(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.nonce;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }
}

/// A client's description of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// The version that the client has chosen.
    pub version: u16,
    /// The client's name, unique in the job, at most [`MAX_NAME`] bytes.
    pub name: String,
    /// A random number, drawn once per process. A client that comes back with the same name and instance is
    /// the same process.
    pub instance: u64,
    /// The client's nonce.
    pub nonce: Nonce,
    /// The proof of a token, if the server wants one.
    pub proof: Option<Proof>,
    /// The hash of the layout of the client's model; `None` if the client takes the server's.
    pub layout: Option<LayoutHash>,
    /// The model or update that the client still holds from before its link broke.
    pub holding: Holding,
    /// The client's clock, in microseconds.
    pub clock: u64,
    /// The purpose for which the client connects.
    pub purpose: Purpose,
}

/// The purpose for which the members of a job connect.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// Members take part in rounds of federated averaging.
    #[default]
    Rounds,
    /// Members are given tasks, and answer each with a result.
    Tasks,
    /// Members are neighbours in a graph, and average their models with each other.
    Graph,
    /// The two ends carry other programs' TCP streams.
    Forward,
    /// Members are nodes of an aggregation tree. Its root, and other nodes, give them tasks.
    Tree,
}

/// The model or update that a client still holds when it comes back.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub enum Holding {
    /// Nothing.
    #[default]
    Nothing,
    /// Part of a round's global model, all but `holes`.
    Model {
        /// The round's number.
        round: u32,
        /// The missing ranges, or the [`HELLO_HOLES`] longest of them. The client asks for the others when
        /// these have arrived.
        holes: Ranges,
    },
    /// The client has the whole global model of a round. It is training on it, or has an update that it must
    /// still submit.
    Round {
        /// The round's number.
        round: u32,
    },
    /// A model of its own: the client is a node of a graph.
    Node(Alike),
}

/// The digests that must be equal at all nodes of a graph. Each field has the first 8 bytes of a digest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alike {
    /// The digest of the plan's sections that all nodes share.
    pub plan: u64,
    /// The digest of the graph.
    pub graph: u64,
    /// The digest of the model from which training starts; `None` if it is not compared.
    pub start: Option<u64>,
}

/// The server's answer to a client that it lets in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    /// The client's number, which its chunks carry; from 1.
    pub sender: u32,
    /// The job's number.
    pub job: u64,
    /// The layout of the global model.
    pub layout: Layout,
    /// Payload bytes of a chunk.
    pub chunk: u32,
    /// Time between pings, in microseconds.
    pub heartbeat: u64,
    /// Least time without progress that ends a connection, in microseconds.
    pub liveness: u64,
    /// The values that take the place of lost bytes of a model or update; `None`: lost bytes are asked for
    /// again.
    pub stand_in: Option<StandIn>,
    /// The seed of the [`crate::Spread`] by which updates are sent; `None`: in the layout's order.
    pub spread: Option<u64>,
    /// How much of each tensor may be lost. A tensor without an allowance may be lost entirely.
    pub allowances: Vec<Allowance>,
}

/// The values that take the place of lost bytes. `crates/fold` defines each exactly.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StandIn {
    /// Nothing: each element's mean takes only the updates that have it.
    #[default]
    Renormalise,
    /// The receiver's own value.
    KeepLocal,
    /// The value 0.
    Zero,
    /// The value that the sender sent last.
    Last,
    /// The receiver's own value. The changes that arrived are scaled up to count for those that did not.
    Rescale,
    /// The bytes that follow a hole move into it.
    FedcommLegacy,
}

/// The kind of reason for which a client is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// The peers support no common version of the protocol.
    Version,
    /// The token or proof is missing or wrong, or the certificate is for another name.
    Authentication,
    /// A connected client has this name.
    Name,
    /// The client's layout differs from the server's.
    Layout,
    /// The message makes no sense at this point.
    Protocol,
    /// The peer makes no progress.
    Liveness,
    /// The job is over or full.
    Job,
}

impl Refusal {
    /// Whether a new attempt may succeed without any change by the user.
    pub const fn may_retry(self) -> bool {
        matches!(self, Refusal::Name | Refusal::Liveness)
    }
}

/// An interval of time, in microseconds of one peer's clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    /// When it began.
    pub start: u64,
    /// When it ended.
    pub end: u64,
}

impl Control {
    /// Encodes the message.
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

    /// Decodes a message. The memory that it allocates is bounded by the length of `bytes`.
    ///
    /// # Errors
    /// [`WireError::Message`] if the bytes are no message, or if bytes follow the message.
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
            Control::Offer(Parcel {
                number: 2,
                pushed: true,
                head: b"{}".to_vec(),
                content: Content::Tracked(Tracked {
                    layout: LayoutHash(3),
                    is_difference: true,
                    checksum: u32::MAX,
                }),
                same_as: None,
                weight: 0.0,
                deadline: None,
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

    /// A peer with another version must be able to read the first message. Otherwise it could not say why the
    /// connection ends.
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
        for reason in [evil("\x1b[2J"), evil("\r\nforged line"), evil("\u{202e}x")] {
            let (code, parcel) = (Refusal::Protocol, 1);
            for message in [
                Control::Refused { code, reason: reason.clone() },
                Control::Rejected { parcel, reason: reason.clone() },
                Control::Bye { reason: reason.clone() },
                Control::Forward(Forward::Reset { stream: 1, reason: reason.clone() }),
            ] {
                let decoded = match Control::decode(&message.encode().unwrap()) {
                    Ok(
                        Control::Refused { reason, .. }
                        | Control::Rejected { reason, .. }
                        | Control::Forward(Forward::Reset { reason, .. })
                        | Control::Bye { reason },
                    ) => reason,
                    other => panic!("{other:?}"),
                };
                assert!(decoded.len() <= MAX_REASON && text::is_plain(&decoded), "{decoded}");
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

    /// A peer that is not let in yet may send this message, so it must fit into [`crate::MAX_HELLO`].
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
