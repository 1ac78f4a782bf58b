//! Pages against the program: the reports that it prints ([`schemas`]), the whole site ([`site`]), and the how-to pages
//! of people ([`pages`]).

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed"
)]

mod pages;
mod recorded;
mod schemas;
mod site;
