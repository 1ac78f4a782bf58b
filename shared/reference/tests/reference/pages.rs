//! Pages that people write, against the command line: a how-to names every option of its commands.

use crate::recorded::ROOT;
use clap::Command;
use std::fs;
use std::path::Path;

/// Commands, and the pages about them.
const PAGES: [(&str, &str); 3] = [
    ("snapshotter", "docs/how-to/containerd.md"),
    ("container pull", "docs/how-to/containerd.md"),
    ("image convert", "docs/how-to/containers.md"),
];

/// The heading of options that all commands with stores have, which pages about stores describe.
const OF_STORES: &str = "Reaching stores";

/// The names of a command's own options.
fn options(program: &Command, words: &str) -> Vec<String> {
    let command =
        words.split(' ').fold(program, |command, word| command.find_subcommand(word).expect("there is one"));
    let own = command
        .get_arguments()
        .filter(|arg| !arg.is_global_set() && arg.get_help_heading() != Some(OF_STORES));
    own.filter_map(|arg| arg.get_long())
        .filter(|name| *name != "help")
        .map(|name| format!("--{name}"))
        .collect()
}

/// `true` if the text has this option, and not only one whose name goes on.
fn names(text: &str, option: &str) -> bool {
    let mut rests = text.split(option).skip(1);
    rests.any(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-'))
}

#[test]
fn how_to_pages_name_every_option_of_their_commands() {
    let program = headstart::command();
    let mut missing = Vec::new();
    for (words, page) in PAGES {
        let text = fs::read_to_string(Path::new(ROOT).join(page)).unwrap();
        let options = options(&program, words);
        assert!(options.len() > 2, "{words}: {options:?}");
        let lacking = options.iter().filter(|option| !names(&text, option));
        missing.extend(lacking.map(|option| format!("{page}: {words} {option}")));
    }
    assert_eq!(missing, Vec::<String>::new());
}

#[test]
fn the_beginning_of_another_option_is_not_the_option() {
    assert!(names("with `--agent`, or", "--agent"));
    assert!(!names("with `--agent-socket`", "--agent"));
}
