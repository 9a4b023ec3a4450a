//! Compares a link's behaviour with its shape, packet by packet in virtual time.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use thalweg_linkmodel::{Burst, Cause, Fate, Pass, Pipe, Shape};

const MTU: usize = 1500;

fn pipe(shape: Shape) -> Pipe {
    Pipe::new(shape, 7, 0).unwrap()
}

fn ms(milliseconds: f64) -> Duration {
    Duration::from_secs_f64(milliseconds / 1e3)
}

fn passes(fate: Fate) -> Pass {
    match fate {
        Fate::Passes(pass) => pass,
        Fate::Dropped(cause) => panic!("dropped: {cause:?}"),
    }
}

/// Offers packets so far apart that none has to wait. Returns for each whether it was lost.
fn losses(shape: Shape, packets: u64) -> Vec<bool> {
    let mut pipe = pipe(shape);
    (0..packets).map(|i| pipe.offer(ms(i as f64), MTU) == Fate::Dropped(Cause::Loss)).collect()
}

fn share(losses: &[bool]) -> f64 {
    losses.iter().filter(|&&lost| lost).count() as f64 / losses.len() as f64
}

#[test]
fn an_ideal_link_passes_everything_at_once() {
    let mut pipe = pipe(Shape::default());
    for i in 0..100 {
        assert_eq!(passes(pipe.offer(ms(i.into()), MTU)).due, ms(i.into()));
    }
    assert_eq!(pipe.queue(ms(0.0)), (0, 0));
}

#[test]
fn a_rate_spaces_packets_by_their_size() {
    let mut pipe = pipe(Shape { rate: Some(12_000_000), delay: 0.02, ..Shape::default() });
    for i in 1..=40 {
        assert_eq!(passes(pipe.offer(ms(0.0), MTU)).due, ms(20.0 + f64::from(i)));
    }
    assert_eq!(pipe.queue(ms(0.0)), (60_000, 40));
    assert_eq!(pipe.queue(ms(10.0)), (45_000, 30));
    assert_eq!(passes(pipe.offer(ms(100.0), MTU / 2)).due, ms(120.5));
}

/// The claim of `thalweg.network.bound.carried`: a sender that offers enough gets all of the rate.
#[test]
fn losses_in_front_of_the_queue_take_none_of_the_rate() {
    for loss in [0.0, 0.05, 0.2, 0.5] {
        let mut pipe = pipe(Shape { rate: Some(12_000_000), loss, ..Shape::default() });
        // A packet every 0.4 ms is 30 Mbit/s, more than the rate at each of these losses.
        let offered = (0..20_000).map(|i| pipe.offer(ms(f64::from(i) * 0.4), MTU));
        let arrivals: Vec<_> =
            offered.filter(|fate| matches!(fate, Fate::Passes(_))).map(|fate| passes(fate).due).collect();
        let seconds = (arrivals[arrivals.len() - 1] - arrivals[0]).as_secs_f64();
        let rate = (arrivals.len() - 1) as f64 * MTU as f64 * 8.0 / seconds;
        assert!((rate / 12e6 - 1.0).abs() < 1e-3, "loss {loss}: {rate}");
    }
}

#[test]
fn a_full_queue_drops_the_newcomer() {
    let rate = Some(12_000_000);
    for shape in [
        Shape { rate, queue_bytes: Some(3 * MTU as u64), ..Shape::default() },
        Shape { rate, queue_packets: Some(3), ..Shape::default() },
    ] {
        let mut pipe = pipe(shape);
        for _ in 0..3 {
            passes(pipe.offer(ms(0.0), MTU));
        }
        assert_eq!(pipe.offer(ms(0.0), MTU), Fate::Dropped(Cause::Queue));
        assert_eq!(passes(pipe.offer(ms(1.0), MTU)).due, ms(4.0));
    }
}

#[test]
fn a_packet_larger_than_the_queue_passes_an_idle_link() {
    let mut pipe = pipe(Shape { rate: Some(1_000_000), queue_bytes: Some(100), ..Shape::default() });
    passes(pipe.offer(ms(0.0), MTU));
    assert_eq!(pipe.offer(ms(0.0), MTU), Fate::Dropped(Cause::Queue));
}

#[test]
fn losses_are_as_many_as_asked() {
    for loss in [0.001, 0.01, 0.05, 0.2] {
        let got = share(&losses(Shape { loss, ..Shape::default() }, 100_000));
        let error = (loss * (1.0 - loss) / 100_000.0_f64).sqrt();
        assert!((got - loss).abs() < 3.0 * error, "{loss}: {got}");
    }
}

#[test]
fn correlated_losses_are_as_many_and_come_together() {
    let shape = Shape { loss: 0.05, loss_correlation: 0.25, ..Shape::default() };
    let all = losses(shape, 100_000);
    let got = share(&all);
    assert!((got - 0.05).abs() < 0.05 * 0.1, "{got}");
    let pairs = all.windows(2).filter(|w| w[0] && w[1]).count() as f64 / all.len() as f64;
    assert!(pairs > 2.0 * got * got, "{pairs} pairs at {got}");
}

#[test]
fn bursts_are_as_long_and_as_many_as_asked() {
    let burst = Burst { enter: 0.01, leave: 0.2, loss_bad: 1.0, loss_good: 0.0 };
    let all = losses(Shape { burst: Some(burst), ..Shape::default() }, 400_000);
    let bursts = all.windows(2).filter(|w| !w[0] && w[1]).count() as f64;
    let length = share(&all) * all.len() as f64 / bursts;
    assert!((length - 5.0).abs() < 0.5, "bursts of {length}");
    let expected = 0.01 / (0.01 + 0.2);
    assert!((share(&all) / expected - 1.0).abs() < 0.1, "{} of {expected}", share(&all));
}

#[test]
fn jitter_stays_in_its_bounds_and_overtakes_unless_told() {
    for keep_order in [false, true] {
        let shape = Shape { delay: 0.1, jitter: 0.03, keep_order, ..Shape::default() };
        let mut pipe = pipe(shape);
        let (mut overtakes, mut last) = (0, ms(0.0));
        for i in 0..2000 {
            let now = ms(f64::from(i) * 5.0);
            let pass = passes(pipe.offer(now, MTU));
            let delay = pass.due - now;
            assert!(delay >= ms(70.0), "{delay:?}");
            // A packet that must not overtake the previous one may take longer than its own delay.
            assert!(keep_order || delay <= ms(130.0), "{delay:?}");
            overtakes += u32::from(pass.overtakes);
            assert_eq!(pass.overtakes, pass.due < last);
            last = last.max(pass.due);
        }
        assert_eq!(overtakes > 0, !keep_order);
    }
}

#[test]
fn reordered_packets_skip_the_delay_and_duplicates_come_twice() {
    let shape = Shape { delay: 0.01, reorder: 0.25, duplicate: 0.1, ..Shape::default() };
    let mut pipe = pipe(shape);
    let all: Vec<_> =
        (0..10_000).map(|i| (ms(f64::from(i)), passes(pipe.offer(ms(f64::from(i)), MTU)))).collect();
    let early = all.iter().filter(|(now, pass)| pass.due == *now).count();
    let twice = all.iter().filter(|(_, pass)| pass.twice).count();
    assert!((2_370..2_630).contains(&early), "{early}");
    assert!((910..1_090).contains(&twice), "{twice}");
}

#[test]
fn a_change_takes_hold_at_once() {
    let mut pipe = pipe(Shape { delay: 0.01, ..Shape::default() });
    pipe.set(Shape { down: true, ..Shape::default() }).unwrap();
    assert_eq!(pipe.offer(ms(0.0), MTU), Fate::Dropped(Cause::Down));
    pipe.set(Shape { delay: 0.002, ..Shape::default() }).unwrap();
    assert_eq!(passes(pipe.offer(ms(1.0), MTU)).due, ms(3.0));
    assert!(pipe.set(Shape { loss: 2.0, ..Shape::default() }).is_err());
    assert_eq!(pipe.shape().delay, 0.002);
}

#[test]
fn a_seed_repeats_and_streams_differ() {
    let shape = Shape { loss: 0.3, jitter: 0.01, delay: 0.02, ..Shape::default() };
    let run = |seed, stream| {
        let mut pipe = Pipe::new(shape.clone(), seed, stream).unwrap();
        (0..100).map(|i| pipe.offer(ms(f64::from(i)), MTU)).collect::<Vec<_>>()
    };
    assert_eq!(run(1, 1), run(1, 1));
    assert_ne!(run(1, 1), run(1, 2));
    assert_ne!(run(1, 1), run(2, 1));
}
