//! The unit of transfer: a model, an update, sums, or any tensors, with a head.

use serde::{de::Error, Deserialize, Deserializer, Serialize};

use crate::{Dtype, Layout, LayoutHash, WireError};

/// Longest head of a parcel, in bytes.
pub const MAX_HEAD: usize = 1 << 20;

/// The description of a parcel, which its sender sends before its bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Parcel {
    /// The number of the round or task, from 1. An answer has the number of the parcel that it answers; their
    /// senders distinguish the two.
    pub number: u32,
    /// Whether its chunks follow at once. If not, they wait for a grant.
    pub pushed: bool,
    /// Bytes for the application, which the core does not read: the JSON of a round's configuration, of an
    /// update's metrics, or of a task. At most [`MAX_HEAD`] bytes.
    #[serde(deserialize_with = "head")]
    pub head: Vec<u8>,
    /// The tensors that the parcel holds.
    pub content: Content,
    /// The number of an earlier parcel from the same sender that has the same bytes. A receiver that still
    /// has these asks for none.
    pub same_as: Option<u32>,
    /// The weight in a mean: a number of samples, or another factor. Finite and not negative; 0 if the parcel
    /// does not count. A float is an exact fraction, so no rounding happens on the way.
    #[serde(deserialize_with = "weight")]
    pub weight: f64,
    /// Microseconds from now within which the answer is wanted; `None`: no limit.
    pub deadline: Option<u64>,
}

/// The tensors that a parcel holds, relative to a base. The base is the job's model; for the answer to a task
/// it is the task's tensors.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub enum Content {
    /// No tensors.
    #[default]
    Nothing,
    /// All tensors of the base. This is the hash of the base's layout.
    Whole(LayoutHash),
    /// Some tensors of the base: their indices in it, in ascending order.
    Subset(Vec<u32>),
    /// Tensors with a layout of their own.
    Tensors(Layout),
    /// The model of a job that sends it compressed.
    Tracked(Tracked),
}

/// A model that is compressed round after round. The sender knows exactly which model its receivers have, and
/// sends those that have the one before only by how much it changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tracked {
    /// The hash of the model's layout.
    pub layout: LayoutHash,
    /// Whether the float32 values are differences from the model that the receiver got last. All other values
    /// are whole. If not, all values are whole.
    pub is_difference: bool,
    /// The CRC-32C of the whole model that the receiver has afterwards.
    pub checksum: u32,
}

impl Content {
    /// The shortest description of a parcel that holds the tensors of `layout`.
    pub fn of(layout: &Layout, base: &Layout) -> Self {
        if layout.tensors().is_empty() {
            return Self::Nothing;
        }
        if layout.hash() == base.hash() {
            return Self::Whole(layout.hash());
        }
        subset(layout, base).map_or_else(|| Self::Tensors(layout.clone()), Self::Subset)
    }

    /// The layout of the parcel.
    ///
    /// # Errors
    /// [`WireError::Layout`] if the content does not fit the base: the hash differs, an index is too large,
    /// or the indices do not ascend.
    pub fn layout(&self, base: &Layout) -> Result<Layout, WireError> {
        match self {
            Self::Nothing => Layout::new(Vec::new()),
            Self::Whole(hash) | Self::Tracked(Tracked { layout: hash, .. }) if *hash == base.hash() => {
                Ok(base.clone())
            }
            Self::Whole(hash) | Self::Tracked(Tracked { layout: hash, .. }) => {
                Err(WireError::Layout(format!(
                    "the parcel has layout {hash}, and what it answers {}; use the same model",
                    base.hash()
                )))
            }
            Self::Subset(places) => chosen(base, places),
            Self::Tensors(layout) => Ok(layout.clone()),
        }
    }
}

/// The indices in `base` of the tensors of `layout`. `None` if one is not in it, or their order differs.
fn subset(layout: &Layout, base: &Layout) -> Option<Vec<u32>> {
    let mut all = base.tensors().iter().enumerate();
    let place = |tensor: &crate::Tensor| {
        let same = |other: &crate::Tensor| {
            (&other.name, other.dtype, &other.shape) == (&tensor.name, tensor.dtype, &tensor.shape)
        };
        all.by_ref().find(|(_, other)| same(other)).and_then(|(at, _)| u32::try_from(at).ok())
    };
    let places: Vec<u32> = layout.tensors().iter().map(place).collect::<Option<_>>()?;
    let packed = chosen(base, &places).ok()?;
    (packed.hash() == layout.hash()).then_some(places)
}

fn chosen(base: &Layout, places: &[u32]) -> Result<Layout, WireError> {
    let bad = |what: String| WireError::Layout(what);
    if places.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(bad("the places of a subset's tensors do not rise".into()));
    }
    let tensors = places.iter().map(|&at| {
        let tensor = base.tensors().get(at as usize);
        let found = tensor.map(|t| (t.name.clone(), t.dtype, t.shape.clone()));
        found.ok_or_else(|| bad(format!("there is no tensor {at} among {}", base.tensors().len())))
    });
    let tensors: Vec<(String, Dtype, Vec<u64>)> = tensors.collect::<Result<_, _>>()?;
    Layout::pack(tensors)
}

/// Decodes a head. A head that is too long is refused before it is copied.
fn head<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    let bytes = <&[u8]>::deserialize(from)?;
    if bytes.len() > MAX_HEAD {
        return Err(D::Error::custom(format!("a head of {} bytes is over {MAX_HEAD}", bytes.len())));
    }
    Ok(bytes.to_vec())
}

fn weight<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    let weight = f64::deserialize(from)?;
    let possible = weight.is_finite() && weight >= 0.0;
    possible.then_some(weight).ok_or_else(|| D::Error::custom(format!("{weight} is no weight")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Control;
    use proptest::prelude::*;

    fn base() -> Layout {
        Layout::pack([("a", Dtype::F32, vec![3]), ("b", Dtype::BF16, vec![2, 5]), ("n", Dtype::I64, vec![])])
            .unwrap()
    }

    fn parcel(head: Vec<u8>, content: Content) -> Control {
        Control::Offer(Parcel {
            number: 1,
            pushed: false,
            head,
            content,
            same_as: None,
            weight: 1.0,
            deadline: None,
        })
    }

    #[test]
    fn a_layout_is_said_as_briefly_as_it_can_be() {
        let (base, none) = (base(), Layout::new(Vec::new()).unwrap());
        let part = Layout::pack([("a", Dtype::F32, vec![3]), ("n", Dtype::I64, vec![])]).unwrap();
        let other = Layout::pack([("a", Dtype::F32, vec![4])]).unwrap();
        let turned = Layout::pack([("n", Dtype::I64, vec![]), ("a", Dtype::F32, vec![3])]).unwrap();
        assert_eq!(Content::of(&none, &base), Content::Nothing);
        assert_eq!(Content::of(&base, &base), Content::Whole(base.hash()));
        assert_eq!(Content::of(&part, &base), Content::Subset(vec![0, 2]));
        assert_eq!(Content::of(&other, &base), Content::Tensors(other.clone()));
        assert_eq!(Content::of(&turned, &base), Content::Tensors(turned.clone()));
        for layout in [none, base.clone(), part, other, turned] {
            assert_eq!(Content::of(&layout, &base).layout(&base).unwrap(), layout);
        }
    }

    #[test]
    fn what_does_not_fit_the_base_is_refused() {
        let refused = |content: Content| content.layout(&base()).unwrap_err().to_string();
        assert!(refused(Content::Whole(LayoutHash(1))).contains("use the same model"));
        assert!(refused(Content::Subset(vec![0, 3])).contains("there is no tensor 3 among 3"));
        assert!(refused(Content::Subset(vec![1, 1])).contains("do not rise"));
        assert!(refused(Content::Subset(vec![2, 0])).contains("do not rise"));
    }

    #[test]
    fn a_head_is_bounded() {
        let message = |bytes: usize| parcel(vec![7; bytes], Content::Nothing).encode().unwrap();
        assert!(Control::decode(&message(MAX_HEAD)).is_ok());
        let refused = Control::decode(&message(MAX_HEAD + 1)).unwrap_err().to_string();
        assert!(!refused.is_empty());
    }

    #[test]
    fn a_weight_is_a_number_and_not_negative() {
        for weight in [f64::NAN, f64::INFINITY, -1.0, -f64::MIN_POSITIVE] {
            let Control::Offer(sane) = parcel(Vec::new(), Content::Nothing) else { unreachable!() };
            let message = Control::Offer(Parcel { weight, ..sane }).encode().unwrap();
            assert!(Control::decode(&message).is_err(), "{weight}");
        }
    }

    proptest! {
        #[test]
        fn any_subset_comes_back(mask in prop::collection::vec(any::<bool>(), 3)) {
            let base = base();
            let places: Vec<u32> = (0..3).filter(|&at| mask[at as usize]).collect();
            let layout = Content::Subset(places).layout(&base).unwrap();
            let content = Content::of(&layout, &base);
            prop_assert_eq!(content.layout(&base).unwrap(), layout.clone());
            let message = parcel(b"{}".to_vec(), content);
            prop_assert_eq!(Control::decode(&message.encode().unwrap()), Ok(message));
        }
    }
}
