//! The interface by which Kubernetes asks containerd for images, for tests.

use headstart_block::Result;
use headstart_snapshotter::image_service::ImageService;
use std::path::Path;
use tokio::runtime::Builder;

/// Pulls an image, and returns its id.
pub(crate) fn pull(socket: &Path, image: &str) -> Result<String> {
    block_on(async { ImageService::connect(socket).await?.pull(image, None).await })
}

/// Removes an image.
pub(crate) fn remove(socket: &Path, image: &str) -> Result<()> {
    block_on(async { ImageService::connect(socket).await?.remove(image).await })
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}
