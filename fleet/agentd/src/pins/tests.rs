use super::*;
use headstart_hash_tree::{TreeRoot, outboard_len};
use headstart_image::manifest::{Config, ImageLayer, NewImage, Tree};

/// An image of one layer, kept by these hosts.
pub(crate) fn pin(layer: u8, hosts: &[&str], copies: u32, since: u64) -> Pin {
    let root = TreeRoot::from_bytes([layer; 32]);
    let tree = Tree { root, digest: Digest::of(&[layer, 1]), size: outboard_len(5 << 20) };
    let layers = vec![ImageLayer::new(Digest::of(&[layer]), 5 << 20, tree)];
    let (options, config) = (String::new(), Config::default());
    let image = NewImage {
        layers,
        virtual_size: 1 << 30,
        options,
        config,
        optimized_from: None,
        converted_from: None,
        belongs_to: None,
    };
    let manifest = image.documents().unwrap().manifest;
    let digest = Digest::of(&manifest).to_string();
    let hosts: Vec<_> = hosts.iter().map(ToString::to_string).collect();
    let is_kept = !hosts.is_empty();
    let manifest = if is_kept { String::from_utf8(manifest).unwrap() } else { String::new() };
    let (image, store) = (format!("image {layer}"), "https://host/images".to_owned());
    Pin { image, digest, manifest, store, copies, hosts, since }
}

fn pins(dir: &tempfile::TempDir) -> Pins {
    Pins::load(dir.path().join("pins")).unwrap()
}

#[test]
fn the_newest_counts_and_the_next_agent_knows() {
    let dir = tempfile::tempdir().unwrap();
    let mut known = pins(&dir);
    let first = pin(1, &["a", "b"], 2, 10);
    assert!(known.insert(&first).unwrap());
    assert!(!known.insert(&first).unwrap() && !known.insert(&pin(1, &["a"], 1, 9)).unwrap());
    for name in ["image 1", &format!("https://host/images@{}", first.digest)] {
        assert_eq!(known.named(name).as_slice(), std::slice::from_ref(&first));
    }
    assert_eq!(known.next_since(&first.digest).saturating_sub(now()), 0);
    let moved = pin(1, &["b", "c"], 1, 11);
    assert!(known.insert(&moved).unwrap());
    let (order, holding) = known.holdings().into_values().next().unwrap();
    assert_eq!((order.len, &*holding), (5 << 20, &Holding::new(&moved.hosts, 1)));
    let read = pins(&dir);
    assert_eq!(read.kept().collect::<Vec<_>>(), [&moved]);
    // No host keeps it any more, and an older pin does not change that.
    let over = Pin { digest: moved.digest.clone(), ..pin(1, &[], 0, 12) };
    assert!(known.insert(&over).unwrap() && !known.insert(&moved).unwrap());
    assert!(pins(&dir).holdings().is_empty());
}

#[test]
fn hosts_learn_what_they_missed() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (mut here, mut there) = (pins(&here), pins(&there));
    for layer in 1..5 {
        here.insert(&pin(layer, &["a", "b"], 1, 10)).unwrap();
    }
    there.insert(&pin(1, &["a", "b"], 1, 10)).unwrap();
    there.insert(&pin(2, &["a"], 1, 11)).unwrap();
    let told = here.unknown_to(&there.known());
    assert_eq!(told.iter().map(|pin| pin.image.as_str()).collect::<Vec<_>>().len(), 3);
    let news = told.iter().filter(|pin| there.insert(pin).unwrap()).count();
    assert_eq!(news, 2, "of one it knows better");
    let back = there.unknown_to(&here.known());
    assert_eq!(back.iter().filter(|pin| here.insert(pin).unwrap()).count(), 1);
    assert!(here.unknown_to(&there.known()).is_empty());
}

/// Two images have a layer in common, and all hosts agree on its holders.
#[test]
fn of_a_shared_blob_the_newest_pin_counts() {
    let dir = tempfile::tempdir().unwrap();
    let mut known = pins(&dir);
    known.insert(&pin(1, &["a"], 1, 10)).unwrap();
    let other = Pin { store: "https://other/images".to_owned(), ..pin(1, &["b"], 1, 11) };
    let text = other.manifest.replace('}', " }");
    let other = Pin { digest: Digest::of(text.as_bytes()).to_string(), manifest: text, ..other };
    known.insert(&other).unwrap();
    let all: Vec<_> = known.holdings().into_values().collect();
    assert_eq!(all.len(), 1);
    assert_eq!((&all[0].0.store, &*all[0].1), (&other.store, &Holding::new(&other.hosts, 1)));
}

#[test]
fn nonsense_is_no_pin() {
    let dir = tempfile::tempdir().unwrap();
    let mut known = pins(&dir);
    let good = pin(1, &["a", "b"], 2, 10);
    let wrong = [
        Pin { copies: 0, ..good.clone() },
        Pin { copies: 3, ..good.clone() },
        Pin { digest: "sha256:1".to_owned(), ..good.clone() },
        Pin { manifest: format!("{} ", good.manifest), ..good.clone() },
        Pin { since: u64::MAX, ..good.clone() },
        Pin { store: "x".repeat(5000), ..good.clone() },
        Pin { hosts: vec!["x".repeat(2000), "y".to_owned()], ..good.clone() },
    ];
    for wrong in &wrong {
        assert!(known.insert(wrong).is_err(), "{wrong:?}");
    }
    assert!(known.insert(&good).unwrap());
    for text in ["", "{}", "{\"version\":2,\"pins\":[]}"] {
        std::fs::write(dir.path().join("pins"), text).unwrap();
        assert!(Pins::load(dir.path().join("pins")).is_err(), "{text}");
    }
}

/// An ended pin makes room for the next one; if the next one cannot be stored, the ended one stays.
#[test]
fn an_ended_pin_stays_if_its_successor_cannot_be_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut known = pins(&dir);
    let of = |number: usize, hosts: &[&str]| {
        let digest = Digest::of(&number.to_le_bytes()).to_string();
        (digest.clone(), Pin { digest, ..pin(1, hosts, 1, number as u64) })
    };
    known.pins.extend((1..PINS_MAX).map(|number| of(number, &["a"])));
    known.pins.extend([of(PINS_MAX, &[])]);
    let (before, next) = (known.pins.clone(), pin(2, &["a", "b"], 2, 10));
    let path = std::mem::replace(&mut known.path, dir.path().join("none/pins"));
    assert!(known.insert(&next).is_err());
    assert!(known.pins == before, "nothing changed");
    known.path = path;
    assert!(known.insert(&next).unwrap());
    assert_eq!((known.pins.len(), known.kept().count()), (PINS_MAX, PINS_MAX));
    assert!(known.insert(&pin(3, &["a"], 1, 10)).is_err(), "all are kept");
}
