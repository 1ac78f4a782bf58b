//! The local blob cache on disk: presence, verification before visibility, eviction, crash consistency.
