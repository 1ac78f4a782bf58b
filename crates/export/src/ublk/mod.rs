//! ublk: a disk as a block device of this kernel, served from user space.
