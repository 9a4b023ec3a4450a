//! The HTTP/2 connection under a link, from its first byte to its last.

use std::future::Future;
use std::pin::{pin, Pin};
use std::sync::Arc;
use std::time::Duration;

use thalweg_sockets::socket::Socket;
use tokio::time::timeout;

use crate::shared::LinkState;

/// The largest DATA frame that we take; what of a message is waited for at a time.
pub(crate) const MAX_FRAME: u32 = 64 << 10;
/// What HTTP/2 may hold of a stream, beyond one message, before it asks for the next.
pub(crate) const SEND_BUFFER: usize = 64 << 10;
/// Most bytes of a request's or an answer's headers.
pub(crate) const MAX_HEADERS: u32 = 16 << 10;
/// How long the end of a link waits for the peer's.
const GOODBYE: Duration = Duration::from_millis(250);

/// Moves the connection's bytes until the link or the connection ends; then ends the other. A link that has ended
/// says so to its peer, by the end of its stream, and waits for the peer's a little.
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
        // Whoever receives learns from the stream how it ended.
        _ = &mut connection => {}
        () = shared.ended() => {
            wind_down(connection.as_mut());
            let _ = timeout(GOODBYE, &mut connection).await;
        }
    }
    socket.shut();
    shared.end("the peer has closed the link");
}
