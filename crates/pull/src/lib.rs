//! The pull engine, a pure state machine: which ranges to fetch, when, from where.
