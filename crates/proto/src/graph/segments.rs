//! Averaging by segments, on a full graph with equal weights: a reduce-scatter and an all-gather.
//!
//! If all nodes mix by the same weights, all get the same mean, so each byte of it needs to be computed only
//! once. Each node owns one segment of the model; the order of the nodes' names decides which. It receives
//! this segment of all other models, averages it, and sends the mean to all others. So in an iteration a node
//! sends 2 (n - 1) / n models instead of n - 1.
//!
//! Each node sends two parcels in an iteration. The parcel `round` is its own model, as without segments, but
//! each neighbour gets only the segment that it owns. The parcel `round | MEAN` is the mean of the node's
//! segment. A segment is cut into pieces: the mean of a piece is sent as soon as all contributions to it have
//! arrived.
//!
//! A node falls back to whole models for an iteration if this fails: a neighbour is missing or sends whole
//! models, or a value is not finite. It then asks its neighbours for the rest of their models, which they
//! keep until it has confirmed the iteration. From this request a neighbour learns that it gets no mean, and
//! falls back too, unless it already has all means. After [`MAX_FAILURES`] such iterations in a row, the node
//! averages by segments only in iterations whose number is a multiple of [`RETRY_INTERVAL`]. The number
//! decides, so all nodes retry in the same iterations, even if a node does not learn that others have
//! connected again.

use std::collections::{BTreeSet, VecDeque};

use thalweg_wire::control::Control;
use thalweg_wire::{ChunkHeader, LayoutHash, Range, Ranges};

use super::announced::Weights;
use super::node::{Node, Stage};
use super::peer::{Exchange, Outcome, Place};
use super::terms::{Taken, Waiting};
use super::weighing::Weighing;
use crate::session::{Action, ClientAction};
use crate::transfer::{Incoming, Step};
use crate::{Fit, Span, Time};

/// The bit that marks the parcel number of an iteration's mean.
pub const MEAN: u32 = 1 << 31;
/// Segments begin and end at multiples of this many bytes, so that no value is cut.
const UNIT: u64 = 64;
/// A segment is cut into at least this many pieces, unless they would be smaller than [`MIN_PIECE`].
const MIN_PIECES: u64 = 4;
/// Minimum and maximum size of a piece, in bytes. Smaller pieces cost more sends: one to each neighbour for
/// each piece.
const MIN_PIECE: u64 = 16 << 10;
const MAX_PIECE: u64 = 1 << 20;
/// With fewer nodes, segments save nothing.
const MIN_NODES: usize = 3;
/// After this many iterations in a row that fell back, the node exchanges whole models, except in iterations
/// whose number is a multiple of `RETRY_INTERVAL`.
const MAX_FAILURES: u32 = 3;
const RETRY_INTERVAL: u32 = 16;
/// Weights count as equal if they differ by at most this fraction.
const WEIGHT_TOLERANCE: f64 = 1e-9;

/// A node's state for averaging by segments.
#[derive(Debug, Default)]
pub(super) struct Segments {
    /// The current iteration and later ones in which this node exchanges whole models.
    whole: BTreeSet<u32>,
    /// Number of iterations in a row that fell back.
    failures: u32,
    /// The iteration that is being averaged by segments, or the last one that was.
    open: Option<Open>,
    /// The own model's weight, in the unit of the neighbours' weights. `None`: 1 minus the sum of the
    /// neighbours' weights.
    own: Option<f64>,
    /// Ranges of the current iteration's sums that include the own model.
    averaged: Ranges,
}

/// An iteration that is averaged by segments.
#[derive(Debug)]
struct Open {
    round: u32,
    /// The layout hash of the mean's chunks, and their maximum size. They are stored here because the mean
    /// may be sent again after the next iteration has begun with another group of nodes.
    hash: LayoutHash,
    chunk: u64,
    /// The pieces of the node's own segment.
    pieces: Vec<Piece>,
    /// Indices of pieces to average.
    due: VecDeque<usize>,
    /// The averaged ranges.
    done: Ranges,
    /// Number of pieces that are not averaged yet.
    left: usize,
}

#[derive(Debug)]
struct Piece {
    range: Range,
    /// All contributions have arrived.
    full: bool,
}

/// The mean of this node's segment on its way to a neighbour.
#[derive(Debug, Default)]
pub(super) struct Passing {
    round: u32,
    waiting: Ranges,
    /// Number of End messages to send after the waiting ranges.
    ends: u32,
    /// Number of End messages to send after the range that is being sent; `None` if no range is being sent.
    sending: Option<u32>,
}

impl Passing {
    fn begin(&mut self, round: u32) {
        *self = Self { round, ..Self::default() };
    }

    /// The next range to send. `None` if one is being sent, or none waits.
    fn next(&mut self) -> Option<Range> {
        let first = self.waiting.iter().next().filter(|_| self.sending.is_none())?;
        self.waiting.trim(first.end);
        self.sending = Some(if self.waiting.is_empty() { std::mem::take(&mut self.ends) } else { 0 });
        Some(first)
    }

    /// Drops the waiting ranges and Ends. The range that is being sent continues.
    fn stop(&mut self) {
        (self.waiting, self.ends) = (Ranges::new(), 0);
        self.sending = self.sending.map(|_| 0);
    }

    pub fn is_sending(&self) -> bool {
        self.sending.is_some()
    }

    pub fn is_busy(&self) -> bool {
        self.is_sending() || self.ends > 0 || !self.waiting.is_empty()
    }
}

/// The part of `ranges` that the node with this `rank` owns. The parts of `nodes` nodes differ in size by one
/// unit at most.
fn cut(ranges: &Ranges, rank: usize, nodes: usize) -> Ranges {
    let units: u64 = ranges.iter().map(|range| range.len().div_ceil(UNIT)).sum();
    let border = |rank: usize| (u128::from(units) * rank as u128 / nodes.max(1) as u128) as u64;
    let (first, end) = (border(rank), border(rank + 1));
    let mut before = 0;
    let mut part = Ranges::new();
    for range in ranges.iter() {
        let count = range.len().div_ceil(UNIT);
        let at = |unit: u64| {
            (range.start + unit.clamp(before, before + count).saturating_sub(before) * UNIT).min(range.end)
        };
        let piece = Range::new(at(first), at(end));
        if !piece.is_empty() {
            part.insert(piece);
        }
        before += count;
    }
    part
}

/// Bytes of a piece of this segment.
fn piece_size(segment: &Ranges) -> u64 {
    (segment.bytes() / MIN_PIECES).next_multiple_of(UNIT).clamp(MIN_PIECE, MAX_PIECE)
}

fn cut_to_pieces(segment: &Ranges) -> Vec<Piece> {
    let size = piece_size(segment);
    let mut pieces = Vec::new();
    for range in segment.iter() {
        let mut at = range.start;
        while at < range.end {
            let next = (at / size + 1).saturating_mul(size).min(range.end);
            pieces.push(Piece { range: Range::new(at, next), full: false });
            at = next;
        }
    }
    pieces
}

fn is_within(ranges: &Ranges, range: Range) -> bool {
    range.is_empty() || ranges.covers(range)
}

/// The iteration of which this parcel is the mean.
fn round_of_mean(parcel: u32) -> Option<u32> {
    (parcel & MEAN != 0).then_some(parcel & !MEAN)
}

impl Node {
    /// Sets the own model's weight, in the unit of the weights of [`Node::begin`]. `None`: 1 minus the sum of
    /// those.
    pub fn weigh_own(&mut self, weight: Option<f64>) {
        self.segments.own = weight;
    }

    /// Whether an iteration's graph and weights allow averaging by segments. All nodes of the group come to
    /// the same answer.
    fn may_segment(&self, round: u32) -> bool {
        let Some(least) = self.config.segments else { return false };
        let plain = self.config.waiting == Waiting::All && self.config.weighing == Weighing::Arrival;
        if !plain || self.announced.changes || self.targets.is_some() {
            return false;
        }
        let Some(weights) = self.announced.of(round) else { return false };
        let nodes = weights.len() + 1;
        if nodes < MIN_NODES || !self.is_uniform(weights) {
            return false;
        }
        let (nodes, bytes) = (nodes as u128, u128::from(self.size().wanted(round).bytes()));
        bytes * (nodes - 1) * (nodes - 2) / nodes >= u128::from(least)
    }

    fn is_uniform(&self, weights: &Weights) -> bool {
        let own = self.segments.own.unwrap_or(1.0 / (weights.len() + 1) as f64);
        weights.values().all(|weight| (weight - own).abs() <= WEIGHT_TOLERANCE * own)
    }

    /// Whether this node averages an iteration by segments, unless it falls back later.
    pub(super) fn by_segments(&self, round: u32) -> bool {
        !self.segments.whole.contains(&round) && self.may_segment(round)
    }

    /// Whether this node is averaging this iteration by segments now.
    pub(super) fn is_averaging(&self, round: u32) -> bool {
        self.stage == Stage::Waiting && self.segments.open.as_ref().is_some_and(|open| open.round == round)
    }

    /// The ranges of models that are sent in an iteration.
    pub fn sent_ranges(&self, round: u32) -> Ranges {
        self.size().wanted(round)
    }

    /// The names of the nodes that average together, in order.
    fn group(&self, round: u32) -> BTreeSet<&str> {
        let weights = self.announced.of(round).into_iter().flat_map(Weights::keys);
        let others = weights.map(|&index| self.peers[index].name.as_str());
        others.chain([self.config.name.as_str()]).collect()
    }

    /// How many nodes average together in an iteration, this one included.
    pub fn group_size(&self, round: u32) -> usize {
        self.announced.of(round).map_or(0, Weights::len) + 1
    }

    fn segment_of(&self, round: u32, name: &str) -> Ranges {
        let group = self.group(round);
        let rank = group.iter().take_while(|other| **other < name).count();
        cut(&self.size().wanted(round), rank, group.len())
    }

    pub(super) fn own_segment(&self, round: u32) -> Ranges {
        self.segment_of(round, &self.config.name)
    }

    /// The segment that a neighbour owns.
    pub(super) fn segment(&self, round: u32, index: usize) -> Ranges {
        self.segment_of(round, &self.peers[index].name)
    }

    /// The hash that chunks of a parcel name as their layout. A mean names its group too, so that nodes with
    /// other neighbours do not use it.
    pub fn layout_of(&self, parcel: u32) -> LayoutHash {
        let layout = self.config.layout.hash();
        let Some(round) = round_of_mean(parcel) else { return layout };
        let open = self.segments.open.as_ref().filter(|open| open.round == round);
        open.map_or_else(|| layout.of_group(self.group(round)), |open| open.hash)
    }

    /// Maximum number of payload bytes in a chunk of a parcel; `None`: as in other parcels. A piece can be
    /// averaged only when its chunks have arrived, so a chunk is no larger than a piece.
    pub fn chunk_of(&self, parcel: u32) -> Option<u32> {
        let open = self.segments.open.as_ref().filter(|open| open.round == parcel & !MEAN)?;
        u32::try_from(open.chunk).ok()
    }

    /// The ranges that each neighbour sends of its model in an iteration; `None`: all.
    pub(super) fn expected_of(&self, round: u32) -> Option<Ranges> {
        if self.by_segments(round) {
            return Some(self.own_segment(round));
        }
        self.size().part(round)
    }

    /// Prepares for an iteration that begins.
    pub(super) fn begin_segments(&mut self, now: Time, round: u32) {
        self.segments.whole.retain(|&of| of >= round);
        self.segments.averaged = Ranges::new();
        let part = self.expected_of(round);
        let fits = |peer: &super::peer::Peer| {
            let arrival = peer.arrivals.get(&round);
            arrival.is_none_or(|arrival| arrival.incoming.reassembly().part() == part.as_ref())
        };
        // A model may have begun to arrive while the node expected other ranges, because of other weights.
        let waits = self.segments.failures >= MAX_FAILURES && !round.is_multiple_of(RETRY_INTERVAL);
        if waits || !self.peers.iter().all(fits) {
            self.fall_back(now, round);
        }
    }

    /// Begins to average by segments, or falls back if a neighbour does not take part. Call it when the own
    /// model is ready.
    pub(super) fn open_segments(&mut self, now: Time, round: u32) {
        if !self.by_segments(round) {
            return;
        }
        let takes_part = |&index: &usize| self.peers[index].met && self.peers[index].from <= round;
        if self.fresh || !self.weights.keys().all(takes_part) {
            return self.fall_back(now, round);
        }
        for index in self.weights.keys().copied().collect::<Vec<_>>() {
            let (segment, bytes) = (self.segment(round, index), self.bytes());
            let peer = &mut self.peers[index];
            let mut mean = Incoming::new(bytes);
            mean.reassembly_mut().expect(segment);
            mean.begin(peer.ordered);
            peer.mean = Some(mean);
            peer.passing.begin(round);
        }
        let own = self.own_segment(round);
        let (hash, chunk, pieces) = (self.layout_of(round | MEAN), piece_size(&own), cut_to_pieces(&own));
        let (due, done, left) = (VecDeque::new(), Ranges::new(), pieces.len());
        self.segments.open = Some(Open { round, hash, chunk, pieces, due, done, left });
    }

    /// Finds pieces that are complete already when the own model's segments are being sent.
    pub(super) fn look_at_pieces(&mut self, round: u32) {
        if !self.is_averaging(round) {
            return;
        }
        self.contributed(round, Range::new(0, u64::MAX));
        if self.segments.open.as_ref().is_some_and(|open| open.left == 0) {
            self.pass_on(round, None); // its segment is empty
        }
    }

    /// Finds pieces of `range` that are complete, after contributions to it have been added to the sums.
    pub(super) fn contributed(&mut self, round: u32, range: Range) {
        let Self { segments, peers, weights, .. } = self;
        let Some(open) = segments.open.as_mut() else { return };
        let first = open.pieces.partition_point(|piece| piece.range.end <= range.start);
        for (index, piece) in open.pieces.iter_mut().enumerate().skip(first) {
            if piece.range.start >= range.end {
                break;
            }
            let has = |peer: &usize| {
                let arrival = peers[*peer].arrivals.get(&round);
                arrival.is_some_and(|arrival| arrival.incoming.reassembly().received().covers(piece.range))
            };
            if !piece.full && weights.keys().all(has) {
                piece.full = true;
                open.due.push_back(index);
            }
        }
    }

    /// A range that the driver must average now, with its iteration. The driver mixes the own model into the
    /// sums of this range, writes the mean to the memory from which it sends the parcel `round | MEAN`, and
    /// calls [`Node::averaged`].
    pub fn due(&mut self) -> Option<(u32, Range)> {
        if !self.is_averaging(self.round) {
            return None;
        }
        let open = self.segments.open.as_mut()?;
        let index = open.due.pop_front()?;
        Some((open.round, open.pieces[index].range))
    }

    /// Reports that a range that [`Node::due`] returned was averaged (`ok`), or that its sums give no model.
    pub fn averaged(&mut self, now: Time, round: u32, range: Range, ok: bool) {
        if ok && round == self.round {
            self.segments.averaged.insert(range);
        }
        if !self.is_averaging(round) {
            return;
        }
        if !ok {
            return self.fall_back(now, round);
        }
        if let Some(open) = &mut self.segments.open {
            open.done.insert(range);
            open.left = open.left.saturating_sub(1);
        }
        self.pass_on(round, Some(range));
        self.advance(now);
    }

    /// The ranges of the current iteration's sums that include the own model, because they were averaged
    /// before the node fell back.
    pub fn averaged_ranges(&self) -> &Ranges {
        &self.segments.averaged
    }

    /// Sends a range of this segment's mean to all neighbours.
    fn pass_on(&mut self, round: u32, range: Option<Range>) {
        let Some(open) = self.segments.open.as_ref().filter(|open| open.round == round) else { return };
        let last = open.left == 0;
        for index in self.targets_in_turn() {
            let passing = &mut self.peers[index].passing;
            range.into_iter().for_each(|range| _ = passing.waiting.insert(range));
            passing.ends += u32::from(last);
            self.send_next(index);
        }
    }

    /// Sends a neighbour the next range of the mean. Call it only if nothing else is being sent to this
    /// neighbour.
    pub(super) fn pass_next(&mut self, index: usize) {
        let link = self.link_of(index);
        let passing = &mut self.peers[index].passing;
        let parcel = passing.round | MEAN;
        if let Some(range) = passing.next() {
            let wanted = Ranges::from_iter([range]);
            match link {
                Some(link) => self.roster.act(Action::SendParcel {
                    links: vec![link],
                    parcel,
                    difference: false,
                    wanted,
                }),
                None => self.dial_act(index, ClientAction::SendParcel { parcel, wanted }),
            }
        } else if !passing.is_sending() {
            let ends = std::mem::take(&mut passing.ends);
            self.tell_ends(index, parcel, ends, Span::default());
        }
    }

    fn tell_ends(&mut self, index: usize, parcel: u32, ends: u32, span: Span) {
        let sent = crate::transfer::interval(span);
        (0..ends).for_each(|_| self.tell(index, Control::End { parcel, sent }));
    }

    /// Handles the report that a range was sent. Returns false if the parcel is no mean.
    pub(super) fn mean_was_sent(&mut self, index: usize, parcel: u32, span: Span) -> bool {
        let Some(round) = round_of_mean(parcel) else { return false };
        let passing = &mut self.peers[index].passing;
        if passing.round == round {
            if let Some(ends) = passing.sending.take() {
                self.tell_ends(index, parcel, ends, span);
                self.send_next(index);
            }
        }
        true
    }

    /// Handles a neighbour's message. Returns false if it is not about a mean.
    pub(super) fn handle_mean_message(&mut self, now: Time, index: usize, message: &Control) -> bool {
        match *message {
            Control::End { parcel, .. } => {
                // A mean needs this node's contribution, so there is none of a later iteration.
                let round = round_of_mean(parcel).filter(|&round| round <= self.round);
                let Some(round) = round else { return false };
                self.mean_ended(now, index, round);
                true
            }
            Control::Grant { parcel, ref wanted } => {
                let Some(round) = round_of_mean(parcel) else { return false };
                self.mean_granted(index, round, wanted);
                true
            }
            _ => false,
        }
    }

    fn mean_ended(&mut self, now: Time, index: usize, round: u32) {
        if !self.is_averaging(round) {
            return;
        }
        let Some(mean) = &mut self.peers[index].mean else { return };
        if mean.ended(now) {
            self.conclude_mean(now, index);
        } else {
            self.timer_set = true;
        }
    }

    /// Asks for ranges of a neighbour's mean that were lost.
    pub(super) fn conclude_mean(&mut self, now: Time, index: usize) {
        let round = self.round;
        let Some(mean) = self.peers[index].mean.as_mut() else { return };
        match mean.conclude(now, &self.rule) {
            Step::Wait => self.timer_set = true,
            Step::Ask(wanted) => self.tell(index, Control::Grant { parcel: round | MEAN, wanted }),
            Step::Here(_) => self.advance(now),
        }
    }

    /// A neighbour asks for ranges of this node's mean.
    fn mean_granted(&mut self, index: usize, round: u32, wanted: &Ranges) {
        let Some(open) = self.segments.open.as_ref().filter(|open| open.round == round) else { return };
        let passing = &mut self.peers[index].passing;
        if passing.round != round {
            return;
        }
        for part in wanted.iter().flat_map(|range| open.done.within(range)) {
            passing.waiting.insert(part);
        }
        passing.ends = passing.ends.saturating_add(1);
        self.send_next(index);
    }

    /// Decides whether a chunk of a mean may be used. Returns its sender's index and the iteration.
    fn wanted_mean(&mut self, now: Time, index: usize, chunk: &ChunkHeader) -> Option<u32> {
        let round = round_of_mean(chunk.round)?;
        if !self.is_averaging(round) {
            let late = round <= self.round;
            self.peers[index].late += u64::from(late);
            // A mean of a later iteration would need this node's contribution, which it has not sent.
            self.bad += u64::from(!late);
            return None;
        }
        if chunk.layout != self.layout_of(chunk.round) {
            self.fall_back(now, round); // the neighbour averages with other nodes than this one
            return None;
        }
        let cut = self.config.layout.cut_by(chunk.range()).is_some();
        if cut || !is_within(&self.segment(round, index), chunk.range()) {
            self.bad += 1;
            return None;
        }
        Some(round)
    }

    /// Decides where the driver puts a chunk of a mean.
    pub(super) fn place_mean(&mut self, now: Time, index: usize, chunk: &ChunkHeader) -> Place {
        if self.wanted_mean(now, index, chunk).is_none() {
            return Place::Nothing;
        }
        let Some(mean) = &mut self.peers[index].mean else { return Place::Nothing };
        match mean.fit(now, chunk.range()) {
            Fit::New => Place::Mean { fresh: true },
            Fit::Part => Place::Mean { fresh: false },
            Fit::Nothing => Place::Nothing,
        }
    }

    /// A chunk of a mean was received intact (`ok`) or damaged.
    pub(super) fn mean_stored(
        &mut self,
        now: Time,
        index: usize,
        chunk: &ChunkHeader,
        ok: bool,
    ) -> Option<Taken> {
        let round = self.wanted_mean(now, index, chunk)?;
        let mean = self.peers[index].mean.as_mut()?;
        if !ok {
            mean.reassembly_mut().corrupt();
            return None;
        }
        let fresh = mean.reassembly_mut().fold(now, chunk.range());
        (!fresh.is_empty()).then_some(Taken { peer: index, round, weight: 0.0, mean: true, fresh })
    }

    /// Reports that ranges of a mean, which [`Node::stored`] returned, were copied (`ok`), or that their
    /// values cannot be used.
    pub fn mean_kept(&mut self, now: Time, index: usize, round: u32, parts: &[Range], ok: bool) {
        if !self.is_averaging(round) {
            return;
        }
        let Some(mean) = self.peers.get_mut(index).and_then(|peer| peer.mean.as_mut()) else { return };
        mean.reassembly_mut().settle(parts, ok);
        if !ok {
            self.bad += 1;
            return self.fall_back(now, round); // a retransmission would have the same values
        }
        if mean.reassembly().is_whole() {
            mean.stop();
        } else {
            mean.trails(now);
        }
        self.advance(now);
    }

    /// Whether all means of the iteration have arrived.
    pub(super) fn has_all_means(&self) -> bool {
        let averaged = self.segments.open.as_ref().is_some_and(|open| open.left == 0);
        let whole = |index: &usize| {
            let mean = self.peers[*index].mean.as_ref();
            mean.is_some_and(|mean| mean.reassembly().is_whole() && !mean.reassembly().is_folding())
        };
        averaged && self.weights.keys().all(whole)
    }

    /// Ends the averaging of an iteration whose means have all arrived. Tells the neighbours that they need
    /// not keep their models any longer.
    pub(super) fn close_segments(&mut self, now: Time, round: u32) {
        self.segments.failures = 0;
        for index in self.weights.keys().copied().collect::<Vec<_>>() {
            self.acknowledge(now, index, round);
        }
    }

    /// Lets the next iteration average by segments again, after a neighbour has connected or the weights have
    /// changed.
    pub(super) fn retry_segments(&mut self) {
        self.segments.failures = 0;
    }

    /// Ends an iteration that was averaged by segments. Returns what each neighbour contributed.
    pub(super) fn mixed_by_segments(&mut self) -> Vec<Exchange> {
        let (round, own, chunk) =
            (self.round, self.own_segment(self.round), u64::from(self.config.chunk.max(1)));
        let chunks = |ranges: &Ranges| -> u64 {
            ranges.iter().map(|range| range.end.div_ceil(chunk) - range.start / chunk).sum()
        };
        let mut exchanges = Vec::new();
        for (index, weight) in
            self.weights.iter().map(|(&index, &weight)| (index, weight)).collect::<Vec<_>>()
        {
            let segment = self.segment(round, index);
            let peer = &mut self.peers[index];
            let (arrival, mean) = (peer.arrivals.remove(&round), peer.mean.take());
            let models = [
                arrival.as_ref().map(|arrival| arrival.incoming.reassembly()),
                mean.as_ref().map(Incoming::reassembly),
            ];
            let faults = models.iter().flatten().map(|model| model.faults());
            let (duplicates, corrupt) = faults.fold((0, 0), |sum, each| (sum.0 + each.0, sum.1 + each.1));
            let spans = || models.iter().flatten().filter_map(|model| model.span());
            let span = spans().map(|span| span.start).min().zip(spans().map(|span| span.end).max());
            let (bytes, count) = (own.bytes() + segment.bytes(), chunks(&own) + chunks(&segment));
            exchanges.push(Exchange {
                peer: peer.name.clone(),
                weight,
                bytes,
                expected: bytes,
                chunks_expected: count,
                chunks: count,
                duplicates,
                corrupt,
                late: std::mem::take(&mut peer.late),
                span,
                newest: peer.newest,
                outcome: Outcome::Whole,
            });
        }
        (self.stage, self.completed) = (Stage::Idle, true);
        exchanges
    }

    /// Falls back if `otherwise`: a neighbour has done something that a node which averages by segments never
    /// does.
    pub(super) fn fall_back_if(&mut self, now: Time, round: u32, otherwise: bool) {
        let still = self.is_averaging(round)
            || round > self.round
            || round == self.round && self.stage == Stage::Training;
        if otherwise && still && self.by_segments(round) {
            self.fall_back(now, round);
        }
    }

    /// Exchanges whole models in this iteration. Asks each neighbour for the rest of its model.
    pub(super) fn fall_back(&mut self, now: Time, round: u32) {
        let possible = self.may_segment(round);
        if !self.segments.whole.insert(round) {
            return;
        }
        if round == self.round && possible {
            self.segments.failures = self.segments.failures.saturating_add(1);
        }
        if self.is_averaging(round) {
            self.segments.open = None;
            for peer in &mut self.peers {
                peer.mean = None;
                peer.passing.stop();
            }
        }
        let part = self.size().part(round);
        for index in 0..self.peers.len() {
            let peer = &mut self.peers[index];
            let (met, ended, left_behind) = (peer.met, peer.ended >= round, peer.newest > round);
            let Some(arrival) = peer.arrivals.get_mut(&round) else { continue };
            arrival.incoming.reassembly_mut().expect_all(part.clone());
            let reassembly = arrival.incoming.reassembly();
            if reassembly.is_whole() && !reassembly.is_folding() {
                self.over(now, index, round);
                continue;
            }
            arrival.over = false;
            if !met || !ended && !left_behind {
                continue; // the request follows its End
            }
            if arrival.incoming.is_first() {
                self.ends(now, index, round);
            } else {
                self.conclude(now, index, round);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_follow_one_another_and_come_to_the_whole() {
        let parted: Ranges = [Range::new(0, 128), Range::new(512, 1000)].into_iter().collect();
        for ranges in [Ranges::full(0), Ranges::full(8), Ranges::full(1600), Ranges::full(64 * 7), parted] {
            for nodes in [1, 2, 3, 5, 16] {
                let parts: Vec<Ranges> = (0..nodes).map(|rank| cut(&ranges, rank, nodes)).collect();
                let mut all = Ranges::new();
                for range in parts.iter().flat_map(Ranges::iter) {
                    assert_eq!(all.insert(range), [range], "no byte has two owners");
                    assert!(
                        range.start % UNIT == 0
                            && (range.end % UNIT == 0 || ranges.iter().any(|r| r.end == range.end))
                    );
                }
                assert_eq!(all, ranges, "{nodes}");
                let sizes = parts.iter().map(|part| part.bytes().div_ceil(UNIT));
                assert!(sizes.clone().max().unwrap() - sizes.min().unwrap() <= 1, "{parts:?}");
            }
        }
    }

    #[test]
    fn a_mean_is_passed_on_range_by_range_and_each_end_follows_its_ranges() {
        let mut passing = Passing::default();
        passing.begin(3);
        assert!(passing.next().is_none() && !passing.is_busy());
        passing.waiting.insert(Range::new(64, 128));
        assert_eq!(passing.next(), Some(Range::new(64, 128)));
        passing.waiting.insert(Range::new(0, 64));
        passing.waiting.insert(Range::new(192, 256));
        passing.ends += 1;
        assert_eq!(passing.next(), None, "one at a time");
        assert_eq!(passing.sending.take(), Some(0));
        assert_eq!(passing.next(), Some(Range::new(0, 64)));
        assert_eq!(passing.sending.take(), Some(0), "another range is still to come");
        assert_eq!(passing.next(), Some(Range::new(192, 256)));
        assert_eq!(passing.sending, Some(1));
        passing.stop();
        assert_eq!((passing.sending.take(), passing.is_busy()), (Some(0), false));
    }
}
