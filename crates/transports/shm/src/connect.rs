//! Connects to a listener, and does the handshake for both ends.

use std::time::Duration;

use rustix::io::Errno;
use thalweg_transport::{Address, Error, ErrorKind, Options, Result};
use tokio::time::{sleep, timeout};

use crate::frame::MAGIC;
use crate::link::ShmLink;
use crate::name;
use crate::socket::Socket;

const CONNECT: &str = "connect";
/// Pause before another try, while the listener's queue of connections in the kernel is full.
const AGAIN: Duration = Duration::from_millis(5);

/// The end of a connection that does the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Connects,
    Listens,
}

pub(crate) async fn connect(address: &Address, options: &Options) -> Result<ShmLink> {
    let port = name::port_of(CONNECT, address)?;
    let made = async {
        let socket = dial(address, port).await?;
        let who = shake(CONNECT, &socket, Side::Connects).await?;
        Ok(ShmLink::new(socket, format!("{address} ({who})"), None))
    };
    let late = |_| Err(Error::new(ErrorKind::Timeout, CONNECT, format!("{address} does not answer")));
    timeout(options.connect_timeout(), made).await.unwrap_or_else(late)
}

async fn dial(address: &Address, port: u16) -> Result<Socket> {
    let failed = |e: std::io::Error| Error::io(CONNECT, address, &e);
    let to = name::name(port).map_err(|e| failed(e.into()))?;
    let descriptor = name::new_socket(CONNECT)?;
    loop {
        match rustix::net::connect(&descriptor, &to) {
            Ok(()) => break,
            Err(Errno::AGAIN | Errno::INTR) => sleep(AGAIN).await,
            Err(error) => return Err(failed(error.into())),
        }
    }
    let socket = Socket::new(descriptor).map_err(failed)?;
    socket.writable().await.map_err(failed)?;
    Ok(socket)
}

/// Checks that the peer is a process of this user and uses this protocol. Returns a text that names the peer,
/// for people.
///
/// # Errors
/// [`ErrorKind::Security`] for another user, [`ErrorKind::Corrupt`] for another protocol,
/// [`ErrorKind::Closed`].
pub(crate) async fn shake(operation: &'static str, socket: &Socket, side: Side) -> Result<String> {
    let (user, process) = socket.peer().map_err(|e| Error::io(operation, "who the peer is", &e))?;
    let who =
        process.map_or_else(|| "a process of this machine".into(), |process| format!("process {process}"));
    same_user(operation, user, rustix::process::geteuid().as_raw(), &who)?;
    let failed = |e: std::io::Error| Error::io(operation, &who, &e);
    if side == Side::Connects {
        socket.send(&[&MAGIC], None).await.map_err(failed)?;
    }
    let mut answer = [0; MAGIC.len()];
    let mut have = 0;
    while have < answer.len() {
        let received = socket.receive(&mut answer[have..]).await.map_err(failed)?;
        if received.bytes == 0 {
            return Err(Error::closed(operation, format!("{who} has closed the connection")));
        }
        have += received.bytes;
    }
    if answer != MAGIC {
        let context = format!("{who} speaks another protocol, or another version of it");
        return Err(Error::new(ErrorKind::Corrupt, operation, context));
    }
    if side == Side::Listens {
        socket.send(&[&MAGIC], None).await.map_err(failed)?;
    }
    Ok(who)
}

/// Refuses a peer of another user: memory is shared only among processes of one user.
fn same_user(operation: &'static str, theirs: u32, ours: u32, who: &str) -> Result<()> {
    if theirs == ours {
        return Ok(());
    }
    let context = format!("{who} runs as user {theirs}, this process as user {ours}");
    Err(Error::new(ErrorKind::Security, operation, context).hint("run both as one user, or take tcp"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_user_is_refused_whoever_it_is() {
        assert!(same_user(CONNECT, 1000, 1000, "it").is_ok());
        for (theirs, ours) in [(1001, 1000), (0, 1000), (1000, 0)] {
            assert_eq!(same_user(CONNECT, theirs, ours, "it").unwrap_err().kind(), ErrorKind::Security);
        }
    }
}
