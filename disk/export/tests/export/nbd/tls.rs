//! TLS with certificates made here.

use super::test_disk::TestDisk;
use super::{Served, output, run, serve_with};
use headstart_export::nbd::{Address, TlsSettings};
use headstart_testkit::process::installed;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// A CA, a server's and a client's certificate below it, as files with the names that libnbd and QEMU look for.
fn certificates(dir: &Path) {
    let mut params = CertificateParams::new(vec!["headstart test CA".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    fs::write(dir.join("ca-cert.pem"), ca.pem()).unwrap();
    for who in ["server", "client"] {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &ca).unwrap();
        fs::write(dir.join(format!("{who}-cert.pem")), certificate.pem()).unwrap();
        fs::write(dir.join(format!("{who}-key.pem")), key.serialize_pem()).unwrap();
    }
}

fn serve_tls(certs: &TempDir, client_ca: bool) -> Served {
    certificates(certs.path());
    let file = |name: &str| certs.path().join(name);
    serve_with(TestDisk::new(TestDisk::patterned(4 << 20), false), |settings| {
        settings.address = Address::Tcp("127.0.0.1".to_owned(), 0);
        settings.tls = Some(TlsSettings {
            certificate: file("server-cert.pem"),
            key: file("server-key.pem"),
            client_ca: client_ca.then(|| file("ca-cert.pem")),
        });
    })
}

fn with_certificates(served: &Served, certs: &TempDir) -> String {
    format!("{}?tls-certificates={}", served.uri(), certs.path().display())
}

#[test]
fn libnbd_and_qemu_read_over_tls() {
    if !installed(&["nbdinfo", "nbdcopy", "qemu-img"]) {
        return;
    }
    let certs = tempfile::tempdir().unwrap();
    let served = serve_tls(&certs, true);
    let uri = with_certificates(&served, &certs);
    assert!(uri.starts_with("nbds://127.0.0.1:"), "{uri}");
    assert!(run("nbdinfo", &[&uri]).contains("protocol: newstyle-fixed with TLS"));
    let copy = certs.path().join("copy");
    run("nbdcopy", &[&uri, copy.to_str().unwrap()]);
    assert!(fs::read(&copy).unwrap() == served.disk.bytes());
    let port = served.uri().rsplit_once(':').unwrap().1.trim_end_matches("/disk").to_owned();
    let tls = format!("tls-creds-x509,id=tls,endpoint=client,dir={}", certs.path().display());
    let image = format!("driver=nbd,host=127.0.0.1,port={port},export=disk,tls-creds=tls");
    let other = certs.path().join("qemu");
    run(
        "qemu-img",
        &["convert", "--object", &tls, "--image-opts", &image, "-O", "raw", other.to_str().unwrap()],
    );
    assert!(fs::read(&other).unwrap() == served.disk.bytes());
    served.wait_until_empty();
}

#[test]
fn clients_without_tls_or_with_a_foreign_certificate_are_refused() {
    if !installed(&["nbdinfo"]) {
        return;
    }
    let certs = tempfile::tempdir().unwrap();
    let served = serve_tls(&certs, true);
    let plain = served.uri().replace("nbds://", "nbd://");
    assert!(!output("nbdinfo", &[&plain]).status.success(), "served without TLS");
    assert!(!output("nbdinfo", &["--list", &plain]).status.success(), "listed without TLS");
    let foreign = tempfile::tempdir().unwrap();
    certificates(foreign.path());
    // This client trusts the server, but has a certificate of another CA.
    fs::copy(certs.path().join("ca-cert.pem"), foreign.path().join("ca-cert.pem")).unwrap();
    let uri = with_certificates(&served, &foreign);
    assert!(!output("nbdinfo", &[&uri]).status.success(), "served a foreign client");
    assert!(run("nbdinfo", &[&with_certificates(&served, &certs)]).contains("export-size: 4194304"));
    served.wait_until_empty();
}

#[test]
fn a_client_needs_no_certificate_where_none_is_asked_for() {
    if !installed(&["nbdinfo"]) {
        return;
    }
    let certs = tempfile::tempdir().unwrap();
    let served = serve_tls(&certs, false);
    for file in ["client-cert.pem", "client-key.pem"] {
        fs::remove_file(certs.path().join(file)).unwrap();
    }
    run("nbdinfo", &[&with_certificates(&served, &certs)]);
}
