//! The program `headstart`. Everything is in the library beside it, of which the reference is made, too.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    headstart::main()
}
