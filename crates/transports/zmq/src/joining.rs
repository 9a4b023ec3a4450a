//! How a member joins with PUB and SUB: it waits for the listener's words, not for time.

use std::io;

use crate::socket::Socket;

/// Begins what an XPUB reads when somebody subscribes.
pub(crate) const SUBSCRIBED: u8 = 1;
/// Begins the message that tells a member of the second port.
pub(crate) const PORT: &[u8] = b"thalweg zmq port ";

/// Waits, as a member, until the listener has told of its second port.
pub(crate) async fn second_port(socket: &Socket) -> io::Result<u16> {
    loop {
        while let Some(parts) = socket.try_receive()? {
            let told = parts.last().map(|part| part.bytes()).unwrap_or_default();
            let port = told.strip_prefix(PORT).and_then(|port| std::str::from_utf8(port).ok());
            if let Some(port) = port.and_then(|port| port.parse().ok()) {
                return Ok(port);
            }
        }
        socket.came().await;
    }
}

/// Waits, as a member, until the listener has subscribed to what it publishes.
pub(crate) async fn subscribed(socket: &Socket) -> io::Result<()> {
    loop {
        while let Some(parts) = socket.try_receive()? {
            if parts.first().is_some_and(|part| part.bytes() == [SUBSCRIBED]) {
                return Ok(());
            }
        }
        socket.came().await;
    }
}
