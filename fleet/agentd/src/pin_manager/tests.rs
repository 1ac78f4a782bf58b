//! Orders of other hosts, from hosts that mean harm: none makes this host use its credentials for it, and only
//! operators are obeyed. Real certificates, real TLS, and a store that counts its requests.

use crate::pin_manager::{CommandLoop, PinManager};
use crate::pins::tests::pin;
use crate::stores::Stores;
use headstart_block::Digest;
use headstart_cache::BlobSpec;
use headstart_hash_tree::{TreeRoot, outboard_len};
use headstart_image::manifest::Tree;
use headstart_peer_net::complaints::{Cause, REFUSED_MAX};
use headstart_peer_net::frame::{self, FrameKind, REFUSED_ORDER, decode_refusal, push_frame};
use headstart_peer_net::order::Order;
use headstart_peer_net::pin::Pin;
use headstart_peer_net::remote_commands::RemoteCommand;
use headstart_peer_net::testing::{Cluster, Rogue, TestHost, ask, sample};
use headstart_swarm::{Message, Role};
use std::io::{Read, Write};
use std::net::TcpListener as StdListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A web server with one blob, whose requests are counted.
struct Web {
    url: String,
    requests: Arc<AtomicU64>,
}

impl Web {
    fn with(blob: &[u8]) -> Self {
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/images", listener.local_addr().unwrap());
        let requests = Arc::new(AtomicU64::new(0));
        let (counted, blob) = (Arc::clone(&requests), blob.to_vec());
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let (counted, blob) = (Arc::clone(&counted), blob.clone());
                std::thread::spawn(move || serve(socket.unwrap(), &counted, &blob));
            }
        });
        Self { url, requests }
    }

    fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }
}

/// Answers each request with the requested range of the blob.
fn serve(mut socket: std::net::TcpStream, counted: &AtomicU64, blob: &[u8]) -> Option<()> {
    let mut head = Vec::new();
    loop {
        let mut byte = [0];
        socket.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
        if !head.ends_with(b"\r\n\r\n") {
            continue;
        }
        counted.fetch_add(1, Ordering::SeqCst);
        let text = String::from_utf8_lossy(&head).to_lowercase();
        let range = text.split_once("range: bytes=")?.1.split_once("\r\n")?.0;
        let (first, last) = range.split_once('-')?;
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        let Some(part) = blob.get(first..=last) else {
            socket.write_all(b"HTTP/1.1 416 x\r\nContent-Length: 0\r\n\r\n").ok()?;
            head.clear();
            continue;
        };
        let answer = format!(
            "HTTP/1.1 206 x\r\nContent-Length: {}\r\nContent-Range: bytes {range}/{}\r\n\r\n",
            part.len(),
            blob.len()
        );
        socket.write_all(&[answer.as_bytes(), part].concat()).ok()?;
        head.clear();
    }
}

/// A host that obeys, and a host that means harm.
struct Scene {
    cluster: Cluster,
    victim: TestHost,
    pin_manager: Arc<PinManager>,
    stores: Arc<Stores>,
    rogue: Rogue,
    _command_loop: CommandLoop,
}

impl Scene {
    /// The other host has the certificate of `rogue`; `allowed` are the stores that the host's operator allows.
    fn new(rogue: &str, allowed: &[&str]) -> Self {
        let cluster = Cluster::new(&["victim", rogue]);
        let victim = cluster.host("victim", Role::Agent, &[]);
        let dir = cluster.dir.path().join("state");
        std::fs::create_dir(&dir).unwrap();
        let allowed = allowed.iter().map(|text| text.parse().unwrap()).collect();
        let stores = Arc::new(Stores::new(headstart_store::StoreSettings::default(), allowed));
        let pin_manager =
            PinManager::new(Arc::clone(&victim.swarm), Arc::clone(&stores), &dir, victim.cache.dir());
        let entered = cluster.runtime.enter();
        let command_loop = pin_manager.follow_commands();
        drop(entered);
        let address = ("victim", victim.swarm.address());
        let rogue = Rogue::connect(&cluster, &cluster.credentials(rogue), address).unwrap();
        Self { cluster, victim, pin_manager, stores, rogue, _command_loop: command_loop }
    }

    fn order(&mut self, number: u32, word: &RemoteCommand) {
        let mut frame = Vec::new();
        push_frame(&mut frame, FrameKind::Order, number, 0, &word.encode().unwrap());
        self.rogue.send(&self.cluster, &frame);
    }

    /// The host's answer to an order: the fetched bytes, the missing bytes, and the reason.
    fn outcome(&mut self, number: u32) -> (u64, u64, String) {
        let mut why = String::new();
        loop {
            let (header, body) = self.rogue.next(&self.cluster).expect("it answers");
            match header.kind {
                FrameKind::Refused if (header.a, header.b) == (number, REFUSED_ORDER) => {
                    why = decode_refusal(&body).unwrap();
                }
                FrameKind::Done if header.a == number => {
                    let number = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().unwrap());
                    return (number(0), number(8), why);
                }
                _ => {}
            }
        }
    }

    /// The answer to whichever order is done next.
    fn outcome_of_any(&mut self) -> (u64, u64, u32) {
        loop {
            let (header, body) = self.rogue.next(&self.cluster).expect("it answers");
            if header.kind == FrameKind::Done {
                let number = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().unwrap());
                return (number(0), number(8), header.a);
            }
        }
    }

    /// The pins that the host sends, up to its answer to a later request.
    fn pins_told(&mut self) -> Vec<Pin> {
        self.rogue.say(&self.cluster, &ask(99, 4242, 0));
        let mut told = Vec::new();
        loop {
            let (header, body) = self.rogue.next(&self.cluster).expect("it answers");
            match header.kind {
                FrameKind::Order => match postcard::from_bytes(&body).unwrap() {
                    RemoteCommand::Pin(pin) => told.push(*pin),
                    RemoteCommand::Known(_) => {}
                    other => unreachable!("{other:?}"),
                },
                FrameKind::Message if matches!(frame::decode_message(&body), Ok(Message::Reject { .. })) => {
                    return told;
                }
                _ => {}
            }
        }
    }
}

/// A private blob, and an order that names it as the hash tree of a blob that does not exist.
fn theft(seed: u64, store: &str) -> (Vec<u8>, Order, [u8; 32]) {
    let secret = sample(280_008, seed).bytes;
    let (digest, root) = (Digest::of(&secret), [7; 32]);
    // The greatest length of a tree's outboard that is no longer than the blob.
    let groups = (secret.len() as u64 - 8) / 64 + 1;
    let len = groups * 16384;
    assert_eq!(outboard_len(len), secret.len() as u64);
    let tree = Tree { root: TreeRoot::from_bytes(root), digest, size: outboard_len(len) };
    (secret, Order::of(Digest::of(b"no such blob"), len, &tree, store.to_owned()), root)
}

/// Requests all chunks of the blob that an order names as an outboard; returns the number of received bytes.
fn steal(scene: &mut Scene, order: &Order, root: &[u8; 32]) -> usize {
    let spec = BlobSpec { digest: order.tree_digest.parse().unwrap(), ..order.spec().unwrap() };
    scene.rogue.prove(&scene.cluster, 1, &spec, root);
    let (mut came, chunks) = (0, u32::try_from(order.tree_len.div_ceil(65536)).unwrap());
    for chunk in 0..chunks {
        scene.rogue.say(&scene.cluster, &ask(100 + chunk, 1, chunk));
    }
    let mut refused = 0;
    while refused < chunks {
        let (header, body) = scene.rogue.next(&scene.cluster).expect("it answers");
        match header.kind {
            FrameKind::Chunk => {
                came += body.len();
                refused += 1;
            }
            FrameKind::Message => {
                let is_no = matches!(frame::decode_message(&body), Ok(Message::Reject { .. }));
                refused += u32::from(is_no);
            }
            _ => {}
        }
    }
    came
}

/// The worst case: an operator, and a store that this host may be told to use.
#[test]
fn a_blob_that_is_called_a_hash_tree_is_not_served_even_to_an_operator() {
    let (secret, mut order, root) = theft(31, "");
    let web = Web::with(&secret);
    let mut scene = Scene::new("operator", &[web.url.as_str()]);
    order.store.clone_from(&web.url);
    order.parts = vec![(0, 64 << 10), (order.len - (64 << 10), 64 << 10)];
    scene.order(1, &RemoteCommand::Bring(order.clone()));
    let (_, lacking, _) = scene.outcome(1);
    assert!(lacking > 0 && web.requests() > 0, "it is fetched, and is no hash tree");
    assert_eq!(steal(&mut scene, &order, &root), 0);
    assert_eq!(scene.victim.swarm.counters().sent_bytes, 0);
}

#[test]
fn a_store_that_nobody_named_here_is_not_asked_and_the_asker_is_told() {
    let (secret, mut order, _) = theft(34, "");
    let web = Web::with(&secret);
    let mut scene = Scene::new("operator", &["https://elsewhere.example/images"]);
    for store in
        [web.url.clone(), format!("{}/../images", web.url), "file:///".to_owned(), "oci://x/y".to_owned()]
    {
        order.store = store;
        scene.order(1, &RemoteCommand::Bring(order.clone()));
        let (bytes, lacking, why) = scene.outcome(1);
        assert!(bytes > 0 && lacking == bytes, "{lacking} of {bytes}");
        assert!(why.contains("--allow-store"), "{}: {why}", order.store);
    }
    assert_eq!(web.requests(), 0);
    // A disk that is attached from the store makes it usable, as long as it is attached.
    let attached = scene.stores.attach(&web.url);
    order.store.clone_from(&web.url);
    scene.order(2, &RemoteCommand::Bring(order.clone()));
    // The store has no such blob, which is the answer then.
    let why = scene.outcome(2).2;
    assert!(!why.contains("--allow-store") && why.contains("416"), "{why}");
    assert!(web.requests() > 0);
    drop(attached);
    scene.order(3, &RemoteCommand::Bring(order));
    assert!(scene.outcome(3).2.contains("--allow-store"));
}

#[test]
fn orders_of_a_host_without_the_operator_role_are_refused() {
    let (secret, mut order, root) = theft(35, "");
    let web = Web::with(&secret);
    let mut scene = Scene::new("member", &[web.url.as_str()]);
    order.store.clone_from(&web.url);
    let kept = pin(1, &["victim"], 1, 10);
    let (pin_manager, own) = (Arc::clone(&scene.pin_manager), kept.clone());
    let pinned = scene.cluster.runtime.spawn(async move { pin_manager.pin(&own).await });
    scene.cluster.runtime.block_on(pinned).unwrap().unwrap();
    let since = u64::MAX / 2;
    let unpinned = Pin { hosts: Vec::new(), manifest: String::new(), since, ..kept.clone() };
    let later = Pin { hosts: vec!["member".to_owned()], since: 20, ..kept };
    for (number, word) in [
        (1, RemoteCommand::Bring(order.clone())),
        (2, RemoteCommand::Pin(Box::new(unpinned))),
        (3, RemoteCommand::Pin(Box::new(later))),
    ] {
        scene.order(number, &word);
        let (bytes, lacking, why) = scene.outcome(number);
        assert_eq!(bytes, lacking);
        assert!(why.contains("role `operator`"), "{why}");
    }
    assert_eq!(steal(&mut scene, &order, &root), 0);
    assert_eq!(web.requests(), 0);
    let pin_manager = Arc::clone(&scene.pin_manager);
    let pins = scene.cluster.runtime.block_on(async move { pin_manager.pinned().await });
    assert_eq!(pins.iter().map(|pin| pin.hosts.as_slice()).collect::<Vec<_>>(), [["victim".to_owned()]]);
    // A host that knows no image does not get the manifest, which contains the roots of the image's trees.
    scene.order(4, &RemoteCommand::Known(Vec::new()));
    assert_eq!(scene.pins_told(), []);
}

/// Makes a root obey, which may use stores below `allowed`, and connects a harmful member to it.
fn obeying_before_a_member(cluster: &Cluster, victim: &TestHost, allowed: &[&str]) -> (CommandLoop, Rogue) {
    let allowed = allowed.iter().map(|prefix| prefix.parse().unwrap()).collect();
    let stores = Stores::new(headstart_store::StoreSettings::default(), allowed);
    let pin_manager =
        PinManager::new(Arc::clone(&victim.swarm), Arc::new(stores), cluster.dir.path(), victim.cache.dir());
    let entered = cluster.runtime.enter();
    let command_loop = pin_manager.follow_commands();
    drop(entered);
    let address = ("victim", victim.swarm.address());
    (command_loop, Rogue::connect(cluster, &cluster.credentials("member"), address).unwrap())
}

#[test]
fn a_root_takes_part_in_nothing_that_lies_in_a_store_which_nobody_named_there() {
    let (secret, mut order, _) = theft(36, "");
    let web = Web::with(&secret);
    for (is_allowed, allowed) in [(false, "https://elsewhere.example"), (true, web.url.as_str())] {
        let cluster = Cluster::new(&["victim", "member"]);
        let victim = cluster.host("victim", Role::Root, &[]);
        let (_command_loop, mut rogue) = obeying_before_a_member(&cluster, &victim, &[allowed]);
        order.store.clone_from(&web.url);
        let mut frame = Vec::new();
        push_frame(&mut frame, FrameKind::Order, 1, 0, &RemoteCommand::Open(order.clone()).encode().unwrap());
        rogue.send(&cluster, &frame);
        if is_allowed {
            cluster.wait_until("it takes part", || victim.swarm.status().blobs.len() == 1);
            continue;
        }
        let (header, body) = loop {
            let frame = rogue.next(&cluster).expect("it answers");
            if frame.0.kind == FrameKind::Refused {
                break frame;
            }
        };
        assert_eq!(header.b, REFUSED_ORDER);
        assert!(decode_refusal(&body).unwrap().contains("--allow-store"));
        assert_eq!(victim.swarm.status().blobs.len(), 0);
    }
}

/// No member takes all the places that a root has for stores.
#[test]
fn a_member_names_so_many_stores_to_a_root_and_no_more() {
    let cluster = Cluster::new(&["victim", "member"]);
    let victim = cluster.host("victim", Role::Root, &[]);
    let all = "http://127.0.0.1:9/images";
    let (_command_loop, mut rogue) = obeying_before_a_member(&cluster, &victim, &[all]);
    let mut name = |blob: u8, store: u8| {
        let len = 1 << 20;
        let tree = Tree {
            root: TreeRoot::from_bytes([blob; 32]),
            digest: Digest::of(&[blob, 1]),
            size: outboard_len(len),
        };
        let order = Order::of(Digest::of(&[blob]), len, &tree, format!("{all}/{store}"));
        let mut frame = Vec::new();
        push_frame(
            &mut frame,
            FrameKind::Order,
            blob.into(),
            0,
            &RemoteCommand::Open(order).encode().unwrap(),
        );
        rogue.send(&cluster, &frame);
        let is_open = |count| victim.swarm.status().blobs.len() == count;
        if usize::from(store) < 128 {
            cluster.wait_until("it takes part", || is_open(usize::from(blob) + 1));
            return String::new();
        }
        loop {
            let (header, body) = rogue.next(&cluster).expect("it answers");
            if (header.kind, header.b) == (FrameKind::Refused, REFUSED_ORDER) {
                return decode_refusal(&body).unwrap();
            }
        }
    };
    for blob in 0..128 {
        name(blob, blob);
    }
    let why = name(128, 128);
    assert!(why.contains("names more than 128 stores"), "{why}");
    // Another blob of a store that it has named takes no place.
    name(128, 5);
}

/// The claims of an order are checked before any space is taken for it.
#[test]
fn an_order_takes_no_space_for_what_it_says() {
    let web = Web::with(b"nothing of it");
    let mut scene = Scene::new("operator", &[web.url.as_str()]);
    let len = 1 << 40;
    let order = |n: u8, parts: Vec<(u64, u64)>| {
        let tree = Tree {
            root: TreeRoot::from_bytes([n; 32]),
            digest: Digest::of(&[n, 1]),
            size: outboard_len(len),
        };
        RemoteCommand::Bring(Order { parts, ..Order::of(Digest::of(&[n]), len, &tree, web.url.clone()) })
    };
    // The order is for more bytes than the cache can hold.
    scene.order(1, &order(1, Vec::new()));
    let (bytes, lacking, why) = scene.outcome(1);
    assert!(bytes == lacking && why.contains("--cache-size"), "{why}");
    for n in 2..10 {
        scene.order(n.into(), &order(n, vec![(0, 1 << 20)]));
    }
    for n in 2..10 {
        let (_, lacking, _) = scene.outcome_of_any();
        assert!(lacking > 0, "{n}");
    }
    let taken: u64 = std::fs::read_dir(scene.victim.cache.dir())
        .unwrap()
        // A temporary file may be gone by now.
        .filter_map(|entry| Some(std::os::unix::fs::MetadataExt::blocks(&entry.ok()?.metadata().ok()?) * 512))
        .sum();
    assert!(taken < 16 << 20, "{taken} bytes for nine orders of 1 TiB");
}

#[test]
fn a_peer_that_orders_without_end_and_reads_no_answer_is_disconnected() {
    let (_, order, _) = theft(36, "");
    let mut scene = Scene::new("member", &[]);
    let mut frame = Vec::new();
    push_frame(&mut frame, FrameKind::Order, 1, 0, &RemoteCommand::Bring(order).encode().unwrap());
    let many = frame.repeat(1000);
    let sent = (0..400).take_while(|_| scene.rogue.sends(&scene.cluster, &many));
    assert!(sent.count() < 400, "400,000 refusals wait for it");
    scene.cluster.wait_until("it is disconnected", || scene.victim.is_connected_to(0));
}

/// The orders have words of the member's own choosing, and it reads all answers.
#[test]
fn refused_orders_without_end_fill_no_log_and_disconnect_their_sender() {
    const AT_ONCE: usize = 256;
    let (_, mut order, _) = theft(37, "");
    order.store = format!("http://{}/x", "\u{7}".repeat(190));
    let cluster = Cluster::new(&["victim", "member"]);
    let victim = cluster.host("victim", Role::Root, &[]);
    let (_command_loop, mut rogue) = obeying_before_a_member(&cluster, &victim, &[]);
    let mut frame = Vec::new();
    push_frame(&mut frame, FrameKind::Order, 1, 0, &RemoteCommand::Open(order).encode().unwrap());
    let many = frame.repeat(AT_ONCE);
    let mut refused = 0;
    'sending: while refused <= 2 * REFUSED_MAX as usize {
        if !rogue.sends(&cluster, &many) {
            break;
        }
        let mut answered = 0;
        while answered < AT_ONCE {
            let Some((header, _)) = rogue.next(&cluster) else { break 'sending };
            answered += usize::from(header.kind == FrameKind::Done);
        }
        refused += answered;
    }
    assert!(refused <= REFUSED_MAX as usize, "{refused} orders were refused over one connection");
    cluster.wait_until("it is disconnected", || victim.is_connected_to(0));
    // All lines except the first, and except those of orders that had to wait and were refused unread.
    let said = victim.swarm.complaints().left_out(&(Cause::TakesNoPart, "member".to_owned()));
    assert!(said > u64::from(REFUSED_MAX) / 2, "{said}");
}
