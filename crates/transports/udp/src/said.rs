//! Control messages as datagrams too, for paths with much loss. TCP doubles its retransmission timeout after each loss (RFC
//! 6298), so at 70 % loss a message on the control connection takes minutes.
//!
//! The sender repeats each message as a datagram until the peer acknowledges it. The datagram has the message's number on
//! the control connection. The receiver takes the message from whichever of the two arrives first, and acknowledges in a
//! datagram of its own.
//!
//! | byte | field | |
//! |---|---|---|
//! | 0 | key | 16 bytes, as in every datagram of the link |
//! | 16 | kind | 6 a message, 7 taken |
//! | 17 | | 0 |
//! | 18 | told | 6 bytes; the message's number, from 1; or how many have been taken |
//! | 24 | | 8 bytes, 0 |
//! | 32 | | the message |

use std::collections::VecDeque;
use std::future::Future;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use thalweg_seal::TAG_BYTES;
use tokio::time::sleep_until;

use crate::datagram::{Encode, Key, PREFIX_BYTES, WHOLE};
use crate::shared::Shared;
use crate::socket::Lane;

const MESSAGE: u8 = 6;
const TAKEN: u8 = 7;
/// Longer messages go by the control connection alone.
const LONGEST: usize = WHOLE - PREFIX_BYTES - TAG_BYTES;
/// Messages that are kept in order to be repeated; then the oldest goes by the control connection alone.
const KEPT: usize = 64;
/// Messages that are repeated together.
const TOGETHER: usize = 4;
/// Time until a message is repeated, and the longest time between two repetitions.
const FIRST: Duration = Duration::from_millis(100);
const RAREST: Duration = Duration::from_secs(1);
/// Copies that a repetition has at most, and their bytes.
const MOST_COPIES: usize = 8;
const MOST_BYTES: usize = 8 << 10;

/// What such a datagram says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// The message of this number follows the prefix.
    Message(u64),
    /// So many messages have been taken.
    Taken(u64),
}

impl Word {
    /// Reads a datagram of the link with this key; `None` for any other.
    pub fn read(key: &Key, datagram: &[u8]) -> Option<Self> {
        let (prefix, rest) = datagram.split_at_checked(PREFIX_BYTES)?;
        let told = prefix[18..24].iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
        let ours = prefix[..16] == key[..] && prefix[17] == 0 && prefix[24..].iter().all(|&byte| byte == 0);
        match prefix[16] {
            MESSAGE if ours && told > 0 && rest.len() <= LONGEST => Some(Self::Message(told)),
            TAKEN if ours && rest.is_empty() => Some(Self::Taken(told)),
            _ => None,
        }
    }

    /// The message in its datagram.
    pub fn message(datagram: &[u8]) -> Bytes {
        Bytes::copy_from_slice(datagram.get(PREFIX_BYTES..).unwrap_or_default())
    }
}

impl Encode for Word {
    fn encode(&self, key: &Key, out: &mut Vec<u8>) {
        let (kind, told) = match *self {
            Self::Message(number) => (MESSAGE, number),
            Self::Taken(count) => (TAKEN, count),
        };
        out.extend_from_slice(key);
        out.extend_from_slice(&[kind, 0]);
        out.extend_from_slice(&told.to_le_bytes()[..6]);
        out.extend_from_slice(&[0; 8]);
    }
}

/// Messages that this end has sent and that the peer is not known to have.
#[derive(Debug, Default)]
pub struct Said {
    messages: Mutex<VecDeque<(u64, Bytes)>>,
}

impl Said {
    fn messages(&self) -> MutexGuard<'_, VecDeque<(u64, Bytes)>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The `number`-th message was given to the control connection. It is sent in a datagram over `lane` too, if there is
    /// one. Returns the bytes of that.
    pub fn say(&self, number: u64, message: Bytes, lane: Option<&Lane>) -> Option<usize> {
        if message.len() > LONGEST {
            return None;
        }
        let sent = lane.map(|lane| lane.tell_with(&Word::Message(number), &message));
        let mut messages = self.messages();
        if messages.len() == KEPT {
            messages.pop_front();
        }
        messages.push_back((number, message));
        sent
    }

    /// The peer has taken so many messages.
    pub fn taken(&self, count: u64) {
        self.messages().retain(|(number, _)| *number > count);
    }

    /// Sends the oldest messages again, in so many copies if they are short. Returns the bytes sent; `None` if the peer has
    /// all messages.
    pub fn repeat(&self, lane: &Lane, copies: usize) -> Option<usize> {
        let oldest: Vec<(u64, Bytes)> = self.messages().iter().take(TOGETHER).cloned().collect();
        let bytes: usize = oldest.iter().map(|(_, message)| PREFIX_BYTES + message.len()).sum();
        let copies = copies.min(MOST_BYTES / bytes.max(1)).max(1);
        let each = |(number, message): &(u64, Bytes)| lane.tell_with(&Word::Message(*number), message);
        (!oldest.is_empty()).then(|| (0..copies).flat_map(|_| oldest.iter().map(each)).sum())
    }
}

/// When messages are repeated, and how often each time. Until one has been taken, the time between two repetitions grows, and
/// so does the number of copies: where seven of ten datagrams are lost, a message comes within half a second nearly always.
#[derive(Debug)]
pub struct Pauses {
    due: Instant,
    pause: Duration,
    copies: usize,
}

impl Pauses {
    /// A message was sent at `now`.
    pub fn new(now: Instant) -> Self {
        Self { due: now + FIRST, pause: FIRST, copies: 1 }
    }

    /// Another message was sent at `now`: it does not wait as long as those that were repeated already.
    pub fn said(&mut self, now: Instant) {
        (self.due, self.pause) = (self.due.min(now + FIRST), FIRST);
    }

    /// The time of the next repetition.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Messages are repeated at `now`. Returns in how many copies.
    pub fn repeated(&mut self, now: Instant) -> usize {
        self.pause = (self.pause * 5 / 4).min(RAREST);
        self.due = now + self.pause;
        let next = (2 * self.copies).min(MOST_COPIES);
        std::mem::replace(&mut self.copies, next)
    }
}

/// Repeats control messages as datagrams of `lane` until the peer has them. `hear` takes what the peer has said meanwhile.
pub async fn keep_saying<F: Future<Output = ()>>(shared: Arc<Shared>, lane: Arc<Lane>, hear: impl Fn() -> F) {
    loop {
        shared.said_more.notified().await;
        let mut pauses = Pauses::new(Instant::now());
        loop {
            tokio::select! {
                () = sleep_until(pauses.due().into()) => {}
                () = shared.said_more.notified() => {
                    pauses.said(Instant::now());
                    continue;
                }
            }
            hear().await;
            let Some(sent) = shared.said.repeat(&lane, pauses.repeated(Instant::now())) else { break };
            shared.sent.fetch_add(sent as u64, Relaxed);
        }
    }
}

/// Which messages have been taken, of those that come by two ways.
#[derive(Debug, Default)]
pub struct Taken {
    count: u64,
    /// Messages that have come by the control connection.
    connection: u64,
}

impl Taken {
    /// How many have been taken.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// One has come by the control connection. Returns whether it is taken: else a datagram has brought it before.
    pub fn by_connection(&mut self) -> bool {
        self.connection += 1;
        let fresh = self.connection > self.count;
        self.count = self.count.max(self.connection);
        fresh
    }

    /// The one of this number has come in a datagram. Returns whether it is taken: it is the next.
    pub fn by_datagram(&mut self, number: u64) -> bool {
        let next = self.count.checked_add(1) == Some(number);
        self.count += u64::from(next);
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: Key = [7; 16];

    #[test]
    fn round_trips() {
        for (word, rest) in [(Word::Message(1), &b"message"[..]), (Word::Taken((1 << 48) - 1), b"")] {
            let mut datagram = Vec::new();
            word.encode(&KEY, &mut datagram);
            datagram.extend_from_slice(rest);
            assert_eq!((Word::read(&KEY, &datagram), &Word::message(&datagram)[..]), (Some(word), rest));
            assert_eq!(Word::read(&[8; 16], &datagram), None);
            assert_eq!(
                crate::datagram::Datagram::decode(&KEY, &datagram),
                None,
                "no other datagram looks like it"
            );
        }
    }

    #[test]
    fn what_the_peer_has_is_not_kept_nor_what_is_too_long() {
        let said = Said::default();
        said.say(1, Bytes::from_static(b"one"), None);
        said.say(2, vec![0; LONGEST + 1].into(), None);
        said.say(3, Bytes::from_static(b"three"), None);
        let numbers = |said: &Said| said.messages().iter().map(|(number, _)| *number).collect::<Vec<_>>();
        assert_eq!(numbers(&said), [1, 3]);
        said.taken(1);
        assert_eq!(numbers(&said), [3]);
        (4..200).for_each(|number| _ = said.say(number, Bytes::new(), None));
        assert_eq!(numbers(&said).len(), KEPT);
    }

    /// Of 15 copies in 0.58 s, one comes with a probability of 0.995 if 70 % are lost.
    #[test]
    fn repetitions_become_rarer_and_have_more_copies() {
        let start = Instant::now();
        let mut pauses = Pauses::new(start);
        let (mut times, mut copies) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            let due = pauses.due();
            times.push((due - start).as_millis());
            copies.push(pauses.repeated(due));
        }
        assert_eq!((&times[..4], &copies[..5]), (&[100, 225, 381, 576][..], &[1, 2, 4, 8, 8][..]));
        assert!(times[19] - times[18] == RAREST.as_millis(), "{times:?}");
        let later = pauses.due() - RAREST;
        pauses.said(later);
        assert_eq!(pauses.due(), later + FIRST, "a new message does not wait for the old ones");
        pauses.said(later + FIRST / 2);
        assert_eq!(pauses.due(), later + FIRST, "nor do the old ones wait for new ones");
    }

    proptest! {
        /// Each message is taken once and in order, whichever way brings it, however often a datagram does.
        #[test]
        fn each_is_taken_once(order in prop::collection::vec((any::<bool>(), 1..20_u64), 0..200)) {
            let (mut taken, mut came, mut next) = (Taken::default(), Vec::new(), 1);
            for (connection, number) in order {
                if connection && next < 20 {
                    came.extend(taken.by_connection().then_some(next));
                    next += 1;
                } else if !connection && taken.by_datagram(number) {
                    came.push(number);
                }
            }
            prop_assert!(came.iter().copied().eq(1..=taken.count()));
        }
    }
}
