//! How a member joins if it needs more than one connection. It waits for answers of the listener, and never
//! for a fixed time.

use std::io;
use std::time::Duration;

use thalweg_messages::MemberId;

use crate::ffi::MessagePart;
use crate::socket::Socket;

/// Pause before a member asks the reception again (see [`crate::lines`]) if the admission queue had no room.
const AGAIN: Duration = Duration::from_millis(250);
/// First byte of a subscription that an XPUB receives.
pub(crate) const SUBSCRIBED: u8 = 1;
/// The beginning of the message that tells a member its ports.
pub(crate) const PORT: &[u8] = b"thalweg zmq port ";

/// At a member: waits until the listener has sent its second port.
pub(crate) async fn second_port(socket: &Socket) -> io::Result<u16> {
    loop {
        while let Some(parts) = socket.try_receive()? {
            let text = parts.last().map(|part| part.bytes()).unwrap_or_default();
            let port = text.strip_prefix(PORT).and_then(|port| std::str::from_utf8(port).ok());
            if let Some(port) = port.and_then(|port| port.parse().ok()) {
                return Ok(port);
            }
        }
        socket.readable().await;
    }
}

/// At a member: waits until the listener has subscribed to the member's messages.
pub(crate) async fn subscribed(socket: &Socket) -> io::Result<()> {
    loop {
        while let Some(parts) = socket.try_receive()? {
            if parts.first().is_some_and(|part| part.bytes() == [SUBSCRIBED]) {
                return Ok(());
            }
        }
        socket.readable().await;
    }
}

/// At a member: asks the reception for two ports, one to send to and one to receive from. If the answer is
/// empty, the admission queue has no room yet, so the member asks again.
pub(crate) async fn ports(reception: &Socket, member: MemberId) -> io::Result<(u16, u16)> {
    loop {
        reception.send(&mut [MessagePart::copy_of(&[&member.0])?])?;
        let text = answer(reception).await?;
        if !text.is_empty() {
            return read_ports(&text).ok_or_else(|| io::Error::other("the server tells no ports"));
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn answer(reception: &Socket) -> io::Result<Vec<u8>> {
    loop {
        if let Some(parts) = reception.try_receive()? {
            return Ok(parts.first().map(|part| part.bytes().to_vec()).unwrap_or_default());
        }
        reception.readable().await;
    }
}

/// The reception's answer.
pub(crate) fn ports_text((up, down): (u16, u16)) -> Vec<u8> {
    [PORT, format!("{up} {down}").as_bytes()].concat()
}

fn read_ports(text: &[u8]) -> Option<(u16, u16)> {
    let (up, down) = std::str::from_utf8(text.strip_prefix(PORT)?).ok()?.split_once(' ')?;
    Some((up.parse().ok()?, down.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_read_back_or_are_none() {
        assert_eq!(read_ports(&ports_text((1, 65_535))), Some((1, 65_535)));
        for text in [&b""[..], PORT, b"1 2", b"thalweg zmq port 1", b"thalweg zmq port 1 65536", b"\xff 1"] {
            assert_eq!(read_ports(text), None);
        }
    }
}
