//! Passes each event to a machine as its driver would.

use thalweg_proto::{ClientMachine, LinkId, ServerMachine, Span, Traffic};
use thalweg_wire::control::Control;

use super::network::{End, Event, Frame};
use super::world::World;

impl World {
    pub(super) fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive { link, to, frame, counted } => self.arrive(link, to, frame, counted),
            Event::Progress { link, to, bytes } => self.progress(link, to, bytes),
            Event::Pump { link, from } => self.net.pump(self.now, link, from),
            Event::Sent { link, from, round, outcome } => self.sent(link, from, round, outcome),
            Event::Accept { link } => self.accept(link),
            Event::Cut { link } => self.net.cut(self.now, link, "the link broke"),
            Event::Closed { link, end, reason } => self.closed(link, end, &reason),
            Event::Connect { client, instance } => self.connect(client, instance),
            Event::Trained { client, instance, round } => self.trained(client, instance, round),
            Event::Folded { sender, outcome } => {
                self.server.machine.folded(self.now, sender, outcome);
                self.server_actions();
            }
            Event::Judged { .. } => {}
        }
    }

    fn connect(&mut self, index: usize, instance: u64) {
        let nonce = self.net.rng.nonce();
        let client = &mut self.clients[index];
        if !client.alive || client.instance != instance || client.machine.is_done() {
            return;
        }
        let (up, down) = client.paths();
        client.seen.connections += 1;
        let now = self.now + client.profile.skew;
        if self.up {
            client.greeted = false;
            client.link = Some(self.net.connect(self.now, index, up, down));
            client.machine.connected(now, nonce, down.ordered);
        } else {
            client.machine.unreachable(now, "nobody listens", true);
        }
        self.client_actions(index);
    }

    fn accept(&mut self, link: LinkId) {
        if self.up && !self.hangs && self.net.delivers(link, End::Server) {
            let nonce = self.net.rng.nonce();
            let ordered = self.clients[self.net.client_of(link)].profile.paths[0].0.ordered;
            self.server.machine.connected(self.now, link, nonce, ordered);
            if ordered && self.server.keeps_order {
                self.server.machine.keeps_order(link);
            }
            self.server_actions();
        }
    }

    fn arrive(&mut self, link: LinkId, to: End, frame: Frame, counted: u64) {
        if !self.net.delivers(link, to) {
            return;
        }
        self.net.taken(link, to, frame.bytes());
        let index = self.net.client_of(link);
        let deaf = if to == End::Server { self.hangs } else { !self.clients[index].alive };
        if deaf {
            return;
        }
        let left = frame.bytes().saturating_sub(counted);
        let now = self.now + self.clients[index].profile.skew;
        match (frame, to) {
            (Frame::Control(message), End::Server) => {
                self.observe(link);
                let message = Control::decode(&message).expect("what was encoded");
                self.server.machine.control(self.now, link, message);
            }
            (Frame::Control(message), End::Client) => {
                let message = Control::decode(&message).expect("what was encoded");
                if let Control::Refused { reason, .. } = &message {
                    self.clients[index].seen.refused.push(reason.clone());
                }
                self.clients[index].machine.control(now, message);
            }
            (Frame::Chunk(header, payload), End::Server) => {
                self.clients[index].seen.update_chunks += 1;
                self.server.chunk(self.now, link, &header, &payload, left);
            }
            (Frame::Chunk(header, payload), End::Client) => {
                self.clients[index].chunk(now, &header, &payload, left);
            }
        }
        match to {
            End::Server => self.server_actions(),
            End::Client => self.client_actions(index),
        }
    }

    fn progress(&mut self, link: LinkId, to: End, bytes: u64) {
        if !self.net.delivers(link, to) {
            return;
        }
        self.due.set(None);
        match to {
            End::Server => self.server.machine.progress(self.now, link, bytes),
            End::Client => {
                let client = &mut self.clients[self.net.client_of(link)];
                client.machine.progress(self.now + client.profile.skew, bytes);
            }
        }
    }

    pub(crate) fn observe(&mut self, link: LinkId) {
        let (sent, received) = self.net.counters(link, End::Server);
        let traffic = Traffic { sent, received, copied: 0, records_lost: None, retransmissions: None };
        self.server.machine.observe(link, traffic);
    }

    fn sent(&mut self, link: LinkId, from: End, round: u32, outcome: Result<Span, String>) {
        let index = self.net.client_of(link);
        if from == End::Server {
            self.observe(link);
            self.server.machine.sent(self.now, link, round, outcome);
            return self.server_actions();
        }
        let client = &mut self.clients[index];
        let skew = client.profile.skew;
        if client.alive {
            let outcome = outcome.map(|s| Span { start: s.start + skew, end: s.end + skew });
            client.machine.sent(self.now, round, outcome);
            self.client_actions(index);
        }
    }

    fn closed(&mut self, link: LinkId, end: End, reason: &str) {
        if !self.net.is_open(link, end) {
            return;
        }
        self.net.shut(self.now, link, end);
        let index = self.net.client_of(link);
        if end == End::Server {
            self.observe(link);
            self.server.dead.insert(link);
            self.server.machine.closed(self.now, link, reason);
            return self.server_actions();
        }
        let client = &mut self.clients[index];
        if client.alive && client.link == Some(link) {
            client.link = None;
            client.machine.closed(self.now + client.profile.skew, reason);
            self.client_actions(index);
        }
    }

    fn trained(&mut self, index: usize, instance: u64, round: u32) {
        let client = &mut self.clients[index];
        if !client.alive || client.instance != instance || client.machine.is_done() {
            return;
        }
        client.train(round);
        client.machine.submit(round, client.profile.samples as f64, "{}".into()).expect("it was handed out");
        self.client_actions(index);
    }
}
