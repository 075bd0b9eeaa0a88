//! Two answers of a registry for the fuzz targets: its challenge, and the place that it sends to.

use std::net::IpAddr;

use hyper::Uri;

use super::{
    absolute,
    auth::Challenge,
    guard::{Guard, Place},
};

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

/// The place that a registry sends to. The URL has a host, and a named place allows itself only. An address
/// that is never asked is refused in each form.
///
/// # Panics
/// They do not, or it is not.
pub fn redirect(text: &str) {
    let base = Uri::from_static("https://registry.example:5000/v2/a/blobs/x");
    let Some(url) = absolute(&base, text) else { return };
    let place = Place::of_url(&url).expect("it has a host");
    assert!(place.has(&url), "{url}");
    let Ok(ip) = url.host().unwrap_or_default().trim_matches(['[', ']']).parse::<IpAddr>() else { return };
    let mapped = match ip {
        IpAddr::V4(ip) => IpAddr::V6(ip.to_ipv6_mapped()),
        IpAddr::V6(_) => ip,
    };
    for private in [false, true] {
        let guard = Guard { private };
        assert_eq!(guard.refuses(ip).is_some(), guard.refuses(mapped).is_some(), "{ip}");
    }
    let is_known = ip.is_loopback() || ip.is_multicast() || ip.is_unspecified();
    assert!(!is_known || Guard { private: false }.refuses(ip).is_some(), "{ip}");
}
