//! Tests of the standing of leases and of their files.

use super::*;
use proptest::prelude::*;

fn host(name: &str, machine: Option<&str>, boot: &str) -> HostId {
    HostId {
        name: name.to_owned(),
        machine: machine.map(str::to_owned),
        boot: boot.to_owned(),
        root: None,
        pids: None,
    }
}

fn lease(holder: LeaseHolder, host: HostId) -> Lease {
    Lease::new(holder, Digest::of(b"i"), vec![Digest::of(b"l")], "file:///s:t".to_owned(), host)
}

fn writable() -> LeaseHolder {
    LeaseHolder::Writable { dir: "/vm".into(), uuid: "u".to_owned(), filesystem: "1".to_owned() }
}

fn any_host() -> impl Strategy<Value = HostId> {
    let machine = prop::option::of(prop::sample::select(vec!["m", "n"]));
    let name = prop::sample::select(vec!["a", "b"]);
    let root = prop::option::of((1..3_u64, 1..3_u64));
    (name, machine, prop::sample::select(vec!["1", "2"]), root).prop_map(|(name, machine, boot, root)| {
        let root = root.map(|(device, inode)| Root { device, inode });
        HostId { root, ..host(name, machine, boot) }
    })
}

proptest! {
    /// A lease is over only where a living holder could not be missed.
    #[test]
    fn only_what_is_known_here_is_over(
        of in any_host(), here in any_host(), is_locked: bool, is_on_local_filesystem: bool,
        record_seen in prop::sample::select(vec![RecordSeen::Holds, RecordSeen::IsGone, RecordSeen::Unknown]),
        is_writable: bool, may_have_record: bool,
        directory in prop::sample::select(
            vec![DirectorySeen::Holds, DirectorySeen::IsGone, DirectorySeen::Unknown]),
    ) {
        let record = may_have_record.then(|| PathBuf::from("/run/vm.images"));
        let holder = if is_writable { writable() } else { LeaseHolder::Attach { record } };
        let is_same_root = match (of.root, here.root) {
            (Some(a), Some(b)) => a.inode == b.inode && (a.device == b.device || of.boot != here.boot),
            _ => true,
        };
        let needs_root = is_writable || may_have_record;
        let record = record_seen;
        let process_is_gone = false;
        let seen = LeaseFacts { is_locked, is_on_local_filesystem, record, process_is_gone, directory };
        let standing = lease(holder, of.clone()).standing(&here, &seen);
        let same_machine = of.machine.is_some() && of.machine == here.machine && of.name == here.name;
        let is_this_host = of.boot == here.boot || same_machine && is_on_local_filesystem;
        let is_there = is_locked
            || if is_writable {
                directory == DirectorySeen::Holds
            } else {
                may_have_record && record_seen == RecordSeen::Holds
            };
        let cannot_tell = if is_writable {
            directory == DirectorySeen::Unknown
        } else {
            may_have_record && record_seen == RecordSeen::Unknown
        };
        match standing {
            Standing::Over => {
                prop_assert!(is_this_host && !is_there && !is_locked && !cannot_tell);
                prop_assert!(is_same_root || !needs_root);
                prop_assert!(!is_writable || directory == DirectorySeen::IsGone);
            }
            Standing::Held => prop_assert!(is_there),
            Standing::Foreign => prop_assert!(
                !is_locked && (!is_this_host || !is_same_root && needs_root || cannot_tell)),
        }
    }

    #[test]
    fn a_lease_round_trips(of in any_host(), is_writable: bool, record: bool) {
        let record = record.then(|| PathBuf::from("/run/vm.images"));
        let holder = if is_writable { writable() } else { LeaseHolder::Attach { record } };
        let lease = lease(holder, of);
        prop_assert_eq!(Lease::parse(&lease.to_bytes().unwrap()).unwrap(), lease);
    }
}

#[test]
fn a_lease_is_locked_while_it_is_held() {
    let dir = tempfile::tempdir().unwrap();
    let layout = LayoutDir::create_or_open(dir.path()).unwrap();
    assert!(layout.leases().unwrap().is_empty());
    let of = lease(LeaseHolder::Attach { record: None }, HostId::here().unwrap());
    let held = layout.hold(&layout.lock().unwrap(), "x", &of).unwrap();
    let found = layout.leases().unwrap();
    assert_eq!(found.len(), 1);
    assert!(found[0].is_locked && *found[0].lease.as_ref().unwrap() == of);
    drop(held);
    assert!(layout.leases().unwrap().is_empty());
    // With a record it outlives its process, and without one no longer.
    let record = dir.path().join("record");
    fs::write(&record, "").unwrap();
    let of = lease(LeaseHolder::Attach { record: Some(record.clone()) }, HostId::here().unwrap());
    drop(layout.hold(&layout.lock().unwrap(), "x", &of).unwrap());
    // A program that another test starts meanwhile has the lock, too, until it is executed.
    let is_free = |()| {
        std::thread::yield_now();
        layout.leases().unwrap().iter().all(|found| !found.is_locked)
    };
    assert!(std::iter::repeat_n((), 100_000).any(is_free));
    let held = layout.hold(&layout.lock().unwrap(), "x", &of).unwrap();
    fs::remove_file(record).unwrap();
    drop(held);
    assert!(layout.leases().unwrap().is_empty());
}

#[test]
fn a_kept_lease_is_written_once() {
    let dir = tempfile::tempdir().unwrap();
    let layout = LayoutDir::create_or_open(dir.path()).unwrap();
    let of = lease(writable(), HostId::here().unwrap());
    let keep = |lease: &Lease| {
        layout.keep_lease(&layout.lock().unwrap(), "w", lease).unwrap();
        layout.leases().unwrap().remove(0)
    };
    let first = keep(&of);
    assert!(!first.is_locked);
    assert_eq!(keep(&Lease { pid: 1, ..of.clone() }).written, first.written);
    let other = Lease { image: Digest::of(b"other"), ..of };
    assert_eq!(keep(&other).lease.unwrap().image, Digest::of(b"other"));
    // Leases that cannot be understood are found, and reported.
    fs::write(layout.leases_dir().join("w"), "{\"version\": 2}").unwrap();
    fs::write(layout.leases_dir().join("z"), "{").unwrap();
    let found = layout.leases().unwrap();
    let kinds: Vec<_> = found.iter().map(|found| found.lease.as_ref().unwrap_err().kind()).collect();
    assert_eq!(kinds, [ErrorKind::Unsupported, ErrorKind::Corrupt]);
    assert!(found.iter().all(|found| !found.is_torn()));
    // Except for one of a process that a power cut ended.
    fs::write(layout.leases_dir().join("attach-1"), "").unwrap();
    assert!(layout.leases().unwrap()[0].is_torn());
    layout.remove_lease("attach-1").unwrap();
    layout.remove_lease("w").unwrap();
    layout.remove_lease("w").unwrap();
    assert_eq!(layout.leases().unwrap().len(), 1);
}

#[test]
fn only_a_process_that_the_kernel_does_not_know_is_gone() {
    let gone = |pid, host: HostId| Lease { pid, ..lease(writable(), host) }.process_is_gone();
    let here = || HostId::here().unwrap();
    // The first process belongs to root, whatever user runs this.
    assert!(!gone(std::process::id(), here()) && !gone(1, here()));
    // No kernel gives out a number as large as this.
    assert!(gone(1 << 30, here()));
    assert!(!gone(1 << 30, HostId { boot: "another".to_owned(), ..here() }));
    assert!(!gone(u32::MAX, here()) && !gone(0, here()));
}
