//! The node as it was before it was put together from machines: the new one is compared with it, event by event.

#![allow(dead_code, unreachable_pub, missing_docs, reason = "a copy, compared with and then deleted")]

mod chain;
pub(crate) mod node;
mod patience;
mod throttle;
