//! The systemd units: the parts of the host that they can reach, and the access to their files.

use crate::tree::root;
use crate::{assert_none, skipped};
use std::fs;
use std::process::Command;

/// Units that mount nothing.
const UNITS: [&str; 2] = ["headstart-agent.service", "headstart-harvest.service"];
/// A unit that mounts file systems for others, and so has much of the host.
const MOUNTS: &str = "headstart-snapshotter.service";

/// The exposure that `systemd-analyze security` may find at most, in tenths.
const EXPOSURE_MAX: &str = "30";

#[test]
fn units_expose_little_of_the_host() {
    for unit in UNITS {
        let path = root().join("deploy/systemd").join(unit);
        let mut command = Command::new("systemd-analyze");
        command.args(["security", "--offline=true", "--no-pager", "--threshold", EXPOSURE_MAX]).arg(path);
        let Ok(output) = command.output() else {
            skipped(&format!("{unit}: systemd-analyze is not installed"));
            return;
        };
        let said = String::from_utf8_lossy(&output.stdout);
        let refused = String::from_utf8_lossy(&output.stderr);
        if refused.contains("unrecognized option") || refused.contains("Unknown command") {
            skipped(&format!("{unit}: systemd-analyze is too old"));
            return;
        }
        assert!(output.status.success(), "{unit} exposes too much:\n{said}{refused}");
    }
}

/// The program sets modes itself; a unit does so for what systemd makes before the program starts.
#[test]
fn directories_of_units_are_for_their_user_alone() {
    let mut offences = Vec::new();
    for unit in UNITS.into_iter().chain([MOUNTS]) {
        let text = fs::read_to_string(root().join("deploy/systemd").join(unit)).unwrap();
        let has = |line: &str| text.lines().any(|own| own == line);
        if !has("UMask=0077") {
            offences.push(format!("{unit}: UMask=0077"));
        }
        for kind in ["RuntimeDirectory", "StateDirectory", "CacheDirectory", "LogsDirectory"] {
            let is_made = text.lines().any(|line| line.starts_with(&format!("{kind}=")));
            if is_made && !has(&format!("{kind}Mode=0700")) {
                offences.push(format!("{unit}: {kind}Mode=0700"));
            }
        }
    }
    assert_none("add it", &offences);
}
