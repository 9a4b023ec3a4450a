//! libibverbs, opened at run time, and its things as values that free themselves. Each owns what it needs to stay valid, so
//! that C sees no pointer to what is gone.

use std::collections::HashMap;
use std::ffi::{c_int, CStr};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use thalweg_arena::Arena;
use tokio::io::unix::AsyncFd;
use tokio::io::Interest;

use crate::abi::{self, constant, Functions};
use crate::{Error, Memory, Remote};

const LIBRARY: &CStr = c"libibverbs.so.1";
/// Of the key of a memory window, the part that its owner chooses.
const OWN_PART: u32 = 0xff;

fn functions() -> Result<&'static Functions, Error> {
    static FUNCTIONS: OnceLock<Result<Functions, Error>> = OnceLock::new();
    let opened = FUNCTIONS.get_or_init(|| {
        // SAFETY: the name is a C string; the library's initialisers are those of rdma-core, which may run at any time.
        let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            // SAFETY: after a failure the text is there, until the next call of this thread.
            let said = unsafe { libc::dlerror().as_ref().map(|text| CStr::from_ptr(text)) };
            let said = said.map_or_else(|| "libibverbs.so.1 does not open".into(), CStr::to_string_lossy);
            return Err(Error::NoLibrary(said.into_owned()));
        }
        // SAFETY: the library is never closed; a symbol of libibverbs is the function of that name, in its newest version,
        // which is the one of verbs.h.
        unsafe { Functions::load(|name| libc::dlsym(library, name.as_ptr())) }
            .map_err(|name| Error::NoLibrary(format!("libibverbs.so.1 has no {name}")))
    });
    opened.as_ref().map_err(Clone::clone)
}

fn refused(what: &str, error: &io::Error) -> Error {
    let said = format!("{what}: {error}");
    match error.raw_os_error() {
        Some(libc::ENOMEM | libc::EAGAIN | libc::EPERM) => Error::Locked(said),
        _ => Error::Refused(said),
    }
}

fn checked(what: &str, code: c_int) -> Result<(), Error> {
    match code {
        0 => Ok(()),
        -1 => Err(refused(what, &io::Error::last_os_error())),
        code => Err(refused(what, &io::Error::from_raw_os_error(code.abs()))),
    }
}

fn there<T>(what: &str, pointer: *mut T) -> Result<*mut T, Error> {
    let error = io::Error::last_os_error();
    (!pointer.is_null()).then_some(pointer).ok_or_else(|| refused(what, &error))
}

/// The names of all devices.
pub(crate) fn names() -> Result<Vec<String>, Error> {
    each(|functions, device| {
        // SAFETY: the device is in a list that has not been freed; the name is a C string of the device.
        let name = unsafe { CStr::from_ptr((functions.ibv_get_device_name)(device)) };
        name.to_string_lossy().into_owned()
    })
}

/// What `f` makes of each device, while the list of them is there.
fn each<T>(mut f: impl FnMut(&Functions, abi::Ptr) -> T) -> Result<Vec<T>, Error> {
    let functions = functions()?;
    let mut count = 0;
    // SAFETY: `count` may be written to.
    let list = unsafe { (functions.ibv_get_device_list)(&raw mut count) };
    if list.is_null() {
        let error = io::Error::last_os_error();
        return Err(Error::NoDevice(format!("the kernel has no verbs: {error}")));
    }
    // SAFETY: the list has `count` devices.
    let all = (0..count.max(0) as usize).map(|at| f(functions, unsafe { *list.add(at) })).collect();
    // SAFETY: it is the list from above, and used no more.
    unsafe { (functions.ibv_free_device_list)(list) };
    Ok(all)
}

/// An open device with its protection domain.
pub(crate) struct Domain {
    functions: &'static Functions,
    context: *mut abi::Context,
    pd: *mut abi::Pd,
}

// SAFETY: libibverbs is safe to call from several threads at once (its manual, ibv_open_device and others).
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// Opens the device of this name.
    pub(crate) fn open(name: &str) -> Result<Self, Error> {
        let opened = each(|functions, device| {
            // SAFETY: the device is in a list that has not been freed.
            let found = unsafe { CStr::from_ptr((functions.ibv_get_device_name)(device)) };
            // SAFETY: as above; the context stays valid when the list is freed (manual, ibv_get_device_list).
            (found.to_bytes() == name.as_bytes()).then(|| unsafe { (functions.ibv_open_device)(device) })
        })?;
        let opened = opened.into_iter().flatten().next();
        let context = opened.ok_or_else(|| Error::NoDevice(format!("there is no device {name}")))?;
        let context = there(&format!("open {name}"), context)?;
        let functions = functions()?;
        // SAFETY: the context is open.
        let pd = unsafe { (functions.ibv_alloc_pd)(context) };
        let domain = Self { functions, context, pd };
        there("allocate a protection domain", pd)?;
        Ok(domain)
    }

    pub(crate) fn attributes(&self) -> Result<abi::DeviceAttr, Error> {
        let mut attributes = abi::DeviceAttr::zero();
        // SAFETY: the context is open, and the structure is that of verbs.h.
        let code = unsafe { (self.functions.ibv_query_device)(self.context, &raw mut attributes) };
        checked("query the device", code).map(|()| attributes)
    }

    pub(crate) fn port(&self, port: u8) -> Result<abi::PortAttr, Error> {
        let mut attributes = abi::PortAttr::zero();
        // SAFETY: the context is open; the structure is as long as the newest one, and older libraries write less.
        let code = unsafe { (self.functions.ibv_query_port)(self.context, port, &raw mut attributes) };
        checked("query the port", code).map(|()| attributes)
    }

    pub(crate) fn gid(&self, port: u8, index: c_int) -> Option<[u8; 16]> {
        let mut gid = [0_u64; 2];
        // SAFETY: the context is open, and a GID has 16 bytes.
        let code = unsafe { (self.functions.ibv_query_gid)(self.context, port, index, &raw mut gid) };
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&gid[0].to_ne_bytes());
        bytes[8..].copy_from_slice(&gid[1].to_ne_bytes());
        (code == 0).then_some(bytes)
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: nothing else refers to them: whatever does holds this domain.
        unsafe {
            if !self.pd.is_null() {
                (self.functions.ibv_dealloc_pd)(self.pd);
            }
            (self.functions.ibv_close_device)(self.context);
        }
    }
}

/// Registered memory.
pub(crate) struct Region {
    mr: *mut abi::Mr,
    domain: Arc<Domain>,
}

// SAFETY: as for `Domain`; its fields are not changed after it was made.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Registers `length` bytes from `start` on.
    ///
    /// # Safety
    /// The memory stays mapped until the region has been dropped. With remote access nobody else may use it meanwhile.
    unsafe fn new(domain: &Arc<Domain>, start: *mut u8, length: usize, access: c_int) -> Result<Self, Error> {
        // SAFETY: the protection domain is there; the caller sees to the memory.
        let mr = unsafe { (domain.functions.ibv_reg_mr)(domain.pd, start.cast(), length, access) };
        let mr = there(&format!("register {length} bytes"), mr)?;
        Ok(Self { mr, domain: domain.clone() })
    }

    fn lkey(&self) -> u32 {
        // SAFETY: the region is registered.
        unsafe { (*self.mr).lkey }
    }

    fn rkey(&self) -> u32 {
        // SAFETY: the region is registered.
        unsafe { (*self.mr).rkey }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: it is registered, and no work request refers to it: pairs hold the memory of theirs, and so the arena.
        unsafe { (self.domain.functions.ibv_dereg_mr)(self.mr) };
    }
}

/// The registrations of an arena, one for each domain; an attachment, so dropped before the memory is unmapped.
#[derive(Default)]
struct Regions(std::sync::Mutex<Vec<Arc<Region>>>);

fn find(domain: &Arc<Domain>, regions: &Regions) -> Option<Arc<Region>> {
    let regions = regions.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    regions.iter().find(|region| Arc::ptr_eq(&region.domain, domain)).cloned()
}

fn region_of(domain: &Arc<Domain>, bytes: &[u8]) -> Result<Arc<Region>, Error> {
    let arena = Arena::of(bytes).map(|(arena, _)| arena);
    let regions = arena.and_then(|arena| arena.attachment::<Regions>());
    regions
        .and_then(|regions| find(domain, &regions))
        .ok_or_else(|| Error::Refused("the memory of a work request is not registered".into()))
}

/// Registers all of an arena with a domain, once. Nothing of it may be reached by a peer.
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
    // SAFETY: the region is attached to the arena, whose memory goes after its attachments.
    let region = unsafe { Region::new(domain, arena.as_ptr(), length, access)? };
    let mut all = regions.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    all.push(Arc::new(region));
    Ok(())
}

/// A memory window that is bound to nothing now.
struct Window {
    mw: *mut abi::Mw,
    key: u32,
    domain: Arc<Domain>,
}

// SAFETY: as for `Domain`.
unsafe impl Send for Window {}

impl Window {
    fn new(domain: &Arc<Domain>) -> Result<Self, Error> {
        // SAFETY: the context is open.
        let alloc = unsafe { (*domain.context).ops.alloc_mw };
        let none = || Error::Refused("the device has no memory windows".into());
        // SAFETY: the protection domain is there.
        let mw = unsafe { alloc.ok_or_else(none)?(domain.pd, constant::MW_TYPE_2) };
        let mw = there("allocate a memory window", mw)?;
        // SAFETY: it was just made.
        let key = unsafe { (*mw).rkey };
        Ok(Self { mw, key, domain: domain.clone() })
    }

    /// Another key of the same window: what the last one opened is not reached by it.
    fn next_key(&mut self) -> u32 {
        self.key = (self.key & !OWN_PART) | (self.key.wrapping_add(1) & OWN_PART);
        self.key
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the context is open.
        if let Some(dealloc) = unsafe { (*self.domain.context).ops.dealloc_mw } {
            // SAFETY: it is there, and its pair has gone or never bound it: see `Queue`.
            unsafe { dealloc(self.mw) };
        }
    }
}

/// What the peer can write to.
struct Opened {
    memory: Memory,
    by: By,
}

enum By {
    Window(Window),
    /// The registration of just this memory; dropped, it is over.
    Region(#[allow(dead_code)] Region),
}

/// What happened to a work request, or came.
pub(crate) enum Event {
    Written(u64),
    Opened(u64, Remote),
    Closed(u64, Memory),
    Noted(u32),
    /// The status of a failed work request.
    Failed(c_int),
}

enum Posted {
    /// The memory that is being read.
    Bytes(#[allow(dead_code)] Vec<Bytes>),
    Open(Opened, Remote),
    Close(Opened),
}

/// The completion channel, which stays as long as its descriptor is registered with the runtime.
pub(crate) struct Channel {
    channel: *mut abi::Channel,
    domain: Arc<Domain>,
}

// SAFETY: as for `Domain`.
unsafe impl Send for Channel {}
// SAFETY: as for `Domain`; the structure is not changed while it is there.
unsafe impl Sync for Channel {}

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: the channel is there until it is dropped.
        unsafe { (*self.channel).fd }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: every completion queue of it has gone: `Queue` drops its own before its handle of the channel.
        unsafe { (self.domain.functions.ibv_destroy_comp_channel)(self.channel) };
    }
}

/// A queue pair with its completion queue, and all memory that either end may touch by it.
pub(crate) struct Queue {
    domain: Arc<Domain>,
    windows: bool,
    limits: (usize, usize),
    // Null when they are gone.
    qp: *mut abi::Qp,
    cq: *mut abi::Cq,
    channel: Arc<Channel>,
    next: u64,
    posted: HashMap<u64, (u64, Posted)>,
    open: HashMap<u32, Opened>,
    spare: Vec<Window>,
    /// What was done at once.
    ready: Vec<Event>,
    pub number: u32,
}

// SAFETY: as for `Domain`; a queue has one owner.
unsafe impl Send for Queue {}

impl Queue {
    /// A queue pair in its first state, which holds `works` work requests of up to `parts` parts and `notes` notes.
    pub(crate) fn new(
        domain: &Arc<Domain>,
        windows: bool,
        (works, parts): (usize, usize),
        notes: usize,
    ) -> Result<Self, Error> {
        let f = domain.functions;
        // SAFETY: the context is open.
        let channel = unsafe { (f.ibv_create_comp_channel)(domain.context) };
        let channel = there("create a completion channel", channel)?;
        let channel = Arc::new(Channel { channel, domain: domain.clone() });
        // SAFETY: the descriptor is the channel's.
        unsafe { nonblocking(channel.as_raw_fd())? };
        let mut queue = Self {
            domain: domain.clone(),
            windows,
            limits: (works, parts),
            qp: std::ptr::null_mut(),
            cq: std::ptr::null_mut(),
            channel,
            next: 0,
            posted: HashMap::new(),
            open: HashMap::new(),
            spare: Vec::new(),
            ready: Vec::new(),
            number: 0,
        };
        let entries = c_int::try_from(works + notes).unwrap_or(c_int::MAX);
        let (nothing, channel) = (std::ptr::null_mut(), queue.channel.channel);
        // SAFETY: context and channel are there. What has been made so far goes with `queue` if a step fails.
        let cq = unsafe { (f.ibv_create_cq)(domain.context, entries, nothing, channel, 0) };
        queue.cq = there("create a completion queue", cq)?;
        let mut init = abi::QpInitAttr::zero();
        (init.send_cq, init.recv_cq, init.qp_type) = (queue.cq, queue.cq, constant::QPT_RC);
        init.cap = abi::QpCap {
            max_send_wr: works as u32,
            max_recv_wr: notes as u32,
            max_send_sge: parts as u32,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        // SAFETY: the protection domain and the completion queue are there.
        queue.qp = there("create a queue pair", unsafe { (f.ibv_create_qp)(domain.pd, &raw mut init) })?;
        // SAFETY: it was just made.
        queue.number = unsafe { (*queue.qp).qp_num };
        Ok(queue)
    }

    pub(crate) fn modify(&mut self, mut attributes: abi::QpAttr, mask: c_int) -> Result<(), Error> {
        if self.qp.is_null() {
            return Err(Error::Refused("the pair was broken off".into()));
        }
        // SAFETY: the queue pair is there.
        let code = unsafe { (self.domain.functions.ibv_modify_qp)(self.qp, &raw mut attributes, mask) };
        checked("change the state of a queue pair", code)
    }

    /// Lets the peer send one more note.
    pub(crate) fn expect_note(&mut self) -> Result<(), Error> {
        let mut request = abi::RecvWr::zero();
        let mut bad = std::ptr::null_mut();
        if self.qp.is_null() {
            return Ok(());
        }
        // SAFETY: the context is open, and the queue pair there; the request names no memory.
        let code = unsafe {
            match (*self.domain.context).ops.post_recv {
                Some(post) => post(self.qp, &raw mut request, &raw mut bad),
                None => libc::EOPNOTSUPP,
            }
        };
        checked("post a receive", code)
    }

    /// Writes `bytes`, one behind the other; with a note, if there is one.
    pub(crate) fn write(
        &mut self,
        id: u64,
        bytes: Vec<Bytes>,
        to: Remote,
        note: Option<u32>,
    ) -> Result<(), Error> {
        let mut parts: Vec<abi::Sge> = Vec::new();
        for part in bytes.iter().filter(|part| !part.is_empty()) {
            let (addr, lkey) = (part.as_ptr() as u64, region_of(&self.domain, part)?.lkey());
            let length =
                u32::try_from(part.len()).map_err(|_| Error::Refused("over 4 GiB at once".into()))?;
            match parts.last_mut() {
                Some(last) if last.lkey == lkey && last.addr + u64::from(last.length) == addr => {
                    let sum = last.length.checked_add(length);
                    last.length = sum.ok_or_else(|| Error::Refused("over 4 GiB at once".into()))?;
                }
                _ => parts.push(abi::Sge { addr, length, lkey }),
            }
        }
        if parts.len() > self.limits.1 {
            let (count, most) = (parts.len(), self.limits.1);
            return Err(Error::Refused(format!("{count} parts in one write, the device takes {most}")));
        }
        let mut request = abi::SendWr::zero();
        request.opcode = note.map_or(constant::WR_WRITE, |_| constant::WR_WRITE_IMM);
        request.imm_or_key = note.unwrap_or(0).to_be();
        (request.remote_addr, request.rkey) = (to.address, to.key);
        (request.sg_list, request.num_sge) = (parts.as_mut_ptr(), parts.len() as c_int);
        // SAFETY: the parts are registered memory, which `bytes` keeps until the completion; the list is copied.
        unsafe { self.post(id, request, Posted::Bytes(bytes)) }
    }

    /// Lets the peer write to the memory.
    pub(crate) fn open(&mut self, id: u64, memory: Memory) -> Result<(), Error> {
        let address = memory.address();
        if !self.windows {
            let access = constant::LOCAL_WRITE | constant::REMOTE_WRITE;
            // SAFETY: `memory` is claimed, so nobody else uses it, and goes only after the region.
            let region = unsafe { Region::new(&self.domain, address as *mut u8, memory.len(), access)? };
            let remote = Remote { address, key: region.rkey() };
            self.open.insert(remote.key, Opened { memory, by: By::Region(region) });
            self.ready.push(Event::Opened(id, remote));
            return Ok(());
        }
        let region = match memory.claims().first() {
            Some(first) => region_of(&self.domain, first)?,
            None => return Err(Error::Refused("no memory to open".into())),
        };
        let mut window = match self.spare.pop() {
            Some(window) => window,
            None => Window::new(&self.domain)?,
        };
        let key = window.next_key();
        let mut request = abi::SendWr::zero();
        (request.opcode, request.mw, request.mw_rkey) = (constant::WR_BIND_MW, window.mw, key);
        (request.bind_mr, request.bind_addr) = (region.mr, address);
        (request.bind_length, request.bind_access) = (memory.len() as u64, constant::REMOTE_WRITE as u32);
        let opened = Opened { memory, by: By::Window(window) };
        // SAFETY: window and memory are kept until the window is invalid, or the queue pair gone.
        unsafe { self.post(id, request, Posted::Open(opened, Remote { address, key })) }
    }

    /// Lets it no more.
    pub(crate) fn close(&mut self, id: u64, key: u32) -> Result<(), Error> {
        let Some(opened) = self.open.remove(&key) else {
            return Err(Error::Refused("that memory is not open".into()));
        };
        match opened.by {
            By::Region(region) => {
                // The device may not touch the memory from here on.
                drop(region);
                self.ready.push(Event::Closed(id, opened.memory));
                Ok(())
            }
            By::Window(_) => {
                let mut request = abi::SendWr::zero();
                (request.opcode, request.imm_or_key) = (constant::WR_LOCAL_INV, key);
                // SAFETY: the memory is kept until the window is invalid, or the queue pair gone.
                unsafe { self.post(id, request, Posted::Close(opened)) }
            }
        }
    }

    /// # Safety
    /// `keep` owns whatever memory the request names.
    unsafe fn post(&mut self, id: u64, mut request: abi::SendWr, keep: Posted) -> Result<(), Error> {
        if self.qp.is_null() {
            return Ok(()); // it is lost, which is told once
        }
        (request.wr_id, request.send_flags) = (self.next, constant::SIGNALED as u32);
        self.posted.insert(self.next, (id, keep));
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair is there; of the memory's owner the caller sees to, and it stays in `posted`.
        let code = unsafe {
            match (*self.domain.context).ops.post_send {
                Some(post) => post(self.qp, &raw mut request, &raw mut bad),
                None => libc::EOPNOTSUPP,
            }
        };
        let posted = checked("post a work request", code);
        if posted.is_err() {
            // What was to be closed is still open.
            if let Some((_, Posted::Close(opened))) = self.posted.remove(&self.next) {
                self.open.insert(request.imm_or_key, opened);
            }
        }
        self.next += 1;
        posted
    }

    /// What has happened, without waiting.
    pub(crate) fn poll(&mut self) -> Vec<Event> {
        let mut events = std::mem::take(&mut self.ready);
        let mut completions = [abi::Wc::zero(); 16];
        while !self.cq.is_null() {
            // SAFETY: the context is open, the completion queue there, and so many completions fit.
            let count = unsafe {
                match (*self.domain.context).ops.poll_cq {
                    Some(poll) => poll(self.cq, completions.len() as c_int, completions.as_mut_ptr()),
                    None => 0,
                }
            };
            let count = usize::try_from(count).unwrap_or(0).min(completions.len());
            events.extend(completions[..count].iter().filter_map(|completion| self.completed(completion)));
            if count < completions.len() {
                break;
            }
        }
        events
    }

    fn completed(&mut self, completion: &abi::Wc) -> Option<Event> {
        if completion.status != 0 {
            // The memory stays until the queue pair has gone.
            return Some(Event::Failed(completion.status));
        }
        if completion.opcode == constant::WC_RECV_IMM {
            return Some(match self.expect_note() {
                Ok(()) => Event::Noted(u32::from_be(completion.imm_data)),
                Err(_) => Event::Failed(-1),
            });
        }
        Some(match self.posted.remove(&completion.wr_id)? {
            (id, Posted::Bytes(_)) => Event::Written(id),
            (id, Posted::Open(opened, remote)) => {
                self.open.insert(remote.key, opened);
                Event::Opened(id, remote)
            }
            (id, Posted::Close(Opened { memory, by })) => {
                if let By::Window(window) = by {
                    self.spare.push(window);
                }
                Event::Closed(id, memory)
            }
        })
    }

    /// Where notices come, with the runtime of the caller.
    pub(crate) fn notices(&self) -> io::Result<AsyncFd<Arc<Channel>>> {
        // SAFETY: the channel keeps its descriptor open, always the same one, as long as the registration holds it.
        unsafe { AsyncFd::register_with_interest(self.channel.clone(), Interest::READABLE) }
            .map_err(Into::into)
    }

    /// Asks for a notice on the channel of what comes next.
    pub(crate) fn arm(&mut self) {
        if self.cq.is_null() {
            return;
        }
        // SAFETY: the context is open and the completion queue there.
        unsafe {
            if let Some(notify) = (*self.domain.context).ops.req_notify_cq {
                notify(self.cq, 0);
            }
        }
    }

    /// Takes the notices from the channel.
    pub(crate) fn acknowledge(&mut self) {
        let (mut cq, mut nothing) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel is there, and does not block.
        while unsafe {
            (self.domain.functions.ibv_get_cq_event)(self.channel.channel, &raw mut cq, &raw mut nothing)
        } == 0
        {
            // SAFETY: one notice of this queue was taken.
            unsafe { (self.domain.functions.ibv_ack_cq_events)(cq, 1) };
        }
    }

    pub(crate) fn peek(&self, key: u32, at: usize, out: &mut [u8]) -> bool {
        let Some(first) = self.open.get(&key).and_then(|opened| opened.memory.claims().first()) else {
            return false;
        };
        if at.checked_add(out.len()).is_none_or(|end| end > first.len()) {
            return false;
        }
        let start = first.as_ptr();
        for (offset, byte) in out.iter_mut().enumerate() {
            // SAFETY: within the claim. The device may be writing there, so each byte is read once, by itself.
            *byte = unsafe { start.add(at + offset).read_volatile() };
        }
        true
    }

    /// Destroys the queue pair: then no device touches the memory. Returns what was open.
    pub(crate) fn break_off(&mut self) -> Vec<(u32, Memory)> {
        let f = self.domain.functions;
        // SAFETY: each is there unless null, used by nothing that is left, and null from then on. All notices have been
        // acknowledged, or the completion queue would wait for them.
        unsafe {
            if !self.qp.is_null() {
                (f.ibv_destroy_qp)(std::mem::replace(&mut self.qp, std::ptr::null_mut()));
            }
            self.acknowledge();
            if !self.cq.is_null() {
                (f.ibv_destroy_cq)(std::mem::replace(&mut self.cq, std::ptr::null_mut()));
            }
        }
        let posted = self.posted.drain().filter_map(|(_, (_, posted))| match posted {
            Posted::Bytes(_) => None,
            Posted::Open(opened, remote) => Some((remote.key, opened)),
            Posted::Close(opened) => Some((0, opened)),
        });
        let all: Vec<(u32, Opened)> = posted.chain(self.open.drain()).collect();
        // Its window or region first.
        all.into_iter().map(|(key, Opened { memory, by })| (drop(by), (key, memory)).1).collect()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        drop(self.break_off());
    }
}

/// # Safety
/// `fd` is an open descriptor.
unsafe fn nonblocking(fd: RawFd) -> Result<(), Error> {
    // SAFETY: two calls with numbers alone, on an open descriptor.
    let code = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK)
    };
    checked("set up the completion channel", code.min(0))
}
