//! Harvesting a fleet, as BlockFlex was evaluated (Reidys et al., OSDI 2022, sections 2 and 5.2): the product's broker
//! and predictors on virtual time.
//!
//! | module | what it is |
//! |---|---|
//! | [`course`] | a level over time |
//! | [`fleet`] | regular VMs, servers with unsold storage, requests of harvest VMs (read this first) |
//! | `regular`, `unsold`, `requests` | the generator: how each is drawn from the paper's statistics |
//! | [`statistics`] | how much is used and sold (figures 1 to 3) |
//! | [`availability`] | what could be harvested, and for how long (figures 4 to 6) |
//! | [`performance`] | what harvesting gives to one harvest VM and takes from one regular VM |
//! | [`accuracy`] | how often predictors cover what comes (figure 14) |
//! | [`world`] | the event loop |
//! | [`foresight`] | who forecasts: predictors, or one who knows the future |
//! | [`ceiling`] | what no allocator exceeds |
//! | [`planner`] | what one gains who knows the future and plans ahead |
//! | [`utilisation`] | how much of what is owned is used, without and with harvesting |
//! | [`outcome`] | what came of it |

pub mod accuracy;
pub mod availability;
pub mod ceiling;
pub mod course;
mod draw;
pub mod fleet;
pub mod foresight;
mod generate;
pub mod outcome;
pub mod performance;
pub mod planner;
mod regular;
mod requests;
pub mod statistics;
#[cfg(test)]
mod tests;
mod unsold;
pub mod utilisation;
pub mod world;

pub use fleet::{Fleet, FleetSettings};
pub use foresight::Foresight;
pub use outcome::Outcome;
pub use world::{HarvestModel, Source, simulate};
