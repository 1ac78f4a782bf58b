//! Disks opened and served by the library alone, without a command line.

#![allow(clippy::unwrap_used, reason = "tests")]

use headstart_block::BlockDevice;
use headstart_cache::PageCache;
use headstart_diskd::{
    Copies, DiskRequest, DiskSession, Environment, PlanPolicy, PriorImage, RecordSettings, ServerSettings,
    Servers, SessionSettings,
};
use headstart_export::nbd::Address;
use headstart_export::{Leftover, SocketAccess};
use headstart_image::disk_file::DiskFile;
use headstart_image::import::import_disk;
use headstart_image::named_image::NamedImage;
use headstart_image::new_layer::Packing;
use headstart_image::progress::Silent;
use headstart_pull::Plan;
use headstart_store::{Reference, StoreSettings};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// The limit of every wait: a test that hangs fails.
const LIMIT: Duration = Duration::from_secs(60);

/// The only byte of the disk's content.
const BYTE: u8 = 0x5a;

/// An image in a directory, and what a program has that serves it.
struct Host {
    dir: TempDir,
    reference: Reference,
    runtime: Runtime,
    stores: StoreSettings,
    copies: Copies,
}

impl Host {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.raw");
        std::fs::write(&path, vec![BYTE; 1 << 20]).unwrap();
        let reference: Reference = format!("file://{}/store:v1", dir.path().display()).parse().unwrap();
        let disk = DiskFile { path, format: None, allowed_dirs: Vec::new() };
        import_disk(&disk, None, &reference, &Packing::default(), &Silent).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        Self { dir, reference, runtime, stores: StoreSettings::default(), copies: Copies::default() }
    }

    /// The settings of a disk of the image with a writable directory.
    fn settings(&self, writable: Option<PathBuf>) -> SessionSettings {
        let image = NamedImage { name: String::new(), reference: self.reference.clone() };
        SessionSettings {
            disks: vec![DiskRequest { image, prior: PriorImage::None }],
            writable,
            keep_base: false,
            size: None,
            writable_max: None,
            cache: Some(self.dir.path().join("cache")),
            cache_size: None,
            page_cache: PageCache::default(),
            policy: PlanPolicy::Fixed(Plan::Lazy),
            plans: None,
            lowest: None,
            uppers: Vec::new(),
            whole_blocks: false,
            fill: None,
            require_tree: false,
            cached_although_denied: false,
            offline_limit: None,
            deadline: Some(LIMIT),
            recording: RecordSettings {
                expected_entrypoint: String::new(),
                enabled: false,
                directory: None,
                time: LIMIT,
                size: headstart_block::ByteSize(1 << 20),
                age: LIMIT,
                labels: Vec::new(),
            },
            images_record: None,
            warn_of_silence: false,
        }
    }

    fn open(&self, settings: &SessionSettings) -> DiskSession {
        let environment = Environment {
            stores: &self.stores,
            copies: &self.copies,
            runtime: self.runtime.handle(),
            swarm: None,
            progress: &Silent,
            notify: &|_| {},
        };
        DiskSession::open(settings, &environment).unwrap()
    }
}

#[test]
fn a_program_serves_a_disk_with_the_library_alone() {
    let host = Host::new();
    let session = host.open(&host.settings(None));
    let socket = host.dir.path().join("disk.sock");
    let settings = ServerSettings {
        nbd: vec![Address::Unix(socket.clone())],
        tls: None,
        vhost_user: None,
        queues: None,
        fuse: None,
        keeper: None,
        kept: None,
        ublk: false,
        device: None,
        deadline: LIMIT,
        allow_resize: false,
        access: SocketAccess::default(),
        socket_record: None,
        leftover: Leftover::IsUnknown,
    };
    let mut servers = Servers::start(&settings, None, &session).unwrap();
    session.is_served();
    let uris: Vec<_> = servers.addresses.iter().map(|address| address.uri.clone()).collect();
    assert!(uris.len() == 1 && uris[0].contains("disk.sock"), "{uris:?}");
    let mut client = UnixStream::connect(&socket).unwrap();
    client.set_read_timeout(Some(LIMIT)).unwrap();
    let mut greeting = [0; 8];
    client.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"NBDMAGIC");
    let mut content = vec![0; 4096];
    session.disks[0].disk.read_at(&mut content, 8192).unwrap();
    assert!(content.iter().all(|byte| *byte == BYTE));
    drop(client);
    servers.stop().unwrap();
    session.close(true).unwrap();
}

#[test]
fn a_directory_that_was_made_for_a_disk_stays_if_the_disk_was_served() {
    let host = Host::new();
    let parent = host.dir.path().join("made");
    let writable = parent.join("vm");
    let settings = host.settings(Some(writable.clone()));

    let given_up = host.open(&settings);
    assert!(writable.exists());
    given_up.give_up();
    drop(given_up);
    assert!(!parent.exists(), "it was made for a disk that was not served");

    let served = host.open(&settings);
    served.is_served();
    served.close(true).unwrap();
    drop(served);
    assert!(writable.exists());
}
