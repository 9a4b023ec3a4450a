//! The part of libibverbs' stable interface that is used here: layouts, constants and functions, as `infiniband/verbs.h` of
//! rdma-core has them since version 1.1 of the symbols. `layouts.rs`, a test, compares them with the headers, where there are
//! any.

use std::ffi::{c_char, c_int, c_uint, c_void};

pub type Ptr = *mut c_void;

/// `struct ibv_context`, the part that is public; the functions in it are the driver's.
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

/// `struct ibv_cq`, its beginning.
#[repr(C)]
pub struct Cq {
    pub context: *mut Context,
}

/// `struct ibv_qp`, its beginning.
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

/// `struct ibv_ah_attr` with its `struct ibv_global_route`. The GID's type has alignment 8.
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

/// `struct ibv_send_wr`, with the members of its unions that are used here.
#[repr(C)]
pub struct SendWr {
    pub wr_id: u64,
    next: *mut SendWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: c_int,
    pub send_flags: c_uint,
    /// `imm_data` in network order, or `invalidate_rkey`.
    pub imm_or_key: u32,
    pub remote_addr: u64,
    pub rkey: u32,
    /// The rest of the longest member of `wr`.
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
            /// All zero, as C's initialisers leave what they do not name.
            pub fn zero() -> Self {
                // SAFETY: it has numbers, nullable pointers and arrays of these alone, for all of which zero is a value.
                unsafe { std::mem::zeroed() }
            }
        }
    )*};
}

zeroed!(DeviceAttr PortAttr QpInitAttr QpAttr SendWr RecvWr Wc);

/// Expressions of C and their values: what `layouts.rs` compares with the C headers.
#[cfg(test)]
pub fn layouts() -> Vec<(&'static str, usize)> {
    use std::mem::{offset_of, size_of};
    macro_rules! offsets {
        ($($c:literal $rust:ident { $($field:literal $name:tt)* })*) => {
            vec![$($((concat!("offsetof(struct ", $c, ", ", $field, ")"), offsets!(@ $rust $name)),)*)*]
        };
        (@ $rust:ident ($($name:tt)+)) => { offset_of!($rust, $($name)+) };
    }
    let mut all = offsets! {
        "ibv_context" Context { "ops.alloc_mw" (ops.alloc_mw) "ops.dealloc_mw" (ops.dealloc_mw)
            "ops.poll_cq" (ops.poll_cq) "ops.req_notify_cq" (ops.req_notify_cq) "ops.post_send" (ops.post_send)
            "ops.post_recv" (ops.post_recv) }
        "ibv_pd" Pd { "context" (context) }
        "ibv_mr" Mr { "lkey" (lkey) "rkey" (rkey) }
        "ibv_mw" Mw { "context" (context) "rkey" (rkey) }
        "ibv_comp_channel" Channel { "fd" (fd) }
        "ibv_cq" Cq { "context" (context) }
        "ibv_qp" Qp { "context" (context) "qp_num" (qp_num) }
        "ibv_device_attr" DeviceAttr { "max_qp_wr" (max_qp_wr) "device_cap_flags" (device_cap_flags)
            "max_sge" (max_sge) "max_cqe" (max_cqe) "max_mw" (max_mw) "max_qp_rd_atom" (max_qp_rd_atom)
            "max_qp_init_rd_atom" (max_qp_init_rd_atom) }
        "ibv_port_attr" PortAttr { "active_mtu" (active_mtu) "gid_tbl_len" (gid_tbl_len) "max_msg_sz" (max_msg_sz)
            "lid" (lid) "link_layer" (link_layer) }
        "ibv_qp_init_attr" QpInitAttr { "send_cq" (send_cq) "recv_cq" (recv_cq) "cap.max_send_wr" (cap.max_send_wr)
            "cap.max_inline_data" (cap.max_inline_data) "qp_type" (qp_type) }
        "ibv_qp_attr" QpAttr { "path_mtu" (path_mtu) "rq_psn" (rq_psn) "sq_psn" (sq_psn) "dest_qp_num" (dest_qp_num)
            "qp_access_flags" (qp_access_flags) "ah_attr.grh.dgid" (ah_attr.dgid)
            "ah_attr.grh.sgid_index" (ah_attr.sgid_index) "ah_attr.grh.hop_limit" (ah_attr.hop_limit)
            "ah_attr.dlid" (ah_attr.dlid) "ah_attr.is_global" (ah_attr.is_global) "ah_attr.port_num" (ah_attr.port_num)
            "max_rd_atomic" (max_rd_atomic) "max_dest_rd_atomic" (max_dest_rd_atomic) "min_rnr_timer" (min_rnr_timer)
            "port_num" (port_num) "timeout" (timeout) "retry_cnt" (retry_cnt) "rnr_retry" (rnr_retry) }
        "ibv_sge" Sge { "addr" (addr) "length" (length) "lkey" (lkey) }
        "ibv_send_wr" SendWr { "sg_list" (sg_list) "num_sge" (num_sge) "opcode" (opcode) "send_flags" (send_flags)
            "imm_data" (imm_or_key) "invalidate_rkey" (imm_or_key) "wr.rdma.remote_addr" (remote_addr)
            "wr.rdma.rkey" (rkey) "bind_mw.mw" (mw) "bind_mw.rkey" (mw_rkey) "bind_mw.bind_info.mr" (bind_mr)
            "bind_mw.bind_info.addr" (bind_addr) "bind_mw.bind_info.length" (bind_length)
            "bind_mw.bind_info.mw_access_flags" (bind_access) }
        "ibv_wc" Wc { "status" (status) "opcode" (opcode) "imm_data" (imm_data) }
    };
    all.extend([
        ("sizeof(struct ibv_device_attr)", size_of::<DeviceAttr>()),
        ("sizeof(struct ibv_port_attr)", size_of::<PortAttr>()),
        ("sizeof(struct ibv_qp_init_attr)", size_of::<QpInitAttr>()),
        ("sizeof(struct ibv_qp_attr)", size_of::<QpAttr>()),
        ("sizeof(struct ibv_sge)", size_of::<Sge>()),
        ("sizeof(struct ibv_send_wr)", size_of::<SendWr>()),
        ("sizeof(struct ibv_recv_wr)", size_of::<RecvWr>()),
        ("sizeof(struct ibv_wc)", size_of::<Wc>()),
    ]);
    all
}

/// Constants of verbs.h by their C names.
pub mod constant {
    macro_rules! constants {
        ($($name:ident = $value:expr, $c:literal;)*) => {
            $(pub const $name: i32 = $value;)*
            /// All of them, for `layouts.rs`.
            #[cfg(test)]
            pub fn all() -> Vec<(&'static str, usize)> {
                vec![$(($c, $value)),*]
            }
        };
    }
    constants! {
        LOCAL_WRITE = 1, "IBV_ACCESS_LOCAL_WRITE";
        REMOTE_WRITE = 2, "IBV_ACCESS_REMOTE_WRITE";
        REMOTE_READ = 4, "IBV_ACCESS_REMOTE_READ";
        MW_BIND = 16, "IBV_ACCESS_MW_BIND";
        MEM_WINDOW_2B = 1 << 24, "IBV_DEVICE_MEM_WINDOW_TYPE_2B";
        MW_TYPE_2 = 2, "IBV_MW_TYPE_2";
        QPT_RC = 2, "IBV_QPT_RC";
        INIT = 1, "IBV_QPS_INIT";
        RTR = 2, "IBV_QPS_RTR";
        RTS = 3, "IBV_QPS_RTS";
        PORT_ACTIVE = 4, "IBV_PORT_ACTIVE";
        TO_INIT = 1 | 8 | 16 | 32, "IBV_QP_STATE|IBV_QP_ACCESS_FLAGS|IBV_QP_PKEY_INDEX|IBV_QP_PORT";
        TO_RTR = 1 | 128 | 256 | 1 << 20 | 1 << 12 | 1 << 17 | 1 << 15,
            "IBV_QP_STATE|IBV_QP_AV|IBV_QP_PATH_MTU|IBV_QP_DEST_QPN|IBV_QP_RQ_PSN|IBV_QP_MAX_DEST_RD_ATOMIC|IBV_QP_MIN_RNR_TIMER";
        TO_RTS = 1 | 512 | 1 << 10 | 1 << 11 | 1 << 16 | 1 << 13,
            "IBV_QP_STATE|IBV_QP_TIMEOUT|IBV_QP_RETRY_CNT|IBV_QP_RNR_RETRY|IBV_QP_SQ_PSN|IBV_QP_MAX_QP_RD_ATOMIC";
        SIGNALED = 2, "IBV_SEND_SIGNALED";
        WR_WRITE = 0, "IBV_WR_RDMA_WRITE";
        WR_WRITE_IMM = 1, "IBV_WR_RDMA_WRITE_WITH_IMM";
        WR_READ = 4, "IBV_WR_RDMA_READ";
        WR_LOCAL_INV = 7, "IBV_WR_LOCAL_INV";
        WR_BIND_MW = 8, "IBV_WR_BIND_MW";
        WC_RECV_IMM = 129, "IBV_WC_RECV_RDMA_WITH_IMM";
        FLUSHED = 5, "IBV_WC_WR_FLUSH_ERR";
        REMOTE_INVALID = 9, "IBV_WC_REM_INV_REQ_ERR";
        REMOTE_ACCESS = 10, "IBV_WC_REM_ACCESS_ERR";
        RETRIES = 12, "IBV_WC_RETRY_EXC_ERR";
        RNR_RETRIES = 13, "IBV_WC_RNR_RETRY_EXC_ERR";
    }
}

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of libibverbs that are found by their names.
        pub struct Functions {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Functions {
            /// Finds all of them.
            ///
            /// # Errors
            /// The name of one that is not there.
            ///
            /// # Safety
            /// `find` returns null, or the address of the function of libibverbs that has this name.
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
