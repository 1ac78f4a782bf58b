//! FUSE: a disk as one file of its exact size.
