//! `lazy`: nothing is preloaded; blocks are pulled when they are read (ThinkAhead paper, section 7, *Lazyload*).

use crate::block_table::BlockId;
use crate::policy::{Aim, Policy, Training};

/// The policy `lazy`, which preloads nothing.
#[derive(Clone, Copy, Debug)]
pub struct Lazy;

impl Policy for Lazy {
    fn name(&self) -> &'static str {
        "lazy"
    }

    fn order(&self, _: &Training<'_>, _: &Aim) -> Vec<BlockId> {
        Vec::new()
    }
}
