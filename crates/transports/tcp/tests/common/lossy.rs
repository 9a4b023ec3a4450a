//! A listener that can do without parts of chunks. It takes kernel connections, and a script removes bytes
//! and changes frames. Tests of layers use it too.
#![allow(dead_code, clippy::unwrap_used)] // each file uses a part; a panic is how tests report

use std::future::Future;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{ready, Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use thalweg_sockets::door::{self, Doorkeeper};
use thalweg_sockets::socket::Socket;
use thalweg_tcp::line::{HoledStream, HoledStreams, Taken};
use thalweg_tcp::Tcp;
use thalweg_transport::{
    Address, Capabilities, Counters, Link, Listener, Options, Pending, Result, Sealed, Transport,
    UnauthenticatedPeer,
};
use thalweg_wire::{FrameHeader, Range, Ranges, HEADER_BYTES};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Replaces a received frame with the frames that it returns.
pub type Edit = dyn Fn(Vec<u8>) -> Vec<Vec<u8>> + Send + Sync;

/// What happens to connections that may have holes.
#[derive(Clone)]
pub struct Script {
    /// Ranges of the stream that are lost as far as they may be, counted from the first frame.
    pub holes: Ranges,
    pub edit: Arc<Edit>,
    /// The bytes that came before the first frame of each connection.
    pub hellos: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Default for Script {
    fn default() -> Self {
        Self { holes: Ranges::new(), edit: Arc::new(|frame| vec![frame]), hellos: Arc::default() }
    }
}

/// The tcp transport, with a listener that follows the script.
#[derive(Clone, Default)]
pub struct Lossy(pub Script);

#[async_trait]
impl Transport for Lossy {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { reliable: false, zero_copy: false, retransmissions: false, ..Tcp.capabilities() }
    }

    async fn listen(&self, address: &Address, options: &Options) -> Result<Box<dyn Listener>> {
        let lines = HoledStreams::new(options)?;
        let keeper = Keeper { lines, script: self.0.clone(), limit: options.connect_timeout() };
        Ok(Box::new(door::open(address, options, keeper).await?))
    }

    async fn connect(&self, address: &Address, options: &Options) -> Result<Arc<dyn Link>> {
        Tcp.connect(address, options).await
    }
}

struct Keeper {
    lines: HoledStreams,
    script: Script,
    limit: Duration,
}

#[async_trait]
impl Doorkeeper for Keeper {
    async fn admit(
        &self,
        stream: TcpStream,
        from: SocketAddr,
        unauthenticated_peer: Option<UnauthenticatedPeer>,
    ) -> Result<Option<Pending>> {
        let line = LossyLine::new(Socket::new(stream).unwrap(), self.script.clone());
        self.lines.admit(Arc::new(line), from.to_string(), unauthenticated_peer, self.limit).await
    }
}

type HungUp = Pin<Box<dyn Future<Output = ()> + Send>>;

struct LossyLine {
    socket: Socket,
    inside: Mutex<Inside>,
    hung_up: Mutex<Option<HungUp>>,
}

struct Inside {
    script: Script,
    hello: Vec<u8>,
    /// Bytes that have arrived but are not known to be a whole frame.
    raw: Vec<u8>,
    /// Bytes to be returned to the reader.
    out: Vec<u8>,
    /// Offset of `out` in the stream, counted from the first frame.
    at: u64,
    /// Ranges of the stream that may be lost, and are.
    lost: Ranges,
    /// Number of bytes at the start of each payload that must arrive. `None` before frames begin.
    head: Option<u32>,
    ended: bool,
}

impl LossyLine {
    fn new(socket: Socket, script: Script) -> Self {
        let theirs = socket.clone();
        let inside = Inside {
            script,
            hello: Vec::new(),
            raw: Vec::new(),
            out: Vec::new(),
            at: 0,
            lost: Ranges::new(),
            head: None,
            ended: false,
        };
        let hung_up: HungUp = Box::pin(async move { theirs.hung_up().await });
        Self { socket, inside: Mutex::new(inside), hung_up: Mutex::new(Some(hung_up)) }
    }
}

impl Inside {
    /// Moves frames that have arrived completely to `out`. Before the first frame and at the end of the
    /// stream, moves all bytes.
    fn sort(&mut self) {
        while let Some(head) = self.head.filter(|_| !self.ended) {
            let header = self.raw.get(..HEADER_BYTES).map(FrameHeader::decode);
            let Some(Ok(header)) = header else { break };
            let length = HEADER_BYTES + header.length();
            if self.raw.len() < length {
                return;
            }
            for frame in (self.script.edit)(self.raw.drain(..length).collect()) {
                let start = self.at + self.out.len() as u64;
                let payload = Range::new(
                    start + (HEADER_BYTES + head as usize).min(frame.len()) as u64,
                    start + frame.len() as u64,
                );
                self.script.holes.iter().for_each(|hole| drop(self.lost.insert(hole.intersect(payload))));
                self.out.extend(frame);
            }
        }
        let partial = self.head.is_some() && self.raw.len() < HEADER_BYTES;
        if !partial || self.ended {
            self.out.append(&mut self.raw);
        }
    }

    fn take(&mut self, buffer: &mut [u8]) -> Option<Taken> {
        let (at, most) = (self.at, self.out.len().min(buffer.len()) as u64);
        if most == 0 {
            return self.ended.then_some(Taken::Bytes(0));
        }
        let hole = self.lost.next(at);
        let taken = match hole.filter(|hole| hole.start <= at) {
            Some(hole) => Taken::Hole((hole.end - at).min(most) as usize),
            None => Taken::Bytes(hole.map_or(most, |hole| most.min(hole.start - at)) as usize),
        };
        let (Taken::Bytes(count) | Taken::Hole(count)) = taken;
        if matches!(taken, Taken::Bytes(_)) {
            buffer[..count].copy_from_slice(&self.out[..count]);
        }
        self.out.drain(..count);
        self.at += count as u64;
        Some(taken)
    }
}

impl HoledStream for LossyLine {
    fn frames(&self, start: u64, sealed: Option<Sealed>) {
        let head = sealed.map_or(0, |sealed| sealed.head);
        let inside = &mut *self.inside.lock().unwrap();
        assert_eq!(inside.at, start, "frames begin behind what has been read");
        (inside.head, inside.at) = (Some(head), 0);
        inside.raw = std::mem::take(&mut inside.out);
        inside.script.hellos.lock().unwrap().push(std::mem::take(&mut inside.hello));
        inside.sort();
    }

    fn poll_take(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<Taken>> {
        let mut inside = self.inside.lock().unwrap();
        loop {
            if let Some(taken) = inside.take(buffer) {
                if let (None, Taken::Bytes(count)) = (inside.head, taken) {
                    inside.hello.extend_from_slice(&buffer[..count]);
                }
                return Poll::Ready(Ok(taken));
            }
            let mut bytes = vec![0; 16 << 10];
            let mut read = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut self.socket.clone()).poll_read(cx, &mut read))?;
            let count = read.filled().len();
            inside.raw.extend_from_slice(&bytes[..count]);
            inside.ended = count == 0;
            inside.sort();
        }
    }

    fn poll_put(&self, cx: &mut Context<'_>, bytes: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket.clone()).poll_write_vectored(cx, bytes)
    }

    fn poll_hung_up(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut hung_up = self.hung_up.lock().unwrap();
        if let Some(waiting) = hung_up.as_mut() {
            ready!(waiting.as_mut().poll(cx));
            *hung_up = None;
        }
        Poll::Ready(())
    }

    fn shut(&self) {
        self.socket.shut();
    }

    fn tell(&self, counters: &mut Counters) {
        self.socket.tell(counters);
    }
}
