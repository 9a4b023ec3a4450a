//! Reaches a host that may have several addresses.

use std::future::Future;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::{sleep, timeout_at, Instant};

use crate::{Error, ErrorKind, Result};

/// Pause before the next address is tried beside those that have not answered (RFC 8305, section 5).
const NEXT: Duration = Duration::from_millis(250);

/// Connects to the first of a host's `addresses` that answers within `limit`. An attempt at the next address
/// begins when one has failed, and otherwise after a short pause, while those before it go on. So each has the
/// whole `limit`: an attempt takes a number of round trips, which is not less because there are other addresses.
///
/// # Errors
/// An error of an attempt that `is_final` accepts, at once. Otherwise, when all have failed, the last error that
/// says more than that there was no answer; `late` if there is none.
pub async fn reach_any<A: Copy, T, F: Future<Output = Result<T>>>(
    addresses: &[A],
    limit: Duration,
    late: Error,
    attempt: impl Fn(A) -> F,
    is_final: impl Fn(&Error) -> bool,
) -> Result<T> {
    let until = Instant::now() + limit;
    let pause = NEXT.min(limit / addresses.len().max(1) as u32);
    let (mut waiting, mut running, mut last) = (addresses.iter(), FuturesUnordered::new(), late);
    loop {
        running.extend(waiting.next().map(|&address| timeout_at(until, attempt(address))));
        let ended = tokio::select! {
            ended = running.next() => ended,
            () = sleep(pause), if waiting.len() > 0 => continue,
        };
        match ended {
            None => return Err(last),
            Some(Ok(Ok(reached))) => return Ok(reached),
            Some(Ok(Err(error))) if is_final(&error) => return Err(error),
            Some(Ok(Err(error))) if error.kind() != ErrorKind::Timeout => last = error,
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use thalweg_wire::limits;

    use super::*;

    /// What is at an address, and after how many round trips the attempt is over.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum There {
        Nobody,
        Refusing(u32),
        Listening(u32),
    }
    use There::{Listening, Nobody, Refusing};

    async fn reach(there: &[There], trip: Duration, limit: Duration) -> Result<There> {
        let attempt = |there| async move {
            match there {
                Nobody => pending().await,
                Refusing(trips) => {
                    sleep(trips * trip).await;
                    Err(Error::new(ErrorKind::Unreachable, "connect", "refused"))
                }
                Listening(trips) => {
                    sleep(trips * trip).await;
                    Ok(there)
                }
            }
        };
        let late = Error::new(ErrorKind::Timeout, "connect", "silent");
        reach_any(there, limit, late, attempt, |error| error.kind() == ErrorKind::Security).await
    }

    /// The slowest handshake, of a datagram transport under TLS, takes four round trips. Addresses at which
    /// nobody is must not take its time.
    #[tokio::test(start_paused = true)]
    async fn the_longest_handshake_fits_beside_other_addresses_on_every_path() {
        for micros in [10, 1000, 100_000, 250_000, 1_000_000, 4_000_000, 10_000_000, 20_000_000] {
            let trip = Duration::from_micros(micros);
            for before in [&[][..], &[Nobody], &[Refusing(1)], &[Nobody, Refusing(1), Nobody]] {
                let began = Instant::now();
                let found = reach(&[before, &[Listening(4)]].concat(), trip, limits::CONNECT).await;
                assert_eq!(found.unwrap(), Listening(4), "{trip:?} behind {before:?}");
                let most = 4 * trip + NEXT * before.len() as u32;
                assert!(began.elapsed() <= most + Duration::from_millis(5), "{trip:?} behind {before:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_address_that_answers_in_time_counts() {
        let second = Duration::from_secs(1);
        let found = reach(&[Listening(3), Listening(2)], second, 9 * second).await;
        assert_eq!(found.unwrap(), Listening(2));
        let found = reach(&[Listening(1), Listening(1)], Duration::from_millis(200), 9 * second).await;
        assert_eq!(found.unwrap(), Listening(1), "before the second was tried");
    }

    #[tokio::test(start_paused = true)]
    async fn the_error_says_more_than_silence_where_one_does() {
        let (second, began) = (Duration::from_secs(1), Instant::now());
        let silent = reach(&[Nobody, Nobody], second, 9 * second).await.unwrap_err();
        assert_eq!((silent.kind(), began.elapsed().as_secs()), (ErrorKind::Timeout, 9));
        let refused = reach(&[Refusing(1), Nobody], second, 9 * second).await.unwrap_err();
        assert_eq!((refused.kind(), began.elapsed().as_secs()), (ErrorKind::Unreachable, 18));
        let refused = reach(&[Refusing(1), Refusing(2)], second, 9 * second).await.unwrap_err();
        assert_eq!((refused.kind(), began.elapsed().as_secs()), (ErrorKind::Unreachable, 20));
        assert_eq!(reach(&[], second, second).await.unwrap_err().kind(), ErrorKind::Timeout);
    }

    #[tokio::test(start_paused = true)]
    async fn a_final_error_ends_all_attempts() {
        let (late, began) = (Error::new(ErrorKind::Timeout, "connect", "silent"), Instant::now());
        let attempt = |is_distrusted| async move {
            match is_distrusted {
                true => Err::<(), _>(Error::new(ErrorKind::Security, "connect", "not trusted")),
                false => pending().await,
            }
        };
        let is_final = |error: &Error| error.kind() == ErrorKind::Security;
        let error = reach_any(&[false, true, false], Duration::from_secs(9), late, attempt, is_final).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Security);
        assert!(began.elapsed() < Duration::from_secs(1));
    }
}
