//! The kit's proxies and servers do what tests rely on.
//!
//! | module | subject |
//! |---|---|
//! | [`servers`] | servers of other projects |
//! | [`faults`] | the proxy that has faults |
//! | [`shaper`], [`shaper_ends`] | the proxy that shapes a link, and the ends of its connections |

#![allow(
    clippy::cast_possible_truncation,
    clippy::disallowed_methods,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests"
)]

mod faults;
mod servers;
mod shaper;
mod shaper_ends;
