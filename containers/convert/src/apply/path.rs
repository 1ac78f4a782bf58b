//! Names of entries as lists of components.
//!
//! Rules are lexical: no tree is asked. `//` and `/./` and a `/` at the end say nothing; `x/..` cancels out; a `..`
//! with nothing to cancel stays in a relative name and goes in an absolute one, because the root is its own parent.

use headstart_block::{Error, Result};

/// The longest name of a file in bytes: `NAME_MAX` of Linux.
pub(super) const NAME_BYTES: usize = 255;

/// The longest path in bytes: `PATH_MAX` of Linux without the NUL at its end. The longest target of a symbolic link,
/// too.
pub(super) const PATH_BYTES: usize = 4095;

/// The place that an entry's name stands for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place<'a> {
    /// The root directory, by a name such as `./`.
    Root,
    /// No place inside: the name ends in a `..` that leads out of the root.
    Outside,
    /// A name in a directory.
    Inside {
        /// The components of the directory's path. Each is a name, neither empty nor `.` nor `..`.
        parents: Vec<&'a [u8]>,
        /// The name.
        name: &'a [u8],
    },
}

/// The place of the entry with the name `path`.
pub(super) fn place(path: &[u8]) -> Place<'_> {
    let is_absolute = path.starts_with(b"/");
    let mut parents: Vec<&[u8]> = Vec::new();
    let mut leads_out = false;
    for component in components(path) {
        match component {
            b"." => {}
            b".." => leads_out |= parents.pop().is_none() && !is_absolute,
            _ => parents.push(component),
        }
    }
    // A `..` that leads out changes nothing before other components, because the root is its own parent.
    match parents.pop() {
        Some(name) => Place::Inside { parents, name },
        None if leads_out => Place::Outside,
        None => Place::Root,
    }
}

/// The components of a path that are not empty, `.` and `..` among them.
pub(super) fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|component| !component.is_empty())
}

/// Checks that a file can have that name: at most 255 bytes, none of them NUL.
///
/// # Errors
/// [`headstart_block::ErrorKind::Unsupported`] for one that is too long, `Corrupt` for one with NUL.
pub(super) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_BYTES {
        let cause =
            format!("has a name of {} bytes, more than the {NAME_BYTES} that a file can have", name.len());
        return Err(Error::unsupported(cause));
    }
    if name.contains(&0) {
        return Err(Error::corrupt("has a NUL byte in its name"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn inside(path: &str) -> String {
        match place(path.as_bytes()) {
            Place::Inside { parents, name } => {
                let all: Vec<_> = parents.into_iter().chain([name]).collect();
                String::from_utf8(all.join(&b'/')).unwrap()
            }
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn names_are_cleaned_as_paths_are() {
        let cases = [
            ("a", "a"),
            ("a//b", "a/b"),
            ("a/./b/", "a/b"),
            ("./a", "a"),
            ("/a/b", "a/b"),
            ("a/../b", "b"),
            ("../../a", "a"),
            ("/../a", "a"),
            ("a/../../b", "b"),
            ("../a/../b/c", "b/c"),
            ("...", "..."),
            ("", "Root"),
            (".", "Root"),
            ("./", "Root"),
            ("/", "Root"),
            ("/..", "Root"),
            ("a/..", "Root"),
            ("..", "Outside"),
            ("../..", "Outside"),
            ("a/../..", "Outside"),
            ("../a/..", "Outside"),
        ];
        for (path, expected) in cases {
            assert_eq!(inside(path), expected, "{path:?}");
        }
    }

    #[test]
    fn long_names_and_nul_are_refused() {
        assert!(check_name(&[b'x'; 255]).is_ok());
        assert!(check_name(&[b'x'; 256]).unwrap_err().to_string().contains("256 bytes"));
        assert!(check_name(b"a\0b").unwrap_err().to_string().contains("NUL"));
    }

    /// Cleans a path by rewriting its text, one rule at a time, until no rule applies.
    fn rewritten(path: &str) -> String {
        let is_absolute = path.starts_with('/');
        let mut parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
        while let Some(at) = (1..parts.len()).find(|at| parts[*at] == ".." && parts[at - 1] != "..") {
            parts.drain(at - 1..=at);
        }
        if is_absolute {
            parts.retain(|part| *part != "..");
        }
        if parts.is_empty() {
            return "Root".to_owned();
        }
        if parts[parts.len() - 1] == ".." {
            return "Outside".to_owned();
        }
        parts.retain(|part| *part != "..");
        parts.join("/")
    }

    proptest! {
        #[test]
        fn cleaning_is_the_rewriting_of_text(path in "[./a]{0,12}") {
            prop_assert_eq!(inside(&path), rewritten(&path));
        }
    }
}
