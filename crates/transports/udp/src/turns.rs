//! The order between chunks and control messages, which travel separately. Does no I/O.
//!
//! Each datagram says how many control messages its sender had sent before it: its message count. Two rules
//! follow:
//!
//! - A chunk waits until that many messages have been delivered. Otherwise it could arrive before the
//!   announcement of its round, and the sink would refuse it. A chunk of a detached update needs no
//!   announcement: its count is 0, so it waits for nothing.
//! - Message `n` waits for a datagram that was sent after it. Everything sent before the message has then
//!   arrived, is lost, or was overtaken by that datagram. The sender repeats a probe after each message until
//!   it is reported. So a lost datagram delays a message and does not block it for ever.

/// How far the control messages of one direction have come.
#[derive(Debug, Default)]
pub struct Turns {
    /// Greatest count of all datagrams.
    greatest_count: u64,
    /// Number of messages delivered.
    delivered: u64,
}

impl Turns {
    /// Notes a datagram with this message count.
    pub fn note_count(&mut self, count: u64) {
        self.greatest_count = self.greatest_count.max(count);
    }

    /// The greatest count received.
    pub fn greatest_count(&self) -> u64 {
        self.greatest_count
    }

    /// Whether a chunk with this message count may be given to the sink.
    pub fn is_due(&self, count: u64) -> bool {
        count <= self.delivered
    }

    /// Whether the next control message may be delivered.
    pub fn may_deliver(&self) -> bool {
        self.greatest_count > self.delivered
    }

    /// Notes that a control message was delivered and that its receiver is ready for more.
    pub fn delivered(&mut self) {
        self.delivered += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Sent {
        /// A chunk: its number, and its message count.
        Chunk(u32, u64),
        Message(u64),
    }

    /// Simulates a sender and a receiver. `script` lists what is sent: true is a control message with its
    /// probe, false is a chunk. `order` says which way delivers next; true is the control connection. Chunks
    /// whose numbers are in `lost` never arrive. Returns what was sent and what was delivered.
    fn run(script: &[bool], order: &[bool], lost: &[u32]) -> (Vec<Sent>, Vec<Sent>) {
        let (mut sent, mut datagrams, mut messages) = (Vec::new(), VecDeque::new(), VecDeque::new());
        let mut count = 0;
        for (number, &message) in (0..).zip(script) {
            if message {
                count += 1;
                messages.push_back(count);
                datagrams.push_back((None, count));
                sent.push(Sent::Message(count));
            } else {
                sent.push(Sent::Chunk(number, count));
                if !lost.contains(&number) {
                    datagrams.push_back((Some(number), count));
                }
            }
        }
        let (mut turns, mut received) = (Turns::default(), Vec::new());
        let (mut held, mut waiting) = (VecDeque::new(), VecDeque::new());
        let mut order = order.iter().copied().chain(std::iter::repeat([true, false]).flatten());
        while !datagrams.is_empty() || !messages.is_empty() {
            if order.next() == Some(true) {
                waiting.extend(messages.pop_front());
            } else if let Some((chunk, count)) = datagrams.pop_front() {
                turns.note_count(count);
                held.extend(chunk.map(|number| (number, count)));
            }
            loop {
                let before = received.len();
                while let Some(&(number, count)) = held.front().filter(|(_, count)| turns.is_due(*count)) {
                    received.push(Sent::Chunk(number, count));
                    held.pop_front();
                }
                if turns.may_deliver() && !waiting.is_empty() {
                    received.extend(waiting.pop_front().map(Sent::Message));
                    turns.delivered();
                }
                if received.len() == before {
                    break;
                }
            }
        }
        (sent, received)
    }

    proptest! {
        #[test]
        fn everything_arrives_once_and_in_order(
            script in prop::collection::vec(any::<bool>(), 0..60),
            order in prop::collection::vec(any::<bool>(), 0..80),
            lost in prop::collection::vec(0..60_u32, 0..20),
        ) {
            let (sent, received) = run(&script, &order, &lost);
            let kept = |s: &Sent| !matches!(s, Sent::Chunk(number, _) if lost.contains(number));
            prop_assert_eq!(received, sent.into_iter().filter(kept).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_round_whose_chunks_overtake_its_announcement_is_received_whole() {
        let script = [true, false, false, false, true];
        let (sent, received) = run(&script, &[false; 5], &[]);
        assert_eq!(received, sent);
    }
}
