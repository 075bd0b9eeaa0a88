//! `Retry-After`: when a registry may be asked again (RFC 9110, 10.2.3).

use std::time::Duration;

use hyper::{
    HeaderMap,
    header::{self, HeaderName},
};

use crate::Utc;

/// A date says whole seconds, so one that is now or past may mean the next second. A registry that wants no requests now
/// and names no pause gets one too.
const LEAST: Duration = Duration::from_secs(1);

/// The time until a registry may be asked again; none if it does not say.
///
/// A date is compared with the answer's own `Date`: the clocks of registry and node may differ.
///
/// * `now`: this node's clock, for an answer without `Date`.
pub(super) fn after(headers: &HeaderMap, now: Utc) -> Option<Duration> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let date = |text: &str| httpdate::parse_http_date(text).ok().map(Utc::from);
    let asked = text(header::RETRY_AFTER)?;
    // A number that is too large for the type is longer than any pause.
    if !asked.is_empty() && asked.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(Duration::from_secs(asked.parse().unwrap_or(u64::MAX)).max(LEAST));
    }
    let sent = text(header::DATE).and_then(date).unwrap_or(now);
    Some(date(asked)?.since(sent).max(LEAST))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sun, 06 Nov 1994 08:49:37 GMT.
    const NOW: Utc = Utc::from_unix_millis(784_111_777_000);

    fn told(retry_after: &str, date: Option<&str>) -> Option<u64> {
        let mut headers = HeaderMap::new();
        headers.insert(header::RETRY_AFTER, retry_after.parse().unwrap());
        if let Some(date) = date {
            headers.insert(header::DATE, date.parse().unwrap());
        }
        after(&headers, NOW).map(|pause| pause.as_secs())
    }

    #[test]
    fn pause_is_read_in_seconds_and_in_each_form_of_a_date() {
        for (text, pause) in [
            ("120", 120),
            (" 0 ", 1),
            ("99999999999999999999999", u64::MAX),
            ("Sun, 06 Nov 1994 08:51:37 GMT", 120),
            ("Sunday, 06-Nov-94 08:51:37 GMT", 120),
            ("Sun Nov  6 08:51:37 1994", 120),
            ("Sun, 06 Nov 1994 08:00:00 GMT", 1),
        ] {
            assert_eq!(told(text, None), Some(pause), "{text}");
        }
        for text in ["", "soon", "-5", "1.5", "Sun, 32 Nov 1994 08:51:37 GMT"] {
            assert_eq!(told(text, None), None, "{text}");
        }
        assert_eq!(after(&HeaderMap::new(), NOW), None);
    }

    #[test]
    fn pause_until_a_date_goes_by_the_registrys_clock() {
        let asked = "Sun, 06 Nov 1994 10:00:30 GMT";
        assert_eq!(told(asked, Some("Sun, 06 Nov 1994 10:00:00 GMT")), Some(30));
        assert_eq!(told(asked, Some("no date")), Some(4253));
    }
}
