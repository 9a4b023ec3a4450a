//! A node of an aggregation tree among the other nodes: drives the machine of `proto::AggregatorNode`.
//!
//! ```text
//!   requests of the root ---------+                             +--> TaskServer: asks other nodes
//!   a thread for each link -------+--> driver: the machine -----+
//!   a thread for each ask --------+    and its steps            +--> worker: sums, means, the model
//!   the worker's results ---------+
//! ```
//!
//! The driver never works on bytes, so the node always answers. The worker's steps take place in their order.
//! Only a node's own sums are given on other threads, since cutting a part out of them takes long and changes
//! nothing.

mod driver;
mod folding;
mod worker;

use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde::Deserialize;
use thalweg_arena::Arena;
use thalweg_proto::{AggregatorNode, TopKind};
use thalweg_wire::tree::{MeanAnswer, PeerRequest, Request};
use thalweg_wire::{Layout, Range};

use self::driver::Driver;
use self::folding::Folding;
use self::worker::Worker;
use crate::options::{ClientOptions, ServerOptions};
use crate::star::SumsOfRound;
use crate::tasks::{TaskClient, TaskEvent, TaskReply, TaskServer, TaskServerOptions};
use crate::{lock, Error, Kind};

/// The sums of the node's last round, or only those of these bytes of updates; `None` if it has none.
pub type SumsSource = Arc<dyn Fn(Option<Range>) -> Result<Option<SumsOfRound>, Error> + Send + Sync>;
/// Tensors and their layout.
pub type Tensors = (Arena, Arc<Layout>);
/// The head of an answer, and perhaps tensors; or why there is no answer.
type Outcome = Result<(Vec<u8>, Option<Tensors>), Error>;

/// Options of a node among the other nodes.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExchangeOptions {
    /// The node's name.
    pub name: String,
    /// The URL at which it listens for other nodes.
    pub listen: String,
    /// Where the sums of the nodes meet.
    pub kind: TopKind,
    /// Options of the top. They must be those of the nodes' servers.
    pub top: ServerOptions,
    /// Options of the server for other nodes.
    pub server: TaskServerOptions,
    /// Options with which the node joins other nodes.
    pub member: ClientOptions,
}

/// What happens to a node.
enum Event {
    /// The root begins a round.
    Begin { round: u32, kept: bool, done: Sender<Result<(), Error>> },
    /// The node's own round is over.
    Ended { holds_sums: bool },
    /// The root asks for something.
    Request { request: Request, done: Sender<Outcome> },
    /// Another node asks for something.
    Peer { link: Arc<TaskClient>, task: u32, request: PeerRequest, tensors: Option<Tensors> },
    /// The link to another node is over.
    Left { address: String },
    /// Another node has replied.
    Reply { ask: u32, reply: TaskReply },
    /// There are no more replies.
    AllReplied { ask: u32 },
    /// The worker has added sums, or refused them.
    Merged { work: u32, outcome: Result<(), String> },
    /// The worker has computed a mean.
    Computed { work: u32, outcome: Result<(MeanAnswer, Tensors), String> },
    /// The job is over.
    Close { why: String },
}

/// A node among the other nodes of its tree, for the rounds of a job. Several threads may call its methods.
pub struct TreeExchange {
    server: Arc<TaskServer>,
    events: Sender<Event>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl TreeExchange {
    /// Listens for other nodes. `model` has the layout of updates, and is the model of the node's own server,
    /// whose `sums` are those of the node's rounds.
    ///
    /// # Errors
    /// The transport's error for the address, or `options` for an impossible option.
    pub fn start(
        model: Arena,
        layout: Layout,
        sums: SumsSource,
        options: ExchangeOptions,
    ) -> Result<Self, Error> {
        let ExchangeOptions { name, listen, kind, top, server, member } = options;
        let folding = Folding::new(model, layout, top, sums.clone(), kind)?;
        let server = Arc::new(TaskServer::start(&listen, server)?);
        let none = || Error::new(Kind::Options, "be a node", "nodes do not meet below a dedicated top");
        let machine = AggregatorNode::new(&name, &server.address(), kind).ok_or_else(none)?;
        let (events, happened) = mpsc::channel();
        let worker = Worker::start(folding, events.clone())?;
        let driver = Driver::new(machine, name, member, server.clone(), worker, sums, events.clone());
        let thread = thread::Builder::new().name("tree-exchange".into());
        let thread = thread.spawn(move || driver.run(&happened));
        let thread = thread.map_err(|e| Error::new(Kind::System, "start a thread", e.to_string()))?;
        Ok(Self { server, events, thread: Mutex::new(Some(thread)) })
    }

    /// The address to which other nodes connect.
    pub fn address(&self) -> String {
        self.server.address()
    }

    /// The root begins a round. With `kept`, writes the last round's mean, as the nodes have made it, to the
    /// model. Without it, the caller writes the model that the root has sent.
    ///
    /// # Errors
    /// `round` if `kept` and this node does not have the whole mean; `closed` if the job is over.
    pub fn begin(&self, round: u32, kept: bool) -> Result<(), Error> {
        let (done, outcome) = mpsc::channel();
        self.happen(Event::Begin { round, kept, done })?;
        outcome.recv().map_err(|_| over())?
    }

    /// The node's own round is over. `holds_sums`: it has sums of updates.
    ///
    /// # Errors
    /// `closed` if the job is over.
    pub fn ended(&self, holds_sums: bool) -> Result<(), Error> {
        self.happen(Event::Ended { holds_sums })
    }

    /// Does what the root asks for, and returns the answer: its head, as JSON, and perhaps tensors.
    ///
    /// # Errors
    /// `round` if the node cannot; `closed` if the job is over.
    pub fn request(&self, request: Request) -> Outcome {
        let (done, outcome) = mpsc::channel();
        self.happen(Event::Request { request, done })?;
        outcome.recv().map_err(|_| over())?
    }

    /// Segments that were retransmitted on the links of nodes that joined this node, as [`TaskServer::resent`].
    pub fn resent(&self, limit: Duration) -> String {
        self.server.resent(limit)
    }

    /// Nodes that had joined this node and are not connected any more, as [`TaskServer::departed`].
    pub fn departed(&self) -> Vec<(String, String, bool)> {
        self.server.departed()
    }

    /// Leaves all other nodes. Idempotent.
    pub fn close(&self, why: &str) {
        _ = self.events.send(Event::Close { why: why.into() }); // an error means that it was closed before
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            _ = thread.join(); // a panic was printed
        }
        self.server.close(why);
    }

    fn happen(&self, event: Event) -> Result<(), Error> {
        self.events.send(event).map_err(|_| over())
    }
}

impl Drop for TreeExchange {
    fn drop(&mut self) {
        self.close("the node has stopped");
    }
}

fn over() -> Error {
    Error::new(Kind::Closed, "be a node", "the node's part in the job is over")
}

/// Hands on the requests of the node at an address until that node ends.
fn serve(link: &Arc<TaskClient>, address: String, events: &Sender<Event>) {
    while let Some(event) = link.next_event(None) {
        match event {
            TaskEvent::Task { task, head, layout, arena, .. } => {
                let tensors = arena.map(|arena| (arena, layout));
                match serde_json::from_slice(&head) {
                    Ok(request) => {
                        _ = events.send(Event::Peer { link: link.clone(), task, request, tensors });
                    }
                    Err(error) => _ = link.refuse(task, &format!("a request that cannot be read: {error}")),
                }
            }
            TaskEvent::Finished(_) => break,
            TaskEvent::Joined | TaskEvent::Over { .. } => {}
        }
    }
    _ = events.send(Event::Left { address }); // an error means that this node has ended, too
}

/// Hands on the replies to an ask until there are no more.
fn await_replies(server: &TaskServer, task: u32, ask: u32, events: &Sender<Event>) {
    // An error means that the task was released.
    while let Ok(Some(reply)) = server.next_reply(task, None, None) {
        _ = events.send(Event::Reply { ask, reply });
    }
    server.release(task);
    _ = events.send(Event::AllReplied { ask });
}
