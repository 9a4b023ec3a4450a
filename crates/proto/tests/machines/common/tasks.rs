//! Servers and clients of tasks in virtual time, with real bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use thalweg_proto::{
    Action, Answer, ChunkReceiver, ClientAction, ClientConfig, ClientMachine, Fit, LinkId, Reply, ReplyState,
    ServerMachine, TaskAction, TaskClient, TaskConfig, TaskPlace, TaskPlan, TaskServer, TaskStep,
    TaskVerdict, Time, Traffic,
};
use thalweg_wire::control::Control;
use thalweg_wire::{ChunkHeader, Dtype, FrameHeader, Layout, Ranges};

use super::network::{End, Event, Frame, Network, Path, Rng};
use super::party::chunks;
use super::{Doors, JOB, MS, SECOND};

pub const CHUNK: u32 = 512;

/// A layout of one float tensor with this name.
pub fn tensors(name: &str, elements: u64) -> Arc<Layout> {
    Arc::new(Layout::pack([(name, Dtype::F32, vec![elements])]).expect("a valid layout"))
}

fn noise(seed: u64, bytes: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..bytes).map(|_| rng.next() as u8).collect()
}

/// How a member answers a task.
#[derive(Debug, Clone)]
pub enum Does {
    /// With a result that has these tensors.
    Returns(Arc<Layout>),
    /// With all tensors of the task.
    Echoes,
    /// With a refusal and its reason.
    Refuses,
    /// Not at all: it works for ever.
    Nothing,
    /// The test answers for the member, by [`TaskWorld::respond`].
    Acts,
}

pub struct Member {
    pub name: String,
    pub machine: TaskClient,
    pub instance: u64,
    pub alive: bool,
    pub link: Option<LinkId>,
    pub path: Path,
    pub does: Does,
    pub work: Time,
    pub weight: f64,
    /// Bytes of tasks, by number.
    arenas: BTreeMap<u32, Vec<u8>>,
    /// Bytes of results and their layouts, by number.
    results: BTreeMap<u32, (Vec<u8>, Arc<Layout>)>,
    layouts: BTreeMap<u32, Arc<Layout>>,
    /// Heads of tasks, by number.
    pub heads: BTreeMap<u32, Vec<u8>>,
    pub given: Vec<u32>,
    pub verdicts: Vec<(u32, TaskVerdict)>,
    pub chunks: u32,
}

/// The server, the members and the network.
pub struct TaskWorld {
    pub now: Time,
    pub net: Network,
    pub server: TaskServer,
    pub members: Vec<Member>,
    /// The bytes and layout that are sent, by task.
    sent: BTreeMap<u32, (Vec<u8>, Arc<Layout>)>,
    coming: BTreeMap<(u32, u32), Vec<u8>>,
    pub replies: Vec<(Reply, Option<Vec<u8>>)>,
    /// How often a result was folded, by task and sender.
    pub folded: BTreeMap<(u32, u32), u32>,
    /// The holes of a folded result, by task and sender.
    pub holes: BTreeMap<(u32, u32), Ranges>,
    pub closed: Vec<u32>,
    /// The members whose results the application was asked to judge, by task.
    pub asked: Vec<(u32, String)>,
    /// The greatest weight that the application accepts.
    pub heaviest: Option<f64>,
    /// Tasks that await [`TaskWorld::respond`]: the member, its process, and the task.
    pub requested: Vec<(usize, u64, u32)>,
    names: BTreeMap<LinkId, u32>,
    /// How many events have happened.
    pub steps: u64,
}

pub fn config() -> TaskConfig {
    TaskConfig {
        purpose: thalweg_wire::control::Purpose::Tasks,
        job: JOB,
        chunk: CHUNK,
        liveness: 10 * SECOND,
        grace: 5 * SECOND,
        max_members: 100,
        max_open: 1000,
        ahead: 4,
        staging: 8192,
        max_result: 1 << 20,
        max_weight: 1e9,
    }
}

impl TaskWorld {
    pub fn new(seed: u64, config: TaskConfig) -> Self {
        Self {
            now: Time::ZERO,
            net: Network::new(seed),
            server: TaskServer::new(config, Box::new(Doors { token: None })),
            members: Vec::new(),
            sent: BTreeMap::new(),
            coming: BTreeMap::new(),
            replies: Vec::new(),
            folded: BTreeMap::new(),
            holes: BTreeMap::new(),
            closed: Vec::new(),
            asked: Vec::new(),
            heaviest: None,
            requested: Vec::new(),
            names: BTreeMap::new(),
            steps: 0,
        }
    }

    /// A world with these members, all of which have joined.
    pub fn joined(seed: u64, config: TaskConfig, members: &[(&str, Does)]) -> Self {
        let mut world = Self::new(seed, config);
        for (name, does) in members {
            world.add(name, does.clone(), Path::PERFECT);
        }
        world.run("all have joined", 60 * SECOND, |w| w.server.connected_count() == w.members.len());
        world
    }

    pub fn add(&mut self, name: &str, does: Does, path: Path) -> usize {
        self.add_bounded(name, does, path, 1 << 20)
    }

    /// Adds a member that takes no task of more than `most` bytes.
    pub fn add_bounded(&mut self, name: &str, does: Does, path: Path, most: u64) -> usize {
        let instance = self.net.rng.next();
        self.members.push(Member {
            name: name.into(),
            machine: client(name, instance, most),
            instance,
            alive: true,
            link: None,
            path,
            does,
            work: 10 * MS,
            weight: 1.0,
            arenas: BTreeMap::new(),
            results: BTreeMap::new(),
            layouts: BTreeMap::new(),
            heads: BTreeMap::new(),
            given: Vec::new(),
            verdicts: Vec::new(),
            chunks: 0,
        });
        self.client_actions(self.members.len() - 1);
        self.members.len() - 1
    }

    /// Opens a task with `elements` floats for these members.
    pub fn open(&mut self, elements: u64, bytes_id: u64, to: &[&str], deadline: Option<Time>) -> u32 {
        self.open_plan(plan(elements, bytes_id, to, deadline)).expect("it can be opened")
    }

    pub fn open_plan(&mut self, plan: TaskPlan) -> Result<u32, String> {
        let (layout, id) = (plan.layout.clone(), plan.bytes_id);
        let number = self.server.open(self.now, plan)?;
        self.sent.insert(number, (noise(id, layout.bytes()), layout));
        self.server_actions();
        Ok(number)
    }

    pub fn replies_to(&self, task: u32) -> BTreeMap<&str, &Reply> {
        let all = self.replies.iter().map(|(reply, _)| reply).filter(|reply| reply.task == task);
        all.map(|reply| (reply.member.as_str(), reply)).collect()
    }

    /// Runs until `done`, for at most `limit` of virtual time.
    pub fn run(&mut self, what: &str, limit: Time, mut done: impl FnMut(&Self) -> bool) {
        let end = self.now + limit;
        while !done(self) {
            let next = self.next_time().filter(|at| *at <= end);
            assert!(next.is_some(), "waiting in vain until {end:?} for: {what}; {:?}", self.replies);
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

    pub fn next_time(&self) -> Option<Time> {
        let clients = self.members.iter().filter(|m| m.alive).filter_map(|m| m.machine.poll_timeout());
        let timers = clients.chain(self.server.poll_timeout()).min();
        timers.into_iter().chain(self.net.next_time()).min().map(|at| at.max(self.now))
    }

    pub fn step(&mut self) {
        let Some(next) = self.next_time() else { return };
        self.now = next;
        self.steps += 1;
        match self.net.pop(next) {
            Some(event) => self.happen(event),
            None => self.timers(),
        }
    }

    fn timers(&mut self) {
        let now = self.now;
        if self.server.poll_timeout().is_some_and(|at| at <= now) {
            self.server.timeout(now);
            let next = self.server.poll_timeout();
            assert!(next.is_none_or(|at| at > now), "the server's timer stands still: {next:?} at {now:?}");
            self.server_actions();
        }
        for index in 0..self.members.len() {
            let member = &mut self.members[index];
            if member.alive && member.machine.poll_timeout().is_some_and(|at| at <= now) {
                member.machine.timeout(now);
                let next = member.machine.poll_timeout();
                assert!(next.is_none_or(|at| at > now), "a client's timer stands still: {next:?} at {now:?}");
                self.client_actions(index);
            }
        }
    }

    fn happen(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Arrive { link, to, frame, counted } => self.arrive(link, to, frame, counted),
            Event::Progress { link, to, bytes } if self.net.delivers(link, to) => match to {
                End::Server => self.server.progress(now, link, bytes),
                End::Client => self.members[self.net.client_of(link)].machine.progress(now, bytes),
            },
            Event::Progress { .. } => {}
            Event::Pump { link, from } => self.net.pump(now, link, from),
            Event::Cut { link } => self.net.cut(now, link, "the link broke"),
            Event::Sent { link, from: End::Server, round, outcome } => {
                self.observe(link);
                self.server.sent(now, link, round, outcome);
                self.server_actions();
            }
            Event::Sent { link, round, outcome, .. } => {
                let index = self.net.client_of(link);
                if self.members[index].alive && self.members[index].link == Some(link) {
                    self.members[index].machine.sent(now, round, outcome);
                    self.client_actions(index);
                }
            }
            Event::Accept { link } => {
                if self.net.delivers(link, End::Server) {
                    let nonce = self.net.rng.nonce();
                    let ordered = self.members[self.net.client_of(link)].path.ordered;
                    self.server.connected(now, link, nonce, ordered);
                    self.server_actions();
                }
            }
            Event::Closed { link, end, reason } => self.link_closed(link, end, &reason),
            Event::Connect { client, instance } => {
                let member = &mut self.members[client];
                if member.alive && member.instance == instance && !member.machine.is_done() {
                    let (path, nonce) = (member.path, self.net.rng.nonce());
                    member.path.cut_after = None; // only the first link breaks by itself
                    member.link = Some(self.net.connect(now, client, path, path));
                    member.machine.connected(now, nonce, path.ordered);
                    self.client_actions(client);
                }
            }
            Event::Trained { client, instance, round } => self.worked(client, instance, round),
            // Here `sender` holds the task in its high bits and the sender in its low 16 bits.
            Event::Folded { sender, outcome } => {
                let (task, sender) = (sender >> 16, sender & 0xffff);
                self.server.folded(now, task, sender, outcome);
                self.server_actions();
            }
            Event::Judged { task, sender, outcome } => {
                self.server.judged(now, task, sender, outcome);
                self.server_actions();
            }
        }
    }

    fn observe(&mut self, link: LinkId) {
        let (sent, received) = self.net.counters(link, End::Server);
        let traffic = Traffic { sent, received, ..Traffic::default() };
        self.server.observe(link, traffic);
    }

    fn link_closed(&mut self, link: LinkId, end: End, reason: &str) {
        if !self.net.is_open(link, end) {
            return;
        }
        self.net.shut(self.now, link, end);
        if end == End::Server {
            self.observe(link);
            self.server.closed(self.now, link, reason);
            return self.server_actions();
        }
        let index = self.net.client_of(link);
        let member = &mut self.members[index];
        if member.alive && member.link == Some(link) {
            member.link = None;
            member.machine.closed(self.now, reason);
            self.client_actions(index);
        }
    }

    fn arrive(&mut self, link: LinkId, to: End, frame: Frame, counted: u64) {
        if !self.net.delivers(link, to) {
            return;
        }
        self.net.taken(link, to, frame.bytes());
        let (now, index) = (self.now, self.net.client_of(link));
        let left = frame.bytes().saturating_sub(counted);
        match (frame, to) {
            (Frame::Control(message), End::Server) => {
                self.observe(link);
                let message = Control::decode(&message).expect("what was encoded");
                self.server.control(now, link, message);
                self.server_actions();
            }
            (Frame::Chunk(header, payload), End::Server) => {
                self.result_chunk(link, &header, &payload, left);
                self.server_actions();
            }
            (frame, End::Client) if self.members[index].alive => {
                match frame {
                    Frame::Control(message) => {
                        let message = Control::decode(&message).expect("what was encoded");
                        self.members[index].machine.control(now, message);
                    }
                    Frame::Chunk(header, payload) => {
                        self.members[index].task_chunk(now, &header, &payload, left);
                    }
                }
                self.client_actions(index);
            }
            _ => {}
        }
    }

    fn result_chunk(&mut self, link: LinkId, header: &FrameHeader, payload: &[u8], left: u64) {
        let (now, chunk) = (self.now, &header.chunk);
        let place = self.server.place(now, link, chunk);
        let (TaskPlace::New { task, sender, total } | TaskPlace::Part { task, sender, total }) = place else {
            return self.server.progress(now, link, left);
        };
        let into = self.coming.entry((task, sender)).or_insert_with(|| vec![0xee; total as usize]);
        assert_eq!(into.len() as u64, total);
        if matches!(place, TaskPlace::New { .. }) {
            into[chunk.offset as usize..][..payload.len()].copy_from_slice(payload);
        }
        self.server.progress(now, link, left);
        for range in self.server.stored(now, link, chunk, header.verify(payload).is_ok()) {
            let from = (range.start - chunk.offset) as usize;
            into[range.start as usize..range.end as usize]
                .copy_from_slice(&payload[from..from + range.len() as usize]);
        }
    }

    pub fn server_actions(&mut self) {
        while let Some(action) = self.server.poll_action() {
            self.server_action(action);
        }
    }

    fn server_action(&mut self, action: Action<TaskAction>) {
        let now = self.now;
        match action {
            Action::Send { link, message } => {
                if let Control::Welcome(welcome) = &message {
                    self.names.insert(link, welcome.sender);
                }
                self.net.send_control(now, link, End::Server, message.encode().expect("a small message"));
            }
            Action::SendParcel { links, parcel, wanted, .. } => {
                let (bytes, layout) = self.sent.get(&parcel).expect("a task that is open");
                let id = header(parcel, 0, layout);
                let frames = chunks(bytes, &wanted, CHUNK, id);
                let group = self.net.group();
                for link in links {
                    self.net.send_update(now, link, End::Server, group, parcel, frames.clone());
                }
            }
            Action::Cancel { link, .. } => self.net.cancel(now, link, End::Server),
            Action::Close { link } => self.net.close(now, link, End::Server),
            Action::Joined { .. } | Action::Note { .. } | Action::TurnedAway { .. } | Action::Left { .. } => {
            }
            Action::Policy(TaskAction::Judge { task, sender, member, weight, .. }) => {
                assert!(!self.coming.contains_key(&(task, sender)), "judged when some of it is here");
                self.asked.push((task, member));
                let outcome = match self.heaviest.filter(|&most| weight > most) {
                    Some(most) => Err(format!("{most} is the most")),
                    None => Ok(()),
                };
                self.net.at(now + MS, Event::Judged { task, sender, outcome });
            }
            Action::Policy(TaskAction::Fold { task, sender, weight, holes }) => {
                assert!(weight > 0.0);
                assert!(self.heaviest.is_none_or(|most| weight <= most), "folds what was refused");
                let sent = self.expected(task, sender);
                let came = self.coming.remove(&(task, sender)).unwrap_or_default();
                for part in holes.holes(sent.len() as u64).iter() {
                    let part = part.start as usize..part.end as usize;
                    assert_eq!(came[part.clone()], sent[part], "folds what was not sent");
                }
                self.holes.insert((task, sender), holes);
                *self.folded.entry((task, sender)).or_default() += 1;
                self.net.at(now + MS, Event::Folded { sender: task << 16 | sender, outcome: Ok(()) });
            }
            Action::Policy(TaskAction::Discard { task, sender }) => drop(self.coming.remove(&(task, sender))),
            Action::Policy(TaskAction::Settled(reply)) => {
                let bytes = self.coming.remove(&(reply.task, reply.sender));
                let has_bytes = reply.answer.as_ref().is_some_and(|answer| answer.layout.bytes() > 0);
                let was_folded = self.folded.contains_key(&(reply.task, reply.sender));
                if reply.state == ReplyState::Done && has_bytes && !was_folded {
                    let bytes = bytes.as_ref().expect("a result that is done has come");
                    assert_eq!(*bytes, self.expected(reply.task, reply.sender), "not what was sent");
                }
                self.replies.push((*reply, bytes));
            }
            Action::Policy(TaskAction::Closed { task }) => {
                self.closed.push(task);
                self.sent.remove(&task);
                assert!(self.coming.keys().all(|(of, _)| *of != task), "results outlive their task");
            }
        }
    }

    /// The result that a sender must have made of a task.
    fn expected(&self, task: u32, sender: u32) -> Vec<u8> {
        let link = self.names.iter().rev().find(|(_, number)| **number == sender).map(|(link, _)| *link);
        let member = &self.members[self.net.client_of(link.expect("it was let in"))];
        member.results[&task].0.clone()
    }

    fn client_actions(&mut self, index: usize) {
        while let Some(action) = self.members[index].machine.poll_action() {
            self.client_action(index, action);
        }
    }

    fn client_action(&mut self, index: usize, action: ClientAction<TaskStep>) {
        let now = self.now;
        let member = &mut self.members[index];
        let instance = member.instance;
        match action {
            ClientAction::Connect { after, .. } => {
                self.net.at(now + after, Event::Connect { client: index, instance });
            }
            ClientAction::Prove { .. } => member.machine.proven(now, None),
            ClientAction::Send(message) => {
                if let Some(link) = member.link {
                    let message = message.encode().expect("a small message");
                    self.net.send_control(now, link, End::Client, message);
                }
            }
            ClientAction::SendParcel { parcel, wanted } => self.send_result(index, parcel, &wanted),
            ClientAction::Cancel { .. } => {
                if let Some(link) = member.link {
                    self.net.cancel(now, link, End::Client);
                }
            }
            ClientAction::Close => {
                if let Some(link) = member.link.take() {
                    self.net.close(now, link, End::Client);
                }
            }
            ClientAction::Joined(_) | ClientAction::Finished(_) => {}
            ClientAction::Policy(TaskStep::Ready { task, head, layout, same_as, .. }) => {
                let of = same_as.unwrap_or(task);
                if layout.bytes() > 0 {
                    let bytes = member.arenas.get(&of).expect("its bytes are here").clone();
                    if let Some((sent, _)) = self.sent.get(&task) {
                        assert_eq!(bytes, *sent, "not what was sent");
                    }
                    member.arenas.insert(task, bytes);
                }
                member.layouts.insert(task, layout);
                member.heads.insert(task, head);
                member.given.push(task);
                let at = now + member.work;
                self.net.at(at, Event::Trained { client: index, instance, round: task });
            }
            ClientAction::Policy(TaskStep::Over { task, verdict }) => member.verdicts.push((task, verdict)),
            ClientAction::Policy(TaskStep::Forget { task }) => drop(member.arenas.remove(&task)),
        }
    }

    fn send_result(&mut self, index: usize, task: u32, wanted: &Ranges) {
        let member = &self.members[index];
        let Some(link) = member.link else { return };
        let sender = member.machine.welcome().expect("it was let in").sender;
        let (bytes, layout) = &member.results[&task];
        let frames = chunks(bytes, wanted, CHUNK, header(task, sender, layout));
        let group = self.net.group();
        self.net.send_update(self.now, link, End::Client, group, task, frames);
    }

    fn worked(&mut self, index: usize, instance: u64, task: u32) {
        let member = &mut self.members[index];
        if !member.alive || member.instance != instance || member.machine.is_done() {
            return;
        }
        let layout = match &member.does {
            Does::Returns(layout) => layout.clone(),
            Does::Echoes => member.layouts[&task].clone(),
            Does::Refuses => {
                let _ = member.machine.refuse(task, "has no data"); // an error means that the task is over
                return self.client_actions(index);
            }
            Does::Nothing => return,
            Does::Acts => return self.requested.push((index, instance, task)),
        };
        let bytes = noise(instance ^ u64::from(task) << 32, layout.bytes());
        member.results.insert(task, (bytes, layout.clone()));
        let answer = Answer { head: b"{}".to_vec(), layout, weight: member.weight };
        let _ = member.machine.answer(task, answer); // an error means that the task is over
        self.client_actions(index);
    }

    /// Has a member's process answer a task with a head and noise of this layout, or refuse it for a reason.
    pub fn respond(
        &mut self,
        index: usize,
        instance: u64,
        task: u32,
        with: Result<(Vec<u8>, Arc<Layout>), &str>,
    ) {
        let member = &mut self.members[index];
        if !member.alive || member.instance != instance {
            return;
        }
        // An error of the machine means that the task is over.
        let _ = match with {
            Err(reason) => member.machine.refuse(task, reason),
            Ok((head, layout)) => {
                let bytes = noise(instance ^ u64::from(task) << 32, layout.bytes());
                member.results.insert(task, (bytes, layout.clone()));
                member.machine.answer(task, Answer { head, layout, weight: member.weight })
            }
        };
        self.client_actions(index);
    }

    /// Neither end of a member's link sends anything for this time.
    pub fn pause(&mut self, index: usize, time: Time) {
        if let Some(link) = self.members[index].link {
            for end in [End::Server, End::Client] {
                self.net.hold_up(self.now, link, end, time);
            }
        }
    }

    /// Tells the server that a member's process has ended.
    pub fn forget(&mut self, name: &str) {
        self.server.forget(self.now, name, "killed by signal 9");
        self.server_actions();
    }

    pub fn cut(&mut self, index: usize) {
        if let Some(link) = self.members[index].link {
            self.net.cut(self.now, link, "the link broke");
        }
    }

    /// Ends a member's process, and so its link.
    pub fn kill(&mut self, index: usize) {
        self.cut(index);
        self.members[index].alive = false;
        self.members[index].link = None;
    }

    /// Starts a member's program again in a new process.
    pub fn restart(&mut self, index: usize) {
        let instance = self.net.rng.next();
        let member = &mut self.members[index];
        (member.alive, member.instance, member.link) = (true, instance, None);
        member.machine = client(&member.name, instance, 1 << 20);
        member.arenas.clear();
        member.results.clear();
        self.client_actions(index);
    }
}

impl Member {
    fn task_chunk(&mut self, now: Time, header: &FrameHeader, payload: &[u8], left: u64) {
        self.chunks += 1;
        let chunk = &header.chunk;
        let (fit, total) = self.machine.fit(now, chunk);
        if fit != Fit::Nothing {
            let into = self.arenas.entry(chunk.round).or_insert_with(|| vec![0xee; total as usize]);
            if fit == Fit::New {
                into[chunk.offset as usize..][..payload.len()].copy_from_slice(payload);
            }
        }
        self.machine.progress(now, left);
        if fit == Fit::Nothing {
            return;
        }
        for range in self.machine.stored(now, chunk, header.verify(payload).is_ok()) {
            let from = (range.start - chunk.offset) as usize;
            let into = self.arenas.get_mut(&chunk.round).expect("a place");
            into[range.start as usize..range.end as usize]
                .copy_from_slice(&payload[from..from + range.len() as usize]);
        }
    }
}

pub fn plan(elements: u64, bytes_id: u64, to: &[&str], deadline: Option<Time>) -> TaskPlan {
    TaskPlan {
        head: b"{}".to_vec(),
        layout: if elements == 0 { Arc::default() } else { tensors("w", elements) },
        bytes_id,
        members: to.iter().map(|name| (*name).to_string()).collect(),
        deadline,
        fold: None,
        missing: None,
        judged: false,
    }
}

fn header(round: u32, sender: u32, layout: &Layout) -> ChunkHeader {
    ChunkHeader { job: JOB, round, sender, layout: layout.hash(), offset: 0, length: 0 }
}

fn client(name: &str, instance: u64, most: u64) -> TaskClient {
    let config =
        ClientConfig { name: name.into(), instance, layout: None, timeout: 600 * SECOND, outage: Time::ZERO };
    TaskClient::new(config, thalweg_wire::control::Purpose::Tasks, most, instance)
}
