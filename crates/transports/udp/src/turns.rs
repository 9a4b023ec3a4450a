//! The order between chunks and control messages, which travel separately. Does no I/O.
//!
//! Each datagram has a count, `told`: how many control messages its sender had sent before it. Two rules
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
    told: u64,
    /// Number of messages delivered.
    delivered: u64,
}

impl Turns {
    /// Notes a datagram with the count `told`.
    pub fn heard(&mut self, told: u64) {
        self.told = self.told.max(told);
    }

    /// The greatest count received.
    pub fn told(&self) -> u64 {
        self.told
    }

    /// Whether a chunk with the count `told` may be given to the sink.
    pub fn is_due(&self, told: u64) -> bool {
        told <= self.delivered
    }

    /// Whether the next control message may be delivered.
    pub fn may_deliver(&self) -> bool {
        self.told > self.delivered
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
        let mut told = 0;
        for (number, &message) in (0..).zip(script) {
            if message {
                told += 1;
                messages.push_back(told);
                datagrams.push_back((None, told));
                sent.push(Sent::Message(told));
            } else {
                sent.push(Sent::Chunk(number, told));
                if !lost.contains(&number) {
                    datagrams.push_back((Some(number), told));
                }
            }
        }
        let (mut turns, mut came) = (Turns::default(), Vec::new());
        let (mut held, mut waiting) = (VecDeque::new(), VecDeque::new());
        let mut order = order.iter().copied().chain(std::iter::repeat([true, false]).flatten());
        while !datagrams.is_empty() || !messages.is_empty() {
            if order.next() == Some(true) {
                waiting.extend(messages.pop_front());
            } else if let Some((chunk, told)) = datagrams.pop_front() {
                turns.heard(told);
                held.extend(chunk.map(|number| (number, told)));
            }
            loop {
                let before = came.len();
                while let Some(&(number, told)) = held.front().filter(|(_, told)| turns.is_due(*told)) {
                    came.push(Sent::Chunk(number, told));
                    held.pop_front();
                }
                if turns.may_deliver() && !waiting.is_empty() {
                    came.extend(waiting.pop_front().map(Sent::Message));
                    turns.delivered();
                }
                if came.len() == before {
                    break;
                }
            }
        }
        (sent, came)
    }

    proptest! {
        #[test]
        fn everything_comes_once_and_in_the_order_it_was_sent(
            script in prop::collection::vec(any::<bool>(), 0..60),
            order in prop::collection::vec(any::<bool>(), 0..80),
            lost in prop::collection::vec(0..60_u32, 0..20),
        ) {
            let (sent, came) = run(&script, &order, &lost);
            let kept = |s: &Sent| !matches!(s, Sent::Chunk(number, _) if lost.contains(number));
            prop_assert_eq!(came, sent.into_iter().filter(kept).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_round_whose_chunks_overtake_its_announcement_is_taken_whole() {
        let script = [true, false, false, false, true];
        let (sent, came) = run(&script, &[false; 5], &[]);
        assert_eq!(came, sent);
    }
}
