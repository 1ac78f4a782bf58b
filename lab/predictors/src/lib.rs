//! Predictors of the flash that a VM will need, as BlockFlex (OSDI 2022, "the paper") has them, and scores of these and
//! of the product's own predictors. This crate is for experiments; the product does not contain it.
//!
//! | module | content |
//! |---|---|
//! | [`series`] | demand over time as traces give it, and the steps that predictors see |
//! | [`network`], [`lstm`], [`duration`] | BlockFlex's LSTMs: the network; predictors of a level and of its duration |
//! | [`paper`] | the product's forecaster with these LSTMs as its predictors |
//! | [`score`] | the quality of predictors: coverage against waste |
//! | [`lasted`] | the quality of predictors of durations |

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
