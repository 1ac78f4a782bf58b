//! Seekable compression: OverlayBD ZFile.
