//! Examples of the JSON that crosses the border to Python, for tests of both languages.
//!
//! `tests/border` has an example of each message. A test here compares it with what the structs serialise to, and
//! `tests/test_border.py` with Python's classes. So no field can be added, renamed or removed on one side alone.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use serde_json::Value;

/// Set, it makes the tests write the examples.
const WRITE: &str = "WRITE_BORDER";

/// Compares a message with its example. Fails if they differ.
pub(crate) fn check(name: &str, message: &Value) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/border/{name}.json"));
    let text = format!("{message:#}\n");
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let example = std::fs::read_to_string(&path).unwrap();
    assert_eq!(
        example, text,
        "{name} has changed: run this test with {WRITE}=1, and change Python's classes"
    );
}
