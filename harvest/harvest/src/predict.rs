//! What a vSSD will need, and for how long.
//!
//! | module | what it is |
//! |---|---|
//! | [`series`] | demand over time as traces give it, and the steps that predictors see |
//! | [`level`] | what predictors of a level see and say |
//! | [`plain`] | those that any engineer would try first |
//! | [`counts`] | one that learns by counting what followed |
//! | [`network`], [`lstm`] | the paper's: LSTMs |
//! | [`duration`] | how long a level lasts |
//! | [`forecaster`] | all predictors of a vSSD together |
//! | [`spare`] | what can be lent for days |
//! | [`unsold`] | how long what is unsold stays so |
//! | [`score`] | how good they are: coverage against waste |
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
