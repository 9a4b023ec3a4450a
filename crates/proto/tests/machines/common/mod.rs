//! A job in virtual time: the machines (`party`), the work of their drivers (`world`, `events`, `actions`),
//! the network between them (`network`, `link`), and the checks of a round's result (`check`).

pub mod actions;
pub mod check;
pub mod events;
pub mod link;
pub mod network;
pub mod party;
pub mod recorded;
pub mod senseless;
pub mod tasks;
pub mod world;

use thalweg_proto::{Admission, Choice, Fanout, Gather, LinkId, Partial, RoundPlan, Selection, Time};
use thalweg_wire::control::{Content, Control, Hello, Nonce, Parcel, Proof, StandIn};
use thalweg_wire::{Allowance, LayoutHash};

pub use network::{End, Path, Rng};
pub use party::{Profile, RoundResult};
pub use world::World;

/// The actions of a server of rounds, and of a client of rounds.
pub type Action = thalweg_proto::Action<thalweg_proto::RoundAction>;
pub type ClientAction = thalweg_proto::ClientAction<thalweg_proto::RoundStep>;

/// A client's offer of an update.
pub fn update_offer(number: u32, weight: f64, layout: LayoutHash, metrics: &str) -> Control {
    let (head, content) = (metrics.as_bytes().to_vec(), Content::Whole(layout));
    Control::Offer(Parcel { number, pushed: false, head, content, same_as: None, weight, deadline: None })
}

/// The server's offer of a round's model.
pub fn model_offer(number: u32, layout: LayoutHash) -> Control {
    let (head, content) = (b"{}".to_vec(), Content::Whole(layout));
    Control::Offer(Parcel { number, pushed: true, head, content, same_as: None, weight: 0.0, deadline: None })
}

pub const JOB: u64 = 77;
pub const MS: Time = Time::from_millis(1);
pub const SECOND: Time = Time::from_secs(1);

/// The settings of a simulated job.
#[derive(Debug, Clone)]
pub struct Setup {
    pub seed: u64,
    pub partial: Partial,
    /// The values that take the place of lost bytes; `None`: lost bytes are asked for again.
    pub stand_in: Option<StandIn>,
    /// How much of each tensor may be lost.
    pub allowances: Vec<Allowance>,
    /// How many updates may be staged.
    pub places: u64,
    /// Whether staged updates are folded together.
    pub lazy: bool,
    /// Whether no chunk overtakes a message on ordered links, so that places are granted with the model.
    pub keeps_order: bool,
    pub elements: u64,
    pub chunk: u32,
    pub liveness: Time,
    pub stale: u32,
    pub withhold: bool,
    pub max_clients: u32,
    pub token: Option<u8>,
    pub folding: Time,
    /// Whether senders cut the same bytes differently each time, so that chunks overlap in part.
    pub recut: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            seed: 1,
            partial: Partial::Discard,
            stand_in: None,
            allowances: Vec::new(),
            places: 100,
            lazy: false,
            keeps_order: true,
            elements: 1000,
            chunk: 512,
            liveness: 10 * SECOND,
            max_clients: 120,
            stale: 0,
            withhold: false,
            token: None,
            folding: MS,
            recut: false,
        }
    }
}

/// A client on perfect links that trains for 100 ms.
pub fn profile(name: &str) -> Profile {
    Profile {
        name: name.into(),
        samples: 10,
        train: 100 * MS,
        skew: Time::ZERO,
        timeout: 60 * SECOND,
        outage: Time::ZERO,
        layout: None,
        token: None,
        paths: vec![(Path::PERFECT, Path::PERFECT)],
        nan_at: None,
        unfoldable_at: None,
    }
}

/// A round that wants `expected` clients and has no deadline. A lost client has ten seconds to come back.
pub fn plan(number: u32, expected: u32) -> RoundPlan {
    RoundPlan {
        number,
        config: "{}".into(),
        expected,
        choice: Choice::ByName,
        enough: expected,
        goal: expected,
        selection: Selection::First,
        deadline: None,
        grace: 10 * SECOND,
        outage: Time::ZERO,
        fanout: Fanout::Concurrent,
        gather: Gather::Concurrent,
        version: None,
    }
}

/// Lets in a client that proves to have the token.
pub struct Doors {
    pub token: Option<u8>,
}

/// Stands in for the signature. It depends on the token, both nonces and the name.
pub fn prove(token: u8, challenge: &Nonce, nonce: &Nonce, name: &str) -> Proof {
    let said = [&[token], &challenge[..], &nonce[..], name.as_bytes()].concat();
    let mut proof = Box::new([[token; 32]; 5]);
    proof[0][..4].copy_from_slice(&thalweg_wire::checksum(&said).to_le_bytes());
    proof
}

impl Admission for Doors {
    fn wants_token(&self) -> bool {
        self.token.is_some()
    }

    fn admit(&self, _link: LinkId, challenge: &Nonce, hello: &Hello) -> Result<(), String> {
        let Some(token) = self.token else { return Ok(()) };
        let right = prove(token, challenge, &hello.nonce, &hello.name);
        (hello.proof == Some(right)).then_some(()).ok_or_else(|| "wrong token; give the job's token".into())
    }
}
