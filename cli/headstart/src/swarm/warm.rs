//! `headstart swarm warm`: an image is fetched to hosts before it is needed.

use crate::agent::AgentSocket;
use clap::Args;
use headstart_agentd::pin_manager::WarmSpec;
use headstart_agentd::warm_orders::{of_items, of_whole, without_trees};
use headstart_block::words::count;
use headstart_block::{ByteSize, Error, ErrorKind, PlanItem, Result};
use headstart_command_line::report::Outcome;
use headstart_command_line::store_args::StoreArgs;
use headstart_image::open_image::OpenImage;
use headstart_image::reference::{Location, Reference};
use headstart_image::store_access::StoreAccess;
use headstart_train::plan_files::items_of_file;
use headstart_train::published::known_items;
use serde::Serialize;
use serde_json::Value;
use std::fmt;
use std::path::PathBuf;

pub(super) const EXAMPLES: &str = "\
Examples:
  headstart swarm warm oci://registry.lan/vm/debian:12
  headstart swarm warm oci://registry.lan/vm/debian:12 --whole --roots
  headstart swarm warm oci://registry.lan/vm/debian:12 --plans plans --on node2 --on node3

The command ends when the bytes are there. The hosts ask each other first, so that the store is asked once for all of \
them; hosts that may not use the store (`headstart agent --allow-store`) get everything from the others, and report \
bytes that these lack. Other hosts obey only an operator: a host whose certificate has that role. Warm content can be \
evicted when the cache is full, like any other.";

#[derive(Args)]
pub(crate) struct Warm {
    /// The image
    image: Reference,
    /// All of it, not only the parts that boots read
    #[arg(long, conflicts_with = "plans")]
    whole: bool,
    /// The plans, as `headstart train` wrote them [default: the plan that is published with the image, or its boot
    /// layer]
    #[arg(long, value_name = "PLANS")]
    plans: Option<PathBuf>,
    /// A host that is to have it, by its name (may be repeated) [default: this one]
    #[arg(long = "on", value_name = "HOST")]
    hosts: Vec<String>,
    /// All roots are to have it
    #[arg(long)]
    roots: bool,
    #[command(flatten)]
    agent: AgentSocket,
    #[command(flatten)]
    stores: StoreArgs,
}

impl Warm {
    pub(super) fn run(&self) -> Result<WarmReport> {
        // A missing agent is reported before anything is looked up.
        self.agent.ask(async |agent| agent.swarm().await)?;
        let (blobs, left_out) = self.stores.with_stores(|stores| {
            let image = stores.open(&self.image)?;
            let all = image.manifest.disk_layers().count();
            let known = image.manifest.disk_layers().filter(|layer| layer.tree.is_some()).count();
            let orders = if self.whole {
                of_whole(&self.image, &image.manifest)
            } else {
                of_items(&image, &self.items(&image, stores)?)
            };
            Ok((orders, all - known))
        })?;
        if blobs.is_empty() {
            return Err(without_trees(&self.image));
        }
        let spec = WarmSpec { blobs, hosts: self.hosts.clone(), roots: self.roots };
        let hosts = HostReports(self.agent.ask(async |agent| agent.warm(&spec).await)?);
        Ok(WarmReport { image: self.image.to_string(), layers_left_out: left_out as u64, hosts })
    }

    /// The blocks that boots read, in their order.
    fn items(&self, image: &OpenImage, stores: StoreAccess<'_>) -> Result<Vec<PlanItem>> {
        let items = match &self.plans {
            Some(path) => items_of_file(path, image)?,
            None => known_items(image, stores)?,
        };
        if items.is_empty() {
            return Err(Error::new(ErrorKind::NotFound, "the blocks that its boots read are not known")
                .about(&self.image)
                .remedy(
                    "publish a plan with `headstart train --publish`, name one by --plans, or say --whole",
                ));
        }
        Ok(items)
    }
}

/// The result of warming.
#[derive(Serialize)]
pub(crate) struct WarmReport {
    image: String,
    /// Layers without a hash tree, which hosts do not exchange.
    layers_left_out: u64,
    /// The results on each host.
    hosts: HostReports,
}

impl Outcome for WarmReport {
    fn is_right(&self) -> bool {
        self.hosts.are_right()
    }
}

impl fmt::Display for WarmReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.image)?;
        if self.layers_left_out > 0 {
            write!(f, ", without {} that has no hash tree", count(self.layers_left_out, "layer"))?;
        }
        write!(f, "{}", self.hosts)
    }
}

/// The results on each host, from the agent.
#[derive(Serialize)]
pub(crate) struct HostReports(pub(crate) Value);

impl HostReports {
    fn list(&self) -> &[Value] {
        self.0.as_array().map(Vec::as_slice).unwrap_or_default()
    }

    /// `true` if all of it is on all of them.
    pub(crate) fn are_right(&self) -> bool {
        self.list().iter().all(|host| host["error"].is_null() && host["lacking_bytes"].as_u64() == Some(0))
    }
}

impl fmt::Display for HostReports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for host in self.list() {
            let number = |name: &str| host[name].as_u64().unwrap_or_default();
            write!(f, "\n{}: ", host["host"].as_str().unwrap_or_default())?;
            let (error, lacking) = (host["error"].as_str(), number("lacking_bytes"));
            match (error, lacking) {
                (Some(error), 0) => write!(f, "{error}")?,
                (None, 0) => write!(f, "{} are there", ByteSize(number("bytes")))?,
                (error, lacking) => {
                    write!(f, "of {} {} could not be had", ByteSize(number("bytes")), ByteSize(lacking))?;
                    error.map_or(Ok(()), |error| write!(f, ": {error}"))?;
                }
            }
        }
        Ok(())
    }
}

/// The option to warm an image on the roots when it is pushed or converted.
#[derive(Args)]
pub(crate) struct PushWarming {
    /// Have this host's agent fetch it to the swarm's roots: the parts that boots read, if they are known, otherwise
    /// all of it. With $HEADSTART_WARM_ON_PUSH set to 1, every push and every conversion does that
    #[arg(long)]
    warm: bool,
    #[command(flatten)]
    agent: AgentSocket,
}

/// The variable that makes every push do that.
const ON_PUSH: &str = "HEADSTART_WARM_ON_PUSH";

/// The warming after a push.
pub(crate) struct OnPush<'a> {
    agent: &'a AgentSocket,
    /// `true` if it was requested this time.
    said: bool,
}

/// The result of that.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum AfterPush {
    /// The results on each root.
    Warm(HostReports),
    /// The reason why it was not done.
    Not {
        /// The error in words.
        error: String,
    },
}

impl PushWarming {
    /// Checks that other hosts can fetch an image from this place, if the option is given.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if they cannot.
    pub(crate) fn check(&self, target: &Location) -> Result<()> {
        if !self.warm || target.is_remote() {
            return Ok(());
        }
        let cause = "other hosts cannot get an image out of a directory, so that --warm can bring it to none";
        Err(Error::invalid(cause)
            .about(target)
            .remedy("name a registry or an object store, or leave out --warm"))
    }

    /// The warming after this push, if it is wanted and possible.
    ///
    /// # Errors
    /// If it was requested and there is no agent, or it is in no swarm.
    pub(crate) fn of_push(&self) -> Result<Option<OnPush<'_>>> {
        let always = std::env::var_os(ON_PUSH).is_some_and(|value| !value.is_empty() && value != "0");
        if !self.warm && !always {
            return Ok(None);
        }
        if self.warm {
            // A missing agent is reported before anything is copied.
            self.agent.ask(async |agent| agent.swarm().await)?;
        }
        Ok(Some(OnPush { agent: &self.agent, said: self.warm }))
    }
}

impl OnPush<'_> {
    /// Has the roots fetch a pushed image. A failure does not undo the push.
    pub(crate) fn warm(&self, image: &Reference, stores: &StoreArgs) -> AfterPush {
        let orders = stores.with_stores(|stores| {
            let open = stores.open(image)?;
            let items = known_items(&open, stores)?;
            Ok(if items.is_empty() { of_whole(image, &open.manifest) } else { of_items(&open, &items) })
        });
        let warmed = orders.and_then(|blobs| {
            if blobs.is_empty() {
                return Err(without_trees(image));
            }
            let spec = WarmSpec { blobs, hosts: Vec::new(), roots: true };
            self.agent.ask(async |agent| agent.warm(&spec).await)
        });
        match warmed {
            Ok(hosts) => AfterPush::Warm(HostReports(hosts)),
            Err(error) => AfterPush::Not { error: error.to_string() },
        }
    }

    /// `true` if warming succeeded or was not requested this time.
    pub(crate) fn is_right(&self, after: &AfterPush) -> bool {
        let is_warm = match after {
            AfterPush::Warm(hosts) => hosts.are_right(),
            AfterPush::Not { .. } => false,
        };
        is_warm || !self.said
    }
}

impl fmt::Display for AfterPush {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Warm(hosts) => write!(f, "{hosts}"),
            Self::Not { error } => write!(f, "\nnot warm on the roots: {error}"),
        }
    }
}
