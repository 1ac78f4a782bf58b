//! [`OutsideTrust`]: what is said of repositories whose converted images are not used, because `--trust` names none of
//! them. Pure.

use headstart_store::Location;
use parking_lot::Mutex;
use std::collections::BTreeSet;

/// Repositories that are remembered at most: makers of images name as many as they like. Of others nothing is said.
const REPOSITORIES_MOST: usize = 1000;

/// The repositories of which it was said.
#[derive(Debug, Default)]
pub(crate) struct OutsideTrust(Mutex<BTreeSet<String>>);

impl OutsideTrust {
    /// The warning about an image in a repository that is outside; `None` if it was given before.
    pub(crate) fn warning(&self, repository: &Location) -> Option<String> {
        let name = repository.to_string();
        let mut told = self.0.lock();
        if told.len() >= REPOSITORIES_MOST || !told.insert(name.clone()) {
            return None;
        }
        Some(format!(
            "images of {name} are fetched and unpacked whole, also where disks were made of them: no --trust names \
             this repository; start the snapshotter with --trust {name} if all who can write there may decide the \
             files of images on this host (images that are disks themselves need none)"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_repository_is_named_once_with_the_option_and_many_do_not_fill_the_memory() {
        let outside = OutsideTrust::default();
        let of = |text: &str| outside.warning(&text.parse().unwrap());
        let said = of("oci://reg.lan/apps/web").unwrap();
        for part in ["images of oci://reg.lan/apps/web ", "unpacked", "--trust oci://reg.lan/apps/web "] {
            assert!(said.contains(part), "{said}");
        }
        assert_eq!(of("oci://reg.lan/apps/web"), None);
        assert!(of("oci://reg.lan/apps/db").is_some());
        let told =
            (0..3 * REPOSITORIES_MOST).filter(|number| of(&format!("oci://evil.lan/{number}")).is_some());
        assert_eq!(told.count(), REPOSITORIES_MOST - 2);
    }
}
