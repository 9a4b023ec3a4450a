//! Processes the bytes of a segment: passes them to the stream, the application and the rate controller.

use thalweg_wire::Range;

use super::{Context, Flow, State};
use crate::config::Ecn;
use crate::event::{Ended, Happening, What};
use crate::rate::Sample;
use crate::segment::{Segment, CWR, FIN};
use crate::stamps::Stamps;
use crate::stream::Clocks;
use crate::Time;

/// A silence shorter than this cannot be a retransmission timeout, since this is Linux's minimum RTO.
const TIMEOUT: Time = Time::from_millis(200);
/// A silence shorter than this plus a round trip cannot be two retransmission timeouts. The second one is
/// twice as long as the first.
const TWICE: Time = Time::from_millis(500);

impl Flow {
    /// Processes the payload and the FIN of a segment whose first byte is at `start`.
    pub(super) fn data(&mut self, cx: &mut Context<'_>, segment: &Segment, start: i64) {
        let length = segment.payload.len() as i64;
        let fin = segment.has(FIN);
        if (length == 0 && !fin) || matches!(self.state, State::SynReceived | State::Closed) {
            return;
        }
        // A keep-alive may carry one meaningless byte in front of the next expected one (RFC 9293 section
        // 3.8.4).
        let keep_alive = length <= 1 && !fin && start + 1 == self.acks.sent as i64;
        // A FIN that lies before the stream does not end the stream at offset 0. After its last event, a flow
        // reports nothing more.
        if keep_alive || start + length < 0 || self.ended {
            self.acks.now = true;
            return;
        }
        let most = self.stream.fin.unwrap_or(self.right_edge.max(self.stream.highest()));
        let range = Range::new(start.max(0) as u64, ((start + length).max(0) as u64).min(most));
        if range.end < range.start || (range.is_empty() && !fin) {
            self.acks.now = true;
            return;
        }
        if range.start > self.stream.highest() && !self.is_ours(cx.now, segment) {
            cx.counters.forged += 1;
            return;
        }
        let end = (start + length).max(0) as u64;
        let ends_here = fin && end == range.end && self.stream.fin.is_none_or(|known| known == end);
        if fin && (!ends_here || end < self.stream.highest()) {
            self.acks.now = true;
            if range.is_empty() || end < self.stream.highest() {
                return;
            }
        }
        self.take(cx, segment, range, start);
        if ends_here && self.stream.highest() == end {
            self.stream.fin = Some(end);
            self.acks.now = true;
        }
    }

    /// Whether the segment echoes a timestamp of ours that only a host on the path can know. True without
    /// timestamps.
    fn is_ours(&self, now: Time, segment: &Segment) -> bool {
        match (&self.stamps, segment.options.stamps) {
            (Some(stamps), Some((_, echo))) => stamps.is_ours(now, echo),
            _ => true,
        }
    }

    fn take(&mut self, cx: &mut Context<'_>, segment: &Segment, range: Range, start: i64) {
        let held = self.stream.holding();
        let top = self.stream.highest();
        let leaps = range.start > top;
        let (progress, repaired) = (self.stream.acknowledged(), self.stream.repaired);
        let stamps = self.stamps.as_ref().zip(segment.options.stamps);
        let clocks = stamps.map(|(seen, (now, _))| Clocks { before: seen.newest, now }).unwrap_or_default();
        let Ok(arrival) = self.stream.arrive(cx.now, range, segment.segments, clocks) else {
            cx.counters.gaps += 1;
            return;
        };
        self.acks.latest = range.start;
        if self.stream.highest() > top {
            self.last_new = cx.now;
        }
        for &(piece, late) in &arrival.pieces {
            let at = segment.payload.start + (piece.start as i64 - start) as usize;
            let end = at + piece.len() as usize;
            let bytes = Happening::Bytes { offset: piece.start, start: at, end, late };
            cx.events.push_back((self.id, bytes));
        }
        let late = arrival.pieces.iter().find(|(_, late)| *late).map(|(piece, _)| *piece);
        let repairs = self.stream.repaired > repaired;
        if late.is_some() || arrival.duplicate.is_some() {
            self.acks.now = true;
            // We have acknowledged masked bytes, so to the sender this data is a duplicate (RFC 2883). Do not
            // report a duplicate that arrived with a retransmission: the sender would then wait longer before
            // its next retransmission (RFC 8985 section 6.2).
            self.acks.duplicate = arrival.duplicate.or(late).filter(|_| !repairs);
        }
        if held && arrival.moved_gaps && cx.config.undo.duplicates {
            self.acks.duplicate = arrival.pieces.first().map(|(piece, _)| *piece);
        }
        let probed = !held && !self.stream.holding() && self.may_be_probe(cx, range);
        if probed && self.acks.duplicate.is_none() {
            self.acks.duplicate = arrival.pieces.first().map(|(piece, _)| *piece);
            self.acks.now = true;
        }
        self.mark(cx, segment);
        if held && repairs {
            self.start_ack_division(cx.now, range);
        }
        let new = self.stream.highest() > top && late.is_none();
        if new && self.keeps() {
            self.acks.kept = Some(top.max(range.end.saturating_sub(self.segment.into())));
        } else {
            self.release();
        }
        let fresh = arrival.pieces.iter().any(|(_, late)| !late);
        self.note_silence(cx.now);
        if held || self.stream.holding() || self.stamps.as_ref().is_some_and(Stamps::repairing) {
            self.stamp_held(cx, segment, range, repairs);
        } else if fresh {
            self.stamp(cx, segment);
        }
        self.last_data = Some(cx.now);
        self.resolve(cx);
        self.trickle = self.freezes_window().then(|| cx.now + self.rtt.unwrap_or_default() / 4);
        self.sample(cx.now, segment, leaps);
        if self.stream.holding() || (arrival.moved_gaps && self.stream.acknowledged() > progress) {
            self.acks.now = true;
            self.acks.owed += if self.sack { 0 } else { segment.segments.min(3) };
        }
        self.acks.bytes += self.stream.acknowledged() - progress;
        if self.acks.bytes >= 2 * u64::from(self.segment) {
            self.acks.now = true;
        } else if self.acks.bytes > 0 {
            let at = cx.now + cx.config.ack_delay;
            self.acks.deadline = Some(self.acks.deadline.map_or(at, |deadline| deadline.min(at)));
        }
    }

    /// Handles ECN (RFC 3168 section 6.1.3).
    fn mark(&mut self, cx: &Context<'_>, segment: &Segment) {
        if self.ecn && cx.config.ecn == Ecn::Echo {
            if segment.has(CWR) {
                self.acks.ece = false;
            }
            if segment.ce {
                self.acks.ece = true;
                self.acks.now = true;
            }
        }
    }

    /// Whether a segment arrives so late that it may be a tail loss probe. The sender sends one two round
    /// trips or more after the last segment (RFC 8985 section 7.2). New data after a pause of the application
    /// looks the same. Reporting such data as a duplicate does no harm, since the sender has sent it only
    /// once.
    fn may_be_probe(&self, cx: &Context<'_>, range: Range) -> bool {
        let timeout = self.rtt.map_or(TIMEOUT, |rtt| TIMEOUT.min(rtt * 3 / 2));
        cx.config.undo.probes && range.len() <= u64::from(self.segment) && self.silence(cx.now) >= timeout
    }

    /// The time since data last arrived.
    fn silence(&self, now: Time) -> Time {
        self.last_data.map_or(Time::ZERO, |last| now.saturating_sub(last))
    }

    /// Records a silence during recovery that may be a retransmission timeout of the sender.
    fn note_silence(&mut self, now: Time) {
        let silence = self.silence(now);
        if !self.stamps.as_ref().is_some_and(Stamps::repairing) {
            self.waited = Time::ZERO;
        } else if silence >= TIMEOUT {
            self.waited = self.waited.max(silence);
        }
    }

    /// Passes the segment's timestamp on, so that the next ACK can echo it.
    fn stamp(&mut self, cx: &Context<'_>, segment: &Segment) {
        let silence = self.silence(cx.now);
        let (Some(stamps), Some((value, _))) = (&mut self.stamps, segment.options.stamps) else { return };
        if cx.config.undo.eifel && silence >= TIMEOUT {
            stamps.woke(cx.now, value, silence >= TWICE + self.rtt.unwrap_or_default());
        } else {
            stamps.arrived(cx.now, value, false);
        }
    }

    /// Passes the segment's timestamp on while a hole is held, or was held until this segment arrived.
    /// `fills`: the segment is a retransmission.
    fn stamp_held(&mut self, cx: &Context<'_>, segment: &Segment, range: Range, fills: bool) {
        let (Some(stamps), Some(both)) = (&mut self.stamps, segment.options.stamps) else { return };
        let undo = &cx.config.undo;
        if !undo.eifel {
            return stamps.arrived(cx.now, both.0, range.start > self.acks.sent);
        }
        let oldest = undo.oldest.max(self.rtt.unwrap_or_default() * 4);
        stamps.hold(cx.now, self.acks.sent, self.stream.highest(), self.rtt.unwrap_or_default());
        stamps.held(cx.now, both, range.end, fills, oldest.as_millis() as u32);
    }

    /// Masks or holds the gaps that have waited long enough. Reports masked holes to the application, and
    /// held holes to the sender.
    pub(super) fn resolve(&mut self, cx: &mut Context<'_>) {
        let progress = self.stream.acknowledged();
        let resolved = self.stream.resolve(cx.now, self.reorder_window(cx.config));
        for hole in resolved.holes {
            self.push(cx, What::Hole(hole));
        }
        self.acks.now |= resolved.held || self.stream.acknowledged() > progress;
        let holding = self.stream.holding();
        if let Some(stamps) = self.stamps.as_mut().filter(|_| holding && cx.config.undo.eifel) {
            stamps.hold(cx.now, self.acks.sent, self.stream.highest(), self.rtt.unwrap_or_default());
        }
        if let Some(excess) = resolved.refused {
            return self.abort(cx, Ended::Lossy(excess));
        }
        self.settle(cx);
    }

    /// Gives the rate controller a sample. A segment that `leaps` beyond a gap may have overtaken others, so
    /// its delays are too short.
    fn sample(&mut self, now: Time, segment: &Segment, leaps: bool) {
        let (mut rtt, mut one_way) = (None, None);
        if leaps {
            // Take no RTT sample from this segment.
        } else if let (Some(stamps), Some((value, echo))) = (&mut self.stamps, segment.options.stamps) {
            rtt = stamps.round_trip(now, echo);
            one_way = stamps.one_way(now, value);
        } else if let Some((mark, since)) = self.round {
            // Without timestamps: a full window of data takes at least one round trip.
            rtt = (self.stream.highest() >= mark).then(|| now.saturating_sub(since));
        }
        if self.stamps.is_none() && (rtt.is_some() || self.round.is_none()) {
            self.round = Some((self.right_edge + 1, now));
        }
        if let Some(rtt) = rtt {
            self.rtt = Some(self.rtt.map_or(rtt, |least| least.min(rtt)));
        }
        self.control.arrived(&Sample {
            now,
            delivered: self.stream.delivered,
            lost: self.stream.missing,
            segment: self.segment,
            rtt,
            one_way,
            ce: segment.ce,
            share: self.share,
        });
    }
}
