//! Several senders on one link: the incast of a round.

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
