//! A queue pair of libibverbs. It owns everything that it needs, so that C never sees a dangling pointer.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::Arc;

use bytes::Bytes;
use thalweg_arena::Claim;

use crate::abi::{self, constant};
use crate::channel::Channel;
use crate::domain::Domain;
use crate::open::{checked, there};
use crate::regions::{region_of, By, Held, Opened, Region, Window};
use crate::{Error, Memory, Remote};

/// The outcome of a work request, or a note that arrived.
pub(crate) enum Event {
    Written(u64),
    Read(u64, Claim),
    Opened(u64, Remote),
    Closed(u64, Memory),
    Noted(u32),
    /// A work request failed, with this status.
    Failed(c_int),
}

enum Posted {
    /// Kept while the device reads it.
    Bytes(#[allow(dead_code)] Vec<Bytes>),
    /// The device writes what it reads into this claim.
    Read(Claim),
    Open(Opened, Remote),
    Close(Opened),
}

/// A queue pair and its completion queue, with all memory that either end may access over it.
pub(crate) struct Queue {
    domain: Arc<Domain>,
    windows: bool,
    limits: (usize, usize),
    // Null after they are destroyed.
    qp: *mut abi::Qp,
    cq: *mut abi::Cq,
    pub channel: Arc<Channel>,
    next: u64,
    posted: HashMap<u64, (u64, Posted)>,
    open: HashMap<u32, Opened>,
    spare: Vec<Window>,
    /// Events of requests that were done at once.
    ready: Vec<Event>,
    pub number: u32,
}

// SAFETY: as for `Domain`; a queue has one owner.
unsafe impl Send for Queue {}

impl Queue {
    /// Makes a queue pair in its first state (RESET). It holds `works` work requests of up to `parts` parts
    /// each, and `notes` unread notes.
    pub(crate) fn new(
        domain: &Arc<Domain>,
        windows: bool,
        (works, parts): (usize, usize),
        notes: usize,
    ) -> Result<Self, Error> {
        let f = domain.functions;
        let channel = Arc::new(Channel::new(domain)?);
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
        // SAFETY: context and channel exist. If a step fails, dropping `queue` destroys what was made so far.
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
        // SAFETY: the protection domain and the completion queue exist.
        queue.qp = there("create a queue pair", unsafe { (f.ibv_create_qp)(domain.pd, &raw mut init) })?;
        // SAFETY: the queue pair was just made.
        queue.number = unsafe { (*queue.qp).qp_num };
        Ok(queue)
    }

    pub(crate) fn modify(&mut self, mut attributes: abi::QpAttr, mask: c_int) -> Result<(), Error> {
        if self.qp.is_null() {
            return Err(Error::Refused("the pair was broken off".into()));
        }
        // SAFETY: the queue pair exists.
        let code = unsafe { (self.domain.functions.ibv_modify_qp)(self.qp, &raw mut attributes, mask) };
        checked("change the state of a queue pair", code)
    }

    /// Posts a receive request, so that the peer may send one more note.
    pub(crate) fn expect_note(&mut self) -> Result<(), Error> {
        let mut request = abi::RecvWr::zero();
        let mut bad = std::ptr::null_mut();
        if self.qp.is_null() {
            return Ok(());
        }
        // SAFETY: the context is open and the queue pair exists; the request names no memory.
        let code = unsafe {
            match (*self.domain.context).ops.post_recv {
                Some(post) => post(self.qp, &raw mut request, &raw mut bad),
                None => libc::EOPNOTSUPP,
            }
        };
        checked("post a receive", code)
    }

    /// Writes `bytes`, one after the other, with a note if there is one.
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
        // SAFETY: the parts are registered memory, which `bytes` keeps until the completion; the library
        // copies the list.
        unsafe { self.post(id, request, Posted::Bytes(bytes)) }
    }

    /// Reads the peer's memory.
    pub(crate) fn read(&mut self, id: u64, into: Claim, from: Remote) -> Result<(), Error> {
        let length = u32::try_from(into.len()).map_err(|_| Error::Refused("over 4 GiB at once".into()))?;
        let lkey = region_of(&self.domain, &into)?.lkey();
        let mut part = abi::Sge { addr: into.as_ptr() as u64, length, lkey };
        let mut request = abi::SendWr::zero();
        request.opcode = constant::WR_READ;
        (request.remote_addr, request.rkey) = (from.address, from.key);
        (request.sg_list, request.num_sge) = (&raw mut part, 1);
        // SAFETY: the part is registered memory, which `into` claims until the completion; the library copies
        // the list.
        unsafe { self.post(id, request, Posted::Read(into)) }
    }

    /// Gives the peer access to the memory: by a memory window if possible, else by a registration of its
    /// own.
    pub(crate) fn open(&mut self, id: u64, held: Held) -> Result<(), Error> {
        let address = held.address();
        if !self.windows || !held.takes_windows() {
            let access = match &held {
                Held::Written(_) => constant::LOCAL_WRITE | held.access(),
                Held::Lent(_) => held.access(),
            };
            // SAFETY: `held` owns the memory and is dropped only after the region. If the peer may write to
            // it, it is claimed, so that nobody else uses it.
            let region = unsafe { Region::new(&self.domain, address as *mut u8, held.len(), access)? };
            let remote = Remote { address, key: region.rkey() };
            self.open.insert(remote.key, Opened { held, by: By::Region(region) });
            self.ready.push(Event::Opened(id, remote));
            return Ok(());
        }
        let region = held.region(&self.domain)?;
        let mut window = match self.spare.pop() {
            Some(window) => window,
            None => Window::new(&self.domain)?,
        };
        let key = window.next_key();
        let mut request = abi::SendWr::zero();
        (request.opcode, request.mw, request.mw_rkey) = (constant::WR_BIND_MW, window.mw, key);
        (request.bind_mr, request.bind_addr) = (region.mr, address);
        (request.bind_length, request.bind_access) = (held.len() as u64, held.access() as u32);
        let opened = Opened { held, by: By::Window(window) };
        let mw = request.mw;
        // SAFETY: window and memory are kept until the window is invalid, or the queue pair destroyed.
        unsafe { self.post(id, request, Posted::Open(opened, Remote { address, key })) }?;
        // SAFETY: the window exists, in what was posted. The provider compares its key at the next bind.
        unsafe { (*mw).rkey = key };
        Ok(())
    }

    /// Revokes the peer's access.
    pub(crate) fn close(&mut self, id: u64, key: u32) -> Result<(), Error> {
        let Some(opened) = self.open.remove(&key) else {
            return Err(Error::Refused("that memory is not open".into()));
        };
        match opened.by {
            by @ (By::Region(_) | By::Nothing) => {
                // From here on the device cannot touch the memory.
                drop(by);
                self.ready.push(Event::Closed(id, opened.held.into_memory()));
                Ok(())
            }
            By::Window(_) => {
                let mut request = abi::SendWr::zero();
                (request.opcode, request.imm_or_key) = (constant::WR_LOCAL_INV, key);
                // SAFETY: the memory is kept until the window is invalid, or the queue pair destroyed.
                unsafe { self.post(id, request, Posted::Close(opened)) }
            }
        }
    }

    /// # Safety
    /// `keep` owns all memory that the request names.
    unsafe fn post(&mut self, id: u64, mut request: abi::SendWr, keep: Posted) -> Result<(), Error> {
        if self.qp.is_null() {
            return Ok(()); // the pair is lost, and that was reported once
        }
        (request.wr_id, request.send_flags) = (self.next, constant::SIGNALED as u32);
        self.posted.insert(self.next, (id, keep));
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair exists. The caller ensures that `keep` owns the memory, and `posted` keeps
        // it.
        let code = unsafe {
            match (*self.domain.context).ops.post_send {
                Some(post) => post(self.qp, &raw mut request, &raw mut bad),
                None => libc::EOPNOTSUPP,
            }
        };
        let posted = checked("post a work request", code);
        if posted.is_err() {
            // Memory that was to be closed is still open.
            if let Some((_, Posted::Close(opened))) = self.posted.remove(&self.next) {
                self.open.insert(request.imm_or_key, opened);
            }
        }
        self.next += 1;
        posted
    }

    /// Returns the events since the last call, without waiting.
    pub(crate) fn poll(&mut self) -> Vec<Event> {
        let mut events = std::mem::take(&mut self.ready);
        let mut completions = [abi::Wc::zero(); 16];
        while !self.cq.is_null() {
            // SAFETY: the context is open, the completion queue exists, and the array has room for this many
            // completions.
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
            // The request's memory stays in `posted` until the queue pair is destroyed.
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
            (id, Posted::Read(into)) => Event::Read(id, into),
            (id, Posted::Open(opened, remote)) => {
                self.open.insert(remote.key, opened);
                Event::Opened(id, remote)
            }
            (id, Posted::Close(Opened { held, by })) => {
                if let By::Window(window) = by {
                    self.spare.push(window);
                }
                Event::Closed(id, held.into_memory())
            }
        })
    }

    /// Requests a notification on the channel for the next completion.
    pub(crate) fn arm(&mut self) {
        if self.cq.is_null() {
            return;
        }
        // SAFETY: the context is open and the completion queue exists.
        unsafe {
            if let Some(notify) = (*self.domain.context).ops.req_notify_cq {
                notify(self.cq, 0);
            }
        }
    }

    pub(crate) fn peek(&self, key: u32, at: usize, out: &mut [u8]) -> bool {
        let Some(Held::Written(memory)) = self.open.get(&key).map(|opened| &opened.held) else {
            return false;
        };
        let Some(first) = memory.claims().first() else { return false };
        if at.checked_add(out.len()).is_none_or(|end| end > first.len()) {
            return false;
        }
        let start = first.as_ptr();
        for (offset, byte) in out.iter_mut().enumerate() {
            // SAFETY: the byte is within the claim. The device may be writing there, so each byte is read
            // once, on its own.
            *byte = unsafe { start.add(at + offset).read_volatile() };
        }
        true
    }

    /// Gives up all windows. A bound window keeps its queue pair alive: rxe waits a minute for it, and then
    /// gives up.
    fn unbind(&mut self) {
        let mut broken = abi::QpAttr::zero();
        broken.qp_state = constant::ERR;
        // From here on nothing can be bound. If this fails, the queue pair is destroyed, and nothing is bound
        // either.
        let _ = self.modify(broken, constant::TO_ERR);
        let posted = self.posted.values_mut().filter_map(|(_, posted)| match posted {
            Posted::Open(opened, _) | Posted::Close(opened) => Some(opened),
            Posted::Bytes(_) | Posted::Read(_) => None,
        });
        self.open.values_mut().chain(posted).for_each(Opened::unbind);
    }

    /// Destroys the queue pair, so that no device touches the memory. Returns the memory that either end
    /// could write to.
    pub(crate) fn break_off(&mut self) -> Vec<(u32, Memory)> {
        self.unbind();
        let f = self.domain.functions;
        // SAFETY: each exists unless null, nothing left uses it, and it is null from then on. All
        // notifications have been acknowledged; otherwise destroying the completion queue would wait for
        // them.
        unsafe {
            if !self.qp.is_null() {
                (f.ibv_destroy_qp)(std::mem::replace(&mut self.qp, std::ptr::null_mut()));
            }
            self.channel.acknowledge();
            if !self.cq.is_null() {
                (f.ibv_destroy_cq)(std::mem::replace(&mut self.cq, std::ptr::null_mut()));
            }
        }
        let (mut all, mut given) = (Vec::new(), Vec::new());
        for (_, (_, posted)) in self.posted.drain() {
            match posted {
                Posted::Bytes(_) => {}
                Posted::Read(into) => given.push((0, into.into())),
                Posted::Open(opened, remote) => all.push((remote.key, opened)),
                Posted::Close(opened) => all.push((0, opened)),
            }
        }
        all.extend(self.open.drain());
        for (key, Opened { held, by }) in all {
            drop(by); // drop its window or region before its memory is given back
            given.push((key, held.into_memory()));
        }
        given.retain(|(_, memory)| memory.len() > 0);
        given
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        drop(self.break_off());
    }
}
