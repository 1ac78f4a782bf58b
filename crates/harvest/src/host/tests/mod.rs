//! Whole hosts: small flash, real bytes, crashes.

mod cost;
mod crash;
mod faults;
mod integrity;
mod jobs;
mod kit;
mod levelling;
mod rewrite;
mod smoke;
