//! Servers that give a block device to hypervisors and kernels: NBD, vhost-user-blk, FUSE, ublk.
