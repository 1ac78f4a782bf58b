//! The users that can open each vSSD: a socket for each, owners and modes, names of certificates, ports that other
//! hosts reach.

use crate::daemon::{Daemon, qemu_io, uri};
use crate::scene::Scene;
use crate::tools::{installed, is_root, skipped};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair};
use serde_json::json;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Output};

/// Users that no other program has files of: the owner, a member of the group, a stranger.
const OWNER: u32 = 51_001;
const GROUP: u32 = 51_002;
const STRANGER: u32 = 51_003;

fn nbdinfo(args: &[&str]) -> Output {
    Command::new("nbdinfo").args(args).output().unwrap()
}

/// `true` if a client finds a disk there.
fn opens(uri: &str) -> bool {
    nbdinfo(&["--size", uri]).status.success()
}

/// `true` if a client with this user's number and group does.
fn opens_as(user: u32, group: u32, uri: &str) -> bool {
    let mut command = Command::new("setpriv");
    command.args(["--clear-groups", "--reuid"]).arg(user.to_string()).arg("--regid").arg(group.to_string());
    command.args(["nbdinfo", "--size", uri]).output().unwrap().status.success()
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o777
}

#[test]
fn a_vssds_socket_serves_that_vssd_and_no_other() {
    if !installed(&["qemu-io", "nbdinfo"]) {
        return;
    }
    let scene = Scene::new();
    let mut daemon = Daemon::start(&scene, "--size 1G");
    let (a, b) = (daemon.create("tenant-a"), daemon.create("tenant-b"));
    for (name, own) in [("tenant-a", &a), ("tenant-b", &b)] {
        let socket = scene.path(&format!("h/nbd/{name}.sock"));
        assert_eq!(*own, format!("nbd+unix:///{name}?socket={}", socket.display()));
        assert_eq!(mode(&socket), 0o600);
    }
    qemu_io(&scene, &a, &["write -P 0xaa 0 64k", "flush"]);
    // A tenant knows its own socket.
    let as_b = |name: &str| b.replace("/tenant-b?", &format!("/{name}?"));
    assert!(!opens(&as_b("tenant-a")), "a socket serves the disk of another");
    assert!(opens(&as_b("tenant-b")) && opens(&as_b("")));
    let listed = String::from_utf8(nbdinfo(&["--list", &as_b("")]).stdout).unwrap();
    assert!(listed.contains("export=\"tenant-b\"") && !listed.contains("tenant-a"), "{listed}");
    assert!(!scene.path("h/nbd.sock").exists(), "there is a socket for all");
    assert!(daemon.ready["nbd"].is_null(), "{}", daemon.ready);
    daemon.kill_and_start();
    qemu_io(&scene, &a, &["read -P 0xaa 0 64k"]);
    assert_eq!(daemon.vssd("tenant-b")["uris"], json!([b]));
    daemon.stop();
    assert_eq!(fs::read_dir(scene.path("h/nbd")).unwrap().count(), 0, "a socket is left");
}

/// The file belongs to the daemon's user, and to no other, whatever users may open the mount point.
#[test]
fn the_file_of_a_vssd_has_neither_owner_nor_mode_of_its_mount_point() {
    if !is_root() || !Path::new("/dev/fuse").exists() {
        return skipped("needs root and /dev/fuse");
    }
    let scene = Scene::new();
    let mut daemon = Daemon::start(&scene, "--size 1G");
    for (name, owner, bits) in [("open", 0, 0o666), ("theirs", STRANGER, 0o600)] {
        let file = scene.path(&format!("{name}.raw"));
        fs::write(&file, "").unwrap();
        chown(&file, Some(owner), Some(owner)).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(bits)).unwrap();
        daemon.ask(&format!("vssd create {name} --fuse ~/{name}.raw"));
        let found = fs::metadata(&file).unwrap();
        assert_eq!((found.uid(), found.gid(), mode(&file)), (0, 0, 0o600), "{name}");
        assert!(found.len() > 0, "{name}");
    }
    daemon.stop();
}

/// An address of the operator's has all vSSDs, as in version 0.1, with a warning.
#[test]
fn a_socket_for_all_is_only_there_where_it_is_asked_for() {
    if !installed(&["nbdinfo"]) {
        return;
    }
    let scene = Scene::new();
    let mut daemon = Daemon::start(&scene, "--size 1G --nbd unix:~/h/nbd.sock");
    let shared = scene.path("h/nbd.sock");
    let uris = daemon.ask("vssd create a")["uris"].clone();
    assert_eq!(uris[0], format!("nbd+unix:///a?socket={}", shared.display()));
    assert!(uris.as_array().unwrap().iter().all(|uri| opens(uri.as_str().unwrap())), "{uris}");
    let warning = daemon.says("opens all vSSDs");
    assert!(warning.contains("warning"), "{warning}");
    daemon.refuses("vssd create b --tls-client b", &["sees no certificates", "--tls-client-ca"]);
    daemon.refuses("vssd create b --socket-mode 0600 --vhost-user ~/none/v.sock", &["none/v.sock"]);
    assert_eq!(daemon.ask("vssd list")["vssds"].as_array().unwrap().len(), 1);
}

#[test]
fn owners_and_modes_hold_through_restarts_and_are_changed() {
    let scene = Scene::within(&std::env::temp_dir());
    if !installed(&["setpriv", "nbdinfo"]) || !is_root() {
        return skipped("only root gives sockets to other users");
    }
    fs::set_permissions(scene.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    let mut daemon = Daemon::start(&scene, "--size 1G");
    let plain = daemon.create("plain");
    let owned = daemon.create(&format!("owned --socket-owner {OWNER}:{GROUP}"));
    let vhost = scene.path("v.sock");
    daemon.create(&format!(
        "other --nbd ~/o.sock --vhost-user ~/v.sock --socket-owner {STRANGER} --socket-mode 0600"
    ));
    let other = format!("nbd+unix:///other?socket={}", scene.path("o.sock").display());
    let check = |when: &str| {
        for (user, group, may) in
            [(OWNER, STRANGER, true), (STRANGER, GROUP, true), (STRANGER, STRANGER, false)]
        {
            assert_eq!(opens_as(user, group, &owned), may, "{user}:{group}, {when}");
            assert!(!opens_as(user, group, &plain), "{user}:{group}, {when}");
            assert_eq!(opens_as(user, group, &other), user == STRANGER, "{user}:{group}, {when}");
        }
        assert_eq!(fs::metadata(&vhost).unwrap().uid(), STRANGER, "{when}");
        let listed = opens_as(OWNER, GROUP, &scene.path("h").display().to_string());
        assert!(
            !listed && mode(&scene.path("h")) & 0o066 == 0,
            "others see what is in the directory, {when}"
        );
    };
    check("at first");
    daemon.restart();
    check("after a restart");
    daemon.kill_and_start();
    check("after a kill");
    let changed = daemon.ask(&format!("vssd access plain --socket-owner {OWNER}"));
    assert_eq!(changed["socket_owner"], json!(OWNER.to_string()));
    assert!(opens_as(OWNER, STRANGER, &plain) && !opens_as(STRANGER, GROUP, &plain));
    let listed = scene.ok("harvest vssd list --dir ~/h").stdout;
    assert!(listed.contains(&format!("its sockets belong to `{OWNER}`")), "{listed}");
    daemon.wait_until_unused("owned");
    daemon.ask("vssd access owned");
    assert!(!opens_as(OWNER, GROUP, &owned));
    let run = scene.run("harvest vssd access owned --socket-owner no-such-user:x --dir ~/h");
    assert!(run.status == Some(2) && run.stderr.contains("no-such-user"), "{run}");
    daemon.restart();
    assert!(opens_as(OWNER, STRANGER, &plain) && !opens_as(OWNER, GROUP, &owned));
}

/// Certificates of an authority as files with the names that libnbd looks for: a server's, and for each client one with
/// its name, as an alternative name or, if `common`, only as the common name.
fn certificates(scene: &Scene, clients: &[(&str, bool)]) {
    let mut params = CertificateParams::new(vec!["headstart test CA".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let write = |dir: &str, stem: &str, params: CertificateParams| {
        let key = KeyPair::generate().unwrap();
        fs::create_dir_all(scene.path(dir)).unwrap();
        fs::write(scene.path(dir).join("ca-cert.pem"), ca.pem()).unwrap();
        let certificate = params.signed_by(&key, &ca).unwrap();
        fs::write(scene.path(dir).join(format!("{stem}-cert.pem")), certificate.pem()).unwrap();
        fs::write(scene.path(dir).join(format!("{stem}-key.pem")), key.serialize_pem()).unwrap();
    };
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    write("server", "server", CertificateParams::new(names).unwrap());
    for (name, common) in clients {
        let names = if *common { Vec::new() } else { vec![(*name).to_owned()] };
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = DistinguishedName::new();
        let subject = if *common { *name } else { "anything" };
        params.distinguished_name.push(DnType::CommonName, subject);
        write(name, "client", params);
    }
}

#[test]
fn over_tls_a_vssd_belongs_to_names_of_certificates() {
    if !installed(&["nbdinfo", "qemu-io"]) {
        return;
    }
    let scene = Scene::new();
    certificates(&scene, &[("tenant-a", false), ("tenant-b", true), ("admin", false), ("anything", false)]);
    let words = "--size 1G --nbd 127.0.0.1:0 --tls-cert ~/server/server-cert.pem \
                 --tls-key ~/server/server-key.pem --tls-client-ca ~/server/ca-cert.pem";
    let mut daemon = Daemon::start(&scene, words);
    daemon.create("a --tls-client tenant-a --tls-client admin");
    daemon.create("b --tls-client tenant-b --tls-client admin");
    let nobodys = daemon.ask("vssd create c")["uris"].clone();
    assert_eq!(nobodys.as_array().unwrap().len(), 1, "it is nobody's over TLS: {nobodys}");
    let check = |daemon: &Daemon<'_>, ca: &str| {
        let a = uri(&daemon.vssd("a"));
        assert!(a.starts_with("nbds://127.0.0.1:"), "{a}");
        let server = a.strip_suffix("/a").unwrap();
        let with = |client: &str, name: &str| {
            format!("{server}/{name}?tls-certificates={}", scene.path(client).display())
        };
        for (client, may) in [
            ("tenant-a", [ca == "tenant-a", false]),
            ("tenant-b", [false, true]),
            ("admin", [true; 2]),
            ("anything", [false; 2]),
        ] {
            assert_eq!(["a", "b"].map(|name| opens(&with(client, name))), may, "{client}");
            assert!(!opens(&with(client, "c")), "{client} has what is nobody's");
            let listed = String::from_utf8(nbdinfo(&["--list", &with(client, "")]).stdout).unwrap();
            let sees = ["a", "b"].map(|name| listed.contains(&format!("export=\"{name}\"")));
            assert_eq!(sees, may, "{client}: {listed}");
            assert!(!listed.contains("export=\"c\""), "{listed}");
        }
        assert!(!opens(&format!("{server}/a").replace("nbds://", "nbd://")), "without TLS");
    };
    check(&daemon, "tenant-a");
    daemon.kill_and_start();
    check(&daemon, "tenant-a");
    // The vSSD gets another owner.
    daemon.wait_until_unused("a");
    daemon.ask("vssd access a --tls-client admin");
    check(&daemon, "nobody");
}

/// A port that other hosts reach needs certificates, or an option that says that every client is admitted.
#[test]
fn a_port_that_others_reach_takes_a_word() {
    let scene = Scene::new();
    for address in ["0.0.0.0:0", "[::]:0"] {
        scene.fails(
            &format!("harvest serve ~/h --size 1G --nbd {address}"),
            &[address, "every client that reaches", "--tls-client-ca", "--insecure-network"],
        );
    }
    assert!(!scene.path("h").exists(), "it was begun");
    let mut daemon = Daemon::start(&scene, "--size 1G --nbd 0.0.0.0:0 --insecure-network");
    let warning = daemon.says("every client that reaches");
    assert!(warning.contains("warning"), "{warning}");
    assert!(daemon.create("a").starts_with("nbd://0.0.0.0:"));
}
