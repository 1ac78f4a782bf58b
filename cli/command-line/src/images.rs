//! Images as arguments of commands, and images in any store.

use crate::runtime::{FEW, with_runtime};
use crate::store_args::StoreArgs;
use headstart_block::{Error, Result};
use headstart_image::reference::Reference;
use headstart_image::remote::RemoteImage;
use std::str::FromStr;

/// An image with the name of its export.
#[derive(Clone, Debug)]
pub struct NamedImage {
    /// The name; empty if none was given.
    pub name: String,
    /// The image.
    pub reference: Reference,
}

impl FromStr for NamedImage {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        // A scheme comes before any `=` that belongs to the reference.
        let scheme = text.find("://").unwrap_or(text.len());
        let (name, reference) = match text[..scheme].split_once('=') {
            Some((name, _)) => (name, &text[name.len() + 1..]),
            None => ("", text),
        };
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if !name.chars().all(allowed) || name.starts_with('.') || name.len() > 64 {
            return Err(Error::invalid(format!("`{}` is no name of an export", name.escape_debug()))
                .remedy("write 1 to 64 letters, digits, `-`, `_` and `.`"));
        }
        Ok(Self { name: name.to_owned(), reference: reference.parse()? })
    }
}

/// Does `work` on an image that is not in a directory.
///
/// # Errors
/// If the image cannot be opened; the errors of `work`.
pub fn on_remote<T>(
    image: &Reference,
    stores: &StoreArgs,
    work: impl FnOnce(&RemoteImage) -> Result<T>,
) -> Result<T> {
    let settings = stores.settings()?;
    let store = headstart_store::open(&image.location, &settings)?;
    with_runtime(FEW, |runtime| {
        // A mistyped host or a missing login is reported at once, not after the long deadline of a slow store.
        runtime.block_on(store.check())?;
        work(&RemoteImage::open(store, image, settings.retry, runtime.handle().clone())?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_comes_before_the_scheme() {
        let named =
            |text: &str| text.parse::<NamedImage>().map(|image| (image.name, image.reference.to_string()));
        assert_eq!(named("file:///d:t").unwrap(), (String::new(), "file:///d:t".to_owned()));
        assert_eq!(named("a=file:///d:t").unwrap(), ("a".to_owned(), "file:///d:t".to_owned()));
        assert_eq!(named("file:///a=b:t").unwrap(), (String::new(), "file:///a=b:t".to_owned()));
        for text in ["../a=file:///d:t", "a b=file:///d:t", ".=file:///d:t", "a=b", "a"] {
            assert!(named(text).is_err(), "{text}");
        }
    }
}
