//! Streams of records that are addressed by their offset.
//!
//! Record `i` of a stream has bytes `i * R` to `(i + 1) * R` of the plaintext. In the sealed stream it begins
//! at `i * S`, where `S` is the length of a sealed record ([`Grid`]). So if a receiver knows which bytes are
//! missing, it loses only the records that a hole touches.
//!
//! - **Nonce**: 4 bytes of the record's index and 8 of the stream's number, both big-endian (RFC 5116 section
//!   3.2). It is not sent. [`StreamSealer`] gives each stream a number of its own, which the peer must be
//!   told.
//! - **Authenticated** with each record: job, round, sender, layout, offset and length of the stream, the
//!   record size and the record's index. A record of another stream, or at another place, is refused.
//! - **Keys** are derived by HKDF-SHA-256 from a secret that both ends share and from a label. After
//!   [`STREAMS`] streams the next key is used.
//!
//! [`Suite::AesCbc`] is for comparison only. It authenticates nothing, so an attacker who can change a record
//! can flip chosen bits of its plaintext.

use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ring::aead::{Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{KeyType, Prk, Salt, HKDF_SHA256};
use serde::{Deserialize, Serialize};
use thalweg_wire::Ranges;

use crate::{cbc, Cipher, Grid, Refused, Replay, TAG_BYTES};

/// Number of streams under one key. With 4 MiB in each stream, these are 2^34 blocks. That is far from the
/// limits of AES-GCM (advantage 2^-61, by the bound of RFC 9001 appendix B.1.1).
pub const STREAMS: u64 = 1 << 16;

/// Bytes of a block of AES, and of CBC's initialization vector.
const BLOCK: u64 = 16;

/// How the records of a stream are sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Suite {
    /// Encrypted and authenticated.
    Aead(Cipher),
    /// AES-256-CBC, chained within a record, with an initialization vector of 16 bytes in each (UniFL,
    /// section 3.3). **Unauthenticated**.
    AesCbc,
}

impl Default for Suite {
    fn default() -> Self {
        Self::Aead(Cipher::default())
    }
}

impl Suite {
    /// All suites that a plan or a peer may name.
    const KNOWN: [Self; 3] =
        [Self::Aead(Cipher::Aes256Gcm), Self::Aead(Cipher::ChaCha20Poly1305), Self::AesCbc];
    /// All suites of this build.
    #[cfg(feature = "baselines")]
    pub const ALL: [Self; 3] = Self::KNOWN;
    /// All suites of this build.
    #[cfg(not(feature = "baselines"))]
    pub const ALL: [Self; 2] = [Self::KNOWN[0], Self::KNOWN[1]];

    /// Name of the suite in a plan.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aead(Cipher::Aes256Gcm) => "aes-256-gcm",
            Self::Aead(Cipher::ChaCha20Poly1305) => "chacha20-poly1305",
            Self::AesCbc => "aes-cbc",
        }
    }

    /// Whether this build can seal with the suite. [`Self::AesCbc`] needs the feature `baselines`.
    pub const fn is_available(self) -> bool {
        cfg!(feature = "baselines") || self.is_authenticated()
    }

    /// Whether a record that somebody changed is refused.
    pub const fn is_authenticated(self) -> bool {
        matches!(self, Self::Aead(_))
    }

    /// Bytes of a sealed record of `plain` bytes.
    pub const fn sealed(self, plain: u64) -> u64 {
        match self {
            Self::Aead(_) => plain + TAG_BYTES as u64,
            // The vector, and the plaintext with padding (PKCS#7). Whole blocks get a block of padding.
            Self::AesCbc => BLOCK + (plain / BLOCK + 1) * BLOCK,
        }
    }
}

impl FromStr for Suite {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = || Self::KNOWN.map(Self::name).join(", ");
        let found = Self::KNOWN.into_iter().find(|suite| suite.name() == name);
        found.ok_or_else(|| format!("{name:?} is no cipher; there are {}", known()))
    }
}

impl TryFrom<String> for Suite {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        name.parse()
    }
}

impl From<Suite> for String {
    fn from(suite: Suite) -> Self {
        suite.name().into()
    }
}

/// What a stream contains. Each of its records authenticates this.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Context {
    /// The job.
    pub job: u64,
    /// The round.
    pub round: u32,
    /// The sender: 0 is the server, other numbers are clients.
    pub sender: u32,
    /// The hash of the update's layout.
    pub layout: u64,
    /// Offset of the stream's first byte in the update.
    pub offset: u64,
    /// Bytes of plaintext in the stream.
    pub total: u64,
}

impl Context {
    /// The additional authenticated data of a record: the context, the record size and the record's index,
    /// little-endian.
    fn aad(&self, record: u32, index: u32) -> [u8; 48] {
        let mut out = [0; 48];
        out[0..8].copy_from_slice(&self.job.to_le_bytes());
        out[8..12].copy_from_slice(&self.round.to_le_bytes());
        out[12..16].copy_from_slice(&self.sender.to_le_bytes());
        out[16..24].copy_from_slice(&self.layout.to_le_bytes());
        out[24..32].copy_from_slice(&self.offset.to_le_bytes());
        out[32..40].copy_from_slice(&self.total.to_le_bytes());
        out[40..44].copy_from_slice(&record.to_le_bytes());
        out[44..48].copy_from_slice(&index.to_le_bytes());
        out
    }
}

/// The secret from which keys of streams are derived.
#[derive(Clone)]
pub struct Streams {
    suite: Suite,
    prk: Arc<Prk>,
}

impl Streams {
    /// Creates it from a secret that both ends share, such as TLS's exporter, and a salt that need not be
    /// secret.
    pub fn new(suite: Suite, shared: &[u8; 32], salt: &[u8]) -> Self {
        Self { suite, prk: Arc::new(Salt::new(HKDF_SHA256, salt).extract(shared)) }
    }

    /// Creates the sealer of one direction. Create only one for each label. Otherwise numbers would be used
    /// twice.
    pub fn sealer(&self, label: &[u8]) -> StreamSealer {
        StreamSealer { keys: Mutex::new(Keys::new(self, label)), next: AtomicU64::new(0) }
    }

    /// Creates the opener of streams that the [`StreamSealer`] of this label has sealed.
    pub fn opener(&self, label: &[u8]) -> StreamOpener {
        StreamOpener(Mutex::new((Keys::new(self, label), Replay::default())))
    }

    /// The only stream of a label, for an update that is sent once. Its number is 0, so the receiver need not
    /// be told it. The label must distinguish it from all others, for instance by round and sender. Sealing
    /// two different plaintexts under one label would reveal both.
    ///
    /// # Errors
    /// [`Refused::Length`] if the record size is impossible.
    pub fn only(&self, label: &[u8], context: &Context, record: u32) -> Result<Stream, Refused> {
        Keys::new(self, &[b"only ", label].concat()).stream(0, context, record)
    }
}

/// 32 bytes of HKDF's output. That is the key size of all suites.
struct Bytes32;

impl KeyType for Bytes32 {
    fn len(&self) -> usize {
        32
    }
}

enum Key {
    Aead(Box<LessSafeKey>),
    Cbc(Box<cbc::Key>),
}

/// The keys of one direction. The last two are kept.
struct Keys {
    streams: Streams,
    label: Vec<u8>,
    known: Vec<(u64, Arc<Key>)>,
}

impl Keys {
    fn new(streams: &Streams, label: &[u8]) -> Self {
        Self { streams: streams.clone(), label: label.to_vec(), known: Vec::new() }
    }

    fn of(&mut self, number: u64) -> Result<Arc<Key>, Refused> {
        let epoch = number / STREAMS;
        if let Some((_, key)) = self.known.iter().find(|(known, _)| *known == epoch) {
            return Ok(key.clone());
        }
        let key = Arc::new(self.make(epoch)?);
        if let [(first, _), (second, _)] = self.known[..] {
            self.known.remove(usize::from(second < first));
        }
        self.known.push((epoch, key.clone()));
        Ok(key)
    }

    fn make(&self, epoch: u64) -> Result<Key, Refused> {
        let (numbered, suite, mut bytes) = (epoch.to_le_bytes(), self.streams.suite, [0; 32]);
        let info = [
            &b"thalweg seal stream 1"[..],
            &[0],
            suite.name().as_bytes(),
            &[0],
            &self.label,
            &[0],
            &numbered,
        ];
        let expanded = self.streams.prk.expand(&info, Bytes32).and_then(|okm| okm.fill(&mut bytes));
        expanded.map_err(|_| Refused::Exhausted)?;
        match suite {
            Suite::Aead(cipher) => {
                let key = UnboundKey::new(cipher.algorithm(), &bytes).map_err(|_| Refused::Exhausted)?;
                Ok(Key::Aead(Box::new(LessSafeKey::new(key))))
            }
            Suite::AesCbc => Ok(Key::Cbc(Box::new(cbc::Key::new(&bytes)?))),
        }
    }

    fn stream(&mut self, number: u64, context: &Context, record: u32) -> Result<Stream, Refused> {
        let grid = Grid::new(self.streams.suite, context.total, record)?;
        Ok(Stream { key: self.of(number)?, number, context: *context, grid })
    }
}

/// Seals the streams of one direction. Several threads may use it at once.
pub struct StreamSealer {
    keys: Mutex<Keys>,
    next: AtomicU64,
}

impl StreamSealer {
    /// Creates the next stream, with a number of its own. Seal it only once.
    ///
    /// # Errors
    /// [`Refused::Length`] if the record size is impossible, [`Refused::Exhausted`] after 2^63 streams.
    pub fn stream(&self, context: &Context, record: u32) -> Result<Stream, Refused> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if number >= 1 << 63 {
            return Err(Refused::Exhausted);
        }
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).stream(number, context, record)
    }
}

/// Opens the streams of one direction, each once. Several threads may use it at once.
pub struct StreamOpener(Mutex<(Keys, Replay)>);

impl StreamOpener {
    fn lock(&self) -> MutexGuard<'_, (Keys, Replay)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the stream that was sealed with `number`.
    ///
    /// # Errors
    /// [`Refused::Replayed`] or [`Refused::Old`] if the number may not be accepted; [`Refused::Forged`] if it
    /// is too far ahead; [`Refused::Length`] if the record size is impossible.
    pub fn stream(&self, number: u64, context: &Context, record: u32) -> Result<Stream, Refused> {
        let (keys, replay) = &mut *self.lock();
        replay.check(number)?;
        // Otherwise an attacker could make us derive the keys of any epoch.
        if number / STREAMS > replay.newest() / STREAMS + 1 {
            return Err(Refused::Forged);
        }
        keys.stream(number, context, record)
    }

    /// Records that an authentic record of the stream was opened. From now on, streams with this number are
    /// refused. Never call this for an unauthenticated stream, since anybody can make up its number.
    ///
    /// # Errors
    /// [`Refused::Replayed`] or [`Refused::Old`] if another thread has been faster.
    pub fn opened(&self, stream: &Stream) -> Result<(), Refused> {
        let (_, replay) = &mut *self.lock();
        replay.check(stream.number)?;
        replay.mark(stream.number);
        Ok(())
    }
}

/// A stream: its key, and the data that its records authenticate.
pub struct Stream {
    key: Arc<Key>,
    number: u64,
    context: Context,
    grid: Grid,
}

/// The result of opening a stream. All bytes outside these ranges were decrypted into their place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Opened {
    /// The plaintext of records that a hole touches.
    pub missing: Ranges,
    /// The plaintext of records that arrived whole but were refused. They were damaged, or belong to another
    /// stream or place.
    pub refused: Ranges,
}

impl Opened {
    /// Whether all records were opened.
    pub fn is_whole(&self) -> bool {
        self.missing.is_empty() && self.refused.is_empty()
    }
}

impl Stream {
    /// Number of the stream.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Where the records are.
    pub fn grid(&self) -> &Grid {
        &self.grid
    }

    fn nonce(&self, index: u32) -> [u8; 12] {
        let mut nonce = [0; 12];
        nonce[..4].copy_from_slice(&index.to_be_bytes());
        nonce[4..].copy_from_slice(&self.number.to_be_bytes());
        nonce
    }

    /// A mask (xor) that hides the checksum of the plaintext from anybody without the key. It is a part of a
    /// tag under a nonce that no record uses. 0 for a cipher without tags.
    ///
    /// # Errors
    /// [`Refused::Length`] if the stream has so many records that no nonce is left.
    pub fn pad(&self) -> Result<u32, Refused> {
        let Key::Aead(key) = &*self.key else { return Ok(0) };
        if self.grid.records() > u64::from(u32::MAX) {
            return Err(Refused::Length);
        }
        let aad = Aad::from(self.context.aad(self.grid.record(), u32::MAX));
        let nonce = Nonce::assume_unique_for_key(self.nonce(u32::MAX));
        let tag = key.seal_in_place_separate_tag(nonce, aad, &mut []).map_err(|_| Refused::Length)?;
        Ok(tag.as_ref().iter().take(4).fold(0, |pad, &byte| pad << 8 | u32::from(byte)))
    }

    /// Appends the sealed stream to `out`.
    ///
    /// # Errors
    /// [`Refused::Length`] if `plain` does not have the length of the stream. `out` does not change then.
    pub fn seal(&self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), Refused> {
        if plain.len() as u64 != self.grid.total() {
            return Err(Refused::Length);
        }
        out.reserve(self.grid.sealed_bytes() as usize);
        for (index, record) in (0..).zip(plain.chunks(self.grid.record() as usize)) {
            self.seal_record(index, record, out)?;
        }
        Ok(())
    }

    fn seal_record(&self, index: u32, plain: &[u8], out: &mut Vec<u8>) -> Result<(), Refused> {
        let nonce = self.nonce(index);
        let key = match &*self.key {
            Key::Aead(key) => key,
            Key::Cbc(key) => return key.seal(&nonce, plain, out),
        };
        let (start, aad) = (out.len(), self.context.aad(self.grid.record(), index));
        out.extend_from_slice(plain);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = key.seal_in_place_separate_tag(nonce, Aad::from(aad), &mut out[start..]);
        out.extend_from_slice(tag.map_err(|_| Refused::Length)?.as_ref());
        Ok(())
    }

    /// Opens a stream of which all bytes have arrived but `missing`, and those after the end of `sealed`.
    /// Decrypts each record that has arrived whole and is authentic, in place, and copies it to its place in
    /// `plain`. The rest of `plain` does not change. What remains in `sealed` has no meaning.
    ///
    /// # Errors
    /// [`Refused::Length`] if `plain` does not have the length of the stream.
    pub fn open(&self, sealed: &mut [u8], missing: &Ranges, plain: &mut [u8]) -> Result<Opened, Refused> {
        if plain.len() as u64 != self.grid.total() {
            return Err(Refused::Length);
        }
        let mut holes = missing.clone();
        holes.insert(thalweg_wire::Range::new(sealed.len() as u64, self.grid.sealed_bytes()));
        let mut opened = Opened { missing: self.grid.lost(&holes), refused: Ranges::new() };
        for present in opened.missing.holes(self.grid.total()).iter() {
            let first = present.start / u64::from(self.grid.record());
            for index in first..present.end.div_ceil(self.grid.record().into()) {
                let (from, to) = (self.grid.sealed(index), self.grid.plain(index));
                let from = &mut sealed[from.start as usize..from.end as usize];
                match self.open_record(index as u32, from) {
                    Ok(bytes) if bytes.len() as u64 == to.len() => {
                        plain[to.start as usize..to.end as usize].copy_from_slice(bytes);
                    }
                    _ => drop(opened.refused.insert(to)),
                }
            }
        }
        Ok(opened)
    }

    fn open_record<'a>(&self, index: u32, sealed: &'a mut [u8]) -> Result<&'a [u8], Refused> {
        let key = match &*self.key {
            Key::Aead(key) => key,
            Key::Cbc(key) => return key.open(sealed),
        };
        let aad = Aad::from(self.context.aad(self.grid.record(), index));
        let nonce = Nonce::assume_unique_for_key(self.nonce(index));
        key.open_in_place(nonce, aad, sealed).map(|bytes| &*bytes).map_err(|_| Refused::Forged)
    }
}
