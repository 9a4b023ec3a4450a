//! Moves clients from overloaded nodes to other nodes while a job runs, by what the nodes measure (LIFL,
//! section 5.1).
//!
//! A node's residual capacity is RC = MC - k * E. A node is overloaded while its queue k * E exceeds its
//! capacity MC. Then as many of its clients move as its queue exceeds the capacity by, to nodes that
//! [`Placer`] chooses and whose residual capacity is enough.
//!
//! A move costs a connection, so load that swings must not move clients to and fro:
//!
//! - The latest measurements must all exceed the capacity ([`BalanceConfig::steady`]), and the smoothed queue
//!   too, each by a tenth. A node whose number of clients has changed is measured anew.
//! - A node takes clients only up to nine tenths of its capacity, and only if it is no slower.
//! - A client never moves back to a node that it has left for load. So each client visits each node at most
//!   once, whatever the load does.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{smoothed, Load, Placer, Policy, UPDATE};

/// Tenths of its capacity above which a node is overloaded.
const OVERLOADED: Load = 11;
/// Tenths of its capacity up to which a node takes clients.
const FULL: Load = 9;
/// Maximum number of clients that move at once, so that a decision stays short enough for a line of the record.
const MOST_MOVES: usize = 1000;

/// How clients are moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BalanceConfig {
    /// How the new node of a client is chosen.
    pub placement: Policy,
    /// Weight of the history in the smoothed load, in thousandths; the paper's alpha.
    pub history: u32,
    /// Number of latest measurements that must all show an overload.
    pub steady: u32,
}

/// One measurement of a node.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measurement {
    /// Average time of an update in seconds, waiting included; the paper's E.
    pub seconds: f64,
    /// The queue k * E in updates: those that wait or are folded, on average.
    pub queue: f64,
}

/// A node, and what it has measured since the last decision.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeLoad {
    /// The node's name.
    pub node: String,
    /// Maximum load that the node can hold at once; the paper's MC.
    pub capacity: Load,
    /// The clients that it has.
    pub clients: Vec<String>,
    /// The new measurements, the oldest first.
    pub measured: Vec<Measurement>,
    /// The only group that it serves; `None` if it serves all.
    pub group: Option<u32>,
    /// Clients of a node move only to nodes that they can reach in the same way, such as the same transport.
    /// `None`: clients neither leave this node nor come to it.
    pub reached_by: Option<String>,
}

/// A client's move from one node to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Move {
    /// The client.
    pub client: String,
    /// The node that it leaves.
    pub source: String,
    /// The node that it goes to.
    pub target: String,
}

/// What is known of a node's load when clients are to move.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Residual {
    /// The node's name.
    pub node: String,
    /// Number of its clients before the moves.
    pub clients: u32,
    /// Maximum number of updates that it can hold at once; the paper's MC.
    pub capacity: f64,
    /// The smoothed queue in updates; the paper's k * E.
    pub queue: f64,
    /// The smoothed time of an update in seconds; the paper's E. `None` if it was not measured yet.
    pub seconds: Option<f64>,
    /// The residual capacity in updates; negative if the node is overloaded.
    pub residual: f64,
}

/// A decision, with what it follows from.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Balance {
    /// Number of the decision, from 1.
    pub number: u64,
    /// The load of each node.
    pub nodes: Vec<Residual>,
    /// The clients that move; empty if all stay.
    pub moves: Vec<Move>,
    /// The reasons, in words.
    pub reasons: Vec<String>,
}

/// What was measured of a node so far.
#[derive(Debug, Default)]
struct History {
    /// The smoothed load of one of its clients.
    share: Option<Load>,
    /// The smoothed time of an update, in nanoseconds.
    time: Option<u64>,
    /// Number of its clients at the last decision.
    clients: Option<u64>,
    /// The loads of one of its clients in the latest measurements with this number of clients.
    latest: VecDeque<Load>,
}

/// Decides again and again which clients move.
#[derive(Debug)]
pub struct Balancer {
    config: BalanceConfig,
    number: u64,
    nodes: BTreeMap<String, History>,
    /// For each client, the nodes that it has left for load.
    left: BTreeMap<String, BTreeSet<String>>,
}

/// A node during a decision.
struct Known<'a> {
    given: &'a NodeLoad,
    /// The load of one of its clients, smoothed. Before anything is measured, each client is one update.
    share: Load,
    time: Option<u64>,
    queue: Load,
}

impl Known<'_> {
    /// The load up to which it takes clients, less what it has.
    fn room(&self) -> i64 {
        signed(tenths(self.given.capacity, FULL)).saturating_sub(signed(self.queue))
    }

    fn takes_clients_of(&self, source: &Self) -> bool {
        let (own, other) = (self.given, source.given);
        let is_no_slower = match (self.time, source.time) {
            (Some(own), Some(other)) => own <= other,
            _ => true,
        };
        own.node != other.node
            && own.reached_by.is_some()
            && own.reached_by == other.reached_by
            && (own.group.is_none() || own.group == other.group)
            && is_no_slower
    }
}

/// Words for a number of updates.
struct Updates(Load);

impl fmt::Display for Updates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1}", updates(self.0))
    }
}

impl Balancer {
    /// A balancer that has seen no measurement.
    pub fn new(config: BalanceConfig) -> Self {
        Self { config, number: 0, nodes: BTreeMap::new(), left: BTreeMap::new() }
    }

    /// Decides which clients move now. All nodes that are there are in `nodes`; others are forgotten.
    /// Of two nodes of one name the first counts.
    pub fn decide(&mut self, nodes: &[NodeLoad]) -> Balance {
        let mut names = BTreeSet::new();
        let nodes: Vec<&NodeLoad> = nodes.iter().filter(|one| names.insert(one.node.as_str())).collect();
        self.nodes.retain(|name, _| names.contains(name.as_str()));
        let mut known: Vec<Known> = nodes.into_iter().map(|given| self.measure(given)).collect();
        self.number += 1;
        let residuals = known.iter().map(residual).collect();
        let (mut moves, mut reasons) = (Vec::new(), Vec::new());
        let overloaded: Vec<bool> = known.iter().map(|node| self.is_overloaded(node)).collect();
        for source in (0..known.len()).filter(|&at| overloaded[at]) {
            self.relieve(source, &overloaded, &mut known, &mut moves, &mut reasons);
        }
        if reasons.is_empty() {
            reasons.push("no node is overloaded".to_owned());
        }
        for one in &moves {
            self.left.entry(one.client.clone()).or_default().insert(one.source.clone());
        }
        Balance { number: self.number, nodes: residuals, moves, reasons }
    }

    /// Adds a node's new measurements to its history.
    fn measure<'a>(&mut self, given: &'a NodeLoad) -> Known<'a> {
        let history = self.nodes.entry(given.node.clone()).or_default();
        let clients = given.clients.len() as u64;
        if history.clients.replace(clients) != Some(clients) {
            // What was measured until now is about other clients.
            history.latest.clear();
        }
        for one in given.measured.iter().filter(|_| clients > 0) {
            // A client has at most one update at a node. `as` saturates, and NaN becomes 0.
            let share = ((one.queue * UPDATE as f64 / clients as f64) as Load).min(UPDATE);
            history.share = Some(smoothed(history.share, share, self.config.history));
            if one.seconds > 0.0 {
                history.time = Some(smoothed(history.time, (one.seconds * 1e9) as u64, self.config.history));
            }
            if history.latest.len() >= self.config.steady.max(1) as usize {
                history.latest.pop_front();
            }
            history.latest.push_back(share);
        }
        let share = history.share.unwrap_or(UPDATE);
        Known { given, share, time: history.time, queue: share.saturating_mul(clients) }
    }

    /// Whether the smoothed queue and all of the latest measurements exceed a node's capacity by a tenth.
    fn is_overloaded(&self, node: &Known) -> bool {
        let Some(history) = self.nodes.get(&node.given.node) else { return false };
        let clients = node.given.clients.len() as u64;
        let is_over = |queue: Load| queue > tenths(node.given.capacity, OVERLOADED);
        node.given.reached_by.is_some()
            && history.latest.len() >= self.config.steady.max(1) as usize
            && is_over(node.queue)
            && history.latest.iter().all(|share| is_over(share.saturating_mul(clients)))
    }

    /// Moves clients away from an overloaded node.
    fn relieve(
        &self,
        source: usize,
        overloaded: &[bool],
        known: &mut [Known],
        moves: &mut Vec<Move>,
        reasons: &mut Vec<String>,
    ) {
        let from = &known[source];
        let (given, share) = (from.given, from.share);
        let (name, capacity) = (given.node.as_str(), given.capacity);
        let excess = from.queue.saturating_sub(capacity);
        let steady = self.config.steady.max(1);
        let why = format!(
            "{name} holds {} updates (k * E) and can hold {} (MC), in each of the last {steady} measurements over a tenth more",
            Updates(from.queue),
            Updates(capacity)
        );
        // One client stays, and no more move than are needed.
        let wanted = excess.div_ceil(share.max(1)).min(given.clients.len().saturating_sub(1) as u64);
        let wanted = wanted.min(MOST_MOVES.saturating_sub(moves.len()) as u64);
        let is_able = |&at: &usize| !overloaded[at] && known[at].takes_clients_of(from);
        let able: Vec<usize> = (0..known.len()).filter(is_able).collect();
        let (mut total, mut moved) = (0, BTreeMap::<usize, u64>::new());
        for client in given.clients.iter().rev() {
            if total >= wanted {
                break;
            }
            let left = self.left.get(client);
            let open = |at: usize| left.is_none_or(|left| !left.contains(&known[at].given.node));
            let free: Vec<usize> = able.iter().copied().filter(|&at| open(at)).collect();
            let room = free.iter().map(|&at| known[at].room()).collect();
            let Some((place, true)) = Placer::new(self.config.placement, room).place(share) else { continue };
            let at = free[place as usize];
            known[at].queue = known[at].queue.saturating_add(share);
            *moved.entry(at).or_default() += 1;
            total += 1;
            let target = known[at].given.node.clone();
            moves.push(Move { client: client.clone(), source: name.to_owned(), target });
        }
        known[source].queue = known[source].queue.saturating_sub(share.saturating_mul(total));
        reasons.push(why);
        for (&at, &count) in &moved {
            let to = &known[at];
            reasons.push(format!(
                "{} to {}, which then holds {} of {}",
                if count == 1 { "1 client moves".to_owned() } else { format!("{count} clients move") },
                to.given.node,
                Updates(to.queue),
                Updates(to.given.capacity)
            ));
        }
        if total < wanted {
            reasons.push(format!(
                "{} more should leave {name}, and no node has room for them that is no slower, and that they have not left",
                wanted - total
            ));
        }
    }
}

fn residual(node: &Known) -> Residual {
    let (capacity, queue) = (updates(node.given.capacity), updates(node.queue));
    Residual {
        node: node.given.node.clone(),
        clients: node.given.clients.len() as u32,
        capacity,
        queue,
        seconds: node.time.map(|nanoseconds| nanoseconds as f64 / 1e9),
        residual: capacity - queue,
    }
}

fn tenths(capacity: Load, count: Load) -> Load {
    Load::try_from(u128::from(capacity) * u128::from(count) / 10).unwrap_or(Load::MAX)
}

fn signed(load: Load) -> i64 {
    i64::try_from(load).unwrap_or(i64::MAX)
}

fn updates(load: Load) -> f64 {
    load as f64 / UPDATE as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CONFIG: BalanceConfig = BalanceConfig { placement: Policy::WorstFit, history: 700, steady: 3 };

    fn node(name: &str, clients: &[String], queue: f64) -> NodeLoad {
        NodeLoad {
            node: name.into(),
            capacity: 4 * UPDATE,
            clients: clients.to_vec(),
            measured: vec![Measurement { seconds: queue / 10.0, queue }],
            group: None,
            reached_by: Some("tcp".into()),
        }
    }

    fn names(letter: char, count: usize) -> Vec<String> {
        (0..count).map(|at| format!("{letter}{at}")).collect()
    }

    /// The clients of nodes, and the load that each client is at each of these nodes.
    struct Job {
        balancer: Balancer,
        homes: Vec<Vec<String>>,
        moves: Vec<Move>,
    }

    impl Job {
        fn new(clients: &[usize]) -> Self {
            let homes = clients.iter().zip('a'..).map(|(&count, letter)| names(letter, count)).collect();
            Self { balancer: Balancer::new(CONFIG), homes, moves: Vec::new() }
        }

        /// Measures these loads of one client at each node, and moves clients.
        fn step(&mut self, shares: &[f64]) -> Balance {
            let nodes = self.homes.iter().zip(shares).zip('A'..);
            let nodes: Vec<NodeLoad> = nodes
                .map(|((clients, share), name)| {
                    node(&name.to_string(), clients, share * clients.len() as f64)
                })
                .collect();
            let balance = self.balancer.decide(&nodes);
            for one in &balance.moves {
                let at = |name: &str| nodes.iter().position(|node| node.node == name).unwrap();
                let (from, to) = (at(&one.source), at(&one.target));
                let place = self.homes[from].iter().position(|client| *client == one.client);
                let client = self.homes[from].remove(place.expect("the client is where it leaves"));
                self.homes[to].push(client);
            }
            self.moves.extend(balance.moves.iter().cloned());
            balance
        }

        fn counts(&self) -> Vec<usize> {
            self.homes.iter().map(Vec::len).collect()
        }
    }

    #[test]
    fn clients_leave_a_node_that_stays_overloaded_and_no_more_than_needed() {
        let mut job = Job::new(&[8, 2]);
        for _ in 0..2 {
            assert!(job.step(&[0.9, 0.1]).moves.is_empty(), "it may be a peak");
        }
        let balance = job.step(&[0.9, 0.1]);
        assert_eq!(job.counts(), [5, 5], "{balance:?}");
        assert_eq!(balance.nodes[0].residual, -3.2);
        assert_eq!(balance.nodes[1].residual, 3.8);
        assert_eq!(
            balance.reasons,
            [
                "A holds 7.2 updates (k * E) and can hold 4.0 (MC), in each of the last 3 measurements over a tenth more",
                "3 clients move to B, which then holds 2.9 of 4.0",
                "1 more should leave A, and no node has room for them that is no slower, and that they have not left",
            ]
        );
    }

    #[test]
    fn after_a_move_both_nodes_are_measured_anew() {
        let mut job = Job::new(&[8, 0, 0]);
        (0..3).for_each(|_| drop(job.step(&[0.9, 0.0, 0.0])));
        let counts = job.counts();
        assert_eq!(counts, [4, 2, 2]);
        for _ in 0..2 {
            assert!(job.step(&[1.0, 1.0, 1.0]).moves.is_empty());
        }
    }

    #[test]
    fn no_more_than_a_line_holds_move_at_once() {
        let mut job = Job::new(&[5000, 0]);
        let step = |job: &mut Job| {
            let mut nodes = [node("A", &job.homes[0], 5000.0), node("B", &[], 0.0)];
            nodes.iter_mut().for_each(|node| node.capacity = 2500 * UPDATE);
            job.balancer.decide(&nodes)
        };
        (0..2).for_each(|_| drop(step(&mut job)));
        assert_eq!(step(&mut job).moves.len(), MOST_MOVES);
    }

    #[test]
    fn clients_that_come_are_measured_before_any_leaves() {
        let mut job = Job::new(&[4, 1]);
        (0..5).for_each(|_| drop(job.step(&[0.9, 0.1])));
        job.homes[0].extend(names('x', 4)); // those of a lost node
        for _ in 0..2 {
            assert!(job.step(&[0.9, 0.1]).moves.is_empty());
        }
        assert!(!job.step(&[0.9, 0.1]).moves.is_empty());
    }

    #[test]
    fn a_node_with_as_many_clients_as_it_can_hold_is_never_overloaded() {
        let mut job = Job::new(&[4, 1]);
        for _ in 0..20 {
            assert!(job.step(&[f64::INFINITY, 0.0]).moves.is_empty());
        }
    }

    #[test]
    fn a_small_gain_moves_nobody() {
        let mut job = Job::new(&[8, 1]);
        for _ in 0..20 {
            let balance = job.step(&[0.54, 0.1]);
            assert_eq!((balance.moves.len(), balance.reasons), (0, vec!["no node is overloaded".to_owned()]));
        }
    }

    #[test]
    fn load_that_swings_moves_nobody() {
        for period in [2, 3] {
            let mut job = Job::new(&[8, 8]);
            for step in 0..200 {
                let high = step % period == 0;
                let shares = if high { [0.1, 1.0] } else { [1.0, 0.1] };
                // A high load never lasts for three measurements.
                let balance = job.step(&shares);
                assert!(balance.moves.is_empty(), "period {period}, step {step}: {balance:?}");
            }
        }
    }

    #[test]
    fn load_that_swings_slowly_moves_each_client_away_once() {
        let mut job = Job::new(&[8, 8]);
        for step in 0..400 {
            job.step(if step / 20 % 2 == 0 { &[0.1, 1.0] } else { &[1.0, 0.1] });
        }
        let before = job.moves.len();
        assert!((1..=16).contains(&before), "{before}");
        for step in 0..400 {
            job.step(if step / 20 % 2 == 0 { &[0.1, 1.0] } else { &[1.0, 0.1] });
        }
        assert_eq!(job.moves.len(), before, "nobody goes back");
    }

    #[test]
    fn clients_go_to_no_slower_node_and_to_none_of_another_group_or_transport() {
        let run = |change: &dyn Fn(&mut NodeLoad)| {
            let mut balancer = Balancer::new(CONFIG);
            let mut other = node("B", &names('b', 1), 0.5);
            change(&mut other);
            let nodes = [node("A", &names('a', 8), 8.0), other];
            (0..3).map(|_| balancer.decide(&nodes).moves.len()).sum::<usize>()
        };
        assert_eq!(run(&|_| ()), 3, "each is a whole update, and B takes 3.6 in all");
        assert_eq!(run(&|other| other.measured[0].seconds = 0.9), 0);
        assert_eq!(run(&|other| other.group = Some(1)), 0);
        assert_eq!(run(&|other| other.reached_by = Some("udp".into())), 0);
        assert_eq!(run(&|other| other.reached_by = None), 0);
    }

    #[test]
    fn a_node_that_measured_nothing_new_is_judged_by_what_is_known() {
        let mut job = Job::new(&[8, 2]);
        (0..2).for_each(|_| drop(job.step(&[1.0, 0.1])));
        let mut nodes = [node("A", &job.homes[0], 8.0), node("B", &job.homes[1], 0.2)];
        nodes.iter_mut().for_each(|node| node.measured.clear());
        for _ in 0..9 {
            assert!(job.balancer.decide(&nodes).moves.is_empty(), "two measurements are too few");
        }
    }

    proptest! {
        /// Whatever nodes measure: each client moves to each node at most once, nobody is lost or doubled, the
        /// last client stays, and no node takes more than it has room for.
        #[test]
        fn moves_end_and_lose_nobody(
            clients in proptest::collection::vec(0_usize..12, 1..5),
            loads in proptest::collection::vec(proptest::collection::vec(0.0_f64..1.3, 5), 1..120),
        ) {
            let mut job = Job::new(&clients);
            let total: usize = clients.iter().sum();
            for shares in &loads {
                let before = job.counts();
                let balance = job.step(shares);
                let after = job.counts();
                prop_assert_eq!(after.iter().sum::<usize>(), total);
                for (at, residual) in balance.nodes.iter().enumerate() {
                    prop_assert!(before[at] == 0 || after[at] > 0);
                    let is_source = balance.moves.iter().any(|one| one.source == residual.node);
                    let is_target = balance.moves.iter().any(|one| one.target == residual.node);
                    prop_assert!(!is_source || residual.residual < 0.0);
                    prop_assert!(!is_target || residual.residual > 0.0);
                }
            }
            let mut seen = BTreeSet::new();
            for one in &job.moves {
                prop_assert!(one.source != one.target);
                prop_assert!(seen.insert((one.client.clone(), one.source.clone())), "left twice: {:?}", one);
            }
            prop_assert!(job.moves.len() <= total * clients.len());
        }
    }
}
