//! Tasks whose results have any layout and are folded or handed over, whatever happens to members and links.

use std::sync::Arc;

use crate::common::network::Path;
use crate::common::tasks::{config, plan, tensors, Does, TaskWorld, CHUNK};
use crate::common::{MS, SECOND};
use thalweg_proto::{
    Answer, Direction, ReplyState, ServerMachine, TaskAction, TaskConfig, TaskPlan, TaskVerdict, Time,
};
use thalweg_wire::control::{Content, Control, Parcel};
use thalweg_wire::{Allowance, Dtype, Layout, LayoutHash, Tolerance, WHOLE};

fn all_done(world: &TaskWorld, task: u32, members: usize) {
    let replies = world.replies_to(task);
    assert_eq!(replies.len(), members);
    assert!(replies.values().all(|reply| reply.state == ReplyState::Done), "{replies:?}");
}

fn closed(world: &TaskWorld, task: u32) -> bool {
    world.closed.contains(&task)
}

#[test]
fn results_have_any_layout_and_each_member_answers_for_itself() {
    let members =
        [("a", Does::Echoes), ("b", Does::Returns(tensors("x", 700))), ("c", Does::Returns(Arc::default()))];
    let mut world = TaskWorld::joined(1, config(), &members);
    let task = world.open(1000, 7, &["a", "b", "c"], None);
    world.run("it is closed", 60 * SECOND, |w| closed(w, task));
    all_done(&world, task, 3);
    let replies = world.replies_to(task);
    let bytes = |name: &str| replies[name].answer.as_ref().unwrap().layout.bytes();
    assert_eq!([bytes("a"), bytes("b"), bytes("c")], [4000, 2800, 0]);
    let ways = |name: &str| replies[name].transfers.iter().map(|way| way.bytes).collect::<Vec<_>>();
    assert_eq!(ways("b"), [4000, 2800], "what moved is recorded, both ways");
    world.pass(SECOND);
    for member in &world.members {
        assert_eq!(member.verdicts, [(task, TaskVerdict::Accepted)]);
    }
}

#[test]
fn a_task_may_have_no_tensors() {
    let mut world = TaskWorld::joined(2, config(), &[("a", Does::Returns(tensors("x", 10)))]);
    let task = world.open(0, 0, &["a"], None);
    world.run("it is closed", 60 * SECOND, |w| closed(w, task));
    all_done(&world, task, 1);
    assert_eq!(world.members[0].chunks, 0);
}

#[test]
fn the_same_bytes_are_sent_once() {
    let mut world = TaskWorld::joined(3, config(), &[("a", Does::Echoes)]);
    for (id, chunks) in [(7, 8), (7, 8), (9, 16), (7, 24)] {
        let task = world.open(1000, id, &["a"], None);
        world.run("it is closed", 60 * SECOND, |w| closed(w, task));
        assert_eq!(world.members[0].chunks, chunks, "bytes {id}");
    }
}

#[test]
fn many_tasks_are_open_at_once_and_a_member_is_given_a_few() {
    let mut world = TaskWorld::joined(4, config(), &[("a", Does::Echoes), ("b", Does::Echoes)]);
    let tasks: Vec<u32> = (0..100).map(|id| world.open(300, id, &["a", "b"], None)).collect();
    assert_eq!(world.server.open_count(), 100);
    world.run("all are closed", 600 * SECOND, |w| w.closed.len() == 100);
    tasks.iter().for_each(|&task| all_done(&world, task, 2));
    assert_eq!(world.members[0].given, tasks, "in order");
}

fn folding(to: &[&str]) -> TaskPlan {
    TaskPlan { fold: Some(tensors("w", 1000)), ..plan(1000, 7, to, None) }
}

#[test]
fn results_are_folded_once_each_and_share_the_staging() {
    let members = [("a", Does::Echoes), ("b", Does::Echoes), ("c", Does::Echoes), ("d", Does::Echoes)];
    let mut world = TaskWorld::joined(5, config(), &members);
    let task = world.open_plan(folding(&["a", "b", "c", "d"])).unwrap();
    world.run("it is closed", 60 * SECOND, |w| closed(w, task));
    all_done(&world, task, 4);
    assert_eq!(world.folded.values().collect::<Vec<_>>(), [&1; 4]);
}

#[test]
fn what_cannot_be_folded_is_refused_with_the_hint() {
    let members = [("a", Does::Echoes), ("b", Does::Returns(tensors("v", 1000))), ("c", Does::Echoes)];
    let mut world = TaskWorld::joined(6, config(), &members);
    world.members[2].weight = 0.0;
    let task = world.open_plan(folding(&["a", "b", "c"])).unwrap();
    world.run("it is closed", 60 * SECOND, |w| closed(w, task));
    let replies = world.replies_to(task);
    assert_eq!(replies["a"].state, ReplyState::Done);
    for (name, words) in [("b", "return the same tensors"), ("c", "weights above 0")] {
        assert_eq!(replies[name].state, ReplyState::Failed);
        assert!(replies[name].reason.as_ref().unwrap().contains(words), "{:?}", replies[name]);
    }
    let heard = &world.members[1].verdicts;
    assert!(
        matches!(&heard[..], [(_, TaskVerdict::Rejected(why))] if why.contains("return the same")),
        "{heard:?}"
    );
}

#[test]
fn the_application_judges_head_and_weight_before_a_byte_of_a_result_moves() {
    for folds in [false, true] {
        let mut world = TaskWorld::joined(20, config(), &[("a", Does::Echoes), ("b", Does::Echoes)]);
        (world.members[1].weight, world.heaviest) = (3.0, Some(2.0));
        let fold = folds.then(|| tensors("w", 1000));
        let plan = TaskPlan { fold, judged: true, ..plan(1000, 7, &["a", "b"], None) };
        let task = world.open_plan(plan).unwrap();
        world.run("it is closed", 60 * SECOND, |w| closed(w, task));
        world.asked.sort();
        assert_eq!(world.asked, [(task, "a".into()), (task, "b".into())], "once each");
        let replies = world.replies_to(task);
        assert_eq!(replies["a"].state, ReplyState::Done);
        assert_eq!(replies["b"].state, ReplyState::Failed);
        assert_eq!(replies["b"].reason.as_deref(), Some("2 is the most"));
        let came: Vec<_> = replies["b"].transfers.iter().map(|way| way.direction).collect();
        assert_eq!(came, [Direction::Down], "nothing of the result was received");
        assert_eq!(world.folded.len(), usize::from(folds), "the other one");
        world.pass(SECOND);
        let heard = [(task, TaskVerdict::Rejected("2 is the most".into()))];
        assert_eq!(world.members[1].verdicts, heard);
    }
}

/// The messages that the server sends, and how many results the application is asked to judge.
fn answers(world: &mut TaskWorld) -> (Vec<Control>, usize) {
    let (mut said, mut asked) = (Vec::new(), 0);
    while let Some(action) = world.server.poll_action() {
        match action {
            thalweg_proto::Action::Send { message, .. } => said.push(message),
            thalweg_proto::Action::Policy(TaskAction::Judge { .. }) => asked += 1,
            _ => {}
        }
    }
    (said, asked)
}

/// A verdict belongs to the offer that was judged, whatever the member does meanwhile.
#[test]
fn a_verdict_counts_for_what_was_judged_alone() {
    let content = || Content::Tensors((*tensors("w", 100)).clone());
    let start = || {
        let mut world = TaskWorld::joined(21, config(), &[("a", Does::Nothing)]);
        let fold = Some(tensors("w", 100));
        let plan = TaskPlan { fold, judged: true, ..plan(100, 7, &["a"], None) };
        let task = world.open_plan(plan).unwrap();
        world.run("it is at work", 10 * SECOND, |w| !w.members[0].given.is_empty());
        let link = world.members[0].link.unwrap();
        world.server.control(world.now, link, result(task, content(), 1.0));
        assert_eq!(answers(&mut world), (vec![], 1), "asked, and nothing granted");
        let sender = 1;
        (world, task, link, sender)
    };
    // The same offer is not judged again, and a different one is refused at once.
    let (mut world, task, link, sender) = start();
    world.server.control(world.now, link, result(task, content(), 1.0));
    assert_eq!(answers(&mut world), (vec![], 0));
    world.server.judged(world.now, task, sender, Ok(()));
    assert!(matches!(answers(&mut world).0[..], [Control::Grant { .. }]));
    let (mut world, task, link, sender) = start();
    world.server.control(world.now, link, result(task, content(), 9.0));
    assert!(matches!(answers(&mut world).0[..], [Control::Rejected { .. }]));
    world.server.judged(world.now, task, sender, Ok(()));
    assert_eq!(answers(&mut world), (vec![], 0), "its part is over");
    // Another process of the member offers another result, which is judged after the first verdict.
    let (mut world, task, _, sender) = start();
    world.kill(0);
    world.restart(0);
    world.run("it has the task again", 10 * SECOND, |w| w.members[0].given.len() == 2);
    let link = world.members[0].link.unwrap();
    world.server.control(world.now, link, result(task, content(), 9.0));
    assert_eq!(answers(&mut world), (vec![], 0), "one question at a time");
    world.server.judged(world.now, task, sender, Ok(()));
    assert_eq!(answers(&mut world), (vec![], 1), "that verdict was of what it offered before");
    world.server.judged(world.now, task, sender, Err("too heavy".into()));
    assert!(
        matches!(&answers(&mut world).0[..], [Control::Rejected { reason, .. }] if reason == "too heavy")
    );
}

/// Three tensors: nothing of the first may be missing, a tenth of the second, and all of the third.
fn critical_and_others() -> (Arc<Layout>, Arc<Tolerance>) {
    let tensors =
        [("n", Dtype::I64, vec![100]), ("v", Dtype::F32, vec![2000]), ("w", Dtype::F32, vec![2000])];
    let layout = Layout::pack(tensors).expect("a valid layout");
    let allowance = |tensor, budget| Allowance { tensor, budget, refuse: WHOLE };
    let rule = Tolerance::new(&layout, &[allowance(0, 0), allowance(1, 100_000)]).expect("a valid rule");
    (Arc::new(layout), Arc::new(rule))
}

/// Whatever the link does, no tensor misses more than it may, and all bytes that arrived are folded once.
#[test]
fn of_what_is_folded_something_may_be_missing() {
    let (layout, rule) = critical_and_others();
    let lossy = Path { rate: 200_000, loss: 0.3, duplicate: 0.05, corrupt: 0.05, ..Path::PERFECT };
    let config = TaskConfig { staging: 1 << 20, ..config() };
    for seed in 0..20 {
        let mut world = TaskWorld::new(seed, config.clone());
        let (cut, ordered) = (Path { cut_after: Some(9000), ..lossy }, seed % 2 == 0);
        for (name, path) in [("a", lossy), ("b", cut), ("c", Path::PERFECT)] {
            world.add(name, Does::Returns(layout.clone()), Path { ordered, ..path });
        }
        let fold = Some(layout.clone());
        let plan = TaskPlan { fold, missing: Some(rule.clone()), ..plan(100, 7, &["a", "b", "c"], None) };
        let task = world.open_plan(plan).unwrap();
        world.run("it is closed", 600 * SECOND, |w| closed(w, task));
        all_done(&world, task, 3);
        assert_eq!(world.folded.values().collect::<Vec<_>>(), [&1; 3]);
        for (name, reply) in world.replies_to(task) {
            let holes = &world.holes[&(task, reply.sender)];
            assert!(rule.owed(holes).is_empty(), "{name}: {holes:?}");
            assert_eq!(holes.bytes() > 0, name != "c", "a third is lost on the way");
            let up = reply.transfers.last().unwrap();
            assert_eq!((&up.holes, up.missing, up.complete), (holes, holes.bytes(), name == "c"));
            let came = layout.bytes() - holes.bytes();
            assert_eq!(reply.coverage, came as f64 / layout.bytes() as f64, "{name}");
        }
    }
}

#[test]
fn whoever_is_away_refuses_or_is_late_has_a_state_and_a_reason() {
    let members = [("refuses", Does::Refuses), ("works", Does::Nothing), ("fine", Does::Echoes)];
    let mut world = TaskWorld::joined(7, config(), &members);
    let task = world.open(100, 7, &["refuses", "works", "fine", "never"], Some(20 * SECOND));
    world.run("it is closed", 21 * SECOND, |w| closed(w, task));
    let replies = world.replies_to(task);
    let told = |name: &str| (replies[name].state, replies[name].reason.clone().unwrap_or_default());
    assert_eq!(told("fine").0, ReplyState::Done);
    assert_eq!(told("refuses"), (ReplyState::Failed, "has no data".into()));
    assert_eq!(told("never"), (ReplyState::Lost, "was not there within 5 s".into()));
    let (state, reason) = told("works");
    assert_eq!(state, ReplyState::Late);
    assert!(reason.contains("deadline of 20 s") && reason.contains("working"), "{reason}");
    world.pass(SECOND);
    assert_eq!(world.members[1].verdicts, [(task, TaskVerdict::Closed)]);
}

#[test]
fn who_comes_within_the_grace_gets_what_waits() {
    let mut world = TaskWorld::new(8, config());
    let task = world.open(100, 7, &["a"], None);
    world.pass(4 * SECOND);
    world.add("a", Does::Echoes, Path::PERFECT);
    world.run("it is closed", 60 * SECOND, |w| closed(w, task));
    all_done(&world, task, 1);
}

#[test]
fn a_task_can_be_cancelled_at_any_time() {
    let mut world = TaskWorld::joined(9, config(), &[("a", Does::Echoes)]);
    for after in [Time::ZERO, MS, 5 * MS, 12 * MS] {
        let task = world.open(100_000, 7, &["a"], None);
        world.pass(after);
        world.server.cancel(world.now, task);
        world.server_actions();
        assert!(closed(&world, task));
        assert_eq!(world.replies_to(task)["a"].state, ReplyState::Cancelled);
    }
    let task = world.open(1000, 8, &["a"], None);
    world.run("the next one is done", 60 * SECOND, |w| closed(w, task));
    all_done(&world, task, 1);
}

#[test]
fn bad_plans_are_refused_with_the_hint() {
    let mut world = TaskWorld::new(10, TaskConfig { max_open: 1, ..config() });
    let refused = |world: &mut TaskWorld, plan: TaskPlan| world.open_plan(plan).unwrap_err();
    assert!(refused(&mut world, plan(1, 1, &[], None)).contains("at least one member"));
    assert!(refused(&mut world, plan(1, 1, &["a", "a"], None)).contains("named twice"));
    assert!(refused(&mut world, plan(1, 1, &["a\n"], None)).contains("another name"));
    let long = TaskPlan { head: vec![0; (1 << 20) + 1], ..plan(1, 1, &["a"], None) };
    assert!(refused(&mut world, long).contains("send it as a tensor"));
    let (layout, rule) = critical_and_others();
    let kept = TaskPlan { missing: Some(rule.clone()), ..plan(1, 1, &["a"], None) };
    assert!(refused(&mut world, kept).contains("fold them"));
    let other = TaskPlan { fold: Some(tensors("w", 10)), missing: Some(rule), ..plan(1, 1, &["a"], None) };
    assert!(refused(&mut world, other).contains(&format!("{} bytes", layout.bytes())));
    world.open(1, 1, &["a"], None);
    assert!(refused(&mut world, plan(1, 1, &["a"], None)).contains("cancel some"));
}

/// The task is sent to both members in one call. The call ends for both when one of them refuses the task.
#[test]
fn a_member_that_takes_no_such_task_takes_nothing_from_the_others() {
    let mut world = TaskWorld::new(15, config());
    world.add_bounded("small", Does::Echoes, Path::PERFECT, 1000);
    world.add("large", Does::Echoes, Path { rate: 100_000, ..Path::PERFECT });
    world.run("both have joined", 10 * SECOND, |w| w.server.connected_count() == 2);
    let task = world.open(20_000, 7, &["small", "large"], Some(20 * SECOND));
    world.run("it is closed", 21 * SECOND, |w| closed(w, task));
    let replies = world.replies_to(task);
    assert_eq!(replies["large"].state, ReplyState::Done);
    assert_eq!(replies["small"].state, ReplyState::Failed);
    assert!(replies["small"].reason.as_ref().unwrap().contains("at most 1000 bytes"), "{replies:?}");
    assert_eq!(replies["large"].transfers[0].resumed, 0, "its link stayed");
}

/// A link that loses, repeats, damages and reorders chunks, and breaks in the middle.
#[test]
fn bad_links_lose_nothing_and_resume_what_is_missing() {
    let bad = Path {
        rate: 200_000,
        jitter: 20 * MS,
        loss: 0.1,
        duplicate: 0.05,
        corrupt: 0.05,
        ordered: false,
        ..Path::PERFECT
    };
    for seed in 0..30 {
        let mut world = TaskWorld::new(seed, config());
        world.add("a", Does::Echoes, Path { cut_after: Some(60_000), ..bad });
        world.add("b", Does::Returns(tensors("x", 9000)), Path { ordered: true, jitter: Time::ZERO, ..bad });
        let task = world.open(20_000, 7, &["a", "b"], None);
        world.run("it is closed", 600 * SECOND, |w| closed(w, task));
        all_done(&world, task, 2);
        let resumed: u32 = world.replies_to(task)["a"].transfers.iter().map(|way| way.resumed).sum();
        assert!(resumed > 0, "its link broke once");
        let sent = world.members[0].chunks;
        assert!(sent < 2 * 80_000 / CHUNK, "{sent} chunks: only what was missing comes again");
    }
}

/// Kills a member, or cuts its link, at each step of a job. The member comes back, or it does not.
#[test]
fn death_at_every_point_leaves_no_task_open_and_folds_nothing_twice() {
    for folds in [false, true] {
        let start = |seed| {
            let mut world = TaskWorld::joined(seed, config(), &[("a", Does::Echoes), ("b", Does::Echoes)]);
            let fold = folds.then(|| tensors("w", 1500));
            let both = &["a", "b"];
            let first =
                TaskPlan { fold: fold.clone(), judged: folds, ..plan(1500, 7, both, Some(30 * SECOND)) };
            let second = TaskPlan { fold, ..plan(1500, 8, both, Some(30 * SECOND)) };
            let tasks = [world.open_plan(first).unwrap(), world.open_plan(second).unwrap()];
            (world, tasks)
        };
        let (mut whole, _) = start(1);
        let begun = whole.steps;
        whole.run("both are closed", 60 * SECOND, |w| w.closed.len() == 2);
        let steps = whole.steps - begun;
        assert!(steps > 50, "{steps}");
        for (at, how) in (0..steps).flat_map(|at| [(at, 0), (at, 1), (at, 2)]) {
            let (mut world, tasks) = start(1);
            let begun = world.steps;
            while world.steps < begun + at && world.closed.len() < 2 {
                world.step();
            }
            match how {
                0 => world.cut(0),
                1 => world.kill(0),
                _ => {
                    world.kill(0);
                    world.pass(100 * MS);
                    world.restart(0);
                }
            }
            world.run("both are closed", 40 * SECOND, |w| w.closed.len() == 2);
            for task in tasks {
                let replies: Vec<_> = world.replies.iter().filter(|(reply, _)| reply.task == task).collect();
                assert_eq!(replies.len(), 2, "each member once: {replies:?}");
                let states = world.replies_to(task);
                assert_eq!(states["b"].state, ReplyState::Done, "killed at {at}");
                let expected: &[ReplyState] =
                    if how == 1 { &[ReplyState::Done, ReplyState::Lost] } else { &[ReplyState::Done] };
                assert!(expected.contains(&states["a"].state), "{how} at {at}: {:?}", states["a"]);
            }
            assert!(world.folded.values().all(|&times| times == 1), "{how} at {at}: {:?}", world.folded);
        }
    }
}

/// A restarted server knows no tasks. It tells its members so, whatever they hold.
#[test]
fn a_restarted_server_closes_what_members_hold() {
    let mut world = TaskWorld::joined(11, config(), &[("a", Does::Nothing)]);
    let task = world.open(1000, 7, &["a"], None);
    world.run("it is at work", 10 * SECOND, |w| !w.members[0].given.is_empty());
    world.cut(0);
    let fresh = TaskWorld::new(12, config());
    world.server = fresh.server;
    world.run("it has heard so", 60 * SECOND, |w| !w.members[0].verdicts.is_empty());
    assert_eq!(world.members[0].verdicts, [(task, TaskVerdict::Closed)]);
}

fn result(number: u32, content: Content, weight: f64) -> Control {
    let head = b"{}".to_vec();
    Control::Offer(Parcel { number, pushed: false, head, content, same_as: None, weight, deadline: None })
}

/// Senseless offers are answered, and harm no other member.
#[test]
fn results_for_no_task_twice_or_beyond_bounds_are_answered() {
    let mut world = TaskWorld::joined(13, config(), &[("a", Does::Nothing), ("b", Does::Nothing)]);
    let task = world.open(100, 7, &["a"], None);
    world.run("it is at work", 10 * SECOND, |w| !w.members[0].given.is_empty());
    let link = |w: &TaskWorld, index: usize| w.members[index].link.unwrap();
    let (a, b) = (link(&world, 0), link(&world, 1));
    let mut say = |link, message| {
        world.server.control(world.now, link, message);
        std::iter::from_fn(|| world.server.poll_action())
            .filter_map(|action| match action {
                thalweg_proto::Action::Send { link: to, message } if to == link => Some(message),
                _ => None,
            })
            .collect::<Vec<_>>()
    };
    let other = Content::Tensors((*tensors("x", 10)).clone());
    assert_eq!(say(a, result(99, other.clone(), 1.0)), [Control::Closed { parcel: 99 }], "unknown");
    assert_eq!(say(b, result(task, other.clone(), 1.0)), [Control::Closed { parcel: task }], "another's");
    let granted = say(a, result(task, other.clone(), 1.0));
    assert!(matches!(granted[..], [Control::Grant { .. }]), "{granted:?}");
    assert_eq!(say(a, result(task, other, 1.0)), [], "the same again");
    let refused = say(a, result(task, Content::Nothing, 1.0));
    assert!(
        matches!(&refused[..], [Control::Rejected { reason, .. }] if reason.contains("two different")),
        "{refused:?}"
    );
    for (content, words) in [
        (Content::Subset(vec![5]), "no tensor 5"),
        (Content::Whole(LayoutHash(1)), "use the same model"),
        (Content::Tensors((*tensors("big", 1 << 20)).clone()), "is the most"),
    ] {
        let task = world.server.open(world.now, plan(100, 7, &["b"], None)).unwrap();
        while world.server.poll_action().is_some() {}
        world.server.control(world.now, b, result(task, content, 1.0));
        let told = std::iter::from_fn(|| world.server.poll_action()).find_map(|action| match action {
            thalweg_proto::Action::Send { message: Control::Rejected { reason, .. }, .. } => Some(reason),
            _ => None,
        });
        assert!(told.as_ref().is_some_and(|told| told.contains(words)), "{words}: {told:?}");
    }
}

/// The member has four tasks, and two results fit into the staging memory. It gets no more, however often it
/// offers.
#[test]
fn a_flood_of_offers_gets_no_more_than_its_credits() {
    let members = [("a", Does::Nothing), ("b", Does::Echoes)];
    let mut world = TaskWorld::joined(16, config(), &members);
    let tasks: Vec<u32> = (0..100).map(|_| world.open_plan(folding(&["a"])).unwrap()).collect();
    world.run("it has its first tasks", 10 * SECOND, |w| w.members[0].given.len() == 4);
    let (link, content) = (world.members[0].link.unwrap(), Content::Tensors((*tensors("w", 1000)).clone()));
    let (mut granted, mut closed) = (Vec::new(), 0);
    for &number in (0..50).flat_map(|_| &tasks) {
        world.server.control(world.now, link, result(number, content.clone(), 1.0));
        let answers: Vec<_> = std::iter::from_fn(|| world.server.poll_action()).collect();
        assert!(answers.len() <= 1, "each offer has one answer at most: {answers:?}");
        for answer in answers {
            match answer {
                thalweg_proto::Action::Send { message: Control::Grant { parcel, .. }, .. } => {
                    granted.push(parcel);
                }
                thalweg_proto::Action::Send { message: Control::Closed { parcel }, .. } => {
                    assert!(!world.members[0].given.contains(&parcel));
                    closed += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(granted, tasks[..2], "what fits into the staging, once each");
    assert_eq!(closed, 96 * 50, "what it was never given");
    // The member sends none of the results that it offered. The other member waits for it no longer than for
    // any silent member.
    let task = world.open_plan(folding(&["b"])).unwrap();
    world.run("the other's result is folded", 60 * SECOND, |w| self::closed(w, task));
    all_done(&world, task, 1);
}

/// The application answers twice before the first answer is sent, so the result does not depend on timing.
#[test]
fn a_second_answer_of_an_application_is_an_error() {
    for (first_refuses, then_refuses) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut world = TaskWorld::joined(17, config(), &[("a", Does::Nothing)]);
        let task = world.open(100, 7, &["a"], None);
        world.run("it is at work", 10 * SECOND, |w| !w.members[0].given.is_empty());
        let machine = &mut world.members[0].machine;
        let mut say = |refuses: bool| match refuses {
            true => machine.refuse(task, "has no data"),
            false => machine.answer(task, Answer { head: Vec::new(), layout: Arc::default(), weight: 1.0 }),
        };
        assert_eq!(say(first_refuses), Ok(()));
        let error = say(then_refuses).unwrap_err();
        assert!(error.contains("was answered before"), "{error}");
        assert!(machine.is_open(task), "the first one still counts");
    }
}

#[test]
fn a_client_of_rounds_is_told_that_this_server_gives_tasks() {
    let mut server = TaskWorld::new(14, config()).server;
    server.connected(Time::ZERO, 1, [0; 32], true);
    let hello = thalweg_wire::control::Hello {
        version: thalweg_wire::control::VERSIONS.1,
        name: "a".into(),
        instance: 1,
        nonce: [0; 32],
        proof: None,
        layout: Some(Layout::default().hash()),
        holding: thalweg_wire::control::Holding::Nothing,
        clock: 0,
        purpose: thalweg_wire::control::Purpose::Rounds,
    };
    server.control(MS, 1, Control::Hello(hello));
    let told = std::iter::from_fn(|| server.poll_action()).find_map(|action| match action {
        thalweg_proto::Action::Send { message: Control::Refused { reason, .. }, .. } => Some(reason),
        _ => None,
    });
    assert!(told.unwrap().contains("thalweg.TaskClient"));
}
