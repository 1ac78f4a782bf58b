//! An S3 server, `versitygw`, that serves a directory, for tests with images in an object store.

use crate::process::{Process, find, start_on_free_port};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A running S3 server. It is stopped when this value is dropped. It accepts only signed requests, with the
/// bucket in the path (`endpoint/bucket/key`).
#[derive(Debug)]
pub struct S3 {
    process: Process,
    addr: SocketAddr,
    /// The buckets: a directory for each bucket, a file for each object.
    buckets: TempDir,
    /// The other facts that it keeps about them.
    _metadata: TempDir,
}

impl S3 {
    /// The access key of the only user of the server, which may do everything.
    pub const ACCESS_KEY: &str = "headstart";
    /// The secret key that belongs to [`ACCESS_KEY`](Self::ACCESS_KEY).
    pub const SECRET_KEY: &str = "headstart-secret";
    /// The region for which clients must sign requests.
    pub const REGION: &str = "us-east-1";

    /// Returns `true` if an S3 server is installed. If not, prints that a test is skipped.
    pub fn is_installed() -> bool {
        crate::process::installed(&["versitygw"])
    }

    /// Starts a server with one empty bucket on a free loopback port. Panics if it does not start.
    #[track_caller]
    pub fn with_bucket(bucket: &str) -> Self {
        let buckets = TempDir::with_prefix("s3-").expect("a temporary directory");
        // Not as extended attributes of the files, because not every file system has those.
        let metadata = TempDir::with_prefix("s3-metadata-").expect("a temporary directory");
        fs::create_dir(buckets.path().join(bucket)).expect("a bucket");
        let program = find("versitygw").expect("versitygw is installed");
        let start = |port| {
            let mut command = Command::new(&program);
            command
                .env_clear()
                .args(["--port", &format!("127.0.0.1:{port}"), "--keep-alive", "--quiet"])
                .args(["--access", Self::ACCESS_KEY, "--secret", Self::SECRET_KEY, "--region", Self::REGION])
                .arg("posix")
                .arg("--sidecar")
                .args([metadata.path(), buckets.path()]);
            Process::start(&mut command)
        };
        let connects = |port| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
        let (process, port) = start_on_free_port(start, connects);
        Self { process, addr: (Ipv4Addr::LOCALHOST, port).into(), buckets, _metadata: metadata }
    }

    /// The address at which the server listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The URL of the server, as clients take it as their endpoint.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Environment variables, as name and value, by which S3 clients find the server and its keys. `endpoint`
    /// is the URL of this server or of a proxy in front of it.
    pub fn environment(endpoint: &str) -> [(&'static str, String); 5] {
        [
            ("AWS_ACCESS_KEY_ID", Self::ACCESS_KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", Self::SECRET_KEY.to_owned()),
            ("AWS_REGION", Self::REGION.to_owned()),
            ("AWS_ENDPOINT_URL", endpoint.to_owned()),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
        ]
    }

    /// The directory of a bucket. Each file in it is an object.
    pub fn bucket(&self, bucket: &str) -> PathBuf {
        Path::new(self.buckets.path()).join(bucket)
    }

    /// The process of the server, for example to stop or kill it.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}
