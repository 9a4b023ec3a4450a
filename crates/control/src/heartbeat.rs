//! Decides by the time of a node's last message whether the node is lost (LIFL, section 3).

use std::time::Duration;

use crate::Time;

/// Returns how long a node has been silent, if that is longer than `silence`. A message "later than now"
/// counts as no silence.
pub fn lost(now: Time, last_message: Time, silence: Duration) -> Option<Duration> {
    let silent = now.saturating_sub(last_message);
    (silent > silence).then_some(silent)
}

/// The time from which a node with this last message counts as lost. A caller that waits for the node sets its
/// timer to it.
pub fn deadline(last_message: Time, silence: Duration) -> Time {
    last_message.saturating_add(silence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_lost_only_after_the_whole_silence() {
        let at = Duration::from_secs;
        assert_eq!(lost(at(20), at(10), at(10)), None);
        assert_eq!(lost(at(21), at(10), at(10)), Some(at(11)));
        assert_eq!(lost(at(5), at(10), at(1)), None);
        assert_eq!(deadline(at(10), at(10)), at(20));
    }
}
