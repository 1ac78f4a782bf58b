//! Attaching, detaching, listing, watching; requests that cannot work; processes that die.

use crate::agent::{Agent, copy_of_program};
use crate::attached::TIMEOUT;
use crate::http::ask;
use crate::images::{Web, can_check_bytes, check_bytes, noisy, tool};
use crate::scene::{CommandRun, Scene};
use crate::tools::installed;
use headstart_testkit::process::Process;
use headstart_testkit::wait::{wait_for_value, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

fn kill(pid: &Value) {
    signal(pid, Signal::KILL);
}

fn signal(pid: &Value, signal: Signal) {
    kill_process(Pid::from_raw(pid.as_i64().unwrap() as i32).unwrap(), signal).unwrap();
}

#[test]
fn a_disk_is_attached_listed_and_detached() {
    let scene = noisy(4);
    let Some(web) = Web::before(&scene) else { return };
    if !can_check_bytes() {
        return;
    }
    let agent = Agent::start(&scene, "a", "--http 127.0.0.1:0");
    let disk = agent.attach(&format!("vm={} --nbd unix:~/d.sock --metrics 127.0.0.1:0", web.image()));
    assert_eq!((disk["name"].as_str(), disk["state"].as_str()), (Some("vm"), Some("serving")));
    check_bytes(&scene, "disk.raw", disk["ready"]["ways"][0]["uri"].as_str().unwrap());
    assert_eq!(agent.disks(), std::slice::from_ref(&disk));
    let said = scene.ok(&format!("disk list {}", agent.option())).stdout;
    assert!(
        said.starts_with("1 disk\nvm: serving, process ")
            && said.contains("nbd+unix://")
            && said.contains("v1 is sha256:"),
        "{said}"
    );
    // Other programs get the same; over TCP only requests that change nothing.
    let address = agent.ready["http"].as_str().unwrap().strip_prefix("http://").unwrap();
    let over_tcp = |request: &str| ask(TcpStream::connect(address).unwrap(), request);
    let parsed = |(status, body): (u16, String)| (status, serde_json::from_str::<Value>(&body).unwrap());
    assert_eq!(parsed(agent.http("GET /v1/disks/vm")), (200, disk.clone()));
    let digest = disk["images"][0]["digest"].as_str().unwrap();
    let without_digest = serde_json::from_str(&disk.to_string().replace(digest, "sha256:-")).unwrap();
    assert_eq!(parsed(over_tcp("GET /v1/disks/vm")), (200, without_digest));
    assert_eq!(over_tcp("DELETE /v1/disks/vm").0, 405);
    assert_eq!(over_tcp("POST /v1/disks\n{}").0, 405);
    let targets: Value = serde_json::from_str(&over_tcp("GET /v1/targets").1).unwrap();
    let metrics = disk["ready"]["metrics"].as_str().unwrap();
    assert_eq!(targets[0]["labels"]["disk"], "vm");
    assert_eq!(format!("http://{}/metrics", targets[0]["targets"][0].as_str().unwrap()), metrics);
    let metrics = over_tcp("GET /metrics").1;
    assert!(metrics.contains("headstart_agent_disks{state=\"serving\"} 1\n"), "{metrics}");
    let document: Value = serde_json::from_str(&over_tcp("GET /openapi.json").1).unwrap();
    for path in ["/v1/disks", "/v1/disks/{name}", "/v1/events", "/v1/swarm", "/v1/targets", "/metrics"] {
        assert!(document["paths"].get(path).is_some(), "{path} is not in the document");
    }
    let report = agent.detach("vm");
    assert_eq!(report["state"], "detached");
    assert!(report["report"]["reads"].as_u64().unwrap() > 0, "{report}");
    assert!(agent.disks().is_empty() && !scene.path("d.sock").exists());
    assert_eq!(scene.names("a/disks"), [""; 0]);
}

#[test]
fn requests_that_cannot_work_are_refused_and_leave_nothing_behind() {
    let scene = noisy(1);
    let agent = Agent::start(&scene, "a", "");
    let option = agent.option();
    scene.fails(&format!("attach file://~/store:nothing {option}"), &["nothing"]);
    scene.fails(&format!("attach file://~/store:v1 --as a/b {option}"), &["is not a name of a disk"]);
    scene
        .fails(&format!("attach file://~/store:v1 --nbd unix:~/no/d.sock {option}"), &["make the directory"]);
    scene.fails(&format!("disk detach vm {option}"), &["vm", "there is no disk of that name"]);
    assert_eq!(scene.run(&format!("attach file://~/store:v1 --cache ~/c {option}")).status, Some(2));
    assert!(agent.disks().is_empty());
    assert_eq!(scene.names("a/disks"), [""; 0]);
    agent.attach("file://~/store:v1 --as vm --nbd unix:~/d.sock");
    scene.fails(
        &format!("attach file://~/store:v1 --as vm {option}"),
        &["vm", "there is a disk of that name"],
    );
    // Another agent cannot use that directory.
    scene.fails("agent --dir ~/a --cache ~/a-cache", &["another agent runs there"]);
    agent.detach("vm");
    drop(agent);
    scene.fails("disk list --agent ~/a/agent.sock", &["no agent answers", "headstart agent"]);
}

/// A watcher sees the present disks and all changes, even if the agent is replaced.
#[test]
fn disks_are_watched() {
    let scene = noisy(1);
    scene.fails("disk watch --agent ~/a/agent.sock", &["no agent answers", "headstart agent"]);
    let mut agent = Agent::start(&scene, "a", "");
    agent.attach("file://~/store:v1 --as one --nbd unix:~/1.sock");
    let watch =
        |words: &str| Process::start(&mut scene.command(&format!("disk watch {words} {}", agent.option())));
    let (mut all, mut two) = (watch(""), watch("two --json"));
    // It may be attached later.
    two.line("that it is not there", TIMEOUT, |line| line.contains("no disk that is called `two`"));
    let line = |watching: &mut Process, start: &str| {
        watching.line(start, TIMEOUT, |line| line.starts_with(start));
    };
    line(&mut all, "one: serving, process ");
    agent.attach("file://~/store:v1 --as two --nbd unix:~/2.sock");
    line(&mut all, "two: starting");
    line(&mut all, "two: serving, process ");
    line(&mut all, "  file://");
    line(&mut all, "  nbd+unix://");
    let is_two = |line: &str| {
        if line.contains("no disk that is called") {
            return false;
        }
        let disk: Value = serde_json::from_str(line).unwrap();
        assert_eq!(disk["name"], "two");
        disk["state"] == "serving"
    };
    two.line("that it is served", TIMEOUT, is_two);
    agent.kill();
    agent.again();
    agent.detach("one");
    line(&mut all, "one: detached");
    agent.detach("two");
    line(&mut all, "two: detached");
    two.line("that it is detached", TIMEOUT, |line| line.contains("\"state\":\"detached\""));
    for mut watching in [all, two] {
        assert_eq!(watching.stop(TIMEOUT).code(), Some(0), "{watching}");
    }
}

/// A process that is killed is started again, with all flushed writes; watchers see it.
#[test]
fn a_process_that_dies_is_started_again() {
    goes_on_after_its_process_died("--nbd unix:~/d.sock");
}

/// A socket without a given path is at the same place again, where a guest looks for it.
#[test]
fn a_process_that_dies_is_started_again_at_its_own_socket() {
    goes_on_after_its_process_died("");
}

fn goes_on_after_its_process_died(way: &str) {
    let scene = noisy(4);
    if !installed(&["qemu-io"]) {
        return;
    }
    let mut agent = Agent::start(&scene, "a", "");
    let mut events = UnixStream::connect(scene.path("a/agent.sock")).unwrap();
    events.set_read_timeout(Some(TIMEOUT)).unwrap();
    write!(events, "GET /v1/events HTTP/1.1\r\nHost: agent\r\n\r\n").unwrap();
    let mut events = BufReader::new(events).lines();
    assert!(events.next().unwrap().unwrap().contains("200"));
    let disk = agent.attach(&format!("file://~/store:v1 --as vm --writable ~/vm {way}"));
    let uri = disk["ready"]["ways"][0]["uri"].as_str().unwrap();
    tool(&scene, "qemu-io", &["-f", "raw", uri, "-c", "write -P 7 1M 64k", "-c", "flush"]);
    kill(&disk["pid"]);
    let again = agent.disk_that("started again", |disk| disk["restarts"] == 1 && disk["state"] == "serving");
    assert_ne!(again["pid"], disk["pid"]);
    let mut states = Vec::new();
    while states.last().is_none_or(|state| state != "restarting") {
        let line = events.next().unwrap().unwrap();
        if let Some(json) = line.strip_prefix("data: ") {
            let event: Value = serde_json::from_str(json).unwrap();
            states.push(event["state"].as_str().unwrap().to_owned());
            states.dedup();
        }
    }
    assert_eq!(states, ["starting", "serving", "restarting"]);
    tool(&scene, "qemu-io", &["-f", "raw", uri, "-c", "read -P 7 1M 64k"]);
    // The same holds for a process that a previous agent has started, and that dies while there is no agent.
    agent.kill();
    kill(&again["pid"]);
    agent.again();
    // A killed process is there until the kernel has ended it, and the new agent may be faster.
    let another = |disk: &Value| disk["state"] == "serving" && disk["pid"] != again["pid"];
    let third = agent.disk_that("served by another process", another);
    tool(&scene, "qemu-io", &["-f", "raw", uri, "-c", "read -P 7 1M 64k"]);
    // This holds for any signal: only the agent detaches the disk. So a disk moves to a new program.
    let mut last = third;
    for number in [Signal::TERM, Signal::INT, Signal::HUP] {
        tool(&scene, "qemu-io", &["-f", "raw", uri, "-c", "write -P 9 2M 64k"]);
        signal(&last["pid"], number);
        let another = |disk: &Value| disk["state"] == "serving" && disk["pid"] != last["pid"];
        let again = agent.disk_that("served after a signal", another);
        assert_eq!(again["restarts"].as_u64(), last["restarts"].as_u64().map(|restarts| restarts + 1));
        assert_eq!((&again["ready"]["ways"], again["report"].is_null()), (&last["ready"]["ways"], true));
        tool(&scene, "qemu-io", &["-f", "raw", uri, "-c", "read -P 7 1M 64k", "-c", "read -P 9 2M 64k"]);
        last = again;
    }
    agent.line("not by its agent");
    assert_eq!(agent.detach("vm")["state"], "detached");
    assert!(agent.disks().is_empty());
}

/// A disk that is detached under its clients is gone for them, and the command reports it.
#[test]
fn clients_of_a_detached_disk_are_counted() {
    let scene = noisy(1);
    let agent = Agent::start(&scene, "a", "");
    let client = || {
        let mut client = UnixStream::connect(scene.path("d.sock")).unwrap();
        client.set_read_timeout(Some(TIMEOUT)).unwrap();
        // The server's greeting; the client's flags and the choice of the only export; the server's answer about it.
        client.read_exact(&mut [0; 18]).unwrap();
        client.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
        client.read_exact(&mut [0; 10]).unwrap();
        client
    };
    let detached = |clients: usize, json: bool| {
        agent.attach("file://~/store:v1 --as vm --nbd unix:~/d.sock");
        let _clients: Vec<_> = (0..clients).map(|_| client()).collect();
        if json {
            return agent.detach("vm")["report"]["clients"].to_string();
        }
        scene.ok(&format!("disk detach vm {}", agent.option())).stdout
    };
    let first = |clients| detached(clients, false).lines().next().unwrap().to_owned();
    assert_eq!(first(0), "vm: detached");
    assert_eq!(first(1), "vm: detached, while 1 client was connected");
    assert_eq!(first(2), "vm: detached, while 2 clients were connected");
    assert_eq!((detached(0, true), detached(2, true)), ("0".to_owned(), "2".to_owned()));
}

/// The credentials of an object store have to be in the agent's environment; those of the command's are of no use.
#[test]
fn an_agent_without_credentials_in_its_environment_says_so() {
    let scene = Scene::new();
    let secrets = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
    let mut command = scene.command("agent --json --dir ~/a --cache ~/a-cache");
    command.env("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1");
    secrets.iter().for_each(|name| _ = command.env_remove(name));
    let mut agent = Process::start(&mut command);
    agent.line("that it is ready", TIMEOUT, |line| line.starts_with("{\"name\""));
    let words = "attach s3://images/vm:v1 --nbd unix:~/d.sock --agent ~/a/agent.sock";
    let mut command = scene.command(words);
    secrets.iter().for_each(|name| _ = command.env(name, "here"));
    let parts = ["no credentials", "set AWS_ACCESS_KEY_ID", "that of the agent, not that of this command"];
    CommandRun::of(words, &mut command).fails(&parts);
    assert_eq!(agent.stop(TIMEOUT).code(), Some(0), "{agent}");
}

/// The cause of an end, and of a start that is not possible, is in the log and in the list.
#[test]
fn the_cause_of_a_processs_end_is_said() {
    let scene = noisy(1);
    let program = copy_of_program(&scene, "headstart-copy");
    let mut agent = Agent::start(&scene, "a", "");
    agent.kill();
    agent.again_as(&program);
    let disk = agent.attach("file://~/store:v1 --as vm --nbd unix:~/d.sock");
    let says = |agent: &Agent<'_>, part: &str| {
        agent.disk_that(part, |disk| {
            disk["state"] == "restarting" && disk["error"].as_str().is_some_and(|error| error.contains(part))
        });
        let listed = scene.ok(&format!("disk list {}", agent.option())).stdout;
        assert!(listed.contains(part), "{listed}");
    };
    fs::rename(&program, scene.path("away")).unwrap();
    kill(&disk["pid"]);
    says(&agent, "headstart-copy: cannot start the process of a disk");
    agent.line("it was killed (signal 9)");
    agent.line("headstart-copy: cannot start the process of a disk");
    // A program that always fails.
    std::os::unix::fs::symlink("/bin/false", &program).unwrap();
    says(&agent, "it ended with exit code 1");
    fs::remove_file(&program).unwrap();
    fs::rename(scene.path("away"), &program).unwrap();
    let disk = agent.disk_that("serving again", |disk| disk["state"] == "serving");
    assert!(disk["error"].is_null(), "{disk}");
    // A process that this agent has not started.
    agent.kill();
    agent.again();
    kill(&agent.disk_that("found", |disk| disk["adopted"] == true && disk["pid"].is_u64())["pid"]);
    agent.line("how is not known");
    agent.disk_that("serving again", |disk| disk["state"] == "serving" && disk["adopted"] == false);
    agent.detach("vm");
}

/// All processes of a host that goes down get a signal: the agent does not start those again that it still sees end.
#[test]
fn an_agent_that_ends_starts_no_process_again() {
    let scene = noisy(1);
    let mut agent = Agent::start(&scene, "a", "");
    let disk = agent.attach("file://~/store:v1 --as vm --nbd unix:~/d.sock");
    // It sees both ends at the same time, however busy the machine is.
    let own = Value::from(agent.id());
    signal(&own, Signal::STOP);
    signal(&disk["pid"], Signal::TERM);
    wait_until("the disk's process has ended", TIMEOUT, || !agent.is_served("vm"));
    signal(&own, Signal::TERM);
    signal(&own, Signal::CONT);
    agent.ends();
    assert!(!agent.is_served("vm"));
    agent.again();
    agent.disk_that("serving", |again| again["state"] == "serving" && again["pid"] != disk["pid"]);
    agent.detach("vm");
}

/// An agent that dies before it sends a signal: the next one sends it.
#[test]
fn a_detach_that_an_agent_died_in_is_finished_by_the_next() {
    let scene = noisy(4);
    scene.ok("image import disk.raw file://~/store:v1");
    let mut agent = Agent::start(&scene, "a", "");
    agent.attach("vm=file://~/store:v1 --nbd unix:~/d.sock");
    agent.kill();
    let record = scene.path("a/disks/vm.json");
    let mut vm: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    vm["detaching"] = true.into();
    fs::write(&record, vm.to_string()).unwrap();
    agent.again();
    wait_for_value("the disk is detached", TIMEOUT, || agent.disks(), Vec::is_empty);
    assert!(!scene.path("d.sock").exists());
}

/// The operating system reports the same for a missing program and a missing directory.
#[test]
fn a_working_directory_that_is_gone_is_named() {
    let scene = noisy(1);
    let agent = Agent::start(&scene, "a", "");
    fs::create_dir(scene.path("work")).unwrap();
    let words = "attach file://~/store:v1 --as vm --nbd unix:~/d.sock --agent ~/a/agent.sock --json";
    let run = CommandRun::of(words, scene.command(words).current_dir(scene.path("work"))).succeeds();
    let disk = run.json();
    fs::remove_dir(scene.path("work")).unwrap();
    kill(&disk["pid"]);
    let work = scene.path("work").display().to_string();
    let parts = [&*work, "the working directory of the disk cannot be used", "make it again"];
    agent.disk_that("refused", |disk| {
        let error = disk["error"].as_str().unwrap_or_default();
        parts.iter().all(|part| error.contains(part)) && !error.contains("cannot start the process")
    });
    // It is started again as soon as that is possible.
    fs::create_dir(scene.path("work")).unwrap();
    agent.disk_that("serving again", |disk| disk["state"] == "serving");
    agent.detach("vm");
}
