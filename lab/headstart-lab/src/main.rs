//! The program `headstart-lab`. The library beside it has everything, so that the reference is made of the same
//! command line.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    headstart_lab::main()
}
