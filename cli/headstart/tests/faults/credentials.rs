//! Tokens and signed addresses of a storage that end in the middle of a run: they are renewed, and no read waits or
//! fails because of that.

use crate::attached::Attached;
use crate::image::Image;
use headstart_testkit::redirect::{Behaviour, Front, RedirectStyle};
use headstart_testkit::registry::{PASSWORD, Registry, RegistryAccess, USER};
use headstart_testkit::soak;
use headstart_testkit::token_server::TokenServer;
use serde_json::json;
use std::fs;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// The life of tokens and addresses here.
const LIFE: Duration = Duration::from_secs(2);

/// A registry with a token server, a front that redirects, and an image in it.
struct House {
    image: Image,
    tokens: TokenServer,
    front: Front,
    _registry: Registry,
    _runtime: Runtime,
}

impl House {
    fn new(behaviour: Behaviour) -> Option<Self> {
        let runtime = Runtime::new().unwrap();
        let tokens = runtime.block_on(TokenServer::start());
        tokens.set_user(USER, PASSWORD);
        let registry = Registry::start(RegistryAccess::Token(&tokens))?;
        let front = runtime.block_on(Front::start(&registry, behaviour));
        let image = Image::new(8);
        let config = json!({"auths": { front.host(): {"username": USER, "password": PASSWORD} }});
        fs::create_dir(image.scene.path("docker")).unwrap();
        fs::write(image.scene.path("docker/config.json"), config.to_string()).unwrap();
        let house = Self { image, tokens, front, _registry: registry, _runtime: runtime };
        let target = house.reference();
        house.image.scene.ok(&format!("image push file://~/store:v1 {target} {}", house.arguments()));
        Some(house)
    }

    fn reference(&self) -> String {
        format!("oci://{}/team/disk:v1", self.front.host())
    }

    fn arguments(&self) -> String {
        format!("--plain-http {} --docker-config ~/docker", self.front.host())
    }

    fn attach(&self) -> Attached {
        Attached::start(&self.image.scene, &self.reference(), "~/cache", &self.arguments())
    }

    /// Reads all of the disk, slowly enough that every token and address ends a few times.
    #[track_caller]
    fn read_on_and_on(&self, attached: &Attached) {
        let mut client = attached.client();
        let (len, steps) = (64 << 10, self.image.len() >> 16);
        let pause = LIFE * if soak::is_on() { 30 } else { 3 } / steps as u32;
        let started = Instant::now();
        for n in 0..steps {
            let offset = n << 16;
            let since = Instant::now();
            let bytes = client.read(offset, len);
            self.image
                .check(offset, &bytes.unwrap_or_else(|e| panic!("error {e} after {:?}", started.elapsed())));
            assert!(since.elapsed() < Duration::from_secs(15), "{:?} for a read", since.elapsed());
            std::thread::sleep(pause);
        }
    }
}

/// Fetches must come one by one: nothing is read ahead here, except the rest of each read's block.
#[track_caller]
fn runs_out(style: RedirectStyle, told: Option<Duration>, forbid: bool) {
    let house = House::new(Behaviour { style, life: LIFE, told, forbid, ..Behaviour::default() });
    let Some(house) = house else { return };
    house.tokens.set_life(LIFE);
    let attached = house.attach();
    let before = house.front.seen();
    let granted = house.tokens.granted();
    house.read_on_and_on(&attached);
    let seen = house.front.seen();
    assert!(house.tokens.granted() > granted, "no token ran out");
    assert!(seen.asked > before.asked, "no address ran out: {seen:?}");
    assert_eq!(seen.leaked, 0, "the storage was shown a token");
    assert_eq!(attached.metric("headstart_request_errors_total", ""), 0);
}

#[test]
fn addresses_with_a_known_end_are_renewed() {
    runs_out(RedirectStyle::Amazon, None, false);
}

#[test]
fn addresses_without_a_known_end_are_renewed() {
    runs_out(RedirectStyle::Untold, None, false);
}

/// The announced life is false, and the registry answers 403 to a token that has ended.
#[test]
fn unexpected_refusals_renew_token_and_address() {
    runs_out(RedirectStyle::Expires, Some(Duration::from_secs(300)), true);
}

/// Credentials that are refused in the middle: reads wait, and go on when they are good again.
#[test]
fn reads_wait_while_credentials_are_refused() {
    let behaviour = Behaviour { life: LIFE, ..Behaviour::default() };
    let Some(house) = House::new(behaviour) else { return };
    house.tokens.set_life(LIFE);
    let mut attached = house.attach();
    house.tokens.set_user(USER, "another password");
    std::thread::sleep(LIFE * 2);
    let mut client = attached.client();
    client.send_read(5 << 20, 4096).unwrap();
    assert!(client.is_silent_for(Duration::from_secs(1)));
    attached.warns(&[]);
    house.tokens.set_user(USER, PASSWORD);
    let (_, answer) = client.receive().unwrap();
    house.image.check(5 << 20, &answer.unwrap());
    let warnings = attached.warnings();
    assert!(warnings.len() < 6, "{warnings:#?}");
    assert!(!attached.process.output().contains(PASSWORD));
}
