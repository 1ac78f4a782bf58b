//! The standard tools and the modules of a host.

use std::path::{Path, PathBuf};

/// The places of tools for administrators, which are not on every user's `PATH`.
const ADMINISTRATORS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// The program called `name`, on the `PATH` or among the tools for administrators.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(ADMINISTRATORS.iter().map(PathBuf::from));
    directories.map(|directory| directory.join(name)).find(|program| program.is_file())
}

/// `true` if the kernel's modules in `directory` (`/lib/modules/RELEASE`) include one called `name`, compressed or not.
pub(crate) fn has_module(directory: &Path, name: &str) -> bool {
    let list = std::fs::read_to_string(directory.join("modules.dep")).unwrap_or_default();
    let file =
        |line: &str| line.split(':').next().and_then(|path| path.rsplit('/').next()).map(str::to_owned);
    list.lines()
        .filter_map(file)
        .any(|file| file.strip_prefix(name).is_some_and(|rest| rest.starts_with(".ko")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_programs_that_are_there_are_found() {
        assert!(find("sh").unwrap().is_absolute());
        assert!(find("no-such-tool-anywhere").is_none());
    }
}
