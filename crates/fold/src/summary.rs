//! What the participants covered of the update, as `finish` found it.

use thalweg_wire::Layout;

/// How much of one tensor was covered, and with how much weight.
#[derive(Debug, Clone, PartialEq)]
pub struct Coverage {
    /// Elements looked at: those of the tensor within the finished part.
    pub elements: u64,
    /// Elements that at least one participant sent.
    pub covered: u64,
    least: f64,
    total: f64,
}

impl Coverage {
    const NONE: Coverage = Coverage { elements: 0, covered: 0, least: f64::INFINITY, total: 0.0 };

    /// Part of the elements that is covered, 0 to 1; 1 for a tensor without elements.
    pub fn fraction(&self) -> f64 {
        if self.elements == 0 {
            return 1.0;
        }
        self.covered as f64 / self.elements as f64
    }

    /// The least weight of any element; 0 if there is a hole or no element.
    pub fn least_weight(&self) -> f64 {
        if self.elements == 0 {
            return 0.0;
        }
        self.least
    }

    /// The mean over the elements of their weight, holes counting as 0; 0 without elements.
    pub fn mean_weight(&self) -> f64 {
        if self.elements == 0 {
            return 0.0;
        }
        self.total / self.elements as f64
    }

    fn add(&mut self, other: &Coverage) {
        self.elements += other.elements;
        self.covered += other.covered;
        self.least = self.least.min(other.least);
        self.total += other.total;
    }
}

/// What `finish` found.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// One for each tensor, in the layout's order.
    pub tensors: Vec<Coverage>,
    /// Bytes of elements that nobody sent; there the repair decided.
    pub uncovered_bytes: u64,
}

impl Summary {
    pub(crate) fn new(layout: &Layout) -> Self {
        Self { tensors: vec![Coverage::NONE; layout.tensors().len()], uncovered_bytes: 0 }
    }

    /// Adds what another part's `finish_part` found.
    pub fn merge(&mut self, other: &Summary) {
        for (ours, theirs) in self.tensors.iter_mut().zip(&other.tensors) {
            ours.add(theirs);
        }
        self.uncovered_bytes += other.uncovered_bytes;
    }

    /// `bytes` of a tensor, of elements of `size`, all of which have this weight.
    pub(crate) fn record(&mut self, tensor: usize, bytes: usize, size: u64, weight: f64) {
        let elements = bytes as u64 / size;
        let hole = weight == 0.0;
        let covered = if hole { 0 } else { elements };
        let total = weight * elements as f64;
        self.tensors[tensor].add(&Coverage { elements, covered, least: weight, total });
        self.uncovered_bytes += if hole { bytes as u64 } else { 0 };
    }
}
