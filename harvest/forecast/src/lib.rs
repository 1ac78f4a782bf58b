//! Forecasts of the storage that a vSSD needs or can spare, and for how long: the predictors that the product uses.
//!
//! # The predictor that ships
//!
//! A harvesting host always forecasts with [`PredictorKind::Default`]: no option of the program changes that. With this
//! kind, the capacity that was free for four weeks, less a fifth, counts as spare ([`spare`]). Forecasts of minutes are
//! not used for that, because two thirds of the leases that were made by them ended early (`docs/harvest-fleets.md`).
//! Needs are predicted by [`DemandCounts`] (capacity) and by the last levels (bandwidth): [`forecaster`] has the
//! figures by which they were chosen. [`PredictorKind::Steps`] and [`PredictorKind::Plain`] are there for comparison.
//!
//! The design is that of BlockFlex (Reidys et al., OSDI 2022), "the paper" in this crate. The paper predicts with LSTMs
//! (neural networks). On the public series of demand (see `docs/harvest-predictors.md`), their forecasts of levels
//! waste more storage than those of the predictors here, so they are not in the product. They are in `lab/predictors`,
//! with the scores of all predictors, and run in the simulator against the product's broker.
//!
//! No predictor reads a clock, draws random numbers or starts a thread.
//!
//! | module | content |
//! |---|---|
//! | [`level`] | the input and output of predictors of a level |
//! | [`plain`] | the predictors that any engineer would try first |
//! | [`counts`] | a predictor that counts the needs that followed earlier states |
//! | [`duration`] | the duration of a level |
//! | [`forecaster`] | all predictors of a vSSD together |
//! | [`spare`] | storage that can be lent for days |
//! | [`unsold`] | the time for which unsold storage stays unsold |

#![forbid(unsafe_code)]

pub mod counts;
pub mod duration;
pub mod forecaster;
pub mod level;
pub mod plain;
pub mod spare;
pub mod unsold;

pub use counts::{DemandCounts, Need};
pub use forecaster::{Forecast, ForecastSettings, Forecaster, PredictorKind, Predictors, STEP, Sample};
pub use level::{Level, Predictor, Quantity, Reading, Side, Stat};
pub use unsold::Unsold;
