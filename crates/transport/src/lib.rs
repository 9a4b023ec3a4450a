//! The contract every transport fulfils, and [`memory`], the reference that fulfils it within a process.
//!
//! A transport makes links. A link carries two things, in both directions at once:
//!
//! * **control messages**: small, reliable, in order; a link that cannot deliver one breaks.
//! * **chunks** of updates: bulk bytes, each saying where it belongs. The receiver's [`Sink`] names the
//!   place, the transport receives into it. A transport whose capabilities do not say `reliable` may
//!   lose chunks, one that is not `ordered` may deliver them late; the session asks again for what is missing.
//!
//! Whoever connects is an unauthenticated peer until the session says that it has proved who it is ([`Link::admit`]):
//! the listener's [`AdmissionQueue`] bounds how many unauthenticated peers there are, and an unauthenticated peer may
//! send little.
//!
//! Every sentence of these docs is a test in `crates/conformance`, which a transport runs with one line.
#![forbid(unsafe_code)]

mod address;
mod admission_queue;
mod capabilities;
mod connections;
mod error;
mod link;
pub mod memory;
mod options;
mod outgoing;
mod parts;
mod settings;
mod sink;
pub mod trace;
mod unauthenticated_peers;

pub use address::Address;
pub use admission_queue::{AdmissionQueue, Standing, UnauthenticatedPeer, Watch};
pub use capabilities::Capabilities;
pub use connections::{Accepted, Acceptor, ConnectionLimit, ConnectionPermit};
pub use error::{Error, ErrorKind, Result};
pub use link::{send_group_each, Counters, Link, Listener, Peer, Pending, SendReport, Transport};
pub use options::{Identity, Login, Options, Sealed, Tls};
pub use outgoing::{Cancel, ChunkRef, Outgoing, UpdateId};
pub use parts::{hand_over, ALIGNED};
pub use settings::{Chosen, Kind, Need, Setting, Settings, Share, Value};
pub use sink::{NoChunks, Sink, Target};
pub use unauthenticated_peers::{Bounds, Origin, UnauthenticatedPeerId, UnauthenticatedPeers};
