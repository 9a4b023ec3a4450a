//! Registered memory, and the ways in which a peer gets access to memory for a while.

use std::ffi::c_int;
use std::sync::Arc;

use bytes::Bytes;
use thalweg_arena::Arena;

use crate::abi::{self, constant};
use crate::domain::Domain;
use crate::open::there;
use crate::{Error, Memory};

/// The part of a memory window's key that its owner chooses.
const OWN_PART: u32 = 0xff;

/// Registered memory (a memory region).
pub(crate) struct Region {
    pub(super) mr: *mut abi::Mr,
    domain: Arc<Domain>,
}

// SAFETY: as for `Domain`; its fields do not change after it was made.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Registers `length` bytes from `start` on.
    ///
    /// # Safety
    /// The memory stays mapped until the region is dropped. If the region allows remote access, nobody else
    /// uses the memory meanwhile.
    pub(super) unsafe fn new(
        domain: &Arc<Domain>,
        start: *mut u8,
        length: usize,
        access: c_int,
    ) -> Result<Self, Error> {
        // SAFETY: the protection domain exists; the caller is responsible for the memory.
        let mr = unsafe { (domain.functions.ibv_reg_mr)(domain.pd, start.cast(), length, access) };
        let mr = there(&format!("register {length} bytes"), mr)?;
        Ok(Self { mr, domain: domain.clone() })
    }

    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: the region is registered.
        unsafe { (*self.mr).lkey }
    }

    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: the region is registered.
        unsafe { (*self.mr).rkey }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: it is registered, and no work request refers to it: each pair holds the memory of its
        // requests, and so the arena.
        unsafe { (self.domain.functions.ibv_dereg_mr)(self.mr) };
    }
}

/// The registrations of an arena, one for each domain. As an attachment it is dropped before the memory is
/// unmapped.
#[derive(Default)]
struct Regions(std::sync::Mutex<Vec<Arc<Region>>>);

fn find(domain: &Arc<Domain>, regions: &Regions) -> Option<Arc<Region>> {
    let regions = regions.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    regions.iter().find(|region| Arc::ptr_eq(&region.domain, domain)).cloned()
}

pub(crate) fn region_of(domain: &Arc<Domain>, bytes: &[u8]) -> Result<Arc<Region>, Error> {
    let arena = Arena::of(bytes).map(|(arena, _)| arena);
    let regions = arena.and_then(|arena| arena.attachment::<Regions>());
    regions
        .and_then(|regions| find(domain, &regions))
        .ok_or_else(|| Error::Refused("the memory of a work request is not registered".into()))
}

/// Registers a whole arena with a domain, once. A peer gets no access by this.
pub(crate) fn register(domain: &Arc<Domain>, windows: bool, arena: &Arena) -> Result<(), Error> {
    let regions = arena.attach(|| Ok::<_, Error>(Regions::default()))?;
    if find(domain, &regions).is_some() {
        return Ok(());
    }
    let access = match (arena.is_writable(), windows) {
        (false, _) => 0,
        (true, false) => constant::LOCAL_WRITE,
        (true, true) => constant::LOCAL_WRITE | constant::MW_BIND,
    };
    let length = usize::try_from(arena.len().max(1)).unwrap_or(usize::MAX);
    // SAFETY: the region is attached to the arena, whose memory is freed after its attachments.
    let region = unsafe { Region::new(domain, arena.as_ptr(), length, access)? };
    let mut all = regions.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    all.push(Arc::new(region));
    Ok(())
}

/// A memory window that is not bound now.
pub(crate) struct Window {
    pub(super) mw: *mut abi::Mw,
    key: u32,
    domain: Arc<Domain>,
}

// SAFETY: as for `Domain`.
unsafe impl Send for Window {}

impl Window {
    pub(super) fn new(domain: &Arc<Domain>) -> Result<Self, Error> {
        // SAFETY: the context is open.
        let alloc = unsafe { (*domain.context).ops.alloc_mw };
        let none = || Error::Refused("the device has no memory windows".into());
        // SAFETY: the protection domain exists.
        let mw = unsafe { alloc.ok_or_else(none)?(domain.pd, constant::MW_TYPE_2) };
        let mw = there("allocate a memory window", mw)?;
        // SAFETY: the window was just made.
        let key = unsafe { (*mw).rkey };
        Ok(Self { mw, key, domain: domain.clone() })
    }

    /// The window's next key. It does not reach what the previous key opened.
    pub(super) fn next_key(&mut self) -> u32 {
        self.key = (self.key & !OWN_PART) | (self.key.wrapping_add(1) & OWN_PART);
        self.key
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the context is open.
        if let Some(dealloc) = unsafe { (*self.domain.context).ops.dealloc_mw } {
            // SAFETY: the window exists. If it is bound, its pair accepts no more work: see `Queue`.
            unsafe { dealloc(self.mw) };
        }
    }
}

/// Memory that the peer can access.
pub(crate) enum Held {
    /// The peer can write to it.
    Written(Memory),
    /// The peer can read it.
    Lent(Bytes),
}

impl Held {
    pub(super) fn address(&self) -> u64 {
        match self {
            Held::Written(memory) => memory.address(),
            Held::Lent(bytes) => bytes.as_ptr() as u64,
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Held::Written(memory) => memory.len(),
            Held::Lent(bytes) => bytes.len(),
        }
    }

    /// The peer's rights to the memory, as access flags.
    pub(super) fn access(&self) -> c_int {
        match self {
            Held::Written(_) => constant::REMOTE_WRITE,
            Held::Lent(_) => constant::REMOTE_READ,
        }
    }

    /// The registration of its whole arena.
    pub(super) fn region(&self, domain: &Arc<Domain>) -> Result<Arc<Region>, Error> {
        match self {
            Held::Written(memory) => match memory.claims().first() {
                Some(first) => region_of(domain, first),
                None => Err(Error::Refused("no memory to open".into())),
            },
            Held::Lent(bytes) => region_of(domain, bytes),
        }
    }

    /// Whether a memory window may be bound to it. The registration of a read-only arena does not allow that.
    pub(super) fn takes_windows(&self) -> bool {
        match self {
            Held::Written(_) => true,
            Held::Lent(bytes) => Arena::of(bytes).is_some_and(|(arena, _)| arena.is_writable()),
        }
    }

    /// Returns the memory that the peer could write to.
    pub(super) fn into_memory(self) -> Memory {
        match self {
            Held::Written(memory) => memory,
            Held::Lent(_) => Memory::default(),
        }
    }
}

/// Memory that the peer can access, and by what.
pub(crate) struct Opened {
    pub(super) held: Held,
    pub(super) by: By,
}

impl Opened {
    /// Gives up its window, if it has one. Its key is then invalid.
    pub(super) fn unbind(&mut self) {
        if matches!(self.by, By::Window(_)) {
            self.by = By::Nothing;
        }
    }
}

pub(crate) enum By {
    Window(Window),
    /// The window was given up.
    Nothing,
    /// A registration of just this memory. Dropping it revokes the access.
    Region(#[allow(dead_code)] Region),
}
