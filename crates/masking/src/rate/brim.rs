//! How long a queue is when it overflows. Paths lose packets anyway, so a loss says nothing of it: but far more of them than
//! are lost while the queue is short do.

/// Segments by which a round trip's loss is beyond chance, and its standard deviations.
const MORE: f64 = 6.0;
/// Segments that are taken to have come, and to have been lost, before any have.
const BEFORE: (f64, f64) = (990.0, 10.0);
/// Share of the queue that a flow keeps at most of one that overflowed.
const KEPT: f64 = 0.5;
/// How fast a queue is no longer of late, for each decision: losses of a round trip are known when it has passed.
const FADES: f64 = 0.85;
/// What was learnt is forgotten by so much, now and then.
const FORGETS: f64 = 1.25;

/// The shortest queue, in seconds, that has overflowed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Brim {
    length: f64,
    /// The longest queue of late.
    longest: f64,
    /// Segments that came, and were lost, while the queue was short.
    came: f64,
    gone: f64,
}

impl Default for Brim {
    fn default() -> Self {
        Self { length: f64::INFINITY, longest: 0.0, came: BEFORE.0, gone: BEFORE.1 }
    }
}

impl Brim {
    /// Segments of the last round trip; `short`: the queue is as good as empty.
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

    /// Share of what is sent that the path itself loses.
    pub fn usual(&self) -> f64 {
        self.gone / (self.came + self.gone)
    }

    /// The longest queue that is well below it.
    pub fn bound(&self) -> f64 {
        KEPT * self.length
    }

    /// Queues change.
    pub fn forget(&mut self) {
        self.length *= FORGETS;
    }
}
