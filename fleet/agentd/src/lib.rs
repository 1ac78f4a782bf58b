//! The daemon of a host: the agent, which its disks share.
//!
//! | module | content |
//! |---|---|
//! | [`client`] | the client of other programs |
//! | [`daemon`] | the assembled agent |
//! | [`disk_process`] | the side of a disk's process |
//! | [`disks`] | the disks' processes |
//! | [`local`] | the socket between the disks' processes and the agent |
//! | [`pin_manager`] | the content that is here by an order or a pin |
//! | [`pins`] | the images that hosts are to keep together |
//! | [`warm_orders`] | the orders by which hosts fetch an image ahead of need |
//! | [`stores`] | the stores that the agent fetches from |
//! | `rest` | the interface for programs over HTTP |
//! | `scrub` | a slow verification of the cache |

pub mod client;
pub mod daemon;
pub mod disk_process;
pub mod disks;
pub mod local;
pub mod pin_manager;
pub mod pins;
mod rest;
mod scrub;
pub mod stores;
pub mod warm_orders;
