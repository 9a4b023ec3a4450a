//! The layout of an update: names, dtypes, shapes and byte offsets of its tensors in one flat buffer.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{Difference, Dtype, Range, Ranges, TensorSpec, WireError};

/// Every tensor starts at a multiple of this many bytes, the size of a cache line and of the widest vector
/// register.
pub const ALIGN: u64 = 64;
/// Maximum number of tensors that a layout may have.
pub const MAX_TENSORS: usize = 1 << 17;
/// Longest name of a tensor, in bytes.
pub(crate) const MAX_NAME: usize = 1024;
/// Maximum number of dimensions of a tensor.
pub(crate) const MAX_RANK: usize = 16;
const MAX_BYTES: u64 = 1 << 46;

/// One tensor's place in the flat buffer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    /// The tensor's name, unique in the layout: for example a key of a PyTorch `state_dict`.
    pub name: String,
    /// The element type.
    pub dtype: Dtype,
    /// The shape, row-major; empty for a scalar.
    pub shape: Vec<u64>,
    /// First byte, a multiple of [`ALIGN`].
    pub offset: u64,
}

impl Tensor {
    /// Number of elements; 1 for a scalar. Saturates on absurd shapes, which [`Layout`] refuses.
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |n, &d| n.saturating_mul(d))
    }

    /// The tensor's bytes in the buffer.
    pub fn range(&self) -> Range {
        Range::new(self.offset, self.offset.saturating_add(self.elements().saturating_mul(self.dtype.size())))
    }
}

/// The first 8 bytes of the SHA-256 of the layout's canonical encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct LayoutHash(pub u64);

impl LayoutHash {
    /// The hash of this layout together with the names of a group, in this order: the first 8 bytes of the
    /// SHA-256 of both. It marks bytes that only members of the same group can use.
    #[must_use]
    pub fn of_group<'a>(self, names: impl IntoIterator<Item = &'a str>) -> Self {
        let mut digest = Sha256::new_with_prefix(self.0.to_le_bytes());
        for name in names {
            digest.update((name.len() as u64).to_le_bytes());
            digest.update(name);
        }
        Self(first_bytes(&digest.finalize()))
    }
}

/// The first 8 bytes of a digest, as a number.
fn first_bytes(digest: &[u8]) -> u64 {
    digest.iter().take(8).rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

impl std::fmt::Display for LayoutHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The places of all tensors of an update. Every value is valid: tensors are in order, aligned, disjoint and
/// bounded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Tensor>", into = "Vec<Tensor>")]
pub struct Layout {
    tensors: Vec<Tensor>,
    hash: LayoutHash,
}

impl Default for Layout {
    /// The layout without tensors.
    fn default() -> Self {
        let tensors = Vec::new();
        let hash = hash_of(&tensors).unwrap_or_default();
        Self { tensors, hash }
    }
}

impl Layout {
    /// Packs tensors one after the other, each at the next multiple of [`ALIGN`].
    ///
    /// # Errors
    /// [`WireError::Layout`] for an empty or repeated name, a shape that overflows, or too many tensors.
    pub fn pack<N: Into<String>>(
        tensors: impl IntoIterator<Item = (N, Dtype, Vec<u64>)>,
    ) -> Result<Self, WireError> {
        let mut offset = 0_u64;
        let placed = tensors.into_iter().map(|(name, dtype, shape)| {
            let tensor = Tensor { name: name.into(), dtype, shape, offset };
            offset = tensor.range().end.saturating_add(ALIGN - 1) / ALIGN * ALIGN;
            tensor
        });
        Self::new(placed.take(MAX_TENSORS + 1).collect())
    }

    /// A layout of tensors whose offsets are given.
    ///
    /// # Errors
    /// [`WireError::Layout`] saying which tensor is out of order, misaligned, overlapping or too large.
    pub fn new(tensors: Vec<Tensor>) -> Result<Self, WireError> {
        validate(&tensors)?;
        let hash = hash_of(&tensors)?;
        Ok(Self { tensors, hash })
    }

    /// The tensors in ascending order of their offsets.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Bytes of the whole buffer, up to the end of the last tensor.
    pub fn bytes(&self) -> u64 {
        self.tensors.last().map_or(0, |t| t.range().end)
    }

    /// Number of elements of all tensors together.
    pub fn elements(&self) -> u64 {
        self.tensors.iter().map(Tensor::elements).sum()
    }

    /// The hash by which chunks name their layout.
    pub fn hash(&self) -> LayoutHash {
        self.hash
    }

    /// The tensors that overlap `range`. Uses a binary search.
    pub fn overlapping(&self, range: Range) -> &[Tensor] {
        let first = self.tensors.partition_point(|t| t.range().end <= range.start);
        let last = self.tensors.partition_point(|t| t.offset < range.end);
        &self.tensors[first.min(last)..last]
    }

    /// The tensor in which `range` begins or ends inside an element; `None` if it cuts no element. A multiple
    /// of 8 cuts no element, since tensors are aligned and no element is larger than 8 bytes.
    pub fn cut_by(&self, range: Range) -> Option<&Tensor> {
        [range.start, range.end].into_iter().filter(|at| !at.is_multiple_of(8)).find_map(|at| {
            let tensor = self.overlapping(Range::new(at, at.saturating_add(1))).first()?;
            (!(at - tensor.offset).is_multiple_of(tensor.dtype.size())).then_some(tensor)
        })
    }

    /// The tensors that `holes` touch, in order, each with the number of its bytes that are in holes.
    pub fn losses(&self, holes: &Ranges) -> Vec<(&Tensor, u64)> {
        let mut found: Vec<(&Tensor, u64)> = Vec::new();
        for hole in holes.iter() {
            for tensor in self.overlapping(hole) {
                let bytes = tensor.range().intersect(hole).len();
                match found.last_mut().filter(|(last, _)| last.offset == tensor.offset) {
                    Some((_, sum)) => *sum += bytes,
                    None if bytes > 0 => found.push((tensor, bytes)),
                    None => {}
                }
            }
        }
        found
    }

    /// The tensor with this name.
    pub fn find(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// The first tensor in which `other` differs from this layout; `None` if they are the same.
    pub fn difference(&self, other: &Layout) -> Option<Difference> {
        let (ours, theirs) = (&self.tensors, &other.tensors);
        let same = ours.iter().zip(theirs).take_while(|(ours, theirs)| ours == theirs).count();
        let (mine, yours) = (ours.get(same), theirs.get(same));
        // If the two names differ, name the tensor that only one layout has, because that says most.
        let lone = |tensor: &&Tensor, within: &Layout| within.find(&tensor.name).is_none();
        let added = mine.filter(|tensor| lone(tensor, other));
        let first = added.or_else(|| yours.filter(|tensor| lone(tensor, self))).or(mine).or(yours)?;
        Some(self.difference_of(&first.name, other.find(&first.name).map(TensorSpec::of)))
    }

    /// How this layout's tensor `name` differs from the other layout's. `theirs` is the tensor in the other
    /// layout; `None` if it has none.
    pub fn difference_of(&self, name: &str, theirs: Option<TensorSpec>) -> Difference {
        Difference { name: name.into(), ours: self.find(name).map(TensorSpec::of), theirs }
    }
}

fn validate(tensors: &[Tensor]) -> Result<(), WireError> {
    let bad = |what: String| Err(WireError::Layout(what));
    if tensors.len() > MAX_TENSORS {
        return bad(format!("more than {MAX_TENSORS} tensors"));
    }
    let mut names = std::collections::HashSet::with_capacity(tensors.len());
    let mut end = 0;
    for tensor in tensors {
        if tensor.name.is_empty() || tensor.name.len() > MAX_NAME {
            return bad(format!("a tensor name must have 1 to {MAX_NAME} bytes"));
        }
        if !names.insert(tensor.name.as_str()) {
            return bad(format!("tensor {:?} appears twice", tensor.name));
        }
        if tensor.shape.len() > MAX_RANK {
            return bad(format!("tensor {:?} has more than {MAX_RANK} dimensions", tensor.name));
        }
        let range = tensor.range();
        if range.end > MAX_BYTES {
            return bad(format!("tensor {:?} ends beyond {MAX_BYTES} bytes", tensor.name));
        }
        if tensor.offset % ALIGN != 0 || tensor.offset < end {
            return bad(format!(
                "tensor {:?} at byte {} is misaligned or overlaps the one before it",
                tensor.name, tensor.offset
            ));
        }
        end = range.end;
    }
    Ok(())
}

fn hash_of(tensors: &[Tensor]) -> Result<LayoutHash, WireError> {
    let canonical = postcard::to_stdvec(tensors).map_err(|e| WireError::Layout(e.to_string()))?;
    Ok(LayoutHash(first_bytes(&Sha256::digest(&canonical))))
}

impl TryFrom<Vec<Tensor>> for Layout {
    type Error = WireError;
    fn try_from(tensors: Vec<Tensor>) -> Result<Self, WireError> {
        Self::new(tensors)
    }
}

impl From<Layout> for Vec<Tensor> {
    fn from(layout: Layout) -> Self {
        layout.tensors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Layout {
        Layout::pack([("a", Dtype::F32, vec![3]), ("b", Dtype::BF16, vec![2, 5]), ("n", Dtype::I64, vec![])])
            .unwrap()
    }

    #[test]
    fn no_tensors_make_a_layout() {
        assert_eq!(Layout::new(Vec::new()), Ok(Layout::default()));
    }

    #[test]
    fn packs_aligned_and_counts() {
        let layout = small();
        let offsets: Vec<u64> = layout.tensors().iter().map(|t| t.offset).collect();
        assert_eq!(offsets, [0, 64, 128]);
        assert_eq!(layout.bytes(), 136);
        assert_eq!(layout.elements(), 14);
    }

    #[test]
    fn finds_overlapping_tensors() {
        let names = |a, b| -> Vec<String> {
            small().overlapping(Range::new(a, b)).iter().map(|t| t.name.clone()).collect()
        };
        assert_eq!(names(0, 64), ["a"]);
        assert_eq!(names(12, 64), Vec::<String>::new());
        assert_eq!(names(8, 130), ["a", "b", "n"]);
    }

    #[test]
    fn hash_depends_on_every_field() {
        let base = small().hash();
        let renamed = Layout::pack([("z", Dtype::F32, vec![3])]).unwrap();
        let reshaped = Layout::pack([("z", Dtype::F32, vec![1, 3])]).unwrap();
        assert_ne!(base, renamed.hash());
        assert_ne!(renamed.hash(), reshaped.hash());
        assert_eq!(renamed.difference(&reshaped).unwrap().name, "z");
        assert_eq!(small().difference(&small()), None);
    }

    #[test]
    fn the_hash_of_a_group_depends_on_layout_names_and_their_borders() {
        let base = small().hash();
        let group = |names: &[&str]| base.of_group(names.iter().copied());
        assert_eq!(group(&["a", "bc"]), group(&["a", "bc"]));
        for other in [group(&["ab", "c"]), group(&["a", "bc", ""]), group(&["bc", "a"]), base] {
            assert_ne!(group(&["a", "bc"]), other);
        }
        assert_ne!(LayoutHash(base.0 ^ 1).of_group(["a"]), base.of_group(["a"]));
    }

    #[test]
    fn losses_are_those_of_each_tensor_and_not_of_the_padding() {
        let layout = Layout::pack([
            ("a", Dtype::F32, vec![20]),
            ("empty", Dtype::F32, vec![0]),
            ("b", Dtype::F64, vec![2]),
            ("c", Dtype::U8, vec![]),
        ]);
        let layout = layout.unwrap();
        let losses = |holes: &[(u64, u64)]| -> Vec<(String, u64)> {
            let holes = holes.iter().map(|&(start, end)| Range::new(start, end)).collect();
            layout.losses(&holes).iter().map(|(tensor, bytes)| (tensor.name.clone(), *bytes)).collect()
        };
        assert_eq!(losses(&[]), []);
        assert_eq!(losses(&[(80, 128)]), [], "padding");
        let (a, b, c) = ("a".to_owned(), "b".to_owned(), "c".to_owned());
        assert_eq!(losses(&[(4, 8), (70, 130)]), [(a.clone(), 14), (b.clone(), 2)]);
        assert_eq!(losses(&[(0, 1 << 40)]), [(a, 80), (b, 16), (c, 1)]);
    }

    #[test]
    fn refuses_bad_layouts() {
        let twice = Layout::pack([("a", Dtype::F32, vec![1]), ("a", Dtype::F32, vec![1])]);
        assert!(twice.unwrap_err().to_string().contains("twice"));
        let huge = Layout::pack([("a", Dtype::F64, vec![u64::MAX, 9])]);
        assert!(huge.unwrap_err().to_string().contains("beyond"));
        let tensor =
            |offset| Tensor { name: format!("t{offset}"), dtype: Dtype::U8, shape: vec![65], offset };
        assert!(Layout::new(vec![tensor(0), tensor(64)]).is_err());
        assert!(Layout::new(vec![tensor(3)]).is_err());
        assert!(Layout::new(vec![tensor(0), tensor(128)]).is_ok());
    }

    #[test]
    fn zero_sized_tensors_are_allowed() {
        let layout = Layout::pack([("none", Dtype::F32, vec![0]), ("x", Dtype::F32, vec![2])]).unwrap();
        assert_eq!(layout.bytes(), 8);
        assert_eq!(layout.overlapping(Range::new(0, 8)).len(), 1);
    }
}
