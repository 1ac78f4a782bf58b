//! The whole site: its generated pages are there, no link is dead, and the table of contents has every page. Man pages
//! and completions of every command.

use crate::recorded::{ROOT, record};
use headstart_reference::{commands, site};
use std::fs;
use std::path::Path;

#[test]
fn the_site_has_every_page_and_no_dead_link() {
    let directory = tempfile::tempdir().unwrap();
    let said = directory.path().join("recorded");
    if !record(&said) {
        return;
    }
    let book = directory.path().join("book");
    site::write(Path::new(ROOT), &said, &book).unwrap();
    let page = |path: &str| fs::read_to_string(book.join("src").join(path)).unwrap();
    for (path, parts) in [
        ("reference/headstart.md", &["`headstart attach`", "--json"][..]),
        ("reference/commands/headstart-image.md", &["## headstart image import", "`--codec <CODEC>`"]),
        ("reference/commands/headstart-lab-trace.md", &["## headstart-lab trace plot"]),
        (
            "reference/metrics.md",
            &["`headstart_request_seconds`", "headstart_agent_proxy_requests_total", "`vssd`"],
        ),
        ("reference/rest-agent.md", &["### `POST /v1/disks`", "[DiskSpec](#diskspec)"]),
        ("reference/rest-harvest.md", &["### `GET /v1/vssds`"]),
        ("reference/formats/swarm.md", &["`Have`", "1 hello"]),
        ("reference/json-schemas.md", &["## `image inspect`", "`virtual_size`"]),
        ("reference/json/image-inspect.schema.json", &["virtual_size", "$schema"]),
        ("reference/timers.md", &["| 5 s |"]),
    ] {
        let text = page(path);
        for part in parts {
            assert!(text.contains(part), "{part} is not in {path}");
        }
    }
    assert!(page("SUMMARY.md").contains("](reference/commands/headstart-image.md)"));
    assert!(book.join("book.toml").exists());
}

#[test]
fn every_command_has_a_man_page_and_every_shell_its_completions() {
    let directory = tempfile::tempdir().unwrap();
    commands::dist(directory.path()).unwrap();
    let man = |name: &str| fs::read_to_string(directory.path().join("man").join(name)).unwrap();
    assert!(
        man("headstart-image-import.1").contains("headstart image import")
            || man("headstart-image-import.1").contains("import")
    );
    assert!(man("headstart.1").contains(".SH"));
    for (file, part) in [
        ("headstart.bash", "complete"),
        ("headstart.fish", "complete -c headstart"),
        ("_headstart", "#compdef headstart"),
    ] {
        let text = fs::read_to_string(directory.path().join("completions").join(file)).unwrap();
        assert!(text.contains(part) && text.contains("optimize"), "{file}");
    }
    for (file, part) in [
        ("headstart-lab.bash", "complete"),
        ("headstart-lab.fish", "complete -c headstart-lab"),
        ("_headstart-lab", "#compdef headstart-lab"),
    ] {
        let text = fs::read_to_string(directory.path().join("completions").join(file)).unwrap();
        assert!(text.contains(part) && text.contains("simulate"), "{file}");
    }
}
