//! The functions of libibverbs, found by name at run time.

use std::ffi::{c_char, c_int, c_uint};

use super::*;

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of libibverbs that are found by their names.
        pub struct Functions {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Functions {
            /// Finds all functions.
            ///
            /// # Errors
            /// The name of a missing function.
            ///
            /// # Safety
            /// `find` returns null, or the address of the libibverbs function of this name.
            pub unsafe fn load(find: impl Fn(&std::ffi::CStr) -> Ptr) -> Result<Self, &'static str> {
                $(let $name = {
                    let address = find(concat!(stringify!($name), "\0").to_c());
                    if address.is_null() {
                        return Err(stringify!($name));
                    }
                    // SAFETY: by the contract of `find`; the types are those of verbs.h.
                    unsafe { std::mem::transmute::<Ptr, unsafe extern "C" fn($($argument),*) $(-> $result)?>(address) }
                };)*
                Ok(Self { $($name),* })
            }
        }
    };
}

trait ToC {
    fn to_c(&self) -> &std::ffi::CStr;
}

impl ToC for str {
    fn to_c(&self) -> &std::ffi::CStr {
        std::ffi::CStr::from_bytes_with_nul(self.as_bytes()).unwrap_or_default()
    }
}

functions! {
    ibv_get_device_list: fn(*mut c_int) -> *mut Ptr;
    ibv_free_device_list: fn(*mut Ptr);
    ibv_get_device_name: fn(Ptr) -> *const c_char;
    ibv_open_device: fn(Ptr) -> *mut Context;
    ibv_close_device: fn(*mut Context) -> c_int;
    ibv_query_device: fn(*mut Context, *mut DeviceAttr) -> c_int;
    ibv_query_port: fn(*mut Context, u8, *mut PortAttr) -> c_int;
    ibv_query_gid: fn(*mut Context, u8, c_int, *mut [u64; 2]) -> c_int;
    ibv_alloc_pd: fn(*mut Context) -> *mut Pd;
    ibv_dealloc_pd: fn(*mut Pd) -> c_int;
    ibv_reg_mr: fn(*mut Pd, Ptr, usize, c_int) -> *mut Mr;
    ibv_dereg_mr: fn(*mut Mr) -> c_int;
    ibv_create_comp_channel: fn(*mut Context) -> *mut Channel;
    ibv_destroy_comp_channel: fn(*mut Channel) -> c_int;
    ibv_create_cq: fn(*mut Context, c_int, Ptr, *mut Channel, c_int) -> *mut Cq;
    ibv_destroy_cq: fn(*mut Cq) -> c_int;
    ibv_get_cq_event: fn(*mut Channel, *mut *mut Cq, *mut Ptr) -> c_int;
    ibv_ack_cq_events: fn(*mut Cq, c_uint);
    ibv_create_qp: fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    ibv_modify_qp: fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    ibv_destroy_qp: fn(*mut Qp) -> c_int;
}
