//! Tests of whole images: golden ones, ones of other tools from every kind of source, ones that share layers, and ones
//! that are refused.

mod appliers;
mod golden;
mod peers;
mod sharing;
mod support;
mod turbo;
