//! The properties of a link, the frames that travel on it, and the events of the simulation.

use thalweg_proto::{LinkId, Span, Time};
use thalweg_wire::{checksum, ChunkHeader, FrameHeader, HEADER_BYTES};

/// A seeded sequence of random numbers, times and nonces.
pub struct Rng(thalweg_rng::Rng);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(thalweg_rng::Rng::seeded(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.draw()
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub fn chance(&mut self, probability: f64) -> bool {
        self.0.hits(probability)
    }

    pub fn time(&mut self, bound: Time) -> Time {
        Time::from_nanos(self.below(bound.as_nanos() as u64 + 1))
    }

    pub fn nonce(&mut self) -> [u8; 32] {
        let mut nonce = [0; 32];
        nonce.chunks_mut(8).for_each(|part| part.copy_from_slice(&self.next().to_le_bytes()));
        nonce
    }
}

/// One direction of a link.
#[derive(Debug, Clone, Copy)]
pub struct Path {
    /// Bytes per second; 0 moves nothing.
    pub rate: u64,
    pub delay: Time,
    /// On an unordered link, chunks arrive up to this much later.
    pub jitter: Time,
    pub loss: f64,
    /// Fraction of chunks of which only the first and the last third arrive.
    pub holes: f64,
    pub duplicate: f64,
    pub corrupt: f64,
    pub ordered: bool,
    /// Messages travel separately, so chunks do not hold them up.
    pub separate: bool,
    /// The link breaks once this many bytes of chunks were sent in this direction.
    pub cut_after: Option<u64>,
}

impl Path {
    pub const PERFECT: Path = Path {
        rate: 10_000_000,
        delay: Time::from_millis(1),
        jitter: Time::ZERO,
        loss: 0.0,
        holes: 0.0,
        duplicate: 0.0,
        corrupt: 0.0,
        ordered: true,
        separate: false,
        cut_after: None,
    };
}

/// A frame on a link.
#[derive(Debug, Clone)]
pub enum Frame {
    Control(Vec<u8>),
    Chunk(FrameHeader, Vec<u8>),
}

impl Frame {
    pub fn bytes(&self) -> u64 {
        let (Frame::Control(payload) | Frame::Chunk(_, payload)) = self;
        (HEADER_BYTES + payload.len()) as u64
    }

    /// The first and the last third of a chunk, which a link with holes delivers.
    pub fn outer_thirds(self) -> Vec<Frame> {
        let Frame::Chunk(header, payload) = self else { return vec![self] };
        let third = payload.len() / 3 / 8 * 8;
        if third == 0 {
            return vec![Frame::Chunk(header, payload)];
        }
        [0..third, payload.len() - third..payload.len()]
            .into_iter()
            .map(|part| {
                let (offset, length) = (header.chunk.offset + part.start as u64, part.len() as u32);
                let bytes = payload[part].to_vec();
                let chunk = ChunkHeader { offset, length, ..header.chunk };
                Frame::Chunk(FrameHeader::chunk(chunk, checksum(&bytes)), bytes)
            })
            .collect()
    }

    pub fn damage(&mut self, rng: &mut Rng) {
        if let Frame::Chunk(_, payload) = self {
            let at = rng.below(payload.len() as u64) as usize;
            payload[at] ^= 1 << rng.below(8);
        }
    }
}

/// One end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Server,
    Client,
}

impl End {
    pub fn other(self) -> End {
        if self == End::Server {
            End::Client
        } else {
            End::Server
        }
    }
}

/// An event of the simulation.
#[derive(Debug)]
pub enum Event {
    /// A frame arrives. `counted` of its bytes were already reported as progress.
    Arrive {
        link: LinkId,
        to: End,
        frame: Frame,
        counted: u64,
    },
    /// Part of a slow frame arrives.
    Progress {
        link: LinkId,
        to: End,
        bytes: u64,
    },
    Pump {
        link: LinkId,
        from: End,
    },
    Sent {
        link: LinkId,
        from: End,
        round: u32,
        outcome: Result<Span, String>,
    },
    Accept {
        link: LinkId,
    },
    Cut {
        link: LinkId,
    },
    Closed {
        link: LinkId,
        end: End,
        reason: String,
    },
    Connect {
        client: usize,
        instance: u64,
    },
    Trained {
        client: usize,
        instance: u64,
        round: u32,
    },
    Folded {
        sender: u32,
        outcome: Result<(), String>,
    },
    /// The application of a server of tasks has judged an offered result.
    Judged {
        task: u32,
        sender: u32,
        outcome: Result<(), String>,
    },
}
