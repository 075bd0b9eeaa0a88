//! The two text formats of metrics, and the choice between them.

use axum::http::HeaderMap;

use crate::server::accept::ranges;

/// A text format that Prometheus reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// Prometheus' text format 0.0.4, the answer without a preference.
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// The format that `Accept` prefers.
    pub(super) fn accepted(headers: &HeaderMap) -> Format {
        let (mut text, mut open) = (0.0_f32, 0.0_f32);
        for range in ranges(headers) {
            match range.essence {
                "application/openmetrics-text"
                    if matches!(range.parameter("version"), None | Some("1.0.0")) =>
                {
                    open = open.max(range.weight);
                }
                "text/plain" if matches!(range.parameter("version"), None | Some("0.0.4")) => {
                    text = text.max(range.weight);
                }
                _ => {}
            }
        }
        if open > 0.0 && open >= text { Format::OpenMetrics } else { Format::Text }
    }

    pub(super) fn media_type(self) -> &'static str {
        match self {
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// The text in this format.
    pub(super) fn of(self, openmetrics: String) -> String {
        match self {
            Format::Text => plain(&openmetrics),
            Format::OpenMetrics => openmetrics,
        }
    }
}

/// An OpenMetrics text in the text format 0.0.4.
///
/// A family has the name of its samples there, there are no units and no end mark, and the type `info`
/// is a gauge. Samples are the same.
fn plain(openmetrics: &str) -> String {
    let mut text = String::with_capacity(openmetrics.len() + 1024);
    let mut help = "";
    for line in openmetrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            // The suffix of the name follows from the type in the next line.
            help = rest.split_once(' ').map_or("", |(_, help)| help);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                kind => ("", kind),
            };
            text += &format!("# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}\n");
        } else if !line.starts_with('#') {
            text += line;
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderValue, header};

    use super::*;

    #[test]
    fn the_format_is_the_one_that_accept_prefers() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,\
            application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, format) in [
            (prometheus, Format::OpenMetrics),
            ("application/openmetrics-text", Format::OpenMetrics),
            ("text/plain;version=0.0.4;q=0.5,application/openmetrics-text;version=1.0.0;q=0.4", Format::Text),
            ("application/openmetrics-text;version=2.0.0", Format::Text),
            ("application/openmetrics-text;q=0", Format::Text),
            ("*/*", Format::Text),
            ("image/png", Format::Text),
        ] {
            let headers = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(accept))]);
            assert_eq!(Format::accepted(&headers), format, "{accept}");
        }
        assert_eq!(Format::accepted(&HeaderMap::new()), Format::Text);
    }

    #[test]
    fn plain_text_has_the_names_of_the_samples_and_no_units() {
        let openmetrics = "# HELP a_bytes Sent.\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\na_bytes_total 3\n\
            # HELP b Build.\n# TYPE b info\nb_info{version=\"1\"} 1\n# HELP c C.\n# TYPE c gauge\nc 1.0\n# EOF\n";
        let text = "# HELP a_bytes_total Sent.\n# TYPE a_bytes_total counter\na_bytes_total 3\n\
            # HELP b_info Build.\n# TYPE b_info gauge\nb_info{version=\"1\"} 1\n# HELP c C.\n# TYPE c gauge\nc 1.0\n";
        assert_eq!(plain(openmetrics), text);
    }
}
