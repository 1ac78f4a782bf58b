//! A disk: layers, cache, pull engine and writable layer behind one block device.
