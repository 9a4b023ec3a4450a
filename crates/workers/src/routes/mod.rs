//! Notes that go from process to process inside the kernel: the program `crates/ebpf/programs/route.c` and its maps. A
//! worker pool that is given none sends notes over the Unix sockets of its workers alone.
//!
//! ```text
//! node's outlet --TCP--> node's inlet        what the program does not route comes out here
//!       |  to the destination of each note
//!       v
//! worker's end <--TCP--> the node's end of that worker
//!       |                 ^
//!       +-- notes to 0 ---+  past TCP; what is not allowed comes by TCP
//! ```
//!
//! Each party has a number: 0 is the node. The program knows who sends by the port that a socket has, so a note that says it
//! is somebody else's is not routed.

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

/// As in `route.c`: keys of the node's ends of connections.
const ENDS_OF_NODE: u32 = 1 << 16;
/// As there: key of the outlet.
const OUTLET: u32 = 2 << 16;

/// What went from one party to another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Notes that went past TCP.
    pub direct: u64,
    /// Notes that were allowed, and went through the node: beyond the budget, or their receiver was gone.
    pub passed: u64,
    /// Bytes of both, with what follows notes.
    pub bytes: u64,
    /// When the first was sent, in nanoseconds of the monotonic clock.
    pub first: u64,
    /// When the last was sent.
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

/// The program, loaded, with the sockets that it serves.
pub struct Routes {
    loaded: Mutex<Loaded>,
    /// Both ends of a connection of a party come from here, so their ports differ.
    listener: TcpListener,
}

struct Loaded {
    ports: HashMap<MapData, u32, u32>,
    sockets: SockHash<MapData, u32>,
    allowed: HashMap<MapData, u32, u64>,
    counts: HashMap<MapData, u32, [u64; 5]>,
    refused: Array<MapData, u64>,
    by_party: BTreeMap<u16, u32>,
    /// What went between the node and parties that are gone.
    gone: Count,
    /// Keeps the program attached.
    _ebpf: Ebpf,
}

impl Routes {
    /// Loads the program, or says why it cannot be had here, and what to do.
    ///
    /// # Errors
    /// Why not.
    pub fn load() -> Result<Self, String> {
        let loaded = Loaded::new(thalweg_ebpf::route()).map_err(|e| explain(&*e))?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|e| format!("loopback: {e}"))?;
        let routes = Self { loaded: Mutex::new(loaded), listener };
        routes.pair().map_err(|e| format!("loopback: {e}"))?;
        Ok(routes)
    }

    /// The node's outlet, by which it sends to all, and its inlet.
    ///
    /// # Errors
    /// What the system says.
    pub fn outlet(&self) -> io::Result<(TcpStream, TcpStream)> {
        let mut loaded = self.lock();
        let (outlet, inlet) = self.pair()?;
        loaded.name(&outlet, 0)?;
        loaded.sockets.insert(OUTLET, outlet.as_raw_fd(), 0).map_err(failed)?;
        Ok((outlet, inlet))
    }

    /// A connection for a party, which may send to nobody yet: the node's end, and its own.
    ///
    /// # Errors
    /// What the system says.
    pub fn join(&self, party: u16) -> io::Result<(TcpStream, TcpStream)> {
        let mut loaded = self.lock();
        let (own, node) = self.pair()?;
        loaded.name(&own, party)?;
        loaded.sockets.insert(u32::from(party), own.as_raw_fd(), 0).map_err(failed)?;
        loaded.sockets.insert(ENDS_OF_NODE | u32::from(party), node.as_raw_fd(), 0).map_err(failed)?;
        Ok((node, own))
    }

    /// A party may send so many notes to another past TCP, in all. Those beyond go through the node.
    ///
    /// # Errors
    /// What the system says.
    pub fn allow(&self, source: u16, destination: u16, notes: u64) -> io::Result<()> {
        let pair = pair_of(source, destination);
        let mut loaded = self.lock();
        if loaded.counts.get(&pair, 0).is_err() {
            loaded.counts.insert(pair, [0; 5], 0).map_err(failed)?;
        }
        loaded.allowed.insert(pair, notes, 0).map_err(failed)
    }

    /// A party is gone: its number is free again. What went between it and the node stays in [`Routes::total`].
    pub fn leave(&self, party: u16) {
        let mut loaded = self.lock();
        for pair in [pair_of(0, party), pair_of(party, 0)] {
            let count = loaded.count(pair);
            loaded.gone.add(&count);
            // There is none if it was never allowed.
            _ = loaded.allowed.remove(&pair);
            _ = loaded.counts.remove(&pair);
        }
        if let Some(port) = loaded.by_party.remove(&party) {
            _ = loaded.ports.remove(&port);
        }
        // The kernel has removed sockets that are closed.
        _ = loaded.sockets.remove(&u32::from(party));
        _ = loaded.sockets.remove(&(ENDS_OF_NODE | u32::from(party)));
    }

    /// What went from one party to another; nothing if that is not allowed.
    pub fn count(&self, source: u16, destination: u16) -> Count {
        self.lock().count(pair_of(source, destination))
    }

    /// What went between the node and all its parties, those that are gone too.
    pub fn total(&self) -> Count {
        let loaded = self.lock();
        let pairs = loaded.by_party.keys().flat_map(|&party| [pair_of(0, party), pair_of(party, 0)]);
        let mut total = loaded.gone;
        pairs.for_each(|pair| total.add(&loaded.count(pair)));
        total
    }

    /// Notes that were not allowed, were cut, or were none. They went to the node.
    pub fn refused(&self) -> u64 {
        self.lock().refused.get(&0, 0).unwrap_or(0)
    }

    fn lock(&self) -> MutexGuard<'_, Loaded> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection on the loopback: the end that has a port of its own, and the other. One caller at a time, who else might
    /// accept another's.
    fn pair(&self) -> io::Result<(TcpStream, TcpStream)> {
        let own = TcpStream::connect(self.listener.local_addr()?)?;
        let name: SocketAddr = own.local_addr()?;
        loop {
            let (other, from) = self.listener.accept()?;
            // Anybody on this machine may connect.
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
        // The program asks for nothing of the running kernel's own types; reading those takes long.
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
            gone: Count::default(),
            _ebpf: ebpf,
        })
    }

    fn count(&self, pair: u32) -> Count {
        let [direct, passed, bytes, first, last] = self.counts.get(&pair, 0).unwrap_or_default();
        Count { direct, passed, bytes, first, last }
    }

    /// Whoever sends from this socket is this party.
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
