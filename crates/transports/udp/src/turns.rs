//! Chunks and control messages take different ways; here it is decided whose turn it is. Without IO.
//!
//! Each datagram says how many control messages its sender had sent before it. Two rules follow:
//!
//! - A chunk waits until so many messages have been delivered: else it might come before the announcement of its
//!   round, and nobody would want it. A chunk of a detached update needs no announcement: it says 0, and waits for nothing.
//! - The `n`-th message waits until a datagram has come that was sent after it: what was sent before the message
//!   has then come, or is lost, or was overtaken by that datagram on the path. A probe follows each message, and is
//!   repeated until it came, so a lost datagram delays a message and does not stop it.

/// How far both ways have come.
#[derive(Debug, Default)]
pub struct Turns {
    told: u64,
    delivered: u64,
}

impl Turns {
    /// A datagram has come that says `told`.
    pub fn heard(&mut self, told: u64) {
        self.told = self.told.max(told);
    }

    /// The greatest that was said.
    pub fn told(&self) -> u64 {
        self.told
    }

    /// Whether a chunk that says `told` may be given to its receiver.
    pub fn is_due(&self, told: u64) -> bool {
        told <= self.delivered
    }

    /// Whether the next control message may be delivered.
    pub fn may_deliver(&self) -> bool {
        self.told > self.delivered
    }

    /// A control message has been delivered, and its receiver is back for more.
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
        /// With its number, and what it says.
        Chunk(u32, u64),
        Message(u64),
    }

    /// What is sent as `script` says (true: a control message, with its probe), and what a receiver makes of it when
    /// the two ways deliver by turns as `order` says (true: the control connection). `lost` numbers never come.
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
