//! A token server, as there is one beside many registries: it knows users, and signs tokens that `docker-registry`
//! checks.
//!
//! The tokens have the form that the registry expects: ES256, the certificate in `x5c`, the granted access as claims.
//! Their validity can be set to a few seconds, for tests of renewals. `docker-registry` accepts a token for a minute
//! beyond its end, so tokens are signed with an end one minute earlier: a token is refused when its validity is over.

use crate::served::{Served, basic_credentials, serve};
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use parking_lot::Mutex;
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use url::form_urlencoded;

/// The time that `docker-registry` grants beyond the end of a token, in seconds.
const GRACE_S: u64 = 60;

/// The name of this server in its tokens.
pub(crate) const ISSUER: &str = "headstart-testkit";

/// The name of the registry at this server.
pub(crate) const SERVICE: &str = "registry.test";

/// A running token server, which issues the tokens that a registry requires of its clients. Dropping it stops
/// it.
#[derive(Debug)]
pub struct TokenServer {
    served: Served,
    desk: Arc<Desk>,
    certificate: String,
}

struct Desk {
    key: EncodingKey,
    chain: Vec<String>,
    users: Mutex<HashMap<String, String>>,
    /// Users whose tokens permit nothing.
    guests: Mutex<HashSet<String>>,
    refresh_tokens: Mutex<HashMap<String, String>>,
    anonymous: AtomicBool,
    life_ms: AtomicU64,
    told_s: AtomicU64,
    delay_ms: AtomicU64,
    requests: AtomicU64,
    granted: AtomicU64,
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk").field("requests", &self.requests).finish_non_exhaustive()
    }
}

impl TokenServer {
    /// Starts a server without users. Its tokens are valid for five minutes.
    pub async fn start() -> Self {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
        let params = CertificateParams::new(vec!["token.test".to_owned()]).expect("a name");
        let certificate = params.self_signed(&key).expect("a certificate");
        let desk = Arc::new(Desk {
            key: EncodingKey::from_ec_pem(key.serialize_pem().as_bytes()).expect("a key in PEM"),
            chain: vec![STANDARD.encode(certificate.der())],
            users: Mutex::default(),
            guests: Mutex::default(),
            refresh_tokens: Mutex::default(),
            anonymous: AtomicBool::new(false),
            life_ms: AtomicU64::new(300_000),
            told_s: AtomicU64::new(u64::MAX),
            delay_ms: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            granted: AtomicU64::new(0),
        });
        let served = serve(axum::Router::new().fallback(answer).with_state(Arc::clone(&desk))).await;
        Self { served, desk, certificate: certificate.pem() }
    }

    /// The URL at which clients request tokens; registries name it to their clients.
    #[must_use]
    pub fn realm(&self) -> String {
        format!("http://{}/token", self.served.address())
    }

    /// The certificate, in PEM, with which a registry verifies the tokens.
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Adds a user. If the user exists, changes the password.
    pub fn set_user(&self, user: &str, password: &str) {
        self.desk.users.lock().insert(user.to_owned(), password.to_owned());
    }

    /// Adds a user with tokens that permit nothing: the right to log in, and none to any repository.
    pub fn set_guest(&self, user: &str, password: &str) {
        self.set_user(user, password);
        self.desk.guests.lock().insert(user.to_owned());
    }

    /// Makes the server accept `token` as an identity token (OAuth 2 refresh token) of `user`.
    pub fn set_identity_token(&self, user: &str, token: &str) {
        self.desk.refresh_tokens.lock().insert(token.to_owned(), user.to_owned());
    }

    /// Permits or forbids tokens for clients without credentials, which are forbidden at first. Such tokens
    /// permit only reading.
    pub fn allow_anonymous(&self, allow: bool) {
        self.desk.anonymous.store(allow, Ordering::Relaxed);
    }

    /// Sets the validity of tokens issued from now on. The end of a token is rounded up to a full second.
    pub fn set_life(&self, life: Duration) {
        let ms = u64::try_from(life.as_millis()).expect("a short life");
        self.desk.life_ms.store(ms, Ordering::Relaxed);
    }

    /// Sets the validity that clients are told (`expires_in`), in seconds, in place of the true one.
    pub fn set_told_life(&self, seconds: u64) {
        self.desk.told_s.store(seconds, Ordering::Relaxed);
    }

    /// Sets the duration that the server waits before each answer, which is zero at first.
    pub fn set_delay(&self, delay: Duration) {
        let ms = u64::try_from(delay.as_millis()).expect("a short delay");
        self.desk.delay_ms.store(ms, Ordering::Relaxed);
    }

    /// The number of requests that the server has received.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.desk.requests.load(Ordering::Relaxed)
    }

    /// The number of tokens that the server has issued.
    #[must_use]
    pub fn granted(&self) -> u64 {
        self.desk.granted.load(Ordering::Relaxed)
    }
}

/// The facts of a request: the user, the scopes, and the kind of token.
struct TokenRequest {
    user: Option<String>,
    scopes: Vec<String>,
    offline: bool,
}

async fn answer(State(desk): State<Arc<Desk>>, request: Request) -> Response<Body> {
    desk.requests.fetch_add(1, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(desk.delay_ms.load(Ordering::Relaxed))).await;
    let Some(wanted) = desk.token_request(request).await else {
        let body =
            json!({"errors": [{"code": "UNAUTHORIZED", "message": "wrong user or password"}]}).to_string();
        return (StatusCode::UNAUTHORIZED, body).into_response();
    };
    desk.granted.fetch_add(1, Ordering::Relaxed);
    desk.grant(&wanted).to_string().into_response()
}

impl Desk {
    /// The user and the scopes of a request, or `None` if it is refused.
    async fn token_request(&self, request: Request) -> Option<TokenRequest> {
        let (parts, body) = request.into_parts();
        let body = to_bytes(body, 1 << 16).await.ok()?;
        let fields =
            if parts.method == "POST" { body } else { parts.uri.query().unwrap_or("").to_owned().into() };
        let mut wanted = TokenRequest { user: None, scopes: Vec::new(), offline: parts.method == "POST" };
        let mut refresh_token = None;
        for (name, value) in form_urlencoded::parse(&fields) {
            match &*name {
                "scope" => wanted.scopes.extend(value.split(' ').map(str::to_owned)),
                "refresh_token" => refresh_token = Some(value.into_owned()),
                "service" if value != SERVICE => return None,
                _ => {}
            }
        }
        wanted.user = match (basic_credentials(&parts.headers), refresh_token) {
            (Some((user, password)), _) => {
                if self.users.lock().get(&user) != Some(&password) {
                    return None;
                }
                Some(user)
            }
            (None, Some(token)) => Some(self.refresh_tokens.lock().get(&token)?.clone()),
            (None, None) if self.anonymous.load(Ordering::Relaxed) => None,
            (None, None) => return None,
        };
        Some(wanted)
    }

    fn grant(&self, wanted: &TokenRequest) -> Value {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock past 1970").as_millis();
        let now_ms = u64::try_from(now).expect("milliseconds");
        let life_ms = self.life_ms.load(Ordering::Relaxed);
        let is_guest = wanted.user.as_ref().is_some_and(|user| self.guests.lock().contains(user));
        let scopes = wanted.scopes.iter().filter(|_| !is_guest);
        let access: Vec<Value> = scopes.filter_map(|scope| access(scope, wanted.user.is_some())).collect();
        let claims = json!({
            "iss": ISSUER, "aud": SERVICE, "sub": wanted.user.as_deref().unwrap_or(""),
            "jti": format!("{}", self.granted.load(Ordering::Relaxed)),
            "iat": now_ms / 1000, "nbf": now_ms / 1000 - GRACE_S,
            "exp": (now_ms + life_ms).div_ceil(1000) - GRACE_S,
            "access": access,
        });
        let mut header = Header::new(Algorithm::ES256);
        header.x5c = Some(self.chain.clone());
        let token = jsonwebtoken::encode(&header, &claims, &self.key).expect("a signature");
        let told = match self.told_s.load(Ordering::Relaxed) {
            u64::MAX => life_ms / 1000,
            told => told,
        };
        let name = if wanted.offline { "access_token" } else { "token" };
        json!({ name: token, "expires_in": told })
    }
}

/// The access that a scope stands for; a client without a name may only read.
fn access(scope: &str, known: bool) -> Option<Value> {
    let (kind, rest) = scope.split_once(':')?;
    let (name, actions) = rest.rsplit_once(':')?;
    let actions: Vec<&str> = actions.split(',').filter(|action| known || *action == "pull").collect();
    Some(json!({ "type": kind, "name": name, "actions": actions }))
}
