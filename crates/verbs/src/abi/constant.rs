//! Constants of verbs.h, with their C names.

macro_rules! constants {
    ($($name:ident = $value:expr, $c:literal;)*) => {
        $(pub const $name: i32 = $value;)*
        /// All constants, for `layouts.rs`.
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
    ERR = 6, "IBV_QPS_ERR";
    PORT_ACTIVE = 4, "IBV_PORT_ACTIVE";
    TO_ERR = 1, "IBV_QP_STATE";
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
