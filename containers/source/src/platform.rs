//! The platforms that an image can run on, and the best one for a host.
//!
//! A platform is an operating system, an architecture and a variant of it, in the words of Go: `linux/amd64`,
//! `linux/arm/v7`. Other words for the same are taken, too (`x86_64`, `aarch64`, `armhf`), as containerd takes them.
//!
//! An image runs on the platforms of the same operating system and architecture whose variant is the same or a later
//! one. Of several images that run, that of the latest variant is best:
//!
//! | architecture | variants, from the earliest | without a variant |
//! |---|---|---|
//! | `arm` | `v5`, `v6`, `v7`, `v8` | `v7` |
//! | `arm64` | `v8`, `v8.1`, ... `v9`, ... | `v8` |
//! | `amd64` | `v1`, `v2`, `v3`, `v4` | `v1` |
//! | others | only the same | runs on all variants |
//!
//! Two rules of containerd are left out: images for `386` on `amd64` and for `arm` on `arm64` are taken only if they
//! are asked for, because a disk has to boot on machines that may lack the older instructions. Versions and features of
//! operating systems, which Windows uses, are not compared.

use headstart_block::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// The most characters of a platform's parts that a message shows.
const SHOWN: usize = 40;

/// An operating system, an architecture and a variant of that, in the words of Go. Parts of one that is made or parsed
/// are normalized, so that equal platforms are the same text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImagePlatform {
    os: String,
    architecture: String,
    variant: Option<String>,
}

impl ImagePlatform {
    /// Makes a platform of its parts. The variant that an architecture has anyway (`v8` of `arm64`) is left out, and
    /// that of `arm` is added.
    #[must_use]
    pub fn new(os: &str, architecture: &str, variant: Option<&str>) -> Self {
        let os = match os.to_ascii_lowercase().as_str() {
            "macos" => "darwin".to_owned(),
            os => os.to_owned(),
        };
        let variant = variant.unwrap_or_default().to_ascii_lowercase();
        let numbered =
            if variant.starts_with(|c: char| c.is_ascii_digit()) { format!("v{variant}") } else { variant };
        let (architecture, variant) = match (architecture.to_ascii_lowercase().as_str(), numbered.as_str()) {
            ("x86_64" | "x86-64" | "amd64", "v1") => ("amd64".to_owned(), ""),
            ("x86_64" | "x86-64", variant) => ("amd64".to_owned(), variant),
            ("aarch64" | "arm64", "v8" | "v8.0") => ("arm64".to_owned(), ""),
            ("aarch64", variant) => ("arm64".to_owned(), variant),
            ("i386" | "i486" | "i586" | "i686" | "x86", variant) => ("386".to_owned(), variant),
            ("armhf", _) | ("arm", "") => ("arm".to_owned(), "v7"),
            ("armel", _) => ("arm".to_owned(), "v6"),
            (other, variant) => (other.to_owned(), variant),
        };
        let variant = (!variant.is_empty()).then(|| variant.to_owned());
        Self { os, architecture, variant }
    }

    /// Returns the platform for Linux on the architecture that this program was built for.
    #[must_use]
    pub fn host() -> Self {
        let architecture = match std::env::consts::ARCH {
            "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
            "powerpc64" => "ppc64",
            "loongarch64" => "loong64",
            known => known,
        };
        Self::new("linux", architecture, None)
    }

    /// The operating system, such as `linux`.
    #[must_use]
    pub fn os(&self) -> &str {
        &self.os
    }

    /// The architecture, such as `amd64`.
    #[must_use]
    pub fn architecture(&self) -> &str {
        &self.architecture
    }

    /// The variant of the architecture, such as `v7`. `None` for the variant that an architecture has anyway.
    #[must_use]
    pub fn variant(&self) -> Option<&str> {
        self.variant.as_deref()
    }

    /// `true` if an image for this platform runs on `host`.
    #[must_use]
    pub fn runs_on(&self, host: &Self) -> bool {
        self.level_on(host).is_some()
    }

    /// Returns the level of an image for this platform on `host`: of several, the greatest is best. `None` if the image
    /// does not run there.
    pub(crate) fn level_on(&self, host: &Self) -> Option<(u32, u32)> {
        if (&self.os, &self.architecture) != (&host.os, &host.architecture) {
            return None;
        }
        if self.variant == host.variant {
            return Some((u32::MAX, u32::MAX));
        }
        let Some(implied) = self.implied_level() else {
            // An image that states no variant runs on all of them.
            return self.variant.is_none().then_some((0, 0));
        };
        let own = self.level(implied)?;
        (own <= host.level(implied)?).then_some(own)
    }

    /// The level of the architecture's variant that is meant where none is stated; `None` if variants of the
    /// architecture have no order.
    fn implied_level(&self) -> Option<(u32, u32)> {
        match self.architecture.as_str() {
            "arm64" => Some((8, 0)),
            "amd64" => Some((1, 0)),
            "arm" => Some((7, 0)),
            _ => None,
        }
    }

    /// The level of the variant, from its number; `None` if it has none.
    fn level(&self, implied: (u32, u32)) -> Option<(u32, u32)> {
        let Some(variant) = &self.variant else { return Some(implied) };
        let numbers = variant.strip_prefix('v')?;
        let (major, minor) = numbers.split_once('.').unwrap_or((numbers, "0"));
        Some((major.parse().ok()?, minor.parse().ok()?))
    }
}

impl FromStr for ImagePlatform {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts: Vec<_> = text.split('/').collect();
        let is_word = |part: &&str| {
            !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        };
        let words = parts.iter().all(is_word);
        match parts.as_slice() {
            [os, architecture] if words => Ok(Self::new(os, architecture, None)),
            [os, architecture, variant] if words => Ok(Self::new(os, architecture, Some(variant))),
            _ => Err(Error::invalid(format!("`{}` is not a platform", text.escape_debug()))
                .remedy("write it as OS/ARCHITECTURE[/VARIANT], such as linux/amd64 or linux/arm/v7")),
        }
    }
}

/// Prints the platform as `os/architecture` or `os/architecture/variant`; parts of hostile documents are shortened and
/// escaped.
impl fmt::Display for ImagePlatform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |part: &str| part.chars().take(SHOWN).collect::<String>().escape_debug().to_string();
        write!(f, "{}/{}", shown(&self.os), shown(&self.architecture))?;
        self.variant.iter().try_for_each(|variant| write!(f, "/{}", shown(variant)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::ErrorKind;

    fn platform(text: &str) -> ImagePlatform {
        text.parse().unwrap()
    }

    #[test]
    fn words_of_other_tools_name_the_same_platforms() {
        for (text, printed) in [
            ("linux/amd64", "linux/amd64"),
            ("Linux/x86_64", "linux/amd64"),
            ("linux/amd64/v1", "linux/amd64"),
            ("linux/amd64/3", "linux/amd64/v3"),
            ("linux/aarch64", "linux/arm64"),
            ("linux/arm64/v8", "linux/arm64"),
            ("linux/arm64/v9.2", "linux/arm64/v9.2"),
            ("linux/arm", "linux/arm/v7"),
            ("linux/armhf", "linux/arm/v7"),
            ("linux/armel", "linux/arm/v6"),
            ("linux/arm/6", "linux/arm/v6"),
            ("linux/i386", "linux/386"),
            ("macos/arm64", "darwin/arm64"),
            ("linux/riscv64", "linux/riscv64"),
        ] {
            assert_eq!(platform(text).to_string(), printed, "{text}");
            assert_eq!(platform(printed), platform(text));
        }
        for text in ["", "linux", "linux/", "linux/amd64/v1/x", "linux/am d64", "/amd64"] {
            assert_eq!(text.parse::<ImagePlatform>().unwrap_err().kind(), ErrorKind::Invalid, "{text}");
        }
        assert_eq!(ImagePlatform::host().os(), "linux");
    }

    #[test]
    fn an_image_runs_on_its_own_and_later_variants() {
        for (image, host, runs) in [
            ("linux/amd64", "linux/amd64", true),
            ("linux/amd64", "linux/amd64/v3", true),
            ("linux/amd64/v2", "linux/amd64", false),
            ("linux/386", "linux/amd64", false),
            ("linux/arm/v6", "linux/arm/v7", true),
            ("linux/arm/v8", "linux/arm/v7", false),
            ("linux/arm/v7", "linux/arm64", false),
            ("linux/arm64", "linux/arm64/v9", true),
            ("linux/arm64/v8.2", "linux/arm64", false),
            ("windows/amd64", "linux/amd64", false),
            ("linux/ppc64le", "linux/ppc64le/power9", true),
            ("linux/ppc64le/power10", "linux/ppc64le/power9", false),
            ("linux/ppc64le/power9", "linux/ppc64le", false),
            ("linux/amd64/vx", "linux/amd64/v4", false),
        ] {
            assert_eq!(platform(image).runs_on(&platform(host)), runs, "{image} on {host}");
        }
    }

    #[test]
    fn the_latest_variant_that_runs_is_best() {
        let host = platform("linux/arm/v7");
        let best = ["linux/arm/v5", "linux/arm/v8", "linux/arm/v6"].map(platform);
        let best = best.iter().filter(|image| image.runs_on(&host)).max_by_key(|image| image.level_on(&host));
        assert_eq!(best.unwrap().to_string(), "linux/arm/v6");
        assert!(host.level_on(&host) > platform("linux/arm/v6").level_on(&host));
    }
}
