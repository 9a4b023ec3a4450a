//! Measures how late reordered segments of a flow arrive. Gaps wait a little longer than that, as in RACK
//! (RFC 8985 section 6.2).

use super::stream::ReorderWindow;
use crate::Time;

/// After this many holes without a reordered segment between them, the flow forgets earlier observations.
const HOLES: u32 = 64;

#[derive(Debug, Default)]
pub(super) struct Reordering {
    /// The longest time until a gap was filled, and the greatest number of segments that arrived meanwhile.
    late: Time,
    distance: u64,
    holes: u32,
}

impl Reordering {
    /// Notes that a gap was filled: `late` after it opened, and after `distance` other segments had arrived.
    /// If `late` exceeds `most`, the segment was retransmitted and does not count.
    pub fn filled(&mut self, late: Time, distance: u64, most: Time) {
        if late <= most {
            self.late = self.late.max(late);
            self.distance = self.distance.max(distance);
            self.holes = 0;
        }
    }

    /// Notes that a gap has become a hole.
    pub fn hole(&mut self) {
        self.holes += 1;
        if self.holes >= HOLES {
            *self = Self::default();
        }
    }

    /// How long gaps wait on this path. Each limit is at least the one in `set`.
    pub fn reorder_window(&self, set: ReorderWindow) -> ReorderWindow {
        let time = (self.late * 5 / 4).min(set.most).max(set.time);
        let seen = u32::try_from(self.distance).unwrap_or(u32::MAX).saturating_add(1);
        let packets = set.packets.map(|least| if self.distance == 0 { least } else { least.max(seen) });
        ReorderWindow { time, packets, ..set }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Time = Time::from_millis(1);
    const SET: ReorderWindow =
        ReorderWindow { time: Time::from_millis(10), packets: Some(3), most: Time::from_millis(50) };

    fn reorder_window(seen: &[(Time, u64)]) -> (Time, Option<u32>) {
        let mut reordering = Reordering::default();
        seen.iter().for_each(|&(late, distance)| reordering.filled(late, distance, SET.most));
        let reorder_window = reordering.reorder_window(SET);
        (reorder_window.time, reorder_window.packets)
    }

    #[test]
    fn waits_a_little_longer_than_the_latest_packet_took() {
        assert_eq!(reorder_window(&[]), (10 * MS, Some(3)));
        assert_eq!(reorder_window(&[(4 * MS, 33)]), (10 * MS, Some(34)));
        assert_eq!(reorder_window(&[(4 * MS, 33), (20 * MS, 7)]), (25 * MS, Some(34)));
        assert_eq!(reorder_window(&[(48 * MS, 1)]), (50 * MS, Some(3)), "never beyond what is set");
        assert_eq!(reorder_window(&[(51 * MS, 400)]), (10 * MS, Some(3)), "that was sent again");
    }

    #[test]
    fn forgets_it_after_many_holes_that_nothing_fills() {
        let mut reordering = Reordering::default();
        reordering.filled(20 * MS, 7, SET.most);
        (1..HOLES).for_each(|_| reordering.hole());
        assert_eq!(reordering.reorder_window(SET).packets, Some(8));
        reordering.hole();
        assert_eq!(reordering.reorder_window(SET).packets, Some(3));
    }
}
