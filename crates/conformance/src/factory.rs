//! What a transport says of itself to be tested.

use std::any::Any;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use thalweg_transport::{Address, Capabilities, Error, ErrorKind, Options, Transport};

use crate::Pair;

/// Reaches a listener without being a peer: opens a socket and writes nonsense, say.
pub type Intruder = Arc<dyn Fn(Address) -> BoxFuture<'static, ()> + Send + Sync>;

/// A transport to be tested, and what the tests need to know of it.
#[derive(Clone)]
pub struct Factory {
    /// The transport.
    pub transport: Arc<dyn Transport>,
    /// Where to listen; with port 0 if the system can choose. Each factory needs an address of its own.
    pub address: Address,
    /// Where nobody listens; `None` takes the address of a listener that has been dropped.
    pub nobody: Option<Address>,
    /// The listener's options.
    pub listen: Options,
    /// The connecting side's options.
    pub connect: Options,
    /// Options with which a client must be refused: wrong authority, no certificate.
    pub stranger: Option<Options>,
    /// Somebody who speaks another protocol.
    pub intruder: Option<Intruder>,
    /// Bytes of an update that fits in no buffer on the way, so that a peer that does not receive blocks
    /// its sender. A transport over sockets sets small socket buffers in its options, or raises this.
    pub bulk: u64,
    /// Whether a relay before its address sees all that passes, as it comes: not where links go to other ports too.
    pub relayed: bool,
    /// What this machine lacks to test it, such as a broker: each test is then skipped with these words.
    pub missing: Option<String>,
    _keep: Option<Arc<dyn Any + Send + Sync>>,
}

impl Factory {
    /// A transport listening at `address`, with default options.
    ///
    /// # Panics
    /// If `address` does not parse.
    pub fn new(transport: Arc<dyn Transport>, address: &str) -> Self {
        Self {
            transport,
            address: Address::parse(address).unwrap(),
            nobody: None,
            listen: Options::default(),
            connect: Options::default(),
            stranger: None,
            intruder: None,
            bulk: 32 << 20,
            relayed: true,
            missing: None,
            _keep: None,
        }
    }

    /// Options of the listener and of the connecting side.
    #[must_use]
    pub fn options(self, listen: Options, connect: Options) -> Self {
        Self { listen, connect, ..self }
    }

    /// Keeps something alive as long as the factory, and drops it at the end of the test: a broker, say.
    #[must_use]
    pub fn keep(self, thing: impl Any + Send + Sync) -> Self {
        Self { _keep: Some(Arc::new(thing)), ..self }
    }

    /// What the transport can do.
    pub fn capabilities(&self) -> Capabilities {
        self.transport.capabilities()
    }

    /// A chunk size of about `wanted` bytes that the transport can send.
    pub fn chunk(&self, wanted: u32) -> u32 {
        wanted.min(self.capabilities().max_chunk)
    }

    /// A listener with one link, both ends in hand.
    ///
    /// # Panics
    /// If they do not come to be.
    pub async fn pair(&self) -> Pair {
        Pair::connect(self).await
    }
}

/// Panics unless `outcome` is an error of one of `kinds`.
pub(crate) fn expect_error<T>(outcome: Result<T, Error>, kinds: &[ErrorKind]) -> Error {
    match outcome {
        Ok(_) => panic!("succeeded where one of {kinds:?} was due"),
        Err(error) => {
            assert!(kinds.contains(&error.kind()), "{error} is {:?}, not one of {kinds:?}", error.kind());
            error
        }
    }
}
