//! Tables of measured behaviour that are under version control.

/// Asserts that a table equals the recorded file. With `THALWEG_REWRITE` set, it first writes the table to
/// the file.
pub fn assert_recorded(file: &str, now: &str) {
    if std::env::var_os("THALWEG_REWRITE").is_some() {
        std::fs::write(file, now).expect("the snapshot can be written");
    }
    let recorded = std::fs::read_to_string(file).unwrap_or_default();
    for (line, (recorded, now)) in recorded.lines().zip(now.lines()).enumerate() {
        assert_eq!(recorded, now, "line {}; if that is meant, rewrite the table", line + 1);
    }
    assert_eq!(recorded.lines().count(), now.lines().count());
}
