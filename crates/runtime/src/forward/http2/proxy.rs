//! Carries the calls of one HTTP/2 connection.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::call::Call;
use super::End;

/// The connection preface of HTTP/2 (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Maximum number of calls of a connection at a time. Further calls wait at the program.
const CALLS: u32 = 256;
/// Maximum number of bytes of a call that wait to be written to a connection.
const UNSENT: usize = 256 << 10;
/// Maximum number of bytes of a call's headers, and of its trailers.
const HEADERS: u32 = 64 << 10;
const FRAME: u32 = 64 << 10;
/// Number of windows that the calls of a connection share.
const SHARED: u64 = 8;
const MOST_WINDOW: u64 = (1 << 31) - 1;

/// Flow-control windows (RFC 9113, section 5.2): bytes that the peer may send before they are consumed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Windows {
    call: u32,
    connection: u32,
}

impl Windows {
    /// Windows of a connection to a program or server beside this end.
    pub const LOCAL: Self = Self { call: 1 << 20, connection: 8 << 20 };

    /// Windows of a connection to the other end of the path. `window`: bytes for each call.
    pub fn across(window: u64) -> Self {
        let most = |bytes: u64| bytes.min(MOST_WINDOW) as u32;
        Self { call: most(window), connection: most(SHARED.saturating_mul(window)) }
    }
}

/// Whether the program starts HTTP/2; false if it ends the connection without a byte.
///
/// # Errors
/// An error if the program speaks another protocol.
pub(super) async fn greets(program: &TcpStream) -> Result<bool, String> {
    let mut start = [0; PREFACE.len()];
    let length = program.peek(&mut start).await.map_err(|e| format!("the connection broke: {e}"))?;
    match &start[..length] {
        [] => Ok(false),
        [0x16, ..] => Err("it speaks TLS; --grpc reads HTTP/2 in the clear alone".into()),
        // If only a part of the preface has arrived, the rest is checked later.
        begun if PREFACE.starts_with(begun) => Ok(true),
        _ => Err("it does not speak HTTP/2; start a near end without --grpc for it".into()),
    }
}

/// Carries calls until the program's connection ends. Calls that the near end answered continue until the
/// server has answered them.
///
/// # Errors
/// The reason why a connection broke.
pub(super) async fn run<P, S>(
    (program, towards): (P, Windows),
    (server, from): (S, Windows),
    end: &Arc<End>,
) -> Result<(), String>
where
    P: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let broke = |whose: &str, error: h2::Error| format!("the {whose}'s HTTP/2 broke: {error}");
    let (requests, connection) = client(from).handshake(server).await.map_err(|e| broke("server", e))?;
    let mut accepting = match answering(towards).handshake::<_, Bytes>(program).await {
        Ok(accepting) => accepting,
        Err(error) if ends_before_it_begins(&error) => return Ok(()),
        Err(error) => return Err(broke("program", error)),
    };
    let mut connection = pin!(connection);
    let (mut calls, mut accepts, mut serves, mut outcome) = (JoinSet::new(), true, true, Ok(()));
    while accepts || !calls.is_empty() {
        tokio::select! {
            accepted = accepting.accept(), if accepts => match accepted {
                Some(Ok((request, respond))) => {
                    let call = Call::new(request, respond, end);
                    calls.spawn(call.carry(requests.clone(), end.clone()));
                }
                Some(Err(error)) => (accepts, outcome) = (false, Err(broke("program", error))),
                None => accepts = false,
            },
            ended = &mut connection, if serves => {
                ended.map_err(|e| broke("server", e))?;
                serves = false;
                accepting.graceful_shutdown();
            }
            Some(ended) = calls.join_next() => {
                // The server ends this connection, so the program must open another one.
                if !ended.unwrap_or(false) {
                    accepting.graceful_shutdown();
                }
            }
        }
    }
    drop(requests);
    if serves && outcome.is_ok() {
        connection.await.map_err(|e| broke("server", e))?;
    }
    outcome
}

/// Whether the peer ended the connection without sending anything.
fn ends_before_it_begins(error: &h2::Error) -> bool {
    error.get_io().is_some_and(|error| error.kind() == std::io::ErrorKind::UnexpectedEof)
}

fn client(windows: Windows) -> h2::client::Builder {
    let mut builder = h2::client::Builder::new();
    builder
        .enable_push(false)
        .initial_window_size(windows.call)
        .initial_connection_window_size(windows.connection)
        .max_frame_size(FRAME)
        .max_header_list_size(HEADERS)
        .max_send_buffer_size(UNSENT);
    builder
}

fn answering(windows: Windows) -> h2::server::Builder {
    let mut builder = h2::server::Builder::new();
    builder
        .max_concurrent_streams(CALLS)
        .initial_window_size(windows.call)
        .initial_connection_window_size(windows.connection)
        .max_frame_size(FRAME)
        .max_header_list_size(HEADERS)
        .max_send_buffer_size(UNSENT);
    builder
}
