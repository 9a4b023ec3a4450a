//! Models that are received from neighbours and sent to them.

use thalweg_wire::control::{Control, Interval};
use thalweg_wire::{ChunkHeader, Range, Ranges};

use super::node::Node;
use super::peer::{Arrival, Place, Way};
use super::segments::MEAN;
use super::terms::{Neighbour, Taken};
use super::weighing::Weighing;
use crate::session::{Action, ClientAction};
use crate::transfer::Step;
use crate::{micros, Fit, Span, Time};

impl Node {
    /// The index in `peers` of a neighbour that is connected.
    pub(super) fn resolve(&self, who: Neighbour) -> Option<usize> {
        let index = match who {
            Neighbour::Link(link) => *self.numbers.get(&self.roster.member_at(link)?)?,
            Neighbour::Dialled(index) => index,
        };
        self.peers.get(index).filter(|peer| peer.met).map(|_| index)
    }

    /// Decides whether a chunk may be added. Returns its sender's index in `peers`, its iteration and the
    /// sender's weight. Counts the chunks that it rejects.
    fn wanted(&mut self, now: Time, who: Neighbour, chunk: &ChunkHeader) -> Option<(usize, u32, f64)> {
        let index = self.resolve(who)?;
        let number = match self.peers[index].way {
            Way::Accepted(number) => number,
            Way::Dialled(_) => 0,
        };
        let ours = chunk.job == self.config.job && chunk.layout == self.config.layout.hash();
        let cut = self.config.layout.cut_by(chunk.range()).is_some();
        let beyond = chunk.range().end > self.bytes() || chunk.round > self.last();
        if !ours || cut || chunk.sender != number || beyond {
            self.bad += 1;
            return None;
        }
        let (round, low, top) = (chunk.round, self.low(), self.top());
        self.note_progress(now, index, round);
        let range = self.size().within(round, chunk.range());
        self.peers[index].course.note(now, round, range);
        if round < low {
            self.peers[index].late += 1;
            return None;
        }
        let weight = self.weight(index, round);
        if round > top || weight.is_none() {
            self.early += 1;
        }
        let weight = weight.filter(|_| round <= top)?;
        if self.by_segments(round) {
            let ours = self.own_segment(round).covers(chunk.range());
            self.fall_back_if(now, round, !ours);
        }
        Some((index, round, weight))
    }

    /// The index of the sender of a chunk of a mean, if it is a neighbour of this job.
    fn mean_from(&self, who: Neighbour, chunk: &ChunkHeader) -> Option<usize> {
        let index = self.resolve(who).filter(|_| chunk.round & MEAN != 0)?;
        let number = match self.peers[index].way {
            Way::Accepted(number) => number,
            Way::Dialled(_) => 0,
        };
        (chunk.job == self.config.job && chunk.sender == number).then_some(index)
    }

    /// A neighbour's model of this iteration, while it is received. Creates the entry if there is none.
    pub(super) fn arrival(&mut self, index: usize, round: u32) -> &mut Arrival {
        let known = self.peers[index].arrivals.contains_key(&round);
        let part = if known { None } else { self.expected_of(round) };
        let bytes = self.bytes();
        let peer = &mut self.peers[index];
        let ordered = peer.ordered;
        peer.arrivals.entry(round).or_insert_with(|| Arrival::new(bytes, part, ordered))
    }

    /// Notes that a neighbour has sent a chunk or an End of an iteration. The neighbour then sends no more of
    /// earlier ones.
    fn note_progress(&mut self, now: Time, index: usize, round: u32) {
        self.peers[index].begun = self.peers[index].begun.max(round);
        if round > self.peers[index].newest {
            self.judge(index, self.peers[index].newest);
            self.peers[index].newest = round;
            if self.low() < round {
                self.look_again(now, index);
                self.advance(now);
            }
        }
    }

    /// Measures the lag of an update whose sender began the next one before it had sent all of this one. An
    /// update that was cut short must not count as early. Otherwise the node would wait less, then cut its
    /// own updates short earlier, and so on.
    fn judge(&mut self, index: usize, round: u32) {
        let peer = &self.peers[index];
        if round == 0 || peer.ended >= round || peer.lag.knows(round) {
            return;
        }
        let lag = match peer.course.complete_at(round, self.size().wanted(round).bytes()) {
            Some(at) => self.pace.lag(at, round),
            None => peer.lag.mean(),
        };
        if let Some(lag) = lag {
            self.peers[index].lag.note(round, lag);
        }
    }

    /// Decides where the driver puts a chunk whose header has arrived.
    pub fn place(&mut self, now: Time, who: Neighbour, chunk: &ChunkHeader) -> Place {
        if let Some(index) = self.mean_from(who, chunk) {
            return self.place_mean(now, index, chunk);
        }
        let Some((index, round, weight)) = self.wanted(now, who, chunk) else { return Place::Nothing };
        let arrival = self.arrival(index, round);
        match arrival.incoming.fit(now, chunk.range()) {
            Fit::New | Fit::Part if self.config.weighing == Weighing::Arrival => {
                Place::Fold { round, weight }
            }
            Fit::New | Fit::Part => Place::Stage { round, peer: index },
            Fit::Nothing => Place::Nothing,
        }
    }

    /// Reports that `bytes` more bytes of chunks have arrived.
    pub fn progress(&mut self, now: Time, who: Neighbour, bytes: u64) {
        match who {
            Neighbour::Link(link) => self.roster.progress(now, link, bytes),
            Neighbour::Dialled(index) => {
                if let Some(dial) = self.dial(index) {
                    dial.progress(now, bytes);
                }
            }
        }
    }

    /// Reports that a chunk was received intact (`ok`) or damaged. Returns its new bytes, which the driver
    /// adds to the sums. The driver then calls [`Node::folded`].
    pub fn stored(&mut self, now: Time, who: Neighbour, chunk: &ChunkHeader, ok: bool) -> Option<Taken> {
        if let Some(index) = self.mean_from(who, chunk) {
            return self.mean_stored(now, index, chunk, ok);
        }
        let (index, round, weight) = self.wanted(now, who, chunk)?;
        let arrival = self.arrival(index, round);
        if !ok {
            arrival.incoming.reassembly_mut().corrupt();
            return None;
        }
        let fresh = arrival.incoming.reassembly_mut().fold(now, chunk.range());
        arrival.chunks += u64::from(!fresh.is_empty());
        (!fresh.is_empty()).then_some(Taken { peer: index, round, weight, mean: false, fresh })
    }

    /// Reports that the ranges that [`Node::stored`] returned were added to the sums (`ok`), or could not be
    /// added because of their values.
    pub fn folded(&mut self, now: Time, index: usize, round: u32, parts: &[Range], ok: bool) {
        self.bad += u64::from(!ok);
        let arrival = self.peers.get_mut(index).and_then(|peer| peer.arrivals.get_mut(&round));
        let Some(arrival) = arrival else { return };
        arrival.incoming.reassembly_mut().settle(parts, ok);
        if ok && self.is_averaging(round) {
            parts.iter().for_each(|part| self.contributed(round, *part));
        }
        self.fall_back_if(now, round, !ok); // there is no mean of such values
        let Some(arrival) = self.peers[index].arrivals.get_mut(&round) else { return };
        if arrival.over {
            return;
        }
        if !ok {
            arrival.chunks = arrival.chunks.saturating_sub(1);
            return self.over(now, index, round); // a retransmission would have the same values
        }
        if arrival.incoming.reassembly().is_whole() && !arrival.incoming.reassembly().is_folding() {
            return self.over(now, index, round);
        }
        arrival.incoming.trails(now);
        self.advance(now);
    }

    /// A neighbour's End has arrived: the neighbour has sent all of its model of an iteration.
    pub(super) fn ended(&mut self, now: Time, index: usize, round: u32) {
        self.note_progress(now, index, round);
        let peer = &mut self.peers[index];
        peer.ended = peer.ended.max(round);
        if round < self.low() {
            if let Some(lag) = self.pace.lag(now, round) {
                self.peers[index].lag.note(round, lag);
            }
            // The neighbour may wait for this acknowledgement, although its model is late.
            return self.acknowledge(now, index, round);
        }
        if round > self.top() || self.weight(index, round).is_none() {
            return; // `look_again` handles this End when the iteration begins
        }
        if !self.arrival(index, round).over {
            self.ends(now, index, round);
        }
    }

    /// Looks at a neighbour's models of all iterations that are accepted now. Ends those whose End arrived
    /// before they were accepted, and those of iterations that the neighbour has left.
    pub(super) fn look_again(&mut self, now: Time, index: usize) {
        let (low, top) = (self.low(), self.top());
        let (newest, ended) = (self.peers[index].newest, self.peers[index].ended);
        for round in low..=top.min(newest.max(ended)) {
            if self.weight(index, round).is_none() || self.peers[index].is_over(round) {
                continue;
            }
            let arrival = self.arrival(index, round);
            let left_behind = newest > round;
            let known = arrival.incoming.settle().is_some();
            if (left_behind || ended >= round) && !known {
                self.ends(now, index, round);
            }
        }
    }

    /// Notes that a neighbour sends no more of its model of an iteration, unless it is asked. Without order
    /// on the link, chunks may still arrive.
    pub(super) fn ends(&mut self, now: Time, index: usize, round: u32) {
        let Some(arrival) = self.peers[index].arrivals.get_mut(&round) else { return };
        if arrival.incoming.ended(now) {
            self.conclude(now, index, round);
        } else {
            self.timer_set = true;
        }
    }

    /// Ends the wait for a neighbour's model if nothing that must come is missing; else asks for the missing
    /// ranges.
    pub(super) fn conclude(&mut self, now: Time, index: usize, round: u32) {
        let left_behind = self.peers[index].newest > round;
        let Some(arrival) = self.peers[index].arrivals.get_mut(&round) else { return };
        match arrival.incoming.conclude(now, &self.rule) {
            Step::Wait => self.timer_set = true,
            // The neighbour has gone on and no longer has these bytes.
            Step::Ask(_) if left_behind => self.over(now, index, round),
            Step::Ask(wanted) => self.tell(index, Control::Grant { parcel: round, wanted }),
            Step::Here(_) => self.over(now, index, round),
        }
    }

    /// Stops waiting for a neighbour's model of an iteration.
    pub(super) fn over(&mut self, now: Time, index: usize, round: u32) {
        let arrival = self.peers[index].arrivals.get(&round);
        let torn = arrival.is_some_and(|arrival| !arrival.incoming.reassembly().is_whole());
        self.fall_back_if(now, round, torn);
        // A model that is complete before the node's own update is ready has a lag of 0. In the first
        // iteration such a lag does not predict later ones.
        let early = self.completed.then_some(Time::ZERO);
        let lag = self.pace.lag(now, round).or(early);
        let peer = &mut self.peers[index];
        if let Some(arrival) = peer.arrivals.get_mut(&round) {
            arrival.over = true;
            arrival.incoming.stop();
        }
        if let Some(lag) = lag {
            peer.lag.note(round, lag);
        }
        // By segments, the node may yet need the rest of the model, until it has all means.
        if !self.by_segments(round) {
            self.acknowledge(now, index, round);
        }
        self.advance(now);
    }

    pub(super) fn acknowledge(&mut self, now: Time, index: usize, round: u32) {
        if !self.waits_for_all() {
            return;
        }
        let reassembly = self.peers[index].arrivals.get(&round).map(|arrival| arrival.incoming.reassembly());
        let span =
            reassembly.and_then(|reassembly| reassembly.span()).unwrap_or(Span { start: now, end: now });
        let received = Interval { start: micros(span.start), end: micros(span.end) };
        let (duplicates, missing) =
            reassembly.map_or((0, 0), |reassembly| (reassembly.faults().0, reassembly.holes().bytes()));
        self.tell(index, Control::Received { parcel: round, received, duplicates, missing });
    }

    /// A neighbour asks for ranges of this node's model.
    pub(super) fn granted(&mut self, now: Time, index: usize, round: u32, wanted: &Ranges) {
        let peer = &mut self.peers[index];
        if peer.sending == round {
            peer.out.grant(wanted);
            self.send_next(index);
        }
        if self.by_segments(round) {
            let segment = self.segment(round, index);
            let more = wanted.iter().any(|range| !segment.covers(range));
            self.fall_back_if(now, round, more);
        }
    }

    /// Sends a neighbour what it is to get next: ranges of this node's model, else of the mean.
    pub(super) fn send_next(&mut self, index: usize) {
        let link = self.link_of(index);
        let peer = &mut self.peers[index];
        if peer.out.is_sending() || peer.passing.is_sending() {
            return;
        }
        let parcel = peer.sending;
        let Some(wanted) = peer.out.next() else { return self.pass_next(index) };
        match link {
            Some(link) => {
                self.roster.act(Action::SendParcel { links: vec![link], parcel, difference: false, wanted })
            }
            None => self.dial_act(index, ClientAction::SendParcel { parcel, wanted }),
        }
    }

    /// Sending this node's model, or ranges of it, to a neighbour has ended. `Err` says why it failed.
    pub(super) fn was_sent(&mut self, now: Time, index: usize, round: u32, outcome: Result<Span, String>) {
        // If sending was cut short, the receiver asks for the rest if it needs it.
        let span = outcome.unwrap_or(Span { start: now, end: now });
        if self.mean_was_sent(index, round, span) {
            return;
        }
        let peer = &mut self.peers[index];
        if peer.sending != round || !peer.out.is_sending() {
            return; // belongs to a link or an iteration that is over
        }
        peer.out.sent(round, span).for_each(|end| self.tell(index, end));
        self.send_next(index);
        self.advance(now);
    }

    pub(super) fn cancel(&mut self, index: usize) {
        match self.link_of(index) {
            Some(link) => self.roster.act(Action::Cancel { link, parcel: None }),
            None => self.dial_act(index, ClientAction::Cancel { parcel: None }),
        }
    }
}
