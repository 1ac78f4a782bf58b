//! Writes stay, grow, are refused in wrong places, and become an image.

use crate::attached::{Attached, Metrics};
use crate::disk::{DiskBuilder, noise, text};
use crate::images::{Web, can_check_bytes, check_bytes, layered, tool};
use crate::scene::Scene;
use crate::tools::installed;
use headstart_testkit::registry::{Registry, RegistryAccess};
use headstart_testkit::shell_image;
use std::fs;

/// Writes a file's bytes to the disk at an offset, flushed only if `flush`.
#[track_caller]
fn write(scene: &Scene, uri: &str, file: &str, offset: usize, flush: bool) {
    let script = format!("h.pwrite(open('{file}','rb').read(), {offset})");
    let flushed = if flush { format!("{script}; h.flush()") } else { script };
    tool(scene, "nbdsh", &["-u", uri, "-c", &flushed]);
}

#[test]
fn writes_stay_when_it_is_detached_and_become_an_image() {
    let scene = layered();
    let Some(web) = Web::before(&scene) else { return };
    if !can_check_bytes() || !installed(&["nbdsh"]) {
        return;
    }
    let options = "--cache ~/cache --writable ~/vm --nbd unix:~/d.sock";
    let mut expected = scene.bytes("disk.raw");
    for round in 0..3_usize {
        let attached = Attached::start(&scene, &format!("{} {options}", web.image()));
        assert_eq!(attached.ready["disks"][0]["writable"], true);
        fs::write(scene.path("expected.raw"), &expected).unwrap();
        check_bytes(&scene, "expected.raw", &attached.uri());
        let bytes = [text(round as u64, 300_000), noise(round as u64, 300_000)].concat();
        let at = ((3 * round) << 20) + 12_345;
        fs::write(scene.path("bytes"), &bytes).unwrap();
        // Detaching makes writes durable that no client has flushed.
        write(&scene, &attached.uri(), "bytes", at, round == 0);
        expected[at..at + bytes.len()].copy_from_slice(&bytes);
        attached.detach();
    }
    fs::write(scene.path("expected.raw"), &expected).unwrap();
    // The store's own tag is of the same image, whatever way it is reached.
    scene.ok("image commit --writable ~/vm --base file://~/store:v1 file://~/store:vm");
    let vm = Attached::start(&scene, "file://~/store:vm");
    check_bytes(&scene, "expected.raw", &vm.uri());
    vm.detach();
    scene.ok("image export file://~/store:vm -o vm.raw");
    crate::disk::assert_same(&scene, "expected.raw", "vm.raw");
    let local = Attached::start(&scene, "file://~/store:v1 --writable ~/vm");
    check_bytes(&scene, "expected.raw", &local.uri());
    local.detach();
}

#[test]
fn a_disk_grows_and_never_shrinks() {
    let scene = layered();
    if !can_check_bytes() || !installed(&["nbdsh", "nbdinfo"]) {
        return;
    }
    let attach = "file://~/store:v1 --writable ~/vm --nbd unix:~/d.sock";
    for (option, mib) in [("--size 24M", 24), ("", 24), ("--size 24M", 24), ("--size 40M", 40), ("", 40)] {
        let attached = Attached::start(&scene, &format!("{attach} {option}"));
        let size: u64 = mib << 20;
        assert_eq!(attached.ready["disks"][0]["size"], size);
        assert_eq!(tool(&scene, "nbdinfo", &["--size", &attached.uri()]).trim(), size.to_string());
        DiskBuilder::create(scene.path("expected.raw"), size).write(0, &scene.bytes("disk.raw"));
        check_bytes(&scene, "expected.raw", &attached.uri());
        attached.detach();
    }
    for (option, given) in [("--size 16M", 16 << 20), ("--size 1k", 1024)] {
        let parts = ["vm", "cannot become smaller", &given.to_string(), "41943040"];
        scene.fails(&format!("attach {attach} {option}"), &parts);
    }
    // A size below the image's, in a directory that is not there yet: it is not made.
    scene.fails("attach file://~/store:v1 --writable ~/new --size 8M", &["16777216", "8388608", "smaller"]);
    assert!(!scene.path("new").exists());
    // Bytes behind the image's end are written and stay.
    fs::write(scene.path("bytes"), noise(3, 100_000)).unwrap();
    let attached = Attached::start(&scene, attach);
    write(&scene, &attached.uri(), "bytes", 30 << 20, false);
    attached.detach();
    DiskBuilder::create(scene.path("expected.raw"), 40 << 20)
        .write(0, &scene.bytes("disk.raw"))
        .write(30 << 20, &scene.bytes("bytes"));
    scene.ok("image commit --writable ~/vm --base file://~/store:v1 file://~/store:large");
    let large = Attached::start(&scene, "file://~/store:large");
    check_bytes(&scene, "expected.raw", &large.uri());
    large.detach();
}

#[test]
fn a_directory_belongs_to_one_image_and_one_process() {
    let scene = layered();
    let attach = "file://~/store:v1 --writable ~/vm --nbd unix:~/d.sock";
    let attached = Attached::start(&scene, attach);
    scene.fails(
        "attach file://~/store:v1 --writable ~/vm --nbd unix:~/other.sock",
        &["vm", "in use by another process", "detach"],
    );
    attached.detach();
    let before = scene.fingerprint("vm");
    scene.fails(
        "attach file://~/store:base --writable ~/vm --nbd unix:~/other.sock",
        &["vm", "sha256:", "attach the image it belongs to"],
    );
    // A directory with other files in it.
    scene.fails(
        "attach file://~/store:v1 --writable ~/store --nbd unix:~/other.sock",
        &["store", "is not a writable directory", "empty directory"],
    );
    scene.fails("attach file://~/store:v1 --writable ~/disk.raw --nbd unix:~/other.sock", &["disk.raw"]);
    assert_eq!(scene.fingerprint("vm"), before);
    assert!(!scene.path("other.sock").exists());
    Attached::start(&scene, attach).detach();
}

#[test]
fn several_disks_have_a_directory_each() {
    let scene = layered();
    if !can_check_bytes() || !installed(&["nbdsh"]) {
        return;
    }
    let words =
        "a=file://~/store:v1 b=file://~/store:v1 c=file://~/store:base --writable ~/vms --nbd 127.0.0.1:0";
    let mut expected = [scene.bytes("disk.raw"), scene.bytes("disk.raw"), scene.bytes("base.raw")];
    for round in 0..2_usize {
        let attached = Attached::start(&scene, words);
        for (n, (uri, expected)) in attached.uris().iter().zip(&mut expected).enumerate() {
            assert!(uri.ends_with(["/a", "/b", "/c"][n]), "{uri}");
            fs::write(scene.path("expected.raw"), &expected).unwrap();
            check_bytes(&scene, "expected.raw", uri);
            let bytes = noise((round * 3 + n) as u64, 50_000);
            fs::write(scene.path("bytes"), &bytes).unwrap();
            write(&scene, uri, "bytes", 5 << 20, false);
            expected[5 << 20..(5 << 20) + bytes.len()].copy_from_slice(&bytes);
        }
        attached.detach();
    }
    assert_eq!(scene.names("vms"), ["a", "b", "c"]);
}

#[test]
fn a_disk_with_a_file_system_that_is_only_read_takes_writes_with_a_warning() {
    let scene = Scene::new();
    shell_image::write(&scene.path("image.tar"));
    let convert =
        |words: &str| scene.ok(&format!("image convert oci-archive:~/image.tar {words} --size 256M"));
    convert("file://~/store:erofs --fs erofs");
    convert("file://~/store:ext4");
    let attach = |tag: &str, rest: &str| Attached::start(&scene, &format!("file://~/store:{tag} {rest}"));
    let warning = attach("erofs", "--nbd unix:~/a.sock --writable ~/written").warning();
    assert!(warning.contains("store:erofs") && warning.contains("--fs ext4"), "{warning}");
    for quiet in
        [attach("erofs", "--nbd unix:~/b.sock"), attach("ext4", "--nbd unix:~/c.sock --writable ~/other")]
    {
        assert!(!quiet.output().contains("warning"), "{}", quiet.output());
    }
}

#[test]
fn of_several_forms_of_an_image_the_newest_that_can_be_written_to_is_taken_and_named() {
    let Some(registry) = Registry::start(RegistryAccess::Open) else { return };
    if !installed(&["skopeo"]) {
        return;
    }
    let (scene, host) = (Scene::new(), registry.host());
    shell_image::write(&scene.path("image.tar"));
    let (layout, remote) = (("file://~/layout:app", "oci:layout:app".to_owned()), format!("{host}/app:1"));
    let places = [layout, (&*format!("oci://{remote}"), format!("docker://{remote}"))];
    let mut last = (String::new(), String::new());
    for (number, (image, target)) in places.iter().enumerate() {
        let copy = ["copy", "--quiet", "--dest-tls-verify=false", "oci-archive:image.tar", target];
        tool(&scene, "skopeo", &copy);
        let convert = |words: &str| {
            let command = format!("image convert {image} {words} --size 256M --plain-http {host}");
            scene.json(&command)["digest"].as_str().unwrap().to_owned()
        };
        let attach = |socket: &str, words: &str| {
            let words = format!("{image} --nbd unix:~/{socket}.sock {words} --cache ~/c --plain-http {host}");
            let attached = Attached::start(&scene, &format!("{words} --fill 1GB/s --metrics 127.0.0.1:0"));
            if number == 1 {
                attached.wait_for("full disk", Metrics::all_is_local);
            }
            let digest = attached.ready["disks"][0]["digest"].as_str().unwrap().to_owned();
            (attached, digest)
        };
        let (ext4, erofs) = (convert("--referrer"), convert("--referrer --fs erofs"));
        let (reading, read) = attach("r", "");
        assert_eq!(read, erofs, "the newest");
        assert!(!reading.output().contains("warning"), "{}", reading.output());
        let (mut writing, written) = attach("w", &format!("--writable ~/written{number}"));
        assert_eq!(written, ext4);
        let warning = writing.warning();
        assert!(warning.contains(&erofs) && warning.contains(&ext4), "{warning}");
        drop((reading, writing));
        // The tag means the same form for a commit.
        let push = if number == 0 { String::new() } else { format!("--push --plain-http {host}") };
        let target = image.replace(":app", ":made").replace(":1", ":made");
        scene.ok(&format!("image commit --writable ~/written{number} --base {image} {target} {push}"));
        // One that an index lists goes first, but not for what is written to.
        let indexed = convert("--index --fs erofs --codec lz4");
        assert_eq!(attach("r", "").1, indexed);
        let (mut writing, written) = attach("w", &format!("--writable ~/other{number}"));
        assert_eq!(written, ext4);
        assert!(writing.warning().contains(&indexed), "{}", writing.output());
        last = (indexed, ext4);
    }
    // Each is known while the registry is away.
    drop(registry);
    let (indexed, ext4) = last;
    for (words, digest) in [("", indexed), ("--writable ~/other1", ext4)] {
        let words = format!("oci://{remote} {words} --nbd unix:~/a.sock --cache ~/c --plain-http {host}");
        assert_eq!(Attached::start(&scene, &words).ready["disks"][0]["digest"], digest);
    }
}
