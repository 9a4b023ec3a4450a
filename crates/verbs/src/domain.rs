//! The list of devices of libibverbs, and an open device ([`Domain`]).

use std::ffi::{c_int, CStr};
use std::io;

use crate::abi::{self, Functions};
use crate::open::{checked, functions, there};
use crate::Error;

/// The names of all devices.
pub(crate) fn device_names() -> Result<Vec<String>, Error> {
    each(|functions, device| {
        // SAFETY: the device is in a list that is not freed yet; its name is a C string of the device.
        let name = unsafe { CStr::from_ptr((functions.ibv_get_device_name)(device)) };
        name.to_string_lossy().into_owned()
    })
}

/// Applies `f` to each device while the list of devices exists.
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
    // SAFETY: this is the list from above, and it is not used again.
    unsafe { (functions.ibv_free_device_list)(list) };
    Ok(all)
}

/// An open device and its protection domain.
pub(crate) struct Domain {
    pub(super) functions: &'static Functions,
    pub(super) context: *mut abi::Context,
    pub(super) pd: *mut abi::Pd,
}

// SAFETY: libibverbs is safe to call from several threads at once (its manual, ibv_open_device and others).
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// Opens the device with this name.
    pub(crate) fn open(name: &str) -> Result<Self, Error> {
        let opened = each(|functions, device| {
            // SAFETY: the device is in a list that is not freed yet.
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
        // SAFETY: the context is open. `attributes` has the size of the newest library version's struct;
        // older versions write less of it.
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
        // SAFETY: nothing else refers to them, since everything that does holds this domain.
        unsafe {
            if !self.pd.is_null() {
                (self.functions.ibv_dealloc_pd)(self.pd);
            }
            (self.functions.ibv_close_device)(self.context);
        }
    }
}
