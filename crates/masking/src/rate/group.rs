//! A group: the flows of one round, which share a path. It computes their mean rate, so that they can share
//! fairly.

use std::collections::BTreeMap;

use crate::Time;

/// A flow that has not published for this long does not count.
const SILENT: Time = Time::from_secs(1);
/// How long a computed result is reused.
const FRESH: Time = Time::from_millis(5);

/// Rate and target of a flow, or of a group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupRate {
    /// Delivery rate in bytes a second. Of a group: the mean of the flows that send.
    pub rate: f64,
    /// Target queuing delay in seconds. Of a group: the longest of the flows that send.
    pub aim: f64,
}

/// Computes the mean rate and the longest target of the flows that send.
#[derive(Debug, Clone, Default)]
pub struct Group {
    members: BTreeMap<u32, (GroupRate, Time)>,
    share: Option<GroupRate>,
    made: Time,
}

impl Group {
    /// Takes the values of a member, and returns the values of the group. `None` if no other member sends.
    pub fn publish(&mut self, now: Time, member: u32, own: GroupRate) -> Option<GroupRate> {
        let known = self.members.insert(member, (own, now)).is_some();
        if !known || now.saturating_sub(self.made) >= FRESH {
            self.made = now;
            self.members.retain(|_, (_, at)| now.saturating_sub(*at) < SILENT);
            let sending = || self.members.values().map(|(own, _)| *own).filter(|own| own.rate > 0.0);
            let count = sending().count();
            self.share = (count > 1).then(|| GroupRate {
                rate: sending().map(|own| own.rate).sum::<f64>() / count as f64,
                aim: sending().map(|own| own.aim).fold(0.0, f64::max),
            });
        }
        self.share
    }

    /// Notes that a member has ended.
    pub fn leave(&mut self, member: u32) {
        self.members.remove(&member);
    }

    /// Number of members that have published recently and have not ended.
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
            group.publish(ms(at), member, GroupRate { rate, aim }).map(|share| (share.rate, share.aim))
        };
        assert_eq!(publish(0, 1, 300.0, 0.01), None);
        assert_eq!(publish(1, 2, 100.0, 0.03), Some((200.0, 0.03)));
        assert_eq!(publish(2, 3, 0.0, 0.05), Some((200.0, 0.03)));
        assert_eq!(publish(500, 2, 200.0, 0.02), Some((250.0, 0.02)));
        // The first member has not published for a second.
        assert_eq!(publish(1000, 2, 200.0, 0.02), None);
        group.leave(2);
        assert_eq!(group.members(), 1);
    }
}
