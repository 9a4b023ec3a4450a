//! A client's error feedback. Its update is the compressed difference between the trained and the received
//! model. What compression leaves out is added to the next update.

use std::convert::Infallible;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use bytes::Bytes;
use thalweg_arena::{Arena, Attached};
use thalweg_layers::{down, put_back, Factors, LowRank, Scheme};
use thalweg_wire::control::Tracked;
use thalweg_wire::{checksum, Layout, Ranges};

use crate::engine::CHUNK_TIMEOUT;
use crate::lock;

/// The first bytes of a residual's file. The layout's hash, a CRC-32C of the values, and the values follow: the
/// residual, and for `powersgd` the Q from which the next update starts.
const MAGIC: &[u8] = b"thalweg residual 1\n";

/// What the memory for sending holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Holds {
    /// Nothing of use.
    #[default]
    Nothing,
    /// The model as it was received.
    Model,
    /// The update of the round that was handed out last.
    Update,
}

#[derive(Default)]
struct State {
    holds: Holds,
    /// Memory of a model's size, from which updates are sent.
    sent: Option<Arena>,
    /// The sum of what earlier updates have left out: one value for each four bytes of the model.
    residual: Vec<f32>,
    /// The factors of the update, if it is of low rank. They are attached to `sent`, so that the layer finds them.
    factors: Option<Attached<Factors>>,
    /// The last model that was received, if the server sends differences from it.
    held: Option<Arena>,
}

/// A client's memory for compressed updates: twice the size of the model, and three times if models are compressed
/// too.
pub(crate) struct Feedback {
    scheme: Scheme,
    /// The file that keeps the residual, if it is to survive the process.
    file: Option<PathBuf>,
    /// The seed of the first factors.
    seed: u64,
    state: Mutex<State>,
}

impl Feedback {
    pub fn new(scheme: Scheme, file: Option<PathBuf>, seed: u64) -> Self {
        Self { scheme, file, seed, state: Mutex::default() }
    }

    /// Completes a received model. If `model` holds a difference, replaces it by the last received model plus the
    /// difference. Keeps the result for the next difference.
    ///
    /// # Errors
    /// The reason why there is no such model, or no memory.
    pub fn follow(&self, model: &Arena, layout: &Layout, tracked: Tracked) -> Result<(), String> {
        let mut state = lock(&self.state);
        if state.held.is_none() {
            if tracked.is_difference {
                return Err("the server sends how its model has changed, and this client has none".into());
            }
            state.held = Some(Arena::new(model.len()).map_err(|e| e.to_string())?);
        }
        let State { held: Some(held), .. } = &*state else { return Ok(()) };
        let mut held = held.claim_within(held.range(), CHUNK_TIMEOUT).map_err(|e| e.to_string())?;
        let mut model = model.claim_within(model.range(), CHUNK_TIMEOUT).map_err(|e| e.to_string())?;
        if tracked.is_difference {
            down::follow(layout, &model, &mut held);
            model.copy_from_slice(&held);
        } else {
            held.copy_from_slice(&model);
        }
        if checksum(&held) == tracked.checksum {
            return Ok(());
        }
        Err("the model that this client has put together is not the one that the server has".into())
    }

    /// Copies the received model, before the application trains it.
    ///
    /// # Errors
    /// The reason why there is no memory, or why the residual's file cannot be used.
    pub fn begin(&self, model: &Arena, layout: &Layout) -> Result<(), String> {
        let mut state = lock(&self.state);
        if state.sent.is_none() {
            let sent = Arena::new(model.len()).map_err(|e| e.to_string())?;
            let mut residual = vec![0.0; model.len().div_ceil(4) as usize];
            let factors = match self.scheme {
                Scheme::PowerSgd(rank) => Some(self.factors(&sent, rank, layout)),
                _ => None,
            };
            if let Some(file) = self.file.as_ref().filter(|file| file.exists()) {
                load(file, layout, &mut residual, factors.as_deref())?;
            }
            (state.sent, state.residual, state.factors) = (Some(sent), residual, factors);
        }
        let State { sent: Some(sent), holds, .. } = &mut *state else { return Ok(()) };
        let received = model.lend(model.range()).map_err(|e| e.to_string())?;
        let mut base = sent.claim_within(sent.range(), CHUNK_TIMEOUT).map_err(|e| e.to_string())?;
        base.copy_from_slice(&received);
        *holds = Holds::Model;
        Ok(())
    }

    /// Attaches the factors of updates with this layout to the memory that they are sent from.
    fn factors(&self, sent: &Arena, rank: u16, layout: &Layout) -> Attached<Factors> {
        let make = || Ok::<_, Infallible>(Factors::new(LowRank::new(rank, layout, self.seed)));
        sent.attach(make).unwrap_or_else(|never| match never {})
    }

    /// Makes the round's update from the trained model. Later calls in the same round change nothing.
    ///
    /// # Errors
    /// The reason why the memory cannot be written.
    pub fn make(&self, trained: &Arena, layout: &Layout) -> Result<(), String> {
        let mut state = lock(&self.state);
        let State { sent: Some(sent), holds, residual, factors, .. } = &mut *state else { return Ok(()) };
        if *holds != Holds::Model {
            return Ok(());
        }
        let trained = trained.lend(trained.range()).map_err(|e| e.to_string())?;
        let mut update = sent.claim_within(sent.range(), CHUNK_TIMEOUT).map_err(|e| e.to_string())?;
        let mut factors = factors.as_ref().map(|factors| factors.lock());
        self.scheme.feed_back(layout, &trained, &mut update, residual, factors.as_deref_mut());
        *holds = Holds::Update;
        Ok(())
    }

    /// The update, for sending.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn lend(&self) -> Result<Bytes, String> {
        let state = lock(&self.state);
        let sent = state.sent.as_ref().ok_or("there is no update")?;
        sent.lend(sent.range()).map_err(|e| e.to_string())
    }

    /// Ends a round: adds the bytes of the update that do not count, `lost`, to the residual.
    ///
    /// # Errors
    /// The reason why the residual's file cannot be written.
    pub fn settle(&self, layout: &Layout, lost: &Ranges) -> Result<(), String> {
        let mut state = lock(&self.state);
        let State { sent: Some(sent), holds, residual, factors, .. } = &mut *state else { return Ok(()) };
        if std::mem::take(holds) != Holds::Update {
            return Ok(());
        }
        let update = sent.lend(sent.range()).map_err(|e| e.to_string())?;
        put_back(layout, &update, lost, residual);
        self.file.as_ref().map_or(Ok(()), |file| store(file, layout, residual, factors.as_deref()))
    }
}

/// Reads a residual, and the Q from which the next update starts.
fn load(file: &Path, layout: &Layout, residual: &mut [f32], factors: Option<&Factors>) -> Result<(), String> {
    let unfit = |why: &str| {
        let file = file.display();
        format!("{file}, which should hold what compression has left out: {why}; delete it to begin without")
    };
    let starts = factors.map_or(0, |factors| factors.lock().starts().count());
    let length = MAGIC.len() + 12 + 4 * (residual.len() + starts);
    let found = fs::metadata(file).map_err(|e| unfit(&e.to_string()))?.len();
    if found != length as u64 {
        return Err(unfit(&format!("it has {found} bytes, and the model needs {length}")));
    }
    let bytes = fs::read(file).map_err(|e| unfit(&e.to_string()))?;
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| unfit("it is another file"))?;
    let Some((hash, rest)) = rest.split_first_chunk::<8>() else { return Err(unfit("it is cut")) };
    let Some((sum, values)) = rest.split_first_chunk::<4>() else { return Err(unfit("it is cut")) };
    if u64::from_le_bytes(*hash) != layout.hash().0 {
        return Err(unfit("it belongs to another model"));
    }
    if u32::from_le_bytes(*sum) != checksum(values) {
        return Err(unfit("it is damaged"));
    }
    let mut values =
        values.chunks_exact(4).map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]]));
    for (left, value) in residual.iter_mut().zip(values.by_ref()) {
        *left = if value.is_finite() { value } else { 0.0 };
    }
    if let Some(factors) = factors {
        factors.lock().resume(values);
    }
    Ok(())
}

/// Replaces the file of a residual. After a crash it has either the old values or the new ones.
fn store(file: &Path, layout: &Layout, residual: &[f32], factors: Option<&Factors>) -> Result<(), String> {
    let mut values: Vec<u8> = residual.iter().flat_map(|value| value.to_le_bytes()).collect();
    if let Some(factors) = factors {
        values.extend(factors.lock().starts().flat_map(f32::to_le_bytes));
    }
    let head = [MAGIC, &layout.hash().0.to_le_bytes(), &checksum(&values).to_le_bytes()].concat();
    let partial = file.with_extension("partial");
    let write = || {
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut to = fs::File::create(&partial)?;
        to.write_all(&head)?;
        to.write_all(&values)?;
        to.sync_all()?;
        fs::rename(&partial, file)
    };
    write().map_err(|error| {
        format!("what compression has left out cannot be kept in {}: {error}", file.display())
    })
}

#[cfg(test)]
mod tests {
    use thalweg_wire::Dtype;

    use super::*;

    fn layout() -> Layout {
        Layout::pack([("w", Dtype::F32, vec![300]), ("steps", Dtype::I64, vec![1])]).unwrap()
    }

    fn arena(value: f32) -> Arena {
        let arena = Arena::new(layout().bytes()).unwrap();
        fill(&arena, value);
        arena
    }

    /// Gives the values `value`, `value` / 1000, twice that and so on.
    fn fill(arena: &Arena, value: f32) {
        let mut claim = arena.claim(arena.range()).unwrap();
        for (at, word) in claim[..1200].chunks_exact_mut(4).enumerate() {
            let share = if at == 0 { 1.0 } else { at as f32 / 1000.0 };
            word.copy_from_slice(&(value * share).to_le_bytes());
        }
    }

    fn total(bytes: &[u8]) -> f64 {
        bytes[..1200].chunks_exact(4).map(|w| f64::from(f32::from_le_bytes([w[0], w[1], w[2], w[3]]))).sum()
    }

    /// The sum of the values that a round sends, if training changes the model by `fill(1.0)`.
    fn round(feedback: &Feedback, lost: &Ranges) -> f64 {
        let (model, layout) = (arena(0.0), layout());
        feedback.begin(&model, &layout).unwrap();
        fill(&model, 1.0);
        feedback.make(&model, &layout).unwrap();
        let sent = total(&feedback.lend().unwrap());
        feedback.make(&model, &layout).unwrap();
        assert_eq!(total(&feedback.lend().unwrap()), sent, "made twice");
        feedback.settle(&layout, lost).unwrap();
        sent
    }

    #[test]
    fn what_is_left_out_is_sent_later_and_what_did_not_count_too() {
        let trained = total(&{
            let model = arena(1.0);
            model.lend(model.range()).unwrap()
        });
        let feedback = Feedback::new(Scheme::Int2, None, 0);
        let sent: f64 = (0..200).map(|_| round(&feedback, &Ranges::new())).sum();
        assert!((sent / 200.0 - trained).abs() < 0.05 * trained, "{sent} of {trained} a round");
        let feedback = Feedback::new(Scheme::Int2, None, 0);
        let first = round(&feedback, &Ranges::full(layout().bytes()));
        let second = round(&feedback, &Ranges::new());
        assert!(second > 1.5 * first, "{second} holds both updates, {first} one");
    }

    #[test]
    fn a_residual_outlives_its_process_and_a_damaged_one_is_refused() {
        let folder = std::env::temp_dir().join(format!("thalweg-residual-{}", std::process::id()));
        let file = folder.join("one.residual");
        let (kept, plain) =
            (Feedback::new(Scheme::Int2, Some(file.clone()), 0), Feedback::new(Scheme::Int2, None, 0));
        assert_eq!(round(&kept, &Ranges::new()), round(&plain, &Ranges::new()));
        let again = Feedback::new(Scheme::Int2, Some(file.clone()), 0);
        assert_eq!(round(&again, &Ranges::new()), round(&plain, &Ranges::new()));
        let good = fs::read(&file).unwrap();
        let refused = |bytes: &[u8]| {
            fs::write(&file, bytes).unwrap();
            Feedback::new(Scheme::Int2, Some(file.clone()), 0).begin(&arena(0.0), &layout()).unwrap_err()
        };
        let mut damaged = good.clone();
        damaged[100] ^= 1;
        assert!(refused(&damaged).contains("damaged"));
        assert!(refused(&good[..99]).contains("it has 99 bytes"));
        let mut other = good.clone();
        other[MAGIC.len()] ^= 1;
        assert!(refused(&other).contains("another model"));
        fs::remove_dir_all(&folder).unwrap();
    }
}
