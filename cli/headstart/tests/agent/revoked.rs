//! Revoked hosts: all other hosts learn of it, and enforce it.

use crate::agent::Agent;
use crate::cluster::{knows, start, wait_for};
use crate::scene::Scene;
use serde_json::{Value, json};

fn joining(agent: &Agent<'_>) -> String {
    format!("--join {}", agent.ready["address"].as_str().unwrap())
}

fn misses(name: &'static str) -> impl Fn(&Value) -> bool {
    move |part| !knows(name)(part)
}

#[test]
fn a_revoked_host_is_out_at_all_hosts_and_stays_out_when_they_are_started_again() {
    let scene = Scene::new();
    scene.ok("swarm init ~/cluster --host a --host b --host c --host e");
    let mut a = start(&scene, "a", "cluster/hosts/a", "");
    // The hosts have copies of their files, which do not change with the cluster's directory.
    for host in ["b", "c", "e"] {
        let copied = std::process::Command::new("cp")
            .arg("-r")
            .args([scene.path(&format!("cluster/hosts/{host}")), scene.path(&format!("of-{host}"))])
            .status();
        assert!(copied.unwrap().success());
    }
    let mut b = start(&scene, "b", "of-b", &joining(&a));
    let mut c = start(&scene, "c", "of-c", &joining(&a));
    wait_for("connected", &a, knows("c"));
    wait_for("connected", &b, knows("c"));
    // A typing error revokes no host; without an agent the remedy is printed.
    let socket = a.option();
    scene.fails(&format!("swarm revoke ~/cluster d {socket}"), &["`d`", "a, b, c, e"]);
    scene.fails("swarm publish ~/cluster", &["no host was revoked"]);
    let told = scene.json(&format!("swarm revoke ~/cluster c {socket}"));
    assert_eq!((&told["number"], &told["revoked"], &told["host"]), (&json!(1), &json!(["c"]), &json!("a")));
    wait_for("without it", &a, misses("c"));
    wait_for("without it", &b, misses("c"));
    let said = c.line("was revoked");
    assert!(said.contains("refuses this one") && said.contains("swarm init DIR --host c"), "{said}");
    // The others go on with each other; a host that was away, and has only the earlier key, comes back.
    let e = start(&scene, "e", "of-e", &joining(&a));
    wait_for("connected", &e, knows("a"));
    wait_for("connected", &b, knows("a"));
    wait_for("connected by gossip under the later key", &e, knows("b"));
    // A host that is started again knows the list by itself.
    b.kill();
    a.stop();
    b.again();
    drop(c);
    let mut c = start(&scene, "c", "of-c", &joining(&b));
    let said = c.line("was revoked");
    assert!(said.contains("refuses this one"), "{said}");
    // The connecting host learns a moment later that it is refused.
    wait_for("alone", &c, |part| part["peers"] == json!([]));
    drop(c);
    // A host that is added again is another host of that name.
    scene.ok("swarm init ~/cluster --host c");
    let c = start(&scene, "c", "cluster/hosts/c", &joining(&b));
    wait_for("connected", &c, knows("b"));
}

/// Each of two commands signs a list, and the one that sends its own second has the earlier list or the later one. The
/// agent has the directory itself, and signs nothing meanwhile.
#[test]
fn hosts_that_two_commands_revoke_at_once_are_both_revoked() {
    let scene = Scene::new();
    let hosts: Vec<_> = (0..16).map(|number| format!("h{number:02}")).collect();
    let named: String = hosts.iter().map(|host| format!(" --host {host}")).collect();
    scene.ok(&format!("swarm init ~/cluster --host a {named}"));
    let a = start(&scene, "a", "cluster/hosts/a", "--authority ~/cluster");
    let mut revoked = Vec::new();
    for pair in hosts.chunks(2) {
        let told: Vec<Value> = std::thread::scope(|scope| {
            let revoke = |host| scene.json(&format!("swarm revoke ~/cluster {host} {}", a.option()));
            let both: Vec<_> = pair.iter().map(|host| scope.spawn(move || revoke(host))).collect();
            both.into_iter().map(|one| one.join().unwrap()).collect()
        });
        for (told, host) in told.iter().zip(pair) {
            assert!(told["revoked"].as_array().unwrap().contains(&json!(host)), "{told}");
        }
        revoked.extend(pair.iter().cloned());
        let last = scene.json(&format!("swarm publish ~/cluster {}", a.option()));
        let mut all: Vec<_> =
            last["revoked"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
        all.sort_unstable();
        assert_eq!(
            (&last["number"], all),
            (&json!(revoked.len()), revoked.iter().map(String::as_str).collect())
        );
    }
}

/// A command that revokes the only operator explains the consequence, and how another is admitted; which works.
#[test]
fn revoking_the_last_operator_is_warned_of() {
    let scene = Scene::new();
    scene.ok("swarm init ~/cluster --host a --host b --host c --operator b --operator c");
    let a = start(&scene, "a", "cluster/hosts/a", "");
    let revoke = |name: &str| {
        let run = scene.run(&format!("swarm revoke ~/cluster {name} {}", a.option()));
        assert_eq!(run.status, Some(0), "{run}");
        run.stderr
    };
    assert!(!revoke("c").contains("operator"), "b is one");
    let said = revoke("b");
    assert!(said.contains("no host of the cluster may order others any more"), "{said}");
    let (_, command) = said.split_once("`headstart ").unwrap();
    let (command, _) = command.split_once('`').unwrap();
    let made = scene.json(&command.replace("NAME", "a"));
    assert!(made["hosts"][0]["roles"].as_array().unwrap().contains(&json!("operator")), "{made}");
    // There is an operator again.
    assert_eq!(revoke("b"), "");
}

#[test]
fn a_list_that_no_agent_could_be_told_is_told_later_and_an_earlier_one_is_refused() {
    let scene = Scene::new();
    scene.ok("swarm init ~/cluster --host a --host b");
    scene.fails("swarm rekey ~/cluster --agent ~/none.sock", &["it is signed", "swarm publish"]);
    std::fs::copy(scene.path("cluster/trust"), scene.path("first")).unwrap();
    let a = start(&scene, "a", "cluster/hosts/a", "");
    let told = scene.json(&format!("swarm publish ~/cluster {}", a.option()));
    assert_eq!((&told["number"], &told["revoked"], &told["hosts"]), (&json!(1), &json!([]), &json!([])));
    let said = scene.ok(&format!("swarm rekey ~/cluster {}", a.option())).stdout;
    assert!(said.contains("list 2") && said.contains("a has it, and told 0 hosts"), "{said}");
    std::fs::copy(scene.path("first"), scene.path("cluster/trust")).unwrap();
    scene.fails(&format!("swarm publish ~/cluster {}", a.option()), &["later list"]);
    // The directory is a copy of an earlier day, and signs another list 2: every sender of it gets an error, and the
    // next list replaces both.
    scene.fails(&format!("swarm rekey ~/cluster {}", a.option()), &["another list 2", "swarm rekey"]);
    scene.fails(&format!("swarm publish ~/cluster {}", a.option()), &["another list 2"]);
    let mut b = start(&scene, "b", "cluster/hosts/b", &joining(&a));
    let said = b.line("another list 2");
    assert!(said.contains("is not taken"), "{said}");
    wait_for("connected", &a, knows("b"));
    let told = scene.json(&format!("swarm rekey ~/cluster {}", a.option()));
    assert_eq!((&told["number"], &told["hosts"]), (&json!(3), &json!(["b"])));
    // A list that the authority did not sign, even one of another cluster, changes nothing.
    scene.ok("swarm init ~/other --host z");
    scene.fails("swarm rekey ~/other --agent ~/none.sock", &["it is signed"]);
    scene.fails(&format!("swarm publish ~/other {}", a.option()), &["has not signed"]);
}
