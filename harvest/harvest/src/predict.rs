//! Forecasts of a vSSD's need, and of its duration.
//!
//! | module | content |
//! |---|---|
//! | [`series`] | demand over time as traces give it, and the steps that predictors see |
//! | [`level`] | the input and output of predictors of a level |
//! | [`plain`] | the predictors that any engineer would try first |
//! | [`counts`] | one that learns by counting the needs that followed |
//! | [`network`], [`lstm`] | the paper's: LSTMs |
//! | [`duration`] | the duration of a level |
//! | [`forecaster`] | all predictors of a vSSD together |
//! | [`spare`] | storage that can be lent for days |
//! | [`unsold`] | the time for which unsold storage stays so |
//! | [`score`] | the quality of predictors: coverage against waste |
//! | [`lasted`] | the same for durations |

pub mod counts;
pub mod duration;
pub mod forecaster;
pub mod lasted;
pub mod level;
pub mod lstm;
pub mod network;
pub mod plain;
pub mod score;
pub mod series;
pub mod spare;
pub mod unsold;

pub use counts::{Counts, Need};
pub use forecaster::{Forecast, Forecaster, Kind, Sample, Settings};
pub use level::{Level, Predictor, Reading, Side, Stat};
pub use lstm::Quantity;
pub use series::{STEP, Series, Step};
pub use unsold::Unsold;
