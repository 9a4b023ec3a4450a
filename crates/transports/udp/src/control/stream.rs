//! A reliable byte stream over datagrams, made for paths with much loss. Does no I/O.
//!
//! - A segment that is not acknowledged is retransmitted at a steady pace. The pause follows the RTT and the
//!   measured loss rate: in a round trip it sends about as many copies as are needed for one to arrive. While
//!   the peer is silent, the pause grows slowly, up to a round trip or [`MAX_PAUSE`], whichever is longer.
//! - The congestion window follows delay, not loss: it grows until the RTT rises.
//! - The receive window grows when the reader has read a whole window. So an unauthenticated peer, which
//!   sends little, uses little memory.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use thalweg_wire::limits;

use super::packet::{Segment, MAX_RANGES, MAX_SEGMENT_BYTES};

/// Bytes that may wait to be sent or acknowledged.
const CAPACITY: usize = 256 << 10;
/// Initial and maximum receive window, in bytes.
const RECEIVE_WINDOW: (u32, u32) = (32 << 10, 1 << 20);
/// Initial, minimum and maximum congestion window, in bytes.
const CONGESTION_WINDOW: (usize, usize, usize) = (16 << 10, 4 << 10, 1 << 20);
/// Minimum pause between two copies of a segment.
const MIN_PAUSE: Duration = Duration::from_millis(10);
/// Maximum pause between two copies, or the RTT if that is longer.
pub(crate) const MAX_PAUSE: Duration = Duration::from_millis(250);
/// Pause after the first packet, before there is an RTT sample.
pub(crate) const INITIAL_PAUSE: Duration = Duration::from_millis(50);
/// Time that the peer may take to answer, in addition to the RTT.
const MAX_ACK_DELAY: Duration = Duration::from_millis(5);
/// Per cent. In a round trip, so many copies are sent that at least one arrives with this probability.
const ARRIVAL_PERCENT: f64 = 95.0;
/// Maximum number of copies in a round trip.
const MAX_COPIES: u32 = 16;
/// Maximum number of segments that are retransmitted at a time. While the peer is silent, it is one.
const MAX_TOGETHER: usize = 4;
/// Number of retransmissions without any packet from the peer after which the peer counts as silent.
const SILENT_AFTER: u32 = 4;
/// Packet threshold (RFC 9002, 6.1.1): a segment is lost if one that was sent this many packets later has
/// arrived.
const PACKET_THRESHOLD: u32 = 3;
/// Number of packets over which the loss rate is averaged.
const LOSS_SAMPLE: f64 = 64.0;
/// A connecting end that has received nothing for this long, or longer over a slow path, sends a packet without bytes.
/// It shows the new address of this end to a listener that still sends to the old one. In an established session,
/// heartbeats are more frequent.
const KEEP_ALIVE_PAUSE: Duration = Duration::from_secs(3);
/// How long a minimum RTT is valid. After that a longer RTT replaces it, because the route may have changed.
const MIN_RTT_WINDOW: Duration = Duration::from_secs(10);

/// The pause, 10 % longer for each unanswered retransmission, and at most `most`.
pub(crate) fn slower(pause: Duration, unanswered: u32, most: Duration) -> Duration {
    pause.mul_f64(1.1_f64.powi(unanswered.min(100) as i32)).min(most)
}

/// A segment that was sent and is not acknowledged.
#[derive(Debug, Clone, Copy)]
struct Flight {
    length: usize,
    sent_at: Duration,
    /// Number of the last packet that carried it.
    number: u32,
    /// How often it was sent again.
    times: u32,
    /// It was overtaken, so it must be retransmitted now.
    lost: bool,
}

/// The state of the round-trip estimate (RFC 6298, section 2).
#[derive(Debug, Clone, Copy)]
struct Trip {
    smoothed: Duration,
    variation: Duration,
    least: (Duration, Duration),
}

/// One end of a stream. Times are relative to a fixed moment, which the caller chooses.
#[derive(Debug)]
pub(crate) struct Stream {
    /// Bytes from `acked` on.
    outgoing: VecDeque<u8>,
    acked: u64,
    /// Place of the first byte that was never sent.
    next: u64,
    flights: BTreeMap<u64, Flight>,
    /// Where this end's direction ends, once it is closed. The end counts as one byte, as TCP's FIN does.
    last: Option<u64>,
    /// End of the peer's receive window.
    peer_limit: u64,
    congestion: usize,
    /// When the congestion window may shrink again.
    shrinks: Duration,
    trip: Option<Trip>,
    /// Number of packets with bytes that were sent, and of retransmissions among them.
    sent: u32,
    repeated: u64,
    /// The peer's last counts `seen` and `received`; see [`Segment`].
    peer_counts: (u32, u32),
    /// Recent packets with bytes, and the lost ones among them. Both counts decay, for the loss rate.
    judged: (f64, f64),
    /// Retransmissions since the last packet of the peer.
    unanswered: u32,
    last_packet_at: Duration,
    /// Bytes in order that the reader has not taken.
    incoming: VecDeque<u8>,
    /// Place of the first byte of `incoming`.
    taken: u64,
    /// Bytes beyond the first gap, by their offsets.
    early: BTreeMap<u64, Vec<u8>>,
    early_bytes: usize,
    /// Where the peer's stream ends, once known.
    end: Option<u64>,
    /// Whether all bytes up to the end have arrived. The end is then acknowledged.
    ended: bool,
    /// Whether bytes that arrive are dropped, because this end was closed.
    discards: bool,
    /// Size of the receive window.
    window: u32,
    /// The window doubles when the reader has read up to here.
    window_grows_at: u64,
    /// End of the receive window that the peer was told last.
    offered: u64,
    /// The greatest `sent` of the peer's packets with bytes, and how many of these packets have arrived.
    counts: (u32, u32),
    /// The time in the peer's last packet with bytes, until a packet of this end echoes it.
    answer: Option<u32>,
    /// When this end last sent a packet only to show its address; `None` if it sends no such packets.
    alive: Option<Duration>,
}

impl Stream {
    /// A new stream. `round_trip` is the RTT, if it was measured before.
    pub(crate) fn new(now: Duration, round_trip: Option<Duration>) -> Self {
        let mut stream = Self {
            outgoing: VecDeque::new(),
            acked: 0,
            next: 0,
            flights: BTreeMap::new(),
            last: None,
            peer_limit: RECEIVE_WINDOW.0.into(),
            congestion: CONGESTION_WINDOW.0,
            shrinks: Duration::ZERO,
            trip: None,
            sent: 0,
            repeated: 0,
            peer_counts: (0, 0),
            judged: (4.0, 1.0),
            unanswered: 0,
            last_packet_at: now,
            incoming: VecDeque::new(),
            taken: 0,
            early: BTreeMap::new(),
            early_bytes: 0,
            end: None,
            ended: false,
            discards: false,
            window: RECEIVE_WINDOW.0,
            window_grows_at: u64::from(RECEIVE_WINDOW.0),
            offered: u64::from(RECEIVE_WINDOW.0),
            counts: (0, 0),
            answer: None,
            alive: None,
        };
        if let Some(sample) = round_trip {
            stream.measured(now, sample);
        }
        stream
    }

    /// Accepts bytes to be sent, as far as there is room. Returns how many it has accepted.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> usize {
        let room = CAPACITY.saturating_sub(self.outgoing.len()).min(bytes.len());
        self.outgoing.extend(&bytes[..room]);
        room
    }

    /// Whether bytes can be written.
    pub(crate) fn has_room(&self) -> bool {
        self.outgoing.len() < CAPACITY
    }

    /// Ends this end's direction after the bytes written so far. From now on, discards the bytes that arrive.
    pub(crate) fn close(&mut self) {
        self.last.get_or_insert(self.acked + self.outgoing.len() as u64);
        self.discards = true;
        self.discard();
    }

    /// Reads bytes into `buffer`. `None` if there are none yet; 0 at the end of the peer's direction.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let count = buffer.len().min(self.incoming.len());
        if count == 0 {
            return self.ended.then_some(0);
        }
        for (to, from) in buffer.iter_mut().zip(self.incoming.drain(..count)) {
            *to = from;
        }
        self.passed(count as u64);
        Some(count)
    }

    /// Notes that the reader has read `count` bytes, and doubles the receive window if the peer fills it.
    fn passed(&mut self, count: u64) {
        self.taken += count;
        // Discarded bytes must not enlarge the window: nobody reads them.
        if !self.discards && self.taken >= self.window_grows_at {
            self.window = (2 * self.window).min(RECEIVE_WINDOW.1);
            self.window_grows_at = self.taken + u64::from(self.window);
        }
    }

    fn discard(&mut self) {
        let count = self.incoming.len() as u64;
        self.incoming.clear();
        self.passed(count);
    }

    /// Notes that the address of one end has changed. What is in flight may be lost, and nothing is known of the new
    /// path (RFC 9000, section 9.4). `round_trip` is its first RTT sample.
    pub(crate) fn path_changed(&mut self, now: Duration, round_trip: Option<Duration>) {
        let sample = round_trip.or(self.round_trip());
        (self.congestion, self.shrinks, self.unanswered, self.trip) =
            (CONGESTION_WINDOW.0, Duration::ZERO, 0, None);
        if let Some(sample) = sample {
            self.measured(now, sample);
        }
        let mut room = self.congestion;
        for flight in self.flights.values_mut() {
            // Retransmit as many of the oldest as the initial window permits. Their ACKs show which others are lost.
            (flight.lost, flight.times) = (flight.lost || room > 0, 0);
            room = room.saturating_sub(flight.length.max(1));
        }
    }

    /// From now on, sends a packet without bytes whenever nothing has arrived for [`KEEP_ALIVE_PAUSE`].
    pub(crate) fn keep_alive(&mut self, now: Duration) {
        self.alive = Some(now);
    }

    /// When the next packet of [`Stream::keep_alive`] is due.
    fn alive_at(&self) -> Option<Duration> {
        let pause = limits::repetition(KEEP_ALIVE_PAUSE, self.round_trip().unwrap_or_default());
        Some(self.alive?.max(self.last_packet_at) + pause)
    }

    /// Whether segments were sent again and nothing has come from the peer since.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.unanswered > 0
    }

    /// Whether the peer has ended its direction.
    pub(crate) fn peer_has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Whether the peer has acknowledged all bytes, and the end of this direction.
    pub(crate) fn is_delivered(&self) -> bool {
        self.last.is_some_and(|last| self.acked > last)
    }

    /// Smoothed round trip, if it was measured.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.trip.map(|trip| trip.smoothed)
    }

    /// Segments that were sent again.
    pub(crate) fn repeated(&self) -> u64 {
        self.repeated
    }

    /// When the last packet of the peer arrived.
    pub(crate) fn last_packet_at(&self) -> Duration {
        self.last_packet_at
    }

    fn reached(&self) -> u64 {
        self.taken + self.incoming.len() as u64
    }

    /// Handles a packet of the peer. Ignores values that no honest peer sends.
    pub(crate) fn handle(&mut self, now: Duration, segment: &Segment, bytes: &[u8]) {
        self.last_packet_at = now;
        self.unanswered = 0;
        if let Some(echo) = segment.echo {
            let sample = Duration::from_micros(u64::from(clock(now).wrapping_sub(echo)));
            // The echoed time is not in the future, unless the peer lies.
            if sample <= now {
                self.measured(now, sample);
            }
        }
        self.judge(segment);
        self.acknowledged(segment);
        if bytes.is_empty() && !segment.ends {
            return;
        }
        self.counts.1 = self.counts.1.wrapping_add(1);
        if segment.sent.wrapping_sub(self.counts.0) < u32::MAX / 2 {
            self.counts.0 = segment.sent;
        }
        self.answer = Some(segment.time);
        if segment.ends {
            self.peer_ends(segment.offset);
        } else {
            self.arrived(segment.offset, bytes);
        }
        let ends = self.end.is_some_and(|end| end == self.reached());
        self.ended |= ends;
        if self.discards {
            self.discard();
        }
    }

    fn peer_ends(&mut self, at: u64) {
        let beyond = self.early.iter().next_back().map_or(0, |(start, bytes)| start + bytes.len() as u64);
        if self.end.is_none() && at >= self.reached().max(beyond) {
            self.end = Some(at);
        }
    }

    fn arrived(&mut self, offset: u64, bytes: &[u8]) {
        let (reached, limit) = (self.reached(), self.end.unwrap_or(u64::MAX).min(self.limit()));
        let Some(end) = offset.checked_add(bytes.len() as u64).filter(|&end| end > reached && end <= limit)
        else {
            return;
        };
        if offset > reached {
            // Limit the number of short segments, since each costs memory besides its bytes. An honest peer's
            // segments are full, except the last of each write.
            let room = self.early_bytes + bytes.len() <= self.window as usize;
            if room && self.early.len() < self.window as usize / 256 && !self.early.contains_key(&offset) {
                self.early_bytes += bytes.len();
                self.early.insert(offset, bytes.to_vec());
            }
            return;
        }
        let fresh = (end - reached) as usize;
        self.incoming.extend(&bytes[bytes.len() - fresh..]);
        while let Some(entry) = self.early.first_entry() {
            let reached = self.taken + self.incoming.len() as u64;
            if *entry.key() > reached {
                break;
            }
            let (start, bytes) = entry.remove_entry();
            self.early_bytes -= bytes.len();
            let duplicate = (reached - start) as usize;
            self.incoming.extend(bytes.get(duplicate..).unwrap_or_default());
        }
    }

    fn limit(&self) -> u64 {
        (self.taken + u64::from(self.window)).max(self.offered)
    }

    /// Notes a measured round trip.
    pub(crate) fn measured(&mut self, now: Duration, sample: Duration) {
        let trip = match self.trip {
            None => Trip { smoothed: sample, variation: sample / 2, least: (sample, now) },
            Some(Trip { smoothed, variation, least }) => Trip {
                variation: (3 * variation + smoothed.abs_diff(sample)) / 4,
                smoothed: (7 * smoothed + sample) / 8,
                least: if sample <= least.0 || now.saturating_sub(least.1) > MIN_RTT_WINDOW.max(8 * smoothed)
                {
                    (sample, now)
                } else {
                    least
                },
            },
        };
        self.trip = Some(trip);
        if sample > trip.least.0.mul_f64(1.5) + 4 * MAX_ACK_DELAY && now >= self.shrinks {
            self.congestion = (self.congestion * 3 / 4).max(CONGESTION_WINDOW.1);
            self.shrinks = now + trip.smoothed;
        }
    }

    /// Updates the measured loss from the peer's counts.
    fn judge(&mut self, segment: &Segment) {
        let (seen, received) = (
            segment.seen.wrapping_sub(self.peer_counts.0),
            segment.received.wrapping_sub(self.peer_counts.1),
        );
        if seen == 0 || seen > self.sent.wrapping_sub(self.peer_counts.0) {
            return;
        }
        self.peer_counts = (segment.seen, segment.received);
        self.judged.0 += f64::from(seen);
        self.judged.1 += f64::from(seen.saturating_sub(received));
        if self.judged.0 > LOSS_SAMPLE {
            self.judged = (self.judged.0 / 2.0, self.judged.1 / 2.0);
        }
    }

    fn acknowledged(&mut self, segment: &Segment) {
        if segment.ack > self.next || segment.ack < self.acked {
            return;
        }
        self.peer_limit = self.peer_limit.max(segment.ack.saturating_add(segment.window.into()));
        let (mut newest, mut fresh) = (None, 0);
        let mut note = |flight: Flight| {
            fresh += flight.length;
            newest = newest.max(Some(flight.number));
        };
        while let Some(first) = self.flights.first_entry() {
            let end = *first.key() + first.get().length.max(1) as u64;
            if end > segment.ack {
                break;
            }
            note(first.remove());
        }
        for (start, length) in segment.ranges.iter().filter(|range| range.1 > 0) {
            let start = segment.ack.saturating_add((*start).into());
            let end = start.saturating_add((*length).into());
            let covered: Vec<u64> = self
                .flights
                .range(start..end.max(start))
                .filter(|(at, flight)| flight.length > 0 && **at + flight.length as u64 <= end)
                .map(|(at, _)| *at)
                .collect();
            covered.iter().filter_map(|at| self.flights.remove(at)).for_each(&mut note);
        }
        let passed = segment.ack.saturating_sub(self.acked).min(self.outgoing.len() as u64);
        self.outgoing.drain(..passed as usize);
        self.acked = self.acked.max(segment.ack);
        self.congestion = (self.congestion + fresh).min(CONGESTION_WINDOW.2);
        if let Some(newest) = newest {
            for flight in self.flights.values_mut() {
                flight.lost |= newest.wrapping_sub(flight.number) < u32::MAX / 2
                    && newest.wrapping_sub(flight.number) >= PACKET_THRESHOLD;
            }
        }
    }

    /// The pause before a segment is retransmitted, after `times` retransmissions.
    fn pause(&self, times: u32) -> Duration {
        let Some(trip) = self.trip else { return slower(INITIAL_PAUSE, times, MAX_PAUSE) };
        let whole = trip.smoothed + (4 * trip.variation).max(MAX_ACK_DELAY);
        let loss = (self.judged.1 / self.judged.0).clamp(0.001, 0.9);
        let copies = ((1.0 - ARRIVAL_PERCENT / 100.0).ln() / loss.ln()).ceil().clamp(1.0, MAX_COPIES.into());
        slower(whole.div_f64(copies).max(MIN_PAUSE), times, MAX_PAUSE.max(whole))
    }

    fn due_at(&self, flight: &Flight) -> Duration {
        if flight.lost {
            return Duration::ZERO;
        }
        flight.sent_at + self.pause(flight.times)
    }

    /// When [`Stream::poll_transmit`] will have something to send, if nothing happens before.
    pub(crate) fn poll_timeout(&self) -> Option<Duration> {
        let flights = self.flights.values().take(self.together()).map(|flight| self.due_at(flight));
        flights.chain(self.alive_at()).min()
    }

    /// How many of the oldest segments may be sent again at a time.
    fn together(&self) -> usize {
        if self.unanswered > SILENT_AFTER {
            1
        } else {
            MAX_TOGETHER
        }
    }

    /// The next packet to send at `now`: the segment's header and its bytes. Call until it returns `None`.
    pub(crate) fn poll_transmit(&mut self, now: Duration) -> Option<(Segment, Vec<u8>)> {
        let Some((offset, length, times)) = self.due(now).or_else(|| self.fresh()) else {
            let opened = self.limit() >= self.offered + u64::from(self.window / 2);
            let lives = self.alive_at().is_some_and(|at| at <= now);
            if lives {
                self.alive = Some(now);
            }
            return (opened || lives || self.answer.is_some())
                .then(|| (self.header(now, self.next, false), Vec::new()));
        };
        self.sent = self.sent.wrapping_add(1);
        let number = self.sent;
        self.flights.insert(offset, Flight { length, sent_at: now, number, times, lost: false });
        let start = offset.saturating_sub(self.acked) as usize;
        let bytes = self.outgoing.iter().skip(start).take(length).copied().collect();
        Some((self.header(now, offset, length == 0), bytes))
    }

    /// Whether segments wait to be acknowledged.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.flights.is_empty()
    }

    /// The oldest segment to retransmit now: its offset, its length, and how often it was retransmitted.
    fn due(&mut self, now: Duration) -> Option<(u64, usize, u32)> {
        let oldest = self.flights.iter().take(self.together());
        let lost = self.flights.iter().filter(|(_, flight)| flight.lost);
        let (&offset, &flight) = lost.chain(oldest).find(|(_, flight)| self.due_at(flight) <= now)?;
        self.unanswered = self.unanswered.saturating_add(1);
        self.repeated += 1;
        Some((offset, flight.length, flight.times.saturating_add(1)))
    }

    /// A segment of new bytes, as far as both windows permit.
    fn fresh(&mut self) -> Option<(u64, usize, u32)> {
        let written = self.last.unwrap_or(self.acked + self.outgoing.len() as u64);
        let in_flight: usize = self.flights.values().map(|flight| flight.length).sum();
        let permitted = self.congestion.saturating_sub(in_flight) as u64;
        let allowed = match self.peer_limit.saturating_sub(self.next) {
            // The packet that reopens the peer's window may have been lost. So probe with one byte.
            0 => u64::from(self.flights.is_empty()),
            open => open.min(permitted),
        };
        let (offset, left) = (self.next, written.saturating_sub(self.next));
        let length = left.min(allowed).min(MAX_SEGMENT_BYTES as u64);
        let ends = self.last == Some(self.next);
        self.next += if ends { 1 } else { length };
        (ends || length > 0).then_some((offset, length as usize, 0))
    }

    fn header(&mut self, now: Duration, offset: u64, ends: bool) -> Segment {
        self.offered = self.limit();
        let ack = self.reached() + u64::from(self.ended);
        let mut ranges = [(0, 0); MAX_RANGES];
        let mut used = 0_usize;
        for (&start, bytes) in &self.early {
            let (from, length) = ((start - ack) as u32, bytes.len() as u32);
            match ranges.get_mut(used.wrapping_sub(1)) {
                Some(last) if last.0 + last.1 == from => last.1 += length,
                _ => match ranges.get_mut(used) {
                    Some(range) => {
                        *range = (from, length);
                        used += 1;
                    }
                    None => break,
                },
            }
        }
        Segment {
            offset,
            ack,
            window: (self.offered.saturating_sub(ack)).min(u32::MAX.into()) as u32,
            time: clock(now),
            echo: self.answer.take(),
            sent: self.sent,
            seen: self.counts.0,
            received: self.counts.1,
            ends,
            ranges,
        }
    }
}

/// The time as packets have it: in microseconds, modulo 2^32.
pub(crate) fn clock(now: Duration) -> u32 {
    now.as_micros() as u32
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
