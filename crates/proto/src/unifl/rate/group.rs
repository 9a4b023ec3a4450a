//! The flows of one round, which share a path.

use std::collections::BTreeMap;

use crate::Time;

/// A flow that has been silent for so long has no part in the path.
const SILENT: Time = Time::from_secs(1);
/// How long a share is good for.
const FRESH: Time = Time::from_millis(5);

/// Says what each of the flows that send would get if all got the same.
#[derive(Debug, Clone, Default)]
pub struct Group {
    rates: BTreeMap<u32, (f64, Time)>,
    share: Option<f64>,
    made: Time,
}

impl Group {
    /// A member's rate in bytes a second, and what its share is. `None` where there is nobody to share with.
    pub fn publish(&mut self, now: Time, member: u32, rate: f64) -> Option<f64> {
        let known = self.rates.insert(member, (rate, now)).is_some();
        if !known || now.saturating_sub(self.made) >= FRESH {
            self.made = now;
            self.rates.retain(|_, (_, at)| now.saturating_sub(*at) < SILENT);
            let sending = || self.rates.values().map(|(rate, _)| *rate).filter(|&rate| rate > 0.0);
            let count = sending().count();
            self.share = (count > 1).then(|| sending().sum::<f64>() / count as f64);
        }
        self.share
    }

    /// A member has gone.
    pub fn leave(&mut self, member: u32) {
        self.rates.remove(&member);
    }

    /// Members that have published and not gone.
    pub fn members(&self) -> usize {
        self.rates.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_the_mean_of_those_that_send() {
        let mut group = Group::default();
        let ms = Time::from_millis;
        assert_eq!(group.publish(ms(0), 1, 300.0), None);
        assert_eq!(group.publish(ms(1), 2, 100.0), Some(200.0));
        assert_eq!(group.publish(ms(2), 3, 0.0), Some(200.0));
        assert_eq!(group.publish(ms(500), 2, 200.0), Some(250.0));
        // The first has not been heard of for a second.
        assert_eq!(group.publish(ms(1000), 2, 200.0), None);
        group.leave(2);
        assert_eq!(group.members(), 1);
    }
}
