//! Invariants under any input. Bytes and holes together are exactly the stream, and no byte is wrong or
//! arrives twice (`App` checks this). The right edge never moves left, and nothing is acknowledged that has
//! not been sent (`Client` and `World` check this).

use thalweg_linkmodel::{Burst, Shape};
use thalweg_masking::Time;
use thalweg_masking::{Config, Policy, Rate};
use thalweg_rng::Rng;
use thalweg_wire::Range;

use super::client::{config, syn, Client, MS};
use super::congestion::Kind;
use super::sender::Sender;
use super::table;
use super::wire::{bytes, Seg, ACK, FIN};
use super::world::World;

const STREAM: u64 = 100_000;

/// A piece of the stream, often where the last one ended.
fn piece(rng: &mut Rng, at: &mut u64) -> (u64, usize) {
    let start = match rng.up_to(10) {
        1 => rng.draw() % STREAM,
        2 => at.saturating_sub(rng.up_to(5000)),
        3 => *at + rng.up_to(4000),
        _ => *at,
    };
    let start = start.min(STREAM - 1);
    let most = if rng.hits(0.1) { 20_000 } else { 1448 };
    let length = rng.up_to(most).min(STREAM - start);
    *at = (start + length) % STREAM;
    (start, length as usize)
}

fn policy(rng: &mut Rng) -> Policy {
    let mut policy = if rng.hits(0.5) { Policy::lossy() } else { Policy::critical() };
    policy.reliable = [0.0, 0.0, 0.3, 1.0][rng.draw() as usize % 4];
    policy.largest = [1 << 20, 3000][rng.draw() as usize % 2];
    policy
}

#[test]
fn any_order_of_any_pieces_comes_to_the_stream() {
    let (mut holes, mut late) = (0, 0);
    for seed in 0..500 {
        let mut rng = Rng::new(&[seed, 77]);
        let (gaps, masks) = (rng.up_to(20) as usize, rng.draw() as usize % 10);
        let config = Config { policy: policy(&mut rng), gaps, masks: masks * 100, ..config() };
        let first = Seg { stamps: syn().stamps.filter(|_| rng.hits(0.7)), sack_ok: rng.hits(0.7), ..syn() };
        let mut c = Client::with(config, first);
        c.finish_handshake();
        let flow = c.app.flow.expect("connected");
        let mut at = 0;
        for _ in 0..rng.up_to(200) {
            match rng.up_to(20) {
                1 => c.pass(MS * rng.up_to(30) as u32),
                2 => {
                    let (start, length) = piece(&mut rng, &mut at);
                    let range = Range::new(start, start + length as u64);
                    match rng.up_to(3) {
                        1 => c.endpoint.protect(c.now, flow, range),
                        2 => c.endpoint.permit(c.now, flow, range),
                        _ => c.endpoint.forget(c.now, flow, start),
                    }
                    c.listen();
                }
                3 => c.say(ACK, at, &[]),
                _ => {
                    let (start, length) = piece(&mut rng, &mut at);
                    c.data(start, length);
                }
            }
            let (gaps_now, masks_now) = c.stats().tables;
            // Ranges that the application sets may split a gap.
            assert!(gaps_now <= 20 * 200 && masks_now <= masks * 100 + 2, "{gaps_now} {masks_now}");
        }
        // Then everything is sent again, as a sender would do in the end, and then the FIN.
        for start in (0..STREAM).step_by(1448) {
            c.data(start, (STREAM - start).min(1448) as usize);
        }
        c.say(ACK | FIN, STREAM, &[]);
        c.pass(1000 * MS);
        assert_eq!(c.app.finished, Some(STREAM), "seed {seed}");
        assert_eq!(c.app.got.bytes() + c.app.missing(), STREAM);
        assert_eq!(c.stats().missing, c.app.missing());
        holes += c.app.holes.count();
        late += c.app.late;
    }
    assert!(holes > 500 && late > 100_000, "it has seen some: {holes} {late}");
}

/// A link with every fault that links have.
fn bad(rng: &mut Rng) -> Shape {
    let burst = Burst { enter: 0.005, leave: 0.3, loss_bad: 1.0, loss_good: 0.001 };
    let bursts = rng.hits(0.3);
    Shape {
        jitter: 0.004 * rng.unit(),
        reorder: 0.05 * rng.unit(),
        duplicate: 0.02 * rng.unit(),
        burst: bursts.then_some(burst),
        loss: if bursts { 0.0 } else { 0.03 * rng.unit() },
        ..table::link(20.0, 0.0)
    }
}

#[test]
fn honest_senders_finish_over_any_path() {
    let (mut late, mut holes) = (0, 0);
    for seed in 0..24 {
        let mut rng = Rng::new(&[seed, 5]);
        let kind = if seed % 2 == 0 { Kind::Reno } else { Kind::Cubic };
        let mut sender = Sender::new(2, kind, 600_000);
        sender.stamps = seed % 3 > 0;
        sender.sack = seed % 4 > 0;
        let config = Config { policy: policy(&mut rng), ..table::config(0.0) };
        let mut world = World::new(config, vec![sender], &bad(&mut rng), None, seed);
        world.run(Time::from_secs(3600));
        assert_eq!(world.apps[0].finished, Some(600_000), "seed {seed}, at {:?}", world.now);
        assert!(world.senders[0].done);
        late += world.apps[0].late;
        holes += world.apps[0].holes.count();
    }
    assert!(late > 0 && holes > 100, "{late} {holes}");
}

#[test]
fn a_flow_that_must_not_lose_loses_nothing() {
    for seed in 0..6 {
        let mut rng = Rng::new(&[seed, 6]);
        let config = Config { policy: Policy::critical(), ..table::config(0.0) };
        let mut world =
            World::new(config, vec![Sender::new(2, Kind::Cubic, 600_000)], &bad(&mut rng), None, seed);
        world.run(Time::from_secs(3600));
        assert_eq!((world.apps[0].got.bytes(), world.apps[0].holes.bytes()), (600_000, 0), "seed {seed}");
    }
}

#[test]
fn the_paper_and_no_control_lose_more_than_the_default() {
    // A Reno sender that stays in slow start, at 50 Mbit/s and 40 ms with 1 % loss: figure 4 of the paper.
    let missing = |rate: Rate| {
        let config = Config { rate, ..table::config(0.0) };
        let sender = Sender::new(2, Kind::Reno, 8 << 20);
        let mut world = World::new(config, vec![sender], &table::link(40.0, 0.01), None, 3);
        world.run(Time::from_secs(60));
        world.apps[0].missing() as f64 / (8 << 20) as f64
    };
    #[cfg(feature = "baselines")]
    assert!(missing(Rate::Paper(Default::default())) > 0.1, "by the paper's control");
    let none = missing(Rate::None);
    let (fixed, delay) = (missing(Rate::Fixed(250_000)), missing(Rate::default()));
    assert!(none > 0.3, "none {none}");
    assert!(fixed < 0.015 && delay < 0.015, "fixed {fixed}, delay {delay}");
}

#[test]
fn a_superpacket_that_spans_everything_is_cut_right() {
    let mut c = Client::connected(config());
    for i in [2, 5, 9] {
        c.data(i * 1000, 1000);
    }
    c.pass(100 * MS);
    c.hand_in(&c.at(ACK | FIN, 0, &bytes(0, 12_000)));
    assert_eq!((c.app.finished, c.app.missing(), c.app.late), (Some(12_000), 0, 7000));
}
