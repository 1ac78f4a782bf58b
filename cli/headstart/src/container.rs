//! `headstart container pull`: an image for containers of this host's containerd.

use clap::{Args, Subcommand};
use headstart_block::guarded::shell_word;
use headstart_block::small_file::read_small;
use headstart_block::{Error, ErrorKind, Result};
use headstart_command_line::printable;
use headstart_command_line::report::{Outcome, Report};
use headstart_command_line::terminal::before_stop;
use headstart_snapshotter::image_service::{CONTAINERD_SOCKET, ImageService, NAMESPACE, RegistryUser};
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Instant;
use tokio::runtime::Builder;

/// Bytes of a password at most.
const PASSWORD_MOST: u64 = 64 << 10;

const PULL_EXAMPLES: &str = "\
Examples:
  headstart container pull registry.lan/app:1
  headstart container pull registry.lan/app:1 --containerd /run/k3s/containerd/containerd.sock
  headstart container pull registry.lan/app:1 --user web --password-file web.password \\
      --containerd /run/headstart/snapshotter.sock

The next command, for a container of it:
  ctr -n k8s.io run --rm --snapshotter headstart registry.lan/app:1 app1

containerd pulls the image as it does for Kubernetes, with the snapshotter, the registries and the
credentials of its configuration, into the namespace k8s.io. With `headstart snapshotter` a
converted image is neither fetched nor unpacked. `crictl pull` and `nerdctl -n k8s.io pull` do the
same, and so does `ctr images pull` of containerd 2; that of containerd 1 fetches all layers.";

pub(crate) const EXAMPLES: &str = "Examples:\n  headstart container pull registry.lan/app:1";

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Have containerd pull an image: converted ones without their layers
    #[command(after_help = PULL_EXAMPLES)]
    Pull(Pull),
}

impl Command {
    pub(crate) fn run(&self) -> Result<Box<dyn Report>> {
        match self {
            Self::Pull(pull) => pull.run(),
        }
    }
}

/// Pulls an image.
#[derive(Args)]
pub(crate) struct Pull {
    /// The image as Docker names it, with its host and without oci://: registry.lan/app:1
    image: String,
    /// containerd's socket
    #[arg(long, value_name = "SOCK", default_value = CONTAINERD_SOCKET)]
    containerd: PathBuf,
    /// Give the registry the password of this user, in place of what containerd's configuration has
    #[arg(long, value_name = "NAME", requires = "password_file")]
    user: Option<String>,
    /// The file with the user's password: other users can see the words of a command line
    #[arg(long, value_name = "FILE", requires = "user")]
    password_file: Option<PathBuf>,
}

impl Pull {
    fn run(&self) -> Result<Box<dyn Report>> {
        let started = Instant::now();
        self.check_name()?;
        let user = self.registry_user()?;
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::io("cannot start threads", error))?;
        let pulled = runtime.block_on(before_stop(async {
            ImageService::connect(&self.containerd).await?.pull(&self.image, user).await
        }));
        let stopped =
            || Error::new(ErrorKind::Cancelled, "the pull was stopped").about(self.image.escape_debug());
        let id = pulled.ok_or_else(stopped)??;
        Ok(Box::new(PulledImage { image: self.image.clone(), id, seconds: started.elapsed().as_secs_f64() }))
    }
}

impl Pull {
    /// Refuses a name as other commands have it, and gives the command with the one that containerd knows.
    fn check_name(&self) -> Result<()> {
        let shown = self.image.escape_debug();
        if ["oci-archive:", "docker-archive:"].iter().any(|archive| self.image.starts_with(archive)) {
            let command =
                format!("headstart image convert {} oci://registry.lan/app:1", shell_word(&self.image));
            return Err(Error::invalid("containerd pulls from registries only").about(shown).remedy(format!(
                "bring the image into one, as a disk (`{command}`) or as it is (`skopeo copy`), and name it as Docker \
                 does: registry.lan/app:1"
            )));
        }
        let Some((kind, name)) = self.image.split_once("://") else { return Ok(()) };
        if !matches!(kind, "oci" | "docker" | "https" | "http") {
            return Err(Error::invalid("containerd pulls from registries only").about(shown).remedy(
                "bring the image into one (`headstart image push`), and name it as Docker does: registry.lan/app:1",
            ));
        }
        let mut words = vec![name.to_owned()];
        if self.containerd != Path::new(CONTAINERD_SOCKET) {
            words.extend(["--containerd".to_owned(), self.containerd.display().to_string()]);
        }
        words.extend(self.user.iter().flat_map(|user| ["--user".to_owned(), user.clone()]));
        let file = self.password_file.as_ref().map(|file| file.display().to_string());
        words.extend(file.into_iter().flat_map(|file| ["--password-file".to_owned(), file]));
        let words: Vec<_> = words.iter().map(|word| shell_word(word)).collect();
        Err(Error::invalid(format!("containerd wants the plain name of the image, without {kind}://"))
            .about(shown)
            .remedy(format!("run `headstart container pull {}`", words.join(" "))))
    }

    fn registry_user(&self) -> Result<Option<RegistryUser>> {
        let Some((name, file)) = self.user.as_ref().zip(self.password_file.as_ref()) else { return Ok(None) };
        let bytes = read_small(file, PASSWORD_MOST)?;
        let text =
            String::from_utf8(bytes).map_err(|_| Error::invalid("is not text").about(file.display()))?;
        let password = text.strip_suffix('\n').unwrap_or(&text).to_owned();
        Ok(Some(RegistryUser { name: name.clone(), password }))
    }
}

/// The output of `headstart container pull`.
#[derive(Serialize)]
struct PulledImage {
    /// The image, as it was named.
    image: String,
    /// containerd's id of it: the digest of its config.
    id: String,
    /// The time that the pull took.
    seconds: f64,
}

impl fmt::Display for PulledImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} was pulled in {:.1} s, into containerd's namespace {NAMESPACE}: {}",
            printable::line(&self.image),
            self.seconds,
            printable::line(&self.id)
        )
    }
}

impl Outcome for PulledImage {}
