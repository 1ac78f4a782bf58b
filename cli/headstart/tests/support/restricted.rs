//! Programs under the restrictions of their systemd unit, as far as these are possible without systemd as process 1:
//! its capabilities, no new privileges, its umask, its protection from the out-of-memory killer if possible, and a
//! mount namespace of its own with `/usr` and `/etc` read-only. Only systemd can set the filter of system calls and the
//! device policy, and they are not tried here.

use std::fs;
use std::process::Command;

/// Steps that root takes before the program starts: `$1` is the list of capabilities.
const RESTRICT: &str = "umask 0077; for dir in /usr /etc; do mount --bind $dir $dir && \
    mount -o remount,bind,ro $dir || exit 3; done; (echo -500 > /proc/$$/oom_score_adj) 2> /dev/null; caps=$1; shift; \
    exec setpriv --no-new-privs --bounding-set=\"$caps\" --inh-caps=-all \"$@\"";

/// The capabilities of a unit, in the form for setpriv.
fn capabilities(unit: &str) -> String {
    let units = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/systemd");
    let text = fs::read_to_string(format!("{units}/{unit}")).unwrap();
    let set = text.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let kept = set.split(' ').map(|name| format!(",+{}", name.strip_prefix("CAP_").unwrap().to_lowercase()));
    format!("-all{}", kept.collect::<String>())
}

/// The command `program` under the restrictions of `unit`; `None` if this machine does not allow them.
pub(crate) fn restricted(unit: &str, program: &Command) -> Option<Command> {
    let capabilities = capabilities(unit);
    let restrict = ["--mount", "sh", "-c", RESTRICT, "sh", &capabilities];
    let trial = Command::new("unshare").args(restrict).arg("true").output();
    if !trial.is_ok_and(|trial| trial.status.success()) {
        crate::tools::skipped("the unit's restrictions cannot be had here");
        return None;
    }
    let mut command = Command::new("unshare");
    command.args(restrict).arg(program.get_program()).args(program.get_args());
    if let Some(dir) = program.get_current_dir() {
        command.current_dir(dir);
    }
    Some(command)
}
