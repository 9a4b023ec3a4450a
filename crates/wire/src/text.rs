//! Makes text from a peer or a broker safe to show on a terminal, in a log or in a table.
//!
//! Escape sequences, forged lines and text in reversed direction all need invisible characters. [`plain`]
//! removes these and bounds the length. [`check_name`] refuses names that have any, because a changed name
//! would be another name.

use serde::de::Error;
use serde::{Deserialize, Deserializer};

use crate::control::MAX_OTHERS;

/// Longest reason, farewell or other free text of a peer, in bytes.
pub const MAX_REASON: usize = 1024;
/// Longest name of a client, in bytes.
pub const MAX_NAME: usize = 128;
/// Longest URL of another server, in bytes.
pub const MAX_URL: usize = 256;
/// Longest metrics in an offer, in bytes of JSON.
pub const MAX_METRICS: usize = 16 * 1024;

/// Replaces a character that cannot be shown.
const UNSHOWN: char = '\u{fffd}';
/// Ends a text that was cut.
const MORE: char = '…';

/// Invisible characters that format others (Unicode category Cf, and the tags of plane 14). Some of them
/// change the direction of the text that follows.
const FORMATS: [(char, char); 19] = [
    ('\u{ad}', '\u{ad}'),
    ('\u{600}', '\u{605}'),
    ('\u{61c}', '\u{61c}'),
    ('\u{6dd}', '\u{6dd}'),
    ('\u{70f}', '\u{70f}'),
    ('\u{890}', '\u{891}'),
    ('\u{8e2}', '\u{8e2}'),
    ('\u{180e}', '\u{180e}'),
    ('\u{200b}', '\u{200f}'),
    ('\u{202a}', '\u{202e}'),
    ('\u{2060}', '\u{206f}'),
    ('\u{feff}', '\u{feff}'),
    ('\u{fff0}', '\u{fffb}'),
    ('\u{110bd}', '\u{110bd}'),
    ('\u{110cd}', '\u{110cd}'),
    ('\u{13430}', '\u{1345f}'),
    ('\u{1bca0}', '\u{1bca3}'),
    ('\u{1d173}', '\u{1d17a}'),
    ('\u{e0000}', '\u{e0fff}'),
];

/// Whether a character ends a line or moves to another place in it.
fn breaks(c: char) -> bool {
    matches!(c, '\t'..='\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn is_unsafe(c: char) -> bool {
    c.is_control() || breaks(c) || FORMATS.iter().any(|&(first, last)| (first..=last).contains(&c))
}

/// Whether a text has only visible characters and spaces.
pub fn is_plain(text: &str) -> bool {
    !text.chars().any(is_unsafe)
}

/// The text as one line of at most `most` bytes. Runs of line breaks and tabs become one space. Runs of other
/// control and format characters become one U+FFFD. A text that is cut ends with an ellipsis.
pub fn plain(text: &str, most: usize) -> String {
    let mut out = String::new();
    for c in text.chars() {
        let shown = match c {
            _ if breaks(c) => ' ',
            _ if is_unsafe(c) => UNSHOWN,
            _ => c,
        };
        if shown != c && out.ends_with(shown) {
            continue;
        }
        if out.len() + shown.len_utf8() > most {
            return shortened(out, most);
        }
        out.push(shown);
    }
    out
}

fn shortened(mut text: String, most: usize) -> String {
    while text.len() + MORE.len_utf8() > most {
        if text.pop().is_none() {
            return text;
        }
    }
    text.push(MORE);
    text
}

/// Whether a client may have this name.
///
/// # Errors
/// Why not, with a hint.
pub fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > MAX_NAME {
        return Err(format!("a client's name must have 1 to {MAX_NAME} bytes"));
    }
    if !is_plain(name) || name.trim() != name {
        let name = plain(name, MAX_NAME);
        return Err(format!(
            "a client's name has no control characters, nor spaces at its ends, but one is {name:?}; choose another name"
        ));
    }
    Ok(())
}

/// Decodes a peer's reason. The text is shortened before it is copied.
pub(crate) fn reason<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    <&str>::deserialize(from).map(|text| plain(text, MAX_REASON))
}

/// Decodes the URL of another server. If it cannot be a URL, decoding the message fails.
pub(crate) fn url<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    <&str>::deserialize(from).and_then(as_url)
}

/// Decodes a list of at most [`MAX_OTHERS`] URLs.
pub(crate) fn urls<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let urls = Vec::<&str>::deserialize(from)?;
    if urls.len() > MAX_OTHERS {
        return Err(Error::custom("too many addresses"));
    }
    urls.into_iter().map(as_url).collect()
}

fn as_url<E: Error>(text: &str) -> Result<String, E> {
    if text.is_empty() || text.len() > MAX_URL || !is_plain(text) {
        return Err(E::custom("no address of a server"));
    }
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_plain_stays_as_it_is() {
        for text in ["", "client-1", "ValueError: Größe 3 ≠ 4", "日本語", "مرحبا", "👍", "[red]"]
        {
            assert_eq!(plain(text, MAX_REASON), text);
            assert!(is_plain(text), "{text}");
        }
    }

    #[test]
    fn lines_escapes_and_turned_text_do_not_pass() {
        let forged = "done\r\n2026-01-01 client-2 joined";
        assert_eq!(plain(forged, 100), "done 2026-01-01 client-2 joined");
        assert_eq!(plain("\x1b[2J\x1b]0;title\x07", 100), "\u{fffd}[2J\u{fffd}]0;title\u{fffd}");
        assert_eq!(plain("a\u{9b}31mb\u{7f}", 100), "a\u{fffd}31mb\u{fffd}");
        assert_eq!(plain("abc\u{202e}\u{2066}fed", 100), "abc\u{fffd}fed");
        assert_eq!(plain("one\u{2028}two\u{85}three\tfour", 100), "one two three four");
    }

    #[test]
    fn names_are_refused_and_not_changed() {
        for bad in ["", " a", "a\n", "a\x1b[31m", "a\u{202e}b", "\u{200b}", &"x".repeat(MAX_NAME + 1)] {
            let why = check_name(bad).unwrap_err();
            assert!(is_plain(&why), "{why}");
        }
        for good in ["a", "client-1", "José", "日本", "[red]", "two words", &"x".repeat(MAX_NAME)] {
            assert_eq!(check_name(good), Ok(()));
        }
    }

    proptest! {
        #[test]
        fn any_text_becomes_one_plain_line_within_the_bound(text in any::<String>(), most in 0..200_usize) {
            let made = plain(&text, most);
            prop_assert!(made.len() <= most);
            prop_assert!(is_plain(&made));
            prop_assert_eq!(plain(&made, most), made.clone());
            if is_plain(&text) && text.len() <= most {
                prop_assert_eq!(made, text);
            }
        }
    }
}
