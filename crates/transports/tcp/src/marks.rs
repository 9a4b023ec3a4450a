//! Marks keep a control message behind the chunks that were sent before it on data connections.
//!
//! Each frame on the first connection of such a link is preceded by one mark for each data connection: the
//! number of bytes of whole frames that were sent on it before (u64, little-endian). The receiver keeps the
//! message until as many bytes have arrived, holes included. If a data connection ends earlier, the link
//! breaks, because somebody has cut the connection.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

const MARK_BYTES: usize = 8;

#[derive(Debug, Clone, Copy, Default)]
struct Received {
    /// Bytes of whole frames that have arrived.
    bytes: u64,
    /// Whether the peer has ended the connection.
    ended: bool,
}

/// Bytes of frames sent and received on the data connections of one link. These are numbered from 1, as in
/// the link.
pub(crate) struct Marks {
    /// Bytes of whole frames sent on each data connection.
    sent: Vec<AtomicU64>,
    /// Bytes that have arrived on each data connection, and whether it has ended.
    received: watch::Sender<Vec<Received>>,
}

impl Marks {
    pub(crate) fn new(data_connections: usize) -> Self {
        let sent = (0..data_connections).map(|_| AtomicU64::default()).collect();
        Self { sent, received: watch::Sender::new(vec![Received::default(); data_connections]) }
    }

    /// Number of bytes that precede a frame on the first connection.
    pub(crate) fn bytes(&self) -> usize {
        MARK_BYTES * self.sent.len()
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        self.sent.iter().flat_map(|sent| sent.load(Ordering::Acquire).to_le_bytes()).collect()
    }

    /// Counts a frame of `bytes` bytes that has been sent.
    pub(crate) fn sent(&self, connection: usize, bytes: usize) {
        if let Some(sent) = connection.checked_sub(1).and_then(|data| self.sent.get(data)) {
            sent.fetch_add(bytes as u64, Ordering::Release);
        }
    }

    /// Counts a frame of `bytes` bytes that has arrived and that the sink has.
    pub(crate) fn received(&self, connection: usize, bytes: usize) {
        self.change(connection, |received| received.bytes += bytes as u64);
    }

    /// Records that the connection has ended: no more bytes will arrive on it.
    pub(crate) fn ended(&self, connection: usize) {
        self.change(connection, |received| received.ended = true);
    }

    fn change(&self, connection: usize, change: impl FnOnce(&mut Received)) {
        self.received.send_modify(|all| {
            if let Some(received) = connection.checked_sub(1).and_then(|data| all.get_mut(data)) {
                change(received);
            }
        });
    }

    /// Waits until as many bytes have arrived on each data connection as `marks` say. If one has ended before
    /// its mark, returns its number as an error.
    pub(crate) async fn reached(&self, marks: &[u8]) -> Result<(), usize> {
        let marks: Vec<u64> = marks
            .chunks_exact(MARK_BYTES)
            .map(|mark| mark.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte)))
            .collect();
        let mut outcome = Ok(());
        let mut watching = self.received.subscribe();
        let settled = watching.wait_for(|all| {
            let short =
                || (1..).zip(all.iter().zip(&marks)).filter(|(_, (received, &mark))| received.bytes < mark);
            outcome = short().find(|(_, (received, _))| received.ended).map_or(Ok(()), |(cut, _)| Err(cut));
            outcome.is_err() || short().next().is_none()
        });
        // This fails only if the `watch` sender was dropped, and that sender is a field of `self`.
        let _ = settled.await;
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::future::{poll_fn, Future};
    use std::pin::pin;
    use std::task::Poll;

    use super::*;

    #[tokio::test]
    async fn a_message_waits_for_each_connection() {
        let (sender, receiver) = (Marks::new(2), Marks::new(2));
        sender.sent(1, 100);
        sender.sent(2, 70);
        sender.sent(0, 5);
        let marks = sender.encode();
        assert_eq!(marks.len(), receiver.bytes());
        let mut reached = pin!(receiver.reached(&marks));
        for (connection, bytes) in [(1, 99), (2, 80), (0, 1000), (3, 1000)] {
            receiver.received(connection, bytes);
            assert!(poll_fn(|cx| Poll::Ready(reached.as_mut().poll(cx).is_pending())).await);
        }
        receiver.received(1, 1);
        assert_eq!(reached.await, Ok(()));
        assert_eq!(receiver.reached(&marks).await, Ok(()), "and again");
    }

    #[tokio::test]
    async fn a_connection_that_ends_before_is_named() {
        let (sender, receiver) = (Marks::new(2), Marks::new(2));
        sender.sent(2, 70);
        receiver.ended(1);
        receiver.received(2, 69);
        receiver.ended(2);
        assert_eq!(receiver.reached(&sender.encode()).await, Err(2));
        receiver.received(2, 1);
        assert_eq!(receiver.reached(&sender.encode()).await, Ok(()));
    }
}
