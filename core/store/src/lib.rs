//! The sources of blobs: directories, HTTP, object stores, OCI registries; authentication, retries, limits.
//!
//! [`open`] gives a [`Store`] for a [`Location`]: manifests by tag or digest, ranges of blobs, and writing both.
//! All kinds of stores are read through the same stack of small parts, each of which does one thing. (Directories need
//! neither `hedge` nor `http`; for object stores the library `object_store` takes the place of `http`.)
//!
//! | from the outside in | function | reason for its place |
//! |---|---|---|
//! | `stoppable` | ends calls when the user wants to stop | outermost, so that it ends every wait |
//! | [`retry`] | tries failed calls again until a deadline; reads mostly pass through | each try is a whole new call |
//! | `directory`, `web`, `bucket`, `registry` | know addresses and tokens | a second request gets its own address |
//! | `link` | bounds the requests at once, pauses for a busy store | a waiting read must not hold bytes of the rate |
//! | [`limit`] | the rate that one or several processes may take | a second request takes bytes of the rate, too |
//! | `hedge` | sends a slow demand read a second time | measures only the time of the request |
//! | `http` | time-outs, one request, exactly the bytes asked for | innermost: it uses the network |
//!
//! A read is tried once; only a blob that is not there (yet) is asked for twice more. Further tries are the task of the
//! pull engine, which knows other sources and the reader's deadline.
//!
//! | module | content |
//! |---|---|
//! | [`reference`](mod@reference) | the names of images and stores |
//! | [`prefix`] | stores that an operator allows |
//! | [`settings`] | the settings of access to stores |
//! | `guard` | the addresses that requests may go to |
//! | [`store`] | the interface |
//! | [`layout`] | the OCI image layout, which directories, web servers and object stores share |
//! | [`referrers`] | artifacts that belong to a manifest |
//! | [`stop`] | the user's request to end a command |
//! | `silence` | stores that send nothing: warnings, and the end of waiting for one that is away |
//! | `tls_fault` | failures of TLS that no second try clears |
//! | `upload` | a blob on its way into a store, checked against its digest |
//! | [`media_type`] | names of documents |
//! | [`blob_source`] | a blob of a store as a source, for copies |
//! | [`blob_reader`] | a blob of a store as a stream that goes on where it broke |
//! | [`bucket`](mod@bucket) | object stores, also for their operators |
//! | [`counters`] | counts of the work, for metrics |
//!
//! # A new kind of store
//!
//! Paths without a folder are below this crate's `src`.
//!
//! 1. Its name: a scheme and a variant of [`Location`] in [`reference`](mod@reference), and in [`prefix`] the
//!    comparison of two such locations. The compiler does not report a scheme that is missing in the list of
//!    [`StorePrefix`]'s parser, or in the texts that list the kinds: the remedies in both modules and in
//!    `cli/headstart/src/image/copy.rs`, and the options' help (`cli/command-line/src/store_args.rs`,
//!    `cli/headstart/src/image.rs`, `image/list.rs` there, `--allow-store` in `agent/arguments.rs` there).
//! 2. A module with the implementation of [`Store`]; the documentation of that trait says what a kind has to override.
//!    A store that is an image layout below a URL uses [`layout`]. A store over HTTP sends its requests by `http`
//!    behind `guard`, reads by `link`, and writes through `upload`; if it asks for a password, `registry/login.rs` has
//!    the whole way from docker's configuration to the request. Then an arm in [`open`], rows in the tables above, and
//!    the heads and fields that name the kinds: `layout.rs`, `referrers.rs`, `settings.rs`, `store.rs`. A library that
//!    it needs goes into `Cargo.toml`, of the workspace and of this crate.
//! 3. The code that distinguishes kinds: `image list` (`cli/headstart/src/image/list.rs`), `attach --agent`
//!    (`cli/headstart/src/attach/by_agent.rs`) for buckets' credentials, the remedy of `no_leases`
//!    (`core/image/src/managed_store.rs`), whose last arm speaks of web servers, and `for_others`
//!    (`fleet/peer-net/src/host/remote_commands.rs`), which takes endpoints of buckets out of errors for other hosts.
//!    The stores that other hosts may name (`fleet/agentd/src/stores.rs`) follow from [`StorePrefix`].
//! 4. For a kind that keeps leases: [`Store::keeps_leases`] and the calls beside it, and a variant of the private enum
//!    `Place` in `core/image/src/managed_store.rs`, through which `lease`, `image remove` and `image prune` work. Its
//!    prune decides by [`PrunePlan`](layout::PrunePlan), as those of directories (`core/image/src/store/prune.rs`) and
//!    buckets (`bucket/prune.rs`) do. The rest is not shared: the rules of the leases that count, their lifetimes, and
//!    the mark of a prune are each kind's own (`layout/lease.rs`; `standing` and [`LEASE_LASTS`](bucket::LEASE_LASTS)
//!    in `bucket/leases.rs`, `bucket/prune_mark.rs`), and the buckets' are private. A disk renews its lease after times
//!    that fit buckets (`disk/disk/src/hold.rs`, `hold/claim.rs` there). The help of `lease` and of `image prune` names
//!    the kinds (`cli/headstart/src/lease.rs`, `image/prune.rs` there).
//! 5. Tests: a server of it in the test kit (`shared/testkit`, which tests its servers itself), installed by
//!    `scripts/setup servers`; its faults in `core/store/tests`; a disk on it in `cli/headstart/tests/attach`; for a
//!    parser of its answers a target and a corpus in `shared/fuzz`.
//! 6. The documents: `CHANGELOG.md`; the status in `README.md`; the store's step of a miss in `ARCHITECTURE.md`, and
//!    steps 39 and 42 in `docs/read-path.md`; *store* and *reference* in the glossary; quick start (names of images), a
//!    how-to page and its line in `docs/SUMMARY.md`, configuration, leases, threat model, swarm trust, the row on tags
//!    in `docs/design.md`; `core/README.md`; the last lines of `scripts/demo`.

#![forbid(unsafe_code)]

pub mod blob_reader;
pub mod blob_source;
pub mod bucket;
pub mod counters;
mod directory;
mod guard;
mod http;
pub mod layout;
mod lazy_roots;
pub mod limit;
mod link;
pub mod media_type;
pub mod prefix;
mod pull_credentials;
mod redact;
pub mod reference;
pub mod referrers;
mod registry;
pub mod retry;
pub mod settings;
mod silence;
pub mod stop;
mod stoppable;
pub mod store;
mod tls_fault;
mod upload;
mod web;

pub use bucket::Bucket;
pub use counters::StoreCounters;
pub use guard::is_host_with_port;
pub use http::Redirects;
pub use limit::RateLimit;
pub use limit::shared::set_shared_rate;
pub use prefix::StorePrefix;
pub use pull_credentials::{
    EARLIER_MOST, OFFERED_MOST, PULL_CREDENTIALS_MOST, PullCredential, PullCredentials,
};
pub use reference::{BucketScheme, Location, Reference, Selector, Tag, parse_store};
pub use referrers::Referrer;
pub use registry::owner_of;
pub use settings::{HedgeSettings, Mirror, ProxyUrl, RetrySettings, StoreSettings};
pub use silence::{unless_away, warn_if_nothing_comes, warn_if_silent};
pub use stop::{Stop, StopSender};
pub use store::{Copied, Store, Urgency};

use headstart_block::Result;
use std::sync::Arc;

/// The largest manifest or config that is read, in bytes: 4 MiB, which is also the limit of registries.
pub const MAX_MANIFEST_SIZE: u64 = 4 << 20;

/// Makes an HTTP client for requests other than those of stores. It uses the proxy, the certificate
/// authorities and the connection time-out in `settings`. Redirects are followed (without credentials to
/// another host) or returned, as `redirects` says.
///
/// # Errors
/// [`headstart_block::ErrorKind::Invalid`] if the proxy in the settings is not a URL or a certificate file
/// holds no certificates; errors of reading a certificate file.
pub fn http_client(settings: &StoreSettings, redirects: Redirects) -> Result<reqwest::Client> {
    http::client(settings, redirects, None)?.get().cloned()
}

/// Opens the store at `location`. Sends no request; [`Store::check`] tells if the store can be reached.
///
/// # Errors
/// [`headstart_block::ErrorKind::Invalid`] if the settings cannot be used, for instance because a certificate
/// file holds no certificates; errors of reading a certificate file.
pub fn open(location: &Location, settings: &StoreSettings) -> Result<Arc<dyn Store>> {
    let store: Arc<dyn Store> = match location {
        Location::Directory(root) => Arc::new(directory::DirectoryStore::new(root, settings)),
        Location::Http(base) => Arc::new(web::WebStore::new(base, settings)?),
        Location::Bucket { scheme, bucket, path } => {
            Arc::new(bucket::BucketStore::new(*scheme, bucket, path, settings)?)
        }
        Location::Registry { host, repository } => registry::open(host, repository, settings)?,
    };
    let store = Arc::new(retry::Retrying::new(store, settings.retry));
    Ok(match &settings.stop {
        Some(stop) => Arc::new(stoppable::Stoppable::new(store, stop.clone(), settings.silence_limit())),
        None => store,
    })
}
