//! Ghost vSSDs (BlockFlex, section 4.3): the record of one, and the pool of those that are unused.
//!
//! | module | content |
//! |---|---|
//! | [`record`] | a gSSD's metadata (figure 10), the units in which flash is lent, and the needs of a request |
//! | [`pool`] | the gSSDs that can be leased, in sorted lists; a binary search finds the one that fits a request best |

pub mod pool;
pub mod record;

pub use pool::{Offer, Pool};
pub use record::{Grain, Gssd, Want};
