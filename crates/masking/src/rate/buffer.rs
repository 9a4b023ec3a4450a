//! Estimates the depth of the bottleneck buffer: how long its queue is when it overflows. A path loses
//! packets anyway, so a single loss says nothing. Overflow shows by far more losses than there are while the
//! queue is short.

/// Losses of a round trip count as overflow if they exceed the usual number by this many segments and
/// standard deviations.
const MORE: f64 = 6.0;
/// Prior: segments delivered and lost before any were seen (1 % loss).
const BEFORE: (f64, f64) = (990.0, 10.0);
/// Share of an overflowing queue that a flow uses at most.
const KEPT: f64 = 0.5;
/// Decay of the recent maximum, per decision. The losses of a round trip are known only when it has passed.
const FADES: f64 = 0.85;
/// Factor by which the estimate grows at each drain, since buffers change.
const FORGETS: f64 = 1.25;

/// The estimated buffer depth: the shortest queue, in seconds, that has overflowed.
#[derive(Debug, Clone, Copy)]
pub(super) struct BufferDepth {
    length: f64,
    /// The longest recent queue.
    longest: f64,
    /// Segments delivered and lost while the queue was short.
    came: f64,
    gone: f64,
}

impl Default for BufferDepth {
    fn default() -> Self {
        Self { length: f64::INFINITY, longest: 0.0, came: BEFORE.0, gone: BEFORE.1 }
    }
}

impl BufferDepth {
    /// Takes the segments of the last round trip. `short`: the queue is nearly empty.
    pub fn see(&mut self, queue: f64, short: bool, came: f64, gone: f64) {
        self.longest = queue.max(FADES * self.longest);
        if short {
            self.came += came;
            self.gone += gone;
            return;
        }
        let usual = (came + gone) * self.usual();
        if gone > usual + MORE * (1.0 + usual.sqrt()) {
            self.length = self.length.min(self.longest);
        }
    }

    /// The usual loss rate of the path.
    pub fn usual(&self) -> f64 {
        self.gone / (self.came + self.gone)
    }

    /// The longest queue to use: well below the buffer depth.
    pub fn bound(&self) -> f64 {
        KEPT * self.length
    }

    /// Raises the estimate a little: buffers change.
    pub fn forget(&mut self) {
        self.length *= FORGETS;
    }
}
