//! Decides which bytes of a connection's stream may be lost. In a tcp link these are the payloads of chunks,
//! except for critical tensors. Under TLS, only sealed chunks may be lost. In an unknown protocol, all bytes
//! may be lost except for the first ones.

use std::sync::Arc;

use thalweg_masking::Budget;
use thalweg_transport::Sealed;
use thalweg_wire::{Limit, Range, Ranges, Tolerance, HEADER_BYTES};

use crate::place::Place;
use crate::scout::Scout;
use crate::settings::{Content, Limits};

/// Number of bytes that may be lost in any case: 32 segments. Beyond them, the budget is a fraction of the
/// bytes that have arrived so far. Even so, if a path loses half as much as the budget allows, about one
/// update in thousands exceeds its budget too early.
const FIRST: u64 = 48 << 10;

/// Changes for a flow because of new data. The driver applies them to the flow's policy.
#[derive(Debug, Default)]
pub(crate) struct Permits {
    /// Bytes that may be lost from now on.
    pub ranges: Vec<Range>,
    /// If a new update begins: its budgets, first the budget of the whole update, then those of tensors.
    pub budgets: Option<Vec<Budget>>,
    /// Ranges that belong to tensors with budgets, each with the index of its budget.
    pub shares: Vec<(usize, Range)>,
    /// If this has changed: whether the reader expects more data soon.
    pub expects: Option<bool>,
}

impl Permits {
    /// Whether nothing changes.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.budgets.is_none() && self.shares.is_empty() && self.expects.is_none()
    }

    /// Begins a new update, whose budgets replace those of the previous one.
    fn begin(&mut self, budgets: Vec<Budget>) {
        self.budgets = Some(budgets);
        self.shares.clear();
    }

    /// Adds the bytes that may be lost of a chunk that the scout has found.
    fn add(&mut self, chunk: &Place, tolerance: &Tolerance) {
        let bytes = chunk.bytes();
        let critical: Ranges = tolerance.critical().within(bytes).map(|part| chunk.of(part)).collect();
        self.ranges.extend(critical.missing_in(chunk.stream));
        let of_tensors = tolerance.touched(bytes);
        self.shares.extend(of_tensors.map(|(at, limit)| (at + 1, chunk.of(limit.range.intersect(bytes)))));
    }
}

/// Follows the content of a stream, and finds the bytes that may be lost.
#[derive(Debug)]
pub(crate) enum Watch {
    /// A tcp link. `scout` is set once the link has said that frames follow, and how they are sealed. The
    /// current update is identified by round and sender.
    Frames {
        scout: Option<Scout>,
        sealed: Option<Sealed>,
        update: Option<(u32, u32)>,
        /// The end of the part of the update that all chunks so far have. A chunk below it was requested
        /// again.
        top: u64,
        tolerance: Arc<Tolerance>,
        /// Number of connections that together carry an update.
        lines: u64,
    },
    /// Another protocol. This many bytes at its beginning must not be lost; `None` after that has been
    /// applied.
    Plain { reliable: Option<u64> },
}

impl Watch {
    pub(crate) fn new(content: Content) -> Self {
        match content {
            Content::Frames => Self::of_frames(None, None, Arc::default(), 1),
            Content::Plain { reliable } => Self::Plain { reliable: Some(reliable) },
        }
    }

    fn of_frames(
        scout: Option<Scout>,
        sealed: Option<Sealed>,
        tolerance: Arc<Tolerance>,
        lines: u64,
    ) -> Self {
        Self::Frames { scout, sealed, update: None, top: 0, tolerance, lines }
    }

    /// Frames begin at `start`. The head of each sealed payload must not be lost.
    pub(crate) fn frames(&mut self, start: u64, sealed: Option<Sealed>) {
        let (tolerance, lines) = match self {
            Self::Frames { tolerance, lines, .. } => (tolerance.clone(), *lines),
            Self::Plain { .. } => (Arc::default(), 1),
        };
        let scout = Scout::new(start, sealed.map_or(0, |sealed| sealed.head));
        *self = Self::of_frames(Some(scout), sealed, tolerance, lines);
    }

    /// Sets the loss that is tolerated in updates that begin from now on. Each update uses `together`
    /// connections.
    pub(crate) fn tolerate(&mut self, next: &Arc<Tolerance>, together: usize) {
        if let Self::Frames { tolerance, lines, .. } = self {
            (*tolerance, *lines) = (next.clone(), together as u64);
        }
    }

    /// The name of the tensor to which a budget applies. `None` for the budget of the whole update.
    pub(crate) fn tensor(&self, budget: usize) -> Option<String> {
        let Self::Frames { tolerance, .. } = self else { return None };
        Some(tolerance.limits().get(budget.checked_sub(1)?)?.tensor.clone())
    }

    /// Adds to `permits` the bytes that may be lost, now that more bytes have arrived. `header` returns the
    /// bytes of a header at an offset, if all of them have arrived.
    pub(crate) fn advance(
        &mut self,
        limits: &Limits,
        header: impl Fn(u64) -> Option<[u8; HEADER_BYTES]>,
        permits: &mut Permits,
    ) {
        match self {
            Self::Frames { scout, sealed, update, top, tolerance, lines } => {
                let Some(scout) = scout else { return };
                let before = scout.in_update();
                let found = scout.advance(header);
                if scout.in_update() != before {
                    permits.expects = Some(!before);
                }
                for payload in found {
                    let this = (payload.chunk.round, payload.chunk.sender);
                    if update.replace(this) != Some(this) {
                        let whole =
                            budget(limits, payload.range.start, tolerance.bytes() / u64::max(*lines, 1));
                        let of_tensors = tolerance.limits().iter().map(|limit| of_tensor(limit, *sealed));
                        permits.begin([whole].into_iter().chain(of_tensors).collect());
                        *top = 0;
                    }
                    let place = Place::new(&payload, *sealed);
                    // A chunk that was requested again must not be lost. Otherwise the session would request
                    // it a third time, one round trip later than a retransmission.
                    if place.bytes().start >= *top {
                        permits.add(&place, tolerance);
                    }
                    *top = place.bytes().end.max(*top);
                }
            }
            Self::Plain { reliable } => {
                if let Some(start) = reliable.take().filter(|&start| start < u64::MAX) {
                    permits.ranges.push(Range::new(start, u64::MAX));
                    permits.begin(vec![budget(limits, start, 0)]);
                }
            }
        }
    }
}

/// How many bytes of an update with `bytes` bytes may be lost in any case. Beyond them, the budget is a
/// fraction of the bytes that have arrived. The result is at most the budget of the whole update, and at most
/// as many bytes as `refuse` allows.
pub(crate) fn first(limits: &Limits, bytes: u64) -> u64 {
    FIRST.min((limits.budget.min(limits.refuse) * bytes as f64) as u64)
}

/// The budget of everything from `start` on, which has at least `bytes` bytes. It is a fraction of the bytes
/// that have arrived. If it were a fraction of the whole, all retransmissions would be at the end. A fraction
/// of the first few bytes is less than a segment, so at first a fixed number of bytes may be lost.
fn budget(limits: &Limits, start: u64, bytes: u64) -> Budget {
    let ranges: Ranges = [Range::new(start, u64::MAX)].into_iter().collect();
    let at_least = first(limits, bytes);
    Budget { ranges, mask: limits.budget, refuse: limits.refuse, at_least, of: None }
}

/// The budget of a tensor, before any of its ranges is known.
///
/// If a sealed record has any byte of the tensor, all bytes of the record count. So `refuse` tolerates two
/// records more: bytes of other tensors in the tensor's first and last record must not end the link. The
/// session knows exactly which bytes are missing, and refuses the update if they are too many.
fn of_tensor(limit: &Limit, sealed: Option<Sealed>) -> Budget {
    let whole = limit.range.len().max(1);
    let share = |bytes: u64| bytes as f64 / whole as f64;
    let edges = sealed.map_or(0, |sealed| 2 * u64::from(sealed.stride));
    let (mask, refuse) = (share(limit.budget), share(limit.refuse + edges));
    Budget { ranges: Ranges::new(), mask, refuse, at_least: 0, of: Some(whole) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a panic is how tests report
mod tests {
    use proptest::prelude::*;
    use thalweg_wire::{Allowance, ChunkHeader, Dtype, FrameHeader, Layout, LayoutHash};

    use super::*;

    /// Offset of the first frame.
    const START: u64 = 24;
    const SEALED: Sealed = Sealed { head: 16, record: 20, stride: 36 };

    fn limits(content: Content) -> Limits {
        Limits { budget: 0.1, refuse: 0.5, buffer: 1 << 20, content }
    }

    #[test]
    fn of_a_plain_stream_all_but_its_beginning_may_be_lost() {
        let content = Content::Plain { reliable: 1000 };
        let (mut watch, mut permits) = (Watch::new(content), Permits::default());
        watch.advance(&limits(content), |_| None, &mut permits);
        assert_eq!(permits.ranges, [Range::new(1000, u64::MAX)]);
        let budgets = permits.budgets.take().unwrap();
        let budgets: Vec<_> =
            budgets.iter().map(|b| (b.mask, b.refuse, b.ranges.iter().collect::<Vec<_>>())).collect();
        assert_eq!(budgets, [(0.1, 0.5, vec![Range::new(1000, u64::MAX)])]);
        let mut permits = Permits::default();
        watch.advance(&limits(content), |_| None, &mut permits);
        assert!(permits.is_empty(), "it is budgets once");
    }

    #[test]
    fn of_a_stream_that_must_come_nothing_may_be_lost() {
        let content = Content::Plain { reliable: u64::MAX };
        let (mut watch, mut permits) = (Watch::new(content), Permits::default());
        watch.advance(&limits(content), |_| None, &mut permits);
        assert!(permits.is_empty());
    }

    #[test]
    fn of_frames_nothing_may_be_lost_before_one_has_come() {
        let (mut watch, mut permits) = (Watch::new(Content::Frames), Permits::default());
        watch.frames(START, None);
        watch.advance(&limits(Content::Frames), |_| None, &mut permits);
        assert!(permits.is_empty());
    }

    /// Tensors of 8 to 800 bytes.
    fn layout(sizes: &[u64]) -> Layout {
        let tensors = sizes.iter().enumerate().map(|(at, &n)| (format!("t{at}"), Dtype::F64, vec![n]));
        Layout::pack(tensors.collect::<Vec<_>>()).unwrap()
    }

    /// An update as a stream of frames that is cut at `cuts`. Also returns where each byte of the update is
    /// in the stream.
    fn stream(total: u64, cuts: &[u64], round: u32) -> (Vec<u8>, Vec<u64>) {
        let (mut bytes, mut places) = (vec![0; START as usize], Vec::new());
        let mut edges: Vec<u64> = cuts.iter().map(|cut| cut % total).chain([0, total]).collect();
        edges.sort_unstable();
        edges.dedup();
        for edge in edges.windows(2) {
            let (offset, length) = (edge[0], (edge[1] - edge[0]) as u32);
            let chunk = ChunkHeader { job: 1, round, sender: 3, layout: LayoutHash(4), offset, length };
            bytes.extend(FrameHeader::chunk(chunk, 0).encode());
            places.extend((0..u64::from(length)).map(|at| bytes.len() as u64 + at));
            bytes.resize(bytes.len() + length as usize, 0);
        }
        (bytes, places)
    }

    /// The permits of a watch. The stream arrives in steps, up to each offset of `comes`.
    fn permitted(tolerance: &Tolerance, bytes: &[u8], comes: &[usize]) -> Permits {
        let (mut watch, mut permits) = (Watch::new(Content::Frames), Permits::default());
        watch.tolerate(&Arc::new(tolerance.clone()), 1);
        watch.frames(START, None);
        let mut come: Vec<usize> = comes.iter().map(|at| at % bytes.len()).chain([bytes.len()]).collect();
        come.sort_unstable();
        for here in come {
            let header =
                |at: u64| bytes[..here].get(at as usize..at as usize + HEADER_BYTES)?.try_into().ok();
            watch.advance(&limits(Content::Frames), header, &mut permits);
        }
        permits
    }

    #[test]
    fn a_budget_names_its_tensor() {
        let layout = layout(&[10, 20]);
        let allowances = [Allowance { tensor: 1, budget: 500_000, refuse: 750_000 }];
        let tolerance = Tolerance::new(&layout, &allowances).unwrap();
        let mut watch = Watch::new(Content::Frames);
        watch.tolerate(&Arc::new(tolerance.clone()), 1);
        assert_eq!((watch.tensor(0), watch.tensor(1).as_deref(), watch.tensor(2)), (None, Some("t1"), None));
        let (bytes, places) = stream(layout.bytes(), &[200], 1);
        let permits = permitted(&tolerance, &bytes, &[]);
        let budget = &permits.budgets.unwrap()[1];
        assert_eq!((budget.mask, budget.refuse, budget.of), (0.5, 0.75, Some(160)));
        // The tensor is bytes 128 to 288 of the update, in two chunks.
        let parts = [(places[128], places[199] + 1), (places[200], places[287] + 1)];
        assert_eq!(permits.shares, parts.map(|(start, end)| (1, Range::new(start, end))));
    }

    #[test]
    fn what_was_asked_for_again_must_come() {
        let mut bytes = vec![0; START as usize];
        let mut places = Vec::new();
        for (round, offset, length) in [(1, 0, 100), (1, 100, 100), (1, 20, 30), (1, 150, 50), (2, 0, 40)] {
            let chunk = ChunkHeader { job: 1, round, sender: 3, layout: LayoutHash(4), offset, length };
            bytes.extend(FrameHeader::chunk(chunk, 0).encode());
            places.push(Range::new(bytes.len() as u64, bytes.len() as u64 + u64::from(length)));
            bytes.extend(vec![7; length as usize]);
        }
        let permits = permitted(&Tolerance::default(), &bytes, &[]);
        assert_eq!(permits.ranges, [places[0], places[1], places[4]]);
    }

    /// At first, one lost segment is more than the permitted fraction of what has arrived. So losses may come from the
    /// budget of the whole update.
    #[test]
    fn the_first_losses_come_out_of_what_all_of_an_update_may_lose() {
        let first = |bytes: u64, (budget, refuse): (f64, f64), lines: usize| {
            let (mut watch, mut permits) = (Watch::new(Content::Frames), Permits::default());
            watch.frames(START, None);
            let layout = layout(&[bytes / 8]);
            watch.tolerate(&Arc::new(Tolerance::new(&layout, &[]).unwrap()), lines);
            let chunk =
                ChunkHeader { job: 1, round: 2, sender: 3, layout: layout.hash(), offset: 0, length: 50 };
            let frame = |at| (at == START).then(|| FrameHeader::chunk(chunk, 0).encode());
            watch.advance(&Limits { budget, refuse, ..limits(Content::Frames) }, frame, &mut permits);
            permits.budgets.unwrap()[0].at_least
        };
        assert_eq!([first(100 << 20, (0.02, 1.0), 1), first(100 << 20, (0.0, 1.0), 1)], [48 << 10, 0]);
        assert_eq!([first(1_000_000, (0.02, 1.0), 1), first(1_000_000, (0.02, 1.0), 4)], [20_000, 5000]);
        assert_eq!(first(1_000_000, (0.02, 0.01), 1), 10_000);
    }

    /// A tensor has 160 bytes, from byte 128 on. The update is one sealed chunk, in records of 20 bytes. The
    /// six records before the tensor have none of its bytes.
    #[test]
    fn of_sealed_chunks_whole_records_are_critical_or_of_a_budget() {
        let layout = layout(&[10, 20]);
        let bytes = layout.bytes();
        let (records, rest) = (bytes / 20, bytes % 20);
        let length = (16 + records * 36 + if rest > 0 { rest + 16 } else { 0 }) as u32;
        let chunk = ChunkHeader { job: 1, round: 2, sender: 3, layout: LayoutHash(4), offset: 0, length };
        let start = START + HEADER_BYTES as u64 + 16;
        let end = start + u64::from(length) - 16;
        let permits_of = |budget: u32| {
            let allowances = [Allowance { tensor: 1, budget, refuse: 750_000 }];
            let (mut watch, mut permits) = (Watch::new(Content::Frames), Permits::default());
            watch.frames(START, Some(SEALED));
            watch.tolerate(&Arc::new(Tolerance::new(&layout, &allowances).unwrap()), 1);
            let frame = |at| (at == START).then(|| FrameHeader::chunk(chunk, 0).encode());
            watch.advance(&limits(Content::Frames), frame, &mut permits);
            permits
        };
        let permits = permits_of(500_000);
        assert_eq!(permits.ranges, [Range::new(start, end)]);
        let last = (start + 288_u64.div_ceil(20) * 36).min(end);
        assert_eq!(permits.shares, [(1, Range::new(start + 6 * 36, last))]);
        let budget = &permits.budgets.unwrap()[1];
        assert_eq!((budget.mask, budget.refuse, budget.of), (0.5, (120.0 + 72.0) / 160.0, Some(160)));
        assert_eq!(permits_of(0).ranges[0], Range::new(start, start + 6 * 36));
        assert!(permits_of(0).ranges.iter().all(|part| part.end <= start + 6 * 36 || part.start >= last));
    }

    proptest! {
        /// An update is cut into chunks in any way, and arrives in any steps. No byte of a critical tensor
        /// may be lost. The padding behind a critical tensor is critical too, so that nobody drops a part of
        /// a value. All other bytes may be lost, and each byte of a tensor with a budget counts for that
        /// budget.
        #[test]
        fn critical_bytes_are_never_permitted(
            sizes in prop::collection::vec(1..100_u64, 1..8),
            shares in prop::collection::vec(0..4_u32, 8),
            cuts in prop::collection::vec(0..4000_u64, 0..20),
            comes in prop::collection::vec(0..8000_usize, 0..20),
        ) {
            let layout = layout(&sizes);
            let named = (0..sizes.len() as u32).filter(|&at| shares[at as usize] < 3);
            let allowances: Vec<Allowance> = named
                .map(|tensor| Allowance { tensor, budget: 200_000 * shares[tensor as usize], refuse: 1_000_000 })
                .collect();
            let tolerance = Tolerance::new(&layout, &allowances).unwrap();
            let (bytes, places) = stream(layout.bytes(), &cuts, 1);
            let permits = permitted(&tolerance, &bytes, &comes);
            let may: Ranges = permits.ranges.iter().copied().collect();
            let of_budget = |at: usize| -> Ranges {
                permits.shares.iter().filter(|(budget, _)| *budget == at).map(|&(_, range)| range).collect()
            };
            prop_assert_eq!(permits.budgets.as_ref().unwrap().len(), tolerance.limits().len() + 1);
            for (at, &place) in places.iter().enumerate() {
                let byte = Range::new(place, place + 1);
                let critical = tolerance.critical().covers(Range::new(at as u64, at as u64 + 1));
                prop_assert_eq!(may.covers(byte), !critical, "byte {}", at);
            }
            for (at, limit) in tolerance.limits().iter().enumerate() {
                let expected: Ranges = (limit.range.start..limit.range.end)
                    .map(|byte| Range::new(places[byte as usize], places[byte as usize] + 1))
                    .collect();
                prop_assert_eq!(of_budget(at + 1), expected);
                let whole = Range::new(limit.range.start, limit.range.end.next_multiple_of(64));
                prop_assert!(!limit.is_critical() || tolerance.critical().covers(whole));
            }
            // The headers of frames belong to no tensor.
            let payload: u64 = may.iter().map(Range::len).sum();
            let critical: u64 =
                tolerance.critical().within(Range::new(0, layout.bytes())).map(Range::len).sum();
            prop_assert_eq!(payload, layout.bytes() - critical);
        }
    }

    /// A link under TLS never says that frames follow.
    #[test]
    fn nothing_may_be_lost_before_it_is_said_that_frames_come() {
        let chunk = ChunkHeader { job: 1, round: 2, sender: 3, layout: LayoutHash(4), offset: 0, length: 50 };
        let frame = |at| (at == START).then(|| FrameHeader::chunk(chunk, 0).encode());
        let (mut watch, mut permits) = (Watch::new(Content::Frames), Permits::default());
        watch.advance(&limits(Content::Frames), frame, &mut permits);
        assert!(permits.ranges.is_empty());
        watch.frames(START, Some(SEALED));
        watch.advance(&limits(Content::Frames), frame, &mut permits);
        let payload = START + HEADER_BYTES as u64;
        assert_eq!(permits.ranges, [Range::new(payload + 16, payload + 50)]);
        assert!(permits.budgets.is_some());
    }
}
