//! The kernel's nbd driver joined to our NBD server: a disk as `/dev/nbdN`.
