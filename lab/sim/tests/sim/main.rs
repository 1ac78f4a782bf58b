//! Whole fleets on virtual time: the gain on recorded boots ([`fleet_boots`]), and faults of every kind at once
//! ([`fleet_faults`]).

mod fleet_boots;
mod fleet_faults;
