//! Repeats control messages as datagrams, for paths with much loss. TCP doubles its retransmission timeout
//! after each loss (RFC 6298), so at 70 % loss a message on the control connection takes minutes.
//!
//! The sender repeats each message as a datagram until the peer acknowledges it. The datagram has the
//! message's number on the control connection. The receiver takes the message from whichever of the two
//! arrives first. It acknowledges in a datagram of its own.
//!
//! | byte | field | |
//! |---|---|---|
//! | 0 | key | 16 bytes, as in every datagram of the link |
//! | 16 | kind | 6: a message; 7: an acknowledgement |
//! | 17 | | 0 |
//! | 18 | message number | 6 bytes: the message's number, from 1; or that of the last message taken |
//! | 24 | | 8 bytes, 0 |
//! | 32 | | the message |

use std::collections::VecDeque;
use std::future::Future;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use thalweg_seal::TAG_BYTES;
use thalweg_wire::limits;
use tokio::time::sleep_until;

use crate::datagram::{Encode, Key, PREFIX_BYTES, WHOLE};
use crate::link_state::LinkState;
use crate::socket::Lane;

const MESSAGE: u8 = 6;
const TAKEN: u8 = 7;
/// Longest message that goes into a datagram. Longer ones travel on the control connection alone.
const MAX_MESSAGE: usize = WHOLE - PREFIX_BYTES - TAG_BYTES;
/// Maximum number of messages kept for repetition. Beyond that, the oldest is dropped and travels on the
/// control connection alone.
const MAX_KEPT: usize = 64;
/// Maximum number of messages in one repetition. The oldest messages go first.
const MAX_TOGETHER: usize = 4;
/// Time before the first repetition over a path that is not measured.
const UNMEASURED: Duration = Duration::from_millis(100);
/// Least time before the first repetition. The peer may be busy for so long before it acknowledges.
const FIRST: Duration = Duration::from_millis(50);
/// Longest time between two repetitions, unless the first one comes later.
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of copies of each message in one repetition.
const MAX_COPIES: usize = 8;
/// Maximum number of bytes of one repetition, unless a single copy has more.
const MAX_BYTES: usize = 8 << 10;

/// The content of a datagram that repeats or acknowledges a control message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// The control message with this number. Its text follows the prefix.
    Message(u64),
    /// An acknowledgement: the receiver has taken this many messages.
    Taken(u64),
}

impl Word {
    /// Parses a datagram of the link with this key. Returns `None` for any other datagram.
    pub fn read(key: &Key, datagram: &[u8]) -> Option<Self> {
        let (prefix, rest) = datagram.split_at_checked(PREFIX_BYTES)?;
        let number = prefix[18..24].iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
        let ours = prefix[..16] == key[..] && prefix[17] == 0 && prefix[24..].iter().all(|&byte| byte == 0);
        match prefix[16] {
            MESSAGE if ours && number > 0 && rest.len() <= MAX_MESSAGE => Some(Self::Message(number)),
            TAKEN if ours && rest.is_empty() => Some(Self::Taken(number)),
            _ => None,
        }
    }

    /// Copies the message out of its datagram.
    pub fn message(datagram: &[u8]) -> Bytes {
        Bytes::copy_from_slice(datagram.get(PREFIX_BYTES..).unwrap_or_default())
    }
}

impl Encode for Word {
    fn encode(&self, key: &Key, out: &mut Vec<u8>) {
        let (kind, number) = match *self {
            Self::Message(number) => (MESSAGE, number),
            Self::Taken(count) => (TAKEN, count),
        };
        out.extend_from_slice(key);
        out.extend_from_slice(&[kind, 0]);
        out.extend_from_slice(&number.to_le_bytes()[..6]);
        out.extend_from_slice(&[0; 8]);
    }
}

/// Control messages that this end has sent and the peer has not acknowledged.
#[derive(Debug, Default)]
pub struct Unacknowledged {
    messages: Mutex<VecDeque<(u64, Bytes)>>,
}

impl Unacknowledged {
    fn messages(&self) -> MutexGuard<'_, VecDeque<(u64, Bytes)>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a message for repetition, after the control connection has accepted it as number `number`. If
    /// `lane` is given, sends it in a datagram at once. Returns the bytes of that datagram; `None` if none
    /// was sent. A message longer than a datagram is not kept.
    pub fn keep(&self, number: u64, message: Bytes, lane: Option<&Lane>) -> Option<usize> {
        if message.len() > MAX_MESSAGE {
            return None;
        }
        let sent = lane.map(|lane| lane.send_one_with(&Word::Message(number), &message));
        let mut messages = self.messages();
        if messages.len() == MAX_KEPT {
            messages.pop_front();
        }
        messages.push_back((number, message));
        sent
    }

    /// Drops the messages that the peer has acknowledged: the first `count`.
    pub fn taken(&self, count: u64) {
        self.messages().retain(|(number, _)| *number > count);
    }

    /// Sends the oldest messages again, in up to `copies` copies; long messages get fewer. Returns the bytes
    /// sent, or `None` if the peer has acknowledged all messages.
    pub fn repeat(&self, lane: &Lane, copies: usize) -> Option<usize> {
        let oldest: Vec<(u64, Bytes)> = self.messages().iter().take(MAX_TOGETHER).cloned().collect();
        let bytes: usize = oldest.iter().map(|(_, message)| PREFIX_BYTES + message.len()).sum();
        let copies = copies.min(MAX_BYTES / bytes.max(1)).max(1);
        let each = |(number, message): &(u64, Bytes)| lane.send_one_with(&Word::Message(*number), message);
        (!oldest.is_empty()).then(|| (0..copies).flat_map(|_| oldest.iter().map(each)).sum())
    }
}

/// The schedule of repetitions, by the path's round trip ([`limits::repetition`]). While messages stay
/// unacknowledged, the pauses get longer and the copies more. So one of the first 15 copies arrives with a
/// probability of 0.995, even if 70 % of the datagrams are lost: within 0.3 s, or eight round trips if they take
/// longer.
#[derive(Debug)]
pub struct Pauses {
    due: Instant,
    pause: Duration,
    copies: usize,
}

impl Pauses {
    /// The schedule of a message sent at `now`.
    pub fn new(now: Instant, round_trip: Option<Duration>) -> Self {
        let pause = first(round_trip);
        Self { due: now + pause, pause, copies: 1 }
    }

    /// Notes that another message was sent at `now`. Its first repetition is as early as if it were the only
    /// one, however long the pauses have become.
    pub fn message_sent(&mut self, now: Instant, round_trip: Option<Duration>) {
        let pause = first(round_trip);
        (self.due, self.pause) = (self.due.min(now + pause), pause);
    }

    /// Time of the next repetition.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Notes a repetition at `now` and schedules the next one. Returns how many copies to send now.
    pub fn repeated(&mut self, now: Instant, round_trip: Option<Duration>) -> usize {
        let first = first(round_trip);
        self.pause = (self.pause * 5 / 4).clamp(first, MAX_PAUSE.max(first));
        self.due = now + self.pause;
        let next = (2 * self.copies).min(MAX_COPIES);
        std::mem::replace(&mut self.copies, next)
    }
}

/// Pause before the first repetition of a message.
fn first(round_trip: Option<Duration>) -> Duration {
    round_trip.map_or(UNMEASURED, |trip| limits::repetition(FIRST, trip))
}

/// Task of a link: repeats unacknowledged control messages over `lane`, as the path's `round_trip` is at the time.
/// Before each repetition, `read_acks` reads the acknowledgements that have arrived.
pub async fn repeat_messages<F: Future<Output = ()>>(
    state: Arc<LinkState>,
    lane: Arc<Lane>,
    round_trip: impl Fn() -> Option<Duration>,
    read_acks: impl Fn() -> F,
) {
    loop {
        state.message_sent.notified().await;
        let mut pauses = Pauses::new(Instant::now(), round_trip());
        loop {
            tokio::select! {
                () = sleep_until(pauses.due().into()) => {}
                () = state.message_sent.notified() => {
                    pauses.message_sent(Instant::now(), round_trip());
                    continue;
                }
            }
            read_acks().await;
            let copies = pauses.repeated(Instant::now(), round_trip());
            let Some(sent) = state.unacknowledged.repeat(&lane, copies) else { break };
            state.sent.fetch_add(sent as u64, Relaxed);
        }
    }
}

/// Removes duplicates of control messages, each of which may arrive on the control connection and in
/// datagrams.
#[derive(Debug, Default)]
pub struct Taken {
    /// Number of messages taken.
    count: u64,
    /// Number of messages that the control connection has brought.
    connection: u64,
}

impl Taken {
    /// Number of messages taken.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Notes the next message of the control connection. Returns false if a datagram has already brought this
    /// message.
    pub fn by_connection(&mut self) -> bool {
        self.connection += 1;
        let fresh = self.connection > self.count;
        self.count = self.count.max(self.connection);
        fresh
    }

    /// Notes message `number` from a datagram. Returns whether to take it: only if it is the next one in
    /// order.
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
    fn acknowledged_and_too_long_messages_are_not_kept() {
        let unacknowledged = Unacknowledged::default();
        unacknowledged.keep(1, Bytes::from_static(b"one"), None);
        unacknowledged.keep(2, vec![0; MAX_MESSAGE + 1].into(), None);
        unacknowledged.keep(3, Bytes::from_static(b"three"), None);
        let numbers = |unacknowledged: &Unacknowledged| {
            unacknowledged.messages().iter().map(|(number, _)| *number).collect::<Vec<_>>()
        };
        assert_eq!(numbers(&unacknowledged), [1, 3]);
        unacknowledged.taken(1);
        assert_eq!(numbers(&unacknowledged), [3]);
        (4..200).for_each(|number| _ = unacknowledged.keep(number, Bytes::new(), None));
        assert_eq!(numbers(&unacknowledged).len(), MAX_KEPT);
    }

    /// The first 20 times of repetition since a message was sent, over a path with this round trip.
    fn times(round_trip: Option<Duration>) -> (Vec<Duration>, Vec<usize>) {
        let start = Instant::now();
        let mut pauses = Pauses::new(start, round_trip);
        let repeat = |_| {
            let due = pauses.due();
            (due - start, pauses.repeated(due, round_trip))
        };
        (0..20).map(repeat).unzip()
    }

    #[test]
    fn repetitions_become_rarer_and_have_more_copies() {
        let (unmeasured, copies) = times(None);
        let millis: Vec<u128> = unmeasured[..4].iter().map(Duration::as_millis).collect();
        assert_eq!((&millis[..], &copies[..5]), (&[100, 225, 381, 576][..], &[1, 2, 4, 8, 8][..]));
        assert_eq!(unmeasured[19] - unmeasured[18], MAX_PAUSE);
        let start = Instant::now();
        let mut pauses = Pauses::new(start, None);
        (0..20).for_each(|_| _ = pauses.repeated(pauses.due(), None));
        let later = pauses.due() - MAX_PAUSE;
        pauses.message_sent(later, None);
        assert_eq!(pauses.due(), later + UNMEASURED, "a new message does not wait for the old ones");
        pauses.message_sent(later + UNMEASURED / 2, None);
        assert_eq!(pauses.due(), later + UNMEASURED, "nor do the old ones wait for new ones");
    }

    /// From 10 us to 20 s: nothing is repeated before its acknowledgement can be there, and the 15 copies that
    /// 70 % loss needs are sent within eight round trips or 0.3 s.
    #[test]
    fn repetitions_follow_the_round_trip() {
        for micros in [10, 1_000, 40_000, 500_000, 2_000_000, 10_000_000, 20_000_000] {
            let trip = Duration::from_micros(micros);
            let (times, copies) = times(Some(trip));
            assert!(times[0] > trip && times[0] >= FIRST, "{trip:?}: {times:?}");
            assert!(times.windows(2).all(|pair| pair[1] - pair[0] > trip), "{trip:?}: {times:?}");
            assert_eq!(copies[..4].iter().sum::<usize>(), 15);
            assert!(times[3] <= (8 * trip).max(6 * FIRST), "{trip:?}: {times:?}");
            assert!(times[19] - times[18] <= MAX_PAUSE.max(5 * trip / 4), "{trip:?}: {times:?}");
        }
    }

    /// A path gets longer, as when a client changes networks, and shorter again.
    #[test]
    fn repetitions_follow_a_round_trip_that_changes() {
        let [short, long] = [10, 4_000].map(Duration::from_millis);
        let start = Instant::now();
        let mut pauses = Pauses::new(start, Some(short));
        assert_eq!(pauses.due() - start, FIRST);
        let first = pauses.due();
        pauses.repeated(first, Some(long));
        assert_eq!(pauses.due() - first, 5 * long / 4);
        let second = pauses.due();
        pauses.repeated(second, Some(short));
        assert_eq!(pauses.due() - second, MAX_PAUSE);
    }

    proptest! {
        /// Each message is taken exactly once and in order, whether the connection or a datagram brings it
        /// first, however often datagrams repeat it.
        #[test]
        fn each_is_taken_once(order in prop::collection::vec((any::<bool>(), 1..20_u64), 0..200)) {
            let (mut taken, mut received, mut next) = (Taken::default(), Vec::new(), 1);
            for (connection, number) in order {
                if connection && next < 20 {
                    received.extend(taken.by_connection().then_some(next));
                    next += 1;
                } else if !connection && taken.by_datagram(number) {
                    received.push(number);
                }
            }
            prop_assert!(received.iter().copied().eq(1..=taken.count()));
        }
    }
}
