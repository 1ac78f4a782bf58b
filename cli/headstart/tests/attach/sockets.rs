//! Sockets and files of disks: the files that they replace, and the users that can open them.

use crate::attached::Attached;
use crate::disk::noise;
use crate::images::noisy;
use crate::scene::Scene;
use crate::tools::{installed, is_root, skipped};
use headstart_testkit::process::Process;
use headstart_testkit::wait::wait_until;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Users that no other program has files of: the owner, a member of the group, a stranger.
const OWNER: u32 = 51_001;
const GROUP: u32 = 51_002;
const STRANGER: u32 = 51_003;

/// An image, in a directory that all users can pass.
fn passable() -> Scene {
    let scene = Scene::within(&std::env::temp_dir());
    fs::set_permissions(scene.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(scene.path("disk.raw"), noise(5, 1 << 20)).unwrap();
    scene.ok("image import disk.raw file://~/store:v1");
    scene
}

/// `true` if a user of this number and group can do it.
fn can(user: u32, group: u32, program: &str, args: &[&str]) -> bool {
    run_as(user, group, program, args) == Some(0)
}

fn run_as(user: u32, group: u32, program: &str, args: &[&str]) -> Option<i32> {
    let mut command = Command::new("setpriv");
    command.args(["--clear-groups", "--reuid"]).arg(user.to_string()).arg("--regid").arg(group.to_string());
    command.arg(program).args(args).output().unwrap().status.code()
}

/// `true` if such a user can connect to a socket.
fn connects(user: u32, group: u32, socket: &Path) -> bool {
    // Its request is nonsense there, but it is sent: 7 is the status of a failed connection.
    let socket = socket.to_str().unwrap();
    run_as(user, group, "curl", &["--max-time", "5", "--unix-socket", socket, "http://x/"]) != Some(7)
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o777
}

#[test]
fn a_regular_file_never_becomes_a_socket() {
    let scene = noisy(1);
    for way in ["--nbd unix:~/precious", "--vhost-user ~/precious"] {
        fs::write(scene.path("precious"), "x").unwrap();
        scene
            .fails(&format!("attach file://~/store:v1 {way}"), &["precious", "is not a socket", "remove it"]);
        assert_eq!(scene.bytes("precious"), b"x", "{way}");
    }
}

/// A socket that a killed disk left is replaced; a socket of another program stays, even without a listener.
#[test]
fn only_sockets_of_this_program_are_replaced() {
    let scene = noisy(1);
    let words = "file://~/store:v1 --nbd unix:~/d.sock --vhost-user ~/v.sock";
    let mut attached = Attached::start(&scene, words);
    scene
        .fails("attach file://~/store:v1 --vhost-user ~/v.sock", &["v.sock", "another server listens there"]);
    attached.process().kill();
    assert!(scene.path("d.sock").exists() && scene.path("v.sock").exists());
    Attached::start(&scene, words).detach();
    let left = scene.names("");
    assert!(!left.iter().any(|name| name.contains(".sock")), "{left:?}");
    for (way, name) in [("--nbd unix:~/d.sock", "d.sock"), ("--vhost-user ~/v.sock", "v.sock")] {
        drop(UnixListener::bind(scene.path(name)).unwrap());
        // A program that another test starts meanwhile listens, too, until it is executed.
        while UnixStream::connect(scene.path(name)).is_ok() {}
        let remedy = format!("rm {}", scene.path(name).display());
        scene.fails(
            &format!("attach file://~/store:v1 {way}"),
            &[name, "on which no process answers", &remedy],
        );
        assert!(scene.path(name).exists());
    }
}

/// This holds for any mask of the process.
#[test]
fn sockets_and_files_are_this_users_alone() {
    let scene = noisy(1);
    for mask in ["0000", "0077", "0777"] {
        let plain =
            scene.command("attach --json file://~/store:v1 --nbd unix:~/d.sock --vhost-user ~/v.sock");
        let mut command = Command::new("sh");
        command.args(["-c", &format!("umask {mask}; exec \"$0\" \"$@\"")]);
        command.arg(plain.get_program()).args(plain.get_args()).current_dir(scene.path(""));
        command.arg("--cache").arg(scene.path("cache"));
        // The directory is made before, because nothing could be made in it with such a mask.
        fs::create_dir_all(scene.path("cache")).unwrap();
        let attached = Attached::of(&mut command);
        for name in ["d.sock", "v.sock"] {
            assert_eq!(mode(&scene.path(name)), 0o600, "{name} with the mask {mask}");
        }
        attached.detach();
    }
}

#[test]
fn another_user_opens_a_disk_and_a_third_does_not() {
    let scene = passable();
    if !installed(&["setpriv", "nbdinfo", "curl"]) || !is_root() {
        return skipped("only root gives sockets to other users");
    }
    let words = format!(
        "file://~/store:v1 --nbd unix:~/d.sock --vhost-user ~/v.sock --socket-owner {OWNER}:{GROUP} --cache ~/cache"
    );
    let attached = Attached::start(&scene, &words);
    let uri = attached.uri();
    for (user, group, may) in [(OWNER, STRANGER, true), (STRANGER, GROUP, true), (STRANGER, STRANGER, false)]
    {
        assert_eq!(can(user, group, "nbdinfo", &["--size", &uri]), may, "NBD, {user}:{group}");
        assert_eq!(connects(user, group, &scene.path("v.sock")), may, "vhost-user, {user}:{group}");
    }
    attached.detach();
    // An explicit mode excludes the group.
    let attached = Attached::start(&scene, &format!("{words} --socket-mode 0600"));
    assert!(can(OWNER, STRANGER, "nbdinfo", &["--size", &uri]));
    assert!(!can(STRANGER, GROUP, "nbdinfo", &["--size", &uri]));
    attached.detach();
}

#[test]
fn another_user_opens_the_file_of_a_disk_and_a_third_does_not() {
    let scene = passable();
    if !installed(&["setpriv", "cmp"]) || !is_root() || !Path::new("/dev/fuse").exists() {
        return skipped("needs root and /dev/fuse");
    }
    fs::create_dir(scene.path("mnt")).unwrap();
    fs::write(scene.path("file.raw"), "").unwrap();
    // The image itself is readable for all, for the comparison.
    for (point, file) in [("mnt", "mnt/disk.raw"), ("file.raw", "file.raw")] {
        let words =
            format!("file://~/store:v1 --fuse ~/{point} --socket-owner {OWNER}:{GROUP} --cache ~/cache");
        let attached = Attached::start(&scene, &words);
        let (file, raw) = (scene.path(file), scene.path("disk.raw"));
        let args = [file.to_str().unwrap(), raw.to_str().unwrap()];
        assert!(can(OWNER, STRANGER, "cmp", &args), "the owner, {point}");
        assert!(can(STRANGER, GROUP, "cmp", &args), "the group, {point}");
        assert!(!can(STRANGER, STRANGER, "cmp", &args), "a stranger, {point}");
        attached.detach();
    }
}

/// The disk belongs to the user that attached it, and to no other, whatever users may open or own the mount point.
#[test]
fn the_file_of_a_disk_has_neither_owner_nor_mode_of_its_mount_point() {
    let scene = passable();
    if !installed(&["setpriv", "dd"]) || !is_root() || !Path::new("/dev/fuse").exists() {
        return skipped("needs root and /dev/fuse");
    }
    for (at, points) in
        [("mine", (0, 0o644)), ("open", (0, 0o666)), ("theirs", (STRANGER, 0o600))].into_iter().enumerate()
    {
        let (name, (owner, permissions)) = points;
        let (point, directory) = (scene.path(name), scene.path(&format!("{name}.d")));
        fs::write(&point, "").unwrap();
        fs::create_dir(&directory).unwrap();
        for (path, bits) in [(&point, permissions), (&directory, permissions | 0o111)] {
            chown(path, Some(owner), Some(owner)).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(bits)).unwrap();
        }
        for (mounted, file) in [(&point, point.clone()), (&directory, directory.join("disk.raw"))] {
            for (options, expected) in [("", 0o400), ("--writable ~/vm", 0o600)] {
                let words = format!(
                    "file://~/store:v1 --fuse {} --cache ~/cache {}",
                    mounted.display(),
                    options.replace("vm", &format!("vm{at}"))
                );
                let attached = Attached::start(&scene, &words);
                let found = fs::metadata(&file).unwrap();
                assert_eq!((found.uid(), found.gid(), mode(&file)), (0, 0, expected), "{words}");
                let (from, to) = (format!("if={}", file.display()), format!("of={}", file.display()));
                let read = [from.as_str(), "of=/dev/null", "bs=4096", "count=1"];
                let write = ["if=/dev/zero", to.as_str(), "bs=4096", "count=1", "conv=notrunc"];
                assert!(!can(STRANGER, STRANGER, "dd", &read), "a stranger reads it: {words}");
                assert!(!can(STRANGER, STRANGER, "dd", &write), "a stranger writes to it: {words}");
                attached.detach();
            }
        }
    }
}

#[test]
fn owners_that_are_not_there_are_refused_by_name() {
    let scene = noisy(1);
    for (option, part) in [
        ("--socket-owner no-such-user", "no-such-user"),
        ("--socket-owner root:no-such-group", "no-such-group"),
        ("--socket-mode 0777", "0660"),
    ] {
        let run = scene.run(&format!("attach file://~/store:v1 --nbd unix:~/d.sock {option}"));
        assert_eq!(run.status, Some(2), "{run}");
        assert!(run.stderr.contains(part), "{run}");
    }
}

/// A user other than root may name a group that it is a member of, and nothing else.
#[test]
fn a_user_cannot_give_sockets_away() {
    let scene = passable();
    if !installed(&["setpriv"]) || !is_root() {
        return skipped("becomes another user");
    }
    fs::create_dir(scene.path("mine")).unwrap();
    chown(scene.path("mine"), Some(OWNER), Some(OWNER)).unwrap();
    let plain = scene.command(&format!(
        "attach file://~/store:v1 --nbd unix:~/mine/d.sock --cache ~/mine/cache --socket-owner {STRANGER} --no-record"
    ));
    let mut command = Command::new("setpriv");
    command.args(["--clear-groups", "--reuid", "51001", "--regid", "51001"]);
    command.arg(plain.get_program()).args(plain.get_args()).current_dir(scene.path("mine"));
    let mut process = Process::start(&mut command);
    let status = process.end(crate::attached::TIMEOUT);
    assert_eq!(status.code(), Some(1), "{process}");
    let said = process.output();
    assert!(said.contains("cannot be given to 51003") && said.contains("run it as root"), "{said}");
    assert!(!scene.path("mine/d.sock").exists());
}

/// The directory of a socket without a given path is removed with its process, or by the next one if that was killed.
#[test]
fn a_killed_attach_leaves_no_directory_for_long() {
    let scene = noisy(1);
    fs::create_dir(scene.path("tmp")).unwrap();
    let attach = || {
        let mut command = scene.command("attach --json file://~/store:v1 --no-record --cache ~/cache");
        Attached::of(command.env("TMPDIR", scene.path("tmp")))
    };
    let mut killed = attach();
    killed.process().kill();
    assert_eq!(scene.names("tmp").len(), 1);
    let (first, second) = (attach(), attach());
    assert_eq!(
        scene.names("tmp").len(),
        2,
        "of the killed one something is left, or of the others something gone"
    );
    assert!(first.uri() != second.uri());
    first.detach();
    second.detach();
    assert_eq!(scene.names("tmp"), [""; 0]);
}

/// Another user that holds the lock of a socket's mark delays an attach by seconds, and is named.
#[test]
fn a_mark_that_another_user_holds_stops_no_attach_for_long() {
    if !is_root() || !installed(&["setpriv", "flock", "sleep"]) {
        return;
    }
    let scene = passable();
    fs::create_dir(scene.path("theirs")).unwrap();
    fs::write(scene.path("theirs/.d.sock.headstart"), "").unwrap();
    for theirs in ["theirs", "theirs/.d.sock.headstart"] {
        chown(scene.path(theirs), Some(STRANGER), Some(STRANGER)).unwrap();
    }
    let stranger = STRANGER.to_string();
    let mut holder = Command::new("setpriv")
        .args(["--clear-groups", "--reuid", &stranger, "--regid", &stranger])
        .args(["flock", "--no-fork"])
        .arg(scene.path("theirs/.d.sock.headstart"))
        .args(["sleep", "120"])
        .spawn()
        .unwrap();
    let mark = fs::File::open(scene.path("theirs/.d.sock.headstart")).unwrap();
    wait_until("the other process has the lock", Duration::from_secs(30), || {
        let is_free = mark.try_lock().is_ok();
        if is_free {
            mark.unlock().unwrap();
        }
        !is_free
    });
    let begun = Instant::now();
    let said = [".d.sock.headstart", "another process holds the lock", "fuser"];
    scene.fails("attach file://~/store:v1 --nbd unix:~/theirs/d.sock", &said);
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    holder.kill().unwrap();
    holder.wait().unwrap();
    Attached::start(&scene, "file://~/store:v1 --nbd unix:~/theirs/d.sock").detach();
}
