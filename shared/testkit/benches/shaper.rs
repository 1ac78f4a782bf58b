//! The accuracy of the shaping proxy: the rate and the round trip that links have beside those that were asked for.
//!
//! Each line is the median of seven measurements. A link without a limit is the yardstick: a machine that passes on
//! hardly more than a rate cannot give that rate.

#![expect(clippy::print_stdout, reason = "prints its results")]
#![expect(clippy::cast_precision_loss, reason = "results have three digits")]

use headstart_testkit::shaper::{Measured, ShapedLink, measure};
use std::error::Error;
use std::time::Duration;

const ROUNDS: usize = 7;
/// The time for which a link sends in one measurement.
const DURING: Duration = Duration::from_millis(300);
/// The largest error of a rate, as a share of it.
const TARGET: f64 = 0.03;

fn main() -> Result<(), Box<dyn Error>> {
    println!("link                 MB/s  unlimited  error  round trip  target  ok");
    let mut is_wrong = false;
    for (megabytes, round_trip) in [(2, 0), (2, 200), (10, 20), (50, 1), (90, 100), (200, 0), (200, 40)] {
        let round_trip = Duration::from_millis(round_trip);
        let limited = median(&ShapedLink::new(Some(megabytes * 1_000_000), round_trip))?;
        let unlimited = median(&ShapedLink::new(None, round_trip))?;
        let asked = megabytes as f64 * 1e6;
        let error = limited.rate / asked - 1.0;
        let ok = if error.abs() < TARGET {
            "yes"
        } else if unlimited.rate < 2.0 * asked {
            "the machine is too slow"
        } else {
            is_wrong = true;
            "NO"
        };
        println!(
            "{megabytes:3} MB/s, {:3} ms {:9.1} {:10.1} {:5.1}% {:8.2} ms {:6.0}%  {ok}",
            round_trip.as_millis(),
            limited.rate / 1e6,
            unlimited.rate / 1e6,
            error * 100.0,
            limited.round_trip.as_secs_f64() * 1e3,
            TARGET * 100.0,
        );
    }
    if is_wrong { Err("a link misses its rate".into()) } else { Ok(()) }
}

/// The measurement with the median rate.
fn median(link: &ShapedLink) -> Result<Measured, Box<dyn Error>> {
    let mut all = (0..ROUNDS).map(|_| measure(link, DURING)).collect::<Result<Vec<_>, _>>()?;
    all.sort_by(|a, b| a.rate.total_cmp(&b.rate));
    Ok(all.swap_remove(ROUNDS / 2))
}
