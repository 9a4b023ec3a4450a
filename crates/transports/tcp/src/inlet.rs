//! A connection's incoming bytes.
//!
//! Without TLS, a receiver that is faster than its sender would be woken for every 64 KiB that the kernel
//! queues. Each wake-up costs the sender more than the checksum does. So while chunks arrive quickly, the
//! kernel is told to wake the receiver only for a large part of a chunk (SO_RCVLOWAT). A link that becomes
//! slow is noticed within [`TIMEOUT`]. From then on, every byte wakes the receiver again and counts as
//! progress.

use std::io;
use std::sync::Arc;
use std::task::{ready, Context, Poll};
use std::time::{Duration, Instant};

use socket2::SockRef;
use thalweg_wire::FrameHeader;
use tokio::io::{AsyncReadExt, ReadHalf};

use crate::line::{whole, HoledStream, Taken};
use crate::link::Duplex;
use crate::masked_socket::MaskedSocket;
use thalweg_sockets::kernel::wake_at;
use thalweg_sockets::socket::Socket;

/// A chunk that arrives within this time counts as quick.
const QUICK: Duration = Duration::from_millis(20);
/// How long the receiver waits for a large part of a chunk.
const TIMEOUT: Duration = Duration::from_millis(50);
/// Maximum number of bytes that the kernel collects before it wakes the receiver of a quick chunk.
const MOST: usize = 256 << 10;

pub(crate) enum Inlet {
    Plain(Plain),
    Tls(ReadHalf<Box<dyn Duplex>>),
    HoledStream(Arc<dyn HoledStream>),
    MaskedSocket(Box<MaskedSocket>),
}

pub(crate) struct Plain {
    socket: Socket,
    /// When the chunk that is being received began.
    began: Instant,
    /// Whether the last chunk arrived within [`QUICK`].
    quick: bool,
    /// Number of bytes at which the kernel wakes the receiver.
    wakes_at: u32,
}

impl Inlet {
    pub(crate) fn plain(socket: Socket) -> Self {
        Self::Plain(Plain::new(socket))
    }

    /// Reads some bytes; 0 at the end. The future may be dropped and the call repeated.
    pub(crate) async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(plain) => plain.read(buffer, 1).await,
            Self::Tls(stream) => stream.read(buffer).await,
            Self::HoledStream(line) => whole(take(&**line, buffer).await?),
            Self::MaskedSocket(masked) => whole(masked.read(buffer).await?),
        }
    }

    /// Reads some bytes of a chunk, of which `left` bytes are missing. `buffer` is no longer than `left`.
    pub(crate) async fn read_chunk(&mut self, buffer: &mut [u8], left: usize) -> io::Result<Taken> {
        match self {
            Self::Plain(plain) => plain.read_quickly(buffer, left).await.map(Taken::Bytes),
            Self::Tls(stream) => stream.read(buffer).await.map(Taken::Bytes),
            Self::HoledStream(line) => take(&**line, buffer).await,
            Self::MaskedSocket(masked) => masked.read(buffer).await,
        }
    }

    /// Reports the header of a frame that has been read.
    pub(crate) fn header_read(&self, header: &FrameHeader) {
        if let Self::MaskedSocket(masked) = self {
            masked.header(header);
        }
    }

    /// Bytes that masked kernel connections have copied since the last call, beside the copy out of the
    /// kernel. Other connections return 0, because their copies follow from `LinkState::copies`.
    pub(crate) fn copied(&mut self) -> u64 {
        match self {
            Self::MaskedSocket(masked) => masked.copied(),
            _ => 0,
        }
    }

    /// Notes the time when a chunk begins.
    pub(crate) fn chunk_begins(&mut self) {
        if let Self::Plain(plain) = self {
            plain.began = Instant::now();
        }
    }

    /// Decides at the end of a chunk whether chunks arrive quickly.
    pub(crate) fn chunk_ends(&mut self) {
        if let Self::Plain(plain) = self {
            plain.quick = plain.began.elapsed() < QUICK;
        }
    }
}

async fn take(line: &dyn HoledStream, buffer: &mut [u8]) -> io::Result<Taken> {
    std::future::poll_fn(|cx| line.poll_take(cx, buffer)).await
}

impl Plain {
    pub(crate) fn new(socket: Socket) -> Self {
        Self { socket, began: Instant::now(), quick: false, wakes_at: 1 }
    }

    async fn read_quickly(&mut self, buffer: &mut [u8], left: usize) -> io::Result<usize> {
        if !self.quick {
            return self.read(buffer, 1).await;
        }
        let part = left.min(MOST);
        match tokio::time::timeout(TIMEOUT, self.read(buffer, part)).await {
            Ok(done) => done,
            Err(_) => {
                self.quick = false;
                self.expect(1);
                self.read(buffer, 1).await
            }
        }
    }

    pub(crate) async fn read(&mut self, buffer: &mut [u8], part: usize) -> io::Result<usize> {
        std::future::poll_fn(|cx| self.poll_read(cx, buffer, part)).await
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8], part: usize) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.socket.0.poll_read_ready(cx))?;
            match self.socket.0.try_read(buffer) {
                // The socket is empty. SO_RCVLOWAT is set only now: the kernel wakes us at once if bytes have
                // arrived meanwhile.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.expect(part),
                done => return Poll::Ready(done),
            }
        }
    }

    fn expect(&mut self, part: usize) {
        let mut wanted = u32::try_from(part).unwrap_or(u32::MAX);
        if wanted > 1 {
            // Wait for at most an eighth of the buffer, a quarter of the window. With more, the sender would
            // find the window closed before the receiver wakes.
            let buffer = SockRef::from(&*self.socket.0).recv_buffer_size().unwrap_or_default();
            wanted = wanted.min((buffer / 8) as u32).max(1);
        }
        if wanted != self.wakes_at && wake_at(&self.socket.0, wanted) {
            self.wakes_at = wanted;
        }
    }
}
