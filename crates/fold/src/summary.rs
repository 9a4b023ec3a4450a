//! How much of the update the participants have covered, as `finish` reports it.

use thalweg_wire::Layout;

/// How much of one tensor was covered, and with how much weight.
#[derive(Debug, Clone, PartialEq)]
pub struct Coverage {
    /// Number of elements of the tensor within the finished part.
    pub elements: u64,
    /// Number of elements that at least one participant sent.
    pub covered: u64,
    least: f64,
    total: f64,
}

impl Coverage {
    const NONE: Coverage = Coverage { elements: 0, covered: 0, least: f64::INFINITY, total: 0.0 };

    /// Fraction of the elements that is covered, 0 to 1. It is 1 for a tensor without elements.
    pub fn fraction(&self) -> f64 {
        if self.elements == 0 {
            return 1.0;
        }
        self.covered as f64 / self.elements as f64
    }

    /// The least weight of any element. It is 0 if there is a hole, or no element.
    pub fn least_weight(&self) -> f64 {
        if self.elements == 0 {
            return 0.0;
        }
        self.least
    }

    /// The mean weight of an element. Holes count as 0. It is 0 if there are no elements.
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

/// The report of `finish`.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// One for each tensor, in the layout's order.
    pub tensors: Vec<Coverage>,
    /// Bytes of elements that no client sent. [`Replacement`](crate::Replacement) has decided which values they get.
    pub uncovered_bytes: u64,
}

impl Summary {
    pub(crate) fn new(layout: &Layout) -> Self {
        Self { tensors: vec![Coverage::NONE; layout.tensors().len()], uncovered_bytes: 0 }
    }

    /// Adds what `finish_part` reported for another part.
    pub fn merge(&mut self, other: &Summary) {
        for (ours, theirs) in self.tensors.iter_mut().zip(&other.tensors) {
            ours.add(theirs);
        }
        self.uncovered_bytes += other.uncovered_bytes;
    }

    /// Records `bytes` bytes of a tensor. Its elements have `size` bytes, and all of these received this
    /// weight.
    pub(crate) fn record(&mut self, tensor: usize, bytes: usize, size: u64, weight: f64) {
        let elements = bytes as u64 / size;
        let hole = weight == 0.0;
        let covered = if hole { 0 } else { elements };
        let total = weight * elements as f64;
        self.tensors[tensor].add(&Coverage { elements, covered, least: weight, total });
        self.uncovered_bytes += if hole { bytes as u64 } else { 0 };
    }
}
