//! Processes an incoming segment in the order of RFC 9293 section 3.10.7.4. Defends against forged segments
//! (RFC 5961) and old ones (RFC 7323).

use thalweg_wire::Range;

use super::super::sequence::{number, offset};
use super::{refusal, Context, Flow, State};
use crate::event::{Ended, What};
use crate::outgoing::Ack;
use crate::segment::{Segment, ACK, FIN, RST, SYN};
use crate::Time;

const SECOND: Time = Time::from_secs(1);

impl Flow {
    /// Takes a segment of this connection.
    pub fn segment(&mut self, cx: &mut Context<'_>, segment: &Segment) {
        let start = self.place(segment);
        if segment.has(SYN) {
            return self.stray_syn(cx, segment);
        }
        if segment.has(RST) {
            return self.reset(cx, start);
        }
        if !segment.has(ACK) {
            return;
        }
        if self.is_outdated(cx.now, segment, start) {
            cx.counters.outdated += 1;
            return self.challenge(cx);
        }
        let length = i64::from(segment.span());
        let (low, high) = (self.expected() as i64, self.right_edge as i64);
        // An empty segment may lie at the right edge of the window.
        let inside = start <= high && start >= low && (length == 0 || start < high);
        let reaches_in = length > 0 && start < low && start + length > low;
        if inside || reaches_in {
            if self.acknowledges(cx, segment) {
                self.last_received = cx.now;
                self.data(cx, segment, start);
                self.settle(cx);
            }
        } else {
            self.outside(cx, segment, start);
        }
    }

    /// The stream offset of a segment's first byte.
    fn place(&self, segment: &Segment) -> i64 {
        offset(segment.sequence, self.irs.wrapping_add(1), self.stream.highest())
    }

    /// The next offset that we expect (RCV.NXT). A FIN that has arrived counts as one byte.
    fn expected(&self) -> u64 {
        self.stream.acknowledged() + u64::from(self.stream.is_complete())
    }

    /// Handles a segment outside the window: a duplicate, a keep-alive, a probe of a closed window, or
    /// nonsense. The answer is an ACK; ACKs to empty or implausible segments are rate-limited. Bytes for a
    /// masked hole are still used.
    fn outside(&mut self, cx: &mut Context<'_>, segment: &Segment, start: i64) {
        if self.state == State::TimeWait {
            self.life = Some(cx.now + cx.config.time_wait);
        }
        if segment.payload.is_empty() || !self.is_plausible(segment) {
            return self.challenge(cx);
        }
        self.last_received = cx.now;
        self.release();
        if start < self.stream.highest() as i64 {
            self.data(cx, segment, start);
            self.settle(cx);
        }
        self.acks.now = true;
    }

    fn is_outdated(&self, now: Time, segment: &Segment, start: i64) -> bool {
        let Some(stamps) = &self.stamps else { return false };
        // Once both sides have agreed to timestamps, every segment has one (RFC 7323 section 3.2).
        let Some((value, _)) = segment.options.stamps else { return true };
        let from = start.max(0) as u64;
        let range = Range::new(from, from + segment.payload.len() as u64);
        stamps.is_old(now, value, self.stream.floor(range))
    }

    /// Handles a reset (RFC 5961 section 3.2). The sender does not know what we have masked, or what we have
    /// received but not acknowledged. So a reset is also valid at the offset of our last ACK, and one past
    /// the highest byte. Elsewhere in the window the answer is a challenge ACK.
    fn reset(&mut self, cx: &mut Context<'_>, start: i64) {
        let exact = start == self.expected() as i64 || start == self.acks.sent as i64;
        if exact || (start == self.stream.highest() as i64 && !self.stream.is_complete()) {
            // Ignore resets in TIME-WAIT. They would end the protection of the next connection (RFC 1337).
            if self.state != State::TimeWait {
                self.close_now(cx, Ended::Reset);
            }
        } else if start > self.expected() as i64 && start < self.right_edge as i64 {
            self.challenge(cx);
        }
    }

    /// Handles a SYN (RFC 5961 section 4.2). If the first SYN arrives again, our SYN-ACK was lost.
    fn stray_syn(&mut self, cx: &mut Context<'_>, segment: &Segment) {
        let again = segment.sequence == self.irs && !segment.has(ACK);
        if self.state == State::SynReceived && again {
            self.syn_due = true;
        } else {
            self.challenge(cx);
        }
    }

    /// Sends a rate-limited challenge ACK (RFC 5961).
    fn challenge(&mut self, cx: &Context<'_>) {
        let (count, since) = self.acks.challenges;
        let fresh = cx.now.saturating_sub(since) >= SECOND;
        let (count, since) = if fresh { (0, cx.now) } else { (count, since) };
        self.acks.challenges = (count, since);
        if count < cx.config.challenges && self.state != State::SynReceived {
            self.acks.challenges.0 += 1;
            self.acks.now = true;
        }
    }

    /// Whether the acknowledgement number is plausible (RFC 5961 section 5.2).
    fn is_plausible(&self, segment: &Segment) -> bool {
        let una = self.out.una() as i64;
        let place = offset(segment.acknowledgement, self.iss.wrapping_add(1), self.out.una());
        let widest = self.out.widest().max(1 << 16) as i64;
        self.state != State::SynReceived && place <= self.out.sent() as i64 && place >= una - widest
    }

    /// Processes the acknowledgement. Returns whether to process the rest of the segment.
    fn acknowledges(&mut self, cx: &mut Context<'_>, segment: &Segment) -> bool {
        if self.state == State::SynReceived && !self.establish(cx, segment) {
            return false;
        }
        if !self.is_plausible(segment) {
            self.challenge(cx);
            return false;
        }
        let place = offset(segment.acknowledgement, self.iss.wrapping_add(1), self.out.una());
        if place < self.out.una() as i64 {
            return true;
        }
        let window = u64::from(segment.window) << self.scales.map_or(0, |(_, theirs)| theirs);
        let blocks = self.kept_blocks(segment);
        let alone = segment.payload.is_empty() && !segment.has(FIN) && blocks.is_empty();
        let plain = alone && window == self.out.window();
        self.out.acknowledged(cx.now, Ack { offset: place as u64, blocks: &blocks, plain });
        self.update_window(cx.now, segment, window);
        self.ours_acknowledged(cx);
        true
    }

    /// The peer's SACK blocks for bytes that we have sent. Blocks before the cumulative ACK (D-SACK) are left
    /// out.
    fn kept_blocks(&self, segment: &Segment) -> Vec<Range> {
        let base = self.iss.wrapping_add(1);
        let place = |sequence: u32| u64::try_from(offset(sequence, base, self.out.una())).ok();
        let blocks = segment.options.blocks.iter().flatten().filter(|_| self.sack);
        let blocks = blocks.filter_map(|&(start, end)| Some(Range::new(place(start)?, place(end)?)));
        blocks.filter(|block| !block.is_empty() && block.end <= self.out.sent()).collect()
    }

    /// Updates the send window, if the segment is newer than the last update (RFC 9293 section 3.10.7.4).
    fn update_window(&mut self, now: Time, segment: &Segment, window: u64) {
        let (sequence, acknowledgement) = self.updated;
        let later = |a: u32, b: u32| a.wrapping_sub(b) as i32;
        let newer = later(segment.sequence, sequence) > 0
            || (segment.sequence == sequence && later(segment.acknowledgement, acknowledgement) >= 0);
        if newer {
            self.updated = (segment.sequence, segment.acknowledgement);
            self.out.opened(now, window);
        }
    }

    /// Processes the third segment of the handshake.
    fn establish(&mut self, cx: &mut Context<'_>, segment: &Segment) -> bool {
        if segment.acknowledgement != number(self.iss, 1) || self.syn_sent.is_none() {
            if let Some(reset) = refusal(segment) {
                cx.reset(reset);
            }
            return false;
        }
        self.state = State::Established;
        self.last_data = Some(cx.now);
        self.syn_at = None;
        self.syn_due = false;
        let window = u64::from(segment.window) << self.scales.map_or(0, |(_, theirs)| theirs);
        self.out.opened(cx.now, window);
        self.updated = (segment.sequence, segment.acknowledgement);
        // Karn's algorithm: a SYN-ACK that was sent twice gives no RTT sample.
        if let (Some(sent), 0) = (self.syn_sent, self.syn_tries) {
            let rtt = cx.now.saturating_sub(sent);
            self.rtt = Some(rtt);
            self.out.measured(rtt);
            let most = super::UNSCALED << self.scales.map_or(0, |(ours, _)| ours);
            self.control = cx.config.rate.control(most, self.segment, Some(rtt));
        }
        self.push(cx, What::Connected(self.agreed()));
        if self.out.is_closing() {
            self.state = State::FinWait1;
        }
        true
    }

    fn ours_acknowledged(&mut self, cx: &mut Context<'_>) {
        if !self.out.is_done() {
            return;
        }
        match self.state {
            State::FinWait1 => {
                self.state = State::FinWait2;
                self.life = Some(cx.now + cx.config.fin_wait);
            }
            State::Closing => self.linger(cx),
            State::LastAck => self.close_now(cx, Ended::Closed),
            _ => {}
        }
    }

    fn linger(&mut self, cx: &mut Context<'_>) {
        self.state = State::TimeWait;
        self.life = Some(cx.now + cx.config.time_wait);
        self.end(cx, Ended::Closed);
    }

    /// Processes the peer's FIN as soon as every byte before it has arrived or is masked.
    pub(super) fn settle(&mut self, cx: &mut Context<'_>) {
        let Some(length) = self.stream.fin.filter(|_| self.stream.is_complete()) else { return };
        let before = self.state;
        match before {
            State::Established => self.state = State::CloseWait,
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => {}
            _ => return,
        }
        self.acks.now = true;
        self.push(cx, What::Finished(length));
        if before == State::FinWait2 {
            self.linger(cx);
        }
    }
}
