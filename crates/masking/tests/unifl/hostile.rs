//! Feeds arbitrary input to an endpoint; bytes choose it. There are handshakes, data, FINs and resets in any
//! state, floods, scans, forged and damaged packets, over IPv4 and IPv6. The invariants are checked after
//! each packet. libFuzzer (`fuzz/`) uses it, and `fuzz` by seed.

use thalweg_masking::Time;
use thalweg_masking::{Budget, Checksum, Config, Counters, Endpoint, Offload, Policy, Rate};
use thalweg_wire::Range;

use super::wire::*;
use super::witness::Witness;

const MS: Time = Time::from_millis(1);
/// Number of clients that the test knows. Floods and scans come from other addresses.
const CLIENTS: u8 = 12;

/// Small bounds, so that the test reaches them.
pub fn bounds() -> Config {
    let mut policy = Policy::lossy();
    policy.reliable = 0.3;
    policy.largest = 100_000;
    Config {
        ports: vec![PORT],
        policy,
        rate: Rate::Fixed(1 << 20),
        gaps: 64,
        masks: 64,
        send_buffer: 10_000,
        flows: 10,
        half_open: 5,
        resets: 8,
        idle: Some(5000 * MS),
        fin_wait: 700 * MS,
        time_wait: 500 * MS,
        ..Config::default()
    }
}

/// What happened during a storm.
#[derive(Debug, Clone, Copy, Default)]
pub struct Outcome {
    /// Numbers of flows connected, pieces of data, holes, streams and flows that ended, and forged segments.
    pub seen: [u64; 6],
    pub counters: Counters,
}

/// Bytes that make the choices. When they are used up, zeros follow.
struct Choices<'b>(&'b [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn number(&mut self) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    fn short(&mut self) -> u32 {
        self.number() & 0xffff
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::from(self.byte()) % all.len()]
    }

    /// Usually the number itself, sometimes one near it, and rarely any number.
    fn near(&mut self, number: u32) -> u32 {
        match self.byte() % 16 {
            1 => self.number(),
            2 => number.wrapping_add(self.short() * 2),
            3 => number.wrapping_sub(self.short() * 2),
            _ => number,
        }
    }
}

struct Storm<'b> {
    choices: Choices<'b>,
    endpoint: Endpoint,
    witness: Witness,
    now: Time,
}

/// Runs the choices in `bytes`.
///
/// # Panics
/// If an invariant is violated.
pub fn storm(bytes: &[u8]) -> Outcome {
    let config = bounds();
    let mut storm = Storm {
        choices: Choices(bytes),
        endpoint: Endpoint::new(config.clone(), [3, 4]),
        witness: Witness::new(config),
        now: 1000 * MS,
    };
    while !storm.choices.0.is_empty() {
        storm.step();
    }
    Outcome { seen: storm.witness.seen, counters: storm.endpoint.counters() }
}

impl Storm<'_> {
    fn step(&mut self) {
        match self.choices.byte() % 32 {
            0 | 1 => self.syn(),
            2 => self.flood(),
            3 => self.scan(),
            4 => self.noise(),
            5 => self.application(),
            6 => self.pass(),
            7 => self.forge(),
            8 => self.sliver(),
            9 => self.options(),
            _ => self.segment(),
        }
    }

    fn client(&mut self) -> Seg {
        let number = self.choices.byte() % CLIENTS;
        Seg { port: 5000 + u16::from(number), host: 2, v6: number & 1 > 0, window: 500, ..Seg::default() }
    }

    fn syn(&mut self) {
        let base = self.client();
        let which = self.choices.byte();
        let some = |bit: u8| which & bit > 0;
        let syn = Seg {
            seq: self.choices.number(),
            flags: self.choices.one_of(&[SYN, SYN, SYN, SYN | ECE | CWR, SYN | ACK, SYN | FIN, SYN | RST]),
            mss: some(1).then(|| self.choices.one_of(&[1460, 536, 64, 1, 0, 0xffff])),
            scale: some(2).then(|| self.choices.one_of(&[0, 7, 14, 15, 255])),
            sack_ok: some(4),
            stamps: (which & 24 > 0).then(|| (self.clock(), 0)),
            ..base
        };
        self.hand_in(syn.encode());
        // Usually the handshake continues.
        if let Some(answer) = self.witness.last(&syn).filter(|last| last.flags & SYN > 0).cloned() {
            if which & 0xe0 > 0 {
                let ack = self.reply(&answer, ACK, 0, &[]);
                self.hand_in(ack.encode());
            }
        }
    }

    fn clock(&self) -> u32 {
        self.now.as_millis() as u32
    }

    /// The next segment of a client that has received `last`, `ahead` of the expected offset.
    fn reply(&self, last: &Seg, flags: u8, ahead: u32, payload: &[u8]) -> Seg {
        let theirs = last.payload.len() as u32 + u32::from(last.flags & (SYN | FIN) > 0);
        Seg {
            v6: last.v6,
            port: last.port,
            host: last.host,
            seq: last.ack.wrapping_add(ahead),
            ack: last.seq.wrapping_add(theirs),
            flags,
            window: 500,
            stamps: last.stamps.map(|(value, _)| (self.clock(), value)),
            payload: payload.to_vec(),
            ..Seg::default()
        }
    }

    /// A segment of a connection that is plausible, or nearly so.
    fn segment(&mut self) {
        let base = self.client();
        let Some(last) = self.witness.last(&base).cloned() else { return self.syn() };
        let flags = [ACK, ACK, ACK, ACK, ACK, ACK, ACK, ACK | FIN, RST, RST | ACK, SYN, FIN, 0, 0xff];
        let flags = self.choices.one_of(&flags);
        let length = self.choices.one_of(&[1448, 1448, 1448, 0, 1, 10, 9000, 40_000]);
        let ahead = self.choices.one_of(&[0, 0, 0, 0, 1448, 1448, 2896, 1, 200_000, 1_048_576]);
        let mut seg = self.reply(&last, flags, ahead, &vec![0xaa; length]);
        seg.seq = self.choices.near(seg.seq);
        seg.ack = self.choices.near(seg.ack);
        let which = self.choices.byte();
        seg.window = if which & 3 == 3 { self.choices.short() as u16 } else { 500 };
        seg.ce = which & 12 == 12;
        seg.stamps = seg.stamps.filter(|_| which & 0xf0 > 0);
        seg.stamps = seg.stamps.map(|(value, echo)| (self.choices.near(value), self.choices.near(echo)));
        self.hand_in(seg.encode());
    }

    /// Small pieces at any place of missing ranges.
    fn sliver(&mut self) {
        let base = self.client();
        let Some(last) = self.witness.last(&base).cloned() else { return };
        for _ in 0..self.choices.byte() {
            let (start, back) = (self.choices.short(), self.choices.byte() & 1 > 0);
            let mut seg = self.reply(&last, ACK, start, &[0xaa]);
            seg.seq = if back { last.ack.wrapping_sub(start) } else { seg.seq };
            self.witnessed(&seg.encode(), Offload::default());
        }
    }

    fn flood(&mut self) {
        for _ in 0..self.choices.byte() % 16 {
            let (host, port) = (self.choices.byte(), self.choices.short() as u16);
            let stamps = Some((self.clock(), 0));
            let syn = Seg { host, port, flags: SYN, v6: port & 1 > 0, stamps, ..Seg::default() };
            self.witnessed(&syn.encode(), Offload::default());
        }
    }

    fn scan(&mut self) {
        for _ in 0..self.choices.byte() % 8 {
            let (local, flags) = (self.choices.short() as u16, self.choices.byte());
            let seg = Seg { local, port: 40_000, host: 7, flags, v6: local & 1 > 0, ..Seg::default() };
            self.witnessed(&seg.encode(), Offload::default());
        }
    }

    fn noise(&mut self) {
        let length = usize::from(self.choices.byte());
        let packet: Vec<u8> = (0..length).map(|_| self.choices.byte()).collect();
        self.hand_in(packet);
    }

    /// Arbitrary options before otherwise valid data.
    fn options(&mut self) {
        let base = self.client();
        let Some(last) = self.witness.last(&base).cloned() else { return };
        let mut packet = self.reply(&last, ACK, 0, &[0xaa; 60]).encode();
        let start = if last.v6 { 60 } else { 40 };
        let words = self.choices.byte() % 16;
        packet[start - 8] = words << 4 | packet[start - 8] & 15;
        let kinds = [0, 1, 2, 3, 4, 5, 8, 30, 254];
        for (at, byte) in packet[start..start + 40].iter_mut().enumerate() {
            *byte = if at & 1 > 0 { self.choices.byte() % 12 } else { self.choices.one_of(&kinds) };
        }
        mend(&mut packet);
        self.witnessed(&packet, Offload::default());
    }

    /// An attacker off the path does not know our clock, and so cannot mask anything.
    fn forge(&mut self) {
        let Some((flow, last, at, base)) = self.witness.stamped(self.choices.byte()) else { return };
        let Some(before) = self.endpoint.stats(flow) else { return };
        let mut forged = self.reply(&last, ACK, 0, &[0x66; 100]);
        forged.seq = base.wrapping_add(before.highest as u32).wrapping_add(1 + self.choices.short() * 16);
        let clock = last.stamps.map_or(0, |(value, _)| value);
        let clock = clock.wrapping_add((self.now - at).as_millis() as u32);
        let far = 1 + self.choices.short();
        let echo = if far & 1 > 0 { clock.wrapping_add(far) } else { clock.wrapping_sub(1 << 30) };
        forged.stamps = Some((self.clock(), echo));
        self.witnessed(&forged.encode(), Offload::default());
        self.witness.seen[5] += 1;
        if let Some(after) = self.endpoint.stats(flow) {
            assert_eq!((after.highest, after.missing), (before.highest, before.missing), "{forged:?}");
        }
    }

    fn pass(&mut self) {
        let time = self.choices.one_of(&[1, 1, 5, 20, 60, 200, 400, 3000, 70_000]);
        self.now += MS * (time + u32::from(self.choices.byte()) * time / 256);
        self.endpoint.handle_timeout(self.now);
        assert!(self.endpoint.poll_timeout().is_none_or(|at| at > self.now), "what was due is done");
        self.witness.after(&mut self.endpoint, self.now);
    }

    fn application(&mut self) {
        let Some(flow) = self.witness.flow(self.choices.byte()) else { return };
        let (endpoint, now) = (&mut self.endpoint, self.now);
        let start = u64::from(self.choices.number() % 4_000_000);
        let part = Range::new(start, start + u64::from(self.choices.short()));
        match self.choices.byte() % 16 {
            0 => endpoint.close(now, flow),
            1 => endpoint.abort(now, flow),
            2 => endpoint.forget(now, flow, start),
            3 => endpoint.admit(now, flow, start),
            4 => endpoint.join(now, flow, 1),
            5 | 6 => {
                self.witness.cut(flow);
                if part.start & 1 > 0 {
                    endpoint.protect(now, flow, part);
                } else {
                    endpoint.permit(now, flow, part);
                }
            }
            7 => {
                let ranges = [part].into_iter().collect();
                endpoint.limit(
                    now,
                    flow,
                    Budget { ranges, mask: 0.02, refuse: 0.5, at_least: 1448, of: None },
                );
            }
            _ => drop(endpoint.send(now, flow, &[7; 3000])),
        }
        self.witness.after(&mut self.endpoint, self.now);
    }

    /// Passes a packet to the endpoint. It may be damaged, have its checksums corrected, or be declared valid
    /// by the device.
    fn hand_in(&mut self, mut packet: Vec<u8>) {
        let which = self.choices.byte();
        if which & 3 == 3 {
            self.damage(&mut packet);
            if which & 4 > 0 {
                mend(&mut packet);
            }
        }
        let checksum = if which & 8 > 0 { Checksum::Complete } else { Checksum::Partial };
        let segment = if which & 0x30 == 0x30 { self.choices.short() as u16 } else { 0 };
        self.witnessed(&packet, Offload { checksum, segment });
    }

    fn damage(&mut self, packet: &mut Vec<u8>) {
        for _ in 0..self.choices.byte() % 4 {
            // Most fields are in the first bytes.
            let at = self.choices.short() as usize % packet.len().max(1);
            let at = if self.choices.byte() & 3 > 0 { at % 80 } else { at };
            match (self.choices.byte() % 6, packet.get_mut(at)) {
                (0, _) => packet.truncate(at),
                (1, Some(_)) => packet.insert(at, self.choices.byte()),
                (2, Some(byte)) => *byte = self.choices.byte(),
                (3, _) => packet.extend(std::iter::repeat_n(0, at)),
                (_, Some(byte)) => *byte ^= 1 << (self.choices.byte() % 8),
                _ => {}
            }
        }
    }

    fn witnessed(&mut self, packet: &[u8], offload: Offload) {
        self.witness.before(packet);
        let mut turn = self.endpoint.handle_packet(self.now, packet, offload);
        while let Some(event) = turn.poll_event() {
            self.witness.event(&event);
        }
        drop(turn);
        self.witness.after(&mut self.endpoint, self.now);
    }
}
