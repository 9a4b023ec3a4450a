//! The flows of one round, which share a path.

use std::collections::BTreeMap;

use crate::Time;

/// A flow that has been silent for so long has no part in the path.
const SILENT: Time = Time::from_secs(1);
/// How long a share is good for.
const FRESH: Time = Time::from_millis(5);

/// What a flow does, or flows of a group do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    /// Bytes a second; of a group what each of the flows that send would get if all got the same.
    pub rate: f64,
    /// The queueing delay in seconds that is aimed at; of a group the longest of those that send.
    pub aim: f64,
}

/// Says what the flows that send have in common.
#[derive(Debug, Clone, Default)]
pub struct Group {
    members: BTreeMap<u32, (Share, Time)>,
    share: Option<Share>,
    made: Time,
}

impl Group {
    /// What a member does, and what the group does. `None` where there is nobody to share with.
    pub fn publish(&mut self, now: Time, member: u32, own: Share) -> Option<Share> {
        let known = self.members.insert(member, (own, now)).is_some();
        if !known || now.saturating_sub(self.made) >= FRESH {
            self.made = now;
            self.members.retain(|_, (_, at)| now.saturating_sub(*at) < SILENT);
            let sending = || self.members.values().map(|(own, _)| *own).filter(|own| own.rate > 0.0);
            let count = sending().count();
            self.share = (count > 1).then(|| Share {
                rate: sending().map(|own| own.rate).sum::<f64>() / count as f64,
                aim: sending().map(|own| own.aim).fold(0.0, f64::max),
            });
        }
        self.share
    }

    /// A member has gone.
    pub fn leave(&mut self, member: u32) {
        self.members.remove(&member);
    }

    /// Members that have published and not gone.
    pub fn members(&self) -> usize {
        self.members.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_the_mean_rate_and_the_longest_queue_of_those_that_send() {
        let mut group = Group::default();
        let ms = Time::from_millis;
        let mut publish = |at, member, rate, aim| {
            group.publish(ms(at), member, Share { rate, aim }).map(|share| (share.rate, share.aim))
        };
        assert_eq!(publish(0, 1, 300.0, 0.01), None);
        assert_eq!(publish(1, 2, 100.0, 0.03), Some((200.0, 0.03)));
        assert_eq!(publish(2, 3, 0.0, 0.05), Some((200.0, 0.03)));
        assert_eq!(publish(500, 2, 200.0, 0.02), Some((250.0, 0.02)));
        // The first has not been heard of for a second.
        assert_eq!(publish(1000, 2, 200.0, 0.02), None);
        group.leave(2);
        assert_eq!(group.members(), 1);
    }
}
