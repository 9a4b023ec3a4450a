//! The class `Layout`: where each tensor lies in a flat buffer.

use pyo3::prelude::*;
use thalweg_runtime::{Error, Kind};
use thalweg_wire::{Dtype, WireError};

use crate::errors::{core_error, raise};

/// Names, dtypes, shapes and byte offsets of an update's tensors in one flat buffer.
#[pyclass(frozen, module = "thalweg._core")]
pub struct Layout(pub(crate) thalweg_wire::Layout);

fn layout_error(error: WireError) -> PyErr {
    core_error(Kind::Layout, "", error.to_string())
}

#[pymethods]
impl Layout {
    /// Packs the tensors `(name, dtype, shape)` one after the other, each at a multiple of 64 bytes. Dtypes
    /// have safetensors' names, such as `F32` or `BF16`.
    #[new]
    fn new(tensors: Vec<(String, String, Vec<u64>)>) -> PyResult<Self> {
        let parsed: PyResult<Vec<_>> = tensors
            .into_iter()
            .map(|(name, dtype, shape)| {
                let known = Dtype::ALL.iter().map(|d| d.name()).collect::<Vec<_>>().join(", ");
                let parsed = Dtype::parse(&dtype).ok_or_else(|| {
                    let cause = format!("tensor {name:?} has dtype {dtype:?}");
                    raise(Error::new(Kind::Layout, "", cause).hint(format!("known are {known}")))
                })?;
                Ok((name, parsed, shape))
            })
            .collect();
        Ok(Self(thalweg_wire::Layout::pack(parsed?).map_err(layout_error)?))
    }

    /// `(name, dtype, shape, offset in bytes)` of every tensor, by rising offset.
    #[getter]
    fn tensors(&self) -> Vec<(String, &'static str, Vec<u64>, u64)> {
        let tensors = self.0.tensors().iter();
        tensors.map(|t| (t.name.clone(), t.dtype.name(), t.shape.clone(), t.offset)).collect()
    }

    /// Bytes of the whole buffer.
    #[getter]
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    /// Number of elements of all tensors.
    #[getter]
    fn elements(&self) -> u64 {
        self.0.elements()
    }

    /// Divides the bytes into at most `count` parts of similar size, for a sharded top. Returns the first
    /// byte of each part, and the one after its last.
    fn parts(&self, count: usize) -> Vec<(u64, u64)> {
        thalweg_runtime::parts_of(&self.0, count).into_iter().map(|part| (part.start, part.end)).collect()
    }

    /// Hash of the layout, which both ends of a link compare.
    #[getter]
    fn hash(&self) -> String {
        self.0.hash().to_string()
    }

    /// Describes the first tensor in which `other` differs; None if none does. `here` and `there` name the
    /// owners of the two layouts.
    #[pyo3(signature = (other, here="here", there="there"))]
    fn difference(&self, other: &Layout, here: &str, there: &str) -> Option<String> {
        self.0.difference(&other.0).map(|difference| difference.describe(here, there))
    }

    fn __repr__(&self) -> String {
        format!("Layout({} tensors, {} bytes, {})", self.0.tensors().len(), self.0.bytes(), self.0.hash())
    }

    fn __eq__(&self, other: &Layout) -> bool {
        self.0 == other.0
    }
}
