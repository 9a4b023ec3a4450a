//! Decides everything at once: which nodes are lost, where each client sends, how many workers each node has,
//! and where the top is.

use std::collections::BTreeMap;

use crate::{
    heartbeat, smoothed, Because, Client, Config, Node, NodeTree, Placer, Plan, Reason, Scaling, Shape,
    Split, State, Time, Top, TopPolicy,
};

/// Decides what to do now, and why.
///
/// Clients keep their node while they fit, in the order of `state.clients`. The policy places the others.
/// Hierarchies are planned anew every `config.every`, and as soon as a node with workers is lost.
pub fn decide(now: Time, state: &State, config: &Config) -> (Plan, Reason) {
    let mut reasons = Vec::new();
    let there = living(now, state, config, &mut reasons);
    let dedicated = dedicated(&there, state, config);
    let open = |node: u32| there[node as usize] && Some(node) != dedicated;
    let homes = place(state, config, &open, &mut reasons);
    let loads = loads(state, &homes);
    let lost: Vec<u32> = (0..).zip(&there).filter(|(_, &there)| !there).map(|(node, _)| node).collect();
    let had_lost = lost.iter().any(|&node| state.nodes[node as usize].workers > 0);
    let due = state.planned.is_none_or(|planned| now >= planned.saturating_add(config.every)) || had_lost;
    let next = match (due, state.planned) {
        (false, Some(planned)) => planned.saturating_add(config.every),
        _ => now.saturating_add(config.every),
    };
    if !due {
        reasons.push(Because::NotYet { next });
    }
    let trees: Vec<NodeTree> = (0..)
        .zip(state.nodes.iter().zip(&loads))
        .filter(|(node, _)| there[*node as usize])
        .filter_map(|(node, (known, load))| tree(node, known, *load, due, config, &mut reasons))
        .collect();
    let top = top(&trees, dedicated, config, &mut reasons);
    (Plan { homes, trees, top, lost, planned: due, next }, Reason(reasons))
}

/// Whether each node is alive.
fn living(now: Time, state: &State, config: &Config, reasons: &mut Vec<Because>) -> Vec<bool> {
    let mut is_there =
        |(node, known): (u32, &Node)| match heartbeat::lost(now, known.last_message, config.silence) {
            Some(silent) => {
                reasons.push(Because::Lost { node, silent });
                false
            }
            None => true,
        };
    (0..).zip(&state.nodes).map(&mut is_there).collect()
}

/// The node for the top, which then takes no clients: the one with the most room, or the last of several
/// equal ones.
fn dedicated(there: &[bool], state: &State, config: &Config) -> Option<u32> {
    let living = (0_u32..).zip(there).filter(|(_, &there)| there).map(|(node, _)| node);
    if config.top != TopPolicy::Dedicated || living.clone().count() < 2 {
        return None;
    }
    living.max_by_key(|&node| room(&state.nodes[node as usize]))
}

/// Room of a node before clients are placed; the paper's residual capacity RC = MC - k * E.
fn room(node: &Node) -> i64 {
    let signed = |load: u64| i64::try_from(load).unwrap_or(i64::MAX);
    signed(node.capacity).saturating_sub(signed(node.busy))
}

fn serves(node: &Node, client: &Client) -> bool {
    node.group.is_none() || node.group == client.group
}

fn place(
    state: &State,
    config: &Config,
    open: &dyn Fn(u32) -> bool,
    reasons: &mut Vec<Because>,
) -> Vec<Option<u32>> {
    let nodes = state.nodes.len() as u32;
    if !(0..nodes).any(open) {
        reasons.push(Because::NoNodes);
        return vec![None; state.clients.len()];
    }
    let mut rooms: Vec<i64> = state.nodes.iter().map(room).collect();
    let mut homes = keep(state, config, open, &mut rooms, reasons);
    let mut left: BTreeMap<Option<u32>, Vec<usize>> = BTreeMap::new();
    for (at, _) in homes.iter().enumerate().filter(|(_, home)| home.is_none()) {
        left.entry(state.clients[at].group).or_default().push(at);
    }
    for (group, clients) in left {
        let member = Client { group, ..Client::default() };
        let able: Vec<u32> =
            (0..nodes).filter(|&n| open(n) && serves(&state.nodes[n as usize], &member)).collect();
        match (able.is_empty(), group) {
            (true, group) => reasons.push(Because::NoNodeForGroup {
                group: group.unwrap_or_default(),
                clients: clients.len() as u32,
            }),
            (false, _) => pack(&clients, &able, state, config, &mut rooms, &mut homes, reasons),
        }
    }
    homes
}

/// Keeps clients at their node where they fit.
fn keep(
    state: &State,
    config: &Config,
    open: &dyn Fn(u32) -> bool,
    rooms: &mut [i64],
    reasons: &mut Vec<Because>,
) -> Vec<Option<u32>> {
    let (mut kept, mut crowded, mut homeless) = (0, 0, 0);
    let mut stay = |client: &Client| {
        let home = client.home.filter(|_| config.keep)?;
        let Some(node) = state.nodes.get(home as usize).filter(|node| open(home) && serves(node, client))
        else {
            homeless += 1;
            return None;
        };
        let load = i64::try_from(client.load).unwrap_or(i64::MAX);
        let room = &mut rooms[home as usize];
        // If a client's load exceeds the whole node, another node would be no better.
        if *room >= load || client.load > node.capacity {
            *room = room.saturating_sub(load);
            kept += 1;
            return Some(home);
        }
        crowded += 1;
        None
    };
    let homes = state.clients.iter().map(&mut stay).collect();
    let moves = [
        Because::Kept { clients: kept },
        Because::NoLongerFit { clients: crowded },
        Because::Homeless { clients: homeless },
    ];
    reasons.extend(
        moves
            .into_iter()
            .zip([kept, crowded, homeless])
            .filter(|(_, count)| *count > 0)
            .map(|(because, _)| because),
    );
    homes
}

/// Places clients on the nodes in `able`.
fn pack(
    clients: &[usize],
    able: &[u32],
    state: &State,
    config: &Config,
    rooms: &mut [i64],
    homes: &mut [Option<u32>],
    reasons: &mut Vec<Because>,
) {
    let mut placer = Placer::new(config.placement, able.iter().map(|&node| rooms[node as usize]).collect());
    // For each node in `able`: the number of clients that fit there, and of clients that fit nowhere.
    let (mut filled, mut overfilled) = (vec![0_u32; able.len()], vec![0_u32; able.len()]);
    let mut largest = None;
    for &at in clients {
        let Some((place, fits)) = placer.place(state.clients[at].load) else { continue };
        if !fits && largest.is_none() {
            let load = i64::try_from(state.clients[at].load).unwrap_or(i64::MAX);
            largest = Some(placer.room(place).saturating_add(load));
        }
        let counts = if fits { &mut filled } else { &mut overfilled };
        counts[place as usize] += 1;
        homes[at] = Some(able[place as usize]);
    }
    for (&node, place) in able.iter().zip(0..) {
        rooms[node as usize] = placer.room(place);
    }
    let totals = |counts: &[u32]| {
        (counts.iter().sum::<u32>(), counts.iter().filter(|&&count| count > 0).count() as u32)
    };
    let ((placed, nodes), (over, over_nodes)) = (totals(&filled), totals(&overfilled));
    if placed > 0 {
        reasons.push(Because::Placed { clients: placed, nodes, policy: config.placement });
    }
    if over > 0 {
        let room = u64::try_from(largest.unwrap_or(0)).unwrap_or(0);
        reasons.push(Because::Overflow { clients: over, nodes: over_nodes, room });
    }
}

/// Number of clients and their load, for each node.
fn loads(state: &State, homes: &[Option<u32>]) -> Vec<(u32, u64)> {
    let mut loads = vec![(0_u32, 0_u64); state.nodes.len()];
    for (client, home) in state.clients.iter().zip(homes) {
        if let Some(home) = home {
            let (clients, load) = &mut loads[*home as usize];
            *clients += 1;
            *load = load.saturating_add(client.load);
        }
    }
    loads
}

/// The part of the tree at one node; `None` if it has neither clients nor workers.
fn tree(
    node: u32,
    known: &Node,
    (clients, load): (u32, u64),
    due: bool,
    config: &Config,
    reasons: &mut Vec<Because>,
) -> Option<NodeTree> {
    let queue = load.saturating_add(if clients > 0 { known.busy } else { 0 });
    if clients == 0 && known.workers == 0 {
        return None;
    }
    let estimate =
        if due { smoothed(known.estimate, queue, config.history) } else { known.estimate.unwrap_or(queue) };
    if clients == 0 {
        // The node has no clients, so it needs no workers, whatever the estimate is.
        let stop = if due { known.workers } else { 0 };
        let leaves = known.workers - stop;
        let needs = Vec::new();
        return Some(NodeTree {
            node,
            clients,
            queue,
            estimate,
            leaves,
            needs,
            middle: false,
            start: 0,
            stop,
        });
    }
    let shape = match (due || known.workers == 0, config.scaling) {
        (_, Scaling::Knative) => Shape { leaves: known.workers, middle: false, wanted: known.workers },
        (true, _) => Shape::of(estimate, config),
        (false, _) => {
            let leaves = known.workers;
            Shape { leaves, middle: config.split == Split::Clients && leaves > 1, wanted: leaves }
        }
    };
    let (shape, needs) = match due || known.workers == 0 {
        true => steady(node, shape, known, config, reasons),
        false => (shape, known.needs.clone()),
    };
    explain(node, queue, estimate, shape, due || known.workers == 0, config, reasons);
    let (start, stop) =
        (shape.leaves.saturating_sub(known.workers), known.workers.saturating_sub(shape.leaves));
    let Shape { leaves, middle, .. } = shape;
    Some(NodeTree { node, clients, queue, estimate, leaves, needs, middle, start, stop })
}

/// Keeps the leaves that one of the latest plans needed. Returns the shape, and what each of these plans needed.
fn steady(
    node: u32,
    shape: Shape,
    known: &Node,
    config: &Config,
    reasons: &mut Vec<Because>,
) -> (Shape, Vec<u32>) {
    if config.split != Split::Clients || config.scaling != Scaling::Hierarchy {
        return (shape, Vec::new());
    }
    let plans = config.steady.max(1) as usize;
    let older = known.needs.len().saturating_sub(plans - 1);
    let needs: Vec<u32> = known.needs.iter().skip(older).copied().chain([shape.leaves]).collect();
    let leaves = needs.iter().copied().max().unwrap_or(shape.leaves);
    if leaves > shape.leaves {
        reasons.push(Because::Held { node, needed: shape.leaves, leaves, plans: config.steady });
    }
    (Shape { leaves, middle: leaves > 1, wanted: shape.wanted.max(leaves) }, needs)
}

fn explain(
    node: u32,
    queue: u64,
    estimate: u64,
    shape: Shape,
    planned: bool,
    config: &Config,
    reasons: &mut Vec<Because>,
) {
    let (leaves, inputs) = (shape.leaves, config.inputs);
    let because = match (config.scaling, config.split) {
        (Scaling::Knative, _) => Because::Autoscaled { node },
        _ if !planned => return,
        (Scaling::Fixed, _) => Because::Fixed { node, workers: leaves },
        (_, Split::Ranges) => Because::Ranges { node, workers: leaves },
        _ if shape.wanted > leaves => Because::Capped { node, wanted: shape.wanted, workers: leaves },
        _ if leaves <= 1 => Because::Single { node, queue: estimate },
        _ => Because::Leaves { node, queue, estimate, inputs, leaves },
    };
    reasons.push(because);
}

fn top(trees: &[NodeTree], dedicated: Option<u32>, config: &Config, reasons: &mut Vec<Because>) -> Top {
    let used: Vec<u32> = trees.iter().filter(|tree| tree.clients > 0).map(|tree| tree.node).collect();
    let nodes = used.len() as u32;
    let (because, top) = match (&used[..], dedicated, config.top) {
        ([], ..) => return Top::Nowhere,
        (_, Some(node), _) => (Because::Dedicated { node }, Top::Node { node }),
        (&[node], ..) => (Because::OneNode { node }, Top::Node { node }),
        (_, _, TopPolicy::Sharded) => (Because::Sharded { nodes }, Top::Sharded { nodes: used }),
        _ => (Because::FirstFinished { nodes }, Top::FirstFinished),
    };
    reasons.push(because);
    top
}
