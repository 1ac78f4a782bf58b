//! The documentation of the commands, generated from the definition of the command line: pages of the site, man pages,
//! and shell completions.

use crate::markdown::{block, escaped, table};
use crate::{Result, SitePage};
use clap::{Arg, Command};
use clap_complete::Shell;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// A program of the project, as its command line defines it.
pub struct Program {
    /// A function that returns the definition of the command line with all its commands.
    pub command: fn() -> Command,
}

/// The programs that the reference describes, in its order.
pub const PROGRAMS: [Program; 2] =
    [Program { command: headstart::command }, Program { command: headstart_lab::command }];

/// The shells that completions are made for.
const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Fish, Shell::Zsh];

/// Generates the pages of all programs: for each program a page that lists its commands, then a page for each
/// command.
#[must_use]
pub fn pages() -> Vec<SitePage> {
    PROGRAMS.iter().flat_map(|program| pages_of(&built(program))).collect()
}

/// The command line with names of subcommands and options of every command filled in.
fn built(program: &Program) -> Command {
    let mut command = (program.command)().disable_help_subcommand(true);
    command.build();
    command
}

fn pages_of(program: &Command) -> Vec<SitePage> {
    let name = program.get_name();
    let mut rows = Vec::new();
    let mut pages = Vec::new();
    for command in visible(program) {
        let path = format!("commands/{name}-{}.md", command.get_name());
        let about = escaped(&about(command));
        rows.push([format!("[`{name} {}`]({path})", command.get_name()), about]);
        let mut body = String::new();
        describe(&mut body, command, 1);
        pages.push(SitePage::new(format!("reference/{path}"), full_name(command), &body));
    }
    let mut body = format!("{}\n\n{}\n", escaped(&about(program)), table(["command", "effect"], &rows));
    let everywhere: Vec<_> = program.get_arguments().filter(|arg| arg.is_global_set()).collect();
    list(&mut body, "Options of every command", &everywhere, 2);
    if let Some(more) = program.get_after_help() {
        let _ = writeln!(body, "## About all commands\n\n{}", block("text", &more.to_string()));
    }
    pages.insert(0, SitePage::new(format!("reference/{name}.md"), format!("Commands of {name}"), &body));
    pages
}

/// The subcommands that `--help` lists.
fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|one| !one.is_hide_set() && one.get_name() != "help")
}

/// The words that call it: `headstart image import`.
fn full_name(command: &Command) -> String {
    command.get_bin_name().unwrap_or(command.get_name()).to_owned()
}

fn about(command: &Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

/// Writes what a command does and takes, and below it the same of its subcommands. `level` is that of its heading.
fn describe(page: &mut String, command: &Command, level: usize) {
    if level > 1 {
        let _ = writeln!(page, "{} {}\n", "#".repeat(level), escaped(&full_name(command)));
    }
    let text = command.get_long_about().map_or_else(|| about(command), ToString::to_string);
    let _ = writeln!(page, "{}\n", escaped(&text));
    let usage = command.clone().render_usage().to_string();
    let _ = writeln!(page, "{}", block("text", usage.trim_start_matches("Usage: ")));
    let is_listed = |arg: &&Arg| {
        !arg.is_hide_set() && !arg.is_global_set() && !matches!(arg.get_id().as_str(), "help" | "version")
    };
    let listed: Vec<_> = command.get_arguments().filter(is_listed).collect();
    let (places, options): (Vec<&Arg>, Vec<&Arg>) = listed.into_iter().partition(|arg| arg.is_positional());
    list(page, "Arguments", &places, level + 1);
    let mut headings: Vec<Option<&str>> = Vec::new();
    for option in &options {
        if !headings.contains(&option.get_help_heading()) {
            headings.push(option.get_help_heading());
        }
    }
    for heading in headings {
        let group: Vec<_> = options.iter().copied().filter(|arg| arg.get_help_heading() == heading).collect();
        list(page, heading.unwrap_or("Options"), &group, level + 1);
    }
    if let Some(more) = command.get_after_long_help().or(command.get_after_help()) {
        let _ = writeln!(page, "{}", block("text", &more.to_string()));
    }
    for one in visible(command) {
        describe(page, one, level + 1);
    }
}

/// Writes a list of arguments. Its heading is bold text, because it would be the same for all commands of a page.
fn list(page: &mut String, heading: &str, arguments: &[&Arg], level: usize) {
    if arguments.is_empty() {
        return;
    }
    let _ = if level == 2 && heading.starts_with("Options of") {
        writeln!(page, "## {heading}\n")
    } else {
        writeln!(page, "**{}**\n", escaped(heading))
    };
    for argument in arguments {
        let _ = writeln!(page, "* {}", described(argument));
    }
    page.push('\n');
}

/// An argument in one item of a list.
fn described(argument: &Arg) -> String {
    let takes_value = argument.get_action().takes_values();
    let names = argument.get_value_names().unwrap_or_default();
    let value = names.iter().map(|name| format!("<{name}>")).collect::<Vec<_>>().join(" ");
    let mut forms = Vec::new();
    forms.extend(argument.get_short().map(|short| format!("-{short}")));
    forms.extend(argument.get_long().map(|long| format!("--{long}")));
    let mut form = forms.join(", ");
    if takes_value && !value.is_empty() {
        let gap = if form.is_empty() { "" } else { " " };
        let _ = write!(form, "{gap}{value}");
    }
    let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string).unwrap_or_default();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut text = format!("`{form}`: {}", escaped(&help));
    if takes_value && !argument.is_hide_default_value_set() {
        let defaults: Vec<_> =
            argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        if !defaults.is_empty() {
            let _ = write!(text, " (default `{}`)", defaults.join(" "));
        }
    }
    let values = argument.get_possible_values();
    if takes_value && !argument.is_hide_possible_values_set() && !values.is_empty() {
        for value in values.iter().filter(|value| !value.is_hide_set()) {
            let help = value.get_help().map(|help| format!(": {}", escaped(&help.to_string())));
            let _ = write!(text, "\n  * `{}`{}", value.get_name(), help.unwrap_or_default());
        }
    }
    text
}

/// Writes man pages (`man/*.1`) and shell completions (`completions/*`) of all programs into `directory`,
/// which is created if necessary.
///
/// # Errors
///
/// A directory or a file cannot be written.
pub fn dist(directory: &Path) -> Result<()> {
    let (man, completions) = (directory.join("man"), directory.join("completions"));
    for folder in [&man, &completions] {
        fs::create_dir_all(folder)?;
    }
    for program in &PROGRAMS {
        let command = (program.command)().disable_help_subcommand(true);
        let name = command.get_name().to_owned();
        clap_mangen::generate_to(command.clone(), &man)?;
        for shell in SHELLS {
            clap_complete::generate_to(shell, &mut command.clone(), &name, &completions)?;
        }
    }
    Ok(())
}
