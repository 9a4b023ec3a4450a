//! Compares the input of an endpoint with its output.

use std::collections::BTreeMap;

use thalweg_masking::Time;
use thalweg_masking::{Address, Agreed, Config, Endpoint, Event, FlowId, Peer, What};
use thalweg_wire::{Range, Ranges};

use super::wire::*;

/// The IP version and address, and the port.
type Side = ([u8; 17], u16);
/// A connection: the other side, then ours.
type Pair = (Side, Side);

/// A connection as the network sees it, from its handshake on.
#[derive(Debug)]
struct Wire {
    last: Seg,
    at: Time,
    /// Sequence number of the first byte of the stream; other numbers are offsets from it.
    base: u32,
    scale: u8,
    /// One past the last byte or FIN that arrived within the window.
    top: u64,
    right_edge: u64,
}

/// A flow as the application sees it.
#[derive(Debug)]
struct Live {
    agreed: Agreed,
    got: Ranges,
    ended: bool,
    /// Boundaries set by the application, which may split gaps.
    cuts: usize,
}

/// What an observer outside knows about an endpoint.
pub struct Witness {
    config: Config,
    wires: BTreeMap<Pair, Wire>,
    flows: BTreeMap<FlowId, Live>,
    /// Numbers of flows connected, pieces of data, holes, streams and flows that ended, and forged segments.
    pub seen: [u64; 6],
    packet: Vec<u8>,
}

impl Witness {
    pub fn new(config: Config) -> Self {
        let (wires, flows) = (BTreeMap::new(), BTreeMap::new());
        Self { config, wires, flows, seen: [0; 6], packet: Vec::new() }
    }

    /// The last segment sent to the sender of such a segment.
    pub fn last(&self, seg: &Seg) -> Option<&Seg> {
        let (pair, ..) = look(&seg.encode())?;
        self.wires.get(&pair).map(|wire| &wire.last)
    }

    /// A live flow.
    pub fn flow(&self, which: u8) -> Option<FlowId> {
        self.flows.keys().nth(usize::from(which) % self.flows.len().max(1)).copied()
    }

    /// A flow with timestamps: the last segment sent to it, when, and the sequence number of its first byte.
    pub fn stamped(&self, which: u8) -> Option<(FlowId, Seg, Time, u32)> {
        let flow = self.flow(which)?;
        let agreed = self.flows.get(&flow).map(|live| live.agreed).filter(|agreed| agreed.timestamps)?;
        let wire = self.wires.get(&pair(&agreed))?;
        Some((flow, wire.last.clone(), wire.at, wire.base))
    }

    /// The application sets a boundary in a flow.
    pub fn cut(&mut self, flow: FlowId) {
        self.flows.entry(flow).and_modify(|live| live.cuts += 2);
    }

    /// Called before a packet is passed to the endpoint.
    pub fn before(&mut self, packet: &[u8]) {
        let Some((pair, seq, flags, length)) = look(packet).filter(|(_, _, flags, _)| flags & SYN == 0)
        else {
            return;
        };
        let Some(wire) = self.wires.get_mut(&pair) else { return };
        let start = seq.wrapping_sub(wire.base).wrapping_sub(wire.top as u32) as i32;
        let end = wire.top as i64 + i64::from(start) + length as i64;
        let most = wire.right_edge.max(wire.top);
        if end >= 0 {
            let fin = u64::from(flags & FIN > 0 && end as u64 <= most);
            wire.top = wire.top.max((end as u64).min(most) + fin);
        }
    }

    /// Checks that no byte arrives twice, that no hole is where bytes arrived or is over the limit, and that
    /// nothing follows the last event.
    pub fn event(&mut self, event: &Event<'_>) {
        let live = self.flows.get_mut(&event.flow).filter(|live| !live.ended);
        let kind = match (event.what, live) {
            (What::Connected(agreed), None) => {
                let live = Live { agreed, got: Ranges::new(), ended: false, cuts: 0 };
                assert!(self.flows.insert(event.flow, live).is_none(), "connected twice");
                0
            }
            (What::Bytes { offset, bytes, .. }, Some(live)) => {
                let range = Range::new(offset, offset + bytes.len() as u64);
                assert_eq!(live.got.insert(range), [range], "bytes twice");
                1
            }
            (What::Hole(hole), Some(live)) => {
                assert_eq!(live.got.missing_in(hole), [hole], "a hole where bytes came");
                assert!(hole.len() <= self.config.policy.largest, "{hole:?} is masked");
                2
            }
            (What::Finished(_), Some(_)) => 3,
            (What::Ended(_), Some(live)) => {
                live.ended = true;
                4
            }
            other => unreachable!("{other:?}"),
        };
        self.seen[kind] += 1;
    }

    /// Reads everything that an endpoint sends, and checks its tables.
    pub fn after(&mut self, endpoint: &mut Endpoint, now: Time) {
        while let Some(event) = endpoint.poll_event() {
            self.event(&event);
        }
        let mut packet = std::mem::take(&mut self.packet);
        let mut count = 0;
        while endpoint.poll_packet(now, &mut packet).is_some() {
            self.check_packet(now, &packet);
            count += 1;
            assert!(count < 1000, "it talks for ever");
        }
        self.packet = packet;
        self.bounds(endpoint);
    }

    /// Checks a packet that the endpoint has sent. `Seg::decode` checks its lengths and checksums.
    fn check_packet(&mut self, now: Time, packet: &[u8]) {
        let seg = Seg::decode(packet);
        assert!(packet.len() <= self.config.mtu, "{} bytes", packet.len());
        let Some(((from, to), ..)) = look(packet) else { unreachable!("what is sent can be read: {seg:?}") };
        if seg.flags & RST > 0 {
            return;
        }
        let pair = (to, from);
        let again =
            |wire: &Wire| wire.last.flags & SYN > 0 && (wire.last.seq, wire.base) == (seg.seq, seg.ack);
        if seg.flags & SYN > 0 {
            if !self.wires.get(&pair).is_some_and(again) {
                let (base, scale, right_edge) = (seg.ack, seg.scale.unwrap_or(0), u64::from(seg.window));
                self.wires.insert(pair, Wire { last: seg, at: now, base, scale, top: 0, right_edge });
            }
            return;
        }
        let wire = self.wires.get_mut(&pair).expect("after a handshake");
        let back = seg.ack.wrapping_sub(wire.base).wrapping_sub(wire.top as u32) as i32;
        assert!(back <= 0, "acknowledges {back} bytes beyond what has come: {seg:?}");
        let right_edge = (wire.top as i64 + i64::from(back)) as u64 + (u64::from(seg.window) << wire.scale);
        assert!(
            right_edge >= wire.right_edge,
            "the right edge moved left, from {} to {right_edge}: {seg:?}",
            wire.right_edge
        );
        (wire.right_edge, wire.last, wire.at) = (right_edge, seg, now);
    }

    /// Checks that memory is bounded, whatever arrives.
    fn bounds(&mut self, endpoint: &Endpoint) {
        self.flows.retain(|flow, live| {
            let Some(stats) = endpoint.stats(*flow) else {
                assert!(live.ended, "gone without a word");
                return false;
            };
            let (gaps, masks) = stats.tables;
            assert!(gaps <= self.config.gaps + live.cuts && masks <= self.config.masks, "{gaps} {masks}");
            assert!(stats.unacknowledged <= self.config.send_buffer as u64);
            assert!(stats.acknowledged <= stats.highest && stats.delivered + stats.missing <= stats.highest);
            assert_eq!(stats.delivered, live.got.bytes());
            true
        });
        let half_open = endpoint.flows() - self.flows.len();
        assert!(endpoint.flows() <= self.config.flows && half_open <= self.config.half_open, "{half_open}");
    }
}

fn pair(agreed: &Agreed) -> Pair {
    let side = |peer: Peer| (padded(peer.address), peer.port);
    (side(agreed.tuple.remote), side(agreed.tuple.local))
}

fn padded(address: Address) -> [u8; 17] {
    match address {
        Address::V4(bytes) => side(4, &bytes),
        Address::V6(bytes) => side(6, &bytes),
    }
}

fn side(version: u8, address: &[u8]) -> [u8; 17] {
    let mut padded = [0; 17];
    padded[0] = version;
    padded[1..=address.len()].copy_from_slice(address);
    padded
}

/// The segment in a packet: both ends, its sequence number, its flags, and an upper bound of its bytes.
fn look(packet: &[u8]) -> Option<(Pair, u32, u8, usize)> {
    let version = packet.first()? >> 4;
    let (mut start, from, to) = match version {
        4 => (usize::from(packet[0] & 15) * 4, 12..16, 16..20),
        6 => (40, 8..24, 24..40),
        _ => return None,
    };
    let mut next = if version == 6 { *packet.get(6)? } else { 6 };
    while matches!(next, 0 | 43 | 60) {
        let extension = packet.get(start..start + 2)?;
        next = extension[0];
        start += 8 + usize::from(extension[1]) * 8;
    }
    let (from, to) = (side(version, packet.get(from)?), side(version, packet.get(to)?));
    let tcp = packet.get(start..)?;
    let header = tcp.get(..20)?;
    let port = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let seq = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
    let length = tcp.len().saturating_sub(usize::from(header[12] >> 4) * 4);
    Some((((from, port(0)), (to, port(2))), seq, header[13], length))
}
