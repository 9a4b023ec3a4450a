//! Regression tests for problems ("traps") that were found with real kernels: one test each, in the order in
//! which they were found.

use thalweg_masking::Time;
use thalweg_masking::{Checksum, Config, Ecn, Ended, Offload, Policy, Rate, Reorder, Undo};
use thalweg_wire::Range;

use super::client::{config, syn, Client, IRS, MS};
use super::wire::*;

pub const M: u64 = 1448;

/// Under this configuration, every hole is retransmitted.
pub fn reliable() -> Config {
    Config { policy: Policy::critical(), ..config() }
}

pub fn holes(c: &Client) -> Vec<(u64, u64)> {
    c.app.holes.iter().map(|hole| (hole.start, hole.end)).collect()
}

#[test]
fn trap_1_checksums_are_complete_when_sent_and_may_be_partial_when_received() {
    // `Seg::decode` verifies every packet that the endpoint sends.
    let mut c = Client::connected(config());
    let mut packet = c.at(ACK, 0, &bytes(0, 100)).encode();
    packet[36] ^= 0xff;
    c.highest = c.highest.wrapping_add(100);
    c.raw(&packet, Offload::default());
    assert_eq!((c.stats().highest, c.endpoint.counters().checksum), (0, 1));
    for checksum in [Checksum::Partial, Checksum::Verified] {
        c.raw(&packet, Offload { checksum, segment: 0 });
    }
    assert_eq!(c.stats().highest, 100);
    assert_eq!(Offload::read(&[1, 1, 0, 0, 0xa8, 5, 20, 0, 16, 0]).checksum, Checksum::Partial);
}

/// Does what a device does for `NEEDS_CSUM` (virtio 1.2 section 5.1.6.2).
fn completed(mut packet: Vec<u8>, vnet: [u8; 10]) -> Vec<u8> {
    let short = |at: usize| usize::from(u16::from_ne_bytes([vnet[at], vnet[at + 1]]));
    let (start, offset) = (short(6), short(8));
    let checksum = !fold(sum(&packet[start..]));
    packet[start + offset..start + offset + 2].copy_from_slice(&checksum.to_be_bytes());
    packet
}

#[test]
fn trap_1_a_superpacket_has_the_headers_of_its_first_segment() {
    for (v6, kind, headers) in [(false, 1, 52), (true, 4, 72)] {
        let mut c = Client::with(Config { offload: true, ..config() }, Seg { v6, ..syn() });
        c.finish_handshake();
        let (flow, now, mut packet) = (c.app.flow.unwrap(), c.now, Vec::new());
        c.endpoint.send(now, flow, &bytes(0, 5_000));
        let offload = c.endpoint.poll_packet(now, &mut packet).unwrap();
        let vnet = offload.write(&packet);
        let [low, high] = u16::to_ne_bytes(headers);
        assert_eq!(vnet[..4], [1, kind, low, high]);
        assert_eq!((offload, Offload::read(&vnet)), (offload, offload));
        let each = usize::from(offload.segment);
        assert!((1_200..1_460).contains(&each) && packet.len() == usize::from(headers) + 5_000);
        assert_eq!(Seg::decode(&completed(packet.clone(), vnet)).payload, bytes(0, 5_000));
        // A single segment is not cut, and an ACK needs no offload.
        c.endpoint.send(now, flow, &bytes(5_000, 100));
        let offload = c.endpoint.poll_packet(now, &mut packet).unwrap();
        assert_eq!(offload, Offload { checksum: Checksum::Partial, segment: 0 });
        assert_eq!(
            Seg::decode(&completed(packet.clone(), offload.write(&packet))).payload,
            bytes(5_000, 100)
        );
        let seg = Seg { ack: c.iss.wrapping_add(5_101), ..c.at(ACK, 0, &bytes(0, 100)) }.encode();
        drop(c.endpoint.handle_packet(now, &seg, Offload::default()));
        c.endpoint.handle_timeout(now + 100 * MS);
        assert_eq!(c.endpoint.poll_packet(now + 100 * MS, &mut packet), Some(Offload::default()));
        assert_eq!((Seg::decode(&packet).payload, Offload::default().write(&packet)), (vec![], [0; 10]));
    }
}

#[test]
fn trap_2_the_first_window_is_small() {
    let c = Client::new(Config { rate: Rate::default(), ..config() });
    assert!(c.output[0].window > 0 && c.output[0].scale == Some(10));
    let mut c = Client::connected(Config { rate: Rate::default(), ..config() });
    c.data(0, 2896);
    let window = u64::from(c.output.last().unwrap().window) << 10;
    assert!((64 * M..64 * M + 2 * M).contains(&window), "{window}");
}

#[test]
fn trap_3_masked_bytes_are_not_delivered_bytes() {
    let mut c = Client::connected(config());
    for i in 0..10 {
        c.data(2 * i * M, M as usize);
    }
    c.pass(100 * MS);
    assert_eq!((c.stats().delivered, c.stats().missing, c.stats().acknowledged), (10 * M, 9 * M, 19 * M));
}

#[test]
fn trap_4_a_repair_is_acknowledged_with_an_echo_from_before_it() {
    let mut c = Client::connected(reliable());
    c.data(0, M as usize);
    c.data(M, M as usize);
    let before = c.now.as_millis() as u32;
    for i in 3..8 {
        c.now += MS;
        c.data(i * M, M as usize);
        assert_eq!((c.acked(), c.blocks()), (Some(2 * M), vec![(3 * M, (i + 1) * M)]));
    }
    c.now += 40 * MS;
    c.data(2 * M, M as usize);
    let last = c.output.last().unwrap().clone();
    // The echo is the second newest timestamp from before the report of the loss reached the client.
    assert_eq!((c.acked(), last.stamps.unwrap().1), (Some(8 * M), before + 4));
    c.now += MS;
    c.data(8 * M, 2 * M as usize);
    assert_eq!(
        c.output.last().unwrap().stamps.unwrap().1,
        c.now.as_millis() as u32,
        "and then on with the new"
    );
    // Without Eifel, the endpoint echoes the timestamp of the retransmission (RFC 7323).
    let mut undo = reliable();
    undo.undo.eifel = false;
    let mut c = Client::connected(undo);
    c.data(M, M as usize);
    c.now += 40 * MS;
    c.data(0, M as usize);
    assert_eq!(c.output.last().unwrap().stamps.unwrap().1, c.now.as_millis() as u32);
}

/// If the retransmission after a timeout is lost too, the next one follows a second later, after a timeout
/// twice as long. The echo must be from before the first retransmission. Otherwise the sender keeps the
/// reduction.
#[test]
fn trap_4_a_repair_by_the_second_timeout_too() {
    let mut c = Client::connected(config());
    for i in 0..10 {
        c.pass(20 * MS);
        c.data(2 * i * M, 2 * M as usize);
    }
    let last = c.now.as_millis() as u32;
    c.now += (244 + 488) * MS;
    c.data(20 * M, 2 * M as usize);
    assert_eq!(c.output.last().unwrap().stamps.unwrap().1, last + 199);
}

/// Linux drops its loss marks when it undoes a reduction (`tcp_undo_cwnd_reduction`). With nothing new in
/// flight, it would detect no other hole, and retransmit only once per timeout.
#[test]
fn trap_4_of_several_holes_at_the_end_none_is_undone() {
    let mut c = Client::connected(reliable());
    for i in [0, 2, 4, 6, 7, 8] {
        c.data(i * M, M as usize);
    }
    let echo = |c: &Client| c.output.last().unwrap().stamps.unwrap().1;
    c.now += 41 * MS;
    c.data(M, M as usize);
    assert_eq!((c.acked(), echo(&c)), (Some(3 * M), c.now.as_millis() as u32), "two are left");
    c.now += 40 * MS;
    c.data(3 * M, M as usize);
    c.now += MS;
    let before = c.now.as_millis() as u32;
    c.data(5 * M, M as usize);
    assert_eq!(c.acked(), Some(9 * M));
    assert!(echo(&c) < before, "the last of them");
}

/// If a retransmission is lost and nothing follows it, the sender repeats it after a timeout, within the same
/// recovery. When echoes were limited to 200 ms, Linux kept the reduction of the whole recovery, and began
/// its next update in slow start.
#[test]
fn trap_4_a_repair_that_is_lost_at_the_end_too() {
    let after = |silence: Time| {
        let mut policy = Policy::lossy();
        policy.protect(Range::new(10 * M, 30 * M));
        let mut c = Client::connected(Config { policy, ..config() });
        // Ten holes are masked, and then two are held.
        for i in [0, 11, 13, 15, 16] {
            c.data(i * M, M as usize);
            c.pass(MS);
        }
        let reported = c.now.as_millis() as u32;
        c.pass(41 * MS);
        c.data(10 * M, M as usize);
        c.data(12 * M, M as usize);
        c.pass(silence);
        c.data(14 * M, M as usize);
        assert_eq!((c.acked(), c.stats().missing), (Some(17 * M), 9 * M));
        (c.output.last().unwrap().stamps.unwrap().1, reported, c.now.as_millis() as u32)
    };
    let (echo, reported, _) = after(280 * MS);
    assert!(echo < reported, "from before the first repair: {echo}, {reported}");
    let (echo, reported, _) = after(600 * MS);
    assert!(echo < reported, "after two timeouts: {echo}, {reported}");
    // If no timer can have expired, an old echo would harm the sender's timer more than it helps.
    let (echo, _, now) = after(190 * MS);
    assert_eq!(echo, now);
}

#[test]
fn trap_4_a_repair_by_timeout_too() {
    let mut c = Client::connected(config());
    c.data(0, 2 * M as usize);
    c.now += 250 * MS;
    c.data(2 * M, 2 * M as usize);
    assert_eq!(c.output.last().unwrap().stamps.unwrap().1, c.now.as_millis() as u32 - 1);
}

/// In recovery, a sender sends one more packet for each ACK that advances, reports something and shows no new
/// loss (RFC 6937). This makes up for losses. If an ACK reports nothing new, the sender takes the age of the
/// echo for an RTT. Reported bytes must be acknowledged at once, or the sender thinks that they were dropped.
#[test]
fn trap_4_ack_division_while_other_holes_are_left() {
    let acks = |c: &mut Client, offset, segments| {
        c.output.clear();
        c.data(offset, (segments * M) as usize);
        c.listen();
        let first = IRS.wrapping_add(1);
        let place = |number: u32| u64::from(number.wrapping_sub(first));
        let top = |seg: &Seg| seg.sack.iter().map(|&(_, end)| place(end)).max();
        c.output.iter().map(|seg| (place(seg.ack), top(seg))).collect::<Vec<_>>()
    };
    // In the third flight, the second and sixth segments are lost. `in_ms` segments arrive in a millisecond.
    let missing = |config: Config, in_ms: u32| {
        let mut c = started(config, in_ms);
        for i in [0, 2, 3, 4, 6, 7, 8] {
            c.data((FLIGHTS + i) * M, M as usize);
        }
        c.pass(40 * MS);
        assert_eq!((c.acked(), c.stats().missing), (Some((FLIGHTS + 1) * M), 0));
        c.data((FLIGHTS + 9) * M, M as usize);
        c
    };
    let at = |segments| (FLIGHTS + segments) * M;
    let mut c = missing(reliable(), 60);
    let part = M / 32;
    assert_eq!(acks(&mut c, at(1), 1), [(at(1), Some(at(10)))], "there is nothing to report");
    assert_eq!(acks(&mut c, at(10), 1), [(at(1) + part, Some(at(11)))]);
    let reported = [(2, 13), (3, 15), (4, 16)].map(|(parts, end)| (at(1) + parts * part, Some(at(end))));
    assert_eq!(acks(&mut c, at(11), 5), reported);
    c.pass(3 * MS);
    assert_eq!(c.acked(), Some(at(5)), "a sixteenth of a round trip is over");
    assert_eq!(acks(&mut c, at(5), 1), [(at(16), None)], "nothing else is missing");
    // If nothing new arrives, there is nothing to report.
    let mut c = missing(reliable(), 60);
    c.pass(3 * MS);
    assert_eq!(acks(&mut c, at(1), 1), [(at(5), Some(at(10)))]);
    // A paced sender needs no ACK division. A sender that cannot undo its reductions gets none.
    let mut plain = reliable();
    plain.undo.eifel = false;
    for mut c in [missing(reliable(), 6), missing(plain, 60)] {
        assert_eq!(acks(&mut c, at(1), 1), [(at(5), Some(at(10)))]);
    }
}

/// Number of segments in two flights.
const FLIGHTS: u64 = 210;

/// A client that has sent two flights, `in_ms` segments in a millisecond.
fn started(config: Config, in_ms: u32) -> Client {
    let mut c = Client::connected(Config { rate: Rate::default(), ..config });
    for (first, end) in [(0, 70), (70, FLIGHTS)] {
        let since = c.now;
        for i in first..end {
            c.data(i * M, M as usize);
            c.pass(MS / in_ms);
        }
        c.pass((since + 40 * MS).saturating_sub(c.now));
    }
    c
}

/// A sender that learns of new holes before it has filled the old ones does not leave recovery, so its window
/// does not grow.
#[test]
fn trap_4_the_window_is_frozen_while_a_start_has_holes() {
    let right_edge = |c: &Client| c.stats().right_edge;
    let start = FLIGHTS * M;
    // The third flight has a hole. `in_ms` segments arrive in a millisecond.
    let until_hole = |in_ms: u32| {
        let mut c = started(reliable(), in_ms);
        for i in (0..12).filter(|i| *i != 2) {
            c.data(start + i * M, M as usize);
            c.pass(MS / in_ms);
        }
        c.pass(2 * MS);
        assert_eq!((c.acked(), c.stats().missing), (Some(start + 2 * M), 0));
        c
    };
    let grows = |c: &mut Client| {
        let before = right_edge(c);
        c.data(start + 12 * M, 4 * M as usize);
        right_edge(c) - before
    };
    // The window of a paced sender grows in recovery too.
    assert!(grows(&mut until_hole(6)) >= 4 * M);
    let mut c = until_hole(60);
    assert_eq!(grows(&mut c), 0);
    let held = right_edge(&c);
    // After a silence, the window opens a little, once, so that the ACKs show which retransmissions are lost.
    c.pass(15 * MS);
    let trickle = right_edge(&c);
    assert!((2 * M..3 * M).contains(&(trickle - held)), "{}", trickle - held);
    c.pass(25 * MS);
    assert_eq!(right_edge(&c), trickle);
    c.data(start + 2 * M, M as usize);
    c.pass(5 * MS);
    assert_eq!(c.acked(), Some(start + 16 * M));
    assert!(right_edge(&c) > trickle + 10 * M, "{} {trickle}", right_edge(&c));
}

#[test]
fn trap_5_late_data_fills_the_mask() {
    let mut c = Client::connected(config());
    c.data(0, M as usize);
    let (late, stamp) = (bytes(M, 2 * M as usize), c.now.as_millis() as u32);
    c.now += 3 * MS;
    c.data(3 * M, 4 * M as usize);
    c.data(7 * M, 4 * M as usize);
    c.pass(20 * MS);
    assert_eq!(holes(&c), [(M, 3 * M)]);
    // Its timestamp is older than later echoes, but it may be as old as the hole, so PAWS accepts it.
    let seg = Seg { stamps: Some((stamp, c.echo)), ..c.at(ACK, M, &late) };
    c.hand_in(&seg);
    assert_eq!((c.app.late, c.stats().missing, c.endpoint.counters().outdated), (2 * M, 0, 0));
    // To the sender this data is a duplicate.
    assert_eq!(c.blocks(), [(M, 3 * M)]);
    c.hand_in(&Seg { stamps: Some((stamp - 1, c.echo)), ..c.at(ACK, M, &late) });
    assert_eq!(c.endpoint.counters().outdated, 1);
}

#[test]
fn trap_6_reordering_is_waited_out() {
    let slow = Config { reorder: Reorder { packets: Some(3), ..Reorder::default() }, ..config() };
    let mut c = Client::connected(slow.clone());
    c.data(0, M as usize);
    c.output.clear();
    c.data(2 * M, M as usize);
    c.data(3 * M, M as usize);
    assert!(c.output.is_empty(), "nothing is said of it: neither masked nor shown");
    c.data(M, M as usize);
    assert_eq!((c.acked(), holes(&c)), (Some(4 * M), vec![]));
    for i in 5..8 {
        c.data(i * M, M as usize);
    }
    assert_eq!((c.acked(), holes(&c)), (Some(8 * M), vec![(4 * M, 5 * M)]), "three later ones");
    c.data(9 * M, M as usize);
    c.pass(9 * MS);
    assert_eq!(holes(&c).len(), 1, "a quarter of 40 ms");
    c.pass(2 * MS);
    assert_eq!((c.acked(), holes(&c).len()), (Some(10 * M), 2));
    assert!(c.output.iter().all(|seg| seg.sack.is_empty()), "masked holes are never shown");
    // A superpacket counts as the number of its segments on the network. But if it opens a gap, it counts as
    // one, since it may have overtaken what comes next.
    let four = Offload { checksum: Checksum::Complete, segment: M as u16 };
    let superpacket =
        |c: &mut Client, start: u64| c.hand_over(&c.at(ACK, start, &bytes(start, 4 * M as usize)), four);
    let mut c = Client::connected(slow);
    superpacket(&mut c, 4 * M);
    assert_eq!(holes(&c), []);
    superpacket(&mut c, 0);
    assert_eq!((c.acked(), holes(&c)), (Some(8 * M), vec![]));
    superpacket(&mut c, 9 * M);
    superpacket(&mut c, 13 * M);
    assert_eq!((c.acked(), holes(&c)), (Some(17 * M), vec![(8 * M, 9 * M)]));
}

/// Two segments overtake many others. A gap waits while segments arrive that were sent before it.
#[test]
fn trap_6_a_gap_waits_for_what_was_sent_before_it() {
    let reorder = Reorder { packets: Some(3), ..Reorder::default() };
    let mut c = Client::connected(Config { reorder, ..config() });
    let stamps = Some((c.now.as_millis() as u32, c.echo));
    for i in [20, 40].into_iter().chain(0..20).chain(21..40) {
        c.now += 4 * MS;
        c.hand_in(&Seg { stamps, ..c.at(ACK, i * M, &bytes(i * M, M as usize)) });
    }
    assert_eq!((c.acked(), holes(&c)), (Some(41 * M), vec![]));
}

/// Part of a segment is critical. The rest of it is masked, and arrives with that part a round trip later.
/// That is no reordering, so the next gap must not wait longer.
#[test]
fn trap_6_what_is_sent_again_was_not_overtaken() {
    for stamped in [true, false] {
        let mut policy = Policy::lossy();
        policy.protect(Range::new(M, M + 52));
        let reorder = Reorder { packets: Some(3), ..Reorder::default() };
        let mut c = Client::connected(Config { policy, reorder, timestamps: stamped, ..config() });
        c.stamped = stamped;
        c.data(0, M as usize);
        for i in 2..8 {
            c.data(i * M, M as usize);
        }
        c.now += 41 * MS;
        c.data(M, M as usize);
        assert_eq!((c.acked(), c.stats().missing), (Some(8 * M), 0));
        for i in 9..12 {
            c.data(i * M, M as usize);
        }
        assert_eq!((c.acked(), holes(&c).last()), (Some(12 * M), Some(&(8 * M, 9 * M))), "{stamped}");
    }
}

#[test]
fn trap_7_a_lost_tail_is_the_sender_s_to_repair() {
    let mut c = Client::connected(config());
    c.data(0, 2 * M as usize);
    c.say(ACK | FIN, 4 * M, &[]);
    assert_eq!(c.app.finished, None);
    c.pass(20 * MS);
    assert_eq!((c.app.finished, holes(&c)), (Some(4 * M), vec![(2 * M, 4 * M)]), "the end tells");
    // Nothing shows the loss of the last segment. An application that knows the length ends the connection
    // early.
    let mut c = Client::connected(config());
    c.data(0, 2 * M as usize);
    c.pass(10_000 * MS);
    assert_eq!((c.acked(), c.app.holes.bytes()), (Some(2 * M), 0));
    let flow = c.app.flow.unwrap();
    c.endpoint.abort(c.now, flow);
    c.listen();
    assert_eq!((c.app.ended, c.output.last().unwrap().flags & RST), (Some(Ended::Aborted), RST));
}

/// If the last segment is lost and it is the only one in flight, the sender would retransmit it 200 ms later,
/// since it expects a delayed ACK (RFC 8985 section 7.2). A second unacknowledged segment avoids that.
#[test]
fn trap_7_the_last_segment_is_acknowledged_late_where_more_is_to_come() {
    let expecting = || {
        let mut c = Client::connected(config());
        let (flow, now) = (c.app.flow.unwrap(), c.now);
        c.endpoint.expect(now, flow, true);
        c.data(0, 4 * M as usize);
        c.pass(150 * MS);
        assert_eq!(c.acked(), Some(3 * M));
        c
    };
    let mut c = expecting();
    c.pass(60 * MS);
    assert_eq!(c.acked(), Some(4 * M), "no sender's timer may run out");
    // More data has arrived, so the delayed ACK is sent, and the ACK of the last new segment is delayed.
    let mut c = expecting();
    c.data(4 * M, 2 * M as usize);
    assert_eq!((c.acked(), c.blocks()), (Some(5 * M), vec![]));
    // A probe arrives: it is the delayed segment again, or the lost one.
    let mut c = expecting();
    c.data(3 * M, M as usize);
    assert_eq!((c.acked(), c.blocks()), (Some(4 * M), vec![(3 * M, 4 * M)]));
    let mut c = expecting();
    c.data(4 * M, M as usize);
    assert_eq!((c.acked(), c.blocks()), (Some(5 * M), vec![(4 * M, 5 * M)]));
    // The application expects no more data.
    let mut c = expecting();
    let (flow, now) = (c.app.flow.unwrap(), c.now);
    c.endpoint.expect(now, flow, false);
    c.listen();
    assert_eq!(c.acked(), Some(4 * M));
    c.data(4 * M, 2 * M as usize);
    assert_eq!(c.acked(), Some(6 * M));
    // A hole is masked as usual.
    let mut c = expecting();
    c.data(5 * M, 4 * M as usize);
    c.pass(20 * MS);
    assert_eq!((c.acked(), holes(&c)), (Some(8 * M), vec![(4 * M, 5 * M)]));
    // The ACK of the FIN acknowledges everything before it.
    let mut c = expecting();
    c.say(ACK | FIN, 4 * M, &bytes(4 * M, M as usize));
    assert_eq!(c.acked(), Some(5 * M + 1));
}

/// When its probe has repaired the loss of a short message, Linux reduces its window to 7 segments. It does
/// not if an ACK reports that the message had arrived before.
#[test]
fn trap_7_a_tail_loss_probe_is_taken_for_needless() {
    let mut c = Client::connected(config());
    c.pass(250 * MS);
    c.data(0, 57);
    assert_eq!((c.acked(), c.blocks()), (Some(57), vec![(0, 57)]), "the first message of all");
    c.pass(10 * MS);
    c.data(57, 57);
    c.pass(10 * MS);
    assert_eq!((c.acked(), c.blocks()), (Some(114), vec![]), "it follows on the other");
    c.pass(70 * MS);
    c.data(114, 57);
    assert_eq!((c.acked(), c.blocks()), (Some(171), vec![(114, 171)]), "two round trips later");
    c.pass(70 * MS);
    c.data(171, 4 * M as usize);
    assert_eq!(c.blocks(), [], "a probe is one segment");
    let undo = Undo { probes: false, ..config().undo };
    let mut c = Client::connected(Config { undo, ..config() });
    c.pass(250 * MS);
    c.data(0, 57);
    c.pass(10 * MS);
    assert_eq!((c.acked(), c.blocks()), (Some(57), vec![]));
}

/// Cubic leaves slow start when ACKs have come for half a round trip without a pause of 2 ms (HyStart).
#[test]
fn trap_8_acknowledgements_are_no_train_while_a_sender_starts() {
    let longest = |rate: Rate| {
        let mut c = Client::connected(Config { rate, ..config() });
        let mut times = Vec::new();
        for i in 0..600 {
            c.data(i * 2 * M, 2 * M as usize);
            c.pass(MS / 10);
            times.extend(std::iter::repeat_n(c.now, c.output.drain(..).count()));
        }
        assert!(times.len() > 100 && c.stats().highest == 1200 * M);
        let (mut since, mut longest) = (times[0], Time::ZERO);
        for pair in times.windows(2) {
            since = if pair[1] - pair[0] > 2 * MS { pair[1] } else { since };
            longest = longest.max(pair[1] - since);
        }
        longest
    };
    assert!(longest(Rate::default()) <= 6 * MS, "{:?}", longest(Rate::default()));
    // This controller detects no slow start.
    assert!(longest(Rate::None) > 55 * MS, "{:?}", longest(Rate::None));
}

/// A sender that doubles its flight each round trip, in bursts, never has to wait for the window.
#[test]
fn trap_8_a_start_in_bursts_is_not_held_back() {
    let mut c = Client::connected(Config { rate: Rate::default(), ..config() });
    let (mut burst, mut offset) = (10, 0);
    for _ in 0..8 {
        let end = c.now + 40 * MS;
        for _ in 0..burst {
            assert!(offset + M <= c.stats().right_edge, "a burst of {burst}");
            c.data(offset, M as usize);
            offset += M;
            c.pass(MS / 60);
        }
        c.pass(end - c.now);
        // The window is twice what a round trip carried. With 1.8 times, the sender would have to wait while
        // the burst arrives.
        burst = burst * 9 / 5;
    }
    assert!(burst > 1000);
    // A small message that was delayed does not end the start.
    let mut c = Client::connected(Config { rate: Rate::default(), ..config() });
    for i in 0..10 {
        let sent = c.now - if i > 3 { 20 * MS } else { Time::ZERO };
        let seg =
            Seg { stamps: Some((sent.as_millis() as u32, c.echo)), ..c.at(ACK, i * 57, &bytes(i * 57, 57)) };
        c.hand_in(&seg);
        c.pass(15 * MS);
    }
    let before = c.stats().window;
    assert!(before >= 64 * M, "{before}");
}

#[test]
fn trap_8_and_9_the_window_is_the_only_brake_and_is_never_far_above_what_the_path_carries() {
    // The path has 1448 bytes a millisecond and an RTT of 40 ms, and its queue grows beyond 58 kB in flight.
    // The window must stop a sender that would stay in slow start.
    let mut c = Client::connected(Config { rate: Rate::default(), ..config() });
    let (mut free, mut offset) = (c.now, 0);
    let mut widest = 0;
    for _ in 0..3000 {
        let stats = c.stats();
        // Everything up to the right edge was sent a round trip ago, or waits.
        let under_way = stats.right_edge - stats.highest;
        widest = widest.max(under_way);
        free += MS;
        let sent = free.saturating_sub(MS * (under_way / M) as u32).max(c.now - 40 * MS);
        c.pass(free.saturating_sub(c.now));
        let seg = Seg {
            stamps: Some((sent.as_millis() as u32, c.echo)),
            ..c.at(ACK, offset, &bytes(offset, M as usize))
        };
        c.hand_in(&seg);
        offset += M;
    }
    assert!(widest < 5 * 58_000, "{widest}");
}

#[test]
fn trap_10_old_timestamps_and_missing_ones() {
    let mut c = Client::connected(config());
    c.data(0, 2 * M as usize);
    let now = c.now.as_millis() as u32;
    c.output.clear();
    c.hand_in(&Seg { stamps: Some((now - 1, c.echo)), ..c.at(ACK, 2 * M, &bytes(2 * M, 10)) });
    c.hand_in(&Seg { stamps: None, ..c.at(ACK, 2 * M, &bytes(2 * M, 10)) });
    assert_eq!((c.endpoint.counters().outdated, c.stats().highest), (2, 2 * M));
    assert!(c.output.iter().all(|seg| seg.flags == ACK && seg.ack == IRS.wrapping_add(1 + 2 * M as u32)));
    // After a masked hole, the echo is the timestamp of the segment that opened the gap. It is the first of
    // the acknowledged segments.
    let shown = c.now.as_millis() as u32 + 1;
    for i in 3..6 {
        c.now += MS;
        c.data(i * M, M as usize);
    }
    assert_eq!((c.acked(), c.output.last().unwrap().stamps.unwrap().1), (Some(6 * M), shown));
}

#[test]
fn trap_11_window_fields() {
    // The window is unscaled in the SYN-ACK and rounded up later, so rounding never makes it 0. The client of
    // the test checks the right edge.
    for (fixed, scaled) in [(100, 1), (1024, 1), (1025, 2), (5000, 5)] {
        let mut c = Client::connected(Config { rate: Rate::Fixed(fixed), ..config() });
        assert_eq!(c.endpoint.flows(), 1);
        c.data(0, fixed as usize);
        c.pass(10 * MS);
        assert_eq!(c.output.last().map(|seg| seg.window), Some(scaled), "{fixed}");
    }
    // If not both sides have the window scale option, the window is at most 64 KiB.
    let mut c = Client::with(config(), Seg { scale: None, ..syn() });
    assert_eq!(c.output[0].scale, None);
    c.finish_handshake();
    c.data(0, 2 * M as usize);
    assert_eq!(c.output.last().map(|seg| seg.window), Some(65_535));
}

#[test]
fn trap_11_what_the_application_has_no_place_for_is_not_asked_for() {
    let mut c = Client::connected(config());
    let flow = c.app.flow.unwrap();
    // The receiver does not take back what it has advertised. After that, the window closes.
    c.endpoint.admit(c.now, flow, 10);
    let mut offset = 0;
    while c.stats().right_edge > offset {
        let length = (c.stats().right_edge - offset).min(M);
        c.data(offset, length as usize);
        offset += length;
        c.pass(10 * MS);
    }
    // Rounding up adds half a unit on average to each ACK.
    assert!((65_535..2 * 65_535).contains(&offset), "{offset}");
    assert_eq!(c.output.last().map(|seg| seg.window), Some(0));
    c.output.clear();
    // Probes: a byte beyond the window, and an empty segment before it.
    let highest = c.highest;
    c.data(offset, 1);
    c.highest = highest;
    c.say(ACK, offset - 1, &[]);
    assert_eq!(c.output.iter().map(|seg| (seg.window, seg.ack)).collect::<Vec<_>>(), [(0, highest); 2]);
    assert_eq!(c.app.got.bytes(), offset);
    c.output.clear();
    c.endpoint.admit(c.now, flow, offset + 100_000);
    c.listen();
    assert_eq!(c.output.last().map(|seg| seg.window), Some(98), "an update without being asked");
}

#[test]
fn trap_12_the_end_after_a_hole_waits_for_it() {
    let mut c = Client::connected(config());
    c.data(0, M as usize);
    let end = c.at(ACK | FIN, 2 * M, &bytes(2 * M, M as usize));
    c.hand_in(&end);
    assert_eq!((c.app.finished, c.app.got.bytes()), (None, 2 * M));
    c.data(M, M as usize);
    assert_eq!((c.app.finished, c.acked()), (Some(3 * M), Some(3 * M + 1)));
    // The endpoint refuses a FIN at another offset, and bytes after the FIN.
    c.say(ACK | FIN, 5 * M, &[]);
    c.data(3 * M, 100);
    c.say(ACK | FIN, M, &[]);
    assert_eq!((c.app.got.bytes(), c.acked()), (3 * M, Some(3 * M + 1)));
    // A critical hole before the FIN must be filled first.
    let mut c = Client::connected(reliable());
    c.say(ACK | FIN, M, &[]);
    c.pass(1000 * MS);
    assert_eq!((c.app.finished, c.acked()), (None, Some(0)));
    c.data(0, M as usize);
    assert_eq!((c.app.finished, c.acked()), (Some(M), Some(M + 1)));
}

#[test]
fn trap_13_a_forged_segment_masks_at_most_a_bound() {
    let mut policy = Policy::lossy();
    policy.largest = 10 * M;
    let mut c = Client::connected(Config { policy, ..config() });
    c.data(0, 2 * M as usize);
    // Without knowledge of our timestamps, an attacker masks nothing.
    for echo in [0, c.echo.wrapping_add(1 << 30), c.echo.wrapping_sub(20_000), c.echo.wrapping_add(10_000)] {
        let seg = Seg { stamps: Some((c.now.as_millis() as u32, echo)), ..c.at(ACK, 20_000, &[1; 10]) };
        c.hand_in(&seg);
    }
    c.pass(100 * MS);
    assert_eq!((c.endpoint.counters().forged, c.stats().highest, c.app.holes.bytes()), (4, 2 * M, 0));
    // With our timestamp, a jump over the limit is held, not masked.
    c.data(13 * M, M as usize);
    c.pass(100 * MS);
    assert_eq!((c.app.holes.bytes(), c.acked(), c.blocks()), (0, Some(2 * M), vec![(13 * M, 14 * M)]));
    c.data(2 * M, 11 * M as usize);
    c.data(20 * M, M as usize);
    c.pass(100 * MS);
    assert_eq!((holes(&c), c.acked()), (vec![(14 * M, 20 * M)], Some(21 * M)));
}

#[test]
fn trap_14_nothing_beyond_the_highest_byte_is_acknowledged() {
    // The client of the test checks this at each segment. Here all input tries to provoke it.
    let mut c = Client::connected(config());
    c.data(0, M as usize);
    c.data(3 * M, M as usize);
    c.say(ACK | FIN, 6 * M, &[]);
    c.pass(1000 * MS);
    assert_eq!((c.acked(), c.app.finished), (Some(6 * M + 1), Some(6 * M)));
    assert_eq!(holes(&c), [(M, 3 * M), (4 * M, 6 * M)]);
}

#[test]
fn trap_15_marks_and_heavy_loss_stop_the_window_where_delay_shows_nothing() {
    for (marked, every) in [(true, 1), (false, 3)] {
        let ecn = if marked { Ecn::Ignore } else { Ecn::Refuse };
        let mut c = Client::with(
            Config { rate: Rate::default(), ecn, ..config() },
            Seg { flags: SYN | ECE | CWR, ..syn() },
        );
        assert_eq!(c.output[0].flags & ECE > 0, marked);
        c.finish_handshake();
        let mut calm = 0;
        for i in 0..6000_u64 {
            if i % 2 == 0 {
                c.pass(MS);
            }
            let ce = marked && i > 1000;
            if i == 1000 {
                calm = c.stats().window;
            }
            let lost = !marked && i > 1000 && i % every > 0;
            if !lost {
                let seg = Seg { ce, ..c.at(ACK, i * M, &bytes(i * M, M as usize)) };
                c.hand_in(&seg);
                assert!(c.output.iter().all(|seg| seg.flags & ECE == 0), "ignored: for the controller alone");
                c.output.clear();
            }
        }
        assert!(c.stats().window < calm, "{marked}: {} of {calm}", c.stats().window);
    }
}

#[test]
fn trap_15_marks_are_echoed_where_that_is_agreed() {
    let mut c = Client::with(Config { ecn: Ecn::Echo, ..config() }, Seg { flags: SYN | ECE | CWR, ..syn() });
    c.finish_handshake();
    let seg = Seg { ce: true, ..c.at(ACK, 0, &bytes(0, 100)) };
    c.hand_in(&seg);
    assert_eq!(c.output.last().unwrap().flags & ECE, ECE);
    c.data(100, 2 * M as usize);
    assert_eq!(c.output.last().unwrap().flags & ECE, ECE, "until the sender has heard");
    c.say(ACK | CWR, 100 + 2 * M, &bytes(100 + 2 * M, 2 * M as usize));
    assert_eq!(c.output.last().unwrap().flags & ECE, 0);
}

#[test]
fn trap_17_only_tcp_is_answered() {
    // Senders that skip sequence numbers to detect optimistic ACKs use other protocols.
    let mut c = Client::connected(config());
    let mut packet = c.at(ACK, 0, &bytes(0, 100)).encode();
    packet[9] = 17;
    c.raw(&packet, Offload { checksum: Checksum::Partial, segment: 0 });
    assert_eq!((c.endpoint.counters().senseless, c.stats().highest, c.output.len()), (1, 0, 0));
}
