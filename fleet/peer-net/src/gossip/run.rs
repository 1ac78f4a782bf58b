//! Runs of hosts: the state that goes on when the library's task starts again, and the number of hosts in the entries
//! of all runs.

use super::inspection::ReportedRun;
use super::transport::Noticed;
use chitchat::{Chitchat, ChitchatHandle, Heartbeat, NodeState, Serializable};
use headstart_block::saturating;
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

/// The most hosts by name, present and past, that the library may hold, and entries of all their runs; the interval at
/// which they are counted.
const NAMES_MAX: usize = 4096;
const ENTRIES_MAX: usize = 2 * NAMES_MAX;
const COUNT_EVERY: Duration = Duration::from_secs(1);

/// Bytes of keys and values that the library may hold, and those that each value takes besides its own. The claims of
/// the largest fleet have about half of them.
const BYTES_MAX: usize = 32 << 20;
const VALUE_OVERHEAD: usize = 128;

/// Heartbeats that others may have heard of a run which this host does not know of: those between the last look at the
/// library and its end, where the run goes on.
const UNREPORTED_MAX: u64 = 1000;

/// The version up to which a run goes on: what a host has made itself does not come near.
const VERSION_MAX: u64 = 1 << 48;

/// A run of this host as other hosts know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) generation: u64,
    heartbeat: Heartbeat,
    version: u64,
}

impl Run {
    /// A run that no host knows.
    pub(super) fn new() -> Self {
        Self { generation: generation(), heartbeat: Heartbeat::default(), version: 0 }
    }

    /// This host's run in the library; `None` if the library has a state that this host cannot have made.
    pub(super) async fn of(handle: &ChitchatHandle, generation: u64) -> Option<Self> {
        let of = |chitchat: &mut Chitchat| {
            let state = chitchat.self_node_state();
            Self { generation, heartbeat: state.heartbeat(), version: state.max_version() }
        };
        Some(handle.with_chitchat(of).await).filter(|run| run.version < VERSION_MAX)
    }

    /// `true` if other hosts may know the run.
    pub(super) fn is_known(self) -> bool {
        self.version > 0
    }

    /// Makes the library go on from this run, with these values.
    pub(super) async fn go_on(self, handle: &ChitchatHandle, values: &[(String, String)]) {
        let go_on = |chitchat: &mut Chitchat| {
            let state = chitchat.self_node_state();
            state.try_set_heartbeat(self.heartbeat);
            state.set_max_version(state.max_version().max(self.version));
            values.iter().for_each(|(key, value)| state.set(key, value));
        };
        handle.with_chitchat(go_on).await;
    }
}

/// A number that is greater each time that a host starts.
#[expect(clippy::disallowed_methods, reason = "the gossip library tells runs of a host apart by the time")]
fn generation() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    saturating::<u64>(since.as_micros())
}

/// The reason to start the library again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// Its entries are too many, have too many bytes, or fit into no message.
    TooMuch {
        /// The hosts that they name.
        hosts: usize,
        /// The entries: one for each run of a host.
        entries: usize,
        /// The bytes of their keys and values.
        bytes: usize,
    },
    /// Others have heard more of this host's run than it has reported.
    Forged,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMuch { hosts, entries, bytes } => write!(
                f,
                "it has {entries} entries of {hosts} hosts, with {bytes} bytes: more than a host holds, or than fit \
                 into a message"
            ),
            Self::Forged => f.write_str("others were told of this host what it has not said"),
        }
    }
}

/// Returns once the library is to be started again.
pub(super) async fn broken(handle: &ChitchatHandle, noticed: &Noticed) -> Broken {
    loop {
        // After a while, or once enough has come for many entries.
        let _ = tokio::time::timeout(COUNT_EVERY, noticed.some()).await;
        // Before this host's state is looked at, which only grows.
        let reported = noticed.reported();
        let looked = |chitchat: &mut Chitchat| {
            let own = chitchat.self_node_state();
            let is_forged = is_forged(reported, heartbeat(own.heartbeat()), own.max_version());
            let entries = chitchat.node_states();
            let are_too_many = are_too_many(entries.keys().map(|id| &id.node_id));
            let bytes = entries
                .values()
                .flat_map(NodeState::key_values_including_deleted)
                .map(|(key, value)| key.len() + value.value.len() + VALUE_OVERHEAD);
            let bytes: usize = bytes.sum();
            let is_too_much = are_too_many || bytes > BYTES_MAX || noticed.is_too_long();
            let names = || entries.keys().map(|id| &id.node_id).collect::<BTreeSet<_>>().len();
            match (is_forged, is_too_much) {
                (true, _) => Some(Broken::Forged),
                (_, true) => Some(Broken::TooMuch { hosts: names(), entries: entries.len(), bytes }),
                _ => None,
            }
        };
        if let Some(broken) = handle.with_chitchat(looked).await {
            return broken;
        }
    }
}

/// `true` if others were told more of this host's run than it has said itself.
fn is_forged(reported: ReportedRun, heartbeat: u64, version: u64) -> bool {
    reported.heartbeat > heartbeat.saturating_add(UNREPORTED_MAX) || reported.version > version
}

/// The number of a heartbeat, which the library shows only in messages.
fn heartbeat(heartbeat: Heartbeat) -> u64 {
    heartbeat.serialize_to_vec().try_into().map_or(0, u64::from_le_bytes)
}

/// `true` if entries, one for each run of a host, name too many hosts, or are too many themselves.
fn are_too_many<N: Ord>(entries: impl ExactSizeIterator<Item = N>) -> bool {
    let all = entries.len();
    all > ENTRIES_MAX || all > NAMES_MAX && entries.collect::<BTreeSet<_>>().len() > NAMES_MAX
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{Gossip, Gossiper, Member, Running, Seal};
    use super::*;
    use crate::tests::gossip::saying;
    use proptest::prelude::*;
    use std::sync::Arc;
    use tokio::net::UdpSocket;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_run_is_forged_if_others_heard_more_than_it_said(
            heartbeat in 0u64..5000, version in 0u64..9, more in 0u64..5000, later in 0u64..3,
        ) {
            let reported = ReportedRun { heartbeat: heartbeat + more, version: version + later };
            prop_assert_eq!(is_forged(reported, heartbeat, version), more > UNREPORTED_MAX || later > 0);
            let most = ReportedRun { heartbeat: u64::MAX, version: 0 };
            prop_assert!(is_forged(most, heartbeat, version));
        }

        #[test]
        fn a_fleet_that_starts_again_is_not_too_many_and_names_or_runs_without_end_are(
            hosts in 1usize..6000, runs in 1usize..4,
        ) {
            let entries: Vec<usize> = (0..runs).flat_map(|_| 0..hosts).collect();
            let counted = are_too_many(entries.iter());
            prop_assert_eq!(counted, hosts > NAMES_MAX || hosts * runs > ENTRIES_MAX);
            // All of the largest fleet may have an earlier run.
            prop_assert!(hosts > NAMES_MAX || runs > 2 || !counted);
        }
    }

    /// A host that can be started, and that no other host knows.
    pub(in super::super) async fn gossiper(name: &str, seeds: Vec<String>) -> Gossiper {
        let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        let own = Member { name: name.to_owned(), address: socket.local_addr().unwrap() };
        let seal = Arc::new(Seal::new(Some([7; 32])).unwrap());
        Gossiper { socket, seal, claims: None, own, process: [0; 16], seeds, strays: Arc::default() }
    }

    /// The entries of the host `a`: their heartbeats and versions.
    async fn entries_of_a(other: &Running) -> Vec<(Heartbeat, u64)> {
        let of_a = |chitchat: &mut Chitchat| {
            let states = chitchat.node_states().iter().filter(|(id, _)| &*id.node_id == "a");
            states.map(|(_, state)| (state.heartbeat(), state.max_version())).collect()
        };
        other.handle.with_chitchat(of_a).await
    }

    #[test]
    fn a_run_that_goes_on_is_the_same_entry_to_others_and_alive() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let a = gossiper("a", Vec::new()).await;
            let b = gossiper("b", vec![a.own.address.to_string()]).await;
            let first = a.start(Run::new(), &[]).await.unwrap();
            let other = b.start(Run::new(), &[]).await.unwrap();
            let until = async |least: Run| loop {
                let entries = entries_of_a(&other).await;
                if entries
                    .iter()
                    .any(|(heartbeat, version)| *heartbeat > least.heartbeat && *version >= least.version)
                {
                    break entries.len();
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            };
            let wait = async |least: Run| {
                let waiting = tokio::time::timeout(Duration::from_secs(20), until(least)).await;
                waiting.expect("the other host hears of it")
            };
            assert_eq!(wait(Run::new()).await, 1);
            let run = Run::of(&first.handle, first.generation).await.unwrap();
            drop(first);
            let second = a.start(run, &[]).await.unwrap();
            assert_eq!(wait(run).await, 1, "entries of one host");
            assert_eq!(second.generation, run.generation);
        });
    }

    /// The generations of the runs of the host `name` that another host knows.
    async fn generations(other: &Running, name: &str) -> Vec<u64> {
        let of = |chitchat: &mut Chitchat| {
            let ids = chitchat.node_states().keys().filter(|id| &*id.node_id == name);
            ids.map(|id| id.generation_id).collect()
        };
        other.handle.with_chitchat(of).await
    }

    #[test]
    fn a_host_of_which_others_were_told_too_much_begins_another_run() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let a = gossiper("a", Vec::new()).await;
            let b = gossiper("b", vec![a.own.address.to_string()]).await;
            let (to, seal, port) = (a.own.address, Arc::clone(&a.seal), b.own.address.port());
            let other = a.start(Run::new(), &[]).await.unwrap();
            let mut attacked = Gossip::join(b).await.unwrap();
            let running = tokio::spawn(async move { while attacked.changed().await.is_some() {} });
            let until = async |known: &[u64]| loop {
                let now = generations(&other, "b").await;
                if now.iter().any(|generation| !known.contains(generation)) {
                    break now;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            };
            let wait = async |known: &[u64]| {
                let waiting = tokio::time::timeout(Duration::from_secs(30), until(known)).await;
                waiting.expect("the other host hears of a run")
            };
            let before = wait(&[]).await;
            let attacker = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            for datagram in seal.seal(&saying("b", before[0], port, u64::MAX, 0)).unwrap() {
                attacker.send_to(&datagram, to).await.unwrap();
            }
            wait(&before).await;
            running.abort();
        });
    }

    #[test]
    fn values_without_end_are_too_much() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let running = gossiper("a", Vec::new()).await.start(Run::new(), &[]).await.unwrap();
            let noticed = Noticed::default();
            let looking = tokio::time::timeout(Duration::from_secs(3), broken(&running.handle, &noticed));
            assert!(looking.await.is_err(), "one host's values are not too much");
            let long = "v".repeat(60_000);
            let fill = |chitchat: &mut Chitchat| {
                (0..600).for_each(|key| chitchat.self_node_state().set(format!("key{key}"), &long));
            };
            running.handle.with_chitchat(fill).await;
            let looking = tokio::time::timeout(Duration::from_secs(20), broken(&running.handle, &noticed));
            let found = looking.await.unwrap();
            assert!(matches!(found, Broken::TooMuch { hosts: 1, bytes, .. } if bytes > BYTES_MAX), "{found}");
        });
    }
}
