//! Recorded boots, replayed on virtual time.
//!
//! | module | subject |
//! |---|---|
//! | [`fast_evaluator`] | the evaluators of `headstart-plan` agree with the engine |
//! | [`preloading`] | the harm that preloading must never do |
//! | [`ranges`] | the gain of hot ranges |
//! | [`scenarios`] | boots and links that need one part of the product each |

#![expect(clippy::print_stderr, reason = "says what it finds")]
#![expect(clippy::unwrap_used, reason = "a test fails by it")]

mod fast_evaluator;
mod preloading;
mod ranges;
mod scenarios;
