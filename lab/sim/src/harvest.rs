//! Harvesting a fleet, as BlockFlex was evaluated (Reidys et al., OSDI 2022, sections 2 and 5.2): the product's broker
//! and predictors on virtual time.
//!
//! | module | content |
//! |---|---|
//! | [`course`] | a level over time |
//! | [`fleet`] | regular VMs, servers with unsold storage, requests of harvest VMs (read this first) |
//! | `regular`, `unsold`, `requests` | the generator: how each is drawn from the paper's statistics |
//! | [`statistics`] | shares of storage that are used and sold (figures 1 to 3) |
//! | [`availability`] | storage that could be harvested, and for how long (figures 4 to 6) |
//! | [`performance`] | the gain of one harvest VM and the loss of one regular VM |
//! | [`accuracy`] | how often predictors cover the need (figure 14) |
//! | [`world`] | the event loop |
//! | [`foresight`] | the sources of forecasts: predictors, or a clairvoyant that knows the future |
//! | [`ceiling`] | the gain that no allocator exceeds |
//! | [`planner`] | the gain of an allocator that knows the future and plans ahead |
//! | [`utilisation`] | shares of owned storage that are used, without and with harvesting |
//! | [`outcome`] | the results |

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
#[doc(no_inline)]
pub use headstart_broker::gssd::Grain;
#[doc(no_inline)]
pub use headstart_forecast::{ForecastSettings, PredictorKind};
#[doc(no_inline)]
pub use headstart_predictors::DemandSeries;
pub use outcome::HarvestOutcome;
pub use world::{HarvestModel, StorageSource, simulate};
