//! The bytes that a node works on among the other nodes: sums, means and the model.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use thalweg_arena::Arena;
use thalweg_proto::TopKind;
use thalweg_wire::tree::{Bytes, MeanAnswer, MeanFold, Statement};
use thalweg_wire::{Dtype, Layout, Range};

use super::{SumsSource, Tensors};
use crate::options::ServerOptions;
use crate::star::{self, Top};
use crate::Error;

/// How long a loan of the model may last.
const LOAN_TIMEOUT: Duration = Duration::from_secs(6);

/// What a node has of the sums of all nodes and of their mean.
pub(super) struct Folding {
    model: Arena,
    layout: Arc<Layout>,
    options: ServerOptions,
    sums: SumsSource,
    /// The bytes of updates that are added up; `None`: all.
    part: Option<Range>,
    /// What adds them up, or why nothing does.
    top: Result<Top, String>,
    /// Bytes of the model from before the mean that was computed last.
    saved: Option<(Range, Vec<u8>)>,
    /// Parts of a mean that other nodes have sent.
    kept: BTreeMap<Bytes, Arena>,
}

impl Folding {
    /// # Errors
    /// `options` for an impossible option of the top.
    pub fn new(
        model: Arena,
        layout: Layout,
        options: ServerOptions,
        sums: SumsSource,
        kind: TopKind,
    ) -> Result<Self, Error> {
        options.check()?;
        let top = match kind {
            TopKind::FirstFinished => Ok(Top::new(model.clone(), layout.clone(), &options, None)?),
            TopKind::Dedicated | TopKind::Middle | TopKind::Sharded => Err("it adds up no sums".to_owned()),
        };
        let (layout, kept) = (Arc::new(layout), BTreeMap::new());
        Ok(Self { model, layout, options, sums, part: None, top, saved: None, kept })
    }

    /// Begins to add up sums of these bytes of updates, or of all.
    pub fn begin_sums(&mut self, part: Option<Bytes>) {
        if self.saved.is_some() {
            self.top = Err("its model cannot be restored".into());
            return;
        }
        let part = part.map(|(start, end)| Range::new(start, end.max(start)));
        match &self.top {
            Ok(top) if self.part == part => top.forget(),
            _ => {
                let top = Top::new(self.model.clone(), (*self.layout).clone(), &self.options, part);
                self.top = top.map_err(|error| error.to_string());
            }
        }
        self.part = part;
    }

    /// Adds the node's own sums.
    pub fn merge_own(&self, claim: Statement) -> Result<(), String> {
        let sums = (self.sums)(self.part).map_err(|error| error.to_string())?;
        let sums = sums.ok_or("it has no sums")?;
        self.merge(&sums.head, Some(&sums.cells), claim)
    }

    /// Adds another node's sums.
    pub fn merge(&self, head: &[u8], cells: Option<&Arena>, claim: Statement) -> Result<(), String> {
        let (cells, top) = (cells.ok_or("it has sent no sums")?, self.top.as_ref()?);
        let Statement(participants, weight, whole) = claim;
        let stated = star::Statement { participants, weight, whole };
        top.merge(head, cells, stated).map_err(|error| error.to_string())
    }

    /// Writes the mean of the sums to the model, and returns it. If they are of a part, saves the model's bytes
    /// first.
    pub fn compute(&mut self) -> Result<(MeanAnswer, Tensors), String> {
        let text = |error: thalweg_arena::ArenaError| error.to_string();
        let top = self.top.as_ref()?;
        if let Some(part) = self.part {
            self.saved = Some((part, self.model.lend(part).map_err(text)?.to_vec()));
        }
        let fold = top.finish().map_err(|error| error.to_string())?;
        let fold: MeanFold = serde_json::from_str(&fold).map_err(|error| error.to_string())?;
        let mean = match self.part {
            None => (self.model.clone(), self.layout.clone()),
            Some(part) => self.copy_of(part)?,
        };
        let done = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        Ok((MeanAnswer { fold, done }, mean))
    }

    fn copy_of(&self, part: Range) -> Result<Tensors, String> {
        let layout = Layout::pack([("mean", Dtype::U8, vec![part.len()])]).map_err(|e| e.to_string())?;
        let mean = Arena::new(part.len()).map_err(|error| error.to_string())?;
        let bytes = self.model.lend(part).map_err(|error| error.to_string())?;
        let mut own = mean.claim(Range::new(0, part.len())).map_err(|error| error.to_string())?;
        own.copy_from_slice(&bytes);
        drop(own);
        Ok((mean, Arc::new(layout)))
    }

    /// Writes the saved bytes to the model. If it cannot, sums that begin afterwards are refused.
    pub fn restore(&mut self) {
        let Some((part, bytes)) = &self.saved else { return };
        if let Ok(mut claim) = self.model.claim_within(*part, LOAN_TIMEOUT) {
            claim.copy_from_slice(bytes);
            self.saved = None;
        }
    }

    /// Keeps a part of a mean that another node has sent.
    pub fn keep(&mut self, part: Bytes, mean: Arena) {
        self.kept.insert(part, mean);
    }

    /// Writes the kept parts of the mean to the model.
    pub fn adopt(&mut self) -> Result<(), Error> {
        for (&(start, end), mean) in &self.kept {
            let part = Range::new(start, end.max(start));
            let bytes = mean.lend(Range::new(0, part.len()))?;
            self.model.claim_within(part, LOAN_TIMEOUT)?.copy_from_slice(&bytes);
        }
        self.saved = None;
        Ok(())
    }

    /// Drops the kept parts of a mean, and the sums of a part.
    pub fn drop_parts(&mut self) {
        self.kept.clear();
        if self.part.take().is_some() {
            self.top = Err("it adds up no sums".into());
        }
    }

    /// Forgets the saved bytes of the model: the root has sent the model.
    pub fn replaced(&mut self) {
        self.saved = None;
    }
}
