//! Searches in registries whose answers came too late: each still has a thread, which ends with its last request.
//!
//! A registry that does not answer must not fill the host with threads: another search in a repository where one is
//! late, or anywhere if many are, is refused until they have ended.

use headstart_block::{Error, ErrorKind, Result};
use headstart_store::Location;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

/// Late searches with which no further one is begun.
const LATE_MOST: usize = 16;

/// The late searches, with their repositories.
#[derive(Default)]
pub(crate) struct LateSearches(Mutex<Vec<(Weak<SearchThread>, Location)>>);

/// A search that goes on: its thread has this until it ends.
pub(crate) struct SearchThread;

impl LateSearches {
    /// Checks that another search in the repository at `location` may be begun.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if a search there is late, or too many are.
    pub(crate) fn check(&self, location: &Location) -> Result<()> {
        let mut late = self.0.lock();
        late.retain(|(thread, _)| thread.strong_count() > 0);
        let cause = if late.iter().any(|(_, late)| late == location) {
            "an earlier search in this repository has no answer yet"
        } else if late.len() >= LATE_MOST {
            "too many searches in registries have no answer yet"
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::Unavailable, cause).about(location).remedy(
            "check that this host reaches the registry: a search is made again when the late ones have ended",
        ))
    }

    /// Notes that the caller of a search waits no longer.
    pub(crate) fn add(&self, thread: &Arc<SearchThread>, location: &Location) {
        self.0.lock().push((Arc::downgrade(thread), location.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository(number: usize) -> Location {
        format!("oci://localhost:1/app{number}").parse().unwrap()
    }

    #[test]
    fn a_registry_that_does_not_answer_gets_few_threads() {
        let searches = LateSearches::default();
        let mut threads: Vec<Arc<SearchThread>> = Vec::new();
        for number in 0..LATE_MOST {
            searches.check(&repository(number)).unwrap();
            threads.push(Arc::new(SearchThread));
            searches.add(&threads[number], &repository(number));
            let error = searches.check(&repository(number)).unwrap_err();
            assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("app"), "{error}");
        }
        assert_eq!(searches.check(&repository(100)).unwrap_err().kind(), ErrorKind::Unavailable);
        // One that ends makes room, for its own repository as well.
        threads.remove(3);
        searches.check(&repository(3)).unwrap();
        searches.check(&repository(100)).unwrap();
        assert_eq!(searches.check(&repository(4)).unwrap_err().kind(), ErrorKind::Unavailable);
    }
}
