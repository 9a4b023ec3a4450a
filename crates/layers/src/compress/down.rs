//! Models that a server sends as rounded differences, so that it knows exactly which model its clients have.
//!
//! The clients' model begins as the server's. In each round it changes by the rounded difference of the two. So
//! what rounding leaves out is in the next difference, and needs no residual of its own. No value is ever -0:
//! the encoder does not keep the sign of zero.

use thalweg_wire::Layout;

use super::codec::VALUE;
use super::scheme::{floats, value, Scheme};

/// Replaces the clients' model by the server's.
pub fn begin(layout: &Layout, model: &[u8], held: &mut [u8]) {
    held.copy_from_slice(model);
    for range in floats(layout, held.len()) {
        for word in held[range].chunks_exact_mut(VALUE) {
            word.copy_from_slice(&(value(word) + 0.0).to_le_bytes());
        }
    }
}

/// Advances the clients' model, `held`, towards the server's. `difference` gets what clients are sent: rounded
/// differences of float32 values, other values as they are. Returns false if a value would not be finite: then the
/// clients' model is the server's, which all of them must get.
pub fn advance(
    scheme: Scheme,
    layout: &Layout,
    model: &[u8],
    held: &mut [u8],
    difference: &mut [u8],
) -> bool {
    difference.copy_from_slice(model);
    let places = floats(layout, held.len().min(model.len()));
    for range in &places {
        let words =
            difference[range.clone()].chunks_exact_mut(VALUE).zip(held[range.clone()].chunks_exact(VALUE));
        for (word, before) in words {
            word.copy_from_slice(&(value(word) - value(before) + 0.0).to_le_bytes());
        }
    }
    scheme.round(layout, difference);
    let is_finite = places.iter().all(|range| {
        let mut words =
            difference[range.clone()].chunks_exact(VALUE).zip(held[range.clone()].chunks_exact(VALUE));
        words.all(|(change, before)| (value(change) + value(before)).is_finite())
    });
    if is_finite {
        follow(layout, difference, held);
    } else {
        begin(layout, model, held);
    }
    is_finite
}

/// Changes a receiver's model as [`advance`] changes the sender's copy of it.
pub fn follow(layout: &Layout, difference: &[u8], held: &mut [u8]) {
    let end = held.len().min(difference.len());
    let mut at = 0;
    for range in floats(layout, end) {
        held[at..range.start].copy_from_slice(&difference[at..range.start]);
        let words =
            held[range.clone()].chunks_exact_mut(VALUE).zip(difference[range.clone()].chunks_exact(VALUE));
        for (word, change) in words {
            word.copy_from_slice(&(value(word) + value(change)).to_le_bytes());
        }
        at = range.end;
    }
    held[at..end].copy_from_slice(&difference[at..end]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use thalweg_wire::{Dtype, Range};

    use super::*;
    use crate::compress::codec::{decode, others, pieces};

    fn layout(values: usize) -> Layout {
        let tensors = [("n", Dtype::I64, vec![1]), ("w", Dtype::F32, vec![values as u64])];
        Layout::pack(tensors).unwrap()
    }

    fn model(layout: &Layout, values: &[f32]) -> Vec<u8> {
        let mut bytes = vec![0; layout.bytes() as usize];
        bytes[..8].copy_from_slice(&(values.len() as i64).to_le_bytes());
        let at = layout.tensors()[1].range().start as usize;
        for (word, value) in bytes[at..].chunks_exact_mut(4).zip(values) {
            word.copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    fn values(layout: &Layout, bytes: &[u8]) -> Vec<f32> {
        let range = layout.tensors()[1].range();
        bytes[range.start as usize..range.end as usize].chunks_exact(4).map(value).collect()
    }

    /// What a receiver gets of a model or difference that is sent in two chunks.
    fn carried(scheme: Scheme, layout: &Layout, bytes: &[u8], cut: usize) -> Vec<u8> {
        let mut out = vec![0xaa; bytes.len()];
        for range in [Range::new(0, cut as u64), Range::new(cut as u64, bytes.len() as u64)] {
            let mut payload = [(range.len() as u32).to_le_bytes(), [0; 4]].concat();
            for piece in pieces(range) {
                let plain = &bytes[piece.start as usize..piece.end as usize];
                scheme.write(piece, plain, &others(layout), &mut payload);
            }
            decode(range.start, &payload, &mut out[range.start as usize..range.end as usize]);
        }
        out
    }

    fn schemes() -> impl Strategy<Value = Scheme> {
        prop_oneof![
            Just(Scheme::Int8),
            Just(Scheme::Int4),
            Just(Scheme::Int2),
            (0.01_f64..1.0).prop_map(Scheme::TopK)
        ]
    }

    fn any_value() -> impl Strategy<Value = f32> {
        prop_oneof![8 => -1.0_f32..1.0, 1 => Just(-0.0), 1 => any::<f32>()]
    }

    proptest! {
        /// Clients join late and miss rounds. Each has the bits of the server's copy whenever it takes part.
        #[test]
        fn a_receiver_has_the_bits_of_the_senders_copy(
            scheme in schemes(),
            models in proptest::collection::vec(proptest::collection::vec(any_value(), 700), 2..6),
            takes_part in proptest::collection::vec(proptest::collection::vec(any::<bool>(), 3), 6),
            cut in 1_usize..700,
        ) {
            let layout = layout(700);
            let mut held = vec![0; layout.bytes() as usize];
            let mut difference = held.clone();
            let mut clients: Vec<Option<(usize, Vec<u8>)>> = vec![None; 3];
            for (round, values) in models.iter().enumerate() {
                let model = model(&layout, values);
                let follows = round > 0 && advance(scheme, &layout, &model, &mut held, &mut difference);
                if round == 0 {
                    begin(&layout, &model, &mut held);
                }
                let sent = carried(scheme, &layout, &difference, 4 * cut);
                for (client, _) in clients.iter_mut().zip(&takes_part[round]).filter(|(_, takes)| **takes) {
                    let in_step = client.take().filter(|(last, _)| follows && last + 1 == round);
                    let whole = || carried(scheme, &layout, &held, 4 * cut);
                    let own = in_step.map_or_else(whole, |(_, mut own)| {
                        follow(&layout, &sent, &mut own);
                        own
                    });
                    prop_assert!(own == held, "round {round}");
                    *client = Some((round, own));
                }
            }
        }
    }

    #[test]
    fn what_is_left_out_is_in_later_differences() {
        // Fixed points: the server's model stays, and the clients' model comes ever closer.
        let layout = layout(700);
        let target: Vec<f32> =
            (0..700).map(|at| (at as f32 * 0.37).sin() + if at == 3 { 5.0 } else { 0.0 }).collect();
        for scheme in [Scheme::Int8, Scheme::Int4, Scheme::Int2, Scheme::TopK(0.05)] {
            let (mut held, model) = (vec![0; layout.bytes() as usize], model(&layout, &target));
            let mut difference = held.clone();
            for _ in 0..60 {
                assert!(advance(scheme, &layout, &model, &mut held, &mut difference));
            }
            let error =
                values(&layout, &held).iter().zip(&target).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            // Int2 has one size for all values of a block, so it comes closer more slowly.
            let limit = if scheme == Scheme::Int2 { 1e-2 } else { 1e-3 };
            assert!(error < limit, "{scheme}: {error}");
            assert_eq!(held[..8], model[..8]);
        }
    }

    #[test]
    fn a_model_that_overflows_is_sent_whole() {
        let layout = layout(300);
        let (first, second) = (model(&layout, &[f32::MAX; 300]), model(&layout, &[f32::MIN; 300]));
        let mut held = vec![0; layout.bytes() as usize];
        begin(&layout, &first, &mut held);
        let mut difference = held.clone();
        assert!(!advance(Scheme::Int8, &layout, &second, &mut held, &mut difference));
        assert_eq!(held, second);
    }
}
