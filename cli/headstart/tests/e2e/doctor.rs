//! The features that work on this host.

use crate::scene::Scene;

#[test]
fn every_feature_has_a_state_and_what_is_missing_a_remedy() {
    let scene = Scene::new();
    std::fs::create_dir(scene.path("cache")).unwrap();
    let report = scene.run("doctor --json --cache ~/cache").json();
    let findings = report["findings"].as_array().unwrap();
    let names: Vec<_> = findings.iter().map(|finding| finding["feature"].as_str().unwrap()).collect();
    for feature in
        ["cache", "nbd", "client", "kvm", "vhost-user", "fuse", "loop", "kernel nbd", "ublk", "limits"]
    {
        assert!(names.contains(&feature), "{names:?}");
    }
    for finding in findings {
        let state = finding["state"].as_str().unwrap();
        assert!(["yes", "limited", "no"].contains(&state), "{finding}");
        assert!(state != "no" || finding["remedy"].is_string(), "{finding}");
    }
    assert_ne!(findings[0]["state"], "no", "the cache's directory is fine");
}

#[test]
fn a_host_without_room_for_a_cache_is_said_to_be_unfit() {
    let run = Scene::new().run("doctor --cache /proc/none");
    assert_eq!(run.status, Some(1), "{run}");
    assert!(run.stdout.contains("cannot attach images"), "{run}");
}
