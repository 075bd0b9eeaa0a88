//! A registry's challenge, for the fuzz targets.

use super::auth::Challenge;

/// A challenge, and the addresses that follow from it.
///
/// # Panics
/// An address is not the challenge's realm with a query.
pub fn challenge(text: &str) {
    let Some(challenge) = Challenge::read(text) else { return };
    let Challenge::Bearer { realm, .. } = &challenge else { return };
    let url = challenge.token_url("library/a").unwrap_or_default();
    assert!(url.starts_with(realm.as_str()) && url.len() > realm.len(), "{url}");
    assert_eq!(challenge.exchange("library/a", "x").map(|(url, _)| url).as_ref(), Some(realm));
}
