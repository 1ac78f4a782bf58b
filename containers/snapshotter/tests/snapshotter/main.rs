//! The snapshotter through its socket: by gRPC, under the real containerd, and in containerd's own suite of tests.

#![allow(clippy::unwrap_used, reason = "tests")]

mod containerd;
mod containerd_suite;
mod grpc;
mod served;
