//! What of a connection's stream may be lost: of a tcp link's the payloads of chunks, of one that nothing is known of all
//! that is behind its beginning.

use thalweg_proto::unifl::Budget;
use thalweg_wire::{Range, Ranges, HEADER_BYTES};

use crate::scout::Scout;
use crate::settings::{Content, Limits};

/// What happens to a flow because of what came.
#[derive(Debug, Default)]
pub(crate) struct Permits {
    /// What may be lost from now on.
    pub ranges: Vec<Range>,
    /// The budget of what begins there.
    pub budget: Option<Budget>,
}

/// Looks at what comes of a stream.
#[derive(Debug)]
pub(crate) enum Watch {
    /// A tcp link's: the update whose chunks come has a round and a sender.
    Frames { scout: Scout, update: Option<(u32, u32)> },
    /// Any other: so many bytes at its beginning must come, until that has been said.
    Plain { reliable: Option<u64> },
}

impl Watch {
    pub(crate) fn new(content: Content) -> Self {
        match content {
            Content::Frames => Self::Frames { scout: Scout::new(), update: None },
            Content::Plain { reliable } => Self::Plain { reliable: Some(reliable) },
        }
    }

    /// Adds what may be lost now that more has come. `header` gives the bytes at an offset if all of them have come.
    pub(crate) fn advance(
        &mut self,
        limits: &Limits,
        header: impl Fn(u64) -> Option<[u8; HEADER_BYTES]>,
        permits: &mut Permits,
    ) {
        match self {
            Self::Frames { scout, update } => {
                for payload in scout.advance(header) {
                    permits.ranges.push(payload.range);
                    let this = (payload.chunk.round, payload.chunk.sender);
                    if update.replace(this) != Some(this) {
                        permits.budget = Some(budget(limits, payload.range.start));
                    }
                }
            }
            Self::Plain { reliable } => {
                if let Some(start) = reliable.take().filter(|&start| start < u64::MAX) {
                    permits.ranges.push(Range::new(start, u64::MAX));
                    permits.budget = Some(budget(limits, start));
                }
            }
        }
    }
}

/// The budget of all that comes from `start` on.
fn budget(limits: &Limits, start: u64) -> Budget {
    let ranges: Ranges = [Range::new(start, u64::MAX)].into_iter().collect();
    Budget { ranges, mask: limits.budget, refuse: limits.refuse, at_least: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(content: Content) -> Limits {
        Limits { budget: 0.1, refuse: 0.5, buffer: 1 << 20, content }
    }

    #[test]
    fn of_a_plain_stream_all_but_its_beginning_may_be_lost() {
        let content = Content::Plain { reliable: 1000 };
        let (mut watch, mut permits) = (Watch::new(content), Permits::default());
        watch.advance(&limits(content), |_| None, &mut permits);
        assert_eq!(permits.ranges, [Range::new(1000, u64::MAX)]);
        let said = permits.budget.take().map(|b| (b.mask, b.refuse, b.ranges.iter().collect::<Vec<_>>()));
        assert_eq!(said, Some((0.1, 0.5, vec![Range::new(1000, u64::MAX)])));
        let mut permits = Permits::default();
        watch.advance(&limits(content), |_| None, &mut permits);
        assert!(permits.ranges.is_empty() && permits.budget.is_none(), "it is said once");
    }

    #[test]
    fn of_a_stream_that_must_come_nothing_may_be_lost() {
        let content = Content::Plain { reliable: u64::MAX };
        let (mut watch, mut permits) = (Watch::new(content), Permits::default());
        watch.advance(&limits(content), |_| None, &mut permits);
        assert!(permits.ranges.is_empty() && permits.budget.is_none());
    }

    #[test]
    fn of_frames_nothing_may_be_lost_before_one_has_come() {
        let (mut watch, mut permits) = (Watch::new(Content::Frames), Permits::default());
        watch.advance(&limits(Content::Frames), |_| None, &mut permits);
        assert!(permits.ranges.is_empty() && permits.budget.is_none());
    }
}
