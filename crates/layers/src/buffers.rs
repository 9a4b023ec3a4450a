//! Buffers that a link reuses.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

/// Maximum number of spare buffers that a link keeps.
const SPARE: usize = 4;

/// The spare buffers of a link. They may still have old content.
#[derive(Debug, Default)]
pub(crate) struct Buffers(Mutex<Vec<Vec<u8>>>);

impl Buffers {
    /// Takes an empty buffer.
    pub fn take(&self) -> Vec<u8> {
        let mut buffer = self.spare();
        buffer.clear();
        buffer
    }

    /// Takes a buffer of `bytes` bytes. Its content has no meaning.
    pub fn sized(&self, bytes: usize) -> Vec<u8> {
        let mut buffer = self.spare();
        buffer.resize(bytes, 0);
        buffer
    }

    fn spare(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    /// Puts a buffer back.
    pub fn give(&self, buffer: Vec<u8>) {
        let mut spare = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < SPARE {
            spare.push(buffer);
        }
    }

    /// Puts the buffer of sent bytes back, unless somebody still uses it.
    pub fn recycle(&self, bytes: Bytes) {
        if let Ok(buffer) = bytes.try_into_mut() {
            self.give(buffer.into());
        }
    }
}
