//! The parties whose tokens and certificates no longer count: a file that a server reads again when it has
//! changed.
//!
//! A line is a role, a name, and further words, which are ignored (`thalweg pki revoke` writes the time).
//! Lines that begin with `#` are comments.

use std::collections::HashSet;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use thalweg_pki::Role;

use crate::{lock, Error, Kind};

/// Time between two looks at the file.
pub(crate) const LOOK: Duration = Duration::from_secs(1);
/// Maximum size of the file in bytes: some 50,000 parties.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// The list of revoked parties of one role.
pub(crate) struct Revocations {
    path: PathBuf,
    role: Role,
    loaded: Mutex<Loaded>,
}

#[derive(Default)]
struct Loaded {
    version: Option<Version>,
    names: HashSet<String>,
}

/// Identifies a version of a file: its inode number, its modification time and its size.
type Version = (u64, Option<SystemTime>, u64);

impl Revocations {
    /// Reads the list of a role. A file that does not exist revokes nobody; it may appear later.
    ///
    /// # Errors
    /// `options` if the file cannot be read, or has a line that is no role and name.
    pub fn open(path: &str, role: Role) -> Result<Self, Error> {
        let list = Self { path: path.into(), role, loaded: Mutex::default() };
        list.refresh().map_err(|cause| {
            Error::new(Kind::Options, "read the list of revoked parties", cause)
                .hint("correct the file, which `thalweg pki revoke` writes")
        })?;
        Ok(list)
    }

    /// Whether a name is revoked, as of the last call of [`Revocations::refresh`].
    pub fn has(&self, name: &str) -> bool {
        lock(&self.loaded).names.contains(name)
    }

    /// Reads the file if it has changed. Returns whether it has.
    ///
    /// # Errors
    /// The reason why the file cannot be read. The list then stays as it was.
    pub fn refresh(&self) -> Result<bool, String> {
        let failed = |e: io::Error| format!("{}: {e}", self.path.display());
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(failed(e)),
        };
        let version = version_of(&file.metadata().map_err(failed)?);
        if lock(&self.loaded).version == Some(version) {
            return Ok(false);
        }
        let mut text = String::new();
        file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
        if text.len() as u64 > MAX_FILE_BYTES {
            return Err(format!("{} has more than {MAX_FILE_BYTES} bytes", self.path.display()));
        }
        let names = parse(&text, self.role).map_err(|why| format!("{}: {why}", self.path.display()))?;
        *lock(&self.loaded) = Loaded { version: Some(version), names };
        Ok(true)
    }
}

fn version_of(metadata: &Metadata) -> Version {
    (metadata.ino(), metadata.modified().ok(), metadata.len())
}

/// Parses the file. Returns the names that are revoked in a role.
fn parse(text: &str, role: Role) -> Result<HashSet<String>, String> {
    let mut names = HashSet::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        if line.starts_with('#') {
            continue;
        }
        let mut words = line.split_whitespace();
        let of = words.next().and_then(|word| word.parse::<Role>().ok());
        let (Some(of), Some(name)) = (of, words.next()) else {
            return Err(format!("line {} is no role and name", number + 1));
        };
        if of == role {
            names.insert(name.to_owned());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of this test alone, which is removed at its end.
    struct Temporary(PathBuf);

    impl Temporary {
        fn new(name: &str) -> Self {
            Self(std::env::temp_dir().join(format!("thalweg-revoked-{name}-{}", std::process::id())))
        }

        fn write(&self, text: &str) {
            let part = self.0.with_extension("part");
            std::fs::write(&part, text).unwrap();
            std::fs::rename(part, &self.0).unwrap();
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_list_is_read_again_when_it_has_changed() {
        let file = Temporary::new("changes");
        let list = Revocations::open(file.0.to_str().unwrap(), Role::Client).unwrap();
        assert!(!list.has("anna") && list.refresh() == Ok(false));
        file.write("# revoked\nclient anna 2026-01-01T00:00:00Z\n\ntree-node berta\n");
        assert_eq!(list.refresh(), Ok(true));
        assert!(list.has("anna") && !list.has("berta") && !list.has("client"));
        assert_eq!(list.refresh(), Ok(false));
        file.write("client anna\nclient berta\n");
        assert_eq!(list.refresh(), Ok(true));
        assert!(list.has("anna") && list.has("berta"));
    }

    #[test]
    fn the_list_stays_while_the_file_is_damaged_or_missing() {
        let file = Temporary::new("damaged");
        file.write("client anna\n");
        let list = Revocations::open(file.0.to_str().unwrap(), Role::Client).unwrap();
        for damaged in ["client\n", "clinet anna\n", "anna\n"] {
            file.write(damaged);
            assert!(list.refresh().unwrap_err().contains("line 1 is no role and name"), "{damaged:?}");
            assert!(list.has("anna"));
            let fresh = Revocations::open(file.0.to_str().unwrap(), Role::Client).map(|_| ()).unwrap_err();
            assert!(fresh.to_string().contains("thalweg pki revoke"), "{fresh}");
        }
        std::fs::remove_file(&file.0).unwrap();
        assert!(list.refresh() == Ok(false) && list.has("anna"));
    }

    #[test]
    fn a_list_that_is_too_long_is_not_read() {
        let file = Temporary::new("long");
        file.write(&"client anna\n".repeat(MAX_FILE_BYTES as usize / 12 + 1));
        let error = Revocations::open(file.0.to_str().unwrap(), Role::Client).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("has more than"), "{error}");
    }
}
