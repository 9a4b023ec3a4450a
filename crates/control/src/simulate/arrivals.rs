//! When clients' updates arrive at their nodes, and which of them count.

use std::collections::VecDeque;

use thalweg_rng::Rng;

use super::costs::at_rate;
use super::Scenario;
use crate::admission::{Answer, Root};
use crate::Time;

/// An update that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arrival {
    /// When the update was received completely and counted.
    pub at: Time,
    /// The node that counted it.
    pub node: u32,
    /// The client that sent it.
    pub client: u32,
}

/// All updates of a round that count, in order, and how many times nodes drew admissions.
pub fn counted(scenario: &Scenario, round: u32, open: Time, homes: &[Option<u32>]) -> (Vec<Arrival>, u32) {
    admitted(scenario, received(scenario, round, open, homes))
}

/// When each client's update is complete at its node. Clients send at random times within the spread. Over
/// the node's link for clients the updates follow one another.
fn received(scenario: &Scenario, round: u32, open: Time, homes: &[Option<u32>]) -> Vec<Arrival> {
    let mut rng = Rng::new(&[scenario.seed, u64::from(round)]);
    let first = open.saturating_add(scenario.between);
    let mut delay = |client: u32| match scenario.arrivals.get(client as usize) {
        Some(known) => known.0,
        None => scenario.spread.mul_f64(rng.unit()),
    };
    let sent = (0..).zip(homes).map(|(client, home)| (client, home, first + delay(client)));
    let mut arrivals: Vec<Arrival> =
        sent.filter_map(|(client, home, at)| home.map(|node| Arrival { at, node, client })).collect();
    arrivals.sort_unstable();
    let mut free = vec![Time::ZERO; scenario.nodes.len()];
    for arrival in &mut arrivals {
        let node = arrival.node as usize;
        let taking = at_rate(scenario.bytes.saturating_mul(8), scenario.nodes[node].ingress.unwrap_or(0));
        arrival.at = arrival.at.max(free[node]) + taking;
        free[node] = arrival.at;
    }
    arrivals.sort_unstable();
    arrivals
}

/// Lets the root admit as many updates as the goal. Nodes give back admissions for which no client is left.
/// Updates that found no admission wait for these.
fn admitted(scenario: &Scenario, arrivals: Vec<Arrival>) -> (Vec<Arrival>, u32) {
    let mut desk = Desk::new(scenario, &arrivals);
    let (mut counted, mut waiting) = (Vec::new(), VecDeque::new());
    for arrival in arrivals {
        desk.coming[arrival.node as usize] -= 1;
        if desk.admits(&arrival) {
            counted.push(arrival);
        } else {
            waiting.push_back(arrival);
        }
        desk.give_back(arrival.node);
        while desk.root.left() > 0 {
            let Some(one) = waiting.pop_front() else { break };
            desk.admits(&one);
            desk.give_back(one.node);
            counted.push(Arrival { at: arrival.at, ..one });
        }
        if desk.root.reached() {
            break;
        }
    }
    (counted, desk.draws)
}

/// The nodes' admissions in the simulation.
struct Desk {
    root: Root,
    /// Number of admissions that each node holds.
    held: Vec<u32>,
    /// Number of updates that each node still expects.
    coming: Vec<u32>,
    draws: u32,
}

impl Desk {
    fn new(scenario: &Scenario, arrivals: &[Arrival]) -> Self {
        let nodes = scenario.nodes.len();
        let mut coming = vec![0; nodes];
        arrivals.iter().for_each(|arrival| coming[arrival.node as usize] += 1);
        Self { root: Root::new(scenario.goal(), nodes as u32), held: vec![0; nodes], coming, draws: 0 }
    }

    /// Whether an update counts now. Its node draws admissions if it has none.
    fn admits(&mut self, arrival: &Arrival) -> bool {
        let held = &mut self.held[arrival.node as usize];
        if *held == 0 {
            *held += self.root.draw(arrival.node);
            self.draws += 1;
        }
        let counts = self.root.count(arrival.node, arrival.client.into()) == Answer::Counted;
        *held -= u32::from(counts);
        counts
    }

    /// Gives back the admissions that a node holds beyond the updates that it expects.
    fn give_back(&mut self, node: u32) {
        let (held, coming) = (&mut self.held[node as usize], self.coming[node as usize]);
        let spare = held.saturating_sub(coming);
        self.root.give_back(node, spare);
        *held -= spare;
    }
}
