//! Ghost vSSDs (BlockFlex, section 4.3): the record of one, and the pool of those that are unused.
//!
//! | module | content |
//! |---|---|
//! | [`record`] | a gSSD's metadata (figure 10), the grain it is cut in, and the wants of a request |
//! | [`pool`] | lists by capacity and bandwidth, each by expiry; best fit by binary search, from any thread |

pub mod pool;
pub mod record;

pub use pool::{Offer, Pool};
pub use record::{Grain, Gssd, Want};
