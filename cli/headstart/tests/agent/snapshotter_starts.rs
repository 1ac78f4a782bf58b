//! The start of `headstart snapshotter`, and what it finds out before containerd asks for anything.

use crate::agent::Agent;
use crate::attached::TIMEOUT;
use crate::scene::Scene;
use headstart_export::kernel_nbd;
use headstart_testkit::process::Process;

const PLACES: &str = "--root ~/snap --socket ~/snap.sock";

#[test]
fn what_this_host_cannot_do_is_refused_at_the_start() {
    let scene = Scene::new();
    if kernel_nbd::probe_kept().is_err() {
        scene.fails(
            &format!("snapshotter {PLACES} --attach-by nbd"),
            &["--attach-by nbd: ", "--attach-by auto"],
        );
    }
    scene.fails(
        &format!("snapshotter {PLACES} --empty-disk 1k"),
        &["--empty-disk 1 KiB: ", "choose a size from 1 MiB to 16 TiB"],
    );
    scene.fails(
        &format!("snapshotter {PLACES} --container-quota 0"),
        &["--container-quota 0: ", "leave it out for no limit"],
    );
    assert!(!scene.path("snap.sock").exists());
}

#[test]
fn an_agent_that_is_named_and_away_is_told_of() {
    let scene = Scene::new();
    let start = |agent_is_there: bool| {
        let words = format!("snapshotter --json {PLACES} --empty-disk 64G --agent ~/a/agent.sock");
        let mut snapshotter = Process::start(&mut scene.command(&words));
        let line = snapshotter.line("that it is ready", TIMEOUT, |line| line.contains("\"socket\""));
        snapshotter.kill();
        let ready: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(ready["agent_error"].is_null(), agent_is_there, "{line}");
        if !agent_is_there {
            let error = ready["agent_error"].as_str().unwrap();
            assert!(error.contains("agent.sock") && error.contains("headstart agent"), "{error}");
        }
    };
    start(false);
    let _agent = Agent::start(&scene, "a", "");
    start(true);
}
