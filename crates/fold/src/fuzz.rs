//! Checks what must hold for any bytes that arrive as sums. libFuzzer and the test below use it.

use std::sync::Arc;

use thalweg_wire::{checksum, Dtype, Layout};

use crate::{Accumulator, FoldError, Precision, Replacement, SumsHead};

/// Reads the bytes as a head, first as they are, and then as weight runs within a valid head. Each is a head
/// or damaged, and a head encodes to the same bytes again. Sums with that head are merged, or refused without
/// a trace.
///
/// # Panics
/// If one of these does not hold.
pub fn sums(bytes: &[u8]) {
    read(bytes);
    let layout = Layout::pack([("w", Dtype::F32, vec![16]), ("n", Dtype::U8, vec![1])]).expect("two tensors");
    let layout = Arc::new(layout);
    for precision in [Precision::F32, Precision::F64, Precision::Exact] {
        let accumulator = Accumulator::new(layout.clone(), precision);
        let empty = accumulator.export().expect("nothing is full");
        let mut forged = empty.head.encode();
        forged.truncate(28);
        (forged[7], forged[24], forged[25], forged[26], forged[27]) = (0, 0, 0, 0, 0);
        forged.extend(((bytes.len() / 44) as u32).to_le_bytes());
        forged.extend(&bytes[..bytes.len() / 44 * 44]);
        let sum = checksum(&forged);
        forged.extend(sum.to_le_bytes());
        let Some(head) = read(&forged) else { continue };
        match accumulator.merge_sums(&head, &empty.cells) {
            Ok(()) => assert_eq!(accumulator.weight_runs().as_deref(), Ok(head.runs())),
            Err(error) => {
                assert!(accumulator.weight_runs().is_ok_and(|runs| runs.is_empty()), "{error}, but merged")
            }
        }
        let mut out = vec![0; layout.bytes() as usize];
        accumulator.finish(&mut out, Replacement::Zero).expect("sums of zeros");
    }
}

fn read(bytes: &[u8]) -> Option<SumsHead> {
    match SumsHead::decode(bytes) {
        Ok(head) => {
            assert_eq!(head.encode(), bytes);
            Some(head)
        }
        Err(error) => {
            assert!(matches!(error, FoldError::Damaged(_)), "{error:?}");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A run that may be possible: its numbers are small, or one of them is not.
    fn runs() -> impl Strategy<Value = Vec<u8>> {
        let run = (0..24_u64, 0..24_u64, 0..3_u32, 0..3_u64, 0..3_u32, any::<(u8, u8)>());
        prop::collection::vec(run, 0..4).prop_map(|runs| {
            let mut bytes = Vec::new();
            let mut start = 0;
            for (gap, length, contributions, magnitude, units, (at, value)) in runs {
                let end = start + 4 * gap + 4 * length;
                let mut run = Vec::new();
                run.extend((start + 4 * gap).to_le_bytes());
                run.extend(end.to_le_bytes());
                run.extend(contributions.to_le_bytes());
                run.extend(magnitude.to_le_bytes());
                run.extend((u128::from(units) << 60).to_le_bytes());
                if at < 44 {
                    run[usize::from(at)] = value;
                }
                bytes.extend(run);
                start = end;
            }
            bytes
        })
    }

    proptest! {
        #[test]
        fn runs_that_may_be_right_are_merged_or_refused(bytes in runs()) {
            sums(&bytes);
        }

        #[test]
        fn any_bytes_are_a_head_or_damaged(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            sums(&bytes);
        }
    }
}
