//! The project's rules, as tests.
//!
//! These are the remarks that a reviewer would otherwise have to repeat. A rule that stands in the way is changed
//! here, with its reason, not worked around.
//!
//! | module | rules |
//! |---|---|
//! | [`text`] | names, lengths and words of the files of the tree |
//! | [`code_names`] | names of code in documents are in the code |
//! | [`commits`] | messages of commits |
//! | [`dead_links`] | the links of documents |
//! | [`circles`] | no circle of imports between the modules of a crate |
//! | [`conversions`] | no integer becomes another one unnoticed |
//! | [`house`] | which crate may use which, what every crate says of itself, what ARCHITECTURE.md names |
//! | [`prose`] | how comments open, and that neither they nor documents call a machine a person |
//! | [`licences`] | what our dependencies allow us, and where they come from |
//! | [`test_programs`] | one program of integration tests a crate, and none without tests |
//! | [`type_names`] | no type name is defined publicly in two crates |
//! | [`units`] | what the systemd units may do, at most |
//! | [`unsafety`] | crates without unsafe code promise it |
//! | [`wings`] | the folders of crates, and which of these folders may use which |

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a rule that cannot be checked has failed"
)]

mod circles;
mod code_names;
mod commits;
mod conversions;
mod dead_links;
mod house;
mod licences;
mod prose;
mod test_programs;
mod text;
mod tree;
mod type_names;
mod units;
mod unsafety;
mod wings;

use std::io::Write;

/// Prints, past the test harness's capturing, that a rule is not checked here, and why.
fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}

/// Fails with all offences at once, so that one run names everything to mend.
#[track_caller]
fn assert_none(rule: &str, offences: &[String]) {
    assert!(offences.is_empty(), "{rule}:\n  {}\n", offences.join("\n  "));
}
