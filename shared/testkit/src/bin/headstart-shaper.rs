//! The shaping proxy as a program, for scripts: a slow link in front of a server.
//!
//! Prints the address that it listens at, and, for each line on its standard input and when a signal ends it, the
//! bytes that went over it by then: `moved: DOWN bytes down, UP bytes up, N connections`.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program")]

use clap::Parser;
use headstart_block::ByteRate;
use headstart_testkit::shaper::{ShapedLink, Shaper, measure};
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// Passes TCP connections on to a server over a link of a given rate and round trip
#[derive(Parser)]
struct Options {
    /// The address to listen at; port 0 for any free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,

    /// The server
    #[arg(long, value_name = "ADDRESS:PORT", required_unless_present = "calibrate")]
    to: Option<SocketAddr>,

    /// Bytes a second each way, over all connections together (10MB/s) [default: no limit]
    #[arg(long)]
    rate: Option<ByteRate>,

    /// The round trip: half of it each way (20ms)
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "0ms")]
    delay: Duration,

    /// Measure such a link on this machine instead, and print what it gives
    #[arg(long, conflicts_with = "to")]
    calibrate: bool,
}

/// The reason for printing counts.
enum Wake {
    Count,
    End,
}

fn run(options: &Options) -> Result<(), Box<dyn std::error::Error>> {
    let link = ShapedLink::new(options.rate.map(|rate| rate.0), options.delay);
    let Some(to) = options.to else {
        let measured = measure(&link, Duration::from_secs(1))?;
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        println!(
            "measured: {:.2} MB/s, round trip {:.2} ms, first byte of a new connection {:.2} ms",
            measured.rate / 1e6,
            milliseconds(measured.round_trip),
            milliseconds(measured.connect)
        );
        return Ok(());
    };
    let (wake, woken) = channel();
    let stop = wake.clone();
    ctrlc::set_handler(move || {
        let _ = stop.send(Wake::End);
    })?;
    let shaper = Shaper::start_at(&link, options.listen, to)?;
    println!("{}", shaper.addr());
    thread::spawn(move || io::stdin().lines().map_while(Result::ok).try_for_each(|_| wake.send(Wake::Count)));
    loop {
        let why = woken.recv()?;
        let moved = shaper.moved();
        println!(
            "moved: {} bytes down, {} bytes up, {} connections",
            moved.down, moved.up, moved.connections
        );
        if matches!(why, Wake::End) {
            return Ok(());
        }
    }
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("headstart-shaper: {error}");
            ExitCode::FAILURE
        }
    }
}
