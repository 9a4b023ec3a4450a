//! Aggregation kernels.
