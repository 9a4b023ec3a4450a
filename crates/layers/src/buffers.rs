//! Buffers that a link uses again.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

/// Buffers that a link keeps.
const SPARE: usize = 4;

/// A few buffers, empty or not.
#[derive(Debug, Default)]
pub(crate) struct Buffers(Mutex<Vec<Vec<u8>>>);

impl Buffers {
    /// An empty one.
    pub fn take(&self) -> Vec<u8> {
        let mut buffer = self.spare();
        buffer.clear();
        buffer
    }

    /// One of so many bytes, with whatever is in it.
    pub fn sized(&self, bytes: usize) -> Vec<u8> {
        let mut buffer = self.spare();
        buffer.resize(bytes, 0);
        buffer
    }

    fn spare(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    /// Takes one back.
    pub fn give(&self, buffer: Vec<u8>) {
        let mut spare = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < SPARE {
            spare.push(buffer);
        }
    }

    /// Takes back what was sent, unless somebody still has it.
    pub fn recycle(&self, bytes: Bytes) {
        if let Ok(buffer) = bytes.try_into_mut() {
            self.give(buffer.into());
        }
    }
}
