//! Whole hosts: small flash, real bytes, crashes.

mod cost;
mod crash;
mod faults;
mod flips;
mod full;
mod integrity;
mod jobs;
mod kit;
mod levelling;
mod rewrite;
mod smoke;
