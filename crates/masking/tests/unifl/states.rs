//! Tests SYN, FIN and RST in every state of RFC 9293, in order and out of order, and the rules of RFC 5961
//! for forged ones.

use thalweg_masking::{Config, Ended};

use super::client::{config, syn, Client, IRS, MS};
use super::wire::*;

/// All states that a listener can reach.
const STATES: [&str; 8] = [
    "syn-received",
    "established",
    "close-wait",
    "last-ack",
    "fin-wait-1",
    "fin-wait-2",
    "closing",
    "time-wait",
];

/// A client whose connection is in `state`, after 100 bytes in each direction. Also returns the offset of its
/// next byte.
fn reach(state: &str) -> (Client, u64) {
    let mut c = Client::new(config());
    if state == "syn-received" {
        return (c, 0);
    }
    c.finish_handshake();
    c.data(0, 100);
    let flow = c.app.flow.expect("a flow");
    assert_eq!(c.endpoint.send(c.now, flow, &[7; 100]), Some(100));
    c.listen();
    c.base.ack = c.base.ack.wrapping_add(100);
    c.say(ACK, 100, &[]);
    let peer_ends = |c: &mut Client| c.say(ACK | FIN, 100, &[]);
    let we_end = |c: &mut Client| {
        c.endpoint.close(c.now, flow);
        c.listen();
        assert_eq!(c.output.last().map(|seg| seg.flags & FIN), Some(FIN));
    };
    let acknowledge = |c: &mut Client, at: u64| {
        c.base.ack = c.base.ack.wrapping_add(1);
        c.say(ACK, at, &[]);
    };
    match state {
        "established" => return (c, 100),
        "close-wait" => peer_ends(&mut c),
        "last-ack" => {
            peer_ends(&mut c);
            we_end(&mut c);
        }
        "fin-wait-1" => {
            we_end(&mut c);
            return (c, 100);
        }
        "fin-wait-2" => {
            we_end(&mut c);
            acknowledge(&mut c, 100);
            return (c, 100);
        }
        "closing" => {
            we_end(&mut c);
            peer_ends(&mut c);
        }
        _ => {
            we_end(&mut c);
            acknowledge(&mut c, 100);
            peer_ends(&mut c);
        }
    }
    (c, 101)
}

#[test]
fn an_exact_reset_ends_every_state_but_time_wait() {
    for state in STATES {
        let (mut c, next) = reach(state);
        c.output.clear();
        c.say(RST, next, &[]);
        assert!(c.output.is_empty(), "{state}: nothing answers a reset");
        let stays = state == "time-wait";
        assert_eq!(c.endpoint.flows(), usize::from(stays), "{state}");
        let expected = match state {
            "syn-received" => None,
            "time-wait" => Some(Ended::Closed),
            _ => Some(Ended::Reset),
        };
        assert_eq!(c.app.ended, expected, "{state}");
    }
}

#[test]
fn a_reset_elsewhere_in_the_window_is_challenged_and_outside_ignored() {
    for state in STATES {
        let (mut c, next) = reach(state);
        c.output.clear();
        c.say(RST, next + 5, &[]);
        let challenges = c.output.iter().filter(|seg| seg.flags == ACK).count();
        assert_eq!(challenges, usize::from(state != "syn-received"), "{state}");
        c.output.clear();
        c.say(RST, next + (1 << 24), &[]);
        assert!(c.output.is_empty(), "{state}");
        assert_eq!(c.endpoint.flows(), 1, "{state}");
    }
}

#[test]
fn challenges_are_so_many_a_second() {
    let (mut c, next) = reach("established");
    c.output.clear();
    for _ in 0..1000 {
        c.say(RST, next + 5, &[]);
        c.say(SYN, next + 9, &[]);
    }
    assert_eq!(c.output.len(), 10);
    c.pass(1000 * MS);
    c.say(RST, next + 5, &[]);
    assert_eq!(c.output.len(), 11);
}

#[test]
fn a_syn_is_challenged_in_every_state() {
    for state in STATES {
        for flags in [SYN, SYN | ACK, SYN | FIN, SYN | RST] {
            let (mut c, next) = reach(state);
            c.output.clear();
            // It is before the expected offset, so that no new connection begins in TIME-WAIT.
            c.say(flags, next.saturating_sub(50), &[]);
            let open = state != "syn-received";
            let acks = c.output.iter().filter(|seg| seg.flags == ACK).count();
            assert_eq!(acks, usize::from(open), "{state} {flags:#x}: {:?}", c.output);
            assert_eq!(c.endpoint.flows(), 1, "{state} {flags:#x}");
        }
    }
}

#[test]
fn a_fin_is_acknowledged_once_whatever_the_state() {
    for state in STATES {
        let (mut c, next) = reach(state);
        if state == "syn-received" {
            c.now += 40 * MS;
        }
        c.output.clear();
        // In states after the peer's FIN, that FIN arrives again.
        let ended = next == 101;
        let at = if ended { 100 } else { next };
        c.say(ACK | FIN, at, &[]);
        assert_eq!(c.output.last().map(|seg| seg.ack), Some(IRS.wrapping_add(at as u32 + 2)), "{state}");
        assert_eq!(c.app.finished, Some(at), "{state}");
        c.pass(1000 * MS);
        c.say(ACK | FIN, at, &[]);
        assert_eq!(c.acked(), Some(at + 1), "{state}");
    }
}

#[test]
fn what_is_late_in_time_wait_is_not_told() {
    let mut c = Client::connected(config());
    c.data(0, 1000);
    c.data(2000, 1000);
    c.pass(100 * MS);
    assert_eq!(c.app.holes.bytes(), 1000);
    let flow = c.app.flow.expect("a flow");
    c.endpoint.close(c.now, flow);
    c.listen();
    c.base.ack = c.base.ack.wrapping_add(1);
    c.say(ACK | FIN, 3000, &[]);
    assert_eq!((c.app.ended, c.endpoint.flows()), (Some(Ended::Closed), 1));
    c.output.clear();
    c.data(1000, 1000);
    assert_eq!((c.app.late, c.acked()), (0, Some(3001)));
}

/// Such a FIN is left over from an old connection with the same ports.
#[test]
fn an_end_from_before_the_stream_is_none() {
    let mut c = Client::connected(config());
    let seg = Seg { seq: IRS.wrapping_sub(50_000), ..c.at(ACK | FIN, 0, &[7; 1448]) };
    c.hand_in(&seg);
    c.pass(1000 * MS);
    assert_eq!((c.app.finished, c.acked()), (None, Some(0)));
    c.say(ACK | FIN, 0, &[]);
    assert_eq!((c.app.finished, c.acked()), (Some(0), Some(1)));
}

#[test]
fn both_ends_close_in_every_order() {
    let ended = |mut c: Client, at: u64| {
        c.base.ack = c.base.ack.wrapping_add(1);
        c.say(ACK, at, &[]);
        c
    };
    let (c, next) = reach("last-ack");
    let c = ended(c, next);
    assert_eq!((c.app.ended, c.endpoint.flows()), (Some(Ended::Closed), 0));
    let (c, next) = reach("closing");
    let mut c = ended(c, next);
    assert_eq!((c.app.ended, c.endpoint.flows()), (Some(Ended::Closed), 1), "time-wait");
    c.pass(59_000 * MS);
    assert_eq!(c.endpoint.flows(), 1);
    c.pass(2000 * MS);
    assert_eq!(c.endpoint.flows(), 0);
}

#[test]
fn a_peer_that_never_ends_is_not_waited_for_for_ever() {
    let (mut c, _) = reach("fin-wait-2");
    c.pass(61_000 * MS);
    assert_eq!((c.app.ended, c.endpoint.flows()), (Some(Ended::Silent), 0));
    let (mut c, _) = reach("last-ack");
    c.pass(1_200_000 * MS);
    assert_eq!((c.app.ended, c.endpoint.flows()), (Some(Ended::Silent), 0));
    let mut c = Client::new(config());
    c.pass(200_000 * MS);
    assert_eq!(
        c.output.iter().filter(|seg| seg.flags == SYN | ACK).count(),
        6,
        "the answer, five times again"
    );
    assert_eq!((c.app.ended, c.endpoint.flows()), (None, 0));
    let mut c = Client::connected(Config { idle: Some(5000 * MS), ..config() });
    c.pass(6000 * MS);
    assert_eq!(c.app.ended, Some(Ended::Silent));
    assert_eq!(c.output.last().unwrap().flags & RST, RST);
}

#[test]
fn a_syn_after_time_wait_begins_anew() {
    let (mut c, _) = reach("time-wait");
    c.output.clear();
    c.app = super::app::App::default();
    let again = Seg { seq: IRS.wrapping_add(90_000), stamps: Some((90_000, 0)), ..syn() };
    c.hand_in(&again);
    let answer = c.output.last().unwrap();
    assert_eq!((answer.flags, answer.ack), (SYN | ACK, IRS.wrapping_add(90_001)));
    assert_ne!(answer.seq, c.iss);
}

#[test]
fn strangers_are_refused() {
    let mut c = Client::new(config());
    let mut answer = |seg: Seg| {
        c.output.clear();
        c.hand_in(&Seg { host: 9, ..seg });
        c.output.pop()
    };
    let reset = answer(Seg { flags: ACK, ack: 77, ..syn() }).unwrap();
    assert_eq!((reset.flags, reset.seq), (RST, 77));
    let reset = answer(Seg { flags: FIN, payload: vec![0; 9], ..syn() }).unwrap();
    assert_eq!((reset.flags, reset.seq, reset.ack), (RST | ACK, 0, IRS.wrapping_add(10)));
    for flags in [SYN | FIN, SYN | ACK] {
        assert_eq!(answer(Seg { flags, ..syn() }).unwrap().flags & RST, RST);
    }
    for flags in [RST, RST | ACK, SYN | RST] {
        assert_eq!(answer(Seg { flags, ..syn() }), None);
    }
    // Nobody listens on this port.
    let mut packet = syn().encode();
    packet[22..24].copy_from_slice(&80_u16.to_be_bytes());
    let before = c.endpoint.counters().checksum;
    c.raw(&packet, thalweg_masking::Offload::default());
    assert_eq!(c.endpoint.counters().checksum, before + 1, "the checksum speaks of another port");
    assert_eq!(c.endpoint.flows(), 1);
}

#[test]
fn acknowledgements_of_what_was_never_sent_are_not_believed() {
    let mut c = Client::new(config());
    c.base.ack = c.base.ack.wrapping_add(1);
    c.output.clear();
    c.data(0, 100);
    assert_eq!(c.output.last().map(|seg| (seg.flags, seg.seq)), Some((RST, c.base.ack)));
    assert!(c.app.agreed.is_none());
    let (mut c, next) = reach("established");
    for off in [1, 1 << 20, 1 << 31] {
        let was = c.base.ack;
        c.base.ack = was.wrapping_add(off);
        c.data(next, 50);
        c.base.ack = was;
        assert_eq!(c.stats().highest, 100, "{off}");
    }
    c.data(next, 50);
    assert_eq!(c.stats().highest, 150);
}

#[test]
fn a_flood_of_syns_is_bounded_and_real_flows_live_on() {
    let mut c = Client::connected(Config { half_open: 50, ..config() });
    c.data(0, 100);
    for port in 1..20_000 {
        c.hand_in(&Seg { port, host: 3, ..syn() });
        assert!(c.endpoint.flows() <= 51);
        c.output.clear();
    }
    assert_eq!(c.endpoint.counters().evicted, 19_999 - 50);
    c.data(100, 100);
    assert_eq!(c.stats().highest, 200);
    c.pass(300_000 * MS);
    assert_eq!(c.endpoint.flows(), 1);
}

#[test]
fn flows_are_bounded() {
    let mut c = Client::with(Config { flows: 3, ..config() }, syn());
    for port in 1..9 {
        c.hand_in(&Seg { port, host: 3, ..syn() });
    }
    assert_eq!((c.endpoint.flows(), c.endpoint.counters().crowded), (3, 6));
}

#[test]
fn the_way_back_is_reliable() {
    let (mut c, next) = reach("established");
    let flow = c.app.flow.unwrap();
    let message: Vec<u8> = (0..5000).map(|i| i as u8).collect();
    assert_eq!(c.endpoint.send(c.now, flow, &message), Some(5000));
    c.output.clear();
    c.listen();
    let sent: Vec<Seg> = std::mem::take(&mut c.output);
    assert_eq!(sent.iter().map(|seg| seg.payload.len()).collect::<Vec<_>>(), [1448, 1448, 1448, 656]);
    // The first segment is lost. Three duplicate ACKs cause its retransmission at once.
    for _ in 0..3 {
        c.say(ACK, next, &[]);
    }
    assert_eq!(
        c.output.last().map(|seg| (seg.seq, seg.payload.clone())),
        Some((sent[0].seq, sent[0].payload.clone()))
    );
    // All segments are lost. A probe repeats the last one, and then timeouts repeat the first one.
    c.output.clear();
    c.pass(5000 * MS);
    assert_eq!(c.output.remove(0).seq, sent[3].seq);
    assert!(c.output.iter().all(|seg| seg.seq == sent[0].seq) && c.output.len() >= 3, "{}", c.output.len());
    c.base.ack = c.base.ack.wrapping_add(5000);
    c.say(ACK, next, &[]);
    c.output.clear();
    c.pass(100_000 * MS);
    assert!(c.output.is_empty());
}

#[test]
fn a_closed_window_is_probed_until_it_opens() {
    let (mut c, next) = reach("established");
    c.base.window = 0;
    c.say(ACK, next, &[]);
    let flow = c.app.flow.unwrap();
    c.endpoint.send(c.now, flow, &[9; 10]);
    c.output.clear();
    c.listen();
    assert!(c.output.is_empty());
    for _ in 0..30 {
        c.pass(61_000 * MS);
        c.say(ACK, next, &[]);
    }
    assert!(c.output.iter().all(|seg| seg.payload == [9]) && c.output.len() >= 30);
    c.base.window = 100;
    c.output.clear();
    c.say(ACK, next, &[]);
    assert_eq!(c.output.last().unwrap().payload, [9; 10]);
}
