//! Stores that are gone when an image is attached: with everything in the cache, and without.

use crate::attached::{Attached, Metrics, TIMEOUT};
use crate::images::{Web, can_check_bytes, check_bytes, layered};
use crate::scene::Scene;
use headstart_testkit::faults::{Fault, FaultProxy, FaultRule, Outage};
use headstart_testkit::process::Process;
use headstart_testkit::registry::{Registry, RegistryAccess};
use std::net::TcpListener;
use std::time::{Duration, Instant};

/// The longest time in which an attach that cannot work reports that.
const QUICK: Duration = Duration::from_secs(25);

/// Ways for a store to be gone, each of a proxy of its own.
type Leave = fn(&FaultProxy);

/// The part of the message for each.
const GONE: [(&str, Leave); 3] = [
    ("refused", |proxy| proxy.set_outage(Outage::Refuse)),
    ("does not answer", |proxy| proxy.set_outage(Outage::Hang)),
    ("503", |proxy| proxy.add(FaultRule::new(Fault::status(503)))),
];

#[test]
fn an_image_that_is_all_here_attaches_without_its_store() {
    let scene = layered();
    let Some(web) = Web::before(&scene) else { return };
    if !can_check_bytes() {
        return;
    }
    let digest = scene.json("image inspect file://~/store:v1")["digest"].as_str().unwrap().to_owned();
    let proxies = GONE.map(|_| FaultProxy::start(web.server.addr()));
    let images: Vec<_> = proxies
        .iter()
        .flat_map(|proxy| [format!("{}/:v1", proxy.url()), format!("{}/@{digest}", proxy.url())])
        .collect();
    let attach =
        |image: &str| Attached::start(&scene, &format!("{image} --cache ~/cache --metrics 127.0.0.1:0"));
    let fill = attach(&format!("{} --fill 1GB/s", images[0]));
    fill.wait_for("full disk", Metrics::all_is_local);
    fill.detach();
    for image in &images {
        let attached = attach(image);
        assert!(!attached.output().contains("warning"), "{}", attached.output());
        attached.detach();
    }
    for ((_, leave), proxy) in GONE.iter().zip(&proxies) {
        leave(proxy);
    }
    let began = Instant::now();
    let attached: Vec<_> = std::thread::scope(|scope| {
        let starting: Vec<_> = images.iter().map(|image| scope.spawn(|| attach(image))).collect();
        starting.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(began.elapsed() < QUICK, "{:?}", began.elapsed());
    for (n, (mut attached, image)) in attached.into_iter().zip(images).enumerate() {
        let warning = attached.warning();
        for part in [GONE[n / 2].0, &image, "in the cache", &digest] {
            assert!(warning.contains(part), "no `{part}`: {warning}");
        }
        check_bytes(&scene, "disk.raw", &attached.uri());
        attached.detach();
    }
}

/// A user that may not read an image any more does not get it out of a cache that others filled.
#[test]
fn an_image_that_the_store_denies_is_not_attached_from_the_cache() {
    let scene = layered();
    let Some(web) = Web::before(&scene) else { return };
    if !can_check_bytes() {
        return;
    }
    let digest = scene.json("image inspect file://~/store:v1")["digest"].as_str().unwrap().to_owned();
    let images = [format!("{}/:v1", web.proxy.url()), format!("{}/@{digest}", web.proxy.url())];
    let attach = |words: &str| Attached::start(&scene, &format!("{words} --cache ~/cache"));
    let fill = attach(&format!("{} --fill 1GB/s --metrics 127.0.0.1:0", images[0]));
    fill.wait_for("full disk", Metrics::all_is_local);
    fill.detach();
    attach(&images[1]).detach();
    for status in [401, 403] {
        web.proxy.clear_rules();
        web.proxy.add(FaultRule::new(Fault::status(status)));
        let status = status.to_string();
        for image in &images {
            let words = format!("attach {image} --cache ~/cache --nbd unix:~/d.sock");
            let all = [&status, image.as_str(), "refuses it", "--cached-although-denied"];
            scene.fails(&words, &all);
            let mut attached = attach(&format!("{image} --cached-although-denied"));
            let warning = attached.warning();
            assert!(
                [&status, "in the cache", &digest].iter().all(|part| warning.contains(part)),
                "{warning}"
            );
            check_bytes(&scene, "disk.raw", &attached.uri());
            attached.detach();
        }
    }
    assert!(!scene.path("d.sock").exists());
}

/// Web servers may show `oci-layout` to all clients, and manifests only to some.
#[test]
fn a_digest_is_not_attached_out_of_the_cache_where_the_store_keeps_its_manifest() {
    let scene = layered();
    let Some(web) = Web::before(&scene) else { return };
    let digest = scene.json("image inspect file://~/store:v1")["digest"].as_str().unwrap().to_owned();
    let image = format!("{}/@{digest}", web.proxy.url());
    let attach = |words: &str| Attached::start(&scene, &format!("{words} --cache ~/cache"));
    let fill = attach(&format!("{image} --fill 1GB/s --metrics 127.0.0.1:0"));
    fill.wait_for("full disk", Metrics::all_is_local);
    fill.detach();
    let manifest = digest.strip_prefix("sha256:").unwrap().to_owned();
    web.proxy.clear_log();
    attach(&image).detach();
    assert_eq!((web.proxy.log().len(), web.proxy.log().to(&manifest).len()), (1, 1), "{}", web.proxy.log());
    for status in [401, 403, 404, 429] {
        web.proxy.clear_rules();
        web.proxy.add(FaultRule::new(Fault::status(status)).on_path(&manifest));
        let words = format!("attach {image} --cache ~/cache --nbd unix:~/d.sock");
        scene.fails(&words, &[&status.to_string(), &image, "in the cache", "--cached-although-denied"]);
        attach(&format!("{image} --cached-although-denied")).detach();
    }
    // A page in the manifest's place, such as one that asks for a password.
    web.proxy.clear_rules();
    web.proxy.add(FaultRule::new(Fault::Corrupt { at: 1 }).on_path(&manifest));
    let words = format!("attach {image} --cache ~/cache --nbd unix:~/d.sock");
    scene.fails(&words, &["something else", "--cached-although-denied"]);
    web.proxy.clear_rules();
    web.proxy.add(FaultRule::new(Fault::status(503)).on_path(&manifest));
    assert!(attach(&image).warning().contains("503"));
}

/// Registries show an account without access that there is no such repository, or a page to log in.
#[test]
fn a_registry_that_hides_an_image_is_believed_by_digest_too() {
    let Some(registry) = Registry::start(RegistryAccess::Open) else { return };
    let scene = layered();
    let proxy = FaultProxy::start(registry.address());
    let host = proxy.addr().to_string();
    scene.ok(&format!("image push file://~/store:v1 oci://{host}/vm/debian:v1 --plain-http {host}"));
    let digest = scene.json("image inspect file://~/store:v1")["digest"].as_str().unwrap().to_owned();
    let options = format!("--plain-http {host} --cache ~/cache");
    let by_digest = format!("oci://{host}/vm/debian@{digest} {options}");
    let by_tag = format!("oci://{host}/vm/debian:v1 {options}");
    let fill = Attached::start(&scene, &format!("{by_digest} --fill 1GB/s --metrics 127.0.0.1:0"));
    fill.wait_for("full disk", Metrics::all_is_local);
    fill.detach();
    Attached::start(&scene, &by_tag).detach();
    // A request about a manifest counts against no quota of pulls.
    for image in [&by_digest, &by_tag] {
        proxy.clear_log();
        Attached::start(&scene, image).detach();
        let asked = proxy.log();
        assert_eq!((asked.len(), asked.to("/manifests/").len()), (1, 1), "{asked}");
        assert_eq!(asked[0].asked.method, "HEAD", "{asked}");
    }
    // A server that does not send the digest, or accepts no such requests, is asked for the manifest.
    proxy.add(FaultRule::new(Fault::status(405)).on(|asked| asked.method == "HEAD"));
    let plain = Attached::start(&scene, &by_digest);
    assert!(!plain.output().contains("warning"), "{}", plain.output());
    plain.detach();
    let to = |place: &str| Fault::Status { code: 302, headers: vec![("Location".into(), place.to_owned())] };
    let here = format!("/v2/vm/debian/manifests/{digest}");
    let fails = |words: &str, all: &[&str]| {
        scene.fails(&format!("attach {words} --nbd unix:~/d.sock"), all);
    };
    for (fault, said) in [
        (Fault::status(403), "refuses it"),
        (Fault::status(404), "does not have it"),
        (Fault::status(429), "429"),
        (to("/v2/"), "something else"),
        (to(&here), "redirects without end"),
    ] {
        proxy.clear_rules();
        proxy.add(FaultRule::new(fault).on_path("/manifests/"));
        fails(&by_digest, &[said, "in the cache", "--cached-although-denied"]);
    }
    // The same holds if the top of the server is not a registry's either.
    proxy.clear_rules();
    proxy.add(FaultRule::new(Fault::status(404)));
    for image in [&by_digest, &by_tag] {
        fails(image, &["does not have it", "in the cache", "--cached-although-denied"]);
        Attached::start(&scene, &format!("{image} --cached-although-denied")).detach();
    }
    // A page does not replace the known image.
    proxy.clear_rules();
    proxy.add(FaultRule::new(to("/v2/")).on_path("/manifests/"));
    fails(&by_tag, &["debian:v1"]);
    // One refusal is enough, even if silence follows it.
    proxy.clear_rules();
    proxy.add(FaultRule::new(Fault::status(429)).on_path("/manifests/").times(1));
    proxy.add(FaultRule::new(Fault::Hang { after: None }));
    fails(&by_digest, &["429", "in the cache", "--cached-although-denied"]);
    proxy.clear_rules();
    proxy.add(FaultRule::new(Fault::status(503)).on_path("/manifests/"));
    for image in [&by_digest, &by_tag] {
        assert!(Attached::start(&scene, image).warning().contains("503"));
    }
    assert!(!scene.path("d.sock").exists());
}

/// A registry that asks for a token is there, and has admitted no client. One that sends its clients on to a server
/// that is not there cannot give anything, like one that is away.
#[test]
fn a_registry_without_its_token_server_is_not_away_and_one_without_its_storage_is() {
    let Some(registry) = Registry::start(RegistryAccess::Open) else { return };
    let scene = layered();
    let [proxy, other] = [0, 1].map(|_| FaultProxy::start(registry.address()));
    let host = proxy.addr().to_string();
    scene.ok(&format!("image push file://~/store:v1 oci://{host}/vm/debian:v1 --plain-http {host}"));
    let digest = scene.json("image inspect file://~/store:v1")["digest"].as_str().unwrap().to_owned();
    let options = format!("--plain-http {host} --cache ~/cache");
    let images = [":v1".to_owned(), format!("@{digest}")]
        .map(|selector| format!("oci://{host}/vm/debian{selector} {options}"));
    for image in &images {
        let fill = Attached::start(&scene, &format!("{image} --fill 1GB/s --metrics 127.0.0.1:0"));
        fill.wait_for("full disk", Metrics::all_is_local);
        fill.detach();
    }
    let challenge = format!("Bearer realm=\"{}/token\",service=\"tests\"", other.url());
    let headers = vec![("WWW-Authenticate".to_owned(), challenge)];
    proxy.add(FaultRule::new(Fault::Status { code: 401, headers }));
    let address = other.addr().to_string();
    for (said, leave) in [(&*address, GONE[0].1), ("gives none", GONE[1].1), (&*address, GONE[2].1)] {
        other.set_outage(Outage::None);
        leave(&other);
        for image in &images {
            let words = format!("attach {image} --nbd unix:~/d.sock");
            scene.fails(&words, &[said, "in the cache", "--cached-although-denied"]);
        }
    }
    let mut attached = Attached::start(&scene, &format!("{} --cached-although-denied", images[1]));
    assert!(attached.warning().contains("in the cache"));
    attached.detach();
    proxy.clear_rules();
    let headers = vec![("Location".to_owned(), format!("{}/storage", other.url()))];
    proxy.add(FaultRule::new(Fault::Status { code: 307, headers }).on_path("/manifests/"));
    for (_, leave) in GONE {
        other.clear_rules();
        other.set_outage(Outage::None);
        leave(&other);
        for image in &images {
            let mut attached = Attached::start(&scene, image);
            assert!(attached.warning().contains("in the cache"), "{}", attached.output());
            attached.detach();
        }
    }
}

#[test]
fn an_image_that_is_not_all_here_needs_its_store() {
    let scene = layered();
    let Some(web) = Web::before(&scene) else { return };
    let proxies = GONE.map(|_| FaultProxy::start(web.server.addr()));
    let images = proxies.each_ref().map(|proxy| format!("{}/:v1", proxy.url()));
    for (image, ((_, leave), proxy)) in images.iter().zip(GONE.iter().zip(&proxies)) {
        // The image was seen before, but most of it has never been read.
        Attached::start(&scene, &format!("{image} --cache ~/cache")).detach();
        leave(proxy);
    }
    std::thread::scope(|scope| {
        for (n, (image, proxy)) in images.iter().zip(&proxies).enumerate() {
            // A store that hangs could be slow, and is given the time for it.
            if n == 1 {
                continue;
            }
            for cache in ["cache", "cold"] {
                let (scene, address) = (&scene, proxy.addr().to_string());
                scope.spawn(move || {
                    let began = Instant::now();
                    scene.fails(
                        &format!("attach {image} --cache ~/{cache} --nbd unix:~/d.sock"),
                        &[&address, GONE[n].0],
                    );
                    assert!(began.elapsed() < QUICK, "{cache}: {:?}", began.elapsed());
                });
            }
        }
    });
    assert!(!scene.path("d.sock").exists());
}

#[test]
fn an_attach_reports_a_registry_that_is_gone() {
    let Some(registry) = Registry::start(RegistryAccess::Open) else { return };
    if !can_check_bytes() {
        return;
    }
    let (scene, host) = (layered(), registry.host());
    let image = format!("oci://{host}/vm/debian:v1");
    scene.ok(&format!("image push file://~/store:v1 {image} --plain-http {host}"));
    let attach = format!("{image} --plain-http {host} --cache ~/cache --metrics 127.0.0.1:0");
    let attached = Attached::start(&scene, &format!("{attach} --fill 1GB/s"));
    attached.wait_for("full disk", Metrics::all_is_local);
    drop(registry);
    // The attached disk does not notice.
    check_bytes(&scene, "disk.raw", &attached.uri());
    attached.detach();
    let mut again = Attached::start(&scene, &attach);
    assert!(again.warning().contains("refused"));
    check_bytes(&scene, "disk.raw", &again.uri());
    again.detach();
    let began = Instant::now();
    scene.fails(
        &format!("attach oci://{host}/vm/debian:other --plain-http {host} --cache ~/cache"),
        &[&host, "refused"],
    );
    assert!(began.elapsed() < QUICK, "{:?}", began.elapsed());
}

/// A server that accepts and never answers is given its time, and the user gets one warning, whatever the number of
/// disks.
#[test]
fn a_silent_store_is_reported_on_standard_error() {
    let scene = Scene::new();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    let image = format!("oci://{address}/r:a");
    let run = |options: &str| {
        scene.run(&format!("attach {options} a={image} b={image} --plain-http {address} --cache ~/cache"))
    };
    let (told, programs, quiet) = std::thread::scope(|scope| {
        let [told, programs] = ["", "--json"].map(|options| scope.spawn(move || run(options)));
        let quiet = run("--quiet");
        (told.join().unwrap(), programs.join().unwrap(), quiet)
    });
    for (run, times) in [(told, 1), (programs, 1), (quiet, 0)] {
        let is_it =
            |line: &&str| line.starts_with("headstart: warning: ") && line.contains("has not answered yet");
        let said: Vec<_> = run.stderr.lines().filter(is_it).collect();
        assert_eq!((run.status, said.len(), run.stdout.as_str()), (Some(1), times, ""), "{run}");
        let parts = [&format!("oci://{address}/r"), "15 s for each answer"];
        assert!(said.iter().all(|line| parts.iter().all(|part| line.contains(part))), "{run}");
    }
}

/// The same holds if the manifest came, and a layer does not: neither its beginning nor the rest of it.
#[test]
fn a_layer_that_does_not_come_is_reported_on_standard_error() {
    let scene = layered();
    let Some(web) = Web::before(&scene) else { return };
    let digest = scene.json("image inspect file://~/store:v1")["digest"].as_str().unwrap().to_owned();
    let manifest = digest.strip_prefix("sha256:").unwrap().to_owned();
    for (name, after) in [("unanswered", None), ("begun", Some(100))] {
        let proxy = FaultProxy::start(web.server.addr());
        let is_layer = |path: &str| path.contains("/blobs/") && !path.contains(&manifest);
        let hangs = manifest.clone();
        proxy.add(
            FaultRule::new(Fault::Hang { after })
                .on(move |asked| asked.path.contains("/blobs/") && !asked.path.contains(&hangs)),
        );
        let start = |n: usize, options: &str| {
            let words = format!("attach {options} {}/:v1 --cache ~/cache-{name}-{n}", proxy.url());
            Process::start(&mut scene.command(&words))
        };
        let mut quiet = start(0, "--quiet");
        let mut told = [start(1, ""), start(2, "--json")];
        let is_it =
            |line: &str| line.starts_with("headstart: warning: ") && line.contains("nothing comes from");
        for told in &mut told {
            let line = told.line("that a layer does not come", TIMEOUT, is_it);
            assert!(line.contains(&proxy.url()) && line.contains("15 s for each answer"), "{line}");
        }
        // The quiet process was first, and has waited for as long.
        proxy.wait("reads of layers", TIMEOUT, |log| {
            log.iter().filter(|request| is_layer(&request.asked.path)).count() >= 3
        });
        for process in told.iter_mut().chain([&mut quiet]) {
            process.stop(TIMEOUT);
        }
        assert!(!quiet.output().lines().any(is_it), "{quiet}");
        for told in &told {
            assert_eq!(told.output().lines().filter(|line| is_it(line)).count(), 1, "{told}");
        }
    }
}
