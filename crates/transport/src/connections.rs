//! Limits the connections of a port without a handshake: that of a near end, a proxy or a probe's server.
//!
//! A connection is an unauthenticated peer in the admission queue ([`AdmissionQueue`]) until its first byte
//! arrives, and may be evicted until then. It also needs a [`ConnectionPermit`]; the number of permits is
//! limited in all and for each address. [`Acceptor`] holds both for a port.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::watch;

use crate::admission_queue::{AdmissionQueue, UnauthenticatedPeer};
use crate::unauthenticated_peers::Origin;
use crate::{Error, ErrorKind, Result};

/// Carried connections may use the process's descriptors divided by this. Unauthenticated peers may use a
/// quarter ([`crate::Bounds::of_process`]); the job keeps the rest.
const PART: u64 = 2;

/// The limit of connections that may be carried at a time, in all and for each address. Clones share one
/// count.
#[derive(Debug, Clone)]
pub struct ConnectionLimit(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Maximum number of permits in all.
    total: usize,
    /// Maximum number of permits for one address of another machine.
    share: usize,
    /// Number of permits held, by address.
    taken: watch::Sender<HashMap<Origin, usize>>,
}

impl ConnectionLimit {
    /// At most `total` connections, and at most `share` from one address. For addresses of this machine only
    /// `total` applies, because its programs are one party.
    pub fn new(total: usize, share: usize) -> Self {
        let (total, share) = (total.max(1), share.max(1));
        Self(Arc::new(Inner { total, share, taken: watch::Sender::default() }))
    }

    /// At most `total` connections, and at most half of them from one address.
    pub fn with_half_for_each_address(total: usize) -> Self {
        Self::new(total, total / 2)
    }

    /// Checks that `total` connections, which need `each` descriptors apiece, leave this process half of its
    /// `descriptors`.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`], with the number of connections that would be possible.
    pub fn check(operation: &'static str, total: usize, each: usize, descriptors: u64) -> Result<()> {
        let most = descriptors / PART / (each.max(1) as u64);
        if total as u64 <= most {
            return Ok(());
        }
        let context = format!(
            "{total} connections at a time need more than half of the {descriptors} files that this process may open"
        );
        let hint = format!("give --connections {} or less, or raise the limit (ulimit -n)", most.max(1));
        Err(Error::new(ErrorKind::Unsupported, operation, context).hint(hint))
    }

    fn share(&self, origin: Origin) -> usize {
        let of_this_machine = match origin {
            Origin::Address(IpAddr::V4(v4)) => v4.is_loopback(),
            // An IPv6 origin is named by the first address of its /64 network: that of ::1 is `::`.
            Origin::Address(IpAddr::V6(v6)) => v6.is_unspecified(),
            Origin::Unknown => true,
        };
        if of_this_machine {
            self.0.total
        } else {
            self.0.share
        }
    }

    /// Returns a permit if one is free for this address now.
    pub fn try_acquire(&self, origin: Origin) -> Option<ConnectionPermit> {
        let share = self.share(origin);
        let is_taken = self.0.taken.send_if_modified(|taken| {
            let held = taken.get(&origin).copied().unwrap_or(0);
            let is_free = held < share && taken.values().sum::<usize>() < self.0.total;
            if is_free {
                taken.insert(origin, held + 1);
            }
            is_free
        });
        is_taken.then(|| ConnectionPermit { limit: self.clone(), origin })
    }

    /// Waits until a permit is free for this address, and returns it.
    pub async fn acquire(&self, origin: Origin) -> ConnectionPermit {
        let mut taken = self.0.taken.subscribe();
        loop {
            taken.mark_unchanged();
            if let Some(permit) = self.try_acquire(origin) {
                return permit;
            }
            // This fails only if the `watch` sender was dropped, and that sender lives as long as this limit.
            let _ = taken.changed().await;
        }
    }

    /// Waits until a permit is free. It need not be free for every address.
    pub async fn available(&self) {
        let total = self.0.total;
        let _ = self.0.taken.subscribe().wait_for(|taken| taken.values().sum::<usize>() < total).await;
    }

    /// Number of permits that are held.
    pub fn in_use(&self) -> usize {
        self.0.taken.borrow().values().sum()
    }
}

/// The right to carry one connection. Dropping it frees the permit for another connection.
#[derive(Debug)]
pub struct ConnectionPermit {
    limit: ConnectionLimit,
    origin: Origin,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.limit.0.taken.send_modify(|taken| {
            if let Some(held) = taken.get_mut(&self.origin) {
                *held -= 1;
                if *held == 0 {
                    taken.remove(&self.origin);
                }
            }
        });
    }
}

/// Accepts connections: unauthenticated ones up to the bounds of the admission queue, carried ones up to the
/// limit.
#[derive(Debug, Clone)]
pub struct Acceptor {
    admission_queue: AdmissionQueue,
    limit: ConnectionLimit,
}

impl Acceptor {
    /// An acceptor with this admission queue and this limit.
    pub fn new(admission_queue: AdmissionQueue, limit: ConnectionLimit) -> Self {
        Self { admission_queue, limit }
    }

    /// Waits until a connection may be accepted. While all permits are held, further connections wait in the
    /// system's queue.
    pub async fn room(&self) {
        self.limit.available().await;
        self.admission_queue.room().await;
    }

    /// Enters a connection that has been accepted. Another one may be evicted for it.
    pub fn enter(&self, from: impl Into<Origin>) -> Accepted {
        let origin = from.into();
        let permit = self.limit.try_acquire(origin);
        Accepted {
            limit: self.limit.clone(),
            origin,
            unauthenticated_peer: self.admission_queue.enter(origin),
            permit,
        }
    }
}

/// An accepted connection, from its acceptance to its end.
pub struct Accepted {
    limit: ConnectionLimit,
    origin: Origin,
    unauthenticated_peer: UnauthenticatedPeer,
    permit: Option<ConnectionPermit>,
}

impl Accepted {
    /// Waits until the connection has a permit. Returns at once if it has one already.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] or [`ErrorKind::Closed`] if the connection is evicted.
    pub async fn wait_for_permit(&mut self) -> Result<()> {
        if self.permit.is_some() {
            return Ok(());
        }
        let watch = self.unauthenticated_peer.watch();
        let permit = tokio::select! {
            biased;
            error = watch.evicted() => Err(error.map_or(ErrorKind::Closed, |error| error.kind())),
            permit = self.limit.acquire(self.origin) => Ok(permit),
        };
        let refused = "its address has as many connections as it may have";
        self.permit = Some(permit.map_err(|kind| Error::new(kind, "accept", refused))?);
        Ok(())
    }

    /// Records the connection's first byte: the connection leaves the admission queue and cannot be evicted
    /// any more. Idempotent.
    pub fn admit(&self) {
        self.unauthenticated_peer.admit();
    }

    /// Waits until the connection is evicted because it sent nothing, and returns the reason. Waits for ever
    /// once it has been admitted.
    pub async fn evicted(&self) -> Error {
        let Some(error) = self.unauthenticated_peer.watch().evicted().await else {
            return std::future::pending().await;
        };
        let why = match error.kind() {
            ErrorKind::Timeout => "it sent nothing in time",
            _ => "it had sent nothing, and gave way to another connection",
        };
        Error::new(error.kind(), "accept", why)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::unauthenticated_peers::Bounds;

    fn address(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    fn acceptor(unauthenticated_peers: usize, total: usize) -> Acceptor {
        let bounds = Bounds {
            total: unauthenticated_peers,
            share: unauthenticated_peers.div_ceil(2),
            timeout: Duration::from_secs(20),
        };
        Acceptor::new(AdmissionQueue::new(bounds), ConnectionLimit::with_half_for_each_address(total))
    }

    /// Whether the future is still pending when other tasks have run.
    async fn waits(what: impl std::future::Future) -> bool {
        tokio::select! {
            biased;
            _ = what => false,
            () = tokio::task::yield_now() => true,
        }
    }

    #[tokio::test]
    async fn carried_connections_are_bounded_in_number() {
        let acceptor = acceptor(8, 2);
        let accepted = [acceptor.enter(address(1)), acceptor.enter(address(2))];
        accepted.iter().for_each(Accepted::admit);
        assert!(waits(acceptor.room()).await, "the next ones stay in the system's queue");
        let mut next = acceptor.enter(address(3));
        assert!(waits(next.wait_for_permit()).await);
        drop(accepted);
        acceptor.room().await;
        next.wait_for_permit().await.unwrap();
        assert_eq!(acceptor.limit.in_use(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn carried_connections_are_bounded_for_each_address() {
        let acceptor = acceptor(8, 4);
        let mut greedy: Vec<Accepted> = (0..3).map(|_| acceptor.enter(address(1))).collect();
        greedy.iter().take(2).for_each(Accepted::admit);
        acceptor.enter(address(2)).wait_for_permit().await.unwrap();
        let error = greedy[2].wait_for_permit().await.unwrap_err();
        assert_eq!(
            error.kind(),
            ErrorKind::Timeout,
            "it has waited for as long as an unauthenticated peer may"
        );
        assert_eq!(acceptor.limit.in_use(), 2);
        greedy.remove(0);
        acceptor.enter(address(1)).wait_for_permit().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_is_silent_goes_in_time_and_whoever_spoke_stays() {
        let acceptor = acceptor(8, 4);
        let (silent, active) = (acceptor.enter(address(1)), acceptor.enter(address(1)));
        active.admit();
        assert_eq!(silent.evicted().await.kind(), ErrorKind::Timeout);
        assert!(waits(active.evicted()).await);
    }

    #[tokio::test]
    async fn silent_connections_are_bounded_in_number_and_for_each_address() {
        let acceptor = acceptor(4, 100);
        let greedy: Vec<Accepted> = (0..3).map(|_| acceptor.enter(address(1))).collect();
        assert_eq!(
            greedy[0].evicted().await.kind(),
            ErrorKind::Closed,
            "an address has two unauthenticated peers at most"
        );
        let others: Vec<Accepted> = (2..6).map(|n| acceptor.enter(address(n))).collect();
        assert_eq!(
            greedy[1].evicted().await.kind(),
            ErrorKind::Closed,
            "the address with the most gives way"
        );
        assert_eq!(acceptor.admission_queue.count(), 4);
        assert!(waits(others[3].evicted()).await);
    }

    #[tokio::test]
    async fn programs_of_this_machine_may_have_all_permits() {
        for host in ["127.0.0.1", "::1"] {
            let acceptor = acceptor(8, 2);
            let host: IpAddr = host.parse().unwrap();
            let accepted = [acceptor.enter(host), acceptor.enter(host)];
            assert!(accepted.iter().all(|accepted| accepted.permit.is_some()), "{host}");
        }
    }

    #[test]
    fn connections_leave_descriptors_for_the_job() {
        assert!(ConnectionLimit::check("listen", 256, 2, 1024).is_ok());
        let error = ConnectionLimit::check("listen", 257, 2, 1024).unwrap_err();
        assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("--connections 256"));
        assert!(ConnectionLimit::check("listen", 1, 1, 0).is_err());
    }

    proptest! {
        #[test]
        fn permits_are_counted(total in 1..9_usize, share in 1..5_usize, steps in prop::collection::vec((0..4_u8, any::<bool>()), 1..200)) {
            let limit = ConnectionLimit::new(total, share);
            let mut held: Vec<(u8, ConnectionPermit)> = Vec::new();
            for (n, comes) in steps {
                let mine = held.iter().filter(|(of, _)| *of == n).count();
                if comes {
                    let permit = limit.try_acquire(address(n).into());
                    prop_assert_eq!(permit.is_some(), held.len() < total && mine < share);
                    held.extend(permit.map(|permit| (n, permit)));
                } else if let Some(at) = held.iter().position(|(of, _)| *of == n) {
                    held.remove(at);
                }
                prop_assert_eq!(limit.in_use(), held.len());
            }
        }
    }
}
