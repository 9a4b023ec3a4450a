//! The contract that every transport fulfils, and [`memory`], the reference transport within one process.
//!
//! A transport makes links. A link carries two things, in both directions at once:
//!
//! - **control messages**: small, reliable, in order. A link that cannot deliver one breaks.
//! - **chunks** of updates: many bytes, each chunk with a header that says where it belongs. The receiver's
//!   [`Sink`] gives a chunk its place, and the transport receives into that place. A transport that is not
//!   `reliable` by its capabilities may lose chunks, one that is not `ordered` may deliver them late; the
//!   session asks again for what is missing.
//!
//! A peer that connects is unauthenticated until the session says that it has proved who it is
//! ([`Link::admit`]). The listener's [`AdmissionQueue`] bounds the number of unauthenticated peers, and each
//! of them may send only a little.
//!
//! Every sentence of these docs is a test in `crates/conformance`. A transport runs these tests with one
//! line.
#![forbid(unsafe_code)]

mod address;
mod addresses;
mod admission_queue;
mod capabilities;
mod connections;
mod error;
mod link;
mod link_layer;
pub mod memory;
mod options;
mod outgoing;
mod parts;
mod settings;
mod sink;
pub mod trace;
mod unauthenticated_peers;
mod ways;

pub use address::Address;
pub use addresses::reach_any;
pub use admission_queue::{AdmissionQueue, Standing, UnauthenticatedPeer, Watch};
pub use capabilities::Capabilities;
pub use connections::{Accepted, Acceptor, ConnectionLimit, ConnectionPermit};
pub use error::{Error, ErrorKind, Result};
pub use link::{send_group_each, Counters, Link, Listener, Peer, Pending, SendReport, Transport};
pub use link_layer::LinkLayer;
pub use options::{Identity, Login, Options, Sealed, Tls};
pub use outgoing::{Cancel, ChunkRef, Outgoing, UpdateId};
pub use parts::{hand_over, ALIGNED};
pub use settings::{Chosen, Fraction, Kind, Need, Setting, Settings, Value};
pub use sink::{NoChunks, Sink, Target};
pub use unauthenticated_peers::{Bounds, Origin, UnauthenticatedPeerId, UnauthenticatedPeers};
pub use ways::{Carrier, Carriers, Ways};
