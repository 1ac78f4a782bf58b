//! Pages that people write, against the command line: a how-to names every option of its commands.

use crate::recorded::ROOT;
use clap::Command;
use headstart_reference::json::reports;
use std::collections::BTreeSet;
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

/// The commands that a page's table names for reports of something wrong.
fn commands_of_the_status_table(text: &str) -> BTreeSet<String> {
    let (_, table) = text.split_once("| command | something wrong is |\n|---|---|\n").unwrap();
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let names = rows.flat_map(|row| row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2));
    names.map(str::to_owned).collect()
}

#[test]
fn the_page_names_every_command_whose_report_decides_on_the_status() {
    let named =
        commands_of_the_status_table(&fs::read_to_string(Path::new(ROOT).join("docs/json.md")).unwrap());
    let reports = reports(Path::new(ROOT)).unwrap();
    let judged: Vec<_> =
        reports.into_iter().filter(|report| report.is_judged).map(|report| report.commands).collect();
    assert!(judged.len() > 5 && !named.is_empty());
    let missing = judged.iter().filter(|commands| !commands.iter().any(|command| named.contains(command)));
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<&Vec<String>>::new());
    let known: BTreeSet<_> = judged.iter().flatten().cloned().collect();
    assert_eq!(named.difference(&known).collect::<Vec<_>>(), Vec::<&String>::new());
}

#[test]
fn the_beginning_of_another_option_is_not_the_option() {
    assert!(names("with `--agent`, or", "--agent"));
    assert!(!names("with `--agent-socket`", "--agent"));
}
