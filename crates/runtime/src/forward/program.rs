//! Carries one stream over the TCP connection of its program or target.

use std::future::Future;
use std::io;

use bytes::BufMut;
use thalweg_proto::Fetched;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{tcp, TcpStream};

use super::carrier::{Carrier, Signals};
use super::http2::Calls;

/// Maximum number of bytes of one read.
const BLOCK: u64 = 64 << 10;

/// How a connection ended.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    /// Bytes that the program or target sent.
    pub sent: u64,
    /// Bytes that the program or target received.
    pub received: u64,
    /// Why the connection was reset; `None` if both directions ended in order.
    pub error: Option<String>,
    /// Counts of the connection's calls, if this end terminates HTTP/2.
    pub calls: Option<Calls>,
}

/// Called when a program's first byte has arrived.
pub(super) type Spoke<'a> = &'a (dyn Fn() + Sync);

/// The source of a program's bytes.
pub(super) trait Source: AsyncRead + Unpin {
    /// Waits for the first byte or the end, and reads nothing.
    fn begun(&mut self) -> impl Future<Output = io::Result<()>> + Send;

    /// Waits until there are bytes, so that an idle connection needs no buffer.
    fn ready(&self) -> impl Future<Output = io::Result<()>> + Send;
}

impl Source for tcp::ReadHalf<'_> {
    async fn begun(&mut self) -> io::Result<()> {
        self.peek(&mut [0]).await.map(drop)
    }

    fn ready(&self) -> impl Future<Output = io::Result<()>> + Send {
        self.readable()
    }
}

impl Source for tokio::io::ReadHalf<tokio::io::DuplexStream> {
    async fn begun(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn ready(&self) -> impl Future<Output = io::Result<()>> + Send {
        std::future::ready(Ok(()))
    }
}

/// Carries a connection until both directions have ended. If one direction breaks, the connection is reset at
/// both ends. `spoke` is called when its first byte or its end has arrived.
pub(crate) async fn carry(
    carrier: &Carrier,
    stream: u32,
    signals: &Signals,
    mut program: TcpStream,
    spoke: Spoke<'_>,
) -> Ended {
    let mut ended = Ended::default();
    let _ = program.set_nodelay(true); // send small writes at once
    if let Err(why) = carry_halves(carrier, (stream, signals), program.split(), &mut ended, spoke).await {
        carrier.with(|mux| mux.reset(stream, &why));
        reset(&program);
        ended.error = Some(why);
    }
    ended
}

/// Carries a connection between any source and sink, until both directions have ended.
///
/// # Errors
/// The reason why one direction broke.
pub(super) async fn carry_halves(
    carrier: &Carrier,
    (stream, signals): (u32, &Signals),
    (read, write): (impl Source, impl AsyncWrite + Unpin),
    ended: &mut Ended,
    spoke: Spoke<'_>,
) -> Result<(), String> {
    let both = async {
        tokio::try_join!(
            to_link(carrier, (stream, signals), read, &mut ended.sent, spoke),
            from_link(carrier, stream, signals, write, &mut ended.received),
        )
    };
    tokio::select! {
        biased;
        outcome = both => outcome.map(drop).map_err(|e| format!("the connection broke: {e}")),
        why = signals.over() => Err(why),
    }
}

/// Makes the program see a reset instead of an orderly end.
pub(crate) fn reset(program: &TcpStream) {
    // Ignore an error: if the system refuses this, the program sees an orderly end.
    let _ = program.set_zero_linger();
}

async fn to_link(
    carrier: &Carrier,
    (stream, signals): (u32, &Signals),
    mut program: impl Source,
    sent: &mut u64,
    spoke: Spoke<'_>,
) -> io::Result<()> {
    // Check this before waiting for room on the link: a program is not silent because the link is slow.
    program.begun().await?;
    spoke();
    loop {
        let most = match carrier.with(|mux| mux.room(stream)) {
            None => return Ok(()),
            Some(0) => {
                signals.writable.notified().await;
                continue;
            }
            Some(room) => room.min(BLOCK) as usize,
        };
        program.ready().await?;
        let mut bytes = Vec::with_capacity(most);
        let got = program.read_buf(&mut (&mut bytes).limit(most)).await?;
        if got == 0 {
            carrier.with(|mux| mux.end(stream));
            return Ok(());
        }
        bytes.shrink_to_fit();
        *sent += got as u64;
        carrier.with(|mux| mux.give(stream, bytes));
    }
}

async fn from_link(
    carrier: &Carrier,
    stream: u32,
    signals: &Signals,
    mut program: impl AsyncWrite + Unpin,
    received: &mut u64,
) -> io::Result<()> {
    loop {
        match carrier.with(|mux| mux.take(stream)) {
            Fetched::Bytes(bytes) => {
                program.write_all(&bytes).await?;
                *received += bytes.len() as u64;
                carrier.with(|mux| mux.took(stream, bytes.len() as u64));
            }
            Fetched::End => return program.shutdown().await,
            Fetched::Nothing => signals.readable.notified().await,
            Fetched::Gone => return Ok(()),
        }
    }
}
