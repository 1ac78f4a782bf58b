//! Tests of whole images: golden ones, ones that share layers, and ones that are refused.

mod golden;
mod sharing;
mod support;
