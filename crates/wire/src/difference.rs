//! The first tensor in which two layouts differ, for control messages and for error messages.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use crate::layout::{MAX_NAME, MAX_RANK};
use crate::{text, Dtype, Tensor};

/// Maximum number of bytes of a tensor's name in an error message. A name may be longer, and may have any
/// characters.
const SHOWN: usize = 200;

/// The element type and shape of a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorSpec {
    /// The element type.
    pub dtype: Dtype,
    /// The shape, row-major; empty for a scalar.
    #[serde(deserialize_with = "shape")]
    pub shape: Vec<u64>,
}

impl TensorSpec {
    /// The type and shape of `tensor`.
    pub fn of(tensor: &Tensor) -> Self {
        Self { dtype: tensor.dtype, shape: tensor.shape.clone() }
    }
}

impl std::fmt::Display for TensorSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?}", self.dtype.word(), self.shape)
    }
}

/// A tensor that differs between two layouts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The tensor's name.
    pub name: String,
    /// The tensor in the first layout; `None` if it has no tensor of this name.
    pub ours: Option<TensorSpec>,
    /// The tensor in the other layout. If it equals `ours`, the tensor is at another position there.
    pub theirs: Option<TensorSpec>,
}

impl Difference {
    /// The difference as one plain line. `here` and `there` name the places of the two layouts, such as
    /// "here" and "at the server".
    pub fn describe(&self, here: &str, there: &str) -> String {
        let name = shown(&self.name);
        match (&self.ours, &self.theirs) {
            (Some(ours), Some(theirs)) if ours == theirs => {
                format!("{name} is at another place {here} than {there}: the order of the tensors differs")
            }
            (Some(ours), Some(theirs)) => format!("{name} is {ours} {here} and {theirs} {there}"),
            (Some(ours), None) => format!("{name} ({ours}) is {here} and missing {there}"),
            (None, Some(theirs)) => format!("{name} ({theirs}) is {there} and missing {here}"),
            (None, None) => format!("{name} is neither {here} nor {there}"),
        }
    }
}

/// A tensor's name, as it is if it looks like one. Otherwise the name is quoted, so that it cannot pass for
/// words of the error message.
fn shown(name: &str) -> String {
    let shown = text::plain(name, SHOWN);
    let plain = shown.chars().all(|c| c.is_alphanumeric() || "._-/:".contains(c));
    if plain && !shown.is_empty() {
        shown
    } else {
        format!("{shown:?}")
    }
}

/// Decodes a tensor's name. A name that is too long is refused before it is copied.
pub(crate) fn name<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let name = <&str>::deserialize(from)?;
    if name.is_empty() || name.len() > MAX_NAME {
        return Err(D::Error::custom(format!("a tensor name must have 1 to {MAX_NAME} bytes")));
    }
    Ok(name.into())
}

fn shape<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u64>, D::Error> {
    let shape = Vec::<u64>::deserialize(from)?;
    if shape.len() > MAX_RANK {
        return Err(D::Error::custom(format!("a tensor has at most {MAX_RANK} dimensions")));
    }
    Ok(shape)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layout;

    fn layout(tensors: &[(&str, Dtype, &[u64])]) -> Layout {
        Layout::pack(tensors.iter().map(|(name, dtype, shape)| (*name, *dtype, shape.to_vec()))).unwrap()
    }

    fn described(ours: &Layout, theirs: &Layout) -> String {
        ours.difference(theirs).unwrap().describe("here", "at the server")
    }

    #[test]
    fn the_first_tensor_that_differs_is_named() {
        const F32: Dtype = Dtype::F32;
        let base = layout(&[("a", F32, &[3]), ("layer1.weight", F32, &[10, 5]), ("z", Dtype::I64, &[])]);
        let reshaped = layout(&[("a", F32, &[3]), ("layer1.weight", F32, &[10, 4]), ("z", F32, &[])]);
        assert_eq!(
            described(&base, &reshaped),
            "layer1.weight is float32 [10, 5] here and float32 [10, 4] at the server"
        );
        let retyped =
            layout(&[("a", Dtype::BF16, &[3]), ("layer1.weight", F32, &[10, 5]), ("z", Dtype::I64, &[])]);
        assert_eq!(described(&base, &retyped), "a is float32 [3] here and bfloat16 [3] at the server");
        let fewer = layout(&[("a", F32, &[3]), ("z", Dtype::I64, &[])]);
        assert_eq!(
            described(&base, &fewer),
            "layer1.weight (float32 [10, 5]) is here and missing at the server"
        );
        assert_eq!(
            described(&fewer, &base),
            "layer1.weight (float32 [10, 5]) is at the server and missing here"
        );
        let short = layout(&[("a", F32, &[3])]);
        assert_eq!(described(&fewer, &short), "z (int64 []) is here and missing at the server");
        assert_eq!(described(&short, &fewer), "z (int64 []) is at the server and missing here");
        let turned = layout(&[("a", F32, &[3]), ("z", Dtype::I64, &[]), ("layer1.weight", F32, &[10, 5])]);
        assert!(described(&base, &turned)
            .starts_with("layer1.weight is at another place here than at the server"));
        assert_eq!(base.difference(&base.clone()), None);
    }

    #[test]
    fn both_sides_name_the_same_tensor() {
        let layouts = [
            layout(&[("a", Dtype::F32, &[3]), ("b", Dtype::F32, &[])]),
            layout(&[("b", Dtype::F32, &[]), ("a", Dtype::F32, &[3])]),
            layout(&[("b", Dtype::F64, &[2]), ("a", Dtype::F32, &[3])]),
            layout(&[("c", Dtype::F32, &[3]), ("b", Dtype::F32, &[])]),
            layout(&[("a", Dtype::F32, &[4])]),
            layout(&[]),
        ];
        for ours in &layouts {
            for theirs in layouts.iter().filter(|theirs| *theirs != ours) {
                let here = ours.difference(theirs).unwrap();
                let there = theirs.difference_of(&here.name, here.ours.clone());
                assert_eq!((&there.ours, &there.theirs), (&here.theirs, &here.ours));
                assert_eq!(there.describe("at A", "at B").len(), here.describe("at B", "at A").len());
            }
        }
    }

    #[test]
    fn a_name_cannot_pass_for_other_words() {
        let long = "x".repeat(1000);
        for name in ["a is float32 [1] here", "a\nb", "\x1b[2J", "\u{202e}x", &long] {
            let ours = layout(&[(name, Dtype::F32, &[1])]);
            let text = described(&ours, &layout(&[("w", Dtype::F32, &[1])]));
            assert!(text::is_plain(&text) && text.len() < SHOWN + 100, "{text}");
            assert!(name == long || text.starts_with('"'), "{text}");
        }
    }
}
