//! Generated pages against the program: the reports that it prints ([`schemas`]), and the whole site ([`site`]).

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed"
)]

mod recorded;
mod schemas;
mod site;
