//! Writes the source of the documentation site, or man pages and completions.
//!
//! ```text
//! headstart-reference site DIRECTORY RECORDED    # RECORDED: what scripts/make-fixtures wrote
//! headstart-reference dist DIRECTORY
//! ```

#![forbid(unsafe_code)]

use headstart_reference::{Result, commands, site};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// The root of the checkout that this program was built from.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args().skip(1).collect();
    match run(&words.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "headstart-reference: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> Result<()> {
    match words {
        ["site", directory, recorded] => {
            site::write(Path::new(ROOT), Path::new(recorded), Path::new(directory))
        }
        ["dist", directory] => commands::dist(Path::new(directory)),
        _ => Err("say `site DIRECTORY RECORDED` or `dist DIRECTORY`".into()),
    }
}
