//! Starts of containers: the disk of an image is told which program starts on it.
//!
//! containerd asks for the mounts of a container's snapshot when the container starts. It is then asked which program
//! that is, and the disk's process gets the program's name, for its recording and its plan. All of this happens beside
//! the start, which does not wait for it. If containerd does not tell, the program is taken to be the one in the
//! image's config, by which the plan began that is followed since the image was pulled.
//!
//! # Names
//!
//! Plans are published with these names, and are of use if many starts have the same one. So a name is the program with
//! at most two words after it, up to the first option: `nginx`, `python3 /srv/manage.py #7cbf2a1e`. The module
//! that `-m` names is part of it. The script after `-c` and words that are no paths may have passwords in them, and are
//! given by a digest.

use crate::tree_disks::TreeDisks;
use headstart_block::{Digest, Error, Result};
use headstart_snapshotter::container_service::ContainerId;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

/// The most words of a name that are not those of options.
const WORDS: usize = 3;
/// The longest word, in bytes; a longer one is given by a digest.
const WORD_MAX: usize = 100;
/// The digits of a digest in a name.
const DIGITS: usize = 8;

/// The programs of this host's containers: its containerd knows them.
pub trait ContainerPrograms: Send + Sync {
    /// Returns the arguments of a container's program, the program first; `None` if there is no such container.
    ///
    /// # Errors
    /// If containerd does not tell.
    fn arguments(&self, container: &ContainerId) -> Result<Option<Vec<String>>>;
}

/// Returns the name of a start with these arguments; empty without a program.
#[must_use]
pub fn entrypoint_name(arguments: &[String]) -> String {
    let option = arguments.iter().position(|word| word.starts_with('-')).unwrap_or(arguments.len());
    let Some((program, others)) = arguments[..option].split_first() else { return String::new() };
    let mut words = vec![shown(program)];
    // Only paths are names for sure: passwords are in other words, such as NAME=VALUE and URLs.
    let word_of = |word: &String| if word.starts_with('/') { shown(word) } else { digest_of(word) };
    words.extend(others.iter().take(WORDS - 1).map(word_of));
    match (arguments.get(option).map(String::as_str), arguments.get(option + 1)) {
        (Some("-m"), Some(module)) => words.extend(["-m".to_owned(), shown(module)]),
        (Some("-c"), Some(script)) => words.extend(["-c".to_owned(), digest_of(script)]),
        _ => {}
    }
    words.join(" ")
}

/// A word, if it is short and can be read.
fn shown(word: &str) -> String {
    let is_plain = word.len() <= WORD_MAX && word.chars().all(|c| !c.is_control() && !c.is_whitespace());
    if is_plain { word.to_owned() } else { digest_of(word) }
}

fn digest_of(word: &str) -> String {
    let hex = Digest::of(word.as_bytes()).hex();
    format!("#{}", &hex[..DIGITS])
}

/// A disk on which a container may start.
pub(crate) struct StartedDisk {
    /// The socket of its process.
    pub(crate) socket: PathBuf,
    /// The name of the program in the image's config; empty if it is not known.
    pub(crate) expected: String,
}

/// Finds out, on a thread of its own, which program starts in a container, and tells the process of its disk.
pub(crate) fn tell(
    disks: Arc<dyn TreeDisks>,
    programs: Arc<dyn ContainerPrograms>,
    container: ContainerId,
    disk: StartedDisk,
) {
    let work = move || {
        let name = match programs.arguments(&container) {
            Ok(Some(arguments)) => entrypoint_name(&arguments),
            // The container is being made.
            Ok(None) => return,
            Err(error) => {
                let id = container.id.as_str();
                tracing::debug!(%error, id, "the container is taken to run its image's program");
                disk.expected
            }
        };
        if name.is_empty() {
            return;
        }
        match disks.tell_start(&disk.socket, &name) {
            Ok(is_recorded) => tracing::debug!(id = container.id, name, is_recorded, "a container starts"),
            Err(error) => tracing::debug!(%error, id = container.id, "the start of a container is not told"),
        }
    };
    let spawned = thread::Builder::new().name("container-start".to_owned()).spawn(work);
    if let Err(error) = spawned.map_err(|error| Error::io("cannot start a thread", error)) {
        tracing::debug!(%error, "the start of a container is not told");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_of_one_program_have_one_name() {
        let name = |words: &[&str]| {
            entrypoint_name(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(name(&["nginx", "-g", "daemon off;"]), "nginx");
        assert_eq!(
            name(&["python3", "/srv/manage.py", "runserver", "0:80"]),
            format!("python3 /srv/manage.py {}", digest_of("runserver"))
        );
        for words in [["env", "PASSWORD=secret"], ["migrate", "db://u:secret@h/x"], ["cli", "secret"]] {
            assert!(!name(&words).contains("secret"), "{words:?}");
        }
        assert_eq!(name(&["python3", "-m", "gunicorn", "app"]), "python3 -m gunicorn");
        assert_eq!(name(&["python3", "-m"]), "python3");
        let script = name(&["/bin/sh", "-c", "PASSWORD=secret run"]);
        assert!(script.starts_with("/bin/sh -c #") && !script.contains("secret"), "{script}");
        assert_ne!(script, name(&["/bin/sh", "-c", "other"]));
        assert_eq!(name(&["sh", "a b", "line\n"]).split(' ').count(), 3);
        assert_eq!(name(&["sh", &"x".repeat(4000)]).len(), 12);
        assert_eq!(name(&["-c", "x"]), "");
        assert_eq!(name(&[]), "");
    }
}
