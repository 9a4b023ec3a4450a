//! Drives the HTTP/2 connection of a link from its first byte to its last.

use std::future::Future;
use std::pin::{pin, Pin};
use std::sync::Arc;
use std::time::Duration;

use thalweg_sockets::socket::Socket;
use tokio::time::timeout;

use crate::shared::LinkState;

/// The largest DATA frame that this end accepts, in bytes: a message arrives in parts of at most this size.
pub(crate) const MAX_FRAME: u32 = 64 << 10;
/// Maximum number of bytes that HTTP/2 buffers for a stream before it asks for the next message. One message
/// may exceed it.
pub(crate) const SEND_BUFFER: usize = 64 << 10;
/// Maximum number of bytes of the headers of a request or an answer.
pub(crate) const MAX_HEADERS: u32 = 16 << 10;
/// How long an ended link waits for the peer's end of the stream.
const GOODBYE: Duration = Duration::from_millis(250);

/// Moves the connection's bytes until the link or the connection ends, and then ends the other. When the link
/// has ended, this end closes its stream to tell the peer, and waits up to [`GOODBYE`] for the peer's end.
pub(crate) async fn drive<C, E>(
    shared: Arc<LinkState>,
    socket: Socket,
    connection: C,
    wind_down: impl FnOnce(Pin<&mut C>),
) where
    C: Future<Output = Result<(), E>>,
{
    let mut connection = pin!(connection);
    tokio::select! {
        biased;
        // The receiver of the link learns from the stream how it ended.
        _ = &mut connection => {}
        () = shared.ended() => {
            wind_down(connection.as_mut());
            let _ = timeout(GOODBYE, &mut connection).await;
        }
    }
    socket.shut();
    shared.end("the peer has closed the link");
}
