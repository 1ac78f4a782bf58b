//! Options of every command that reaches a store over a network.

use clap::Args;
use headstart_block::rate::ByteRate;
use headstart_block::{Error, Result};
use headstart_store::{Mirror, ProxyUrl, RateLimit, Settings};
use std::path::PathBuf;

/// How stores are reached.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Reaching stores")]
pub(crate) struct StoreArgs {
    /// Trust the certificate authorities in this PEM file, beside the system's (may be repeated)
    #[arg(long, value_name = "FILE")]
    ca_file: Vec<PathBuf>,
    /// Speak to this registry or object store endpoint without TLS, and let a web server without TLS have its
    /// password: HOST or HOST:PORT (may be repeated)
    #[arg(long, value_name = "HOST")]
    plain_http: Vec<String>,
    /// Ask MIRROR first for what references name REGISTRY, such as docker.io=mirror.lan:5000 (may be repeated)
    #[arg(long, value_name = "REGISTRY=MIRROR", value_parser = parse_mirror)]
    mirror: Vec<MirrorArg>,
    /// Send all requests through this proxy [default: what HTTPS_PROXY, HTTP_PROXY and NO_PROXY say]
    #[arg(long, value_name = "URL")]
    proxy: Option<ProxyUrl>,
    /// Take no more than this from stores, all reads together, such as 10MB/s
    #[arg(long, value_name = "RATE")]
    limit_rate: Option<ByteRate>,
    /// Find credentials of registries and web servers in this directory [default: where docker keeps them]
    #[arg(long, value_name = "DIR")]
    docker_config: Option<PathBuf>,
}

/// `REGISTRY=MIRROR`.
#[derive(Clone, Debug)]
struct MirrorArg(Mirror);

fn parse_mirror(text: &str) -> Result<MirrorArg> {
    let parts = text.split_once('=').filter(|(registry, mirror)| !registry.is_empty() && !mirror.is_empty());
    let (registry, mirror) = parts.ok_or_else(|| {
        Error::invalid(format!("`{}` names no mirror", text.escape_debug()))
            .remedy("write it as REGISTRY=MIRROR, such as docker.io=mirror.lan:5000")
    })?;
    Ok(MirrorArg(Mirror { registry: registry.to_owned(), mirror: mirror.to_owned() }))
}

impl StoreArgs {
    /// The settings that they make.
    ///
    /// # Errors
    /// Where a file that they name is not there.
    pub(crate) fn settings(&self) -> Result<Settings> {
        for path in &self.ca_file {
            path.metadata().map_err(|e| Error::io("cannot read", e).about(path.display()))?;
        }
        Ok(Settings {
            ca_files: self.ca_file.clone(),
            plain_http: self.plain_http.clone(),
            mirrors: self.mirror.iter().map(|mirror| mirror.0.clone()).collect(),
            proxy: self.proxy.clone(),
            limit_rate: self.limit_rate.map(|rate| RateLimit::new(rate.0)),
            docker_config: self.docker_config.clone(),
            ..Settings::default()
        })
    }
}
