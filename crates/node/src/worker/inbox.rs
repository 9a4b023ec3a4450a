//! Notes as they come, many at a time.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;

use crate::note::{Kind, Note, NOTE_BYTES};

#[derive(Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    used: usize,
}

impl Inbox {
    /// Waits for bytes; `false` once there will be none.
    pub fn receive(&mut self, socket: &mut UnixStream) -> io::Result<bool> {
        self.bytes.drain(..self.used);
        self.used = 0;
        let mut buffer = [0; 64 * NOTE_BYTES];
        loop {
            match socket.read(&mut buffer) {
                Ok(0) => return Ok(false),
                Ok(read) => {
                    self.bytes.extend(&buffer[..read]);
                    return Ok(true);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }

    fn peek(&self) -> Option<Option<Note>> {
        let bytes = self.bytes.get(self.used..self.used + NOTE_BYTES)?;
        Some(bytes.try_into().ok().and_then(Note::decode))
    }

    /// The next note, if a whole one is there; `Some(None)` if it is none.
    pub fn next(&mut self) -> Option<Option<Note>> {
        let note = self.peek()?;
        self.used += NOTE_BYTES;
        Some(note)
    }

    /// The next note, if it is of this kind.
    pub fn next_of(&mut self, kind: Kind) -> Option<Note> {
        let note = self.peek()?.filter(|note| note.kind == kind)?;
        self.used += NOTE_BYTES;
        Some(note)
    }
}
