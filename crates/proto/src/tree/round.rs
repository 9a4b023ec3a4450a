//! The machine of one round, and what is the same for every kind of top.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};
use thalweg_wire::tree::{Admit, Answer, MeanAnswer, Request, RoundAnswer, Statement};
use thalweg_wire::Range;

use super::admitting::Admitting;
use super::draw::{Draw, Drawing};
use super::gathering::Gathering;
use super::sharded::Sharded;
use crate::Time;

/// Splits an update into at most so many parts of similar size.
pub type Split = Box<dyn Fn(usize) -> Vec<Range> + Send>;

/// Where the sums of the nodes meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TopKind {
    /// At the root, which has no clients.
    Dedicated,
    /// At the first node that has finished its round.
    FirstFinished,
    /// At each node for its part of the bytes.
    Sharded,
    /// At a node that has nodes below it. The sums stay sums: the node's parent gets them, and no mean is computed.
    Middle,
}

/// A round to be run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TreePlan {
    /// The round's number.
    pub number: u32,
    /// The round's configuration, for the clients' application.
    pub config: String,
    /// Where the sums meet.
    pub top: TopKind,
    /// The least number of updates that a mean may be of. A middle node has none.
    pub enough: u32,
    /// How clients are drawn, and how many updates count; `None`: all take part, and all updates count. Only with a
    /// dedicated top.
    pub draw: Option<Draw>,
    /// The clients that the parent of a middle node has drawn; `None`: all take part.
    #[serde(default)]
    pub only: Option<BTreeSet<String>>,
    /// Whether the root placed the clients at the nodes. Then a node may count no other clients.
    pub placed: bool,
    /// Whether a client counts only once its own proof was seen.
    pub proofs: bool,
}

/// A node, as the round sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeNode {
    /// The node's name.
    pub name: String,
    /// The clients that belong to it.
    pub clients: Vec<String>,
    /// The clients that are connected to it.
    #[serde(default)]
    pub connected: Vec<String>,
    /// The address to which other nodes connect; empty if it has none.
    #[serde(default)]
    pub peers: String,
    /// How the node was lost, such as "is gone: killed by signal 9"; `None` while it is not lost.
    #[serde(default)]
    pub loss: Option<String>,
    /// Whether it has the round's model already.
    #[serde(default)]
    pub has_model: bool,
    /// Whether all its clients have moved to other nodes, so that it takes no part.
    #[serde(default)]
    pub is_empty: bool,
}

/// A request to the root's driver.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum TreeStep {
    /// Send a request to these nodes.
    Ask {
        /// The request's number, with which the answers come back.
        ask: u32,
        /// The request.
        request: Request,
        /// The nodes; at least one.
        nodes: Vec<String>,
        /// Whether the model comes with the request.
        model: bool,
    },
    /// See whether these clients have proved to the node that they were there, then call
    /// [`TreeRound::proven`].
    Prove {
        /// The part of the round.
        part: usize,
        /// The node.
        node: String,
        /// The clients.
        clients: Vec<String>,
    },
    /// Merge the sums that came with the node's answer to this request, then call [`TreeRound::merged`].
    Merge {
        /// The part of the round.
        part: usize,
        /// The request.
        ask: u32,
        /// The node.
        node: String,
        /// What is stated of the sums.
        claim: Statement,
    },
    /// Compute the mean of the merged sums and write it to the model, then call [`TreeRound::finished`].
    Finish,
    /// Export the merged sums for the parent, then call [`TreeRound::exported`].
    Export,
    /// Write the tensors that came with the answers to this request to the model: for each node's the first
    /// byte, and the one after the last.
    Write {
        /// The request.
        ask: u32,
        /// Where in the model each node's tensor goes.
        parts: Vec<(String, u64, u64)>,
    },
    /// The round is over.
    Over {
        /// Each node's part. A node may have several, one for each time that its clients were drawn.
        parts: Vec<PartOutcome>,
        /// The mean.
        mean: Mean,
    },
    /// The round has failed, and the model is as it was.
    Failed {
        /// Why.
        reason: String,
    },
}

/// What became of a node's part in a round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PartOutcome {
    /// The node's name.
    pub node: String,
    /// The clients that were to take part.
    pub clients: Vec<String>,
    /// The request to which the node's report is the answer; `None` if it was not asked.
    pub ask: Option<u32>,
    /// Whether its updates count.
    pub state: PartState,
    /// Why it has no updates that count; empty if it has.
    pub reason: String,
}

/// Whether the updates of a node's part count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PartState {
    /// The mean contains them.
    Counts,
    /// The node had none. What it says of its clients holds.
    Empty,
    /// None of them counts, and all the clients of this part are lost to the round.
    Dropped,
}

/// What is known of a round's mean.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Mean {
    /// Bytes of the model that no update covers; `None` if they were not counted.
    pub uncovered_bytes: Option<u64>,
    /// When it was made: seconds since 1970.
    pub done: f64,
    /// The node that was the top, if it was one.
    pub top: Option<String>,
    /// The bytes of which each node was the top, if the top was sharded.
    pub shares: Option<Vec<(String, u64)>>,
    /// The nodes that have the whole mean already.
    pub has: Vec<String>,
}

/// How far a part of the round is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Stage {
    /// The node runs its round.
    Asked,
    /// Its clients' proofs are being looked up.
    Proving(RoundAnswer),
    /// The root is merging its sums.
    Merging,
    /// It has sums that count.
    Counts,
    /// It has no sums, for this reason.
    Empty(String),
    /// Its sums do not count, for this reason.
    Dropped(String),
}

#[derive(Debug, Clone)]
pub(super) struct Part {
    pub node: String,
    pub clients: Vec<String>,
    pub ask: Option<u32>,
    pub stage: Stage,
    pub claim: Statement,
    /// The clients whose updates count.
    pub counting: Vec<String>,
    /// The clients that may still deliver in a further batch of the round.
    pub going_on: Vec<String>,
}

impl Part {
    fn outcome(&self) -> PartOutcome {
        let (state, reason) = match &self.stage {
            Stage::Counts => (PartState::Counts, String::new()),
            Stage::Empty(reason) => (PartState::Empty, reason.clone()),
            Stage::Dropped(reason) => (PartState::Dropped, reason.clone()),
            // A round ends only when all its parts are settled.
            Stage::Asked | Stage::Proving(_) | Stage::Merging => {
                (PartState::Dropped, "it is not over".into())
            }
        };
        let (node, clients, ask) = (self.node.clone(), self.clients.clone(), self.ask);
        PartOutcome { node, clients, ask, state, reason }
    }

    pub fn is_settled(&self) -> bool {
        matches!(self.stage, Stage::Counts | Stage::Empty(_) | Stage::Dropped(_))
    }

    pub fn counts(&self) -> bool {
        self.stage == Stage::Counts
    }
}

/// A request that is not over.
struct Asked {
    request: Request,
    waiting: BTreeSet<String>,
}

/// What the root does with the sums.
pub(super) enum Top {
    /// It merges them itself.
    Dedicated,
    FirstFinished(Gathering),
    Sharded(Sharded),
}

/// The state machine of one round at the root of a tree.
pub struct TreeRound {
    pub(super) plan: TreePlan,
    pub(super) split: Split,
    pub(super) nodes: Vec<TreeNode>,
    /// Clients whose processes have ended.
    pub(super) ended: BTreeSet<String>,
    pub(super) parts: Vec<Part>,
    pub(super) top: Top,
    pub(super) drawing: Option<Drawing>,
    /// Which updates count, if more clients take part than updates count.
    pub(super) admitting: Option<Admitting>,
    /// For each client whose update counts, the node that counts it.
    pub(super) counted: BTreeMap<String, String>,
    asks: BTreeMap<u32, Asked>,
    last_ask: u32,
    steps: VecDeque<TreeStep>,
    is_finishing: bool,
    is_over: bool,
}

impl TreeRound {
    /// Begins a round with these nodes, of which some may be lost. `split` splits the model for a sharded top.
    pub fn new(now: Time, plan: TreePlan, nodes: Vec<TreeNode>, split: Split) -> Self {
        let top = match plan.top {
            TopKind::Dedicated | TopKind::Middle => Top::Dedicated,
            TopKind::FirstFinished => Top::FirstFinished(Gathering::default()),
            TopKind::Sharded => Top::Sharded(Sharded::default()),
        };
        let drawing = plan.draw.map(|draw| Drawing::new(now, draw));
        let admitting = plan.draw.filter(Draw::has_spare_clients).map(|_| Admitting::default());
        let mut round = Self {
            plan,
            split,
            nodes,
            ended: BTreeSet::new(),
            parts: Vec::new(),
            top,
            drawing,
            admitting,
            counted: BTreeMap::new(),
            asks: BTreeMap::new(),
            last_ask: 0,
            steps: VecDeque::new(),
            is_finishing: false,
            is_over: false,
        };
        match round.plan.only.clone() {
            _ if round.drawing.is_some() => round.look(),
            Some(only) => round.ask_only(&only),
            None => round.ask_all(),
        }
        round.go_on(now);
        round
    }

    /// Has all nodes run the round with all their clients.
    fn ask_all(&mut self) {
        let here = self.here();
        let kept = self.nodes.iter().filter(|node| node.loss.is_none()).all(|node| node.has_model);
        let ask = self.ask_for_rounds(here, kept, None);
        for node in self.nodes.iter().filter(|node| !node.is_empty) {
            let stage = match &node.loss {
                Some(loss) => Stage::Dropped(lost(&node.name, loss)),
                None => Stage::Asked,
            };
            let ask = (stage == Stage::Asked).then_some(ask);
            self.parts.push(Part::new(&node.name, node.clients.clone(), ask, stage));
        }
    }

    /// Has the nodes of these clients run the round with them.
    fn ask_only(&mut self, only: &BTreeSet<String>) {
        let drawn = |node: &TreeNode| -> Vec<String> {
            node.clients.iter().filter(|client| only.contains(*client)).cloned().collect()
        };
        let drawn: BTreeMap<String, Vec<String>> =
            self.nodes.iter().map(|node| (node.name.clone(), drawn(node))).collect();
        let drawn: BTreeMap<_, _> = drawn.into_iter().filter(|(_, clients)| !clients.is_empty()).collect();
        let mut here = drawn.clone();
        here.retain(|node, _| !self.is_lost(node));
        let ask = self.ask_for_rounds(here.keys().cloned().collect(), false, Some(here));
        for (node, clients) in drawn {
            let loss = self.is_lost(&node).then(|| Stage::Dropped(self.why_lost(&node, String::new)));
            let asked = loss.is_none().then_some(ask);
            self.parts.push(Part::new(&node, clients, asked, loss.unwrap_or(Stage::Asked)));
        }
    }

    pub(super) fn ask_for_rounds(
        &mut self,
        nodes: Vec<String>,
        kept: bool,
        only: Option<BTreeMap<String, Vec<String>>>,
    ) -> u32 {
        let (round, config) = (self.plan.number, self.plan.config.clone());
        let batch = self.admitting.as_mut().map(Admitting::next_batch);
        self.ask_with(Request::Round { round, config, kept, only, batch }, nodes, !kept)
    }

    pub(super) fn ask(&mut self, request: Request, nodes: Vec<String>) -> u32 {
        self.ask_with(request, nodes, false)
    }

    fn ask_with(&mut self, request: Request, nodes: Vec<String>, model: bool) -> u32 {
        self.last_ask += 1;
        let ask = self.last_ask;
        if !nodes.is_empty() {
            let waiting = nodes.iter().cloned().collect();
            self.asks.insert(ask, Asked { request: request.clone(), waiting });
            self.steps.push_back(TreeStep::Ask { ask, request, nodes, model });
        }
        ask
    }

    /// Whether all answers to a request are here.
    pub(super) fn is_answered(&self, ask: u32) -> bool {
        !self.asks.contains_key(&ask)
    }

    /// The request with this number, while answers to it are awaited.
    pub fn request(&self, ask: u32) -> Option<&Request> {
        self.asks.get(&ask).map(|asked| &asked.request)
    }

    /// The clients whose updates count so far, if the round ended now. A part may still be dropped.
    pub fn counting(&self) -> impl Iterator<Item = &str> {
        self.counted.keys().map(String::as_str)
    }

    /// Tells the round what became of the nodes, and which clients' processes have ended.
    pub fn update(&mut self, now: Time, nodes: Vec<TreeNode>, ended: BTreeSet<String>) {
        (self.nodes, self.ended) = (nodes, ended);
        self.go_on(now);
    }

    /// A node has answered. `tensor_bytes`: the size of what came with the answer, if anything did. An answer
    /// that nobody waits for is left alone.
    pub fn answered(&mut self, now: Time, ask: u32, node: &str, answer: Answer, tensor_bytes: Option<u64>) {
        let admit = self.admit_request(ask);
        if !self.take_turn(ask, node) {
            return;
        }
        match answer {
            Answer::Arrived(arrivals) => {
                if let Some(admit) = admit {
                    self.arrived(&admit, node, arrivals);
                }
            }
            Answer::State(state) => self.connected(node, state.clients),
            Answer::Round(answer) => {
                self.connected(node, answer.clients.clone());
                self.finished_round(ask, node, answer);
            }
            answer => self.top_answered(node, Ok((answer, tensor_bytes))),
        }
        self.go_on(now);
    }

    /// A node gives no answer, for this reason. `loss`: how the node was lost, if it was.
    pub fn unanswered(&mut self, now: Time, ask: u32, node: &str, reason: &str, loss: Option<String>) {
        if let (Some(loss), Some(known)) = (loss, self.nodes.iter_mut().find(|known| known.name == node)) {
            known.loss.get_or_insert(loss);
        }
        let is_round = matches!(self.request(ask), Some(Request::Round { .. }));
        let is_wait = matches!(self.request(ask), Some(Request::Wait { .. }));
        let admit = self.admit_request(ask);
        if !self.take_turn(ask, node) {
            return;
        }
        if is_round {
            let why = self.why_lost(node, || format!("its node {node} gave no sums: {reason}"));
            if let Some(part) = self.part_of(ask, node) {
                self.parts[part].stage = Stage::Dropped(why);
            }
        } else if let Some(admit) = admit {
            self.not_arrived(&admit, node, reason);
        } else if !is_wait {
            self.top_answered(node, Err(reason));
        }
        self.go_on(now);
    }

    fn admit_request(&self, ask: u32) -> Option<Admit> {
        match self.request(ask) {
            Some(Request::Admit(admit)) => Some(admit.clone()),
            _ => None,
        }
    }

    /// Notes that a node does not owe an answer any more; false if it did not owe one.
    pub(super) fn take_turn(&mut self, ask: u32, node: &str) -> bool {
        let Some(asked) = self.asks.get_mut(&ask) else { return false };
        let was_waiting = asked.waiting.remove(node);
        if asked.waiting.is_empty() {
            self.asks.remove(&ask);
        }
        was_waiting && !self.is_over
    }

    fn connected(&mut self, node: &str, clients: Vec<String>) {
        if let Some(node) = self.nodes.iter_mut().find(|known| known.name == node) {
            node.connected = clients;
        }
    }

    fn part_of(&self, ask: u32, node: &str) -> Option<usize> {
        self.parts.iter().position(|part| part.ask == Some(ask) && part.node == node)
    }

    fn finished_round(&mut self, ask: u32, node: &str, answer: RoundAnswer) {
        // The root may have dropped the part meanwhile.
        let part = self.part_of(ask, node).filter(|part| self.parts[*part].stage == Stage::Asked);
        let Some(part) = part else { return };
        if let Err(why) = self.check_report(part, &answer) {
            return self.drop_part(part, format!("its node {node} {why}"));
        }
        let counting = self.parts[part].counting.clone();
        self.parts[part].stage = Stage::Proving(answer);
        if self.plan.proofs && !counting.is_empty() {
            self.steps.push_back(TreeStep::Prove { part, node: node.into(), clients: counting });
        } else {
            self.accept(part, None);
        }
    }

    /// Reports the result of [`TreeStep::Prove`] for a part: each client that the node counted has proved that it took
    /// part, except `unproven`. The machine then accepts or drops the part.
    pub fn proven(&mut self, now: Time, part: usize, unproven: Option<&str>) {
        if self.parts.get(part).is_some_and(|part| matches!(part.stage, Stage::Proving(_))) {
            self.accept(part, unproven);
            self.go_on(now);
        }
    }

    fn accept(&mut self, part: usize, unproven: Option<&str>) {
        let Stage::Proving(answer) = self.parts[part].stage.clone() else { return };
        let node = self.parts[part].node.clone();
        if let Err(why) = self.check_clients(part, unproven) {
            return self.drop_part(part, format!("its node {node} {why}"));
        }
        if !answer.held {
            let why = answer.outcome.failure.unwrap_or_else(|| "it has no sums".into());
            if self.parts[part].counting.is_empty() {
                self.parts[part].stage = Stage::Empty(why);
                return;
            }
            return self.drop_part(part, format!("its node {node} counts updates, and {why}"));
        }
        for client in self.parts[part].counting.clone() {
            self.counted.insert(client, node.clone());
        }
        if matches!(self.plan.top, TopKind::Dedicated | TopKind::Middle) {
            let (ask, claim) = (self.parts[part].ask.unwrap_or_default(), self.parts[part].claim);
            self.parts[part].stage = Stage::Merging;
            self.steps.push_back(TreeStep::Merge { part, ask, node, claim });
        } else {
            self.parts[part].stage = Stage::Counts;
        }
    }

    /// The sums of a part were merged, or refused for this reason.
    pub fn merged(&mut self, now: Time, part: usize, refused: Option<String>) {
        if self.parts.get(part).is_some_and(|part| part.stage == Stage::Merging) {
            match refused {
                None => self.parts[part].stage = Stage::Counts,
                Some(why) => {
                    let node = &self.parts[part].node;
                    let why = format!("the sums of its node {node} were refused: {why}");
                    self.drop_part(part, why);
                }
            }
            self.go_on(now);
        }
    }

    /// The mean of the merged sums is in the model.
    pub fn finished(&mut self, mean: MeanAnswer) {
        if self.is_finishing && !self.is_over {
            let (uncovered_bytes, done) = (mean.fold.uncovered_bytes, mean.done);
            self.over(Mean { uncovered_bytes, done, ..Mean::default() });
        }
    }

    /// The parent has the merged sums, or can have them.
    pub fn exported(&mut self) {
        if self.is_finishing && !self.is_over {
            self.over(Mean::default());
        }
    }

    /// Drops a part, so that none of its updates counts.
    pub(super) fn drop_part(&mut self, part: usize, why: String) {
        let part = &mut self.parts[part];
        part.stage = Stage::Dropped(why);
        for client in &part.counting {
            if self.counted.get(client) == Some(&part.node) {
                self.counted.remove(client);
            }
        }
    }

    /// Why the clients of a node take no part: how it was lost, or else `otherwise`.
    pub(super) fn why_lost(&self, node: &str, otherwise: impl FnOnce() -> String) -> String {
        let known = self.nodes.iter().find(|known| known.name == node);
        match known.and_then(|known| known.loss.as_ref()) {
            Some(loss) => lost(node, loss),
            None => otherwise(),
        }
    }

    pub(super) fn is_lost(&self, node: &str) -> bool {
        self.nodes.iter().any(|known| known.name == node && known.loss.is_some())
    }

    /// The nodes that are not lost.
    pub(super) fn here(&self) -> Vec<String> {
        let here = self.nodes.iter().filter(|node| node.loss.is_none());
        here.map(|node| node.name.clone()).collect()
    }

    pub(super) fn address_of(&self, node: &str) -> String {
        self.nodes.iter().find(|known| known.name == node).map(|node| node.peers.clone()).unwrap_or_default()
    }

    /// An error if too few updates count.
    pub(super) fn check_enough(&self) -> Result<(), String> {
        let counted: usize =
            self.parts.iter().filter(|part| part.counts()).map(|part| part.counting.len()).sum();
        if counted >= self.plan.enough as usize {
            return Ok(());
        }
        let reasons = self.parts.iter().filter_map(|part| match &part.stage {
            Stage::Dropped(why) | Stage::Empty(why) => Some(format!("{}: {why}", part.node)),
            _ => None,
        });
        let reasons = reasons.collect::<Vec<_>>().join("; ");
        let reasons = if reasons.is_empty() { reasons } else { format!(" ({reasons})") };
        let (number, enough) = (self.plan.number, self.plan.enough);
        Err(format!("round {number} has {counted} updates, and needs {enough}{reasons}"))
    }

    /// Does what can be done now.
    fn go_on(&mut self, now: Time) {
        if self.is_over {
            return;
        }
        self.admit(None);
        if self.drawing.is_some() && !self.drawn(now) {
            return;
        }
        let are_settled = self.parts.iter().all(Part::is_settled);
        match self.plan.top {
            TopKind::Dedicated if are_settled && !self.is_finishing => match self.check_enough() {
                Err(reason) => self.fail(reason),
                Ok(()) => {
                    self.is_finishing = true;
                    self.steps.push_back(TreeStep::Finish);
                }
            },
            TopKind::Middle if are_settled && !self.is_finishing => {
                self.is_finishing = true;
                // Without sums the round is over too: the parent learns what became of each client.
                if self.parts.iter().any(Part::counts) {
                    self.steps.push_back(TreeStep::Export);
                } else {
                    self.over(Mean::default());
                }
            }
            TopKind::Dedicated | TopKind::Middle => {}
            TopKind::FirstFinished => self.gather(are_settled),
            TopKind::Sharded if are_settled => self.share(),
            TopKind::Sharded => {}
        }
    }

    fn top_answered(&mut self, node: &str, answer: Result<(Answer, Option<u64>), &str>) {
        match self.plan.top {
            TopKind::Dedicated | TopKind::Middle => {}
            TopKind::FirstFinished => self.gathering_answered(answer),
            TopKind::Sharded => self.sharded_answered(node, answer),
        }
    }

    pub(super) fn step(&mut self, step: TreeStep) {
        self.steps.push_back(step);
    }

    pub(super) fn over(&mut self, mean: Mean) {
        let parts = self.parts.iter().map(Part::outcome).collect();
        self.steps.push_back(TreeStep::Over { parts, mean });
        self.is_over = true;
    }

    pub(super) fn fail(&mut self, reason: String) {
        self.steps.push_back(TreeStep::Failed { reason });
        self.is_over = true;
    }

    /// What the driver has to do next.
    pub fn poll_step(&mut self) -> Option<TreeStep> {
        self.steps.pop_front()
    }

    /// When to call [`TreeRound::timeout`]; `None`: not for the sake of time.
    pub fn poll_timeout(&self) -> Option<Time> {
        let drawing = self.drawing.as_ref().filter(|_| !self.is_over)?;
        drawing.timer.filter(|_| drawing.ask.is_none_or(|ask| self.is_answered(ask)))
    }

    /// The time of [`TreeRound::poll_timeout`] has come.
    pub fn timeout(&mut self, now: Time) {
        self.go_on(now);
    }
}

impl Part {
    pub fn new(node: &str, clients: Vec<String>, ask: Option<u32>, stage: Stage) -> Self {
        let claim = Statement::default();
        Self { node: node.into(), clients, ask, stage, claim, counting: Vec::new(), going_on: Vec::new() }
    }
}

fn lost(node: &str, loss: &str) -> String {
    format!("its node {node} {loss}")
}
