//! An image together with a name that the user gave: `NAME=REFERENCE`, or a reference alone.

use headstart_block::{Error, Result};
use headstart_store::Reference;
use std::str::FromStr;

/// An image together with an optional name: the user writes `NAME=REFERENCE`, or the reference alone. An image that is
/// attached gives this name to its export. An image whose boots were recorded gives it to these boots.
#[derive(Clone, Debug)]
pub struct NamedImage {
    /// The name of the export (by which clients request the disk) or of the recorded boots: up to 64 ASCII letters,
    /// digits, `-`, `_` and `.`, not beginning with `.`. Empty if the user gave none.
    pub name: String,
    /// The reference of the image: its store and its tag or digest.
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
            return Err(Error::invalid(format!("`{}` is not a name of an export", name.escape_debug()))
                .remedy("write 1 to 64 letters, digits, `-`, `_` and `.`"));
        }
        Ok(Self { name: name.to_owned(), reference: reference.parse()? })
    }
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
