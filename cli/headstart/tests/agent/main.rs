//! `headstart agent` as its users run it: disks that it looks after, while it is killed, restarted and replaced.
//!
//! | module | subject |
//! |---|---|
//! | [`cluster`] | hosts with certificates, and errors of a set-up |
//! | [`container_clients`] | nerdctl and `BuildKit`, with images that are disks |
//! | [`container_disks`] | containers that write to disks of their own |
//! | [`container_layers`] | containers whose changes become layers of blocks in new images, by containerd 2 |
//! | [`containerd_suite`] | containerd's tests of snapshotters, on disks |
//! | [`containers`] | containers whose images are disks, under containerd, and the interface of Kubernetes ([`cri`]) |
//! | [`disks`] | attaching, detaching, listing, watching; requests that cannot work; processes that die |
//! | [`io`] | fio with verification, while the agent is killed, restarted and replaced by another program |
//! | [`joining`] | a host in the swarm, and its errors, are reported on both sides |
//! | [`kept`] | mounts whose disks' processes are killed, on their own and together with the agent or the keeper |
//! | [`layer_directories`] | containers under containerd's own EROFS snapshotter, whose layers are disks |
//! | [`leases`] | a disk whose process is dead keeps its image |
//! | [`looking`] | the answers to programs that only read over TCP, and the things that these cannot do |
//! | [`machine`] | the same with a virtual machine over vhost-user-blk, and while the disk's own process is killed |
//! | [`modes`] | the users that can read stored files; logs that do not grow without end |
//! | [`orders`] | the orders between hosts, and their refusals |
//! | [`pinned`] | images that hosts keep together, and images that are warm when they are pushed |
//! | [`planted`] | directories of other users, and files that other users left in one |
//! | [`pods`] | pods as Kubernetes runs them, from a registry with a password |
//! | [`range_proxy`] | blobs for other programs |
//! | [`rate`] | the rate that the agent and its disks keep to together |
//! | [`renewing`] | certificates that agents renew, hosts that are added by a request, certificates that end |
//! | [`revoked`] | revoked hosts |
//! | [`roles`] | the roles of hosts, which are in their certificates; clusters of earlier versions |
//! | [`rot`] | bits that flip in a host's cache |
//! | [`snapshotter_starts`] | the start of a snapshotter, and what it refuses then |
//! | [`sockets`] | the users that reach the sockets, even after a process was started again |
//! | [`space`] | the space of disks' writable layers |
//! | [`starts`] | starts of containers, recorded and planned by program |
//! | [`swarm`] | hosts that give each other their chunks |
//! | [`tags`] | tags that move, and disks that keep their images |
//! | [`unit`] | the agent under the restrictions of its systemd unit |
//! | [`writable`] | writable directories that are not there when a process is started again |

#![allow(clippy::cast_possible_truncation, clippy::panic, clippy::unwrap_used, reason = "tests")]

mod agent;
mod cluster;
mod container_clients;
mod container_disks;
mod container_forms;
mod container_layers;
mod containerd_suite;
mod containers;
mod cri;
mod disks;
#[path = "../support/flipped.rs"]
mod flipped;
#[path = "../support/machine.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod guest;
#[path = "../support/http.rs"]
mod http;
#[path = "../attach/images.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod images;
mod io;
mod joining;
mod kept;
mod layer_directories;
mod leases;
mod looking;
mod machine;
mod memory;
mod modes;
mod orders;
mod pinned;
mod planted;
mod pods;
mod pull_secrets;
mod range_proxy;
mod rate;
#[path = "../support/refused.rs"]
mod refused;
mod renewing;
#[path = "../support/restricted.rs"]
mod restricted;
mod revoked;
mod roles;
mod rot;
mod snapshotter_starts;
mod sockets;
mod space;
mod starts;
mod swarm;
mod tags;
#[path = "../e2e/tools.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod tools;
mod tutorial;
mod unit;
mod writable;

use headstart_testkit::{attached, disk, scene};
