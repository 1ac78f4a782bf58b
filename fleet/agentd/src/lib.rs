//! The agent: the daemon of a host, which all disks of the host share.
//!
//! | module | content |
//! |---|---|
//! | [`client`] | the client by which other programs send the agent requests |
//! | [`daemon`] | the agent as a whole |
//! | [`disk_process`] | the code that runs in the process of a disk, which is not the agent's own process |
//! | [`disks`] | the disks of this host, and the processes that serve them |
//! | [`local`] | the socket between the disks' processes and the agent |
//! | [`pin_manager`] | the content that this host fetches because of an order or a pin |
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
