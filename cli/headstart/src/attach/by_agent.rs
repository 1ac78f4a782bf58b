//! `headstart attach --agent`: the agent of this host is to have the disk.

use super::Attach;
use crate::agent::DiskReport;
use crate::ask::answer;
use headstart_agentd::client::AgentClient;
use headstart_agentd::disks::DiskSpec;
use headstart_block::{Error, Result};
use headstart_command_line::report::Report;
use headstart_image::named_image::NamedImage;
use headstart_store::{Location, Selector};
use std::path::Path;

/// Options of this command line that are not for the disk; `true` for those with a value.
const OURS: &[(&str, bool)] =
    &[("--agent", true), ("--as", true), ("--json", false), ("--quiet", false), ("-q", false)];

/// A part of the errors of object stores without credentials, or with wrong ones.
const IN_ENVIRONMENT: &str = "credentials in the environment";

impl Attach {
    /// Sends the disk to the agent at `socket`; returns when it can be used.
    pub(super) fn by_agent(&self, socket: &Path) -> Result<Box<dyn Report>> {
        let words: Vec<_> = std::env::args_os().map(std::ffi::OsString::into_string).collect();
        let words: std::result::Result<Vec<_>, _> = words.into_iter().collect();
        let words = words.map_err(|word| {
            Error::invalid("is not text, which an agent needs").about(Path::new(&word).display())
        })?;
        let name = self.disk_name.clone().or_else(|| self.images.first().map(name_of)).unwrap_or_default();
        let directory =
            std::env::current_dir().map_err(|e| Error::io("cannot find the current directory", e))?;
        let spec = DiskSpec { name, arguments: of_the_disk(words), directory: Some(directory), holder: None };
        let agent = AgentClient::new(Some(socket))?;
        let attached = answer(socket, agent.attach(&spec));
        let attached = attached.map_err(|error| self.of_agents_environment(error))?;
        Ok(Box::new(DiskReport(attached)))
    }

    /// Adds to an error that it is the agent's environment that lacks the credentials of an object store: this
    /// command's may have them.
    fn of_agents_environment(&self, error: Error) -> Error {
        let is_bucket = |image: &NamedImage| matches!(image.reference.location, Location::Bucket { .. });
        if !self.images.iter().any(is_bucket) || !error.to_string().contains(IN_ENVIRONMENT) {
            return error;
        }
        error.remedy(
            "the environment meant is that of the agent, not that of this command: the agent's unit reads \
             /etc/headstart/agent.env when it starts",
        )
    }
}

/// The words after `attach`, without those for this process.
fn of_the_disk(words: Vec<String>) -> Vec<String> {
    let mut words = words.into_iter().skip_while(|word| word != "attach").skip(1);
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        let name = word.split('=').next().unwrap_or_default();
        match OURS.iter().find(|(ours, _)| *ours == name) {
            Some((_, true)) if !word.contains('=') => _ = words.next(),
            Some(_) => {}
            None => kept.push(word),
        }
    }
    kept
}

/// A name for an unnamed disk: its export's, or one made of its image's.
fn name_of(image: &NamedImage) -> String {
    if !image.name.is_empty() {
        return image.name.clone();
    }
    let store = image.reference.location.to_string();
    let last = store.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let name = match &image.reference.selector {
        Selector::Tag(tag) => format!("{last}-{tag}"),
        Selector::Digest(_) => last.to_owned(),
    };
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name: String = name.chars().map(|c| if allowed(c) { c } else { '-' }).take(64).collect();
    name.trim_start_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_the_disk_are_passed_to_the_agent() {
        let words = |text: &str| of_the_disk(text.split(' ').map(str::to_owned).collect()).join(" ");
        assert_eq!(
            words("headstart --json attach --agent /a web=oci://r/vm:1 --nbd unix:/x --as vm -q --fuse /f"),
            "web=oci://r/vm:1 --nbd unix:/x --fuse /f"
        );
        assert_eq!(words("headstart attach --agent=/a --as=b oci://r/a=b:1 --json"), "oci://r/a=b:1");
    }

    #[test]
    fn a_disk_is_called_like_its_image() {
        let name = |image: &str| name_of(&image.parse().unwrap());
        assert_eq!(name("web=oci://registry.lan/vm/debian:13"), "web");
        assert_eq!(name("oci://registry.lan/vm/debian:13"), "debian-13");
        assert_eq!(name("http://127.0.0.1:80/store:v1"), "store-v1");
    }
}
