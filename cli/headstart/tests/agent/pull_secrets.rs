//! Credentials that come with pulls, as Kubernetes gives them: for disks, too, and after a reboot without a registry.

use crate::containers::{Host, HostSettings, LOOK};
use crate::scene::Scene;
use headstart_testkit::registry::{PASSWORD, RegistryAccess, USER};
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// The snapshotter knows no password itself.
const WORDS: &str = "--image-service --docker-config ~/nowhere";

/// `user:password` in base 64, for a host.
fn docker_config(host: &str) -> String {
    format!(r#"{{"auths": {{"{host}": {{"auth": "dGVzdGVyOnRlc3QtcGFzc3dvcmQ="}}}}}}"#)
}

impl Host<'_> {
    /// The words of a pull by way of the snapshotter.
    fn pull_words(&self, file: &str) -> String {
        format!(
            "container pull {} --containerd ~/snap.sock --user {USER} --password-file ~/{file}",
            self.image
        )
    }

    /// Ends what a reboot would end: all disks, their mounts and the snapshotter.
    fn reboot(&mut self) {
        for tree in fs::read_dir(self.scene.path("snap/trees")).unwrap() {
            let at = tree.unwrap().path().join("fs");
            assert!(std::process::Command::new("umount").arg(at).status().unwrap().success());
        }
        for disk in self.agent.disks() {
            let name = disk["name"].as_str().unwrap();
            self.scene.ok(&format!("disk detach {name} --force --agent ~/a/agent.sock"));
        }
        self.restart_with(WORDS);
    }
}

#[test]
fn credentials_of_pulls_attach_disks_and_what_was_allowed_starts_while_the_registry_is_away() {
    let scene = Scene::new();
    let settings =
        HostSettings { clients: RegistryAccess::Password, words: WORDS, ..HostSettings::default() };
    let Some(mut host) = Host::start_with(&scene, &settings) else { return };
    fs::create_dir(scene.path("docker")).unwrap();
    fs::write(scene.path("docker/config.json"), docker_config(&host.registry_host)).unwrap();
    host.convert("--referrer --docker-config ~/docker");
    fs::write(scene.path("right"), PASSWORD).unwrap();
    fs::write(scene.path("wrong"), "wrong").unwrap();

    scene.fails(&host.pull_words("wrong"), &["containerd"]);
    let kept = scene.path("snap/pull-credentials");
    assert!(!fs::read_to_string(&kept).unwrap().contains("wrong"), "refused credentials are not kept");
    scene.ok(&host.pull_words("right"));
    assert_eq!(fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!((host.trees(), host.agent.disks().len()), (1, 1), "{}", host.snapshotter.output());
    let said = host.containerd.run(&host.image, "first", LOOK);
    // All of it is here from now on.
    host.containerd.run(&host.image, "whole", "cat $(ls -d /bin/* /lib*/* /etc/*) > /dev/null; true");
    scene.fails(&host.pull_words("wrong"), &["containerd"]);
    assert!(
        fs::read_to_string(&kept).unwrap().contains(PASSWORD),
        "a wrong password takes no right one away"
    );

    // The disk reaches the registry by the kept credentials.
    host.reboot();
    assert_eq!(host.containerd.run(&host.image, "second", LOOK), said);

    // The registry is away.
    drop(host.registry.take());
    host.reboot();
    assert_eq!(host.containerd.run(&host.image, "third", LOOK), said);

    // That is so only for a time.
    host.reboot();
    host.restart_with(&format!("{WORDS} --offline-limit 1s"));
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let (image, id) = (host.image.clone(), host.containerd.id_of("late"));
    let words = ["run", "--rm", "--snapshotter", "headstart", &image, &id, "/bin/true"];
    let refused = host.containerd.run_ctr(&words);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("--offline-limit"), "{said}");
}
