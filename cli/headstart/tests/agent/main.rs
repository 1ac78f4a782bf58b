//! `headstart agent` as its users run it: disks that it looks after, while it is killed, restarted and replaced.
//!
//! | module | what it tests |
//! |---|---|
//! | [`cluster`] | hosts with certificates, and what is wrong with a set-up |
//! | [`disks`] | attaching, detaching, listing, watching; what cannot work; processes that die |
//! | [`idle`] | what hosts cost that have nothing to share |
//! | [`io`] | fio with verification, while the agent is killed, restarted and replaced by another program |
//! | [`joining`] | whether a host is in the swarm, and what is wrong, is said on both sides |
//! | [`leases`] | a disk whose process is dead keeps its image |
//! | [`looking`] | what programs that only look are told over TCP, and what they cannot do to others |
//! | [`machine`] | the same with a virtual machine over vhost-user-blk, and while the disk's own process is killed |
//! | [`modes`] | which users can read what is kept; logs that do not grow without end |
//! | [`orders`] | what hosts have each other do, and refuse |
//! | [`pinned`] | images that hosts keep together, and images that are warm when they are pushed |
//! | [`planted`] | directories of other users, and what other users left in one |
//! | [`range_proxy`] | blobs for programs that are not ours |
//! | [`rate`] | the rate that the agent and its disks keep to together |
//! | [`renewing`] | certificates that agents renew, hosts that are added by a request, certificates that end |
//! | [`revoked`] | hosts that are members no longer |
//! | [`roles`] | what hosts may be, which is in their certificates; clusters of earlier versions |
//! | [`rot`] | bits that flip in a host's cache |
//! | [`sockets`] | which users reach the sockets, also when a process was started again |
//! | [`space`] | what the writable layers of disks take |
//! | [`swarm`] | hosts that give each other what they have |
//! | [`tags`] | tags that move, and disks that keep their images |
//! | [`unit`] | the agent under the restrictions of its systemd unit |
//! | [`writable`] | writable directories that are not there when a process is started again |

#![allow(clippy::cast_possible_truncation, clippy::panic, clippy::unwrap_used, reason = "tests")]

mod agent;
#[path = "../support/attached.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod attached;
mod cluster;
#[path = "../e2e/disk.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod disk;
mod disks;
#[path = "../support/flipped.rs"]
mod flipped;
#[path = "../support/machine.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod guest;
#[path = "../support/http.rs"]
mod http;
mod idle;
#[path = "../attach/images.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod images;
mod io;
mod joining;
mod leases;
mod looking;
mod machine;
mod modes;
mod orders;
mod pinned;
mod planted;
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
#[path = "../e2e/scene.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod scene;
mod sockets;
mod space;
mod swarm;
mod tags;
#[path = "../e2e/tools.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod tools;
mod unit;
mod writable;
