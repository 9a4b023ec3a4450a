//! Test: compares the layouts in this module with those of the C headers.

use std::mem::{offset_of, size_of};
use std::process::Command;

use super::*;

/// Compiles and runs one C program that prints every offset, size and constant. Skipped if there is no
/// compiler or no header (Debian: libibverbs-dev; `C_INCLUDE_PATH` names another folder).
#[test]
fn layouts_are_those_of_the_headers() {
    let expected: Vec<_> = layouts().into_iter().chain(constant::all()).collect();
    let lines = expected.iter().map(|(what, _)| format!("printf(\"%zu\\n\", (size_t)({what}));\n"));
    let program = format!(
        "#include <infiniband/verbs.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {{\n{}return 0; }}\n",
        lines.collect::<String>()
    );
    let folder = std::env::temp_dir().join(format!("thalweg-layouts-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, binary) = (folder.join("layouts.c"), folder.join("layouts"));
    std::fs::write(&source, program).unwrap();
    let compiled = Command::new("cc").arg(&source).arg("-o").arg(&binary).output();
    let printed = compiled.map(|compiled| match compiled.status.success() {
        true => Ok(Command::new(&binary).output().unwrap().stdout),
        false => Err(String::from_utf8_lossy(&compiled.stderr).into_owned()),
    });
    std::fs::remove_dir_all(&folder).unwrap();
    match printed {
        Err(error) => println!("skipped: no C compiler: {error}"),
        Ok(Err(reason)) if reason.contains("infiniband/verbs.h: No such file") => {
            println!("skipped: no infiniband/verbs.h; install libibverbs-dev");
        }
        Ok(Err(reason)) => panic!("{reason}"),
        Ok(Ok(printed)) => {
            let text = String::from_utf8(printed).unwrap();
            let found: Vec<usize> = text.lines().map(|line| line.parse().unwrap()).collect();
            assert_eq!(found.len(), expected.len());
            for ((what, ours), theirs) in expected.into_iter().zip(found) {
                assert_eq!(ours, theirs, "{what}");
            }
        }
    }
}

/// C expressions, and the values that they must have.
fn layouts() -> Vec<(&'static str, usize)> {
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
