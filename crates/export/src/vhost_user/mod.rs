//! vhost-user-blk: a disk for a hypervisor on this host, through shared memory.
