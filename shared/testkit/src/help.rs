//! Checks of the programs' help texts, and of the examples in these texts.

use crate::scene::{CommandRun, Scene};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The subcommands that a help text lists.
fn subcommands(help: &str) -> Vec<String> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| !line.is_empty());
    // A line that is indented further continues the one above.
    let names =
        listed.filter_map(|line| line.strip_prefix("  ")?.split(' ').next().filter(|name| !name.is_empty()));
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

/// The commands of a program, each as its words without the program's name (`image import`) and its `--help` text.
/// Commands that only group subcommands are left out.
#[must_use]
pub fn commands(scene: &Scene, program: &str) -> Vec<(String, String)> {
    let help = |command: &str| {
        let words = format!("{command} --help");
        CommandRun::of(&words, &mut scene.command_of(program, &words)).succeeds().stdout
    };
    let mut commands = Vec::new();
    for command in subcommands(&help("")) {
        let of_command = help(&command);
        let below = subcommands(&of_command);
        if below.is_empty() {
            commands.push((command, of_command));
        } else {
            let below = below.iter().map(|name| format!("{command} {name}"));
            commands.extend(below.map(|command| (command.clone(), help(&command))));
        }
    }
    commands
}

/// The first line of prose that ends early although the sentence goes on: the text was broken by hand before it was
/// wrapped. Lines of prose begin at the margin.
fn ragged_line(help: &str) -> Option<&str> {
    let lines: Vec<_> = help.lines().collect();
    let is_prose = |line: &str| !line.is_empty() && !line.starts_with(' ');
    let mut pairs = lines.array_windows().filter(|[line, next]| is_prose(line) && is_prose(next));
    pairs.find(|[line, _]| line.chars().count() < 70).map(|[line, _]| *line)
}

/// Panics unless each help text has a usage line and an example of its command, no line but an example is longer than
/// 100 characters, and none is broken early.
pub fn check_help(commands: &[(String, String)], program: &str) {
    for (command, help) in commands {
        let example = format!("{program} {command}");
        assert!(help.contains("Example") && help.contains(&example), "{help}");
        assert!(help.contains("Usage: "), "{help}");
        assert_eq!(ragged_line(help), None, "{help}");
        for line in help.lines() {
            assert!(line.chars().count() <= 100 || line.contains(&example), "a long line: {line}");
        }
    }
}

/// A place on this host without a listener, for registries.
const NO_REGISTRY: &str = "127.0.0.1:9";
/// Examples that run at the same time.
const AT_ONCE: usize = 8;

/// The examples of a help text, as words for `program`. Names of hosts and paths are replaced by local ones.
fn examples(program: &str, help: &str, shorter: impl Fn(&str) -> String) -> Vec<String> {
    let help = help.replace("\\\n", "");
    let (_, examples) = help.split_once("Example").unwrap();
    let prefix = format!("{program} ");
    let lines = examples.lines().filter_map(|line| line.trim().strip_prefix(&prefix));
    let words = lines.map(|line| {
        let line = line.replace("registry.lan", NO_REGISTRY).replace("images.lan", NO_REGISTRY);
        let line = shorter(&line.replace('\'', ""));
        // The part for another program is not run.
        let line = line.split_once(" | ").map_or(line.as_str(), |(line, _)| line);
        line.replace("file:///", "file://~/").replace("/var/lib", "~")
    });
    words.collect()
}

/// Runs each example of help texts, and panics if one is rejected as a wrong command line (exit status 2).
/// `shorter` may change an example before it is run, such as to make it faster.
pub fn run_examples<'a>(
    scene: &Scene,
    program: &str,
    helps: impl Iterator<Item = &'a str>,
    shorter: impl Fn(&str) -> String,
) {
    let all = helps.flat_map(|help| examples(program, help, &shorter));
    // Most of the time goes by while a store that is not there is tried again, and while `doctor` waits for a guest.
    // None of these commands changes anything; the others run one after the other.
    let waits = |words: &String| {
        words.contains(NO_REGISTRY) || words.contains("s3://") || words.starts_with("doctor")
    };
    let (waiting, others): (Vec<_>, Vec<_>) = all.partition(waits);
    let run = |words: &str| {
        let run = CommandRun::of(words, &mut scene.command_of(program, words));
        assert_ne!(run.status, Some(2), "{run}");
    };
    others.iter().for_each(|words| run(words));
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(words) = waiting.get(next.fetch_add(1, Ordering::Relaxed)) {
                    run(words);
                }
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::ragged_line;

    #[test]
    fn text_that_was_broken_before_it_was_wrapped_is_found() {
        let full = "Words of a line that is as long as lines are, since more words go on in the next one,";
        let wrapped = format!("{full}\nand end.\n\nExamples:\n  a\n  b\n");
        assert_eq!(ragged_line(&wrapped), None);
        assert_eq!(ragged_line(&format!("{full}\nbroken\nagain.\n")), Some("broken"));
    }
}
