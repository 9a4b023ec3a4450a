//! The data planes that the pool is compared with: they copy updates and sums from process to process.
//!
//! ```text
//! node --- [broker] --- [side process] --- worker       separate connections; updates go down, sums up
//! ```
//!
//! A note still names the object. The object's bytes follow on this connection, in the order of the notes. A
//! message is its length (8 bytes, little-endian) and its bytes. A broker and a side process are hops. A hop
//! receives a whole message before it passes it on, as a broker with a queue does.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{channel, Sender};
use std::sync::Arc;
use std::time::Duration;

use thalweg_shm_pool::Object;

use crate::data_plane::DataPlane;
use crate::launch::{Launcher, Process};

/// The node's end of a worker's connection for copies, with the hops in between.
pub(crate) struct CopyingPlane {
    stream: TcpStream,
    hops: Vec<Box<dyn Process>>,
    outgoing: Sender<Arc<Object>>,
}

impl CopyingPlane {
    /// Connects a node and a worker. Also returns the worker's end. A hop refuses a message of more than
    /// `most` bytes.
    pub fn new(plane: DataPlane, launcher: &dyn Launcher, most: u64) -> io::Result<(Self, OwnedFd)> {
        let (stream, mut far) = connected()?;
        let mut hops = Vec::new();
        for _ in 0..plane.hops() {
            let (near, next) = connected()?;
            hops.push(launcher.hop(far.into(), near.into(), most)?);
            far = next;
        }
        let mut writer = stream.try_clone()?;
        let (outgoing, objects) = channel::<Arc<Object>>();
        // The thread ends when the last sender is dropped or the connection is shut down.
        std::thread::spawn(move || {
            objects.into_iter().try_for_each(|object| send(&mut writer, object.bytes()))
        });
        Ok((Self { stream, hops, outgoing }, far.into()))
    }

    /// Queues an update to be sent, and returns at once.
    pub fn ship(&self, object: Arc<Object>) {
        // Ignore an error: if the worker has ended, the thread that reads from it finds out.
        _ = self.outgoing.send(object);
    }

    /// The connection on which sums arrive.
    pub fn stream(&self) -> io::Result<TcpStream> {
        self.stream.try_clone()
    }

    /// CPU time of the hops in nanoseconds.
    pub fn cpu(&self) -> u64 {
        self.hops.iter().map(|hop| hop.cpu()).sum()
    }

    /// Shuts the connection down and ends the hops.
    pub fn end(self) {
        _ = self.stream.shutdown(Shutdown::Both);
        self.hops.into_iter().for_each(|mut hop| hop.end());
    }
}

/// Returns the two ends of a new loopback connection.
fn connected() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let own = near.local_addr()?;
    loop {
        let (far, peer) = listener.accept()?;
        // Compare the addresses: any process on this machine may have connected.
        if peer == own {
            return Ok((near, far));
        }
    }
}

/// Sends a message: its length, then its bytes.
pub(crate) fn send(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(&(bytes.len() as u64).to_le_bytes())?;
    stream.write_all(bytes)
}

/// Receives a message that must have exactly the length of `into`.
pub(crate) fn receive(stream: &mut TcpStream, into: &mut [u8]) -> io::Result<()> {
    let mut length = [0; 8];
    stream.read_exact(&mut length)?;
    if u64::from_le_bytes(length) != into.len() as u64 {
        return Err(io::Error::new(ErrorKind::InvalidData, "a message has another size"));
    }
    stream.read_exact(into)
}

/// Like [`receive`], but each read waits at most for `timeout`.
pub(crate) fn receive_within(stream: &mut TcpStream, into: &mut [u8], timeout: Duration) -> io::Result<()> {
    stream.set_read_timeout(Some(timeout))?;
    receive(stream, into)
}

/// Works as a hop between two sockets until either of them ends: receives each message whole and passes it
/// on.
///
/// # Errors
/// An error if a message has more than `most` bytes, or if memory for a message cannot be allocated.
pub fn hop(one: OwnedFd, other: OwnedFd, most: u64) -> io::Result<()> {
    let (one, other) = (TcpStream::from(one), TcpStream::from(other));
    let (up, down) = ((other.try_clone()?, one.try_clone()?), (one, other));
    let upward = std::thread::spawn(move || pass(up.0, up.1, most));
    let passed = pass(down.0, down.1, most);
    passed.and(upward.join().unwrap_or(Ok(())))
}

fn pass(mut from: TcpStream, mut to: TcpStream, most: u64) -> io::Result<()> {
    let mut message = Vec::new();
    let passed = loop {
        match next(&mut from, &mut message, most).and_then(|has_come| match has_come {
            true => send(&mut to, &message).map(|()| true),
            false => Ok(false),
        }) {
            Ok(true) => {}
            Err(error) if matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::OutOfMemory) => {
                break Err(error)
            }
            Ok(false) | Err(_) => break Ok(()), // one end is gone
        }
    };
    // Let the processes at both ends learn that nothing follows.
    _ = to.shutdown(Shutdown::Both);
    _ = from.shutdown(Shutdown::Both);
    passed
}

/// Receives the next message of at most `most` bytes; `false` if there is none.
fn next(from: &mut TcpStream, message: &mut Vec<u8>, most: u64) -> io::Result<bool> {
    let mut length = [0; 8];
    match from.read_exact(&mut length) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(false),
        other => other?,
    }
    let length = u64::from_le_bytes(length);
    if length > most {
        return Err(io::Error::new(ErrorKind::InvalidData, "a message is larger than any can be"));
    }
    message.clear();
    message.try_reserve(length as usize).map_err(|_| ErrorKind::OutOfMemory)?;
    let read = from.take(length).read_to_end(message)?;
    if read as u64 != length {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hop_passes_messages_both_ways_and_ends_with_either_end() {
        let (mut near, one) = connected().unwrap();
        let (other, mut far) = connected().unwrap();
        let hop = std::thread::spawn(move || hop(one.into(), other.into(), 1 << 20));
        let sent: Vec<u8> = (0..1 << 20).map(|at| at as u8).collect();
        let mut came = vec![0; sent.len()];
        send(&mut near, &sent).unwrap();
        receive(&mut far, &mut came).unwrap();
        assert!(came == sent);
        send(&mut far, b"sums").unwrap();
        let mut sums = [0; 4];
        receive_within(&mut near, &mut sums, Duration::from_secs(60)).unwrap();
        assert_eq!(&sums, b"sums");
        drop(near);
        assert!(hop.join().unwrap().is_ok());
        assert!(receive(&mut far, &mut sums).is_err());
    }

    #[test]
    fn a_message_that_is_too_long_ends_a_hop() {
        let (mut near, one) = connected().unwrap();
        let (other, mut far) = connected().unwrap();
        let hop = std::thread::spawn(move || hop(one.into(), other.into(), 3));
        send(&mut near, b"four").unwrap();
        assert!(receive(&mut far, &mut [0; 4]).is_err());
        assert!(hop.join().unwrap().is_err());
    }

    #[test]
    fn a_message_of_another_size_is_refused() {
        let (mut near, mut far) = connected().unwrap();
        send(&mut near, b"four").unwrap();
        assert_eq!(receive(&mut far, &mut [0; 3]).unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
