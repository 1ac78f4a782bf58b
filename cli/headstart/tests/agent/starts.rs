//! Starts of containers are recorded by the program that starts, learned from, and followed on the next host.

use crate::attached::TIMEOUT;
use crate::containers::{Host, HostSettings};
use crate::scene::Scene;
use headstart_export::fuse::too_old_to_keep;
use headstart_testkit::faults::{Fault, FaultProxy, FaultRule, Log, ProxiedRequest};
use headstart_testkit::process::skipped;
use headstart_testkit::wait::wait_until;
use headstart_trace::data_set::DataSetLimits;
use headstart_trace::{DataSet, TraceDirectory};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

/// The names of the programs whose starts were recorded, and the requests of each, by time.
fn recorded(scene: &Scene) -> Vec<(String, usize)> {
    let traces = scene.path("a-cache/traces");
    if TraceDirectory::list(&traces).map_or(0, |files| files.len()) == 0 {
        return Vec::new();
    }
    let set = DataSet::open(&traces, &DataSetLimits::default()).unwrap();
    let mut starts: Vec<_> = (0..set.len())
        .map(|at| {
            let (trace, _) = set.read(at).unwrap();
            let creation = &trace.creation;
            (creation.created_us, creation.entrypoint().to_owned(), trace.records.len())
        })
        .collect();
    starts.sort();
    starts.into_iter().map(|(_, entrypoint, records)| (entrypoint, records)).collect()
}

/// Removes the image, so that its disk is detached.
pub(crate) fn forget(host: &Host<'_>) {
    for name in host.containerd.ctr(&["images", "ls", "-q"]).lines() {
        host.containerd.ctr(&["images", "rm", "--sync", name]);
    }
    wait_until("the image's disk is gone", TIMEOUT, || host.agent.disks().is_empty());
}

/// A host with a converted image, whose disks log what they know of starts.
fn with_converted_image(scene: &Scene) -> Option<Host<'_>> {
    let mut host = Host::start(scene)?;
    host.convert("--referrer");
    host.agent.kill();
    host.agent.again_with_log("info");
    Some(host)
}

/// The log of the disk's process.
pub(crate) fn log(host: &Host<'_>, scene: &Scene) -> String {
    let name = host.agent.disks()[0]["name"].as_str().unwrap().to_owned();
    fs::read_to_string(scene.path(&format!("a/disks/{name}.log"))).unwrap()
}

#[test]
fn a_start_on_a_disk_whose_process_was_killed_is_not_recorded() {
    if let Some(release) = too_old_to_keep() {
        skipped(&format!("Linux {release} does not keep mounts"));
        return;
    }
    let scene = Scene::new();
    let Some(host) = with_converted_image(&scene) else { return };
    let image = host.image.clone();
    host.pull(&image);
    let disk = &host.agent.disks()[0];
    let pid = disk["pid"].as_u64().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw).unwrap();
    // The kernel has the files of the first container in memory, and the next process does not see that.
    host.containerd.run(&image, "before", "cat /etc/greeting");
    wait_until("the process knows", TIMEOUT, || log(&host, &scene).contains("is_recorded true"));
    kill_process(pid, Signal::KILL).unwrap();
    host.agent.disk_that("served by another process", |disk| {
        disk["state"] == "serving" && disk["restarts"] == 1 && disk["pid"].is_u64()
    });
    let before = recorded(&scene);
    host.containerd.run(&image, "after", "cat /etc/greeting");
    wait_until("the process knows", TIMEOUT, || log(&host, &scene).contains("is_recorded false"));
    forget(&host);
    assert_eq!(recorded(&scene), before);
}

#[test]
fn what_a_start_read_is_decoded_ahead_of_the_next_first_start() {
    let scene = Scene::new();
    let Some(host) = with_converted_image(&scene) else { return };
    let image = host.image.clone();
    let is_ahead = "what the start reads was decoded before";
    for (container, expects) in [("first", 0), ("second", 1)] {
        host.pull(&image);
        assert_eq!(host.containerd.run(&image, container, "cat /etc/greeting"), "two\n");
        wait_until("the process knows", TIMEOUT, || {
            let log = log(&host, &scene);
            log.contains("is_recorded true") && log.matches(is_ahead).count() == expects
        });
        // The kernel has what a further one reads.
        // One that ends before containerd was asked for its program is not known.
        wait_until("the process knows a further one", TIMEOUT, || {
            assert_eq!(host.containerd.run(&image, "again", "cat /etc/greeting"), "two\n");
            log(&host, &scene).matches("is_recorded true").count() >= 2
        });
        assert_eq!(log(&host, &scene).matches(is_ahead).count(), expects);
        forget(&host);
    }
}

#[test]
fn starts_are_learned_from_by_program_and_followed_by_plan() {
    let scene = Scene::new();
    let Some(mut host) = with_converted_image(&scene) else { return };
    let image = host.image.clone();

    // A program that is started again, and then another one, whose start is not recorded.
    host.pull(&image);
    host.containerd.run(&image, "first", "cat /etc/greeting");
    host.containerd.run(&image, "again", "cat /etc/greeting");
    wait_until("the process knows", TIMEOUT, || log(&host, &scene).matches("a container starts").count() > 1);
    host.containerd.start_container(&image, "other");
    wait_until("the process knows", TIMEOUT, || log(&host, &scene).contains("entrypoint /bin/sleep #"));
    host.containerd.end_container("other");
    host.containerd.remove_container("other");
    forget(&host);
    let starts = recorded(&scene);
    assert_eq!(starts.len(), 1, "{starts:?}");
    assert!(starts[0].0.starts_with("/bin/sh -c #") && starts[0].1 > 10, "{starts:?}");

    // The first container of another attach is the other program.
    host.pull(&image);
    host.containerd.start_container(&image, "sleeper");
    wait_until("the process knows", TIMEOUT, || log(&host, &scene).contains("a container starts"));
    host.containerd.end_container("sleeper");
    host.containerd.remove_container("sleeper");
    forget(&host);
    let starts = recorded(&scene);
    assert_eq!(starts.len(), 2, "{starts:?}");
    assert!(starts[1].0.starts_with("/bin/sleep #"), "{}", starts[1].0);

    let registry = image.split('/').next().unwrap();
    let report = scene.json(&format!(
        "train --traces ~/a-cache/traces --publish oci://{image} --plain-http {registry} -o ~/plans"
    ));
    assert_eq!(report["read"], 2, "{report}");
    fs::remove_dir_all(scene.path("a-cache/traces")).unwrap();

    // The next start of either program is by the plan of its own.
    let mut switched = 0;
    for (container, is_shell) in [("shell", true), ("sleep", false)] {
        // An image that is whole in the cache needs no plan.
        scene.ok("cache prune --dir ~/a-cache");
        host.pull(&image);
        wait_until("the plan is found", TIMEOUT, || log(&host, &scene).contains("preloading as planned"));
        if is_shell {
            host.containerd.run(&image, container, "cat /etc/greeting");
        } else {
            host.containerd.start_container(&image, container);
        }
        wait_until("the process knows", TIMEOUT, || log(&host, &scene).contains("a container starts"));
        switched += log(&host, &scene).matches("the plan of its entrypoint is followed").count();
        if !is_shell {
            host.containerd.end_container(container);
            host.containerd.remove_container(container);
        }
        forget(&host);
    }
    // One of the two programs had the plan to begin with.
    assert_eq!(switched, 1);
}

/// The kind of thing that a request is about.
fn kind(asked: &ProxiedRequest) -> &'static str {
    let kinds = [
        ("/manifests/sha256:", "manifest"),
        ("/manifests/sha256-", "list under a tag"),
        ("/referrers/", "list of one kind"),
        ("/manifests/1", "tag"),
        ("/blobs/", "blob"),
    ];
    kinds.iter().find(|(part, _)| asked.path.contains(part)).map_or("other", |(_, kind)| kind)
}

/// The requests of a start: those of each kind, of blobs each blob once, and the documents that wait for each other.
type StartRequests = (BTreeMap<&'static str, usize>, usize);

/// Pulls the image, runs a container of it, and compares headstart's requests.
#[track_caller]
fn check_requests(host: &Host<'_>, counter: &FaultProxy, container: &str, expected: &StartRequests) {
    counter.clear_log();
    host.pull(&host.image);
    host.containerd.run(&host.image, container, "cat /etc/greeting");
    // A registry that hides nothing may be asked for a challenge before its first answer says so.
    let of_headstart =
        || counter.log().only(|request| request.asked.is_of("headstart") && request.asked.path != "/v2/");
    let blobs_in = |log: &Log| -> BTreeSet<String> {
        log.to("/blobs/").iter().map(|request| request.asked.path.clone()).collect()
    };
    // A small container may end before the plan is there.
    wait_until("every blob is asked for", TIMEOUT, || blobs_in(&of_headstart()).len() >= expected.0["blob"]);
    let log = of_headstart();
    let documents = log.only(|request| kind(&request.asked) != "blob");
    let blobs = blobs_in(&log);
    let mut kinds = BTreeMap::from([("blob", blobs.len())]);
    for request in documents.iter() {
        *kinds.entry(kind(&request.asked)).or_default() += 1;
    }
    assert_eq!((kinds, documents.in_sequence()), *expected, "{log}");
}

#[test]
fn a_start_asks_the_registry_for_nothing_twice() {
    let scene = Scene::new();
    let settings = HostSettings { is_counted: true, ..HostSettings::default() };
    let Some(mut host) = Host::start_with(&scene, &settings) else { return };
    host.convert("--index");
    host.agent.kill();
    host.agent.again_with_log("info");
    // Late enough that what is asked at once is seen to be.
    let late = FaultRule::new(Fault::Late(Duration::from_millis(200)));
    let late = late.on(|asked| asked.is_of("headstart") && kind(asked) != "blob");
    let counter = host.counter.take().unwrap();
    counter.add(late);
    // The search for the disk: the original with its config, all that may lead to a disk of it at the same time, then
    // the disk that the index has. After that the disk's own process: its manifest, then the lists of plans, with each
    // layer and its tree.
    let lazy = [
        ("manifest", 3),
        ("list of one kind", 3),
        ("list under a tag", 2),
        ("tag", 1),
        ("blob", 1 + 2 * host.layers),
    ];
    let lazy = BTreeMap::from(lazy);
    check_requests(&host, &counter, "lazy", &(lazy.clone(), 4));

    forget(&host);
    let registry = &host.registry_host;
    scene.json(&format!(
        "train --traces ~/a-cache/traces --publish oci://{} --plain-http {registry} -o ~/plans",
        host.image
    ));
    // On another host, which has nothing: the artifact of the plan, too, and the plan.
    let other_scene = Scene::new();
    let other = host.another(&other_scene);
    let mut planned = lazy;
    *planned.get_mut("manifest").unwrap() += 1;
    *planned.get_mut("blob").unwrap() += 1;
    check_requests(&other, &counter, "planned", &(planned, 5));
}
