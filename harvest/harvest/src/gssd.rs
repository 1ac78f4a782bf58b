//! Ghost vSSDs (BlockFlex, section 4.3): what is known of one, and the pool of those that nobody uses.
//!
//! | module | what it is |
//! |---|---|
//! | [`record`] | a gSSD's metadata (figure 10), the grain it is cut in, and what a request wants of one |
//! | [`pool`] | lists by capacity and bandwidth, each by expiry; best fit by binary search, from any thread |

pub mod pool;
pub mod record;

pub use pool::{Offer, Pool};
pub use record::{Grain, Gssd, Want};
