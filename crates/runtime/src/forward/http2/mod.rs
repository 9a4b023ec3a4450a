//! Terminates HTTP/2 at an end of a forwarded path (`--grpc`), so that flow-control windows of programs and
//! servers are local.
//!
//! ```text
//! program == HTTP/2 == near end == HTTP/2 on a stream of the link == far end == HTTP/2 == server
//!
//! proxy    the calls of one connection, until it ends
//! call     one call: its request, its response, and who gives up
//! pump     one direction of a call, with back-pressure
//! answers  near end: calls that it answers before the server does
//! order    far end: calls that follow an answered call wait for that call
//! ```
//!
//!
//! Either end may do this without the other. Between the ends a call's window is that of the forwarded
//! connection (`--window`). The calls of a connection share eight such windows, so one call whose reader
//! stalls does not block the others.

mod answers;
mod call;
mod order;
mod proxy;
mod pump;

use std::sync::Arc;

use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::TcpStream;

pub(super) use self::answers::Answers;
use self::answers::Promises;
use self::order::Order;
use self::proxy::{run, Windows};
use super::carrier::{Carrier, Signals};
use super::events::Events;
use super::program::{self, Ended, Spoke};

/// Bytes buffered between HTTP/2 and the link's stream.
const BUFFER: usize = 256 << 10;

/// Counts of a connection's calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Calls {
    /// Calls in all.
    pub calls: u64,
    /// Calls that the near end answered.
    pub answered: u64,
    /// Answered calls to which the server gave no success, or no answer at all.
    pub unkept: u64,
}

/// Which end of the forwarded path this is, and what it does with a connection's calls.
pub(super) enum End {
    Near(Promises),
    Far(Order),
}

/// State that all connections of a near end share.
pub(super) struct Near {
    answers: Arc<Answers>,
    window: u64,
}

impl Near {
    /// `window`: bytes of a call's response that the near end buffers.
    pub fn new(answers: Answers, window: u64) -> Self {
        Self { answers: Arc::new(answers), window }
    }
}

/// Carries a program's connection, call by call.
pub(super) async fn carry_near(
    carrier: &Carrier,
    stream: u32,
    signals: &Signals,
    mut program: TcpStream,
    (near, events): (&Near, &Events),
    spoke: Spoke<'_>,
) -> Ended {
    let end = Arc::new(End::Near(Promises::new(near.answers.clone(), events.clone())));
    let (mut inner, outer) = tokio::io::duplex(BUFFER);
    let _ = program.set_nodelay(true); // send small frames at once
    let proxied = async {
        let greets = proxy::greets(&program).await?;
        spoke();
        if greets {
            run((&mut program, Windows::LOCAL), (&mut inner, Windows::across(near.window)), &end).await?;
        }
        drain(&mut inner).await;
        Ok::<(), String>(())
    };
    let mut ended = both(carrier, stream, signals, outer, proxied).await;
    if ended.error.is_some() {
        program::reset(&program);
    }
    if let End::Near(promises) = &*end {
        ended.calls = Some(promises.counts());
    }
    ended
}

/// Carries a near end's connection to the server, call by call.
pub(super) async fn carry_far(
    carrier: &Carrier,
    stream: u32,
    signals: &Signals,
    mut server: TcpStream,
    window: u64,
) -> Ended {
    let end = Arc::new(End::Far(Order::default()));
    let (mut inner, outer) = tokio::io::duplex(BUFFER);
    let _ = server.set_nodelay(true);
    let proxied = async {
        run((&mut inner, Windows::across(window)), (&mut server, Windows::LOCAL), &end).await?;
        drain(&mut inner).await;
        Ok::<(), String>(())
    };
    let mut ended = both(carrier, stream, signals, outer, proxied).await;
    if ended.error.is_some() {
        program::reset(&server);
    }
    if let End::Far(order) = &*end {
        ended.calls = Some(Calls { calls: order.calls(), ..Calls::default() });
    }
    ended
}

/// Carries the link's stream while `proxied` carries calls over it.
async fn both(
    carrier: &Carrier,
    stream: u32,
    signals: &Signals,
    outer: DuplexStream,
    proxied: impl std::future::Future<Output = Result<(), String>>,
) -> Ended {
    let mut ended = Ended::default();
    let (read, write) = tokio::io::split(outer);
    let carried = program::carry_halves(carrier, (stream, signals), (read, write), &mut ended, &|| ());
    let outcome = tokio::try_join!(carried, proxied);
    if let Err(why) = outcome {
        carrier.with(|mux| mux.reset(stream, &why));
        ended.error = Some(why);
    }
    ended
}

/// Ends this side of the stream after HTTP/2 is over, and drops the data that the other end still sends.
async fn drain(inner: &mut DuplexStream) {
    // Ignore an error: the stream is gone, so there is nothing to drop.
    let _ = inner.shutdown().await;
    let mut rest = [0; 4096];
    while inner.read(&mut rest).await.is_ok_and(|bytes| bytes > 0) {}
}
