//! Whole hosts: small flash, real bytes, crashes.

mod cost;
mod crash;
mod faults;
mod integrity;
mod kit;
mod smoke;
