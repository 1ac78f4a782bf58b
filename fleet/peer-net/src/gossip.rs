//! The members of the swarm: a gossip library over datagrams that only hosts of the cluster can make or read.
//!
//! A host sends to the others its name and the address at which it accepts connections, signed by the key of its
//! certificate ([`Claims`]). This is trusted only as far as an attempt to connect: the host that answers there has to
//! prove its name. Entries without a signature, which version 0.1.0 makes, are tried in a bounded number.
//!
//! The library panics on some messages that only a holder of the key can make, and holds all entries that are named to
//! it. Its task is started again then, without its state, and a line is logged; connections and disks go on meanwhile.
//! Names are counted, and not the runs that hosts have had: many hosts that start again at once are no more hosts than
//! before, as long as all their runs fit into a message. If the library itself was sound, the host stays the same run
//! to the others, and goes on from its heartbeat: otherwise each start would leave an entry at all other hosts, and
//! they would start again, too. If others were told more of the run than this host has said, it begins another one.
//!
//! Hosts exchange the library's messages in their version 0, which version 0.1.0 of headstart reads, in one datagram or
//! two: some 2,500 hosts with names of ten letters have room. The library itself runs in version 1, which packs its
//! entries: its own limit of a datagram is the same number of bytes. `loopback` turns one into the other.

mod blocks;
mod claim;
#[cfg(test)]
mod entries;
#[cfg(test)]
mod fleets;
mod inspection;
mod loopback;
mod run;
mod seal;
mod strays;
mod transport;

pub(super) use claim::Claims;
pub(super) use seal::Seal;
pub(super) use strays::Strays;

use inspection::RunId;
use run::{Broken, Run, broken};
use transport::{Noticed, Sealed};

use crate::credentials::{NAME_MAX, hex};
use crate::frame::Process;
use chitchat::{
    ChitchatConfig, ChitchatHandle, ChitchatId, FailureDetectorConfig, NodeState, ProtocolVersion,
    spawn_chitchat,
};
use headstart_block::{Error, ErrorKind, Result};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::time::Instant;

/// The interval at which each host gossips with a few others.
const EVERY: Duration = Duration::from_millis(500);

/// The most hosts that are considered: more than the library holds (`run`).
const MEMBERS_MAX: usize = 65_536;

/// Of these, the most hosts without a signed claim, such as those of version 0.1.0: any holder of the gossip key can
/// name such hosts.
const UNCLAIMED_MAX: usize = 256;

/// The most addresses of one name that are considered.
const SAME_NAME_MAX: usize = 4;

/// The most hosts of this one's name that are considered.
const NAMESAKES_MAX: usize = 8;

/// Members that are gossiped with when the library's task starts again.
const KNOWN_MAX: usize = 64;

/// The time for which a host's ended run is remembered, and for half of which other hosts learn of it: longer than all
/// of them take to notice.
const GONE_AFTER: Duration = Duration::from_secs(300);

/// The pause before the library's task starts again, and the longest one: it is doubled if the task ends soon. Hosts
/// that hold too many entries send them to each other again until no host holds them: if the hosts are stopped for far
/// longer than they run, that comes soon.
const START_AGAIN: Duration = Duration::from_secs(1);
const START_AGAIN_MAX: Duration = Duration::from_secs(16);

/// The run time after which a start has succeeded.
const LASTED: Duration = Duration::from_secs(60);

/// The key of a host's signed claim.
const CLAIM: &str = "claim";

/// The key of a host's address.
const ADDRESS: &str = "swarm";

/// The key of the number of its process, in hexadecimal, which distinguishes hosts of one name.
const PROCESS_NUMBER: &str = "process";

/// Another host, by its own claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) address: SocketAddr,
}

/// The hosts that gossip names.
#[derive(Debug, Default)]
pub(super) struct Members {
    /// All hosts except this one, by name.
    pub(super) others: Vec<Member>,
    /// Hosts at other addresses that claim this one's name: another host, or the rest of an earlier run.
    pub(super) namesakes: Vec<Member>,
    /// The processes that claim to listen at addresses.
    pub(super) processes: HashMap<SocketAddr, Process>,
}

/// The parts that gossiping needs.
pub(super) struct Gossiper {
    pub(super) socket: Arc<UdpSocket>,
    pub(super) seal: Arc<Seal>,
    /// The signer and verifier of claims; `None` without security.
    pub(super) claims: Option<Claims>,
    pub(super) own: Member,
    pub(super) process: Process,
    /// The addresses of the first other hosts: `host:port`.
    pub(super) seeds: Vec<String>,
    pub(super) strays: Arc<Strays>,
}

/// The library's task while it runs.
struct Running {
    handle: ChitchatHandle,
    generation: u64,
    noticed: Arc<Noticed>,
    nodes: watch::Receiver<BTreeMap<ChitchatId, NodeState>>,
    /// Resolves when the task has ended.
    ended: Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>,
    since: Instant,
}

/// The task of this host in the gossip; it ends when this is dropped.
pub(super) struct Gossip {
    gossiper: Gossiper,
    /// The time of the next start, and the pause before the one after that.
    starts_at: Instant,
    pause: Duration,
    /// `None` between an unexpected end and the next start.
    running: Option<Running>,
    /// The run that goes on at the next start, if one does.
    run: Option<Run>,
    /// The last known members, for a new start.
    known: Vec<SocketAddr>,
    /// The receiver of renewals of this host's certificate, if it has one.
    renewals: Option<watch::Receiver<()>>,
    /// The claims that were checked, and the results.
    checked: HashMap<ChitchatId, (String, bool)>,
}

impl Gossiper {
    /// Joins the reachable hosts of the seeds and of `others`, and keeps trying the seeds.
    async fn start(&self, run: Run, others: &[SocketAddr]) -> Result<Running> {
        let failed = |e: anyhow::Error| {
            Error::new(ErrorKind::Io, "cannot gossip with other hosts").caused_by(e.into_boxed_dyn_error())
        };
        let (name, address, generation) = (&self.own.name, self.own.address, run.generation);
        let listen_addr = self.socket.local_addr().map_err(|e| Error::io("has no address", e))?;
        let seeds: Vec<SocketAddr> = self.seeds.iter().filter_map(|seed| seed.parse().ok()).collect();
        let config = ChitchatConfig {
            chitchat_id: ChitchatId::new(name.clone(), generation, address),
            cluster_id: "headstart swarm".into(),
            gossip_interval: EVERY,
            listen_addr,
            seed_nodes: self.seeds.clone(),
            failure_detector_config: FailureDetectorConfig {
                dead_node_grace_period: GONE_AFTER,
                ..FailureDetectorConfig::default()
            },
            marked_for_deletion_grace_period: Duration::from_secs(3600),
            catchup_callback: None,
            extra_liveness_predicate: None,
            // In version 0 the library panics where its entries fill a datagram, with some 1,280 hosts. The transport
            // turns its messages into that version, which all hosts read.
            protocol_version: ProtocolVersion::V1,
        };
        let process = (PROCESS_NUMBER.to_owned(), hex(&self.process));
        let mut values = vec![(ADDRESS.to_owned(), address.to_string()), process];
        if let Some(claims) = &self.claims {
            values.push((CLAIM.to_owned(), claims.make(name, address, generation)?));
        }
        let noticed = Arc::<Noticed>::default();
        let transport = Sealed {
            socket: Arc::clone(&self.socket),
            seal: Arc::clone(&self.seal),
            strays: Arc::clone(&self.strays),
            noticed: Arc::clone(&noticed),
            own: RunId { name: name.clone(), generation, address },
        };
        // Values that other hosts know of the run have to be set again in a later version.
        let initial = if run.is_known() { Vec::new() } else { values.clone() };
        let handle = spawn_chitchat(config, initial, &transport).await.map_err(failed)?;
        run.go_on(&handle, &values).await;
        for seed in seeds.iter().chain(others) {
            handle.gossip(*seed).map_err(failed)?;
        }
        let nodes = handle.with_chitchat(|chitchat| chitchat.live_nodes_watcher()).await;
        let ended = Box::pin(handle.termination_watcher());
        Ok(Running { handle, generation, noticed, nodes, ended, since: Instant::now() })
    }
}

impl Gossiper {
    /// Sets the claim again, with the present certificate.
    async fn claim_again(&self, handle: &ChitchatHandle, generation: u64) {
        let Some(claims) = &self.claims else { return };
        match claims.make(&self.own.name, self.own.address, generation) {
            Ok(claim) => handle.with_chitchat(|chitchat| chitchat.self_node_state().set(CLAIM, &claim)).await,
            Err(error) => tracing::warn!(%error, "gossip goes on with the earlier certificate"),
        }
    }
}

/// Returns once the host's certificate has been renewed.
async fn renewed(renewals: &mut Option<watch::Receiver<()>>) {
    let changed = match renewals {
        Some(renewals) => renewals.changed().await.is_ok(),
        None => false,
    };
    if !changed {
        std::future::pending::<()>().await;
    }
}

impl Gossip {
    /// Joins the reachable hosts.
    ///
    /// # Errors
    /// If the library cannot be started.
    pub(super) async fn join(gossiper: Gossiper) -> Result<Self> {
        let renewals = gossiper.claims.as_ref().map(Claims::renewals);
        let running = Some(gossiper.start(Run::new(), &[]).await?);
        let (starts_at, pause) = (Instant::now(), START_AGAIN);
        Ok(Self {
            gossiper,
            starts_at,
            pause,
            running,
            run: None,
            known: Vec::new(),
            renewals,
            checked: HashMap::new(),
        })
    }

    /// Waits for a change of the other hosts and returns them; `None` if there will be no more changes. It can be
    /// dropped and called again.
    pub(super) async fn changed(&mut self) -> Option<Members> {
        loop {
            let Some(running) = &mut self.running else {
                self.start_again().await;
                continue;
            };
            let Running { handle, generation, noticed, nodes, ended, since } = running;
            let cause = tokio::select! {
                changed = nodes.changed() => {
                    changed.ok()?;
                    return Some(self.members());
                }
                ended = ended => ended.err().map_or_else(|| "it ended".to_owned(), |error| error.to_string()),
                broken = broken(handle, noticed) => {
                    // Other hosts believe nothing more of a run of which they were told too much.
                    self.run = match broken {
                        Broken::TooMuch { .. } => Run::of(handle, *generation).await,
                        Broken::Forged => None,
                    };
                    broken.to_string()
                }
                () = renewed(&mut self.renewals) => {
                    self.gossiper.claim_again(handle, *generation).await;
                    continue;
                }
            };
            let pause = if since.elapsed() > LASTED { START_AGAIN } else { self.pause };
            self.starts_at = Instant::now() + pause;
            self.pause = (pause * 2).min(START_AGAIN_MAX);
            self.running = None;
            tracing::warn!(
                cause,
                "the gossip between hosts broke off and starts again: a host that has the gossip key may have sent \
                 what none should"
            );
        }
    }

    /// Starts the library's task again, after a pause.
    async fn start_again(&mut self) {
        // The future may be dropped and called again meanwhile.
        tokio::time::sleep_until(self.starts_at).await;
        self.starts_at = Instant::now() + START_AGAIN;
        match self.gossiper.start(self.run.unwrap_or_else(Run::new), &self.known).await {
            Ok(running) => (self.running, self.run) = (Some(running), None),
            Err(error) => tracing::warn!(%error, "the gossip between hosts does not start"),
        }
    }

    /// The present hosts.
    fn members(&mut self) -> Members {
        let Some(running) = &mut self.running else { return Members::default() };
        let nodes = running.nodes.borrow_and_update();
        self.checked.retain(|id, _| nodes.contains_key(id));
        let (mut claimed, mut others, mut processes) = (Vec::new(), Vec::new(), HashMap::new());
        for (id, state) in nodes.iter().filter(|(id, _)| id.node_id.len() <= NAME_MAX) {
            let Some(address) = state.get(ADDRESS).and_then(|address| address.parse().ok()) else { continue };
            let member = Member { name: id.node_id.to_string(), address };
            if member == self.gossiper.own {
                continue;
            }
            let process = state.get(PROCESS_NUMBER).and_then(claim::bytes);
            processes.extend(process.and_then(|bytes| Some((address, bytes.try_into().ok()?))));
            let is_claimed = match (&self.gossiper.claims, state.get(CLAIM)) {
                (Some(claims), Some(claim)) => is_right(&mut self.checked, claims, id, address, claim),
                _ => false,
            };
            if is_claimed { claimed.push(member) } else { others.push(member) }
        }
        drop(nodes);
        let unclaimed_max = if self.gossiper.claims.is_some() { UNCLAIMED_MAX } else { MEMBERS_MAX };
        let members = chosen(claimed, others, unclaimed_max);
        self.known = members.iter().map(|member| member.address).take(KNOWN_MAX).collect();
        let own = &self.gossiper.own.name;
        let (mut namesakes, mut others): (Vec<_>, Vec<_>) =
            members.into_iter().partition(|member| member.name == *own);
        others.sort_unstable();
        namesakes.truncate(NAMESAKES_MAX);
        Members { others, namesakes, processes }
    }

    pub(super) async fn leave(self) {
        let Some(running) = self.running else { return };
        if let Err(error) = running.handle.shutdown().await {
            tracing::debug!(%error, "the gossip ended with an error");
        }
    }
}

/// `true` if a host's claim is right; each is checked once.
fn is_right(
    checked: &mut HashMap<ChitchatId, (String, bool)>,
    claims: &Claims,
    id: &ChitchatId,
    address: SocketAddr,
    claim: &str,
) -> bool {
    if let Some((_, is_right)) = checked.get(id).filter(|(before, _)| before == claim) {
        return *is_right;
    }
    let is_right = claims.is_right(claim, &id.node_id, address, id.generation_id);
    checked.insert(id.clone(), (claim.to_owned(), is_right));
    is_right
}

/// The members that are considered: all with claims of their own, at most [`SAME_NAME_MAX`] of one name, and of the
/// names without a claim at most `unclaimed_max`.
fn chosen(claimed: Vec<Member>, others: Vec<Member>, unclaimed_max: usize) -> Vec<Member> {
    let mut by_name: BTreeMap<String, Vec<SocketAddr>> = BTreeMap::new();
    for member in claimed.into_iter().take(MEMBERS_MAX) {
        let addresses = by_name.entry(member.name).or_default();
        // The last address is that of the latest start.
        addresses.retain(|address| *address != member.address);
        addresses.push(member.address);
        if addresses.len() > SAME_NAME_MAX {
            addresses.remove(0);
        }
    }
    let unclaimed =
        others.into_iter().filter(|member| !by_name.contains_key(&member.name)).take(unclaimed_max);
    let unclaimed: Vec<Member> = unclaimed.collect();
    let members = by_name.into_iter().flat_map(|(name, addresses)| {
        addresses.into_iter().map(move |address| Member { name: name.clone(), address })
    });
    members.chain(unclaimed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn member(name: &str, port: u16) -> Member {
        Member { name: name.to_owned(), address: SocketAddr::from(([10, 0, 0, 1], port)) }
    }

    #[test]
    fn names_without_end_keep_out_no_host_that_named_itself() {
        let honest: Vec<_> = (0..1000).map(|at| member(&format!("z{at:04}"), at)).collect();
        let named: Vec<_> = (0..65_000u16).map(|at| member(&format!("a{at:05}"), at)).collect();
        let members = chosen(honest.clone(), named, UNCLAIMED_MAX);
        assert_eq!(members.len(), honest.len() + UNCLAIMED_MAX);
        assert!(honest.iter().all(|host| members.contains(host)));
        // A host that names itself again and again has only its last addresses.
        let often = chosen((0..100).map(|at| member("a", at)).collect(), Vec::new(), 0);
        assert_eq!(often, (96..100).map(|at| member("a", at)).collect::<Vec<_>>());
    }

    proptest! {
        #[test]
        fn a_name_that_was_claimed_is_not_anybody_elses(
            claimed in prop::collection::vec(("[a-c]", 0u16..9), 0..20),
            others in prop::collection::vec(("[a-d]", 0u16..9), 0..20),
            most in 0usize..5,
        ) {
            let made = |list: &[(String, u16)]| list.iter().map(|(name, port)| member(name, *port)).collect::<Vec<_>>();
            let (claimed, others) = (made(&claimed), made(&others));
            let members = chosen(claimed.clone(), others, most);
            let unclaimed: Vec<_> = members.iter().filter(|member| !claimed.contains(member)).collect();
            prop_assert!(unclaimed.len() <= most);
            prop_assert!(unclaimed.iter().all(|member| claimed.iter().all(|claimed| claimed.name != member.name)));
            for host in &claimed {
                let same = members.iter().filter(|member| member.name == host.name).count();
                prop_assert!((1..=SAME_NAME_MAX).contains(&same));
            }
        }
    }
}
