//! Stores that are gone when an image is attached: with everything in the cache, and without.

use crate::attached::Attached;
use crate::images::{Web, can_check_bytes, check_bytes, layered};
use headstart_testkit::faults::{Fault, Outage, Rule};
use headstart_testkit::registry::{Access, Registry};
use std::time::{Duration, Instant};

/// Longer than any attach that cannot work may take to say so.
const QUICK: Duration = Duration::from_secs(8);

#[test]
fn an_image_that_is_all_here_attaches_without_its_store() {
    let scene = layered();
    let Some(web) = Web::before(&scene) else { return };
    if !can_check_bytes() {
        return;
    }
    let image = web.image();
    let digest = scene.json("image inspect file://~/store:v1")["digest"].as_str().unwrap().to_owned();
    let pinned = format!("{}/@{digest}", web.proxy.url());
    for image in [&image, &pinned] {
        let attached =
            Attached::start(&scene, &format!("{image} --cache ~/cache --fill 1GB/s --metrics 127.0.0.1:0"));
        attached.wait_for("full disk", crate::attached::Metrics::all_is_local);
        attached.detach();
    }
    for outage in [Outage::Refuse, Outage::Hang] {
        web.proxy.set_outage(outage);
        for image in [&image, &pinned] {
            let began = Instant::now();
            let mut attached = Attached::start(&scene, &format!("{image} --cache ~/cache"));
            assert!(began.elapsed() < QUICK, "{:?}", began.elapsed());
            let warning = attached.warning();
            assert!(warning.contains(image.as_str()) && warning.contains("in the cache"), "{warning}");
            assert!(warning.contains(&digest), "{warning}");
            check_bytes(&scene, "disk.raw", &attached.uri());
            attached.detach();
        }
    }
    // It is back: nothing to warn of.
    web.proxy.set_outage(Outage::None);
    let attached = Attached::start(&scene, &format!("{image} --cache ~/cache"));
    assert!(!attached.said().contains("warning"), "{}", attached.said());
    attached.detach();
    // Refused credentials, or a server that fails, are no hindrance either.
    for status in [403, 503] {
        web.proxy.add(Rule::new(Fault::status(status)));
        let mut attached = Attached::start(&scene, &format!("{image} --cache ~/cache"));
        let warning = attached.warning();
        assert!(warning.contains(&status.to_string()), "{warning}");
        check_bytes(&scene, "disk.raw", &attached.uri());
        attached.detach();
        web.proxy.clear_rules();
    }
}

#[test]
fn an_image_that_is_not_all_here_needs_its_store() {
    let scene = layered();
    let Some(web) = Web::before(&scene) else { return };
    let (image, address) = (web.image(), web.proxy.addr().to_string());
    // Seen before, but most of it has never been read.
    Attached::start(&scene, &format!("{image} --cache ~/cache")).detach();
    web.proxy.set_outage(Outage::Refuse);
    for cache in ["cache", "cold"] {
        let began = Instant::now();
        scene.fails(
            &format!("attach {image} --cache ~/{cache} --nbd unix:~/d.sock"),
            &[&address, "refused", "check"],
        );
        assert!(began.elapsed() < QUICK, "{cache}: {:?}", began.elapsed());
    }
    assert!(!scene.path("d.sock").exists());
    web.proxy.set_outage(Outage::None);
    web.proxy.add(Rule::new(Fault::status(503)));
    let began = Instant::now();
    scene.fails(&format!("attach {image} --cache ~/cache"), &[&address, "503"]);
    assert!(began.elapsed() < QUICK, "{:?}", began.elapsed());
}

#[test]
fn a_registry_that_is_gone() {
    let Some(registry) = Registry::start(Access::Open) else { return };
    if !can_check_bytes() {
        return;
    }
    let (scene, host) = (layered(), registry.host());
    let image = format!("oci://{host}/vm/debian:v1");
    scene.ok(&format!("image push file://~/store:v1 {image} --plain-http {host}"));
    let attach = format!("{image} --plain-http {host} --cache ~/cache --metrics 127.0.0.1:0");
    let attached = Attached::start(&scene, &format!("{attach} --fill 1GB/s"));
    attached.wait_for("full disk", crate::attached::Metrics::all_is_local);
    drop(registry);
    // The disk that is attached does not notice.
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
