//! A transport under test, described for the tests.

use std::any::Any;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use thalweg_transport::{Address, Capabilities, Error, ErrorKind, Options, Transport};

use crate::Pair;

/// Connects to a listener without being a peer. It may open a socket and write random bytes, for example.
pub type Intruder = Arc<dyn Fn(Address) -> BoxFuture<'static, ()> + Send + Sync>;

/// A transport under test, and what the tests must know about it.
#[derive(Clone)]
pub struct Factory {
    /// The transport under test.
    pub transport: Arc<dyn Transport>,
    /// Address to listen at, with port 0 if the system can choose one. Each factory needs its own address.
    pub address: Address,
    /// An address where nobody listens. `None`: use the address of a listener that was dropped.
    pub nobody: Option<Address>,
    /// Options of the listener.
    pub listen: Options,
    /// Options of the connecting side.
    pub connect: Options,
    /// Options of a client that must be refused: the wrong authority, or no certificate. `None`: there are
    /// none.
    pub stranger: Option<Options>,
    /// An intruder that speaks another protocol. `None`: there is none.
    pub intruder: Option<Intruder>,
    /// Size in bytes of an update that fits in no buffer on the way, so that a peer that does not receive
    /// blocks its sender. A transport over sockets sets small socket buffers in its options, or raises this
    /// size.
    pub bulk: u64,
    /// Whether a relay in front of the listener sees all traffic. False if links also use other ports.
    pub relayed: bool,
    /// What this machine lacks for the tests, such as a broker. If set, each test is skipped with this text.
    pub missing: Option<String>,
    _keep: Option<Arc<dyn Any + Send + Sync>>,
}

impl Factory {
    /// A transport that listens at `address`, with default options.
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

    /// Sets the options of the listener and of the connecting side.
    #[must_use]
    pub fn options(self, listen: Options, connect: Options) -> Self {
        Self { listen, connect, ..self }
    }

    /// Keeps a value, such as a broker, alive until the test ends.
    #[must_use]
    pub fn keep(self, thing: impl Any + Send + Sync) -> Self {
        Self { _keep: Some(Arc::new(thing)), ..self }
    }

    /// Capabilities of the transport.
    pub fn capabilities(&self) -> Capabilities {
        self.transport.capabilities()
    }

    /// The chunk size of `wanted` bytes, or the largest that the transport can send.
    pub fn chunk(&self, wanted: u32) -> u32 {
        wanted.min(self.capabilities().max_chunk)
    }

    /// Makes a listener and one link, and returns both ends.
    ///
    /// # Panics
    /// If listening, connecting or accepting fails.
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
