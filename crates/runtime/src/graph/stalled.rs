//! Test: nodes make progress while control messages are held up. The test uses a transport whose control
//! messages stall on demand.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::{json, Value};
use thalweg_arena::Arena;
use thalweg_layers::{Layer, Links, Side};
use thalweg_proto::Neighbour;
use thalweg_transport::memory::Memory;
use thalweg_transport::{Capabilities, Counters, Link, Outgoing, Peer, Result, SendReport, Sink, Transport};
use thalweg_wire::{Dtype, Layout};
use tokio::sync::watch;

use super::Node;
use crate::engine::CALLER_TIMEOUT;
use crate::lock;

/// Scheme of this transport's addresses.
pub(crate) const SCHEME: &str = "stalled";
/// Timeout that turns a hang into a failure.
const LIMIT: Duration = Duration::from_secs(60);

/// Held by the test that may stall control messages, since they stall for all links.
static TURN: Mutex<()> = Mutex::new(());
/// Whether the control messages of all links stall.
static STALLED: LazyLock<watch::Sender<bool>> = LazyLock::new(|| watch::Sender::new(false));

pub(crate) fn transport() -> Arc<dyn Transport> {
    Layer::wrap(&Stalling, Arc::new(Memory))
}

/// Waits until control messages may pass.
async fn passable() {
    // This cannot fail: the sender is never dropped.
    let _ = STALLED.subscribe().wait_for(|stalled| !stalled).await;
}

#[derive(Clone)]
struct Stalling;

impl Layer for Stalling {
    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        Capabilities { ordered: false, detached: true, ..inner }
    }

    fn links(&self, _: Side) -> Arc<dyn Links> {
        Arc::new(Self)
    }
}

impl Links for Stalling {
    fn wrap(&self, inner: Arc<dyn Link>, _: u64) -> Arc<dyn Link> {
        Arc::new(StallingLink(inner))
    }
}

struct StallingLink(Arc<dyn Link>);

#[async_trait]
impl Link for StallingLink {
    fn peer(&self) -> &Peer {
        self.0.peer()
    }
    fn capabilities(&self) -> Capabilities {
        Layer::capabilities(&Stalling, self.0.capabilities())
    }
    async fn send_control(&self, message: Bytes) -> Result<()> {
        passable().await;
        self.0.send_control(message).await
    }
    async fn send_update(&self, update: &Outgoing) -> Result<SendReport> {
        if !update.is_detached() {
            passable().await; // its chunks follow the control messages that were sent before
        }
        self.0.send_update(update).await
    }
    async fn receive(&self, sink: &dyn Sink) -> Result<Bytes> {
        self.0.receive(sink).await
    }
    fn admit(&self) {
        self.0.admit();
    }
    fn counters(&self) -> Counters {
        self.0.counters()
    }
    async fn close(&self) {
        self.0.close().await;
    }
}

/// Starts nodes that are each other's neighbours. Waits until each knows that all others have met it
/// ([`Node::meet`]).
fn met(layout: &Layout, names: &[&str], wait: &Value) -> Vec<(Node, Arena)> {
    STALLED.send_replace(false);
    let mut options = json!({ "liveness": LIMIT.as_secs() });
    options.as_object_mut().unwrap().extend(wait.as_object().unwrap().clone());
    let start = |name: &&str| {
        let arena = Arena::new(layout.bytes()).unwrap();
        let options = serde_json::from_value(options.clone()).unwrap();
        let address = format!("{SCHEME}://127.0.0.1:0");
        (Node::start(arena.clone(), layout.clone(), name, &address, options).unwrap(), arena)
    };
    let nodes: Vec<(Node, Arena)> = names.iter().map(start).collect();
    let urls: BTreeMap<String, String> =
        names.iter().zip(&nodes).map(|(name, (node, _))| ((*name).into(), node.address())).collect();
    for (name, (node, _)) in names.iter().zip(&nodes) {
        let others = urls.clone().into_iter().filter(|(other, _)| other != name).collect();
        node.meet(&others, None).unwrap();
    }
    for (node, _) in &nodes {
        let all_met = || {
            node.shared().look(|machine| {
                let others = 0..names.len() - 1; // neighbours' indices, whoever dials
                others.clone().all(|index| machine.is_known_to(Neighbour::Dialled(index))).then_some(())
            })
        };
        let waits = LIMIT.as_millis() / CALLER_TIMEOUT.as_millis();
        assert!(
            (0..waits).any(|_| node.hub().wait_for(CALLER_TIMEOUT, all_met).is_some()),
            "they do not meet"
        );
    }
    nodes
}

/// Runs ten iterations, the first of which has begun.
fn iterate(node: &Node, neighbours: &BTreeMap<String, f64>) -> Vec<Value> {
    let iteration = |round| {
        if round > 1 {
            node.begin(round, neighbours.clone(), None, None).unwrap();
        }
        let number = node.ready(round, None).unwrap();
        let report = node.wait(number, Some(2 * LIMIT), None).unwrap().expect("it waits in vain");
        serde_json::from_str(&report).unwrap()
    };
    (1..=10).map(iteration).collect()
}

/// From before the first iteration on, no control message gets through: no `End`, no `Received`, no ping. But
/// all models arrive completely.
#[test]
fn iterations_continue_although_every_control_message_is_held_up() {
    let layout = Layout::pack([("w", Dtype::F32, vec![100_000])]).unwrap();
    let names = ["a", "b", "c"];
    let _turn = lock(&TURN);
    let nodes = met(&layout, &names, &json!({ "wait": "deadline", "deadline": LIMIT.as_secs() }));
    STALLED.send_replace(true);
    let others = |name: &&str| -> BTreeMap<String, f64> {
        names.iter().filter(|other| *other != name).map(|other| ((*other).into(), 0.25)).collect()
    };
    // Begin at all nodes before any of them sends: chunks that arrive before a node's first `begin` have no
    // weight.
    names.iter().zip(&nodes).for_each(|(name, (node, _))| node.begin(1, others(name), None, None).unwrap());
    let threads: Vec<JoinHandle<(Node, Arena, Vec<Value>)>> = names
        .iter()
        .zip(nodes)
        .map(|(name, (node, arena))| {
            let weights = others(name);
            std::thread::spawn(move || {
                let reports = iterate(&node, &weights);
                (node, arena, reports)
            })
        })
        .collect();
    let done: Vec<(Node, Arena, Vec<Value>)> =
        threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    STALLED.send_replace(false);
    for (node, _, reports) in &done {
        for report in reports {
            assert_eq!(report["bytes_used"], 2 * layout.bytes(), "{report}");
            assert_eq!((&report["timed_out"], &report["skipped"]), (&json!(false), &json!(0)), "{report}");
        }
        node.close("done");
    }
}

/// Both nodes have each other's model, but neither has received a message that says so. A node that left now
/// could not know whether its neighbour still lacks its model.
#[test]
fn with_wait_all_a_node_leaves_only_after_its_neighbours_have_its_model() {
    let layout = Layout::pack([("w", Dtype::F32, vec![1000])]).unwrap();
    let _turn = lock(&TURN);
    let nodes = met(&layout, &["a", "b"], &json!({ "wait": "all" }));
    STALLED.send_replace(true);
    for ((node, _), other) in nodes.iter().zip(["b", "a"]) {
        node.begin(1, BTreeMap::from([(other.into(), 0.5)]), None, None).unwrap();
    }
    nodes.iter().for_each(|(node, _)| assert_eq!(node.ready(1, None).unwrap(), 1));
    for (node, _) in &nodes {
        assert!(node.wait(1, Some(LIMIT), None).unwrap().is_some(), "it waits in vain");
        assert!(!node.finish_sending(Some(&|| false)), "nobody has said that it has the model");
    }
    let looks = AtomicU32::new(0);
    let waits = || {
        if looks.fetch_add(1, Ordering::Relaxed) == 3 {
            STALLED.send_replace(false);
        }
        true
    };
    assert!(nodes[0].0.finish_sending(Some(&waits)), "a neighbour has the model, and it gives up");
    assert!(looks.into_inner() > 3);
    assert!(nodes[1].0.finish_sending(None));
    nodes.iter().for_each(|(node, _)| node.close("done"));
}
