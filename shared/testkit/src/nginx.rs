//! An nginx web server (Debian's) that serves a directory, for tests with images on a web server.

use crate::process::{Process, find, start_on_free_port};
use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A running nginx web server. It is stopped when this value is dropped.
#[derive(Debug)]
pub struct Nginx {
    process: Process,
    addr: SocketAddr,
    tls: bool,
    /// Its configuration, its log and its temporary files.
    own: TempDir,
}

/// The files of a TLS server's certificate and key, in PEM.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The path of the certificate chain: the server's certificate, followed by the intermediate ones.
    pub chain: PathBuf,
    /// The path of the private key.
    pub key: PathBuf,
}

impl Nginx {
    /// Returns `true` if nginx is installed. If not, prints that a test is skipped.
    pub fn is_installed() -> bool {
        crate::process::installed(&["nginx"])
    }

    /// Serves the files of `dir` over HTTP on a free loopback port. Panics if nginx does not start.
    #[track_caller]
    pub fn serve(dir: &Path) -> Self {
        Self::serve_with(dir, None)
    }

    /// Serves the files of `dir` on a free loopback port, over HTTPS if a certificate is given, otherwise
    /// over HTTP. Panics if nginx does not start.
    #[track_caller]
    pub fn serve_with(dir: &Path, certificate: Option<&Certificate>) -> Self {
        let own = TempDir::with_prefix("nginx-").expect("a temporary directory");
        let root = fs::canonicalize(dir).expect("a directory to serve");
        let program = find("nginx").expect("nginx is installed");
        let start = |port| {
            let path = own.path().join("nginx.conf");
            fs::write(&path, configuration(own.path(), &root, port, certificate)).expect("a file");
            Process::start(Command::new(&program).arg("-p").arg(own.path()).arg("-c").arg(&path))
        };
        let connects = |port| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
        let (process, port) = start_on_free_port(start, connects);
        Self { process, addr: (Ipv4Addr::LOCALHOST, port).into(), tls: certificate.is_some(), own }
    }

    /// The address at which the server listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The URL of the served directory, without a slash at the end.
    pub fn url(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}", self.addr)
    }

    /// The process of the server, for example to stop or kill it.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// The text of the access log so far, one line for each request: method, path, status, sent bytes, and
    /// the Range header (`-` if there was none).
    pub fn log(&self) -> String {
        fs::read_to_string(self.own.path().join("access.log")).unwrap_or_default()
    }
}

/// The configuration: one process in the foreground, so that ending it ends all of it, and no path that only an
/// administrator may use.
fn configuration(own: &Path, root: &Path, port: u16, certificate: Option<&Certificate>) -> String {
    let own = own.display();
    let mut server = format!("listen 127.0.0.1:{port}");
    if let Some(Certificate { chain, key }) = certificate {
        let _ = write!(
            server,
            " ssl; ssl_certificate \"{}\"; ssl_certificate_key \"{}\"",
            chain.display(),
            key.display()
        );
    }
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path \"{own}/{kind}\";"))
        .join(" ");
    format!(
        "daemon off; master_process off; pid \"{own}/pid\"; error_log stderr;\n\
         events {{ worker_connections 4096; }}\n\
         http {{\n\
             {temporary}\n\
             log_format short '$request_method $request_uri $status $body_bytes_sent $http_range';\n\
             access_log \"{own}/access.log\" short;\n\
             default_type application/octet-stream;\n\
             sendfile on; tcp_nodelay on; keepalive_requests 1000000;\n\
             server {{ {server}; root \"{}\"; }}\n\
         }}\n",
        root.display()
    )
}
