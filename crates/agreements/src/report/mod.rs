//! The promises to a customer in a month, and their delivery.

mod plot;

use std::fmt::Write as _;

use quick_xml::escape::escape;
use serde::{Deserialize, Serialize};
use weir_units::{BitRate, Bytes};

use crate::{Agreement, Month, Utc, Violation};

/// An agreement's month. As JSON it is this; [`Report::html`] is for people.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Report {
    /// The agreement's id.
    pub agreement: String,
    /// The customer.
    pub party: String,
    /// For what.
    pub service: String,
    /// The month of UTC, `2026-11`.
    pub month: String,
    /// When this was written.
    pub written: Utc,
    /// The guarantee in the agreement's terms.
    pub min: BitRate,
    /// The ceiling in them.
    pub max: BitRate,
    /// The part of the observed time in which the guarantee was met, 0 to 1.
    pub availability: f64,
    /// The record, hour by hour, and the violations.
    pub seen: Month,
}

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;color:#212529;max-width:62em;margin:2em auto;padding:0 1em}\
h1{font-size:1.5em}table{border-collapse:collapse;margin:1em 0}th,td{text-align:left;padding:.25em 1em .25em 0;\
border-bottom:1px solid #dee2e6;vertical-align:top}th{font-weight:600}td.n{text-align:right;font-variant-numeric:\
tabular-nums}svg{max-width:100%;height:auto}.bad{color:#c92a2a}.good{color:#2b8a3e}footer{color:#6c757d;font-size:.9em}";

impl Report {
    /// The report of what was seen of an agreement.
    #[must_use]
    pub fn new(agreement: &Agreement, seen: Month, written: Utc) -> Report {
        let offer = &agreement.offer;
        Report {
            agreement: agreement.id.to_string(),
            party: offer.context.initiator.to_string(),
            service: offer.service.name.to_string(),
            month: seen.month().to_string().chars().take(7).collect(),
            written,
            min: offer.terms.min,
            max: offer.terms.max,
            availability: seen.availability(),
            seen,
        }
    }

    /// A page with the plot in it. The page loads nothing from elsewhere.
    #[must_use]
    pub fn html(&self) -> String {
        let svg = plot::svg(self);
        let Report { agreement, party, service, month, seen, .. } = self;
        let (title, party, service) = (
            format!("Agreement {}, {month}", escape(agreement)),
            escape(party.as_str()),
            escape(service.as_str()),
        );
        let kept = if seen.violated_ms == 0 { "good" } else { "bad" };
        let mut rows = String::new();
        for (name, value) in [
            ("Party", party.to_string()),
            ("Service", service.to_string()),
            ("Guarantee", format!("{}, up to {}", self.min, self.max)),
            ("Availability", format!("<b class=\"{kept}\">{}</b>", percent(self.availability))),
            ("Watched in force", time(seen.observed_ms)),
            ("More was asked for than sent", time(seen.waiting_ms)),
            ("Promised in that time", size(seen.promised)),
            ("Delivered in that time", size(seen.delivered)),
            ("Delivered in all", size(seen.sent)),
            ("Guarantee not met", format!("{}, {}", time(seen.violated_ms), self.count())),
        ] {
            let _ = writeln!(rows, "<tr><th>{name}</th><td>{value}</td></tr>");
        }
        let violations = self.violations();
        let written = self.written;
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
             <style>{STYLE}</style></head>\n<body><h1>{title}</h1>\n<table>\n{rows}</table>\n{svg}\n{violations}\
             <footer>Written {written}. A guarantee counts while more is waiting to be sent than is sent; it is \
             judged second by second, and met from {} % on.</footer></body></html>\n",
            crate::MET_PERCENT
        )
    }

    fn count(&self) -> String {
        match self.seen.violations.len() as u64 + self.seen.more_violations {
            0 => "no violation".to_owned(),
            1 => "one violation".to_owned(),
            n => format!("{n} violations"),
        }
    }

    fn violations(&self) -> String {
        if self.seen.violations.is_empty() {
            return String::new();
        }
        let mut text = "<h2>Violations</h2>\n<table><tr><th>From</th><th>For</th><th>Missing on average</th>\
            <th>At worst</th><th>In all</th><th>Cause</th></tr>\n"
            .to_owned();
        for violation in &self.seen.violations {
            let Violation { start, mean, worst, lacking, cause, .. } = violation;
            let _ = writeln!(
                text,
                "<tr><td>{start}</td><td class=\"n\">{:.1} s</td><td class=\"n\">{mean}</td><td class=\"n\">{worst}\
                 </td><td class=\"n\">{}</td><td>{cause}</td></tr>",
                violation.length().as_secs_f64(),
                size(*lacking)
            );
        }
        text += "</table>\n";
        if self.seen.more_violations > 0 {
            let _ = writeln!(text, "<p>And {} more.</p>", self.seen.more_violations);
        }
        text
    }
}

/// Never 100 % unless it is.
fn percent(part: f64) -> String {
    let floored = (part * 1e5).floor() / 1e3;
    format!("{floored:.3} %")
}

fn time(ms: u64) -> String {
    let seconds = ms / 1000;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, _) => format!("{:.1} s", ms as f64 / 1000.0),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

fn size(bytes: Bytes) -> String {
    let scaled = |unit: f64, name: &str| format!("{:.2} {name}", bytes.0 as f64 / unit);
    match bytes.0 {
        0..1_000_000 => scaled(1e3, "kB"),
        1_000_000..1_000_000_000 => scaled(1e6, "MB"),
        _ => scaled(1e9, "GB"),
    }
}

#[cfg(test)]
mod tests;
