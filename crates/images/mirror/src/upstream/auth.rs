//! Logging in to a registry: its challenge, and the token it leads to.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

/// The registry's demand, from `WWW-Authenticate` (RFC 9110, 11.6.1; Docker's token specification).
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

impl Challenge {
    /// The first challenge that weir can answer.
    pub(super) fn read(text: &str) -> Option<Challenge> {
        let (scheme, rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Challenge::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let (mut realm, mut service, mut scope) = (None, None, None);
        let mut rest = rest;
        while let Some((key, after)) = rest.split_once('=') {
            let (value, next) = match after.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"')?,
                None => after.split_once(',').map_or((after, ""), |(v, _)| (v, &after[v.len()..])),
            };
            match key.trim().trim_start_matches(',').trim().to_ascii_lowercase().as_str() {
                "realm" => realm = Some(value.to_owned()),
                "service" => service = Some(value.to_owned()),
                "scope" => scope = Some(value.to_owned()),
                _ => {}
            }
            rest = next;
        }
        Some(Challenge::Bearer { realm: realm?, service, scope })
    }

    /// Where its token is to be had; none for Basic.
    pub(super) fn token_url(&self, repository: &str) -> Option<String> {
        let Challenge::Bearer { realm, service, scope } = self else { return None };
        let scope = scope.clone().unwrap_or_else(|| format!("repository:{repository}:pull"));
        let mut url = realm.clone();
        let mut separator = if realm.contains('?') { '&' } else { '?' };
        for (key, value) in [("service", service.as_deref()), ("scope", Some(&*scope))] {
            if let Some(value) = value {
                url.push(separator);
                url.push_str(key);
                url.push('=');
                url.extend(utf8_percent_encode(value, NON_ALPHANUMERIC));
                separator = '&';
            }
        }
        Some(url)
    }

    /// Where an identity token is exchanged for one, and what is sent there (RFC 6749, 6; Docker's token
    /// specification); none for Basic.
    pub(super) fn exchange(&self, repository: &str, identity: &str) -> Option<(String, String)> {
        let Challenge::Bearer { realm, service, scope } = self else { return None };
        let scope = scope.clone().unwrap_or_else(|| format!("repository:{repository}:pull"));
        let mut form = "grant_type=refresh_token&client_id=weir".to_owned();
        for (key, value) in
            [("service", service.as_deref()), ("scope", Some(&*scope)), ("refresh_token", Some(identity))]
        {
            if let Some(value) = value {
                form.push('&');
                form.push_str(key);
                form.push('=');
                form.extend(utf8_percent_encode(value, NON_ALPHANUMERIC));
            }
        }
        Some((realm.clone(), form))
    }
}

/// A token service's answer.
#[derive(Deserialize)]
pub(super) struct Token {
    token: Option<String>,
    access_token: Option<String>,
    expires_in: Option<u64>,
}

impl Token {
    pub(super) fn text(&self) -> Option<&str> {
        self.token.as_deref().or(self.access_token.as_deref()).filter(|t| !t.is_empty())
    }

    /// For how long it is good, seconds; 60 unless said, by the specification.
    pub(super) fn lifetime_s(&self) -> u64 {
        self.expires_in.unwrap_or(60).max(60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read_as_registries_write_them() {
        let hub = r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:library/a:pull""#;
        let read = Challenge::read(hub).unwrap();
        assert_eq!(
            read.token_url("x").unwrap(),
            "https://auth.docker.io/token?service=registry%2Edocker%2Eio&scope=repository%3Alibrary%2Fa%3Apull"
        );
        let bare = Challenge::read(r#"bearer service=x, realm="https://a/?b=c""#).unwrap();
        assert_eq!(
            bare.token_url("r/s").unwrap(),
            "https://a/?b=c&service=x&scope=repository%3Ar%2Fs%3Apull"
        );
        let (url, form) = bare.exchange("r/s", "a b&c").unwrap();
        assert_eq!(url, "https://a/?b=c");
        assert_eq!(
            form,
            "grant_type=refresh_token&client_id=weir&service=x&scope=repository%3Ar%2Fs%3Apull&refresh_token=a%20b%26c"
        );
        assert_eq!(Challenge::Basic.exchange("r/s", "x"), None);
        assert_eq!(Challenge::read("Basic realm=\"x\""), Some(Challenge::Basic));
        for bad in ["", "Bearer", "Bearer service=\"x\"", "Bearer realm=\"x", "Negotiate"] {
            assert_eq!(Challenge::read(bad), None, "{bad}");
        }
    }
}
