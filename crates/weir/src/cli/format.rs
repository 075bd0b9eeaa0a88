//! Rates, times and tables for people.

use std::io::IsTerminal;

use jiff::Timestamp;
use unicode_width::UnicodeWidthStr as _;
use weir_api::{Activity, Class};
use weir_units::BitRate;

/// The form of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    /// Colours and bold text. They need a terminal and no `NO_COLOR` (no-color.org).
    pub(crate) colour: bool,
    /// Whether the output is a terminal.
    pub(crate) terminal: bool,
}

impl Look {
    /// The form for pipes and files.
    pub(crate) const PLAIN: Look = Look { colour: false, terminal: false };

    /// The form of standard output.
    pub(crate) fn of_stdout() -> Look {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let terminal = std::io::stdout().is_terminal();
        Look { colour: terminal && !set("NO_COLOR") && !dumb, terminal }
    }
}

/// A measured rate in four characters and a unit: `12.3mbit`, `940mbit`, `1.5gbit`, `0`.
///
/// The rate is rounded to the nearest tenth. Configured rates are printed exactly instead.
pub(crate) fn rate(rate: BitRate) -> String {
    const UNITS: [(&str, u128); 5] = [
        ("bit", 1),
        ("kbit", 1_000),
        ("mbit", 1_000_000),
        ("gbit", 1_000_000_000),
        ("tbit", 1_000_000_000_000),
    ];
    if rate == BitRate::ZERO {
        return "0".to_owned();
    }
    // 128 bits are enough for ten times a rate near 2^64 bit/s.
    let bits = u128::from(rate.0);
    let in_unit = |(name, unit): (&str, u128)| {
        let tenths = (bits * 10 + unit / 2) / unit;
        match (tenths / 10, tenths % 10) {
            (whole @ ..100, 0) => (whole, format!("{whole}{name}")),
            (whole @ ..100, tenth) => (whole, format!("{whole}.{tenth}{name}")),
            _ => ((bits + unit / 2) / unit, format!("{}{name}", (bits + unit / 2) / unit)),
        }
    };
    let mut texts = UNITS.into_iter().map(in_unit);
    let fits = texts.find(|(whole, _)| *whole < 1_000);
    fits.map_or_else(|| rate.to_string(), |(_, text)| text)
}

/// A configured floor or ceiling; `-` for none.
pub(crate) fn bound(bound: Option<BitRate>) -> String {
    bound.map_or_else(|| "-".to_owned(), |bound| bound.to_string())
}

/// `part` in percent of `whole`.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn percent(part: BitRate, whole: BitRate) -> String {
    match whole.0 {
        0 => "-".to_owned(),
        whole => format!("{:.1} %", part.0 as f64 * 100.0 / whole as f64),
    }
}

/// Milliseconds since the epoch as `2026-01-02T03:04:05.678Z`.
pub(crate) fn moment(time_ms: u64) -> String {
    // The last moment that the library supports is in the year 9999.
    let time = i64::try_from(time_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    time.unwrap_or(Timestamp::MAX).strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

/// Seconds as `2d 3h 12m 5s`.
pub(crate) fn seconds(seconds: u64) -> String {
    let units =
        [(seconds / 86_400, "d"), (seconds / 3600 % 24, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    let parts: Vec<String> = units
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, unit)| format!("{count}{unit}"))
        .collect();
    if parts.is_empty() { "0s".to_owned() } else { parts.join(" ") }
}

/// Milliseconds as `0`, `350ms`, `81.5s`, `3h 12m 5s`.
pub(crate) fn millis(ms: u64) -> String {
    match ms {
        0 => "0".to_owned(),
        1..1_000 => format!("{ms}ms"),
        1_000..100_000 => format!("{}.{}s", ms / 1_000, ms % 1_000 / 100),
        _ => seconds(ms / 1_000),
    }
}

/// `active`, `idle` or `absent`; with `!` if the kernel does not enforce the policy.
pub(crate) fn state(class: &Class) -> String {
    let activity = match class.activity {
        Activity::Active => "active",
        Activity::Idle => "idle",
        Activity::Absent => "absent",
    };
    format!("{activity}{}", if class.enforced { "" } else { "!" })
}

/// A colour with a meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Dim,
    Good,
    Warn,
    Bad,
}

/// A table without borders, with two spaces between columns. Text is never wrapped, and only very long
/// text is cut. Both people and `awk` can read it.
pub(crate) struct Table {
    look: Look,
    /// Whether a column holds numbers, which are aligned to the right.
    is_right: Vec<bool>,
    /// The headings, then the lines.
    rows: Vec<Vec<(String, &'static str)>>,
}

/// Begins bold text on a terminal (ECMA-48, SGR).
const BOLD: &str = "\x1b[1m";
/// Ends all styles.
const RESET: &str = "\x1b[0m";

impl Tone {
    fn begins(self) -> &'static str {
        match self {
            Tone::Plain => "",
            Tone::Dim => "\x1b[2m",
            Tone::Good => "\x1b[32m",
            Tone::Warn => "\x1b[33m",
            Tone::Bad => "\x1b[31m",
        }
    }
}

impl Table {
    /// Creates a table with these headings. A heading that begins with `>` is for numbers, aligned to
    /// the right.
    pub(crate) fn new(look: Look, headings: &[&str]) -> Table {
        let is_right = headings.iter().map(|heading| heading.starts_with('>')).collect();
        let names = headings.iter().map(|heading| (heading.trim_start_matches('>').to_owned(), BOLD));
        Table { look, is_right, rows: vec![names.collect()] }
    }

    /// Adds a line.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = (String, Tone)>) {
        self.rows.push(cells.into_iter().map(|(text, tone)| (cut(text), tone.begins())).collect());
    }
}

/// Cuts text that is too long for any screen.
fn cut(text: String) -> String {
    const LONGEST: usize = 1024;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let width_of = |column: usize| {
            let widths = self.rows.iter().filter_map(|row| row.get(column)).map(|(text, _)| text.width());
            widths.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.is_right.len()).map(width_of).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (((text, style), width), is_right) in row.iter().zip(&widths).zip(&self.is_right) {
                let space = " ".repeat(width - text.width());
                let (before, after) = if *is_right { (&*space, "") } else { ("", &*space) };
                if self.look.colour && !style.is_empty() && !text.is_empty() {
                    line += &format!("{before}{style}{text}{RESET}{after}  ");
                } else {
                    line += &format!("{before}{text}{after}  ");
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rates_are_short() {
        for (bits, text) in [
            (0, "0"),
            (999, "999bit"),
            (1_000, "1kbit"),
            (39_840_000, "39.8mbit"),
            (99_960_000, "100mbit"),
            (123_456_000, "123mbit"),
            (999_949_999, "1gbit"),
            (999_400_000, "999mbit"),
            (1_500_000_000, "1.5gbit"),
            (10_000_000_000_000, "10tbit"),
        ] {
            assert_eq!(rate(BitRate(bits)), text, "{bits}");
        }
    }

    proptest! {
        #[test]
        fn a_rate_read_back_is_within_half_of_what_its_last_digit_is_worth(bits in 1..BitRate::MAX.0) {
            let text = rate(BitRate(bits));
            let back: BitRate = text.parse().unwrap();
            prop_assert!(back.0.abs_diff(bits) * 20 <= bits || bits < 1_000, "{bits} printed as {text}");
            prop_assert!(text.trim_end_matches(char::is_alphabetic).len() <= 4, "{text}");
        }
    }

    #[test]
    fn times_are_readable_and_absurd_ones_do_no_harm() {
        assert_eq!(moment(1_700_000_000_123), "2023-11-14T22:13:20.123Z");
        assert!(moment(u64::MAX).starts_with("9999-12-30"));
        assert_eq!(seconds(11_532), "3h 12m 12s");
        assert_eq!(millis(0), "0");
        assert_eq!(millis(350), "350ms");
        assert_eq!(millis(81_590), "81.5s");
        assert_eq!((seconds(0), seconds(172_805)), ("0s".to_owned(), "2d 5s".to_owned()));
        assert_eq!(millis(u64::MAX), "213503982334d 14h 25m 51s");
    }

    #[test]
    fn a_table_lines_up_and_ends_its_lines_where_the_text_ends() {
        let mut table = Table::new(Look::PLAIN, &["NAME", ">RATE", "STATE"]);
        table.row([
            ("web".into(), Tone::Plain),
            ("5mbit".into(), Tone::Plain),
            ("active".into(), Tone::Good),
        ]);
        table.row([
            ("a-long-name".into(), Tone::Plain),
            ("12.3mbit".into(), Tone::Plain),
            (String::new(), Tone::Bad),
        ]);
        assert_eq!(
            table.to_string(),
            "NAME             RATE  STATE\nweb             5mbit  active\na-long-name  12.3mbit\n"
        );
    }
}
