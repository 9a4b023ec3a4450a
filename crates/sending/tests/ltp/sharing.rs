//! Tests of several senders on one link, as in the incast of a round.

use thalweg_linkmodel::Shape;
use thalweg_sending::ltp::Rule;
use thalweg_sending::Time;

use super::table::link;
use super::world::{World, AROUND, PAYLOAD};

const CHUNKS: u32 = 2_000;

#[test]
fn eight_senders_end_at_nearly_the_same_time() {
    for loss in [0.0, 0.01] {
        let mut world = World::new(&link(40.0, loss), &[Rule::default(); 8], 5);
        for party in 0..8 {
            world.begin(party, CHUNKS, |_| false);
        }
        world.run(Time::from_secs(60));
        let ends: Vec<f64> = world.parties.iter().map(|p| p.ended.unwrap().0.as_secs_f64()).collect();
        let ideal = 8.0 * f64::from(CHUNKS) * f64::from(PAYLOAD + AROUND) * 8.0 / 1e8;
        let (first, last) = ends.iter().fold((f64::MAX, 0.0_f64), |(a, b), &e| (a.min(e), b.max(e)));
        assert!(last < 1.35 * ideal, "{last} s of {ideal}: {ends:?}");
        assert!(first > 0.5 * last, "{ends:?}");
    }
}

/// If the path loses a tenth whatever the senders do, no sender is much slower than the others. If the queue
/// holds a quarter of the BDP, senders that begin last find it full. They mistake the loss that the other
/// senders cause for path loss, but only within bounds.
#[test]
fn the_slowest_of_eight_is_near_the_mean() {
    let short = Shape { queue_bytes: Some(125_000), ..link(40.0, 0.0) };
    for (shape, times, sent) in [(link(40.0, 0.1), 1.3, 1.3), (short, 1.7, 2.0)] {
        let mut world = World::between(&shape, &link(40.0, 0.0), &[Rule::default(); 8], 5);
        (0..8).for_each(|party| world.begin(party, 4 * CHUNKS, |_| false));
        world.run(Time::from_secs(60));
        let ends: Vec<f64> = world.parties.iter().map(|p| p.ended.unwrap().0.as_secs_f64()).collect();
        let (mean, last) = (ends.iter().sum::<f64>() / 8.0, ends.iter().copied().fold(0.0, f64::max));
        let packets: u64 = world.parties.iter().map(|party| party.packets).sum();
        assert!(last < times * mean, "{last} s of {mean} s on average: {ends:?}");
        assert!(packets as f64 / f64::from(8 * 4 * CHUNKS) < sent, "{packets} packets");
    }
}
