//! The media types that a request accepts.

use axum::http::{HeaderMap, header};

/// A media range of `Accept`: `text/plain; version=0.0.4; q=0.5`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Range<'h> {
    pub(super) essence: &'h str,
    parameters: &'h str,
    /// Its weight `q`, 1 if the header has none, 0 if it cannot be read.
    pub(super) weight: f32,
}

impl<'h> Range<'h> {
    fn read(text: &'h str) -> Range<'h> {
        let (essence, parameters) = text.split_once(';').unwrap_or((text, ""));
        let range = Range { essence: essence.trim(), parameters, weight: 1.0 };
        let weight = range.parameter("q").map_or(Ok(1.0), str::parse);
        Range { weight: weight.unwrap_or(0.0), ..range }
    }

    /// The value of a parameter.
    pub(super) fn parameter(&self, name: &str) -> Option<&'h str> {
        let pairs = self.parameters.split(';').filter_map(|pair| pair.trim().split_once('='));
        pairs
            .into_iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim_matches('"'))
    }
}

/// The media ranges of all `Accept` headers, in their order.
pub(super) fn ranges(headers: &HeaderMap) -> impl Iterator<Item = Range<'_>> {
    let texts = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    texts.flat_map(|text| text.split(',')).filter(|text| !text.trim().is_empty()).map(Range::read)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn ranges_of_several_headers_have_weights_and_parameters() {
        let mut headers = HeaderMap::new();
        let first = "application/openmetrics-text;version=1.0.0;q=0.5, text/plain; Version=\"0.0.4\" ,";
        headers.append(header::ACCEPT, HeaderValue::from_static(first));
        headers.append(header::ACCEPT, HeaderValue::from_static("*/*;q=x"));
        let seen: Vec<_> = ranges(&headers).map(|r| (r.essence, r.parameter("version"), r.weight)).collect();
        let wanted = [
            ("application/openmetrics-text", Some("1.0.0"), 0.5),
            ("text/plain", Some("0.0.4"), 1.0),
            ("*/*", None, 0.0),
        ];
        assert_eq!(seen, wanted);
    }
}
