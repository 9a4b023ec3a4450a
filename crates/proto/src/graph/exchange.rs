//! Models that are received from neighbours and sent to them.

use thalweg_wire::control::{Control, Interval};
use thalweg_wire::{ChunkHeader, Range, Ranges};

use super::node::Node;
use super::peer::{Place, Way};
use super::terms::{Neighbour, Taken};
use super::weighing::Weighing;
use crate::session::{Action, ClientAction};
use crate::transfer::Step;
use crate::{micros, Fit, Span, Time};

impl Node {
    /// The index in `peers` of a neighbour that is connected.
    pub(super) fn resolve(&self, who: Neighbour) -> Option<usize> {
        let place = match who {
            Neighbour::Link(link) => *self.numbers.get(&self.roster.member_at(link)?)?,
            Neighbour::Dialled(place) => place,
        };
        self.peers.get(place).filter(|peer| peer.met).map(|_| place)
    }

    /// Decides whether a chunk may be added. Returns its sender's index in `peers`, its iteration and the
    /// sender's weight. Counts the chunks that it rejects.
    fn wanted(&mut self, now: Time, who: Neighbour, chunk: &ChunkHeader) -> Option<(usize, u32, f64)> {
        let place = self.resolve(who)?;
        let number = match self.peers[place].way {
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
        self.note_progress(now, place, round);
        let range = self.size().within(round, chunk.range());
        self.peers[place].course.note(now, round, range);
        if round < low {
            self.peers[place].late += 1;
            return None;
        }
        let weight = self.weight(place, round);
        if round > top || weight.is_none() {
            self.early += 1;
        }
        let weight = weight.filter(|_| round <= top)?;
        Some((place, round, weight))
    }

    /// Notes that a neighbour has sent a chunk or an End of an iteration. The neighbour then sends no more of
    /// earlier ones.
    fn note_progress(&mut self, now: Time, place: usize, round: u32) {
        self.peers[place].begun = self.peers[place].begun.max(round);
        if round > self.peers[place].newest {
            self.judge(place, self.peers[place].newest);
            self.peers[place].newest = round;
            if self.low() < round {
                self.look_again(now, place);
                self.advance(now);
            }
        }
    }

    /// Measures the lag of an update whose sender began the next one before it had sent all of this one. An
    /// update that was cut short must not count as early. Otherwise the node would wait less, then cut its
    /// own updates short earlier, and so on.
    fn judge(&mut self, place: usize, round: u32) {
        let peer = &self.peers[place];
        if round == 0 || peer.ended >= round || peer.lag.knows(round) {
            return;
        }
        let lag = match peer.course.complete_at(round, self.size().wanted(round).bytes()) {
            Some(at) => self.pace.lag(at, round),
            None => peer.lag.mean(),
        };
        if let Some(lag) = lag {
            self.peers[place].lag.note(round, lag);
        }
    }

    /// Decides where the driver puts a chunk whose header has arrived.
    pub fn place(&mut self, now: Time, who: Neighbour, chunk: &ChunkHeader) -> Place {
        let Some((place, round, weight)) = self.wanted(now, who, chunk) else { return Place::Nothing };
        let size = self.size();
        let arrival = self.peers[place].arrival(round, size);
        match arrival.incoming.fit(now, chunk.range()) {
            Fit::New | Fit::Part if self.config.weighing == Weighing::Arrival => {
                Place::Fold { round, weight }
            }
            Fit::New | Fit::Part => Place::Stage { round, peer: place },
            Fit::Nothing => Place::Nothing,
        }
    }

    /// Reports that `bytes` more bytes of chunks have arrived.
    pub fn progress(&mut self, now: Time, who: Neighbour, bytes: u64) {
        match who {
            Neighbour::Link(link) => self.roster.progress(now, link, bytes),
            Neighbour::Dialled(place) => {
                if let Some(dial) = self.dial(place) {
                    dial.progress(now, bytes);
                }
            }
        }
    }

    /// Reports that a chunk was received intact (`ok`) or damaged. Returns its new bytes, which the driver
    /// adds to the sums. The driver then calls [`Node::folded`].
    pub fn stored(&mut self, now: Time, who: Neighbour, chunk: &ChunkHeader, ok: bool) -> Option<Taken> {
        let (place, round, weight) = self.wanted(now, who, chunk)?;
        let size = self.size();
        let arrival = self.peers[place].arrival(round, size);
        if !ok {
            arrival.incoming.reassembly_mut().corrupt();
            return None;
        }
        let fresh = arrival.incoming.reassembly_mut().fold(now, chunk.range());
        arrival.chunks += u64::from(!fresh.is_empty());
        (!fresh.is_empty()).then_some(Taken { peer: place, round, weight, fresh })
    }

    /// Reports that the ranges that [`Node::stored`] returned were added to the sums (`ok`), or could not be
    /// added because of their values.
    pub fn folded(&mut self, now: Time, place: usize, round: u32, parts: &[Range], ok: bool) {
        self.bad += u64::from(!ok);
        let arrival = self.peers.get_mut(place).and_then(|peer| peer.arrivals.get_mut(&round));
        let Some(arrival) = arrival else { return };
        arrival.incoming.reassembly_mut().settle(parts, ok);
        if arrival.over {
            return;
        }
        if !ok {
            arrival.chunks = arrival.chunks.saturating_sub(1);
            return self.over(now, place, round); // a retransmission would have the same values
        }
        if arrival.incoming.reassembly().is_whole() && !arrival.incoming.reassembly().is_folding() {
            return self.over(now, place, round);
        }
        arrival.incoming.trails(now);
        self.advance(now);
    }

    /// A neighbour's End has arrived: the neighbour has sent all of its model of an iteration.
    pub(super) fn ended(&mut self, now: Time, place: usize, round: u32) {
        self.note_progress(now, place, round);
        let peer = &mut self.peers[place];
        peer.ended = peer.ended.max(round);
        if round < self.low() {
            if let Some(lag) = self.pace.lag(now, round) {
                self.peers[place].lag.note(round, lag);
            }
            // The neighbour may wait for this acknowledgement, although its model is late.
            return self.acknowledge(now, place, round);
        }
        if round > self.top() || self.weight(place, round).is_none() {
            return; // `look_again` handles this End when the iteration begins
        }
        let size = self.size();
        let arrival = self.peers[place].arrival(round, size);
        if !arrival.over {
            self.ends(now, place, round);
        }
    }

    /// Looks at a neighbour's models of all iterations that are accepted now. Ends those whose End arrived
    /// before they were accepted, and those of iterations that the neighbour has left.
    pub(super) fn look_again(&mut self, now: Time, place: usize) {
        let (low, top, size) = (self.low(), self.top(), self.size());
        let (newest, ended) = (self.peers[place].newest, self.peers[place].ended);
        for round in low..=top.min(newest.max(ended)) {
            if self.weight(place, round).is_none() || self.peers[place].is_over(round) {
                continue;
            }
            let arrival = self.peers[place].arrival(round, size);
            let left_behind = newest > round;
            let known = arrival.incoming.settle().is_some();
            if (left_behind || ended >= round) && !known {
                self.ends(now, place, round);
            }
        }
    }

    /// Notes that a neighbour sends no more of its model of an iteration, unless it is asked. Without order
    /// on the link, chunks may still arrive.
    fn ends(&mut self, now: Time, place: usize, round: u32) {
        let Some(arrival) = self.peers[place].arrivals.get_mut(&round) else { return };
        if arrival.incoming.ended(now) {
            self.conclude(now, place, round);
        } else {
            self.timer_set = true;
        }
    }

    /// Ends the wait for a neighbour's model if nothing that must come is missing; else asks for the missing
    /// ranges.
    pub(super) fn conclude(&mut self, now: Time, place: usize, round: u32) {
        let left_behind = self.peers[place].newest > round;
        let Some(arrival) = self.peers[place].arrivals.get_mut(&round) else { return };
        match arrival.incoming.conclude(now, &self.rule) {
            Step::Wait => self.timer_set = true,
            // The neighbour has gone on and no longer has these bytes.
            Step::Ask(_) if left_behind => self.over(now, place, round),
            Step::Ask(wanted) => self.tell(place, Control::Grant { parcel: round, wanted }),
            Step::Here(_) => self.over(now, place, round),
        }
    }

    /// Stops waiting for a neighbour's model of an iteration.
    fn over(&mut self, now: Time, place: usize, round: u32) {
        // A model that is complete before the node's own update is ready has a lag of 0. In the first
        // iteration such a lag does not predict later ones.
        let early = self.completed.then_some(Time::ZERO);
        let lag = self.pace.lag(now, round).or(early);
        let peer = &mut self.peers[place];
        if let Some(arrival) = peer.arrivals.get_mut(&round) {
            arrival.over = true;
            arrival.incoming.stop();
        }
        if let Some(lag) = lag {
            peer.lag.note(round, lag);
        }
        self.acknowledge(now, place, round);
        self.advance(now);
    }

    pub(super) fn acknowledge(&mut self, now: Time, place: usize, round: u32) {
        if !self.waits_for_all() {
            return;
        }
        let reassembly = self.peers[place].arrivals.get(&round).map(|arrival| arrival.incoming.reassembly());
        let span =
            reassembly.and_then(|reassembly| reassembly.span()).unwrap_or(Span { start: now, end: now });
        let received = Interval { start: micros(span.start), end: micros(span.end) };
        let (duplicates, missing) =
            reassembly.map_or((0, 0), |reassembly| (reassembly.faults().0, reassembly.holes().bytes()));
        self.tell(place, Control::Received { parcel: round, received, duplicates, missing });
    }

    /// A neighbour asks for ranges of this node's model.
    pub(super) fn granted(&mut self, place: usize, round: u32, wanted: &Ranges) {
        let peer = &mut self.peers[place];
        if peer.sending == round {
            peer.out.grant(wanted);
            self.send_next(place);
        }
    }

    fn send_next(&mut self, place: usize) {
        let link = self.link_of(place);
        let peer = &mut self.peers[place];
        let parcel = peer.sending;
        let Some(wanted) = peer.out.next() else { return };
        match link {
            Some(link) => self.roster.act(Action::SendParcel { links: vec![link], parcel, wanted }),
            None => self.dial_act(place, ClientAction::SendParcel { parcel, wanted }),
        }
    }

    /// Sending this node's model, or ranges of it, to a neighbour has ended. `Err` says why it failed.
    pub(super) fn was_sent(&mut self, now: Time, place: usize, round: u32, outcome: Result<Span, String>) {
        let peer = &mut self.peers[place];
        if peer.sending != round || !peer.out.is_sending() {
            return; // belongs to a link or an iteration that is over
        }
        // If sending was cut short, the receiver asks for the rest if it needs it.
        let span = outcome.unwrap_or(Span { start: now, end: now });
        peer.out.sent(round, span).for_each(|end| self.tell(place, end));
        self.send_next(place);
        self.advance(now);
    }

    pub(super) fn cancel(&mut self, place: usize) {
        match self.link_of(place) {
            Some(link) => self.roster.act(Action::Cancel { link, parcel: None }),
            None => self.dial_act(place, ClientAction::Cancel { parcel: None }),
        }
    }
}
