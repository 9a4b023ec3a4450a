//! Models on their way, in both directions.

use thalweg_wire::control::{Control, Interval};
use thalweg_wire::{ChunkHeader, Range, Ranges};

use super::node::Node;
use super::peer::{Place, Way};
use super::terms::{Neighbour, Taken};
use super::weighing::Weighing;
use crate::session::{Action, ClientAction, LinkId};
use crate::transfer::Step;
use crate::{micros, Fit, Span, Time};

impl Node {
    /// The place of a neighbour that is there.
    pub(super) fn resolve(&self, who: Neighbour) -> Option<usize> {
        let place = match who {
            Neighbour::Link(link) => *self.numbers.get(&self.roster.member_at(link)?)?,
            Neighbour::Dialled(place) => place,
        };
        self.peers.get(place).filter(|peer| peer.met).map(|_| place)
    }

    /// Of which iteration a chunk is that may be taken in, and its sender's place and weight.
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
        self.heard_of(now, place, round);
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

    /// A neighbour has sent something of an iteration, so it sends no more of its earlier ones.
    fn heard_of(&mut self, now: Time, place: usize, round: u32) {
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

    /// Measures the lag of an update whose sender went on before it had sent all of it. That it ended early must not count
    /// as if it had come early: a node would wait less, and then end its own updates earlier, and so on.
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

    /// Where a chunk goes.
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

    /// `bytes` more bytes of chunks have come.
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

    /// A chunk has come (`ok`), or came damaged. Returns what of it is new and is to be added to the sums, before
    /// [`Node::folded`] is told.
    pub fn stored(&mut self, now: Time, who: Neighbour, chunk: &ChunkHeader, ok: bool) -> Option<Taken> {
        let (place, round, weight) = self.wanted(now, who, chunk)?;
        let size = self.size();
        let arrival = self.peers[place].arrival(round, size);
        if !ok {
            arrival.incoming.came_mut().corrupt();
            return None;
        }
        let fresh = arrival.incoming.came_mut().fold(now, chunk.range());
        arrival.chunks += u64::from(!fresh.is_empty());
        (!fresh.is_empty()).then_some(Taken { peer: place, round, weight, fresh })
    }

    /// What [`Node::stored`] gave of a neighbour was added to the sums (`ok`), or holds what no model may.
    pub fn folded(&mut self, now: Time, place: usize, round: u32, parts: &[Range], ok: bool) {
        self.bad += u64::from(!ok);
        let arrival = self.peers.get_mut(place).and_then(|peer| peer.arrivals.get_mut(&round));
        let Some(arrival) = arrival else { return };
        arrival.incoming.came_mut().settle(parts, ok);
        if arrival.over {
            return;
        }
        if !ok {
            arrival.chunks = arrival.chunks.saturating_sub(1);
            return self.over(now, place, round); // a retransmission would have the same values
        }
        if arrival.incoming.came().is_whole() && !arrival.incoming.came().is_folding() {
            return self.over(now, place, round);
        }
        arrival.incoming.trails(now);
        self.advance(now);
    }

    /// A neighbour says that this is all of its model of an iteration.
    pub(super) fn ended(&mut self, now: Time, place: usize, round: u32) {
        self.heard_of(now, place, round);
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
            return; // it is looked at when its iteration begins
        }
        let size = self.size();
        let arrival = self.peers[place].arrival(round, size);
        if !arrival.over {
            self.ends(now, place, round);
        }
    }

    /// Looks at a neighbour's models of the iterations that are accepted now. It concludes those that the neighbour ended
    /// before we accepted them, and those of iterations that the neighbour has left.
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

    /// A neighbour sends no more of its model of an iteration, unless it is asked to. Chunks may trail behind.
    fn ends(&mut self, now: Time, place: usize, round: u32) {
        let Some(arrival) = self.peers[place].arrivals.get_mut(&round) else { return };
        if arrival.incoming.ended(now) {
            self.conclude(now, place, round);
        } else {
            self.timer_set = true;
        }
    }

    /// Ends the wait for a neighbour's model if it is complete; else asks for the missing ranges.
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
        // A model that is here before the own update has no lag. In the first iteration that says nothing of later ones.
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
        let came = self.peers[place].arrivals.get(&round).map(|arrival| arrival.incoming.came());
        let span = came.and_then(|came| came.span()).unwrap_or(Span { start: now, end: now });
        let received = Interval { start: micros(span.start), end: micros(span.end) };
        let (duplicates, missing) = came.map_or((0, 0), |came| (came.faults().0, came.holes().bytes()));
        self.tell(place, Control::Received { parcel: round, received, duplicates, missing });
    }

    /// A neighbour wants parts of our model again.
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

    /// Our model, or what was wanted of it, was sent to a neighbour, or `Err` why not.
    pub(super) fn was_sent(&mut self, now: Time, place: usize, round: u32, outcome: Result<Span, String>) {
        let peer = &mut self.peers[place];
        if peer.sending != round || !peer.out.is_sending() {
            return; // of a link or an iteration that is over
        }
        // If sending was cut short, the receiver asks for the rest, if it needs that.
        let span = outcome.unwrap_or(Span { start: now, end: now });
        let sent = Interval { start: micros(span.start), end: micros(span.end) };
        for _ in 0..peer.out.sent() {
            self.tell(place, Control::End { parcel: round, sent });
        }
        self.send_next(place);
        self.advance(now);
    }

    pub(super) fn cancel(&mut self, place: usize) {
        match self.link_of(place) {
            Some(link) => self.roster.act(Action::Cancel { link, parcel: None }),
            None => self.dial_act(place, ClientAction::Cancel { parcel: None }),
        }
    }

    /// Our model was sent on a link that was accepted.
    pub fn sent(&mut self, now: Time, link: LinkId, round: u32, outcome: Result<Span, String>) {
        if let Some(place) = self.resolve(Neighbour::Link(link)) {
            self.was_sent(now, place, round, outcome);
        }
    }
}
