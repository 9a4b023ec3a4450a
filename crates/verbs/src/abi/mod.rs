//! The part of libibverbs' stable ABI that is used here: layouts, constants and functions, as in rdma-core's
//! `infiniband/verbs.h` since version 1.1 of the symbols. The test in `layouts.rs` compares them with the
//! headers, if they are installed.

pub mod constant;
mod functions;
#[cfg(test)]
mod layouts;

use std::ffi::{c_char, c_int, c_uint, c_void};

pub use functions::Functions;

pub type Ptr = *mut c_void;

/// `struct ibv_context`, its public part. The functions in it belong to the driver.
#[repr(C)]
pub struct Context {
    pub device: Ptr,
    pub ops: Ops,
}

/// `struct ibv_context_ops`.
#[repr(C)]
pub struct Ops {
    compat: [Ptr; 7],
    pub alloc_mw: Option<unsafe extern "C" fn(*mut Pd, c_int) -> *mut Mw>,
    bind_mw: Ptr,
    pub dealloc_mw: Option<unsafe extern "C" fn(*mut Mw) -> c_int>,
    create_cq: Ptr,
    pub poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    more: [Ptr; 7],
    post_srq_recv: Ptr,
    yet_more: [Ptr; 4],
    pub post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    pub post_recv: Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
}

/// `struct ibv_pd`.
#[repr(C)]
pub struct Pd {
    pub context: *mut Context,
    handle: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub struct Mr {
    context: *mut Context,
    pd: *mut Pd,
    addr: Ptr,
    length: usize,
    handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// `struct ibv_mw`.
#[repr(C)]
pub struct Mw {
    pub context: *mut Context,
    pd: *mut Pd,
    pub rkey: u32,
    handle: u32,
    kind: c_int,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
pub struct Channel {
    context: *mut Context,
    pub fd: c_int,
    refcnt: c_int,
}

/// The beginning of `struct ibv_cq`.
#[repr(C)]
pub struct Cq {
    pub context: *mut Context,
}

/// The beginning of `struct ibv_qp`.
#[repr(C)]
pub struct Qp {
    pub context: *mut Context,
    qp_context: Ptr,
    pd: *mut Pd,
    send_cq: *mut Cq,
    recv_cq: *mut Cq,
    srq: Ptr,
    handle: u32,
    pub qp_num: u32,
}

/// `struct ibv_device_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeviceAttr {
    fw_ver: [c_char; 64],
    guids: [u64; 2],
    max_mr_size: u64,
    page_size_cap: u64,
    vendor: [u32; 3],
    max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    max_sge_rd: c_int,
    max_cq: c_int,
    pub max_cqe: c_int,
    max_mr: c_int,
    max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    ee_rd_atom: [c_int; 2],
    pub max_qp_init_rd_atom: c_int,
    ee_init_rd_atom: c_int,
    atomic_cap: c_int,
    max_ee: c_int,
    max_rdd: c_int,
    pub max_mw: c_int,
    others: [c_int; 10],
    max_srq_sge: c_int,
    max_pkeys: u16,
    local_ca_ack_delay: u8,
    phys_port_cnt: u8,
}

/// `struct ibv_port_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PortAttr {
    pub state: c_int,
    max_mtu: c_int,
    pub active_mtu: c_int,
    pub gid_tbl_len: c_int,
    port_cap_flags: u32,
    pub max_msg_sz: u32,
    counters: [u32; 2],
    pkey_tbl_len: u16,
    pub lid: u16,
    sm_lid: u16,
    bytes: [u8; 7],
    phys_state: u8,
    pub link_layer: u8,
    flags: u8,
    port_cap_flags2: u16,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub struct QpInitAttr {
    qp_context: Ptr,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    srq: Ptr,
    pub cap: QpCap,
    pub qp_type: c_int,
    sq_sig_all: c_int,
}

/// `struct ibv_ah_attr` with its `struct ibv_global_route`. The type of a GID has alignment 8.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AhAttr {
    pub dgid: [u64; 2],
    flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    traffic_class: u8,
    pub dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct QpAttr {
    pub qp_state: c_int,
    cur_qp_state: c_int,
    pub path_mtu: c_int,
    path_mig_state: c_int,
    qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    cap: QpCap,
    pub ah_attr: AhAttr,
    alt_ah_attr: AhAttr,
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    rate_limit: u32,
}

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// `struct ibv_send_wr`, with those members of its unions that are used here.
#[repr(C)]
pub struct SendWr {
    pub wr_id: u64,
    next: *mut SendWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: c_int,
    pub send_flags: c_uint,
    /// `imm_data` in network byte order, or `invalidate_rkey`.
    pub imm_or_key: u32,
    pub remote_addr: u64,
    pub rkey: u32,
    /// Padding up to the longest member of the union `wr`.
    rest: [u64; 2],
    xrc: u32,
    pub mw: *mut Mw,
    pub mw_rkey: u32,
    pub bind_mr: *mut Mr,
    pub bind_addr: u64,
    pub bind_length: u64,
    pub bind_access: c_uint,
}

/// `struct ibv_recv_wr`.
#[repr(C)]
pub struct RecvWr {
    pub wr_id: u64,
    next: *mut RecvWr,
    sg_list: *mut Sge,
    num_sge: c_int,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Wc {
    pub wr_id: u64,
    pub status: c_int,
    pub opcode: c_int,
    vendor_err: u32,
    byte_len: u32,
    pub imm_data: u32,
    qp_num: u32,
    src_qp: u32,
    wc_flags: c_uint,
    pkey_index: u16,
    slid: u16,
    sl: u8,
    dlid_path_bits: u8,
}

macro_rules! zeroed {
    ($($name:ident)*) => {$(
        impl $name {
            /// All zero, like fields that a C initialiser does not name.
            pub fn zero() -> Self {
                // SAFETY: it consists of numbers, nullable pointers and arrays of these, for all of which
                // zero is a valid value.
                unsafe { std::mem::zeroed() }
            }
        }
    )*};
}

zeroed!(DeviceAttr PortAttr QpInitAttr QpAttr SendWr RecvWr Wc);
