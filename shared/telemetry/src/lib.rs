//! The metrics of every program of the project: how they are counted, and the page that Prometheus scrapes.
//!
//! | module | content |
//! |---|---|
//! | [`exposition`] | pages in the formats that scrapers ask for |
//! | [`histogram`] | latency distributions |

#![forbid(unsafe_code)]

pub mod exposition;
pub mod histogram;
