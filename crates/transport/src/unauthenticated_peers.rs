//! The table of peers that have connected and have not proved who they are. It decides which of them is
//! evicted when there are too many. It does no IO and has no clock; [`crate::AdmissionQueue`] adds both.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use thalweg_wire::limits;

/// Maximum number of unauthenticated peers at a time, however many descriptors the process may have.
const MOST: u64 = 1024;
/// Unauthenticated peers may use the process's descriptors divided by this.
const PART: u64 = 4;

/// Bounds on the number of unauthenticated peers and on their time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum number of unauthenticated peers in all.
    pub total: usize,
    /// Maximum number of unauthenticated peers from one address.
    pub share: usize,
    /// How long a peer may stay unauthenticated.
    pub timeout: Duration,
}

impl Bounds {
    /// Bounds for a process that may have this many descriptors: unauthenticated peers get a quarter of them,
    /// and one address gets half of that.
    pub fn of_process(descriptors: u64) -> Self {
        let total = (descriptors / PART).clamp(2, MOST) as usize;
        Self { total, share: total / 2, timeout: limits::ADMISSION }
    }
}

impl Default for Bounds {
    fn default() -> Self {
        Self::of_process(u64::MAX)
    }
}

/// The party that answers for an unauthenticated peer: its IPv4 address, or its IPv6 /64 network, which one
/// customer usually has alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// An IPv4 address, or the first address of an IPv6 /64 network.
    Address(IpAddr),
    /// The address is unknown, for example behind a broker. All such peers count as one origin, but no share
    /// limits them.
    Unknown,
}

impl Origin {
    /// Reads a peer's address in the form `host:port`. Another text, such as a broker's name for a peer,
    /// gives [`Origin::Unknown`].
    pub fn of(address: &str) -> Self {
        address.parse::<SocketAddr>().map_or(Self::Unknown, Self::from)
    }
}

impl From<IpAddr> for Origin {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(v6) => {
                let network = u128::from(v6) & (u128::MAX << 64);
                Origin::Address(Ipv6Addr::from(network).into())
            }
            v4 => Origin::Address(v4),
        }
    }
}

impl From<SocketAddr> for Origin {
    fn from(address: SocketAddr) -> Self {
        address.ip().into()
    }
}

/// Number of an unauthenticated peer. No number is used twice.
pub type UnauthenticatedPeerId = u64;

#[derive(Debug, Clone, Copy)]
struct Row {
    origin: Origin,
    /// When the peer last completed a step of its handshake, or when it connected. Of two equal times, the
    /// one of the lower number counts as older.
    last_step: Duration,
}

/// The table of unauthenticated peers. Evicted peers are not in it, even while their connections still exist.
#[derive(Debug)]
pub struct UnauthenticatedPeers {
    bounds: Bounds,
    rows: BTreeMap<UnauthenticatedPeerId, Row>,
    /// Number of peers of each origin.
    counts: HashMap<Origin, usize>,
    /// Number of the next peer.
    next: UnauthenticatedPeerId,
}

impl UnauthenticatedPeers {
    /// An empty table.
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, rows: BTreeMap::new(), counts: HashMap::new(), next: 0 }
    }

    /// The bounds of this table.
    pub fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Number of unauthenticated peers.
    pub fn count(&self) -> usize {
        self.rows.len()
    }

    /// Number of unauthenticated peers of this origin.
    pub fn count_from(&self, origin: Origin) -> usize {
        self.counts.get(&origin).copied().unwrap_or(0)
    }

    /// Adds a peer that has connected. Returns its number, and the peer that is evicted for it if there were
    /// too many.
    ///
    /// An origin that exceeds its share loses one of its own peers. Else, if the table is full, the origin
    /// with the most peers loses one; the newcomer counts as a peer of its own origin. So no origin within
    /// its share loses a peer to an origin that has more. Of an origin's peers, the one that has been silent
    /// for longest is evicted.
    pub fn arrive(
        &mut self,
        now: Duration,
        origin: Origin,
    ) -> (UnauthenticatedPeerId, Option<UnauthenticatedPeerId>) {
        let mine = self.count_from(origin) + 1;
        let beyond_share = origin != Origin::Unknown && mine > self.bounds.share.max(1);
        let out = if beyond_share {
            self.oldest(|row| row.origin == origin)
        } else if self.rows.len() >= self.bounds.total.max(1) {
            let most = self.counts.values().copied().max().unwrap_or(0).max(mine);
            let count = |of: Origin| if of == origin { mine } else { self.count_from(of) };
            self.oldest(|row| count(row.origin) == most)
        } else {
            None
        };
        if let Some(out) = out {
            self.leave(out);
        }
        let id = self.next;
        self.next += 1;
        self.rows.insert(id, Row { origin, last_step: now });
        *self.counts.entry(origin).or_default() += 1;
        (id, out)
    }

    fn oldest(&self, among: impl Fn(&Row) -> bool) -> Option<UnauthenticatedPeerId> {
        let candidates = self.rows.iter().filter(|(_, row)| among(row));
        candidates.min_by_key(|(&id, row)| (row.last_step, id)).map(|(&id, _)| id)
    }

    /// Records that the peer has completed a step of its handshake. A single byte does not count.
    pub fn progressed(&mut self, now: Duration, id: UnauthenticatedPeerId) {
        if let Some(row) = self.rows.get_mut(&id) {
            row.last_step = row.last_step.max(now);
        }
    }

    /// Removes a peer that has proved who it is, or whose connection has ended.
    pub fn leave(&mut self, id: UnauthenticatedPeerId) {
        let Some(row) = self.rows.remove(&id) else { return };
        if let Some(count) = self.counts.get_mut(&row.origin) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&row.origin);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address(n: u8) -> Origin {
        IpAddr::from([10, 0, 0, n]).into()
    }

    fn table(total: usize, share: usize) -> UnauthenticatedPeers {
        UnauthenticatedPeers::new(Bounds { total, share, timeout: limits::ADMISSION })
    }

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn there_is_room_for_all_within_the_bounds() {
        let mut unauthenticated_peers = table(4, 2);
        for n in [1, 1, 2, 2] {
            assert_eq!(unauthenticated_peers.arrive(at(0), address(n)).1, None);
        }
        assert_eq!((unauthenticated_peers.count(), unauthenticated_peers.count_from(address(1))), (4, 2));
    }

    #[test]
    fn beyond_its_share_an_address_displaces_its_own_oldest_silent_one() {
        let mut unauthenticated_peers = table(100, 2);
        let (first, _) = unauthenticated_peers.arrive(at(0), address(1));
        let (second, _) = unauthenticated_peers.arrive(at(1), address(1));
        unauthenticated_peers.progressed(at(2), first);
        assert_eq!(
            unauthenticated_peers.arrive(at(3), address(1)).1,
            Some(second),
            "the first has said something since"
        );
        assert_eq!(unauthenticated_peers.count(), 2);
    }

    #[test]
    fn when_it_is_full_the_address_with_the_most_gives_way() {
        let mut unauthenticated_peers = table(4, 3);
        let (honest, _) = unauthenticated_peers.arrive(at(0), address(1));
        let greedy: Vec<UnauthenticatedPeerId> =
            (1..4).map(|ms| unauthenticated_peers.arrive(at(ms), address(2)).0).collect();
        let (third, out) = unauthenticated_peers.arrive(at(9), address(3));
        assert_eq!(out, Some(greedy[0]), "not the oldest of all, who is alone at its address");
        assert_eq!(unauthenticated_peers.arrive(at(10), address(4)).1, Some(greedy[1]));
        assert!(
            unauthenticated_peers.rows.contains_key(&honest)
                && unauthenticated_peers.rows.contains_key(&third)
        );
    }

    #[test]
    fn where_all_have_one_the_oldest_silent_one_gives_way() {
        let mut unauthenticated_peers = table(3, 2);
        let ids: Vec<UnauthenticatedPeerId> =
            (0..3).map(|n: u8| unauthenticated_peers.arrive(at(n.into()), address(n)).0).collect();
        unauthenticated_peers.progressed(at(5), ids[0]);
        assert_eq!(unauthenticated_peers.arrive(at(6), address(9)).1, Some(ids[1]));
    }

    #[test]
    fn whose_address_nobody_knows_has_all_there_is() {
        let mut unauthenticated_peers = table(4, 1);
        let (first, _) = unauthenticated_peers.arrive(at(0), Origin::Unknown);
        assert!((1..4).all(|ms| unauthenticated_peers.arrive(at(ms), Origin::Unknown).1.is_none()));
        assert_eq!(unauthenticated_peers.arrive(at(4), Origin::Unknown).1, Some(first));
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let origin = |text: &str| Origin::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(origin("2001:db8::1"), origin("2001:db8::ffff:2"));
        assert_ne!(origin("2001:db8:0:1::1"), origin("2001:db8::1"));
        assert_eq!(origin("::ffff:10.0.0.1"), origin("10.0.0.1"));
        assert_ne!(origin("10.0.0.2"), origin("10.0.0.1"));
    }

    #[test]
    fn an_origin_is_read_from_an_address_with_a_port() {
        assert_eq!(Origin::of("10.0.0.1:7070"), Origin::Address([10, 0, 0, 1].into()));
        assert_eq!(Origin::of("[2001:db8::1]:7070"), Origin::from("2001:db8::".parse::<IpAddr>().unwrap()));
        for other in ["10.0.0.1", "host:7070", "client-3", ""] {
            assert_eq!(Origin::of(other), Origin::Unknown, "{other:?}");
        }
    }

    #[test]
    fn a_process_keeps_most_of_its_descriptors() {
        assert_eq!(Bounds::of_process(1024).total, 256);
        assert_eq!(Bounds::of_process(1 << 20).total, MOST as usize);
        let few = Bounds::of_process(0);
        assert!(few.total >= 2 && few.share >= 1);
    }

    /// A step of the property test. `Progress` and `Leave` choose a peer by its index among those that arrived.
    #[derive(Debug, Clone)]
    enum Step {
        Arrive(u8),
        Progress(prop::sample::Index),
        Leave(prop::sample::Index),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let index = any::<prop::sample::Index>;
        let step = prop_oneof![
            6 => (0..5_u8).prop_map(Step::Arrive),
            2 => index().prop_map(Step::Progress),
            1 => index().prop_map(Step::Leave),
        ];
        prop::collection::vec(step, 1..200)
    }

    fn check(unauthenticated_peers: &UnauthenticatedPeers) {
        let Bounds { total, share, .. } = unauthenticated_peers.bounds;
        assert!(unauthenticated_peers.count() <= total);
        let mut counts: HashMap<Origin, usize> = HashMap::new();
        unauthenticated_peers.rows.values().for_each(|row| *counts.entry(row.origin).or_default() += 1);
        assert_eq!(counts, unauthenticated_peers.counts);
        assert!(counts.values().all(|&n| n <= share));
    }

    proptest! {
        #[test]
        fn whoever_gives_way_had_no_less_than_the_newcomer(total in 1..12_usize, share in 1..6_usize, steps in steps()) {
            let mut unauthenticated_peers = table(total, share.min(total));
            let mut arrived: Vec<UnauthenticatedPeerId> = Vec::new();
            for (step, ms) in steps.into_iter().zip(0..) {
                match step {
                    Step::Arrive(n) => {
                        let before = unauthenticated_peers.rows.clone();
                        let held = |origin: Origin| before.values().filter(|row| row.origin == origin).count();
                        let (id, out) = unauthenticated_peers.arrive(at(ms), address(n));
                        prop_assert!(unauthenticated_peers.rows.contains_key(&id), "a newcomer is always let in");
                        if let Some(out) = out {
                            let evicted = before[&out];
                            prop_assert!(evicted.origin == address(n) || held(evicted.origin) > held(address(n)));
                            let older = |row: &&Row| row.origin == evicted.origin && row.last_step < evicted.last_step;
                            prop_assert_eq!(before.values().filter(older).count(), 0);
                        } else {
                            prop_assert!(before.len() < total);
                        }
                        arrived.push(id);
                    }
                    Step::Progress(which) if !arrived.is_empty() => unauthenticated_peers.progressed(at(ms), *which.get(&arrived)),
                    Step::Leave(which) if !arrived.is_empty() => unauthenticated_peers.leave(*which.get(&arrived)),
                    Step::Progress(_) | Step::Leave(_) => {}
                }
                check(&unauthenticated_peers);
            }
        }
    }
}
