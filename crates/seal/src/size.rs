//! Chooses the length of records. Short records lose less to a hole, and long ones have less overhead.

/// Least and most bytes of plaintext that [`record_size`] chooses. The upper limit is that of TLS (RFC 8446
/// section 5.1).
pub const RECORD_LIMITS: (u32, u32) = (256, 16 << 10);

/// The cost of records of `record` bytes, as a fraction of what is sent. `loss` is the probability (0 to 1)
/// that a segment of `segment` bytes is lost. `overhead` is what sealing adds to a record.
///
/// Records are not aligned with segments. A lost segment touches all records that begin in it, and the one
/// before. In a long stream these are `segment + record` bytes on average. So the cost is `loss * (segment +
/// record) / segment + overhead / (record + overhead)`.
pub fn record_cost(record: u32, loss: f64, segment: u32, overhead: u32) -> f64 {
    let (record, segment, overhead) = (f64::from(record), f64::from(segment.max(1)), f64::from(overhead));
    loss * (segment + record) / segment + overhead / (record + overhead)
}

/// The record size with the least [`record_cost`]. That is `sqrt(overhead * segment / loss) - overhead`,
/// rounded to a multiple of 8 bytes (the longest element), within [`RECORD_LIMITS`]. Without loss it is the
/// upper limit.
pub fn record_size(loss: f64, segment: u32, overhead: u32) -> u32 {
    let (least, most) = RECORD_LIMITS;
    let best = (f64::from(overhead) * f64::from(segment) / loss.max(0.0)).sqrt() - f64::from(overhead);
    let best = if best.is_nan() { f64::from(most) } else { best };
    let below = best.clamp(f64::from(least), f64::from(most)) as u32 / 8 * 8;
    let above = (below + 8).min(most);
    let cost = |record| record_cost(record, loss.max(0.0), segment, overhead);
    if cost(above) < cost(below) {
        above
    } else {
        below
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_for_usual_losses() {
        assert_eq!(record_size(0.02, 1448, 16), 1064);
        assert_eq!(record_size(0.01, 1448, 16), 1504);
        assert_eq!(record_size(0.001, 1448, 16), 4800);
        assert_eq!(record_size(0.0001, 1448, 16), 15_208);
        assert_eq!(record_size(0.0, 1448, 16), 16 << 10);
        assert_eq!(record_size(1.0, 1448, 16), 256);
        assert_eq!(record_size(f64::NAN, 1448, 16), 16 << 10);
        assert_eq!(record_size(0.01, 0, 0), 256);
    }

    #[test]
    fn the_cost_at_one_per_cent() {
        let cost = record_cost(1432, 0.01, 1448, 16);
        assert!((cost - (0.01 * 2880.0 / 1448.0 + 16.0 / 1448.0)).abs() < 1e-12);
    }

    proptest! {
        /// Compares with trying every size.
        #[test]
        fn no_other_size_costs_less(loss in 1e-5..1.0_f64, segment in 500..9_000_u32, overhead in 1..64_u32) {
            let (least, most) = RECORD_LIMITS;
            let chosen = record_cost(record_size(loss, segment, overhead), loss, segment, overhead);
            let all = (least / 8..=most / 8).map(|n| record_cost(n * 8, loss, segment, overhead));
            let best = all.fold(f64::INFINITY, f64::min);
            prop_assert!(chosen <= best * (1.0 + 1e-12), "{chosen} and {best}");
        }
    }
}
