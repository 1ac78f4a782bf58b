//! Whole hosts: small flash, real bytes, crashes.

mod cost;
mod crash;
mod faults;
mod flips;
mod full;
mod integrity;
mod jobs;
mod kit;
mod rewrite;
mod smoke;
mod wear_leveling;
