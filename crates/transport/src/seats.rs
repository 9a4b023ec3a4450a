//! Connections that are carried: how many there may be at a time, and how many of one address. A connection that is
//! accepted is a guest of a [`Lobby`] until its first byte comes; [`Reception`] is the lobby and the seats of a port
//! where no handshake tells who comes.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::watch;

use crate::guests::Origin;
use crate::lobby::{Guest, Lobby};
use crate::{Error, ErrorKind, Result};

/// Carried connections may use one in so many of the process's descriptors. A quarter is for guests
/// ([`crate::Bounds::of_process`]); the job keeps the rest.
const PART: u64 = 2;

/// The seats of a port. Clones are the same seats.
#[derive(Debug, Clone)]
pub struct Seats(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    total: usize,
    share: usize,
    taken: watch::Sender<HashMap<Origin, usize>>,
}

impl Seats {
    /// So many in all, and for each address. Addresses of this machine have no share: its programs are one party.
    pub fn new(total: usize, share: usize) -> Self {
        let (total, share) = (total.max(1), share.max(1));
        Self(Arc::new(Inner { total, share, taken: watch::Sender::default() }))
    }

    /// `total` seats, half of them for an address.
    pub fn halved(total: usize) -> Self {
        Self::new(total, total / 2)
    }

    /// Checks that `total` connections with `each` descriptors leave this process enough others.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`], with how many there may be.
    pub fn check(operation: &'static str, total: usize, each: usize, descriptors: u64) -> Result<()> {
        let most = descriptors / PART / (each.max(1) as u64);
        if total as u64 <= most {
            return Ok(());
        }
        let context = format!(
            "{total} connections at a time need more than half of the {descriptors} files that this process may open"
        );
        let mend = format!("give --connections {} or less, or raise the limit (ulimit -n)", most.max(1));
        Err(Error::new(ErrorKind::Unsupported, operation, context).mend(mend))
    }

    fn share(&self, origin: Origin) -> usize {
        let of_this_machine = match origin {
            Origin::Address(IpAddr::V4(v4)) => v4.is_loopback(),
            // ::1 is in the network that is named by its first address.
            Origin::Address(IpAddr::V6(v6)) => v6.is_unspecified(),
            Origin::Unknown => true,
        };
        if of_this_machine {
            self.0.total
        } else {
            self.0.share
        }
    }

    /// A seat, if there is one for this address now.
    pub fn try_take(&self, origin: Origin) -> Option<Seat> {
        let share = self.share(origin);
        let is_taken = self.0.taken.send_if_modified(|taken| {
            let held = taken.get(&origin).copied().unwrap_or(0);
            let is_free = held < share && taken.values().sum::<usize>() < self.0.total;
            if is_free {
                taken.insert(origin, held + 1);
            }
            is_free
        });
        is_taken.then(|| Seat { seats: self.clone(), origin })
    }

    /// A seat, as soon as there is one for this address.
    pub async fn take(&self, origin: Origin) -> Seat {
        let mut taken = self.0.taken.subscribe();
        loop {
            taken.mark_unchanged();
            if let Some(seat) = self.try_take(origin) {
                return seat;
            }
            // It fails when the sender is gone, which lives as long as we do.
            let _ = taken.changed().await;
        }
    }

    /// Waits until a seat is free, though maybe not for every address.
    pub async fn free(&self) {
        let total = self.0.total;
        let _ = self.0.taken.subscribe().wait_for(|taken| taken.values().sum::<usize>() < total).await;
    }

    /// How many are taken.
    pub fn taken(&self) -> usize {
        self.0.taken.borrow().values().sum()
    }
}

/// Is free again when it is dropped.
#[derive(Debug)]
pub struct Seat {
    seats: Seats,
    origin: Origin,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.0.taken.send_modify(|taken| {
            if let Some(held) = taken.get_mut(&self.origin) {
                *held -= 1;
                if *held == 0 {
                    taken.remove(&self.origin);
                }
            }
        });
    }
}

/// Accepts connections of whoever comes: guests of a lobby until their first byte, and then those of the seats.
#[derive(Debug, Clone)]
pub struct Reception {
    lobby: Lobby,
    seats: Seats,
}

impl Reception {
    /// Of this lobby and these seats.
    pub fn new(lobby: Lobby, seats: Seats) -> Self {
        Self { lobby, seats }
    }

    /// Waits until a connection may be accepted. While all seats are taken, further ones wait in the system's queue.
    pub async fn room(&self) {
        self.seats.free().await;
        self.lobby.room().await;
    }

    /// A connection has been accepted. Another one may have to go for it.
    pub fn enter(&self, from: impl Into<Origin>) -> Visit {
        let origin = from.into();
        let seat = self.seats.try_take(origin);
        Visit { seats: self.seats.clone(), origin, guest: self.lobby.enter(origin), seat }
    }
}

/// A connection that was accepted, from then until it has ended.
pub struct Visit {
    seats: Seats,
    origin: Origin,
    guest: Guest,
    seat: Option<Seat>,
}

impl Visit {
    /// Waits for a seat, where the address has all it may have.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`], [`ErrorKind::Closed`]: the connection has to go.
    pub async fn seated(&mut self) -> Result<()> {
        if self.seat.is_some() {
            return Ok(());
        }
        let watch = self.guest.watch();
        let seat = tokio::select! {
            biased;
            error = watch.turned_out() => Err(error.map_or(ErrorKind::Closed, |error| error.kind())),
            seat = self.seats.take(self.origin) => Ok(seat),
        };
        let refused = "its address has as many connections as it may have";
        self.seat = Some(seat.map_err(|kind| Error::new(kind, "accept", refused))?);
        Ok(())
    }

    /// Its first byte has come: it is a guest no more. Idempotent.
    pub fn spoke(&self) {
        self.guest.admit();
    }

    /// Waits until it has to go, because it said nothing; for ever once it has. Says why.
    pub async fn silent(&self) -> Error {
        let Some(error) = self.guest.watch().turned_out().await else { return std::future::pending().await };
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
    use crate::guests::Bounds;

    fn address(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    fn reception(guests: usize, total: usize) -> Reception {
        let bounds = Bounds { total: guests, share: guests.div_ceil(2), patience: Duration::from_secs(20) };
        Reception::new(Lobby::new(bounds), Seats::halved(total))
    }

    /// Whether this waits.
    async fn waits(what: impl std::future::Future) -> bool {
        tokio::select! {
            biased;
            _ = what => false,
            () = tokio::task::yield_now() => true,
        }
    }

    #[tokio::test]
    async fn carried_connections_are_bounded_in_number() {
        let reception = reception(8, 2);
        let visits = [reception.enter(address(1)), reception.enter(address(2))];
        visits.iter().for_each(Visit::spoke);
        assert!(waits(reception.room()).await, "the next ones stay in the system's queue");
        let mut next = reception.enter(address(3));
        assert!(waits(next.seated()).await);
        drop(visits);
        reception.room().await;
        next.seated().await.unwrap();
        assert_eq!(reception.seats.taken(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn carried_connections_are_bounded_for_each_address() {
        let reception = reception(8, 4);
        let mut greedy: Vec<Visit> = (0..3).map(|_| reception.enter(address(1))).collect();
        greedy.iter().take(2).for_each(Visit::spoke);
        reception.enter(address(2)).seated().await.unwrap();
        let error = greedy[2].seated().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "it has waited for as long as a guest may");
        assert_eq!(reception.seats.taken(), 2);
        greedy.remove(0);
        reception.enter(address(1)).seated().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_is_silent_goes_in_time_and_whoever_spoke_stays() {
        let reception = reception(8, 4);
        let (silent, spoke) = (reception.enter(address(1)), reception.enter(address(1)));
        spoke.spoke();
        assert_eq!(silent.silent().await.kind(), ErrorKind::Timeout);
        assert!(waits(spoke.silent()).await);
    }

    #[tokio::test]
    async fn silent_connections_are_bounded_in_number_and_for_each_address() {
        let reception = reception(4, 100);
        let greedy: Vec<Visit> = (0..3).map(|_| reception.enter(address(1))).collect();
        assert_eq!(greedy[0].silent().await.kind(), ErrorKind::Closed, "an address has two guests at most");
        let others: Vec<Visit> = (2..6).map(|n| reception.enter(address(n))).collect();
        assert_eq!(greedy[1].silent().await.kind(), ErrorKind::Closed, "the address with the most gives way");
        assert_eq!(reception.lobby.count(), 4);
        assert!(waits(others[3].silent()).await);
    }

    #[tokio::test]
    async fn programs_of_this_machine_have_all_seats() {
        for host in ["127.0.0.1", "::1"] {
            let reception = reception(8, 2);
            let host: IpAddr = host.parse().unwrap();
            let visits = [reception.enter(host), reception.enter(host)];
            assert!(visits.iter().all(|visit| visit.seat.is_some()), "{host}");
        }
    }

    #[test]
    fn connections_leave_descriptors_for_the_job() {
        assert!(Seats::check("listen", 256, 2, 1024).is_ok());
        let error = Seats::check("listen", 257, 2, 1024).unwrap_err();
        assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("--connections 256"));
        assert!(Seats::check("listen", 1, 1, 0).is_err());
    }

    proptest! {
        #[test]
        fn seats_are_counted(total in 1..9_usize, share in 1..5_usize, steps in prop::collection::vec((0..4_u8, any::<bool>()), 1..200)) {
            let seats = Seats::new(total, share);
            let mut held: Vec<(u8, Seat)> = Vec::new();
            for (n, comes) in steps {
                let mine = held.iter().filter(|(of, _)| *of == n).count();
                if comes {
                    let seat = seats.try_take(address(n).into());
                    prop_assert_eq!(seat.is_some(), held.len() < total && mine < share);
                    held.extend(seat.map(|seat| (n, seat)));
                } else if let Some(at) = held.iter().position(|(of, _)| *of == n) {
                    held.remove(at);
                }
                prop_assert_eq!(seats.taken(), held.len());
            }
        }
    }
}
