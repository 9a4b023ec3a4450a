//! Nodes, the network between them, and what each node's driver and application do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use thalweg_proto::{
    Action, ClientAction, Exchange, ExchangeState, LinkId, Mixing, Neighbour, Node, NodeConfig, NodePlace,
    NodeStep, Portion, Time, Waiting, Weighing,
};
use thalweg_wire::control::{Alike, Control};
use thalweg_wire::{checksum, ChunkHeader, Dtype, FrameHeader, Layout, Range, Ranges};

use super::common::network::{Event, Frame, Network};
use super::common::{Doors, End, Path, Rng, JOB, SECOND};

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

/// How many places on a node of a one-peer exponential graph sends, by turns.
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

/// What an iteration came to.
pub struct Report {
    pub heard: BTreeSet<usize>,
    pub whole: bool,
    pub fresh: bool,
    pub timed_out: bool,
    /// Share of the neighbours' bytes that were used.
    pub used: f64,
    /// Of each neighbour the weight and which bytes are in the mean.
    pub portions: BTreeMap<usize, (f64, Ranges)>,
}

/// A node, its driver and its application.
pub struct Party {
    pub name: String,
    pub node: Node,
    pub alive: bool,
    /// Its process is there and does nothing.
    pub hangs: bool,
    pub train: Time,
    /// How much later than it has met its neighbours it begins.
    pub rest: Time,
    pub model: Vec<f64>,
    /// The model after each iteration that it mixed.
    pub after: BTreeMap<u32, Vec<f64>>,
    pub reports: Vec<Report>,
    pub numbers: Vec<u32>,
    pub mixed_at: Vec<Time>,
    pub refused: Vec<String>,
    pub finished: Vec<String>,
    /// Neighbours whose links ended, each with why.
    pub left: Vec<(String, String)>,
    instance: u64,
    weights: Vec<(String, f64)>,
    neighbours: usize,
    weighing: Weighing,
    /// Neighbours' places in the machine, by number.
    places: BTreeMap<usize, usize>,
    sums: BTreeMap<u32, Vec<(f64, f64)>>,
    /// Models of neighbours whose weight is not known yet, by iteration and place.
    staged: BTreeMap<(u32, usize), Vec<u8>>,
    copy: Vec<u8>,
    copied: u32,
    /// Links to those that it dials, by place, and the other way round.
    dialled: BTreeMap<usize, LinkId>,
    /// It has trained, and waits until it may send.
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
    /// Up to how much later than it is told to a node begins to send, now and then: its process has no processor.
    pub hiccup: Time,
    /// Nodes that reach each other, and nobody else; all if empty.
    part: BTreeSet<usize>,
    pub parties: Vec<Party>,
    config: Vec<NodeConfig>,
    edges: Vec<(usize, usize)>,
    weighing: Weighing,
    /// Each node sends to one, by turns to that which is 1, 2, 4, ... places on.
    one_peer: bool,
    links: BTreeMap<LinkId, Edge>,
    next_instance: u64,
    pub start: Vec<Vec<f64>>,
    /// When each node wants to be told the time.
    due: Vec<Option<Time>>,
}

impl World {
    pub fn new(seed: u64, nodes: usize, edges: &[(usize, usize)], waiting: Waiting) -> Self {
        Self::changed(seed, nodes, edges, waiting, usize::MAX, |_| {})
    }

    /// A graph of which one node is configured otherwise.
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

    /// A graph of nodes that know their neighbours' weights when the waiting is over.
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

    /// A graph of nodes that send a share of their model in an iteration.
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

    /// A one-peer exponential graph.
    pub fn one_peer(seed: u64, nodes: usize, waiting: Waiting) -> Self {
        let steps = steps(nodes);
        let to = |i: usize| steps.iter().map(move |step| (i, (i + step) % nodes));
        let edges: Vec<(usize, usize)> = (0..nodes).flat_map(to).collect();
        let mut world = Self::made(seed, nodes, &edges, |config, _| config.waiting = waiting);
        world.one_peer = true;
        world
    }

    fn made(
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

    /// What a node of this name is told.
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
            places: BTreeMap::new(),
            sums: BTreeMap::new(),
            staged: BTreeMap::new(),
            copy: Vec::new(),
            copied: 0,
            dialled: BTreeMap::new(),
            trained: None,
            begun: false,
        };
        let neighbours = self.neighbours(index);
        party.neighbours = neighbours.len();
        let given = |&n: &usize| match self.weighing {
            Weighing::Heard => 1.0 / (1 + self.neighbours(n).len()) as f64,
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
        let party = &mut self.parties[index];
        let node = &mut party.node;
        if self.one_peer {
            let weights = |round: u32| vec![(name((index + nodes - step(nodes, round)) % nodes), 0.5)];
            let to = [name((index + step(nodes, round)) % nodes)];
            node.begin(now, round, &weights(round), Some(&weights(round + 1)), Some(&to)).unwrap();
        } else {
            node.begin(now, round, &party.weights, None, None).unwrap();
        }
        let (client, instance) = (index, party.instance);
        self.net.at(now + party.train, Event::Trained { client, instance, round });
    }

    /// Metropolis.
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

    /// One node gets to know another, which is no neighbour of it.
    pub fn meet_only(&mut self, index: usize, other: usize) {
        self.parties[index].node.meet(&name(other), 5).unwrap();
        self.act(index);
    }

    /// What the models are after so many iterations in which everything came.
    pub fn reference(&self, iterations: usize) -> Vec<Vec<f64>> {
        self.reference_of(iterations, |_, _| true)
    }

    /// The same, where an element is sent in some iterations, from 0, alone.
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

    /// From now on these nodes reach each other and nobody else, and so do the others.
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

    /// Starts a node's program again, in a new process.
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

    pub fn run_until(&mut self, what: &str, limit: Time, mut done: impl FnMut(&Self) -> bool) {
        let end = self.now + limit;
        while !done(self) {
            let next = self.next_time();
            assert!(
                next.is_some_and(|at| at <= end),
                "waiting in vain until {end:?} for: {what}; at {:?}, next {next:?}: {:?}",
                self.now,
                self.parties.iter().map(|p| (&p.name, p.done(), p.node.round())).collect::<Vec<_>>(),
            );
            self.step();
        }
    }

    pub fn pass(&mut self, time: Time) {
        let end = self.now + time;
        while self.next_time().is_some_and(|at| at <= end) {
            self.step();
        }
        self.now = end;
    }

    fn timer(party: &Party) -> Option<Time> {
        if !party.alive || party.hangs {
            return None;
        }
        let dials = (0..party.neighbours + 1).filter_map(|place| party.node.dial_poll_timeout(place));
        dials.chain(party.node.poll_timeout()).min()
    }

    fn next_time(&self) -> Option<Time> {
        let runs = |(party, due): (&Party, &Option<Time>)| due.filter(|_| party.alive && !party.hangs);
        let timers = self.parties.iter().zip(&self.due).filter_map(runs);
        timers.chain(self.net.next_time()).min().map(|at| at.max(self.now))
    }

    fn step(&mut self) {
        let Some(next) = self.next_time() else { return };
        self.now = next;
        if let Some(event) = self.net.pop(next) {
            return self.happen(event);
        }
        for index in 0..self.parties.len() {
            if self.due[index].is_none_or(|at| at > next) {
                continue;
            }
            if Self::timer(&self.parties[index]).is_some_and(|at| at <= next) {
                let party = &mut self.parties[index];
                party.node.timeout(next);
                (0..party.neighbours + 1).for_each(|place| {
                    if party.node.dial_poll_timeout(place).is_some_and(|at| at <= next) {
                        party.node.dial_timeout(next, place);
                    }
                });
                let again = Self::timer(party);
                assert!(again.is_none_or(|at| at > next), "a timer stands still: {again:?} at {next:?}");
                self.act(index);
            }
        }
    }

    /// The node at an end of a link, and who the other is to it; none if its process is another by now.
    fn at(&self, link: LinkId, end: End) -> Option<(usize, Neighbour)> {
        let edge = &self.links[&link];
        let (index, instance, who) = match end {
            End::Client => (edge.dialer, edge.instances.0, Neighbour::Dialled(edge.place)),
            End::Server => (edge.acceptor, edge.instances.1, Neighbour::Link(link)),
        };
        let party = &self.parties[index];
        let current = match who {
            Neighbour::Dialled(place) => party.dialled.get(&place) == Some(&link),
            Neighbour::Link(_) => true,
        };
        (party.alive && !party.hangs && party.instance == instance && current).then_some((index, who))
    }

    fn happen(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Pump { link, from } => self.net.pump(now, link, from),
            Event::Cut { link } => self.net.cut(now, link, "the link broke"),
            Event::Progress { .. } | Event::Folded { .. } => {}
            Event::Accept { link } => {
                let nonce = self.net.rng.nonce();
                if !self.net.delivers(link, End::Server) {
                    return;
                }
                match self.at(link, End::Server) {
                    Some((index, _)) => {
                        self.parties[index].node.connected(now, link, nonce, self.path.ordered);
                        self.act(index);
                    }
                    None => self.net.cut(now, link, "nobody listens"),
                }
            }
            Event::Arrive { link, to, frame, .. } => self.arrive(link, to, frame),
            Event::Sent { link, from, round, outcome } => {
                if let Some((index, who)) = self.at(link, from) {
                    let node = &mut self.parties[index].node;
                    match who {
                        Neighbour::Link(link) => node.sent(now, link, round, outcome),
                        Neighbour::Dialled(place) => node.dial_sent(now, place, round, outcome),
                    }
                    self.act(index);
                }
            }
            Event::Closed { link, end, reason } => self.closed(link, end, &reason),
            Event::Connect { client, instance } => self.connect(client, instance),
            Event::Trained { client, instance, round } => {
                let party = &mut self.parties[client];
                if party.alive && party.instance == instance && round == 0 {
                    self.begin(client, 1); // it has rested
                    self.act(client);
                } else if party.alive && party.instance == instance {
                    party.trained = Some(round);
                    party.node.hush();
                    self.act(client);
                }
            }
        }
    }

    fn arrive(&mut self, link: LinkId, to: End, frame: Frame) {
        if !self.net.delivers(link, to) {
            return;
        }
        let Some((index, who)) = self.at(link, to) else { return };
        let now = self.now;
        let party = &mut self.parties[index];
        match frame {
            Frame::Control(message) => {
                let message = Control::decode(&message).unwrap();
                match who {
                    Neighbour::Link(link) => party.node.control(now, link, message),
                    Neighbour::Dialled(place) => party.node.dial_control(now, place, message),
                }
            }
            Frame::Chunk(header, payload) => party.chunk(now, who, &header, &payload),
        }
        self.act(index);
    }

    fn closed(&mut self, link: LinkId, end: End, reason: &str) {
        if !self.net.is_open(link, end) {
            return;
        }
        self.net.shut(self.now, link, end);
        let Some((index, who)) = self.at(link, end) else { return };
        let party = &mut self.parties[index];
        match who {
            Neighbour::Link(link) => party.node.closed(self.now, link, reason),
            Neighbour::Dialled(place) => {
                party.dialled.remove(&place);
                party.node.dial_closed(self.now, place, reason);
            }
        }
        self.act(index);
    }

    /// The client of the event is the node times 2^16, and the place that it dials.
    fn connect(&mut self, client: usize, instance: u64) {
        let (dialer, place) = (client >> 16, client & 0xffff);
        let party = &self.parties[dialer];
        if !party.alive || party.instance != instance || party.node.dial_is_done(place) {
            return;
        }
        let acceptor = self.met_by(dialer, place);
        let nonce = self.net.rng.nonce();
        if self.parties[acceptor].alive && !self.is_apart(dialer, acceptor) {
            let link = self.net.connect(self.now, dialer, self.path, self.path);
            let instances = (instance, self.parties[acceptor].instance);
            self.links.insert(link, Edge { dialer, place, acceptor, instances });
            self.parties[dialer].dialled.insert(place, link);
            self.parties[dialer].node.dial_connected(self.now, place, nonce, self.path.ordered);
        } else {
            self.parties[dialer].node.dial_unreachable(self.now, place, "nobody listens", true);
        }
        self.act(dialer);
    }

    /// Who was met under a place: neighbours in order, then whoever was met besides.
    fn met_by(&self, index: usize, place: usize) -> usize {
        self.neighbours(index).into_iter().nth(place).unwrap_or(2)
    }

    fn act(&mut self, index: usize) {
        loop {
            let mut quiet = true;
            while let Some(action) = self.parties[index].node.poll_action() {
                quiet = false;
                self.perform(index, action);
            }
            for place in 0..self.parties[index].neighbours + 1 {
                while let Some(action) = self.parties[index].node.poll_dial(place) {
                    quiet = false;
                    self.perform_dial(index, place, action);
                }
            }
            self.go_on(index);
            if quiet && !self.parties[index].node.has_action() {
                self.due[index] = Self::timer(&self.parties[index]);
                return;
            }
        }
    }

    /// What the application does: begins when all have met, sends when it has trained and may.
    fn go_on(&mut self, index: usize) {
        let now = self.now;
        let party = &mut self.parties[index];
        if !party.begun && party.node.connected_count() == party.neighbours {
            party.begun = true;
            self.begin(index, 1);
        }
        let party = &mut self.parties[index];
        if let Some(round) = party.trained.filter(|_| party.node.is_hushed()) {
            party.trained = None;
            party.copy = party.model.iter().flat_map(|v| v.to_le_bytes()).collect();
            party.copied = party.node.ready(now, round).unwrap();
            party.numbers.push(party.copied);
        }
    }

    /// How much later than it is told to a node begins to send its model of an iteration, to all neighbours alike.
    fn late(&self, index: usize, round: u32) -> Time {
        let mut rng = Rng::new((index as u64) << 32 | u64::from(round));
        if rng.chance(0.3) {
            rng.time(self.hiccup)
        } else {
            Time::ZERO
        }
    }

    fn perform(&mut self, index: usize, action: Action<NodeStep>) {
        let now = self.now;
        match action {
            Action::Send { link, message } => {
                self.net.send_control(now, link, End::Server, message.encode().unwrap());
            }
            Action::SendParcel { links, parcel, wanted } => {
                let group = self.net.group();
                let frames = self.parties[index].frames(parcel, &wanted, 0);
                let late = self.late(index, parcel);
                for link in links {
                    self.net.hold_up(now, link, End::Server, late);
                    self.net.send_update(now, link, End::Server, group, parcel, frames.clone().into());
                }
            }
            Action::Cancel { link, .. } => self.net.cancel(now, link, End::Server),
            Action::Close { link } => self.net.close(now, link, End::Server),
            Action::Joined { .. } | Action::Note { .. } | Action::Left { .. } => {}
            Action::Policy(NodeStep::Forget { below }) => {
                self.parties[index].sums.retain(|&round, _| round >= below);
                self.parties[index].staged.retain(|&(round, _), _| round >= below);
            }
            Action::Policy(NodeStep::Met { .. }) => {}
            Action::Policy(NodeStep::Left { peer, reason }) => self.parties[index].left.push((peer, reason)),
            Action::Policy(NodeStep::Refused { reason, .. }) => self.parties[index].refused.push(reason),
            Action::Policy(NodeStep::Mix(mixing)) => {
                let party = &mut self.parties[index];
                let (exchanges, portions) = party.mix(mixing.round, mixing.fresh);
                let heard = exchanges.iter().filter(|e| e.bytes > 0).map(|e| number(&e.peer)).collect();
                let whole = exchanges.iter().all(|e| e.outcome == ExchangeState::Whole);
                let sum = |of: fn(&Exchange) -> u64| exchanges.iter().map(of).sum::<u64>() as f64;
                let used = sum(|e| e.bytes) / sum(|e| e.expected).max(1.0);
                let Mixing { fresh, timed_out, .. } = mixing;
                party.reports.push(Report { heard, whole, fresh, timed_out, used, portions });
                party.mixed_at.push(now);
                party.after.insert(mixing.round, party.model.clone());
                self.begin(index, mixing.round + 1);
            }
        }
    }

    fn perform_dial(&mut self, index: usize, place: usize, action: ClientAction<()>) {
        let now = self.now;
        let instance = self.parties[index].instance;
        let link = self.parties[index].dialled.get(&place).copied();
        match action {
            ClientAction::Connect { after } => {
                self.net.at(now + after, Event::Connect { client: index << 16 | place, instance });
            }
            ClientAction::Prove { .. } => self.parties[index].node.dial_proven(now, place, None),
            ClientAction::Send(message) => {
                if let Some(link) = link {
                    self.net.send_control(now, link, End::Client, message.encode().unwrap());
                }
            }
            ClientAction::SendParcel { parcel, wanted } => {
                let sender = self.parties[index].node.dial_welcome(place).map_or(0, |w| w.sender);
                let frames = self.parties[index].frames(parcel, &wanted, sender);
                let group = self.net.group();
                let late = self.late(index, parcel);
                if let Some(link) = link {
                    self.net.hold_up(now, link, End::Client, late);
                    self.net.send_update(now, link, End::Client, group, parcel, frames.into());
                }
            }
            ClientAction::Cancel { .. } => {
                if let Some(link) = link {
                    self.net.cancel(now, link, End::Client);
                }
            }
            ClientAction::Close => {
                if let Some(link) = self.parties[index].dialled.remove(&place) {
                    self.net.close(now, link, End::Client);
                }
            }
            ClientAction::Finished(Err(reason)) => self.parties[index].finished.push(reason),
            ClientAction::Finished(Ok(_)) | ClientAction::Joined(_) | ClientAction::Policy(()) => {}
        }
    }
}

fn number(name: &str) -> usize {
    name[1..].parse().unwrap()
}

impl Party {
    fn frames(&self, parcel: u32, wanted: &Ranges, sender: u32) -> Vec<(FrameHeader, Vec<u8>)> {
        assert_eq!(parcel, self.copied, "what is sent is there");
        let layout = layout(self.copy.len() as u64 / 8).hash();
        let mut frames = Vec::new();
        for range in wanted.iter() {
            let mut at = range.start;
            while at < range.end {
                let end = (at / u64::from(CHUNK) + 1).saturating_mul(CHUNK.into()).min(range.end);
                let payload = self.copy[at as usize..end as usize].to_vec();
                let (round, length) = (parcel, (end - at) as u32);
                let chunk = ChunkHeader { job: JOB, round, sender, layout, offset: at, length };
                frames.push((FrameHeader::chunk(chunk, checksum(&payload)), payload));
                at = end;
            }
        }
        frames
    }

    fn chunk(&mut self, now: Time, who: Neighbour, header: &FrameHeader, payload: &[u8]) {
        self.node.progress(now, who, payload.len() as u64);
        if let NodePlace::Nothing = self.node.place(now, who, &header.chunk) {
            return;
        }
        let ok = header.verify(payload).is_ok();
        let Some(taken) = self.node.stored(now, who, &header.chunk, ok) else { return };
        if self.weighing != Weighing::Arrival {
            let whole = self.model.len() * 8;
            let staged = self.staged.entry((taken.round, taken.peer)).or_insert_with(|| vec![0; whole]);
            for range in taken.fresh {
                let from = (range.start - header.chunk.offset) as usize;
                staged[range.start as usize..range.end as usize]
                    .copy_from_slice(&payload[from..from + range.len() as usize]);
                self.node.folded(now, taken.peer, taken.round, &[range], true);
            }
            return;
        }
        let elements = self.model.len();
        let sums = self.sums.entry(taken.round).or_insert_with(|| vec![(0.0, 0.0); elements]);
        for range in taken.fresh {
            add(sums, range, header.chunk.offset, payload, taken.weight);
            self.node.folded(now, taken.peer, taken.round, &[range], true);
        }
    }

    fn mix(&mut self, round: u32, fresh: bool) -> (Vec<Exchange>, BTreeMap<usize, (f64, Ranges)>) {
        let mut used = BTreeMap::new();
        for Portion { peer, weight, ranges } in self.node.portions() {
            let sums = self.sums.entry(round).or_insert_with(|| vec![(0.0, 0.0); self.model.len()]);
            ranges.iter().for_each(|range| add(sums, range, 0, &self.staged[&(round, peer)], weight));
            used.insert(peer, (weight, ranges));
        }
        if let Some(sums) = self.sums.remove(&round) {
            for (own, (sum, weight)) in self.model.iter_mut().zip(sums) {
                assert!(weight <= 1.0 + 1e-12, "a chunk counted twice: {weight}");
                *own = match weight {
                    w if w > 0.0 && fresh => sum / w,
                    w => sum + (1.0 - w) * *own,
                };
            }
        }
        let exchanges = self.node.mixed();
        // By number, not by place.
        let by_number = |e: &Exchange| Some((number(&e.peer), used.remove(&self.places[&number(&e.peer)])?));
        let portions = exchanges.iter().filter_map(by_number).collect();
        (exchanges, portions)
    }
}

fn add(sums: &mut [(f64, f64)], range: Range, offset: u64, payload: &[u8], weight: f64) {
    for at in (range.start..range.end).step_by(8) {
        let from = (at - offset) as usize;
        let value = f64::from_le_bytes(payload[from..from + 8].try_into().unwrap());
        let sum = &mut sums[at as usize / 8];
        (sum.0, sum.1) = (sum.0 + weight * value, sum.1 + weight);
    }
}
