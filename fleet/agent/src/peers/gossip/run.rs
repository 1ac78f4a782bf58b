//! Runs of hosts: what goes on when the library's task starts again, and how many hosts the entries of all runs name.

use super::transport::Noticed;
use chitchat::{Chitchat, ChitchatHandle, Heartbeat};
use std::collections::BTreeSet;
use std::time::Duration;

/// Hosts by name, present and past, that the library may hold, and entries of all their runs; how often they are
/// counted.
const NAMES_MAX: usize = 4096;
const ENTRIES_MAX: usize = 2 * NAMES_MAX;
const COUNT_EVERY: Duration = Duration::from_secs(1);

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

    /// This host's run as the library has it; `None` where it says what this host cannot have said.
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

    /// Has the library go on from here, and say this.
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

/// Greater each time that a host starts.
#[expect(clippy::disallowed_methods, reason = "the gossip library tells runs of a host apart by the time")]
fn generation() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Returns how many hosts are named once there are too many, or more than fit into a message.
pub(super) async fn too_many(handle: &ChitchatHandle, noticed: &Noticed) -> usize {
    loop {
        // After a while, or once enough has come for many.
        let _ = tokio::time::timeout(COUNT_EVERY, noticed.some()).await;
        let counted = |chitchat: &mut Chitchat| {
            let entries = chitchat.node_states();
            let excess = excess(entries.keys().map(|id| &id.node_id));
            excess.or_else(|| noticed.is_too_long().then_some(entries.len()))
        };
        if let Some(hosts) = handle.with_chitchat(counted).await {
            return hosts;
        }
    }
}

/// The number of hosts that entries name, one for each run of a host, where it is too many; where it is not and entries
/// are too many, their number.
fn excess<N: Ord>(entries: impl ExactSizeIterator<Item = N>) -> Option<usize> {
    let all = entries.len();
    let names = if all > NAMES_MAX { entries.collect::<BTreeSet<_>>().len() } else { 0 };
    if names > NAMES_MAX { Some(names) } else { (all > ENTRIES_MAX).then_some(all) }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{Gossiper, Member, Running, Seal};
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;
    use tokio::net::UdpSocket;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_fleet_that_starts_again_is_not_too_many_and_names_or_runs_without_end_are(
            hosts in 1usize..6000, runs in 1usize..4,
        ) {
            let entries: Vec<usize> = (0..runs).flat_map(|_| 0..hosts).collect();
            let counted = excess(entries.iter());
            let are_too_many = (hosts > NAMES_MAX).then_some(hosts);
            let expected = are_too_many.or(Some(hosts * runs).filter(|all| *all > ENTRIES_MAX));
            prop_assert_eq!(counted, expected);
            // All of the largest fleet may have an earlier run.
            prop_assert!(hosts > NAMES_MAX || runs > 2 || counted.is_none());
        }
    }

    /// A host that can be started, as nobody else knows of.
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
}
