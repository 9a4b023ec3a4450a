//! Bytes as hexadecimal text.

/// Encodes each byte as two lower-case digits.
pub(crate) fn encode(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Decodes digits of either case. The error does not repeat the text, which may be secret.
pub(crate) fn decode<const BYTES: usize>(text: &str) -> Result<[u8; BYTES], String> {
    if text.len() != 2 * BYTES {
        return Err(format!("{} characters where {} hexadecimal digits are due", text.len(), 2 * BYTES));
    }
    let digit = |b: u8| (b as char).to_digit(16).map(|d| d as u8);
    let mut out = [0; BYTES];
    for (byte, pair) in out.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let digits = digit(pair[0]).zip(digit(pair[1]));
        let (high, low) = digits.ok_or("a character that is no hexadecimal digit")?;
        *byte = high << 4 | low;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trips(bytes: [u8; 32]) {
            prop_assert_eq!(decode(&encode(&bytes)), Ok(bytes));
            prop_assert_eq!(decode(&encode(&bytes).to_uppercase()), Ok(bytes));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,70}") {
            if let Ok(bytes) = decode::<32>(&text) {
                prop_assert_eq!(encode(&bytes), text.to_lowercase());
            }
        }
    }
}
