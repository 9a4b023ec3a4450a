//! A server and its clients with real bytes. What they receive, fold and send is checked.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use thalweg_proto::{
    ChunkReceiver, Client, ClientConfig, ClientMachine, Fit, LinkId, Outcome, Partial, Participation, Place,
    Server, ServerConfig, ServerMachine, Stored, Time, Verdict,
};
use thalweg_wire::{checksum, ChunkHeader, Dtype, FrameHeader, Layout, Range, Ranges, Tolerance};

use super::network::{Path, Rng};
use super::{Doors, JOB};

/// Greatest weight of an update.
pub const MAX_WEIGHT: f64 = (1_u64 << 40) as f64;

/// A layout of three tensors, about `elements` floats in all. `pack` aligns each, which leaves gaps between them.
pub fn layout(elements: u64) -> Layout {
    let part = elements / 3;
    let tensors = [("a", part), ("b", part + 1), ("c", elements - 2 * part)];
    let tensors = tensors.map(|(name, n)| (name, Dtype::F32, vec![n]));
    Layout::pack(tensors).expect("a valid layout")
}

fn floats(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..bytes / 4).flat_map(|_| (rng.below(1000) as f32).to_le_bytes()).collect()
}

/// The global model of a round.
pub fn model(round: u32, bytes: usize) -> Vec<u8> {
    floats(u64::from(round) << 32, bytes)
}

/// The update that one process of a client makes of a round's model.
pub fn update(name: &str, instance: u64, round: u32, bytes: usize) -> Vec<u8> {
    let name = u64::from(checksum(name.as_bytes()));
    floats(name ^ instance << 33 ^ u64::from(round) << 50, bytes)
}

/// The `wanted` ranges of `bytes`, cut at multiples of `chunk`.
pub fn chunks(
    bytes: &[u8],
    wanted: &Ranges,
    chunk: u32,
    id: ChunkHeader,
) -> VecDeque<(FrameHeader, Vec<u8>)> {
    let chunk = u64::from(chunk);
    let mut out = VecDeque::new();
    for range in wanted.iter() {
        let mut at = range.start;
        while at < range.end.min(bytes.len() as u64) {
            let next = ((at / chunk + 1) * chunk).min(range.end).min(bytes.len() as u64);
            let payload = bytes[at as usize..next as usize].to_vec();
            let header = ChunkHeader { offset: at, length: (next - at) as u32, ..id };
            out.push_back((FrameHeader::chunk(header, checksum(&payload)), payload));
            at = next;
        }
    }
    out
}

/// The simplest weighted mean: the sum and the weight of each element in f64, and how often each sender was
/// counted.
#[derive(Debug, Clone, Default)]
pub struct Fold {
    sums: Vec<f64>,
    weights: Vec<f64>,
    /// How often each byte was counted, by sender.
    pub counts: BTreeMap<u32, Vec<u8>>,
}

impl Fold {
    fn new(bytes: usize) -> Self {
        Self { sums: vec![0.0; bytes / 4], weights: vec![0.0; bytes / 4], counts: BTreeMap::new() }
    }

    /// Adds the bytes of `range`, which must hold whole elements.
    fn add(&mut self, sender: u32, range: Range, bytes: &[u8], weight: f64) {
        assert!(range.start.is_multiple_of(4) && range.end.is_multiple_of(4), "{range:?} splits an element");
        let counts = self.counts.entry(sender).or_insert_with(|| vec![0; self.sums.len() * 4]);
        counts[range.start as usize..range.end as usize].iter_mut().for_each(|c| *c += 1);
        let first = range.start as usize / 4;
        for (index, value) in bytes.chunks_exact(4).enumerate() {
            let value = f32::from_le_bytes([value[0], value[1], value[2], value[3]]);
            self.sums[first + index] += weight * f64::from(value);
            self.weights[first + index] += weight;
        }
    }

    /// The mean of each element; 0 if no update had it.
    pub fn mean(&self) -> Vec<f64> {
        self.sums.iter().zip(&self.weights).map(|(s, w)| if *w > 0.0 { s / w } else { 0.0 }).collect()
    }
}

/// The result of a round.
#[derive(Debug, Clone)]
pub struct RoundResult {
    pub outcome: Outcome,
    pub fold: Fold,
    /// The client's name of each number.
    pub names: BTreeMap<u32, String>,
}

impl RoundResult {
    /// The entry of a client.
    pub fn of(&self, client: &str) -> &Participation {
        let part = self.outcome.participants.iter().find(|p| p.client == client);
        part.unwrap_or_else(|| unreachable!("{client} took no part: {:?}", self.outcome))
    }
}

/// The server with its staging area and its accumulator.
pub struct ServerParty {
    pub machine: Server,
    /// Whether the root of a tree decides what becomes of updates.
    pub withholds: bool,
    /// Whether no chunk overtakes a message on ordered links.
    pub keeps_order: bool,
    pub partial: Partial,
    /// How many rounds an update may be late.
    pub stale: u32,
    pub layout: Arc<Layout>,
    pub chunk: u32,
    pub places: usize,
    pub staged: BTreeMap<u32, Vec<u8>>,
    pub fold: Fold,
    pub results: Vec<RoundResult>,
    /// How often the server has said that there is news of updates that wait.
    pub arrivals: u64,
    pub names: BTreeMap<u32, String>,
    /// Events of clients in order: joined (+), left (-), refused (!), and notes; all but the first with a
    /// reason.
    pub log: Vec<String>,
    /// Maximum number of updates that were being sent or staged at one time.
    pub busiest: usize,
    /// Links that the machine closed, or of whose end it was told.
    pub dead: BTreeSet<LinkId>,
    /// How long folding a staged update takes.
    pub folding: Time,
    /// Clients whose update cannot be folded, each with the position of the byte that is the cause.
    pub unfoldable: BTreeMap<String, usize>,
}

impl ServerParty {
    pub fn new(setup: &super::Setup) -> Self {
        let layout = Arc::new(layout(setup.elements));
        let bytes = layout.bytes();
        let tolerance = Tolerance::new(&layout, &setup.allowances).expect("a rule of this layout");
        let config = ServerConfig {
            job: JOB,
            layout: layout.clone(),
            chunk: setup.chunk,
            partial: setup.partial,
            stand_in: setup.stand_in,
            spread: None,
            tolerance: Arc::new(tolerance),
            staging: bytes * setup.places,
            lazy: setup.lazy,
            max_weight: MAX_WEIGHT,
            liveness: setup.liveness,
            max_clients: setup.max_clients,
            stale: setup.stale,
            withhold: setup.withhold,
        };
        let machine = Server::new(config, Box::new(Doors { token: setup.token }));
        Self {
            withholds: setup.withhold,
            machine,
            keeps_order: setup.keeps_order,
            partial: setup.partial,
            stale: setup.stale,
            layout,
            chunk: setup.chunk,
            places: setup.places.max(1) as usize,
            staged: BTreeMap::new(),
            fold: Fold::new(bytes as usize),
            results: Vec::new(),
            arrivals: 0,
            names: BTreeMap::new(),
            log: Vec::new(),
            busiest: 0,
            dead: BTreeSet::new(),
            folding: setup.folding,
            unfoldable: BTreeMap::new(),
        }
    }

    pub fn bytes(&self) -> usize {
        self.layout.bytes() as usize
    }

    /// Receives a chunk as the driver's sink does.
    pub fn chunk(&mut self, now: Time, link: LinkId, header: &FrameHeader, payload: &[u8], left: u64) {
        let foreseen = self.machine.foresee(link, &header.chunk);
        let place = self.machine.place(now, link, &header.chunk);
        assert_eq!(foreseen, Some(place).filter(|place| matches!(place, Place::New { .. })));
        if let (Place::New { sender, .. }, Partial::Discard) = (place, self.partial) {
            // The payload is received in place, even if it turns out to be damaged.
            let at = header.chunk.range();
            self.staging(sender)[at.start as usize..at.end as usize].copy_from_slice(payload);
        }
        self.machine.progress(now, link, left);
        if place == Place::Nothing {
            return;
        }
        let outcome = match header.verify(payload) {
            Err(_) => Err(None),
            Ok(()) if has_nan(payload) => Err(Some("sent a NaN".into())),
            Ok(()) => Ok(()),
        };
        if let Some(stored) = self.machine.stored(now, link, &header.chunk, outcome) {
            self.take(now, link, place, &header.chunk, payload, &stored);
        }
    }

    /// Why these bytes of a client's update cannot be folded; `Ok` if they can.
    fn refusal(&self, sender: u32, range: Range) -> Result<(), String> {
        let at = self.names.get(&sender).and_then(|name| self.unfoldable.get(name)).map(|&at| at as u64);
        match at.filter(|at| (range.start..range.end).contains(at)) {
            Some(at) => Err(format!("sent what cannot be folded at byte {at}")),
            None => Ok(()),
        }
    }

    fn staging(&mut self, sender: u32) -> &mut Vec<u8> {
        let bytes = self.bytes();
        self.staged.entry(sender).or_insert_with(|| vec![0xff; bytes])
    }

    fn take(
        &mut self,
        now: Time,
        link: LinkId,
        place: Place,
        chunk: &ChunkHeader,
        payload: &[u8],
        stored: &Stored,
    ) {
        for range in &stored.fresh {
            let part = &payload[(range.start - chunk.offset) as usize..(range.end - chunk.offset) as usize];
            match self.partial {
                Partial::Keep => {
                    let outcome = self.refusal(stored.sender, *range);
                    if outcome.is_ok() {
                        self.fold.add(stored.sender, *range, part, stored.weight);
                    }
                    self.machine.kept(now, link, chunk, &[*range], outcome);
                }
                Partial::Discard if matches!(place, Place::Part { .. }) => {
                    self.staging(stored.sender)[range.start as usize..range.end as usize]
                        .copy_from_slice(part);
                }
                Partial::Discard => {}
            }
        }
    }

    /// Folds a staged update without its holes. `known`: the client has made an update with these bytes. If
    /// the update cannot be folded, none of it is.
    pub fn fold_staged(
        &mut self,
        sender: u32,
        weight: f64,
        holes: &Ranges,
        known: impl Fn(&str, &[u8], &Ranges) -> bool,
    ) -> Result<(), String> {
        let name = self.names[&sender].clone();
        let staged = self.staged.remove(&sender).unwrap_or_else(|| vec![0xff; self.layout.bytes() as usize]);
        let came = holes.holes(staged.len() as u64);
        assert!(known(&name, &staged, &came), "the staged update of {name} is not what it sent");
        self.refusal(sender, Range::new(0, staged.len() as u64))?;
        for range in came.iter() {
            let bytes = &staged[range.start as usize..range.end as usize];
            self.fold.add(sender, range, bytes, weight);
        }
        Ok(())
    }

    pub fn ended(&mut self, outcome: Outcome) {
        let fresh = Fold::new(self.bytes());
        let fold = std::mem::replace(&mut self.fold, fresh);
        // Updates that were not selected stay, if a further batch may select them.
        let is_clean = self.staged.is_empty() || self.stale > 0 || self.withholds;
        assert!(is_clean, "staged updates outlive the round: {:?}", self.staged.keys());
        self.results.push(RoundResult { outcome, fold, names: self.names.clone() });
    }

    /// Checks what must hold at any time.
    pub fn check(&mut self) {
        use thalweg_proto::State::{Sending, Staged};
        if self.partial == Partial::Discard {
            let report = self.machine.progress_report();
            let busy = report.iter().filter(|(_, state, _)| matches!(state, Sending | Staged)).count();
            self.busiest = self.busiest.max(busy).max(self.staged.len());
            assert!(self.busiest <= self.places, "{} places, {:?}", self.places, self.staged.keys());
        }
    }
}

fn has_nan(payload: &[u8]) -> bool {
    payload.chunks_exact(4).any(|v| f32::from_le_bytes([v[0], v[1], v[2], v[3]]).is_nan())
}

/// The behaviour of a client.
#[derive(Debug, Clone)]
pub struct Profile {
    pub name: String,
    pub samples: u64,
    pub train: Time,
    /// How far the client's clock is ahead of the server's.
    pub skew: Time,
    pub timeout: Time,
    pub outage: Time,
    pub layout: Option<Arc<Layout>>,
    pub token: Option<u8>,
    /// The paths up and down of its first, second, ... connection. The last pair is for all further ones.
    pub paths: Vec<(Path, Path)>,
    /// The update has a NaN at this byte.
    pub nan_at: Option<usize>,
    /// The update cannot be folded because of this byte.
    pub unfoldable_at: Option<usize>,
}

/// The observations of a client, for the tests.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    pub connections: u32,
    pub hellos: u32,
    pub model_chunks: u32,
    pub ready: Vec<u32>,
    pub offers: u32,
    pub update_chunks: u32,
    pub ends: u32,
    pub verdicts: Vec<(u32, Verdict)>,
    /// For each verdict, the bytes of the update that do not count.
    pub lost: Vec<Ranges>,
    pub refused: Vec<String>,
    /// The URL to which it was sent; `None`: the address that it was given.
    pub sent_to: Option<String>,
    pub finished: Option<Result<String, String>>,
}

/// A client with its arena.
pub struct ClientParty {
    pub profile: Profile,
    pub machine: Client,
    pub instance: u64,
    /// Whether the client's process runs.
    pub alive: bool,
    pub link: Option<LinkId>,
    pub greeted: bool,
    pub arena: Vec<u8>,
    /// The last version of the model that it got, before it was trained.
    pub held: Vec<u8>,
    /// The holes of the model in the arena.
    pub mended: Ranges,
    pub seen: Seen,
}

impl ClientParty {
    pub fn new(profile: Profile, instance: u64) -> Self {
        let config = ClientConfig {
            name: profile.name.clone(),
            instance,
            layout: profile.layout.clone(),
            timeout: profile.timeout,
            outage: profile.outage,
        };
        let machine = Client::new(config, instance);
        let (arena, seen) = (Vec::new(), Seen::default());
        Self {
            profile,
            machine,
            instance,
            alive: true,
            link: None,
            greeted: false,
            arena,
            held: Vec::new(),
            mended: Ranges::new(),
            seen,
        }
    }

    pub fn paths(&self) -> (Path, Path) {
        let at = (self.seen.connections as usize).min(self.profile.paths.len() - 1);
        self.profile.paths[at]
    }

    /// Receives a chunk as the driver's sink does.
    pub fn chunk(&mut self, now: Time, header: &FrameHeader, payload: &[u8], left: u64) {
        self.seen.model_chunks += 1;
        let foreseen = self.machine.foresees(&header.chunk);
        let (fit, _) = self.machine.fit(now, &header.chunk);
        assert_eq!(foreseen, fit == Fit::New);
        let offset = header.chunk.offset as usize;
        if fit == Fit::New {
            self.arena[offset..offset + payload.len()].copy_from_slice(payload);
        }
        self.machine.progress(now, left);
        if fit == Fit::Nothing {
            return;
        }
        for range in self.machine.stored(now, &header.chunk, header.verify(payload).is_ok()) {
            let (start, end) = (range.start as usize, range.end as usize);
            self.arena[start..end].copy_from_slice(&payload[start - offset..end - offset]);
        }
    }

    /// Trains: replaces the model in the arena by the update.
    pub fn train(&mut self, round: u32) {
        self.arena = update(&self.profile.name, self.instance, round, self.arena.len());
        if let Some(at) = self.profile.nan_at {
            self.arena[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
        }
    }
}
