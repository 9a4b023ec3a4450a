//! Estimates the depth of the bottleneck buffer: how long its queue is when it overflows. Paths lose packets
//! anyway, so a single loss says nothing. A round trip shows overflow if it has far more losses than round
//! trips with a short queue have.

/// Losses of a round trip count as overflow if they exceed the usual number by this many times one segment
/// plus the standard deviation.
const MORE: f64 = 6.0;
/// Prior of the usual loss rate: segments delivered and lost (1 % loss).
const BEFORE: (f64, f64) = (990.0, 10.0);
/// Maximum fraction of the buffer depth that a flow uses.
const KEPT: f64 = 0.5;
/// Decay of the recent maximum, per decision. The controller learns the losses of a round trip only after it.
const FADES: f64 = 0.85;
/// Factor by which the estimate grows at each drain, since the buffer may have become deeper.
const FORGETS: f64 = 1.25;

/// The estimated buffer depth in seconds: the shortest queue that has overflowed.
#[derive(Debug, Clone, Copy)]
pub(super) struct BufferDepth {
    length: f64,
    /// The longest recent queue.
    longest: f64,
    /// Segments delivered and lost while the queue was short.
    delivered: f64,
    lost: f64,
}

impl Default for BufferDepth {
    fn default() -> Self {
        Self { length: f64::INFINITY, longest: 0.0, delivered: BEFORE.0, lost: BEFORE.1 }
    }
}

impl BufferDepth {
    /// Takes the segments of the last round trip, delivered and lost. `short`: the queue is nearly empty.
    pub fn see(&mut self, queue: f64, short: bool, delivered: f64, lost: f64) {
        self.longest = queue.max(FADES * self.longest);
        if short {
            self.delivered += delivered;
            self.lost += lost;
            return;
        }
        let usual = (delivered + lost) * self.usual();
        if lost > usual + MORE * (1.0 + usual.sqrt()) {
            self.length = self.length.min(self.longest);
        }
    }

    /// The usual loss rate of the path.
    pub fn usual(&self) -> f64 {
        self.lost / (self.delivered + self.lost)
    }

    /// The longest queue to use, in seconds: well below the buffer depth.
    pub fn bound(&self) -> f64 {
        KEPT * self.length
    }

    /// Raises the estimate a little, since the buffer may have become deeper.
    pub fn forget(&mut self) {
        self.length *= FORGETS;
    }
}
