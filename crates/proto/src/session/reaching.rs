//! How long a client tries to be let in. The time covers connecting, the handshake and the wait for the
//! server's Welcome. A client that was in the job before tries longer: an outage is only a pause.

use super::Failure;
use crate::{Kind, Time};

/// The client tries for at least this long, even with a timeout of 0.
const MIN_TIMEOUT: Time = Time::from_secs(1);

/// The time from a client's first attempt until it is let in.
#[derive(Debug)]
pub(crate) struct Reaching {
    /// How long the client tries.
    limit: Time,
    /// At least how long it tries once it was let in.
    outage: Time,
    /// When the first attempt began; `None` before it, and while the client is let in.
    since: Option<Time>,
    /// Why the last attempt failed.
    failed: Option<Failure>,
}

impl Reaching {
    pub(crate) fn new(timeout: Time, outage: Time) -> Self {
        Self { limit: timeout, outage, since: None, failed: None }
    }

    /// Notes that the client is trying. Only the first call since it was last let in starts the time.
    pub(crate) fn trying(&mut self, now: Time) {
        self.since.get_or_insert(now);
    }

    /// Notes that an attempt has failed, and why.
    pub(crate) fn failed(&mut self, now: Time, why: Failure) {
        self.trying(now);
        self.failed = Some(why);
    }

    /// Notes that the server has let the client in.
    pub(crate) fn done(&mut self) {
        (self.since, self.failed) = (None, None);
        self.limit = self.limit.max(self.outage);
    }

    /// When the client gives up. `Time::ZERO` if no attempt was noted yet, so that the caller's timeout
    /// handler runs at once and calls [`Reaching::trying`].
    pub(crate) fn deadline(&self) -> Time {
        self.since.map_or(Time::ZERO, |since| since.saturating_add(self.limit.max(MIN_TIMEOUT)))
    }

    /// Whether there is time for another attempt after one that has failed.
    pub(crate) fn may_retry(&self, now: Time) -> bool {
        self.since.is_none_or(|since| now < since.saturating_add(self.limit))
    }

    /// Whether the client must give up.
    pub(crate) fn is_over(&self, now: Time) -> bool {
        self.since.is_some() && now >= self.deadline()
    }

    /// The reason for giving up: the last failure, or what the peer did instead of letting the client in.
    /// `connected`: there is a connection.
    pub(crate) fn reason(&self, connected: bool) -> Failure {
        let seconds = self.limit.max(MIN_TIMEOUT).as_secs_f64();
        let cause = match &self.failed {
            _ if connected => {
                format!("the peer took the connection, but did not let this client into a job within {seconds:.1} s")
            }
            Some(why) => return why.clone(),
            None => format!("the peer did not answer within {seconds:.1} s"),
        };
        let hint = Some("check the address and the transport, or raise the timeout".into());
        Failure { hint, ..Failure::transient(Kind::Timeout, cause) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Time = Time::from_secs(1);

    #[test]
    fn the_timeout_counts_from_the_first_attempt_until_it_is_let_in() {
        let mut reaching = Reaching::new(2 * SECOND, Time::ZERO);
        assert_eq!(reaching.deadline(), Time::ZERO, "whoever asks has to say what time it is");
        assert!(!reaching.is_over(9 * SECOND));
        reaching.trying(SECOND);
        reaching.trying(2 * SECOND);
        reaching.failed(2 * SECOND, "nobody is there".into());
        assert_eq!(reaching.deadline(), 3 * SECOND);
        assert!(!reaching.is_over(3 * SECOND - Time::from_nanos(1)));
        assert!(reaching.is_over(3 * SECOND));
        reaching.done();
        reaching.trying(100 * SECOND);
        assert_eq!(reaching.deadline(), 102 * SECOND, "a later loss of the link has a timeout of its own");
    }

    #[test]
    fn the_reason_is_what_the_peer_did() {
        let mut reaching = Reaching::new(2 * SECOND, Time::ZERO);
        let unanswered = reaching.reason(false);
        assert_eq!(unanswered.cause, "the peer did not answer within 2.0 s");
        assert_eq!((unanswered.kind, unanswered.may_retry), (Kind::Timeout, true));
        assert!(unanswered.hint.is_some_and(|hint| hint.starts_with("check the address")));
        let taken = reaching.reason(true).cause;
        assert!(taken.starts_with("the peer took the connection, but did not let this client"));
        reaching.failed(SECOND, "refused".into());
        assert_eq!(reaching.reason(false), "refused".into());
        assert!(reaching.reason(true).cause.starts_with("the peer took the connection"));
    }

    #[test]
    fn with_a_timeout_of_zero_there_is_one_attempt() {
        let mut reaching = Reaching::new(Time::ZERO, Time::ZERO);
        reaching.trying(SECOND);
        assert!(!reaching.is_over(SECOND), "it has a second");
        assert!(reaching.is_over(2 * SECOND));
        assert!(!reaching.may_retry(SECOND));
        assert!(Reaching::new(2 * SECOND, Time::ZERO).may_retry(SECOND), "nothing was tried yet");
    }

    #[test]
    fn a_client_that_was_let_in_before_tries_through_an_outage_if_that_is_longer() {
        for (outage, longer) in [(600, 600), (1, 2)] {
            let mut reaching = Reaching::new(2 * SECOND, outage * SECOND);
            reaching.trying(SECOND);
            assert_eq!(reaching.deadline(), 3 * SECOND);
            reaching.done();
            reaching.trying(100 * SECOND);
            assert_eq!(reaching.deadline(), (100 + longer) * SECOND);
            let reason = reaching.reason(false).cause;
            assert_eq!(reason, format!("the peer did not answer within {longer}.0 s"));
        }
    }

    #[test]
    fn an_endless_timeout_does_not_overflow() {
        let mut reaching = Reaching::new(Time::MAX, Time::ZERO);
        reaching.trying(SECOND);
        assert!(!reaching.is_over(1_000_000 * SECOND));
    }
}
