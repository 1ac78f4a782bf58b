//! NBD clients: libnbd's tools, fio, QEMU's tools; over Unix sockets, TCP and TLS.

use crate::attached::Attached;
use crate::disk::{assert_same, text};
use crate::images::{Web, can_check_bytes, check_bytes, layered, tool};
use crate::scene::Scene;
use crate::tools::{find, installed};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// A read-only disk from a web server, at a socket and a port.
fn read_only(scene: &Scene) -> Option<(Web, Attached)> {
    let web = Web::before(scene)?;
    let words = format!("{} --cache ~/cache --nbd unix:~/d.sock --nbd 127.0.0.1:0", web.image());
    let attached = Attached::start(scene, &words);
    Some((web, attached))
}

#[test]
fn libnbd_reads_a_disk_that_comes_when_it_is_read() {
    let scene = layered();
    if !installed(&["nbdinfo", "nbdcopy", "nbdsh", "qemu-img"]) {
        return;
    }
    let Some((web, attached)) = read_only(&scene) else { return };
    let [unix, tcp] = attached.uris().try_into().unwrap();
    assert!(unix.starts_with("nbd+unix:///?socket=") && tcp.starts_with("nbd://127.0.0.1:"), "{unix} {tcp}");
    for uri in [&unix, &tcp] {
        let info: Value = serde_json::from_str(&tool(&scene, "nbdinfo", &["--json", uri])).unwrap();
        let export = &info["exports"][0];
        assert_eq!((&info["protocol"], &info["structured"]), (&"newstyle-fixed".into(), &true.into()));
        assert_eq!((&export["export-size"], &export["is_read_only"]), (&(16 << 20).into(), &true.into()));
        for able in ["can_multi_conn", "can_df", "can_cache"] {
            assert_eq!(export[able], true, "{able}: {export}");
        }
        assert_eq!(export["contexts"][0], "base:allocation");
        assert_eq!(export["description"], web.image());
    }
    let list: Value = serde_json::from_str(&tool(&scene, "nbdinfo", &["--list", "--json", &tcp])).unwrap();
    assert_eq!(list["exports"].as_array().unwrap().len(), 1);
    // Holes are reported, and each reported hole is one.
    let map: Value = serde_json::from_str(&tool(&scene, "nbdinfo", &["--map", "--json", &unix])).unwrap();
    let (disk, mut end, mut zeros) = (scene.bytes("disk.raw"), 0, 0);
    for extent in map.as_array().unwrap() {
        let at = |name: &str| extent[name].as_u64().unwrap() as usize;
        let (offset, len, kind) = (at("offset"), at("length"), at("type"));
        assert_eq!(offset, end);
        end += len;
        if kind & 2 != 0 {
            zeros += len;
            assert!(disk[offset..end].iter().all(|byte| *byte == 0), "{extent}");
        }
    }
    assert!(end == 16 << 20 && zeros > 8 << 20, "{zeros} of {end}");
    let script = "import hashlib\n\
                  assert h.is_read_only()\n\
                  assert h.pread(5, 16*1048576-5) == open('disk.raw','rb').read()[-5:]\n\
                  assert h.cache(1048576, 2097152) is None\n\
                  parts = [h.aio_pread(nbd.Buffer(65536), i*65536) for i in range(256)]\n\
                  while h.aio_in_flight(): h.poll(-1)\n\
                  try:\n    h.pwrite(b'x'*512, 0, nbd.CMD_FLAG_FUA)\n    assert False\n\
                  except nbd.Error: pass\n\
                  try:\n    h.set_strict_mode(0); h.pread(512, 16*1048576)\n    assert False\n\
                  except nbd.Error: pass\n";
    tool(&scene, "nbdsh", &["-u", &unix, "-c", script]);
    check_bytes(&scene, "disk.raw", &tcp);
    attached.detach();
    assert!(!scene.path("d.sock").exists());
}

#[test]
fn qemu_converts_compares_and_measures() {
    let scene = layered();
    if !installed(&["qemu-img", "qemu-io"]) {
        return;
    }
    let Some((_web, attached)) = read_only(&scene) else { return };
    let uri = attached.uri();
    tool(&scene, "qemu-img", &["convert", "-O", "qcow2", "-m", "8", "-W", &uri, "out.qcow2"]);
    tool(&scene, "qemu-img", &["compare", "-f", "raw", "-F", "qcow2", "disk.raw", "out.qcow2"]);
    tool(&scene, "qemu-img", &["compare", "-f", "raw", "-F", "raw", "disk.raw", &uri]);
    tool(
        &scene,
        "qemu-img",
        &["bench", "-f", "raw", "-c", "2000", "-d", "32", "-s", "4096", "-S", "61440", &uri],
    );
    let info: Value =
        serde_json::from_str(&tool(&scene, "qemu-img", &["info", "--output=json", &uri])).unwrap();
    assert_eq!(info["virtual-size"], 16 << 20);
    let out = tool(
        &scene,
        "qemu-io",
        &[
            "-r",
            "-f",
            "raw",
            "-c",
            "read -P 0 3800k 100k",
            "-c",
            "aio_read 0 1M",
            "-c",
            "aio_flush",
            "-c",
            "map",
            &uri,
        ],
    );
    assert!(!out.contains("failed") && out.contains("read 102400/102400"), "{out}");
    // A backing file of QEMU's own, as `-drive snapshot=on` makes it.
    let create = ["create", "-q", "-f", "qcow2", "-F", "raw", "-b", &uri, "top.qcow2"];
    tool(&scene, "qemu-img", &create);
    let out = tool(
        &scene,
        "qemu-io",
        &["-f", "qcow2", "-c", "write -P 7 1M 64k", "-c", "read -P 7 1M 64k", "top.qcow2"],
    );
    assert!(!out.contains("failed"), "{out}");
    check_bytes(&scene, "disk.raw", &uri);
    attached.detach();
}

/// A writable disk over a web server.
fn writable(scene: &Scene, web: &Web) -> Attached {
    Attached::start(scene, &format!("{} --cache ~/cache --writable ~/vm --nbd unix:~/d.sock", web.image()))
}

#[test]
fn fio_finds_all_that_it_wrote() {
    let scene = layered();
    let Some(web) = Web::before(&scene) else { return };
    if !installed(&["fio", "nbdcopy", "qemu-img"]) || !has_nbd_engine() {
        return;
    }
    let attached = writable(&scene, &web);
    let uri = format!("--uri={}", attached.uri());
    let common = ["--ioengine=nbd", &uri, "--verify=crc32c", "--verify_state_save=0", "--verify_fatal=1"];
    let run = |name: &str, options: &[&str]| {
        let name = format!("--name={name}");
        let args = [&common[..], &[name.as_str(), "--randseed=7"], options].concat();
        tool(&scene, "fio", &args);
    };
    run("random", &["--rw=randwrite", "--bs=4k", "--size=4m", "--offset=8m", "--iodepth=32"]);
    run("mixed", &["--rw=randrw", "--bsrange=4k-64k", "--bs_unaligned=0", "--size=4m", "--iodepth=16"]);
    run("sequential", &["--rw=write", "--bs=256k", "--size=2m", "--offset=12m", "--iodepth=4", "--fsync=4"]);
    run("trims", &["--rw=randtrim", "--bs=64k", "--size=1m", "--offset=15m", "--verify=null"]);
    // Two clients read the same bytes, and so does a client after the next attach.
    tool(&scene, "nbdcopy", &[&attached.uri(), "before.raw"]);
    check_bytes(&scene, "before.raw", &attached.uri());
    attached.detach();
    let again = writable(&scene, &web);
    check_bytes(&scene, "before.raw", &again.uri());
    again.detach();
}

fn has_nbd_engine() -> bool {
    let output = Command::new(find("fio").unwrap()).arg("--enghelp").output().unwrap();
    let has = String::from_utf8_lossy(&output.stdout).contains("nbd");
    if !has {
        crate::tools::skipped("this fio has no NBD engine");
    }
    has
}

#[test]
fn writes_of_every_kind_are_seen_by_every_client() {
    let scene = layered();
    let Some(web) = Web::before(&scene) else { return };
    if !installed(&["nbdsh", "qemu-io"]) || !can_check_bytes() {
        return;
    }
    let attached = writable(&scene, &web);
    let uri = attached.uri();
    let mut expected = scene.bytes("disk.raw");
    write_with_nbdsh(&scene, &uri, &mut expected);
    write_with_qemu(&scene, &uri, &mut expected);
    fs::write(scene.path("expected.raw"), expected).unwrap();
    check_bytes(&scene, "expected.raw", &uri);
    let bench = ["bench", "-w", "-f", "raw", "-c", "500", "-d", "16", "-o", "12M", "-s", "4096"];
    tool(&scene, "qemu-img", &[&bench[..], &["--flush-interval", "50", &uri]].concat());
    attached.detach();
    // The store has not changed.
    scene.ok("image verify --deep file://~/store:v1");
}

fn put(expected: &mut [u8], at: usize, bytes: &[u8]) {
    expected[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Writes parts of sectors, over bytes that are still at the store; with FUA, zeroing and flushes.
fn write_with_nbdsh(scene: &Scene, uri: &str, expected: &mut [u8]) {
    let bytes = text(9, 70_000);
    fs::write(scene.path("bytes"), &bytes).unwrap();
    let script = "b = open('bytes','rb').read()\n\
                  assert not h.is_read_only() and h.can_fua() and h.can_trim() and h.can_zero()\n\
                  assert h.can_multi_conn()\n\
                  h.pwrite(b, 2097152 + 77)\n\
                  h.pwrite(b[:512], 16*1048576-512, nbd.CMD_FLAG_FUA)\n\
                  h.zero(300000, 1048576 + 1000)\n\
                  h.zero(65536, 8388608, nbd.CMD_FLAG_NO_HOLE)\n\
                  h.flush()\n\
                  assert h.pread(len(b), 2097152 + 77) == b\n";
    tool(scene, "nbdsh", &["-u", uri, "-c", script]);
    put(expected, (2 << 20) + 77, &bytes);
    put(expected, (16 << 20) - 512, &bytes[..512]);
    put(expected, (1 << 20) + 1000, &[0; 300_000]);
    put(expected, 8 << 20, &[0; 65536]);
}

fn write_with_qemu(scene: &Scene, uri: &str, expected: &mut [u8]) {
    let commands = [
        "write -P 0xab 5M 100k",
        "write -z 6M 64k",
        "write -f -P 0xcd 7M 512",
        "aio_write -P 0xef 10M 1M",
        "aio_flush",
        "flush",
        "read -P 0xef 10M 1M",
    ];
    let commands = commands.iter().flat_map(|command| ["-c", command]);
    let args: Vec<_> = ["-f", "raw"].into_iter().chain(commands).chain([uri]).collect();
    let said = tool(scene, "qemu-io", &args);
    assert!(!said.contains("failed"), "{said}");
    put(expected, 5 << 20, &[0xab; 100 << 10]);
    put(expected, 6 << 20, &[0; 64 << 10]);
    put(expected, 7 << 20, &[0xcd; 512]);
    put(expected, 10 << 20, &[0xef; 1 << 20]);
}

#[test]
fn a_whole_disk_is_copied_onto_it() {
    let scene = layered();
    if !can_check_bytes() {
        return;
    }
    let attached = Attached::start(&scene, "file://~/store:v1 --writable ~/vm --nbd unix:~/d.sock");
    fs::write(scene.path("other.raw"), crate::disk::noise(4, 16 << 20)).unwrap();
    tool(&scene, "nbdcopy", &["--flush", "other.raw", &attached.uri()]);
    check_bytes(&scene, "other.raw", &attached.uri());
    tool(&scene, "qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", "base.raw", &attached.uri()]);
    check_bytes(&scene, "base.raw", &attached.uri());
    attached.detach();
}

/// A CA, a server's and a client's certificate below it, as files with the names that libnbd and QEMU look for.
pub(crate) fn certificates(dir: &Path) {
    fs::create_dir_all(dir).unwrap();
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

#[test]
fn over_tls_clients_with_certificates_alone_are_served() {
    let scene = layered();
    if !installed(&["nbdinfo", "nbdcopy", "qemu-img"]) {
        return;
    }
    certificates(&scene.path("tls"));
    certificates(&scene.path("foreign"));
    fs::copy(scene.path("tls/ca-cert.pem"), scene.path("foreign/ca-cert.pem")).unwrap();
    let options =
        "--tls-cert ~/tls/server-cert.pem --tls-key ~/tls/server-key.pem --tls-client-ca ~/tls/ca-cert.pem";
    let attached = Attached::start(&scene, &format!("d=file://~/store:v1 --nbd 127.0.0.1:0 {options}"));
    let uri = attached.uri();
    assert!(uri.starts_with("nbds://127.0.0.1:") && uri.ends_with("/d"), "{uri}");
    let with = |dir: &str| format!("{uri}?tls-certificates={}", scene.path(dir).display());
    let info = tool(&scene, "nbdinfo", &[&with("tls")]);
    assert!(info.contains("protocol: newstyle-fixed with TLS"), "{info}");
    tool(&scene, "nbdcopy", &[&with("tls"), "out.raw"]);
    assert_same(&scene, "disk.raw", "out.raw");
    let port = uri.trim_end_matches("/d").rsplit_once(':').unwrap().1;
    let object = format!("tls-creds-x509,id=tls,endpoint=client,dir={}", scene.path("tls").display());
    let image = format!("driver=nbd,host=127.0.0.1,port={port},export=d,tls-creds=tls");
    let raw = format!("driver=raw,file.driver=file,file.filename={}", scene.path("disk.raw").display());
    tool(&scene, "qemu-img", &["compare", "--object", &object, "--image-opts", &raw, &image]);
    // A client without a certificate, with a foreign one, or without encryption, gets no answer.
    let fails = |uri: &str| {
        let output = Command::new(find("nbdinfo").unwrap()).arg(uri).output().unwrap();
        assert!(!output.status.success(), "{uri}: {}", String::from_utf8_lossy(&output.stdout));
    };
    fails(&with("foreign"));
    fails(&uri.replace("nbds://", "nbd://"));
    let info = tool(&scene, "nbdinfo", &["--size", &with("tls")]);
    assert_eq!(info.trim(), (16 << 20).to_string());
    attached.detach();

    let attach = "attach file://~/store:v1 --nbd unix:~/d.sock";
    scene.fails(
        &format!("{attach} --tls-cert ~/tls/none.pem --tls-key ~/tls/server-key.pem"),
        &["none.pem", "certificate"],
    );
    scene.fails(
        &format!("{attach} --tls-cert ~/tls/server-cert.pem --tls-key ~/tls/client-key.pem"),
        &["server-cert.pem", "key"],
    );
    assert!(!scene.path("d.sock").exists());
}
