//! Names of disks, which become parts of the names of files and sockets.

use headstart_block::{Error, Result};

/// Longest name of a disk, in bytes.
const NAME_MAX: usize = 64;

/// Checks the name of a disk: 1 to 64 ASCII letters, digits, `-`, `_` and `.`, and no `.` at the beginning.
///
/// # Errors
/// [`headstart_block::ErrorKind::Invalid`] if `name` is not of that form.
pub fn check_disk_name(name: &str) -> Result<()> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if !matches!(name.len(), 1..=NAME_MAX) || !name.chars().all(allowed) || name.starts_with('.') {
        return Err(Error::invalid(format!("`{}` is not a name of a disk", name.escape_debug()))
            .remedy("write 1 to 64 letters, digits, `-`, `_` and `.`"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_part_of_a_file_name() {
        for (name, is_good) in [
            ("vm-1_a.b", true),
            (&"a".repeat(NAME_MAX), true),
            (&"a".repeat(NAME_MAX + 1), false),
            ("", false),
            (".hidden", false),
            ("..", false),
            ("a/b", false),
            ("a b", false),
            ("\u{e4}", false),
        ] {
            assert_eq!(check_disk_name(name).is_ok(), is_good, "{name}");
        }
    }
}
