//! Several swarms over loopback.
