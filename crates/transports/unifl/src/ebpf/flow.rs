//! One connection of the eBPF back end: its holes, its window, and the bytes that the programs may mask.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use thalweg_masking::Time;
use thalweg_masking::{clock_unit, Control, Rate, Sample, Stats};
use thalweg_tcp::line::{Hole, Holes};
use thalweg_transport::trace::Trace;
use thalweg_wire::{FrameHeader, Kind, Tolerance};

use super::layout::{self, FlowReport, Frames, Key, Wish};
use super::programs::Programs;
use crate::believed;
use crate::content::first;
use crate::settings::Limits;

/// The largest unscaled window (RFC 7323, section 2.2).
const UNSCALED: u64 = 65_535;
/// Segment size if the peer announced none (RFC 9293, section 3.7.1). Timestamps take some bytes of it.
const UNSAID: u16 = 536;
const STAMPS: u16 = 12;
const MICROSECONDS: f64 = 1e6;

pub(super) struct Flow {
    programs: Arc<Programs>,
    key: Key,
    /// The connection's number in the group of flows that share the path.
    member: u32,
    segment: u32,
    limits: Limits,
    inside: Mutex<Inside>,
}

struct Inside {
    control: Box<dyn Control>,
    wish: Wish,
    /// Number of holes that have been passed to the link.
    reported: u64,
    delivered: u64,
    /// For senders without timestamps: the offset whose arrival ends the current round trip, and when the
    /// round trip began.
    round: Option<(u64, Time)>,
    /// The reader's position in the frames, and the offset up to which the programs have followed frames.
    frames: Frames,
    followed: u64,
    trace: Option<Trace>,
}

impl Flow {
    /// Adds a connection whose preamble has not been answered yet. Until it is answered, the client sends
    /// nothing that may be lost. `None` if the programs did not see the connection begin, or have no room for
    /// it.
    pub(super) fn open(
        programs: &Arc<Programs>,
        (remote, local): (SocketAddr, SocketAddr),
        limits: Limits,
        rate: &Rate,
        trace: Option<Trace>,
    ) -> Option<Self> {
        static MEMBERS: AtomicU32 = AtomicU32::new(0);
        let key = layout::key(remote, local);
        let handshake = programs.handshake(&key)?;
        let largest = if handshake.largest == 0 { UNSAID } else { handshake.largest };
        let segment = u32::from(largest.saturating_sub(STAMPS).max(1));
        let control = rate.control(UNSCALED << handshake.scale, segment, None);
        let wish = Wish {
            window: window(&*control),
            budget: (limits.budget * MICROSECONDS) as u32,
            frames: Frames::default(),
            tick: 0,
            scale: handshake.scale,
            first: 0,
            trip: 0,
        };
        programs.open(key, &handshake, &wish).ok()?;
        let inside = Inside {
            control,
            wish,
            reported: 0,
            delivered: 0,
            round: None,
            frames: Frames::default(),
            followed: u64::MAX,
            trace,
        };
        let member = MEMBERS.fetch_add(1, Ordering::Relaxed);
        Some(Self { programs: programs.clone(), key, member, segment, limits, inside: Mutex::new(inside) })
    }
}

fn window(control: &dyn Control) -> u32 {
    u32::try_from(control.window()).unwrap_or(u32::MAX)
}

impl Holes for Flow {
    fn take(&self) -> io::Result<Vec<Hole>> {
        let mut inside = self.inside();
        let (seen, holes) = self.programs.look(&self.key, inside.reported + 1)?;
        inside.reported += holes.len() as u64;
        inside.followed = seen.frames.head;
        bearable(&self.limits, &seen)?;
        let before = inside.wish;
        if seen.delivered > inside.delivered {
            inside.delivered = seen.delivered;
            let now = self.programs.now();
            let share = self.programs.share(now, self.member, inside.control.share());
            let round = inside.round(&seen, now);
            let sample = sample(&seen, self.segment);
            let rtt = sample.rtt.or(round);
            inside.steer(&Sample { now, share, rtt, ..sample }, &seen);
            inside.note(&seen);
        }
        if inside.wish != before {
            self.programs.wish(self.key, &inside.wish)?;
        }
        Ok(holes)
    }

    fn header(&self, offset: u64, header: &FrameHeader) {
        let mut inside = self.inside();
        inside.frames = inside.frames.after(offset, header);
        // If the programs are ahead of the reader, they have read this header themselves.
        if inside.followed < offset {
            inside.followed = inside.frames.head;
            inside.wish.frames = inside.frames;
            // Ignore an error: the programs then mask nothing, and the next call of `take` reports the error.
            let _ = self.programs.wish(self.key, &inside.wish);
        }
    }

    fn tolerate(&self, tolerance: &Tolerance, lines: usize) {
        let mut inside = self.inside();
        inside.wish.first = first(&self.limits, tolerance.bytes() / (lines as u64).max(1)) as u32;
        // Ignore an error: the next call of `take` fails as well.
        let _ = self.programs.wish(self.key, &inside.wish);
        // Ignore an error: if the programs have no room for the ranges, they may mask critical data, and the
        // session requests that data again.
        let _ = self.programs.protect(self.key, tolerance.critical());
    }
}

impl Flow {
    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inside {
    /// An RTT sample for senders without timestamps: a window of data takes at least one round trip.
    fn round(&mut self, seen: &FlowReport, now: Time) -> Option<Time> {
        let next = (seen.right_edge.max(seen.high) + 1, now);
        let (mark, since) = *self.round.get_or_insert(next);
        if seen.stamped || seen.high < mark {
            return None;
        }
        self.round = Some(next);
        Some(now.saturating_sub(since))
    }

    fn note(&mut self, seen: &FlowReport) {
        let Some(trace) = &mut self.trace else { return };
        let stats = Stats {
            delivered: seen.delivered,
            missing: seen.masked,
            window: self.control.window(),
            rate: self.control.share().rate,
            ramping: self.control.ramping(),
            rtt: Some(Time::from_micros(self.wish.trip)).filter(|trip| !trip.is_zero()),
            ..Stats::default()
        };
        trace.note(|at| believed::json(at, &stats));
    }

    fn steer(&mut self, sample: &Sample, seen: &FlowReport) {
        self.control.arrived(sample);
        self.wish.window = window(&*self.control);
        if let Some(rtt) = sample.rtt.map(|rtt| rtt.as_micros() as u64).filter(|&rtt| rtt > 0) {
            self.wish.trip = if self.wish.trip == 0 { rtt } else { self.wish.trip.min(rtt) };
        }
        if self.wish.tick == 0 {
            let unit = clock_unit(seen.ticks as f64, Duration::from_micros(seen.watched));
            self.wish.tick = unit.map_or(0, |unit| (MICROSECONDS / unit) as u64);
        }
    }
}

impl Frames {
    /// The position after a header that ends at `offset`.
    fn after(self, offset: u64, header: &FrameHeader) -> Self {
        let head = offset + u64::from(header.chunk.length);
        if header.kind != Kind::Chunk {
            return Self { head, payload: head, ..self };
        }
        let update = u64::from(header.chunk.round) << 32 | u64::from(header.chunk.sender);
        let same = update == self.update && self.update_from > 0;
        let update_from = if same { self.update_from } else { offset };
        let top = if same { self.top } else { 0 };
        let chunk = header.chunk.range();
        // A chunk that was requested again must not be lost.
        let payload = if chunk.start < top { head } else { offset };
        Self { head, payload, update, update_from, offset: chunk.start, top: chunk.end.max(top) }
    }
}

/// The sample for the rate controller.
fn sample(seen: &FlowReport, segment: u32) -> Sample {
    Sample {
        now: Duration::ZERO,
        delivered: seen.delivered,
        lost: seen.masked,
        segment,
        rtt: seen.trip.map(Duration::from_micros),
        one_way: seen.way.map(|way| way as f64 / MICROSECONDS),
        ce: false,
        share: None,
    }
}

/// Checks that the update has lost no more than `refuse` allows.
fn bearable(limits: &Limits, seen: &FlowReport) -> io::Result<()> {
    let of = seen.high.saturating_sub(seen.frames.update_from);
    let lost = seen.update_lost;
    if seen.frames.update_from > 0 && lost as f64 > limits.refuse * of as f64 {
        let why = format!("{lost} of {of} bytes were lost on the way, more than `refuse` allows");
        return Err(io::Error::new(io::ErrorKind::ConnectionAborted, why));
    }
    Ok(())
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.programs.leave(self.key, self.member);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// Test vectors that the eBPF programs must pass too, so that each can continue where the other stopped.
    #[test]
    fn frames_are_followed_as_the_vectors_say() {
        let vectors = include_str!("../../../../masking/tests/vectors/frames.json");
        let vectors: Value = serde_json::from_str(vectors).unwrap();
        let cases = vectors["cases"].as_array().unwrap();
        assert!(!cases.is_empty());
        for case in cases {
            let mut frames = Frames::default();
            for step in case["steps"].as_array().unwrap() {
                let hex = step["header"].as_str().unwrap();
                let pairs = (0..hex.len()).step_by(2);
                let header: Vec<u8> =
                    pairs.map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
                let end = step["at"].as_u64().unwrap() + header.len() as u64;
                frames = frames.after(end, &FrameHeader::decode(&header).unwrap());
                let position = serde_json::json!({
                    "head": frames.head,
                    "payload": frames.payload,
                    "update_from": frames.update_from,
                    "offset": frames.offset,
                    "top": frames.top,
                });
                assert_eq!(position, step["expect"], "{}: {step}", case["name"]);
            }
        }
    }
}
