//! The paper's predictors of flash, and the scores of all predictors: what the product does not ship.
//!
//! | module | content |
//! |---|---|
//! | [`series`] | demand over time as traces give it, and the steps that predictors see |
//! | [`network`], [`lstm`], [`duration`] | BlockFlex's LSTMs: of a level, and of its duration |
//! | [`paper`] | a forecaster of the product whose predictors are these LSTMs |
//! | [`score`] | the quality of predictors: coverage against waste |
//! | [`lasted`] | the same for durations |

#![forbid(unsafe_code)]

pub mod duration;
pub mod lasted;
pub mod lstm;
pub mod network;
pub mod paper;
pub mod score;
pub mod series;

pub use duration::{LengthLstm, NETWORKS};
pub use lstm::{LevelLstm, LevelRule};
pub use series::DemandSeries;
