//! Where blobs come from: directories, HTTP, object stores, OCI registries; authentication, retries, limits.
