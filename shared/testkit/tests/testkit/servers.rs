//! The servers that the kit starts serve, and are gone afterwards.

use headstart_testkit::nginx::{Certificate, Nginx};
use headstart_testkit::process::{Process, installed};
use headstart_testkit::s3::S3;
use headstart_testkit::wait::wait_until;
use std::fs;
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const TIME_LIMIT: Duration = Duration::from_secs(60);

fn curl(words: &[&str]) -> String {
    let mut curl = Process::start(Command::new("curl").arg("-sS").args(words));
    let status = curl.end(TIME_LIMIT);
    assert!(status.success(), "{words:?}: {status}\n{curl}");
    curl.output()
}

#[test]
fn nginx_serves_a_directory() {
    if !Nginx::is_installed() || !installed(&["curl"]) {
        return;
    }
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("file"), "0123456789").unwrap();
    let nginx = Nginx::serve(dir.path());
    assert_eq!(curl(&["-r", "3-5", &format!("{}/file", nginx.url())]), "345");
    // The log line is written once everything was sent.
    wait_until("the request is logged", TIME_LIMIT, || !nginx.log().is_empty());
    assert_eq!(nginx.log(), "GET /file 206 3 bytes=3-5\n");
    let addr = nginx.addr();
    drop(nginx);
    assert!(TcpStream::connect(addr).is_err());
}

#[test]
fn nginx_speaks_tls() {
    if !Nginx::is_installed() || !installed(&["curl"]) {
        return;
    }
    let dir = TempDir::new().unwrap();
    let files = Certificate { chain: dir.path().join("chain.pem"), key: dir.path().join("key.pem") };
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    fs::write(&files.chain, made.cert.pem()).unwrap();
    fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
    let nginx = Nginx::serve_with(dir.path(), Some(&files));
    let url = format!("{}/chain.pem", nginx.url());
    let said = curl(&["--cacert", files.chain.to_str().unwrap(), &url]);
    assert_eq!(said.trim(), made.cert.pem().trim().replace('\r', ""));
}

#[test]
fn s3_takes_and_gives_objects() {
    if !S3::is_installed() || !installed(&["curl"]) {
        return;
    }
    let s3 = S3::with_bucket("bucket");
    let key = format!("{}:{}", S3::ACCESS_KEY, S3::SECRET_KEY);
    let signed = ["--aws-sigv4", "aws:amz:us-east-1:s3", "-u", &key, "-f"];
    let url = format!("{}/bucket/some/object", s3.endpoint());
    let empty = "x-amz-content-sha256: UNSIGNED-PAYLOAD";
    curl(&[&signed[..], &["-H", empty, "-X", "PUT", "--data-binary", "0123456789", &url]].concat());
    assert_eq!(curl(&[&signed[..], &["-H", empty, "-r", "3-5", &url]].concat()), "345");
    assert_eq!(fs::read(s3.bucket("bucket").join("some/object")).unwrap(), b"0123456789");
    // No other client may do that.
    assert!(curl(&[&url]).contains("AccessDenied"));
    let addr = s3.addr();
    drop(s3);
    assert!(TcpStream::connect(addr).is_err());
}

#[test]
fn processes_are_watched_and_ended() {
    let mut process =
        Process::start(Command::new("sh").args(["-c", "echo ready; echo no >&2; exec sleep 60"]));
    assert_eq!(process.line("that it is ready", TIME_LIMIT, |line| line.starts_with("re")), "ready");
    assert!(process.is_running());
    assert_eq!(process.stop(TIME_LIMIT).code(), None);
    assert!(!process.is_running());
    let mut process = Process::start(Command::new("sh").args(["-c", "echo a; exit 3"]));
    let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        process.line("b", TIME_LIMIT, |line| line == "b");
    }));
    assert!(failed.is_err());
    assert_eq!(process.end(TIME_LIMIT).code(), Some(3));
    assert_eq!(process.output(), "a");
}

#[test]
fn lines_of_both_outputs_are_kept_in_order() {
    for _ in 0..100 {
        let script = "echo first >&2; echo then; read -r _ <go; echo last >&2; echo >done; exec sleep 60";
        let dir = tempfile::tempdir().unwrap();
        let is_made = Command::new("mkfifo").args(["go", "done"]).current_dir(&dir).status();
        assert!(is_made.unwrap().success());
        let mut process = Process::start(Command::new("sh").args(["-c", script]).current_dir(&dir));
        process.line("that it goes on", TIME_LIMIT, |line| line == "then");
        assert_eq!(process.output(), "first\nthen");
        fs::write(dir.path().join("go"), "\n").unwrap();
        fs::read(dir.path().join("done")).unwrap();
        assert_eq!(process.output(), "first\nthen\nlast");
    }
    let mut process = Process::start(Command::new("sh").args(["-c", "exec >&-; printf 'a\nb' >&2"]));
    assert_eq!(process.end(TIME_LIMIT).code(), Some(0));
    assert_eq!(process.output(), "a\nb");
}
