//! Options of every command that reaches a store over a network.

use crate::runtime::{FEW, with_runtime};
use crate::terminal;
use clap::Args;
use headstart_block::rate::ByteRate;
use headstart_block::{Error, Result};
use headstart_image::store_access::StoreAccess;
use headstart_store::{Mirror, ProxyUrl, RateLimit, StoreSettings};
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

/// The options for reaching stores over a network.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Reaching stores")]
pub struct StoreArgs {
    /// Trust the certificate authorities in this PEM file, beside the system's (may be repeated)
    #[arg(long, value_name = "FILE")]
    ca_file: Vec<PathBuf>,
    /// Speak to this registry or object store endpoint without TLS, and let a web server without TLS have its
    /// password: HOST (its default port) or HOST:PORT (may be repeated)
    #[arg(long, value_name = "HOST")]
    plain_http: Vec<String>,
    /// Ask MIRROR first for images whose references name REGISTRY, such as docker.io=mirror.lan:5000 (may be repeated)
    #[arg(long, value_name = "REGISTRY=MIRROR", value_parser = parse_mirror)]
    mirror: Vec<MirrorArg>,
    /// Send all requests through this proxy [default: the one of HTTPS_PROXY, HTTP_PROXY and NO_PROXY]
    #[arg(long, value_name = "URL")]
    proxy: Option<ProxyUrl>,
    /// Send all requests through the proxy whose URL is in this file: other users can see the words of a command line,
    /// and a password in them
    #[arg(long, value_name = "FILE", conflicts_with = "proxy")]
    proxy_file: Option<PathBuf>,
    /// Read at most this much from stores, all reads together, such as 10MB/s
    #[arg(long, value_name = "RATE")]
    limit_rate: Option<ByteRate>,
    /// Find credentials of registries and web servers in this directory [default: the place where docker keeps them]
    #[arg(long, value_name = "DIR")]
    docker_config: Option<PathBuf>,
    /// Find credentials of single repositories in this file first: a snapshotter keeps those of Kubernetes there
    #[arg(long, value_name = "FILE")]
    pull_credentials: Option<PathBuf>,
    /// Follow redirects of stores to this server although it is at a loopback, link-local or private address and the
    /// store is not: HOST or HOST:PORT, such as minio.lan:9000 (may be repeated)
    #[arg(long, value_name = "HOST", value_parser = parse_host)]
    allow_redirect: Vec<String>,
    /// Let this server, to which a registry of another domain sends for tokens, have the registry's password: HOST or
    /// HOST:PORT (may be repeated)
    #[arg(long, value_name = "HOST", value_parser = parse_host)]
    allow_token_server: Vec<String>,
}

fn parse_host(text: &str) -> Result<String> {
    if !headstart_store::is_host_with_port(text) {
        return Err(Error::invalid(format!("`{}` is not a host", text.escape_debug()))
            .remedy("write HOST or HOST:PORT, such as minio.lan:9000"));
    }
    Ok(text.to_owned())
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

/// The largest accepted file with the URL of a proxy, in bytes.
const PROXY_MAX: u64 = 4096;

impl StoreArgs {
    /// The proxy from the options or from a file.
    fn proxy(&self) -> Result<Option<ProxyUrl>> {
        let Some(path) = &self.proxy_file else { return Ok(self.proxy.clone()) };
        let about = |e: Error| e.about(path.display());
        let mut url = String::new();
        let file = File::open(path).map_err(|e| about(Error::io("cannot read the proxy's URL", e)))?;
        let read = file.take(PROXY_MAX).read_to_string(&mut url);
        read.map_err(|e| about(Error::io("cannot read the proxy's URL", e)))?;
        let url = url.trim();
        if url.is_empty() || url.contains(char::is_whitespace) {
            let error = Error::invalid("holds no URL of a proxy");
            return Err(about(error.remedy("write one line, such as http://user:password@proxy.lan:3128")));
        }
        Ok(Some(url.into()))
    }

    /// Returns the options as words of a command line, for a process that another one starts. The limit of the rate is
    /// not among them: it holds for all processes together.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        let mut add = |option: &str, value: String| words.extend([option.to_owned(), value]);
        self.ca_file.iter().for_each(|file| add("--ca-file", file.display().to_string()));
        self.plain_http.iter().for_each(|host| add("--plain-http", host.clone()));
        for MirrorArg(Mirror { registry, mirror }) in &self.mirror {
            add("--mirror", format!("{registry}={mirror}"));
        }
        if let Some(proxy) = &self.proxy {
            add("--proxy", proxy.reveal().to_owned());
        }
        let paths = [
            ("--proxy-file", &self.proxy_file),
            ("--docker-config", &self.docker_config),
            ("--pull-credentials", &self.pull_credentials),
        ];
        for (option, path) in paths {
            path.iter().for_each(|path| add(option, path.display().to_string()));
        }
        self.allow_redirect.iter().for_each(|host| add("--allow-redirect", host.clone()));
        self.allow_token_server.iter().for_each(|host| add("--allow-token-server", host.clone()));
        words
    }

    /// Runs `work` with access to stores by these options, for a command that ends by itself: requests to stores are
    /// cancelled when the user asks the command to stop.
    ///
    /// # Errors
    /// As [`StoreArgs::settings`]; an error if threads cannot be started; the errors of `work`.
    pub fn with_stores<T>(&self, work: impl FnOnce(StoreAccess<'_>) -> Result<T>) -> Result<T> {
        self.with_stores_on(FEW, work)
    }

    /// Runs `work` as [`StoreArgs::with_stores`] does, with `threads` threads for the requests; `None`: one for each
    /// processor.
    ///
    /// # Errors
    /// As [`StoreArgs::with_stores`].
    pub fn with_stores_on<T>(
        &self,
        threads: Option<usize>,
        work: impl FnOnce(StoreAccess<'_>) -> Result<T>,
    ) -> Result<T> {
        let settings = self.settings()?;
        with_runtime(threads, |runtime| work(StoreAccess { settings: &settings, runtime: runtime.handle() }))
    }

    /// Returns the settings of these options for a command that ends by itself: requests are cancelled when
    /// the user asks the command to stop.
    ///
    /// # Errors
    /// An error if a file of certificates does not exist, or if the file with the proxy's URL cannot be read or holds
    /// no URL. The certificates are read when a store is opened.
    pub fn settings(&self) -> Result<StoreSettings> {
        Ok(StoreSettings { stop: terminal::stop(), ..self.settings_to_serve()? })
    }

    /// Returns the settings of these options for a command that serves: requests continue until its servers
    /// end.
    ///
    /// # Errors
    /// An error if a file of certificates does not exist, or if the file with the proxy's URL cannot be read or holds
    /// no URL. The certificates are read when a store is opened.
    pub fn settings_to_serve(&self) -> Result<StoreSettings> {
        for path in &self.ca_file {
            path.metadata().map_err(|e| Error::io("cannot read", e).about(path.display()))?;
        }
        Ok(StoreSettings {
            ca_files: self.ca_file.clone(),
            plain_http: self.plain_http.clone(),
            mirrors: self.mirror.iter().map(|mirror| mirror.0.clone()).collect(),
            proxy: self.proxy()?,
            limit_rate: self.limit_rate.map(|rate| RateLimit::new(rate.0)),
            docker_config: self.docker_config.clone(),
            pull_credentials: self.pull_credentials.clone(),
            allow_redirect: self.allow_redirect.clone(),
            allow_token_server: self.allow_token_server.clone(),
            warn_of_silence: !terminal::is_quiet(),
            ..StoreSettings::default()
        })
    }
}
