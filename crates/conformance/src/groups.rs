//! Tests of sending one update to a group of links.

use std::sync::Arc;

use thalweg_arena::Arena;
use thalweg_transport::{ErrorKind, Link, Outgoing, Result, SendReport};
use tokio::sync::mpsc;

use crate::cancelling::PROMPTLY;
use crate::pair::{link, settle};
use crate::{outgoing, pattern, update_id, Factory, Pump, Recorder};

struct Group {
    listener: Box<dyn thalweg_transport::Listener>,
    clients: Vec<Arc<dyn Link>>,
    servers: Vec<Arc<dyn Link>>,
}

async fn group(factory: &Factory, members: usize) -> Group {
    let listener = factory.transport.listen(&factory.address, &factory.listen).await.unwrap();
    let (mut clients, mut servers) = (Vec::new(), Vec::new());
    for _ in 0..members {
        let (client, server) = link(factory, &*listener).await;
        clients.push(client);
        servers.push(server);
    }
    Group { listener, clients, servers }
}

type Done = mpsc::UnboundedReceiver<(usize, Result<SendReport>)>;

/// Sends to the group in a task. The channel gets the calls of `done`, and ends with the send.
fn send_group(group: Group, update: Outgoing) -> (Done, Vec<Arc<dyn Link>>) {
    let (tell, hear) = mpsc::unbounded_channel();
    let Group { listener, clients, servers } = group;
    tokio::spawn(async move {
        let done = move |index, outcome| tell.send((index, outcome)).unwrap();
        listener.send_group(&servers, &update, &done).await;
        drop(update);
        drop(done);
        // Keep the links alive, so that the clients can receive everything that is in flight.
        std::future::pending::<()>().await;
    });
    (hear, clients)
}

async fn hear(done: &mut Done, count: usize) -> Vec<(usize, Result<SendReport>)> {
    let mut outcomes = Vec::new();
    for _ in 0..count {
        outcomes.push(done.recv().await.unwrap());
    }
    outcomes.sort_by_key(|(index, _)| *index);
    outcomes
}

fn receive_all(clients: &[Arc<dyn Link>], source: &Arena) -> Vec<(Arc<Recorder>, Pump)> {
    let start = |link| {
        let recorder = Arc::new(Recorder::new(source.len()));
        let pump = Pump::start(link, &recorder);
        (recorder, pump)
    };
    clients.iter().map(start).collect()
}

/// `Listener::send_group` calls `done` once for each link, with the link's index in `links`.
pub async fn each_member_gets_all_and_done_hears_of_each_once(factory: &Factory) {
    let group = group(factory, 5).await;
    let servers = group.servers.clone();
    let source = pattern(2 << 20, 1);
    let receivers = receive_all(&group.clients, &source);
    let update = outgoing(&source, update_id(1), factory.chunk(64 << 10));
    let (mut done, _clients) = send_group(group, update);
    let outcomes = hear(&mut done, 5).await;
    assert!(outcomes.iter().map(|(index, _)| *index).eq(0..5), "{outcomes:?}");
    assert!(outcomes.iter().all(|(_, outcome)| outcome.as_ref().is_ok_and(|r| r.payload == 2 << 20)));
    assert!(done.recv().await.is_none(), "done heard of a link twice");
    for (server, (recorder, mut pump)) in servers.iter().zip(receivers) {
        settle(server, &mut pump, &recorder, 2 << 20).await;
        recorder.check(&source);
    }
}

/// Sending to an empty group ends at once.
pub async fn an_empty_group_is_done(factory: &Factory) {
    let group = group(factory, 0).await;
    let source = pattern(1_000, 2);
    let done = |_, _| panic!("done heard of nobody");
    group.listener.send_group(&[], &outgoing(&source, update_id(1), 100), &done).await;
}

/// `Listener::send_group`: the send to a member whose link has ended fails, and the others get everything.
pub async fn a_dead_member_fails_alone(factory: &Factory) {
    let group = group(factory, 3).await;
    group.servers[1].close().await;
    let servers = group.servers.clone();
    let source = pattern(1 << 20, 3);
    let receivers = receive_all(&group.clients, &source);
    let (mut done, _clients) = send_group(group, outgoing(&source, update_id(1), factory.chunk(64 << 10)));
    for (index, outcome) in hear(&mut done, 3).await {
        match outcome {
            Err(error) => assert_eq!((index, error.kind()), (1, ErrorKind::Closed), "{error}"),
            Ok(_) => assert_ne!(index, 1, "sent to a closed link"),
        }
    }
    for (index, (recorder, mut pump)) in receivers.into_iter().enumerate() {
        if index != 1 {
            settle(&servers[index], &mut pump, &recorder, 1 << 20).await;
            recorder.check(&source);
        }
    }
}

/// `Listener::send_group`: one member does not receive, and the others get everything. At the end the update
/// is cancelled, which also ends the loan for that member.
pub async fn a_slow_member_holds_up_nobody(factory: &Factory) {
    let mut group = group(factory, 3).await;
    let servers = group.servers.clone();
    let slow = group.clients.remove(1);
    let source = pattern(factory.bulk, 4);
    let receivers = receive_all(&group.clients, &source);
    let update = outgoing(&source, update_id(1), factory.chunk(64 << 10));
    let cancel = update.cancel().clone();
    let (mut done, _clients) = send_group(group, update);
    let outcomes = hear(&mut done, 2).await;
    assert_eq!(
        (outcomes[0].0, outcomes[1].0),
        (0, 2),
        "the slow member was done before the others: raise bulk"
    );
    assert!(outcomes.iter().all(|(_, outcome)| outcome.is_ok()), "{outcomes:?}");
    for (server, (recorder, mut pump)) in [&servers[0], &servers[2]].into_iter().zip(receivers) {
        settle(server, &mut pump, &recorder, factory.bulk).await;
        recorder.check(&source);
    }
    cancel.cancel();
    let (index, outcome) = done.recv().await.unwrap();
    assert_eq!((index, outcome.unwrap_err().kind()), (1, ErrorKind::Cancelled));
    assert!(done.recv().await.is_none(), "done heard of a link twice");
    assert!(source.claim_within(source.range(), PROMPTLY).is_ok(), "the loan outlives the call");
    drop(slow);
}
