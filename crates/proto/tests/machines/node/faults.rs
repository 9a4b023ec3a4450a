//! Faults between nodes: parts of the graph that lose each other, nodes that are alone, names used twice, and
//! chunks that must not be used.

use thalweg_proto::{
    Action, ClientMachine, Neighbour, Node, NodeConfig, NodePlace, NodeStep, ServerMachine, Time, Waiting,
    Weighing,
};
use thalweg_wire::control::{Alike, Control, Hello, Holding, Interval, Purpose, Refusal, VERSIONS};
use thalweg_wire::{ChunkHeader, Range, Ranges};

use super::world::{complete, layout, line, ring, World};
use super::{lossy, WAITS};
use crate::common::{Path, JOB, MS, SECOND};

#[test]
fn parts_of_a_graph_go_on_and_come_together_again() {
    for waiting in WAITS {
        for path in [Path::PERFECT, lossy()] {
            let mut world = World::new(6, 6, &ring(6), waiting);
            world.path = path;
            world.run_until("3 iterations", 60 * SECOND, |w| w.parties.iter().all(|p| p.done() >= 3));
            world.part(&[0, 1, 2]);
            let before: Vec<u32> = world.parties.iter().map(|p| p.done()).collect();
            world.run_until("ten more in both parts", 600 * SECOND, |w| {
                w.parties.iter().zip(&before).all(|(p, before)| p.done() >= before + 10)
            });
            let lost = |index: usize| world.parties[index].left.iter().any(|(_, why)| why.contains("parted"));
            assert!([0, 2, 3, 5].into_iter().all(lost), "each node at the border says whom it lost");
            world.part(&[]);
            world.run_until("all have met", 600 * SECOND, World::all_met);
            let at = world.parties[2].reports.len();
            world.run_until("it is heard across the border", 600 * SECOND, |w| {
                w.parties[2].reports.iter().skip(at).any(|report| report.heard.contains(&3))
                    || waiting == Waiting::None
            });
        }
    }
}

#[test]
fn a_node_whose_neighbours_are_all_gone_trains_alone_and_dials_on() {
    for waiting in WAITS {
        let mut world = World::new(8, 4, &complete(4), waiting);
        world.run_until("3 iterations", 60 * SECOND, |w| w.parties.iter().all(|p| p.done() >= 3));
        (1..4).for_each(|index| world.kill(index));
        let before = world.parties[0].done();
        world.run_until("20 alone", 600 * SECOND, |w| w.parties[0].done() >= before + 20);
        let last = world.parties[0].reports.last().unwrap();
        assert!(last.heard.is_empty());
        (1..4).for_each(|index| world.restart(index));
        let at = world.parties[0].reports.len();
        world.run_until("they are heard again", 600 * SECOND, |w| {
            w.parties[0].reports.iter().skip(at).any(|report| report.heard.contains(&2))
                || waiting == Waiting::None
        });
    }
}

/// A node with the name b, which expects a to dial it.
fn node_of(config: NodeConfig) -> Node {
    let mut node = Node::new(config, Box::new(crate::common::Doors { token: None }));
    node.meet("a", 1).unwrap();
    node
}

fn begin(node: &mut Node) {
    node.begin(Time::ZERO, 1, &[("a".into(), 0.5)], None, None).unwrap();
}

/// The same node in its first iteration.
fn node() -> Node {
    let mut node = node_of(World::config_of("b"));
    begin(&mut node);
    node
}

fn greet(node: &mut Node, link: u64, instance: u64) -> Vec<Control> {
    let hello = Hello {
        version: VERSIONS.1,
        name: "a".into(),
        instance,
        nonce: [1; 32],
        proof: None,
        layout: Some(layout(200).hash()),
        holding: Holding::Node(Alike { plan: 1, graph: 2, start: Some(3) }),
        clock: 0,
        purpose: Purpose::Graph,
    };
    node.connected(Time::ZERO, link, [2; 32], true);
    node.control(MS, link, Control::Hello(hello));
    let mut said = Vec::new();
    while let Some(action) = node.poll_action() {
        match action {
            Action::Send { link: to, message } if to == link => said.push(message),
            _ => {}
        }
    }
    said
}

#[test]
fn who_has_the_name_of_another_is_refused() {
    let mut node = node();
    assert!(greet(&mut node, 1, 5).iter().any(|said| matches!(said, Control::Welcome(_))));
    let said = greet(&mut node, 2, 6);
    let refused = |said: &Control| matches!(said, Control::Refused { code: Refusal::Name, .. });
    assert!(said.iter().any(refused), "{said:?}");
    assert!(node.is_member(1) && !node.is_member(2), "the first one stays");
}

#[test]
fn chunks_of_another_job_layout_or_time_are_dropped_and_counted() {
    let mut node = node();
    greet(&mut node, 1, 5);
    let good = chunk(1);
    let place = |node: &mut Node, chunk: ChunkHeader| node.place(MS, Neighbour::Link(1), &chunk);
    let NodePlace::Fold { round: 1, weight } = place(&mut node, good) else { panic!("it is taken") };
    assert_eq!(weight, 0.5);
    let bad = [
        ChunkHeader { job: JOB + 1, ..good },
        ChunkHeader { layout: layout(201).hash(), ..good },
        ChunkHeader { sender: 2, ..good },
        ChunkHeader { offset: 1600, ..good },
        ChunkHeader { offset: 4, ..good },
    ];
    for chunk in bad {
        assert_eq!(place(&mut node, chunk), NodePlace::Nothing);
    }
    assert_eq!(place(&mut node, ChunkHeader { round: 9, ..good }), NodePlace::Nothing);
    assert_eq!(node.dropped(), (1, bad.len() as u64), "too early, and bad");
}

fn chunk(round: u32) -> ChunkHeader {
    ChunkHeader { job: JOB, round, sender: 1, layout: layout(200).hash(), offset: 0, length: 128 }
}

#[test]
fn a_node_that_knows_its_first_weights_keeps_early_chunks_within_its_bound() {
    let mut node = node_of(NodeConfig { waiting: Waiting::None, ..World::config_of("b") });
    greet(&mut node, 1, 5);
    let takes =
        |node: &mut Node, round| node.stored(MS, Neighbour::Link(1), &chunk(round), true).map(|t| t.weight);
    assert_eq!(takes(&mut node, 1), None, "its weight is not known");
    assert!(node.expect(0, &[], None).is_err());
    assert_eq!(node.expect(1, &[("a".into(), 0.5)], None), Ok(vec![]));
    assert_eq!([1, 2, 3].map(|round| takes(&mut node, round)), [Some(0.5), Some(0.5), None]);
    assert_eq!(node.dropped(), (2, 0));
    begin(&mut node);
    assert_eq!(
        [1, 2, 3].map(|round| takes(&mut node, round)),
        [None, None, None],
        "they are there, or too early"
    );
    assert_eq!(node.expect(2, &[("a".into(), 0.1)], None), Ok(vec![]), "it has begun");
}

#[test]
fn chunks_that_came_under_other_weights_are_dropped_when_an_iteration_begins() {
    let mut node = node_of(NodeConfig { waiting: Waiting::None, ..World::config_of("b") });
    greet(&mut node, 1, 5);
    node.expect(1, &[("a".into(), 0.5)], None).unwrap();
    let take =
        |node: &mut Node, round| node.stored(MS, Neighbour::Link(1), &chunk(round), true).map(|t| t.weight);
    assert_eq!([1, 2].map(|round| take(&mut node, round)), [Some(0.5), Some(0.5)]);
    let then = [vec![("a".into(), 0.5)]];
    assert_eq!(node.begin(MS, 1, &[("a".into(), 0.25)], Some(&then), None), Ok(vec![1]));
    assert_eq!(node.dropped(), (1, 0));
    assert_eq!([1, 2].map(|round| take(&mut node, round)), [Some(0.25), None]);
}

#[test]
fn what_two_nodes_have_agreed_on_stays_when_one_leaves_before_the_other_has_mixed() {
    let config = NodeConfig {
        waiting: Waiting::FirstChunk(SECOND),
        weighing: Weighing::Mutual,
        ..World::config_of("b")
    };
    let mut node = node_of(config);
    greet(&mut node, 1, 5);
    begin(&mut node);
    assert!(matches!(node.place(MS, Neighbour::Link(1), &chunk(1)), NodePlace::Stage { round: 1, .. }));
    let taken = node.stored(MS, Neighbour::Link(1), &chunk(1), true).unwrap();
    node.folded(MS, taken.peer, 1, &taken.fresh, true);
    node.ready(2 * MS, 1).unwrap();
    let got = Ranges::from_iter([Range::new(64, 200)]);
    node.control(3 * MS, 1, Control::Have { parcel: 1, got });
    let mixes = std::iter::from_fn(|| node.poll_action())
        .filter(|action| matches!(action, Action::Policy(NodeStep::Mix(_))))
        .count();
    assert_eq!(mixes, 1);
    node.closed(4 * MS, 1, "it has left");
    let portions = node.portions();
    assert_eq!(portions.len(), 1);
    assert_eq!(portions[0].ranges, Ranges::from_iter([Range::new(64, 128)]));
    assert_eq!(node.mixed()[0].bytes, 64);
}

#[test]
fn a_node_that_dials_all_its_neighbours_has_its_driver_woken_for_the_deadline() {
    for waiting in [Waiting::FirstChunk(SECOND), Waiting::Deadline(Some(SECOND)), Waiting::Deadline(None)] {
        let mut world = World::new(3, 2, &line(2), waiting);
        world.parties[1].train = 100 * SECOND;
        world.run_until("they meet", SECOND, World::all_met);
        assert!(!world.parties[0].node.take_timer_set());
        world.run_until("it has trained", SECOND, |w| w.parties[0].numbers == [1]);
        let node = &mut world.parties[0].node;
        assert!(node.poll_timeout().is_some_and(|at| at > world.now), "{waiting:?}: it waits for the other");
        assert!(node.take_timer_set(), "{waiting:?}: nothing else wakes the driver");
    }
}

/// A node in its first iteration that a has dialled.
fn between(rounds: Option<u32>) -> Node {
    let mut node = node_of(NodeConfig { rounds, ..World::config_of("b") });
    greet(&mut node, 1, 5);
    begin(&mut node);
    node
}

#[test]
fn who_says_that_it_is_beyond_the_last_iteration_is_refused_and_nobody_follows() {
    for (rounds, said) in [(Some(100), 101), (Some(100), u32::MAX - 1), (None, u32::MAX - 1)] {
        let sent = Interval { start: 0, end: 0 };
        for lie in [Control::Closed { parcel: said }, Control::End { parcel: said, sent }] {
            let mut node = between(rounds);
            node.control(MS, 1, lie);
            let why = refusal(&mut node);
            assert!(why.contains("\"a\"") && why.contains(&said.to_string()), "{why}");
            assert!(!node.is_member(1));
            assert_eq!(node.ready(2 * MS, 1), Ok(1), "it stays where it is");
        }
        let mut node = between(rounds);
        assert_eq!(node.place(MS, Neighbour::Link(1), &chunk(said)), NodePlace::Nothing);
        assert_eq!(node.dropped(), (0, 1));
    }
}

/// The reason with which the link of a was refused.
fn refusal(node: &mut Node) -> String {
    let refused = |action| match action {
        Action::Send { link: 1, message: Control::Refused { reason, .. } } => Some(reason),
        _ => None,
    };
    std::iter::from_fn(|| node.poll_action()).find_map(refused).expect("it is refused")
}

#[test]
fn who_has_sent_a_model_leaves_out_no_later_iteration() {
    let mut node = between(Some(100));
    node.control(MS, 1, Control::Closed { parcel: 7 });
    node.place(MS, Neighbour::Link(1), &chunk(8));
    node.control(MS, 1, Control::Closed { parcel: 8 });
    assert!(node.is_member(1), "chunks may overtake messages");
    node.control(MS, 1, Control::Closed { parcel: 9 });
    assert!(refusal(&mut node).contains("leaves out iteration 9"));
}

#[test]
fn a_node_that_joins_after_the_last_iteration_does_not_pass_it() {
    let mut node = between(Some(100));
    node.control(MS, 1, Control::Closed { parcel: 100 });
    assert_eq!(node.ready(2 * MS, 1), Ok(100));
}

#[test]
fn a_neighbour_that_is_dialled_and_lies_is_let_go_and_nobody_else_notices() {
    for lie in [Control::Closed { parcel: u32::MAX - 1 }, Control::Closed { parcel: 1000 }] {
        let mut world = World::new(3, 3, &line(3), Waiting::All);
        world.run_until("3 iterations", 60 * SECOND, |w| w.parties.iter().all(|p| p.done() >= 3));
        world.parties[1].node.dialled(1).control(world.now, lie);
        let at = world.parties[1].done();
        world.run_until("ten more", 60 * SECOND, |w| w.parties[..2].iter().all(|p| p.done() >= at + 10));
        let told = &world.parties[1].left;
        assert!(told.len() == 1 && told[0].1.contains("\"n0002\""), "{told:?}");
        assert!(world.parties[0].left.is_empty());
        assert!(world.parties[1].numbers.iter().copied().eq(1..=world.parties[1].numbers.len() as u32));
        assert!(world.parties[0].reports.iter().all(|report| report.whole));
    }
}

#[test]
fn who_sends_its_model_and_never_says_what_it_has_holds_a_node_up_for_so_long() {
    for waiting in [Waiting::None, Waiting::FirstChunk(SECOND), Waiting::Deadline(Some(SECOND))] {
        let config = NodeConfig { waiting, weighing: Weighing::Mutual, ..World::config_of("b") };
        let longest = config.liveness + if waiting == Waiting::None { Time::ZERO } else { SECOND };
        let mut node = node_of(config);
        greet(&mut node, 1, 5);
        begin(&mut node);
        let taken = node.stored(MS, Neighbour::Link(1), &chunk(1), true).unwrap();
        node.folded(MS, taken.peer, 1, &taken.fresh, true);
        node.take_timer_set();
        node.ready(2 * MS, 1).unwrap();
        // The neighbour is alive, and only its Have is missing.
        let mut now = 2 * MS;
        let mut mixes = Vec::new();
        while mixes.is_empty() {
            now += SECOND / 4;
            assert!(now < 60 * SECOND, "{waiting:?}: it waits for ever");
            node.control(now, 1, Control::Ping { clock: 0, received: 0 });
            node.timeout(now);
            while let Some(action) = node.poll_action() {
                match action {
                    Action::Policy(NodeStep::Mix(mixing)) => mixes.push(mixing.round),
                    Action::Policy(NodeStep::Left { reason, .. }) => {
                        assert!(reason.contains("\"a\"") && reason.contains("does not say"), "{reason}");
                    }
                    _ => {}
                }
            }
        }
        assert!(now >= longest, "{waiting:?}: {now:?}");
        assert!(!node.is_member(1) && node.portions().is_empty(), "neither end uses the other's model");
    }
}
