//! Laying an image out anew: what boots read comes first, in the order of a plan.

mod order;

pub use order::boot_order;
