//! The metrics of all programs of the project: latency distributions, and the page of metrics that Prometheus scrapes.
//!
//! | module | content |
//! |---|---|
//! | [`exposition`] | pages in the formats that scrapers ask for |
//! | [`histogram`] | latency distributions |

#![forbid(unsafe_code)]

pub mod exposition;
pub mod histogram;
