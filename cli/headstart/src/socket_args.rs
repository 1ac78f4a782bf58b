//! Arguments for the users, other than this one, that may open a disk or send requests to a daemon.

use clap::Args;
use headstart_export::{SocketAccess, SocketMode, SocketOwner};

/// The owner and permissions of what serves a disk.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct SocketArgs {
    /// Give the disk's sockets and its FUSE file to this user, such as libvirt-qemu:kvm; with a group, its members may
    /// open the disk, too
    #[arg(long, value_name = "USER[:GROUP]", help_heading = "Ways to serve the disk")]
    pub(crate) socket_owner: Option<SocketOwner>,
    /// Permissions of the disk's sockets and its FUSE file [default: 0600, or 0660 if --socket-owner has a group]
    #[arg(long, value_name = "MODE", help_heading = "Ways to serve the disk")]
    pub(crate) socket_mode: Option<SocketMode>,
}

impl SocketArgs {
    /// The requested access.
    pub(crate) fn access(&self) -> SocketAccess {
        SocketAccess { owner: self.socket_owner.clone(), mode: self.socket_mode }
    }
}

/// The owner and permissions of a daemon's own socket.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct AgentSocketArgs {
    /// Let this user ask the agent at its socket, too: it attaches and detaches disks with the agent's rights
    #[arg(long, value_name = "USER[:GROUP]")]
    socket_owner: Option<SocketOwner>,
    /// Permissions of the agent's socket [default: 0600, or 0660 if --socket-owner has a group]
    #[arg(long, value_name = "MODE")]
    socket_mode: Option<SocketMode>,
}

impl AgentSocketArgs {
    /// The requested access.
    pub(crate) fn access(&self) -> SocketAccess {
        SocketAccess { owner: self.socket_owner.clone(), mode: self.socket_mode }
    }
}
