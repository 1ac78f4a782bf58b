//! The shaping proxy as a program, for scripts: a slow link in front of a server.
//!
//! It prints the address that it listens at, and when a signal ends it, what went over it:
//! `moved: DOWN bytes down, UP bytes up, N connections`.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program")]

use clap::Parser;
use headstart_testkit::shaper::{Link, Shaper, measure};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Passes TCP connections on to a server over a link of a given rate and round trip
#[derive(Parser)]
struct Options {
    /// Where to listen; port 0 for any that is free
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,

    /// The server
    #[arg(long, value_name = "ADDRESS:PORT", required_unless_present = "calibrate")]
    to: Option<SocketAddr>,

    /// Bytes a second each way, over all connections together (10MB/s) [default: as fast as it goes]
    #[arg(long, value_parser = parse_rate)]
    rate: Option<u64>,

    /// The round trip: half of it each way (20ms)
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "0ms")]
    delay: Duration,

    /// Measure such a link on this machine instead, and print what it gives
    #[arg(long, conflicts_with = "to")]
    calibrate: bool,
}

/// Splits a number from its unit.
fn number_and_unit(text: &str) -> Result<(f64, &str), String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| format!("`{text}` does not start with a number"))?;
    Ok((number, unit.trim()))
}

#[expect(clippy::cast_possible_truncation, reason = "the range is checked")]
fn parse_rate(text: &str) -> Result<u64, String> {
    let (number, unit) = number_and_unit(text)?;
    let factor = match unit {
        "B/s" => 1.0,
        "kB/s" => 1e3,
        "MB/s" => 1e6,
        "GB/s" => 1e9,
        _ => return Err("a rate is a number and B/s, kB/s, MB/s or GB/s: 10MB/s".to_owned()),
    };
    let rate = number * factor;
    if (1.0..1e12).contains(&rate) { Ok(rate as u64) } else { Err("not from 1 B/s to 1000 GB/s".to_owned()) }
}

fn parse_time(text: &str) -> Result<Duration, String> {
    let (number, unit) = number_and_unit(text)?;
    let factor = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return Err("a time is a number and us, ms or s: 20ms".to_owned()),
    };
    Duration::try_from_secs_f64(number * factor).map_err(|e| e.to_string())
}

fn run(options: &Options) -> Result<(), Box<dyn std::error::Error>> {
    let link = Link::new(options.rate, options.delay);
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
    let (stop, stopped) = channel();
    ctrlc::set_handler(move || {
        let _ = stop.send(());
    })?;
    let shaper = Shaper::start_at(&link, options.listen, to)?;
    println!("{}", shaper.addr());
    stopped.recv()?;
    let moved = shaper.moved();
    println!("moved: {} bytes down, {} bytes up, {} connections", moved.down, moved.up, moved.connections);
    Ok(())
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
