//! The addresses at which hosts listen, distinguished by their processes if two hosts have one name.
//!
//! A connection that was accepted comes from an ephemeral port, and gossip has the addresses at which hosts of a name
//! claim to listen. Two hosts have one name if a certificate was copied to both; then the second one is refused, and
//! gossip has the addresses of both. Each host sends its process with its address, and the same process in its hello.
//! No decision depends on the processes in the gossip: they only give people the right addresses.

use crate::frame::Process;
use crate::gossip::Member;
use crate::host::link::Link;
use headstart_swarm::PeerKey;
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

/// The processes that listen at addresses, and those that were refused.
#[derive(Debug, Default)]
pub(crate) struct Whereabouts {
    listening: HashMap<SocketAddr, Process>,
    /// The last process that was refused because another host of its name was connected, by name.
    refused: HashMap<PeerKey, Process>,
}

impl Whereabouts {
    /// Records the content of the gossip: the processes at addresses, and all names.
    pub(crate) fn update(&mut self, listening: HashMap<SocketAddr, Process>, names: &HashSet<PeerKey>) {
        self.listening = listening;
        self.refused.retain(|key, _| names.contains(key));
    }

    /// Records a host that was refused because another one of its name is connected.
    pub(crate) fn refused(&mut self, key: PeerKey, process: Process) {
        self.refused.insert(key, process);
    }

    /// The address at which the host at the other end of a connection listens, if it is known; otherwise the other end
    /// of the connection.
    pub(crate) fn of_link(&self, link: &Link, members: &[Member]) -> SocketAddr {
        self.of_process(&link.name, link.process, members).unwrap_or(link.address)
    }

    /// The address of the host that was refused because it has the name of another one, which is connected by `link`;
    /// `None` if none was refused, or if it is gone.
    pub(crate) fn of_rival(&self, link: &Link, members: &[Member]) -> Option<SocketAddr> {
        let process = self.refused.get(&link.key).filter(|process| **process != link.process)?;
        addresses(&link.name, members).find(|address| self.listening.get(address) == Some(process))
    }

    fn of_process(&self, name: &str, process: Process, members: &[Member]) -> Option<SocketAddr> {
        let mut known = addresses(name, members);
        if let Some(address) = known.find(|address| self.listening.get(address) == Some(&process)) {
            return Some(address);
        }
        // Hosts of version 0.1.0 do not send their process.
        let mut unknown = addresses(name, members);
        let first = unknown.next().filter(|address| !self.listening.contains_key(address));
        first.filter(|_| unknown.next().is_none())
    }
}

/// The addresses at which hosts of a name claim to listen. `members` are sorted.
fn addresses<'a>(name: &'a str, members: &'a [Member]) -> impl Iterator<Item = SocketAddr> + use<'a> {
    let first = members.partition_point(|member| member.name.as_str() < name);
    let named = members.get(first..).unwrap_or_default().iter();
    named.take_while(move |member| member.name == name).map(|member| member.address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::PROCESS;

    #[test]
    fn hosts_of_one_name_are_told_apart_by_their_processes() {
        let address = |port| SocketAddr::from(([10, 0, 0, 1], port));
        let member = |name: &str, port| Member { name: name.to_owned(), address: address(port) };
        let (first, second) = ([1; PROCESS], [2; PROCESS]);
        let mut there = Whereabouts::default();
        let both = [member("a", 1), member("b", 2), member("b", 3), member("c", 4)];
        // One address without a process comes from an earlier version; of two, neither can be chosen.
        assert_eq!(there.of_process("a", first, &both), Some(address(1)));
        assert_eq!(there.of_process("b", first, &both), None);
        assert_eq!(there.of_process("d", first, &both), None);
        let listening = HashMap::from([(address(2), second), (address(3), first)]);
        there.update(listening, &HashSet::new());
        assert_eq!(there.of_process("b", first, &both), Some(address(3)));
        assert_eq!(there.of_process("b", second, &both), Some(address(2)));
        // The only address of a name is not taken for that of another process.
        assert_eq!(there.of_process("b", first, &both[1..2]), None);
    }
}
