//! Nodes, the network between them, and the work of each node's driver and application.

mod party;
mod running;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use thalweg_proto::{
    Action, ClientAction, Exchange, ExchangeState, LinkId, Mixing, Neighbour, Node, NodeConfig, NodePlace,
    NodeStep, Portion, ServerMachine, Time, Waiting, Weighing, MEAN,
};
use thalweg_wire::control::{Alike, Control};
use thalweg_wire::{checksum, ChunkHeader, Dtype, FrameHeader, Layout, Range, Ranges};

use crate::common::network::{Event, Frame, Network};
use crate::common::{Doors, End, Path, Rng, JOB, SECOND};

const ELEMENTS: u64 = 200;
const CHUNK: u32 = 128;

pub fn layout(elements: u64) -> Arc<Layout> {
    Arc::new(Layout::pack([("w", Dtype::F64, vec![elements])]).unwrap())
}

pub fn ring(n: usize) -> Vec<(usize, usize)> {
    (0..n).map(|i| (i, (i + 1) % n)).collect()
}

pub fn line(n: usize) -> Vec<(usize, usize)> {
    (1..n).map(|i| (i - 1, i)).collect()
}

pub fn complete(n: usize) -> Vec<(usize, usize)> {
    (0..n).flat_map(|i| (i + 1..n).map(move |j| (i, j))).collect()
}

/// The distances at which a node of a one-peer exponential graph sends, in turn.
fn steps(nodes: usize) -> Vec<usize> {
    (0..).map(|power| 1 << power).take_while(|&step| step < nodes).collect()
}

pub fn step(nodes: usize, round: u32) -> usize {
    let steps = steps(nodes);
    steps[(round as usize - 1) % steps.len()]
}

fn name(index: usize) -> String {
    format!("n{index:04}")
}

/// Weights of neighbours, by name.
type Weights = Vec<(String, f64)>;

/// The result of an iteration.
pub struct Report {
    pub heard: BTreeSet<usize>,
    pub whole: bool,
    pub fresh: bool,
    pub timed_out: bool,
    pub by_segments: bool,
    /// Fraction of the neighbours' bytes that were used.
    pub used: f64,
    /// For each neighbour, the weight and the ranges that are in the mean.
    pub portions: BTreeMap<usize, (f64, Ranges)>,
}

/// A node with its driver and its application.
pub struct Party {
    pub name: String,
    pub node: Node,
    pub alive: bool,
    /// The process exists and does nothing.
    pub hangs: bool,
    pub train: Time,
    /// How long after meeting its neighbours it begins.
    pub rest: Time,
    pub model: Vec<f64>,
    /// The model after each iteration that it mixed.
    pub after: BTreeMap<u32, Vec<f64>>,
    pub reports: Vec<Report>,
    pub numbers: Vec<u32>,
    pub mixed_at: Vec<Time>,
    pub refused: Vec<String>,
    pub finished: Vec<String>,
    /// Neighbours whose links ended, each with the reason.
    pub left: Vec<(String, String)>,
    instance: u64,
    weights: Vec<(String, f64)>,
    neighbours: usize,
    weighing: Weighing,
    /// How many iterations after the current one it keeps chunks of.
    ahead: u32,
    /// The machine's index of each neighbour, by the neighbour's number.
    places: BTreeMap<usize, usize>,
    sums: BTreeMap<u32, Vec<(f64, f64)>>,
    /// Models of neighbours whose weight is not known yet, by iteration and index.
    staged: BTreeMap<(u32, usize), Vec<u8>>,
    copy: Vec<u8>,
    /// Means of segments: of the node's own, and of the neighbours'.
    means: Vec<u8>,
    /// In how many iterations it sent a mean of its own segment.
    pub passed: BTreeSet<u32>,
    chunk: u32,
    /// Its sums give no mean.
    pub averages_nothing: bool,
    copied: u32,
    /// The links that it dials, by index.
    dialled: BTreeMap<usize, LinkId>,
    /// Chunks that arrived too early to be kept.
    pub early: u64,
    /// The iteration for which it has trained, while it waits until it may send.
    trained: Option<u32>,
    begun: bool,
}

impl Party {
    pub fn done(&self) -> u32 {
        self.reports.len() as u32
    }
}

struct Edge {
    dialer: usize,
    place: usize,
    acceptor: usize,
    instances: (u64, u64),
}

pub struct World {
    pub now: Time,
    pub net: Network,
    pub path: Path,
    /// Nodes sometimes begin to send late, by up to this time, because their process has no processor.
    pub hiccup: Time,
    /// Nodes that reach only each other; empty: all nodes reach all.
    part: BTreeSet<usize>,
    pub parties: Vec<Party>,
    config: Vec<NodeConfig>,
    edges: Vec<(usize, usize)>,
    weighing: Weighing,
    /// Whether each node sends to one other node, at distances 1, 2, 4, ... in turn.
    one_peer: bool,
    links: BTreeMap<LinkId, Edge>,
    next_instance: u64,
    pub start: Vec<Vec<f64>>,
    /// When each node's timers must be handled.
    due: Vec<Option<Time>>,
}

impl World {
    pub fn new(seed: u64, nodes: usize, edges: &[(usize, usize)], waiting: Waiting) -> Self {
        Self::changed(seed, nodes, edges, waiting, usize::MAX, |_| {})
    }

    /// A graph in which one node has another configuration.
    pub fn changed(
        seed: u64,
        nodes: usize,
        edges: &[(usize, usize)],
        waiting: Waiting,
        which: usize,
        change: fn(&mut NodeConfig),
    ) -> Self {
        Self::made(seed, nodes, edges, |config, index| {
            config.waiting = waiting;
            if index == which {
                change(config);
            }
        })
    }

    /// A graph of nodes that learn their neighbours' weights when the waiting is over.
    pub fn weighed(
        seed: u64,
        nodes: usize,
        edges: &[(usize, usize)],
        waiting: Waiting,
        weighing: Weighing,
    ) -> Self {
        Self::made(seed, nodes, edges, |config, _| {
            (config.waiting, config.weighing) = (waiting, weighing);
        })
    }

    /// A graph of nodes that send a fraction of their model in each iteration.
    pub fn sharing(
        seed: u64,
        nodes: usize,
        edges: &[(usize, usize)],
        waiting: Waiting,
        share: f64,
        weighing: Weighing,
    ) -> Self {
        Self::made(seed, nodes, edges, |config, _| {
            (config.waiting, config.share, config.weighing) = (waiting, share, weighing);
        })
    }

    /// A complete graph of nodes that average by segments, and send a fraction of a model of so many elements.
    pub fn segmented(seed: u64, nodes: usize, elements: u64, share: f64) -> Self {
        Self::made(seed, nodes, &complete(nodes), |config, _| {
            (config.layout, config.segments, config.share) = (layout(elements), Some(0), share);
            config.chunk = if elements > 10_000 { 2048 } else { CHUNK };
        })
    }

    /// A one-peer exponential graph.
    pub fn one_peer(seed: u64, nodes: usize, waiting: Waiting, ahead: u32) -> Self {
        let steps = steps(nodes);
        let to = |i: usize| steps.iter().map(move |step| (i, (i + step) % nodes));
        let edges: Vec<(usize, usize)> = (0..nodes).flat_map(to).collect();
        let mut world =
            Self::made(seed, nodes, &edges, |config, _| (config.waiting, config.ahead) = (waiting, ahead));
        world.one_peer = true;
        world
    }

    pub fn made(
        seed: u64,
        nodes: usize,
        edges: &[(usize, usize)],
        change: impl Fn(&mut NodeConfig, usize),
    ) -> Self {
        let mut world = Self {
            now: Time::ZERO,
            net: Network::new(seed),
            path: Path::PERFECT,
            hiccup: Time::ZERO,
            part: BTreeSet::new(),
            parties: Vec::new(),
            config: Vec::new(),
            edges: edges.to_vec(),
            weighing: Weighing::Arrival,
            one_peer: false,
            links: BTreeMap::new(),
            next_instance: 0,
            start: Vec::new(),
            due: vec![None; nodes],
        };
        for index in 0..nodes {
            let mut config = Self::config_of(&name(index));
            change(&mut config, index);
            world.weighing = config.weighing;
            world.config.push(config);
            let party = world.party(index);
            world.start.push(party.model.clone());
            world.parties.push(party);
        }
        for index in 0..nodes {
            world.meet(index);
        }
        world
    }

    /// The configuration of the node with this name.
    pub fn config_of(name: &str) -> NodeConfig {
        NodeConfig {
            name: name.into(),
            instance: 0,
            job: JOB,
            layout: layout(ELEMENTS),
            chunk: CHUNK,
            liveness: 10 * SECOND,
            waiting: Waiting::All,
            weighing: Weighing::Arrival,
            ahead: 1,
            share: 1.0,
            segments: None,
            rounds: None,
            alike: Alike { plan: 1, graph: 2, start: Some(3) },
        }
    }

    fn party(&mut self, index: usize) -> Party {
        self.next_instance += 1;
        let instance = self.next_instance;
        let config = NodeConfig { instance, ..self.config[index].clone() };
        let elements = config.layout.bytes() / 8;
        let model = (0..elements).map(|e| (index as f64 + 1.0) * 10.0 + e as f64 / 100.0).collect();
        let mut party = Party {
            name: name(index),
            node: Node::new(config, Box::new(Doors { token: None })),
            alive: true,
            hangs: false,
            train: Time::from_millis(40 + 7 * (index as u64 % 5)),
            rest: Time::ZERO,
            model,
            after: BTreeMap::new(),
            reports: Vec::new(),
            numbers: Vec::new(),
            mixed_at: Vec::new(),
            refused: Vec::new(),
            finished: Vec::new(),
            left: Vec::new(),
            instance,
            weights: Vec::new(),
            neighbours: 0,
            weighing: self.weighing,
            ahead: self.config[index].ahead,
            places: BTreeMap::new(),
            sums: BTreeMap::new(),
            staged: BTreeMap::new(),
            copy: Vec::new(),
            means: vec![0; elements as usize * 8],
            passed: BTreeSet::new(),
            averages_nothing: false,
            chunk: self.config[index].chunk,
            copied: 0,
            dialled: BTreeMap::new(),
            early: 0,
            trained: None,
            begun: false,
        };
        let neighbours = self.neighbours(index);
        party.neighbours = neighbours.len();
        let given = |&n: &usize| match self.weighing {
            Weighing::Senders => 1.0 / (1 + self.neighbours(n).len()) as f64,
            Weighing::Arrival | Weighing::Mutual => self.weight(index, n),
        };
        party.weights = neighbours.iter().map(|n| (name(*n), given(n))).collect();
        party
    }

    pub fn neighbours(&self, index: usize) -> BTreeSet<usize> {
        let of = |&(a, b): &(usize, usize)| [(a, b), (b, a)];
        self.edges.iter().flat_map(of).filter(|(a, _)| *a == index).map(|(_, b)| b).collect()
    }

    fn begin(&mut self, index: usize, round: u32) {
        let (now, nodes) = (self.now, self.parties.len());
        let to = self.one_peer.then(|| [name((index + step(nodes, round)) % nodes)]);
        let (weights, then) = self.weights_from(index, round);
        let party = &mut self.parties[index];
        let to = to.as_ref().map(|to| to.as_slice());
        let stale = party.node.begin(now, round, &weights, then.as_deref(), to).unwrap();
        assert!(stale.is_empty(), "no weights have changed");
        let (client, instance) = (index, party.instance);
        self.net.at(now + party.train, Event::Trained { client, instance, round });
    }

    /// A node's weights in an iteration, and in the following ones if those differ.
    fn weights_from(&self, index: usize, round: u32) -> (Weights, Option<Vec<Weights>>) {
        let nodes = self.parties.len();
        if !self.one_peer {
            return (self.parties[index].weights.clone(), None);
        }
        let weights = |round: u32| vec![(name((index + nodes - step(nodes, round)) % nodes), 0.5)];
        let ahead = self.config[index].ahead;
        (weights(round), Some((round + 1..=round + 1 + ahead).map(weights).collect()))
    }

    /// One node begins `rest` milliseconds after it has met its neighbours. All nodes know their first
    /// weights.
    pub fn resting(&mut self, rest: u64) -> &mut Self {
        self.expect();
        self.parties[2].rest = Time::from_millis(rest);
        self
    }

    /// Tells all nodes their first weights before they have begun, as a driver does that knows them.
    pub fn expect(&mut self) {
        for index in 0..self.parties.len() {
            let (weights, then) = self.weights_from(index, 1);
            let stale = self.parties[index].node.expect(1, &weights, then.as_deref()).unwrap();
            assert!(stale.is_empty(), "nothing has come");
        }
    }

    /// The Metropolis weight between two nodes.
    pub fn weight(&self, one: usize, other: usize) -> f64 {
        1.0 / (1 + self.neighbours(one).len().max(self.neighbours(other).len())) as f64
    }

    fn meet(&mut self, index: usize) {
        for other in self.neighbours(index) {
            let (place, _) = self.parties[index].node.meet(&name(other), other as u64).unwrap();
            self.parties[index].places.insert(other, place);
        }
        self.act(index);
    }

    /// Makes a node meet another node that is not its neighbour.
    pub fn meet_only(&mut self, index: usize, other: usize) {
        self.parties[index].node.meet(&name(other), 5).unwrap();
        self.act(index);
    }

    /// The models after this many iterations in which everything arrived.
    pub fn reference(&self, iterations: usize) -> Vec<Vec<f64>> {
        self.reference_of(iterations, |_, _| true)
    }

    /// The same, if an element is sent only in some iterations. Iterations count from 0.
    pub fn reference_of(&self, iterations: usize, is_sent: impl Fn(usize, usize) -> bool) -> Vec<Vec<f64>> {
        let weights: Vec<Vec<(usize, f64)>> = (0..self.parties.len())
            .map(|i| self.neighbours(i).into_iter().map(|n| (n, self.weight(i, n))).collect())
            .collect();
        let mut models = self.start.clone();
        for iteration in 0..iterations {
            let mixed = models.iter().zip(&weights).map(|(own, weights)| {
                let rest = 1.0 - weights.iter().map(|(_, w)| w).sum::<f64>();
                let element = |(e, own): (usize, &f64)| {
                    if !is_sent(iteration, e) {
                        return *own;
                    }
                    rest * own + weights.iter().map(|&(n, w)| w * models[n][e]).sum::<f64>()
                };
                own.iter().enumerate().map(element).collect()
            });
            models = mixed.collect();
        }
        models
    }

    pub fn extremes(&self) -> (f64, f64) {
        let all = || self.start.iter().flatten().copied();
        (all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max))
    }

    pub fn all_met(&self) -> bool {
        self.parties.iter().filter(|p| p.alive).all(|p| p.node.connected_count() == p.neighbours)
    }

    pub fn kill(&mut self, index: usize) {
        self.parties[index].alive = false;
        let links: Vec<LinkId> = self.links_of(index);
        links.into_iter().for_each(|link| self.net.cut(self.now, link, "the link broke"));
    }

    /// From now on, these nodes reach only each other, and so do the other nodes.
    pub fn part(&mut self, nodes: &[usize]) {
        self.part = nodes.iter().copied().collect();
        let apart = |edge: &Edge| self.is_apart(edge.dialer, edge.acceptor);
        let links: Vec<LinkId> =
            self.links.iter().filter(|(_, edge)| apart(edge)).map(|(&link, _)| link).collect();
        links.into_iter().for_each(|link| self.net.cut(self.now, link, "the network is parted"));
    }

    fn is_apart(&self, one: usize, other: usize) -> bool {
        self.part.contains(&one) != self.part.contains(&other)
    }

    fn links_of(&self, index: usize) -> Vec<LinkId> {
        let of = |edge: &Edge| edge.dialer == index || edge.acceptor == index;
        self.links.iter().filter(|(_, edge)| of(edge)).map(|(&link, _)| link).collect()
    }

    /// Starts a node's program again in a new process.
    pub fn restart(&mut self, index: usize) {
        self.parties[index] = self.party(index);
        self.meet(index);
    }

    /// Breaks one of the links.
    pub fn cut_one(&mut self) {
        let open: Vec<LinkId> =
            self.links.keys().copied().filter(|&link| self.net.delivers(link, End::Client)).collect();
        if !open.is_empty() {
            let link = open[self.net.rng.below(open.len() as u64) as usize];
            self.net.cut(self.now, link, "the link broke");
        }
    }
}

fn number(name: &str) -> usize {
    name[1..].parse().unwrap()
}
