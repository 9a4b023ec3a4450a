//! Reconnects to a server soon after the path to it is back.
//!
//! While a path is down, the packets of an attempt are lost. The kernel repeats them after pauses that double
//! (RFC 6298, section 5.5), and so does QUIC (RFC 9002, section 6.2.1). So an attempt that began long ago may
//! send nothing for half a minute after the path's return. Therefore further attempts begin in parallel at a
//! steady interval, until one of them succeeds.

use std::future::Future;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};

/// How long a further attempt may take, as a multiple of that interval.
const MAX_PACES: u32 = 8;

/// Runs `attempt` until it succeeds. After each `pace`, starts a further attempt in parallel, which may take
/// at most [`MAX_PACES`] paces. Returns the first success, or the error of the first attempt.
pub(crate) async fn paced<T, E, A: Future<Output = Result<T, E>>>(
    pace: Duration,
    attempt: impl Fn() -> A,
) -> Result<T, E> {
    let first = attempt();
    tokio::pin!(first);
    let mut others = FuturesUnordered::new();
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + pace, pace);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            outcome = &mut first => return outcome,
            Some(outcome) = others.next() => {
                if let Ok(Ok(done)) = outcome {
                    return Ok(done);
                }
            }
            _ = ticks.tick() => others.push(tokio::time::timeout(pace * MAX_PACES, attempt())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_began_after_the_paths_return_succeeds_at_once() {
        let began = tokio::time::Instant::now();
        let back = began + 100 * SECOND;
        // The kernel's schedule: packets after 0, 1, 3, 7, 15, 31 and 63 s.
        let attempt = || async move {
            for pause in [0, 1, 2, 4, 8, 16, 32, 64] {
                tokio::time::sleep(pause * SECOND).await;
                if tokio::time::Instant::now() >= back {
                    return Ok::<_, ()>(());
                }
            }
            Err(())
        };
        paced(SECOND, attempt).await.unwrap();
        assert!(began.elapsed() <= 101 * SECOND, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_attempts_error_ends_all_and_few_run_at_a_time() {
        let (running, most) = (AtomicU32::new(0), AtomicU32::new(0));
        let attempt = || async {
            let now = running.fetch_add(1, Ordering::Relaxed) + 1;
            most.fetch_max(now, Ordering::Relaxed);
            let _ended = Ended(&running);
            tokio::time::sleep(45 * SECOND).await;
            Err::<(), _>("no answer")
        };
        assert_eq!(paced(SECOND, attempt).await, Err("no answer"));
        assert!(most.into_inner() <= MAX_PACES + 2);
        assert_eq!(running.into_inner(), 0);
    }

    struct Ended<'a>(&'a AtomicU32);

    impl Drop for Ended<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
