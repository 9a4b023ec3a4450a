//! A scripted client.

use thalweg_masking::Time;
use thalweg_masking::{Config, Endpoint, Offload, Policy, Rate};

use super::app::App;
use super::wire::*;

pub const MS: Time = Time::from_millis(1);
pub const IRS: u32 = 0xffff_f000; // The stream wraps soon.

/// A client and the endpoint, with no network between them.
pub struct Client {
    pub endpoint: Endpoint,
    pub app: App,
    pub now: Time,
    pub base: Seg,
    /// The endpoint's initial sequence number.
    pub iss: u32,
    pub scale: u8,
    /// Segments from the endpoint that the test has not read yet.
    pub output: Vec<Seg>,
    pub echo: u32,
    pub highest: u32,
    right_edge: Option<u32>,
    pub stamped: bool,
}

pub fn config() -> Config {
    let policy = Policy::lossy();
    Config { ports: vec![PORT], policy, rate: Rate::Fixed(1 << 20), ..Config::default() }
}

/// A SYN with all options.
pub fn syn() -> Seg {
    let stamps = Some((1000, 0));
    let (mss, scale) = (Some(1460), Some(7));
    Seg {
        port: 5000,
        host: 2,
        seq: IRS,
        flags: SYN,
        window: 64_000,
        mss,
        scale,
        sack_ok: true,
        stamps,
        ..Seg::default()
    }
}

impl Client {
    pub fn new(config: Config) -> Self {
        Self::with(config, syn())
    }

    /// A client after its SYN and the SYN-ACK.
    pub fn with(config: Config, syn: Seg) -> Self {
        let endpoint = Endpoint::new(config, [1, 2]);
        let base = Seg {
            mss: None,
            scale: None,
            sack_ok: false,
            flags: ACK,
            seq: IRS.wrapping_add(1),
            ..syn.clone()
        };
        let stamped = syn.stamps.is_some();
        let mut client = Self {
            endpoint,
            app: App::default(),
            now: 1000 * MS,
            base,
            iss: 0,
            scale: 0,
            output: Vec::new(),
            echo: 0,
            highest: IRS.wrapping_add(1),
            right_edge: None,
            stamped,
        };
        client.hand_in(&syn);
        let answer = client.output.last().cloned().expect("a SYN is answered");
        client.iss = answer.seq;
        client.scale = answer.scale.filter(|_| syn.scale.is_some()).unwrap_or(0);
        client.echo = answer.stamps.map_or(0, |(value, _)| value);
        client.base.ack = answer.seq.wrapping_add(1);
        client
    }

    /// A client after the handshake.
    pub fn connected(config: Config) -> Self {
        let mut client = Self::new(config);
        client.finish_handshake();
        client
    }

    pub fn finish_handshake(&mut self) {
        self.now += 40 * MS;
        self.say(ACK, 0, &[]);
        assert!(self.app.agreed.is_some());
        self.output.clear();
    }

    /// A segment at a stream offset, with current timestamps.
    pub fn at(&self, flags: u8, offset: u64, payload: &[u8]) -> Seg {
        let seq = IRS.wrapping_add(1).wrapping_add(offset as u32);
        let stamps = self.stamped.then_some((self.now.as_millis() as u32, self.echo));
        Seg { seq, flags, stamps, payload: payload.to_vec(), ..self.base.clone() }
    }

    pub fn say(&mut self, flags: u8, offset: u64, payload: &[u8]) {
        let seg = self.at(flags, offset, payload);
        self.hand_in(&seg);
    }

    /// Sends `length` bytes of the stream from `offset`.
    pub fn data(&mut self, offset: u64, length: usize) {
        self.say(ACK, offset, &bytes(offset, length));
    }

    pub fn hand_in(&mut self, seg: &Seg) {
        self.hand_over(seg, Offload::default());
    }

    /// Passes a segment to the endpoint, or several as a superpacket.
    pub fn hand_over(&mut self, seg: &Seg, offload: Offload) {
        let end = seg.seq.wrapping_add(seg.payload.len() as u32 + u32::from(seg.flags & (FIN | SYN) > 0));
        if end.wrapping_sub(self.highest) as i32 > 0 {
            self.highest = end;
        }
        self.raw(&seg.encode(), offload);
    }

    pub fn raw(&mut self, packet: &[u8], offload: Offload) {
        let mut turn = self.endpoint.handle_packet(self.now, packet, offload);
        while let Some(event) = turn.poll_event() {
            self.app.see(event);
        }
        drop(turn);
        self.listen();
    }

    /// Lets time pass.
    pub fn pass(&mut self, time: Time) {
        let end = self.now + time;
        while let Some(at) = self.endpoint.poll_timeout().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.endpoint.handle_timeout(self.now);
            self.listen();
        }
        self.now = end;
    }

    pub fn listen(&mut self) {
        while let Some(event) = self.endpoint.poll_event() {
            self.app.see(event);
        }
        let mut packet = Vec::new();
        while self.endpoint.poll_packet(self.now, &mut packet).is_some() {
            let seg = Seg::decode(&packet);
            if let Some((value, _)) = seg.stamps {
                // Timestamps are as if the RTT were 40 ms.
                self.echo = value.wrapping_sub(40);
            }
            self.check(&seg);
            self.output.push(seg);
        }
    }

    /// Checks that only sent bytes are acknowledged, and that the right edge never moves left.
    fn check(&mut self, seg: &Seg) {
        if seg.flags & RST > 0 || seg.port != self.base.port {
            return;
        }
        assert!(self.highest.wrapping_sub(seg.ack) as i32 >= 0, "acknowledges more than was sent: {seg:?}");
        let scale = if seg.flags & SYN > 0 { 0 } else { self.scale };
        let right_edge = seg.ack.wrapping_add(u32::from(seg.window) << scale);
        self.right_edge = self.right_edge.filter(|_| seg.flags & SYN == 0);
        if let Some(before) = self.right_edge.replace(right_edge) {
            // A FIN may be acknowledged, which is no byte of the stream.
            assert!(right_edge.wrapping_sub(before) as i32 >= 0, "the right edge moved left: {seg:?}");
        }
    }

    /// The offset that the last ACK acknowledged.
    pub fn acked(&self) -> Option<u64> {
        let ack = self.output.last()?.ack;
        Some(u64::from(ack.wrapping_sub(IRS.wrapping_add(1))))
    }

    /// The last SACK blocks, as stream offsets.
    pub fn blocks(&self) -> Vec<(u64, u64)> {
        let offset = |n: u32| u64::from(n.wrapping_sub(IRS.wrapping_add(1)));
        let last = self.output.last().map(|seg| seg.sack.clone()).unwrap_or_default();
        last.iter().map(|&(a, b)| (offset(a), offset(b))).collect()
    }

    pub fn stats(&self) -> thalweg_masking::Stats {
        self.endpoint.stats(self.app.flow.expect("a flow")).expect("it is there")
    }
}
