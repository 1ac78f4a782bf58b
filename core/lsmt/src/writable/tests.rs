//! Tests of the writable disk on a simulated machine, and on the real one.

#![expect(clippy::cast_possible_truncation, clippy::panic, reason = "tests")]

mod behaviour;
mod cloning;
mod collecting;
mod committing;
mod failing;
mod histories;
mod holes;
mod killed;
mod lacking;
mod limited;
mod model;
mod noted;
mod seals;
mod sim;
mod steps;
mod threads;
