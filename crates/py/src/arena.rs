//! The class `Arena`: memory for a model.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{core_error, raise};
use crate::layout::Layout;

/// A page-aligned buffer for a model, zeroed at first. `numpy.asarray(arena)` is a view of it.
#[pyclass(frozen, module = "thalweg._core")]
pub struct Arena {
    pub(crate) arena: thalweg_arena::Arena,
    pub(crate) layout: thalweg_wire::Layout,
}

#[pymethods]
impl Arena {
    /// Makes an arena for a layout. Peers on this machine can read a `shared` arena's bytes in place.
    #[new]
    #[pyo3(signature = (layout, *, shared = false))]
    fn new(layout: &Layout, shared: bool) -> PyResult<Self> {
        let make = if shared { thalweg_runtime::shared_arena } else { thalweg_arena::Arena::new };
        let arena = make(layout.0.bytes());
        let arena = arena.map_err(raise)?;
        Ok(Self { arena, layout: layout.0.clone() })
    }

    /// Layout of the model.
    #[getter]
    fn layout(&self) -> Layout {
        Layout(self.layout.clone())
    }

    /// Address of the first byte.
    #[getter]
    fn address(&self) -> usize {
        self.arena.as_ptr() as usize
    }

    fn __len__(&self) -> usize {
        self.arena.len() as usize
    }

    fn __repr__(&self) -> String {
        format!("Arena({} bytes, layout {})", self.arena.len(), self.layout.hash())
    }

    /// Replaces the float32 values by the values that every receiver gets if the layer `compress` sends this
    /// model: in the format `format` (f16 or int8), or rounded by `scheme` (int8, int4, int2 or topk:F).
    #[pyo3(signature = (format = None, *, scheme = None))]
    fn compress(&self, py: Python<'_>, format: Option<&str>, scheme: Option<&str>) -> PyResult<()> {
        let unknown = |why: String| core_error(thalweg_runtime::Kind::Unsupported, "compress a model", why);
        let scheme = scheme.map(str::parse::<thalweg_runtime::Scheme>).transpose().map_err(unknown)?;
        if matches!(scheme, Some(thalweg_runtime::Scheme::PowerSgd(_))) {
            return Err(unknown("powersgd makes factors from round to round; it rounds no values".into()));
        }
        let named = format.map(|named| serde_json::from_value::<thalweg_runtime::Format>(named.into()));
        let format = named.transpose().map_err(|e| unknown(e.to_string()))?;
        py.detach(|| {
            let mut claim = self.arena.claim(self.arena.range())?;
            if let Some(format) = format {
                format.round(&self.layout, &mut claim);
            }
            if let Some(scheme) = scheme {
                scheme.round(&self.layout, &mut claim);
            }
            Ok(())
        })
        .map_err(|error: thalweg_arena::ArenaError| raise(error))
    }

    /// NumPy's array interface: `numpy.asarray(arena)` is a writable view of unsigned bytes that keeps the
    /// arena alive. Rust does not know of views: do not write to a model while it is being sent.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("shape", (self.arena.len(),))?;
        interface.set_item("data", (self.address(), false))?;
        Ok(interface)
    }
}
