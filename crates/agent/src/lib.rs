//! The node daemon: what one host's disks share.
//!
//! | module | what it does |
//! |---|---|
