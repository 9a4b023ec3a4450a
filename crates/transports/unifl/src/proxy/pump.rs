//! Copies the bytes of a proxied connection in both directions, until both sides have closed or one breaks.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::time::Duration;

use socket2::SockRef;
use thalweg_tcp::line::Taken;
use thalweg_wire::Range;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::consume_budget;
use tokio::time::timeout;

use super::caller::{reset, Caller};
use super::cut::Cut;
use super::map::Map;
use super::record::{Ends, Record, Totals};

/// Buffer size for bytes to the client.
const BLOCK: usize = 64 << 10;
/// How long a part of a unit waits for the rest.
const TIMEOUT: Duration = Duration::from_millis(200);

/// Both connections. If one of them does not end properly, both are reset, so that a part of a stream does
/// not look like all of it.
pub(super) struct Pair<C: Caller> {
    pub caller: C,
    pub server: Option<TcpStream>,
    pub whole: bool,
}

impl<C: Caller> Drop for Pair<C> {
    fn drop(&mut self) {
        if !self.whole {
            self.caller.abort();
            self.server.iter().for_each(reset);
        }
    }
}

/// Where to report holes, and of which connection they are.
pub(super) struct Reporter<'a> {
    pub map: &'a Map,
    pub ends: &'a Ends,
    /// Called when the client's first byte or its end arrives, and maybe again later.
    pub on_input: &'a (dyn Fn() + Sync),
}

impl Reporter<'_> {
    async fn report(&self, hole: Range) -> Result<(), String> {
        let line = Record::Hole { ends: self.ends, start: hole.start, end: hole.end }.line();
        self.map.tell(line).await.map_err(|error| format!("hole map: {error}"))
    }
}

fn of_client(error: io::Error) -> String {
    format!("client: {error}")
}

fn of_server(error: io::Error) -> String {
    format!("server: {error}")
}

/// Copies bytes until both directions have ended. The error says which side broke, and how.
pub(super) async fn carry<C: Caller>(
    caller: &C,
    server: &TcpStream,
    reporter: Reporter<'_>,
    cut: &mut Cut,
    totals: &mut Totals,
) -> Result<(), String> {
    let Totals { repaired, returned, .. } = totals;
    let ended = Notify::new();
    let up = async {
        upstream(caller, server, &reporter, cut).await?;
        *repaired = caller.repaired();
        ended.notify_one();
        Ok::<(), String>(())
    };
    // Watch the client: after its stream has ended, nothing else would notice that it is gone.
    let broken = async {
        ended.notified().await;
        poll_fn(|cx| caller.poll_broken(cx)).await
    };
    let down = async {
        tokio::select! {
            done = downstream(caller, server, returned) => done,
            error = broken => Err(of_client(error)),
        }
    };
    tokio::try_join!(up, down).map(drop)
}

async fn upstream(
    caller: &impl Caller,
    server: &TcpStream,
    reporter: &Reporter<'_>,
    cut: &mut Cut,
) -> Result<(), String> {
    loop {
        // Let other tasks of this thread run, even if there is always more to read.
        consume_budget().await;
        let held = cut.holds();
        let room = cut.room();
        let next = poll_fn(|cx| caller.poll_take(cx, room));
        let taken = if held { timeout(TIMEOUT, next).await.ok() } else { Some(next.await) };
        let taken = taken.transpose().map_err(of_client)?;
        (reporter.on_input)();
        let now = match taken {
            Some(Taken::Bytes(0)) => break,
            Some(Taken::Bytes(count)) => {
                cut.received(count);
                cut.whole().len()
            }
            Some(Taken::Hole(count)) => {
                if let Some(hole) = cut.lost(count) {
                    reporter.report(hole).await?;
                }
                cut.whole().len()
            }
            None => cut.all().len(),
        };
        put(server, &cut.all()[..now]).await.map_err(of_server)?;
        cut.sent(now);
    }
    let rest = cut.all().len();
    put(server, cut.all()).await.map_err(of_server)?;
    cut.sent(rest);
    SockRef::from(server).shutdown(Shutdown::Write).map_err(of_server)
}

async fn put(server: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        server.writable().await?;
        match server.try_write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn downstream(caller: &impl Caller, server: &TcpStream, returned: &mut u64) -> Result<(), String> {
    let mut block = vec![0; BLOCK];
    loop {
        consume_budget().await;
        server.readable().await.map_err(of_server)?;
        let count = match server.try_read(&mut block) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(of_server(error)),
        };
        let mut left = &block[..count];
        while !left.is_empty() {
            let taken = poll_fn(|cx| caller.poll_put(cx, &[IoSlice::new(left)])).await;
            let taken = taken.map_err(of_client)?;
            left = &left[taken..];
            *returned += taken as u64;
        }
    }
    caller.finish();
    Ok(())
}
