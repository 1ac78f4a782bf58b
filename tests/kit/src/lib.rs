//! What tests and comparisons need around the product: a shaping proxy, registries, object stores and web servers that run for real.
