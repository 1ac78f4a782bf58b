//! URLs as messages and logs show them.

use url::Url;

/// A URL as messages may show it: without credentials, query (signatures) and fragment.
pub(crate) fn redact(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    // These fail only for URLs that cannot have any.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.into()
}
