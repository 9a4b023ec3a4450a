//! Servers and clients of tasks keep a consistent state when they get random messages, most of them nearly
//! valid.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::common::senseless::{chunk, from_client, from_server, hello};
use crate::common::tasks::{config, plan, tensors};
use crate::common::{Doors, Rng, MS, SECOND};
use thalweg_proto::{
    Action, Answer, ChunkReceiver, ClientAction, ClientConfig, ClientMachine, Fit, LinkId, ServerMachine,
    Span, TaskAction, TaskClient, TaskPlace, TaskServer, TaskStep, Time,
};
use thalweg_wire::control::{Control, Purpose};

const SEEDS: u64 = 60;
const STEPS: u64 = 2000;

/// Every member has one reply. No result is folded twice, after the end of its task, or with a weight that
/// was not judged.
#[test]
fn a_server_told_anything_keeps_in_step() {
    for seed in 0..SEEDS {
        let mut rng = Rng::new(seed);
        let layout = tensors("w", 300);
        let mut server = TaskServer::new(config(), Box::new(Doors { token: None }));
        let mut links: BTreeSet<LinkId> = BTreeSet::new();
        let (mut now, mut next_link) = (Time::ZERO, 0);
        let (mut open, mut replies, mut folding) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        let (mut judged, mut judging, mut accepted) = (BTreeSet::new(), Vec::new(), BTreeMap::new());
        for _ in 0..STEPS {
            let link = rng.below(next_link + 1);
            match rng.below(12) {
                0 if links.len() < 6 => {
                    next_link += 1;
                    links.insert(next_link);
                    server.connected(now, next_link, [0; 32], rng.chance(0.5));
                    let purpose = if rng.chance(0.9) { Purpose::Tasks } else { Purpose::Rounds };
                    let said = thalweg_wire::control::Hello { purpose, ..hello(&mut rng, &layout) };
                    server.control(now, next_link, Control::Hello(said));
                }
                1 => {
                    let fold = rng.chance(0.5).then(|| layout.clone());
                    let deadline = rng.chance(0.7).then(|| rng.time(SECOND));
                    let to = [["c0", "c1"], ["c2", "c3"]][rng.below(2) as usize];
                    let elements = [0, 300][rng.below(2) as usize];
                    let missing = fold.is_some().then(Arc::default).filter(|_| rng.chance(0.5));
                    let judges = rng.chance(0.5);
                    let plan = plan(elements, 7, &to, deadline);
                    let plan = thalweg_proto::TaskPlan { fold, missing, judged: judges, ..plan };
                    if let Ok(number) = server.open(now, plan) {
                        judged.extend(judges.then_some(number));
                        to.iter().for_each(|name| _ = open.insert((number, (*name).to_string())));
                    }
                }
                2 => server.cancel(now, rng.below(40) as u32),
                3..=6 => {
                    let message = from_client(&mut rng, &layout);
                    server.control(now, link, message);
                }
                7 => {
                    let chunk = chunk(&mut rng, &layout);
                    if server.place(now, link, &chunk) != TaskPlace::Nothing {
                        let ok = rng.chance(0.9);
                        let fresh = server.stored(now, link, &chunk, ok);
                        assert!(fresh.iter().all(|range| range.end <= layout.bytes()));
                    }
                }
                8 => {
                    let span = Span { start: now, end: now };
                    let outcome = if rng.chance(0.8) { Ok(span) } else { Err("cut short".into()) };
                    server.sent(now, link, rng.below(40) as u32, outcome);
                }
                9 if links.remove(&link) => server.closed(now, link, "the link broke"),
                10 if !folding.is_empty() => {
                    let (task, sender) = folding.swap_remove(rng.below(folding.len() as u64) as usize);
                    server.folded(now, task, sender, Ok(()));
                }
                11 if !judging.is_empty() => {
                    let (task, sender, weight) =
                        judging.swap_remove(rng.below(judging.len() as u64) as usize);
                    let takes = rng.chance(0.8);
                    if takes {
                        accepted.insert((task, sender), weight);
                    }
                    server.judged(now, task, sender, takes.then_some(()).ok_or_else(|| "no".into()));
                }
                _ => {
                    now += rng.time(100 * MS);
                    if server.poll_timeout().is_some_and(|at| at <= now) {
                        server.timeout(now);
                        let next = server.poll_timeout();
                        assert!(next.is_none_or(|at| at > now), "the timer stands still: {next:?}");
                    }
                }
            }
            while let Some(action) = server.poll_action() {
                match action {
                    Action::Send { link, message } => {
                        assert!(links.contains(&link), "{message:?} for the dead link {link}");
                    }
                    Action::SendParcel { links: to, .. } => assert!(to.iter().all(|l| links.contains(l))),
                    Action::Cancel { link, .. } => assert!(links.contains(&link)),
                    Action::Close { link } => _ = links.remove(&link),
                    Action::Policy(TaskAction::Judge { task, sender, weight, .. }) => {
                        assert!(judging.iter().all(|&(t, s, _)| (t, s) != (task, sender)), "asked twice");
                        judging.push((task, sender, weight));
                    }
                    Action::Policy(TaskAction::Fold { task, sender, weight, .. }) => {
                        assert!(!judged.contains(&task) || accepted.get(&(task, sender)) == Some(&weight));
                        folding.push((task, sender));
                    }
                    Action::Policy(TaskAction::Settled(reply)) => {
                        let part = (reply.task, reply.member.clone());
                        assert!(open.remove(&part), "{part:?} has two replies");
                        replies.insert(part);
                    }
                    Action::Policy(TaskAction::Closed { task }) => {
                        assert!(open.iter().all(|(of, _)| *of != task), "closed with open parts");
                        assert!(folding.iter().all(|(of, _)| *of != task), "closed while it folds");
                    }
                    _ => {}
                }
            }
        }
        assert!(!replies.is_empty());
    }
}

/// A task is handed out once, and only when all its bytes are here.
#[test]
fn a_client_told_anything_keeps_in_step() {
    for seed in 0..SEEDS {
        let mut rng = Rng::new(seed);
        let layout = tensors("w", 300);
        let config = ClientConfig {
            name: "c".into(),
            instance: 1,
            layout: None,
            timeout: Time::MAX,
            outage: Time::ZERO,
        };
        let mut client = TaskClient::new(config, thalweg_wire::control::Purpose::Tasks, 1 << 20, seed);
        let (mut now, mut up, mut open) = (Time::ZERO, false, BTreeSet::new());
        assert!(matches!(client.poll_action(), Some(ClientAction::Connect { .. })));
        for _ in 0..STEPS {
            match rng.below(10) {
                0 if !up => {
                    up = true;
                    client.connected(now, [0; 32], rng.chance(0.5));
                    client.control(now, crate::common::senseless::challenge(&mut rng));
                    client.proven(now, None);
                    client.control(now, crate::common::senseless::welcome(&mut rng, &layout));
                }
                0..=4 => {
                    let message = from_server(&mut rng, &layout);
                    client.control(now, message);
                }
                5 => {
                    let chunk = thalweg_wire::ChunkHeader { sender: 0, ..chunk(&mut rng, &layout) };
                    if client.fit(now, &chunk).0 != Fit::Nothing {
                        client.stored(now, &chunk, rng.chance(0.9));
                    }
                }
                6 => {
                    let task = rng.below(4) as u32;
                    let weight = 1.0;
                    let answer = Answer { head: Vec::new(), layout: layout.clone(), weight };
                    let done =
                        if rng.chance(0.8) { client.answer(task, answer) } else { client.refuse(task, "no") };
                    assert!(done.is_err() || open.contains(&task), "{task} was never handed out");
                }
                7 => client.sent(now, rng.below(4) as u32, Ok(Span { start: now, end: now })),
                8 if up && rng.chance(0.2) => {
                    up = false;
                    client.closed(now, "the link broke");
                }
                _ => {
                    now += rng.time(100 * MS);
                    if client.poll_timeout().is_some_and(|at| at <= now) {
                        client.timeout(now);
                        let next = client.poll_timeout();
                        assert!(next.is_none_or(|at| at > now), "the timer stands still: {next:?}");
                    }
                }
            }
            while let Some(action) = client.poll_action() {
                match action {
                    ClientAction::Send(message) => assert!(up, "{message:?} without a link"),
                    ClientAction::Close | ClientAction::Connect { .. } => up = false,
                    ClientAction::Policy(TaskStep::Ready { task, .. }) => {
                        assert!(open.insert(task), "{task} is handed out twice");
                    }
                    ClientAction::Policy(TaskStep::Over { task, .. }) => _ = open.remove(&task),
                    _ => {}
                }
            }
            if client.is_done() {
                break;
            }
        }
    }
}
