//! `headstart swarm pin` and `unpin`: the hosts of a swarm keep an image together, in the place of a repository.

use super::warm::HostReports;
use crate::agent::AgentSocket;
use clap::Args;
use headstart_block::words::count;
use headstart_block::{Error, Result};
use headstart_command_line::number::at_least;
use headstart_command_line::report::Outcome;
use headstart_command_line::runtime::{FEW, with_runtime};
use headstart_command_line::store_args::StoreArgs;
use headstart_image::disk_form::disk_manifest;
use headstart_image::reference::Reference;
use headstart_peer_net::pin::Pin;
use serde::Serialize;
use serde_json::Value;
use std::fmt;

pub(super) const EXAMPLES: &str = "\
Examples:
  headstart swarm pin oci://registry.lan/vm/debian:12
  headstart swarm pin oci://registry.lan/vm/debian:12 --copies 1 --on node1 --on node2 --json

The command ends when each host has its part: stripe by stripe in turn, each byte on as many hosts as there are \
copies. Pinned content is not evicted. While the store is away, disks of the image attach anyway, by its digest and \
by the tag that it was pinned by; so the hosts that keep it may read it. If a host is away for ten minutes, others \
take its part. Pin the image again when hosts have joined or left for good. Other hosts obey only an operator: a host \
whose certificate has that role.";

#[derive(Args)]
pub(crate) struct PinImage {
    /// The image
    image: Reference,
    /// The number of hosts that keep each byte
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = at_least::<u32>(1))]
    copies: u32,
    /// A host that is to keep a part, by its name (may be repeated) [default: this one and all that it is connected to]
    #[arg(long = "on", value_name = "HOST")]
    hosts: Vec<String>,
    #[command(flatten)]
    agent: AgentSocket,
    #[command(flatten)]
    stores: StoreArgs,
}

impl PinImage {
    pub(super) fn run(&self) -> Result<PinReport> {
        // A missing agent is reported before anything is looked up.
        self.agent.ask(async |agent| agent.swarm().await)?;
        if !self.image.location.is_remote() {
            return Err(Error::unsupported("is in a directory of this host, where others do not find it")
                .about(&self.image)
                .remedy("push it to a store with `headstart image push`, and pin it there"));
        }
        let store = headstart_store::open(&self.image.location, &self.stores.settings()?)?;
        let named = async {
            store.check().await?;
            disk_manifest(&*store, &self.image.selector).await
        };
        let (digest, manifest) = with_runtime(FEW, |runtime| runtime.block_on(named))?;
        let manifest = String::from_utf8(manifest.to_vec())
            .map_err(|e| Error::corrupt("has a manifest that is not text").caused_by(e).about(&self.image))?;
        let (image, digest) = (self.image.to_string(), digest.to_string());
        let pin = Pin {
            image: image.clone(),
            digest: digest.clone(),
            manifest,
            store: self.image.location.to_string(),
            copies: self.copies,
            hosts: self.hosts.clone(),
            since: 0,
        };
        let hosts = HostReports(self.agent.ask(async |agent| agent.pin(&pin).await)?);
        Ok(PinReport { image, digest, copies: self.copies, hosts })
    }
}

/// The result of pinning.
#[derive(Serialize)]
pub(super) struct PinReport {
    image: String,
    /// The digest of its manifest.
    digest: String,
    copies: u32,
    /// The results on each host.
    hosts: HostReports,
}

impl Outcome for PinReport {
    fn is_right(&self) -> bool {
        self.hosts.are_right()
    }
}

impl fmt::Display for PinReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.copies == 1 { "copy" } else { "copies" };
        write!(f, "{}, {}: {} {plural}", self.image, self.digest, self.copies)?;
        write!(f, "{}", self.hosts)
    }
}

/// Ends the pins of that name.
pub(super) fn unpin(image: &str, agent: &AgentSocket) -> Result<Unpinned> {
    let name = image.parse::<Reference>().map_or_else(|_| image.to_owned(), |image| image.to_string());
    let digests = agent.ask(async |agent| agent.unpin(&name).await)?;
    Ok(Unpinned { image: name, digests })
}

/// The images that are not pinned any more.
#[derive(Serialize)]
pub(super) struct Unpinned {
    image: String,
    digests: Value,
}

impl Outcome for Unpinned {}

impl fmt::Display for Unpinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digests = self.digests.as_array().map(Vec::as_slice).unwrap_or_default();
        write!(f, "{}: {} let go", self.image, count(digests.len() as u64, "image"))?;
        digests.iter().try_for_each(|digest| write!(f, "\n{}", digest.as_str().unwrap_or_default()))
    }
}
