//! Sends notes from process to process inside the kernel, by the eBPF program `crates/ebpf/programs/route.c`
//! and its maps. A worker pool without routes uses only the Unix sockets of its workers.
//!
//! ```text
//! node's outlet --TCP--> node's inlet        delivers notes that the program does not route
//!       |  to the destination of each note
//!       v
//! worker's end <--TCP--> the node's end of that worker
//!       |                 ^
//!       +-- notes to 0 ---+  past TCP; notes that are not allowed arrive by TCP
//! ```
//!
//! Each process has a number; 0 is the node. The program knows the sender of a note by the port of its
//! socket. It does not route a note that names another sender.

mod outlet;

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use thalweg_ebpf::aya::maps::{Array, HashMap, Map, MapData, SockHash};
use thalweg_ebpf::aya::programs::SkMsg;
use thalweg_ebpf::aya::{Ebpf, EbpfLoader};
use thalweg_ebpf::explain;

pub use outlet::NodeRoutes;
pub(crate) use outlet::{inlet, Outlet};

/// Added to a process's number, this gives the key of the node's end of the connection to that process. It is
/// as in `route.c`.
const ENDS_OF_NODE: u32 = 1 << 16;
/// Key of the outlet, as in `route.c`.
const OUTLET: u32 = 2 << 16;

/// The notes that one process has sent to another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Notes that the program routed, past TCP.
    pub direct: u64,
    /// Notes that were allowed but went through the node, because the budget was used up or the receiver was
    /// gone.
    pub passed: u64,
    /// Bytes of both kinds of notes, including the bytes that follow notes.
    pub bytes: u64,
    /// When the first note was sent, in nanoseconds of the monotonic clock; 0 if none was.
    pub first: u64,
    /// When the last note was sent, in nanoseconds of the monotonic clock.
    pub last: u64,
}

impl Count {
    fn add(&mut self, other: &Self) {
        self.direct += other.direct;
        self.passed += other.passed;
        self.bytes += other.bytes;
        let first = [self.first, other.first].into_iter().filter(|&time| time > 0).min();
        self.first = first.unwrap_or(0);
        self.last = self.last.max(other.last);
    }
}

/// The loaded program and the sockets that it routes between.
pub struct Routes {
    loaded: Mutex<Loaded>,
    /// Accepts one end of each connection. The program identifies a process by the port of the connection's
    /// other end.
    listener: TcpListener,
}

struct Loaded {
    ports: HashMap<MapData, u32, u32>,
    sockets: SockHash<MapData, u32>,
    allowed: HashMap<MapData, u32, u64>,
    counts: HashMap<MapData, u32, [u64; 5]>,
    refused: Array<MapData, u64>,
    by_party: BTreeMap<u16, u32>,
    /// Counts between the node and processes that are gone.
    ended: Count,
    /// Keeps the program attached.
    _ebpf: Ebpf,
}

impl Routes {
    /// Loads the program into the kernel.
    ///
    /// # Errors
    /// The reason why the system does not allow it, and what to do about it.
    pub fn load() -> Result<Self, String> {
        let loaded = Loaded::new(thalweg_ebpf::route()).map_err(|e| explain(&*e))?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|e| format!("loopback: {e}"))?;
        let routes = Self { loaded: Mutex::new(loaded), listener };
        routes.pair().map_err(|e| format!("loopback: {e}"))?;
        Ok(routes)
    }

    /// Returns the node's outlet, over which the node sends to all processes, and its inlet.
    ///
    /// # Errors
    /// The system's error.
    pub fn outlet(&self) -> io::Result<(TcpStream, TcpStream)> {
        let mut loaded = self.lock();
        let (outlet, inlet) = self.pair()?;
        loaded.name(&outlet, 0)?;
        loaded.sockets.insert(OUTLET, outlet.as_raw_fd(), 0).map_err(failed)?;
        Ok((outlet, inlet))
    }

    /// Opens a connection for a process that may not send to anybody yet. Returns the node's end and the
    /// process's end.
    ///
    /// # Errors
    /// The system's error.
    pub fn join(&self, party: u16) -> io::Result<(TcpStream, TcpStream)> {
        let mut loaded = self.lock();
        let (own, node) = self.pair()?;
        loaded.name(&own, party)?;
        loaded.sockets.insert(u32::from(party), own.as_raw_fd(), 0).map_err(failed)?;
        loaded.sockets.insert(ENDS_OF_NODE | u32::from(party), node.as_raw_fd(), 0).map_err(failed)?;
        Ok((node, own))
    }

    /// Allows `source` to send this many notes in all to `destination` past TCP. Later notes go through the
    /// node.
    ///
    /// # Errors
    /// The system's error.
    pub fn allow(&self, source: u16, destination: u16, notes: u64) -> io::Result<()> {
        let pair = pair_of(source, destination);
        let mut loaded = self.lock();
        if loaded.counts.get(&pair, 0).is_err() {
            loaded.counts.insert(pair, [0; 5], 0).map_err(failed)?;
        }
        loaded.allowed.insert(pair, notes, 0).map_err(failed)
    }

    /// Frees the number of a process that is gone. [`Routes::total`] keeps its counts.
    pub fn leave(&self, party: u16) {
        let mut loaded = self.lock();
        for pair in [pair_of(0, party), pair_of(party, 0)] {
            let count = loaded.count(pair);
            loaded.ended.add(&count);
            // Ignore an error: the entry is missing if the pair was never allowed.
            _ = loaded.allowed.remove(&pair);
            _ = loaded.counts.remove(&pair);
        }
        if let Some(port) = loaded.by_party.remove(&party) {
            _ = loaded.ports.remove(&port);
        }
        // Ignore an error: the kernel has already removed sockets that are closed.
        _ = loaded.sockets.remove(&u32::from(party));
        _ = loaded.sockets.remove(&(ENDS_OF_NODE | u32::from(party)));
    }

    /// The notes that one process has sent to another; all zero if it was not allowed to.
    pub fn count(&self, source: u16, destination: u16) -> Count {
        self.lock().count(pair_of(source, destination))
    }

    /// The notes between the node and all processes, including processes that are gone.
    pub fn total(&self) -> Count {
        let loaded = self.lock();
        let pairs = loaded.by_party.keys().flat_map(|&party| [pair_of(0, party), pair_of(party, 0)]);
        let mut total = loaded.ended;
        pairs.for_each(|pair| total.add(&loaded.count(pair)));
        total
    }

    /// Notes that went to the node because they were not allowed, incomplete or not a note.
    pub fn refused(&self) -> u64 {
        self.lock().refused.get(&0, 0).unwrap_or(0)
    }

    fn lock(&self) -> MutexGuard<'_, Loaded> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a loopback connection. Returns the connecting end, which has its own port, and the accepting
    /// end. Callers must hold the lock: otherwise one caller might accept the connection of another.
    fn pair(&self) -> io::Result<(TcpStream, TcpStream)> {
        let own = TcpStream::connect(self.listener.local_addr()?)?;
        let name: SocketAddr = own.local_addr()?;
        loop {
            let (other, from) = self.listener.accept()?;
            // Any process on this machine may connect.
            if from == name {
                own.set_nodelay(true)?;
                other.set_nodelay(true)?;
                return Ok((own, other));
            }
        }
    }
}

impl Loaded {
    fn new(code: &[u8]) -> Result<Self, Box<dyn Error>> {
        // The program uses no types of the running kernel (BTF), and reading them takes long.
        let mut ebpf = EbpfLoader::new().btf(None).load(code)?;
        let sockets = SockHash::<_, u32>::try_from(map(&mut ebpf, "sockets")?)?;
        let program: &mut SkMsg = ebpf.program_mut("route").ok_or("no program route")?.try_into()?;
        program.load()?;
        program.attach(sockets.fd())?;
        Ok(Self {
            ports: HashMap::try_from(map(&mut ebpf, "ports")?)?,
            sockets,
            allowed: HashMap::try_from(map(&mut ebpf, "allowed")?)?,
            counts: HashMap::try_from(map(&mut ebpf, "counts")?)?,
            refused: Array::try_from(map(&mut ebpf, "refused")?)?,
            by_party: BTreeMap::new(),
            ended: Count::default(),
            _ebpf: ebpf,
        })
    }

    fn count(&self, pair: u32) -> Count {
        let [direct, passed, bytes, first, last] = self.counts.get(&pair, 0).unwrap_or_default();
        Count { direct, passed, bytes, first, last }
    }

    /// Records that this socket belongs to this process.
    fn name(&mut self, socket: &TcpStream, party: u16) -> io::Result<()> {
        let port = u32::from(socket.local_addr()?.port());
        self.ports.insert(port, u32::from(party), 0).map_err(failed)?;
        self.by_party.insert(party, port);
        Ok(())
    }
}

fn pair_of(source: u16, destination: u16) -> u32 {
    u32::from(source) << 16 | u32::from(destination)
}

fn map(ebpf: &mut Ebpf, name: &str) -> Result<Map, String> {
    ebpf.take_map(name).ok_or_else(|| format!("no map {name}"))
}

fn failed(error: impl Error + 'static) -> io::Error {
    io::Error::other(format!("eBPF: {}", explain(&error)))
}
