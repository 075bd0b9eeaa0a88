//! Shares and the idle container's round trips, a group of bars for each case and mode.

use anyhow::Result;
use plotters::style::{Color, RGBColor};

use super::{
    peer::Peer,
    report::{Report, Row},
};
use crate::report::sheet::{
    self, CENTER_TOP, Drawn, GREY, INK, LEFT_MIDDLE, RIGHT_MIDDLE, Sheet, TEXT, tick, width,
};

const LEFT: i32 = 70;
const RIGHT: i32 = 24;
const LEGEND: i32 = 78;
/// The upper edges of the panels: the last container's part, the round trips.
const TOPS: [i32; 2] = [130, 420];
const HEIGHT: i32 = 210;
const BOTTOM: i32 = 70;
const BAR: i32 = 14;
const GAP: i32 = 36;
const MIN_WIDTH: i32 = 720;

/// The picture as SVG.
///
/// # Errors
/// If the drawing library refuses.
pub(super) fn svg(report: &Report) -> Result<String> {
    let groups = groups(report);
    let group = report.settings.peers.len() as i32 * BAR + GAP;
    // A case's name needs room.
    let group = group.max(92);
    let across = (groups.len() as i32 * group).max(MIN_WIDTH);
    let size = (LEFT + across + RIGHT, TOPS[1] + HEIGHT + BOTTOM);
    sheet::svg(&report.head.scenario, size, |sheet| {
        let settings = &report.settings;
        let under = format!("{}; {} of a line of {}", settings.source, settings.capacity, settings.line);
        sheet.head(LEFT, &settings.title, &under)?;
        let mut x = LEFT;
        for peer in &settings.peers {
            sheet.bar([(x, LEGEND - 6), (x + 15, LEGEND + 6)], color(*peer))?;
            sheet.words(peer.name(), (x + 22, LEGEND), TEXT, &INK, LEFT_MIDDLE)?;
            x += 22 + width(peer.name(), TEXT) + 14;
        }
        let label = settings.weights.keys().last().map_or("", String::as_str);
        let part = |row: &Row| {
            let sum: f64 = row.goodput.iter().sum();
            row.goodput.last().filter(|_| sum > 0.0).map(|last| last / sum * 100.0)
        };
        let due = settings.due();
        let wanted = due.last().map_or(0.0, |last| last / due.iter().sum::<f64>() * 100.0);
        let title = format!("part of what arrives that is {label}'s; the line is its due");
        panel(sheet, &groups, (TOPS[0], group), ("%", &title), Some(wanted), part)?;
        let title = "round trip of an idle container, 95 of 100";
        panel(sheet, &groups, (TOPS[1], group), ("ms", title), None, |row| row.p95)
    })
}

/// The rows of each mode and case.
fn groups(report: &Report) -> Vec<(String, Vec<&Row>)> {
    let mut groups: Vec<(String, Vec<&Row>)> = Vec::new();
    for case in &report.settings.cases {
        for mode in &report.settings.modes {
            let rows: Vec<&Row> =
                report.rows.iter().filter(|row| row.case == case.name && row.mode == *mode).collect();
            if !rows.is_empty() {
                groups.push((format!("{}|{mode}", case.name), rows));
            }
        }
    }
    groups
}

fn panel(
    sheet: &Sheet<'_>,
    groups: &[(String, Vec<&Row>)],
    (top, group): (i32, i32),
    (unit, title): (&str, &str),
    wanted: Option<f64>,
    of: impl Fn(&Row) -> Option<f64>,
) -> Drawn {
    let values = groups.iter().flat_map(|(_, rows)| rows).filter_map(|row| of(row));
    let highest = values.chain(wanted).fold(1.0, f64::max);
    let step = tick(highest, 6.0);
    let most = (highest / step).ceil() * step;
    let y = |value: f64| top + HEIGHT - (value / most * f64::from(HEIGHT)).round() as i32;
    let right = LEFT + groups.len() as i32 * group;
    for nth in 0..=(most / step).round() as i32 {
        let value = f64::from(nth) * step;
        sheet.grid((LEFT, y(value)), (right, y(value)), nth == 0)?;
        sheet.words(&value.to_string(), (LEFT - 8, y(value)), TEXT, &GREY, RIGHT_MIDDLE)?;
    }
    sheet.upright(unit, (12, top + HEIGHT / 2))?;
    sheet.words(title, (LEFT + 6, top - 12), TEXT, &INK, LEFT_MIDDLE)?;
    for (nth, (name, rows)) in (0..).zip(groups) {
        let left = LEFT + nth * group + (group - rows.len() as i32 * BAR) / 2;
        for (bar, row) in (0..).zip(rows) {
            // A round trip that nothing answers has no bar.
            let Some(value) = of(row) else { continue };
            let x = left + bar * BAR;
            sheet.bar([(x + 1, y(value)), (x + BAR - 1, y(0.0))], color(row.peer))?;
        }
        let middle = LEFT + nth * group + group / 2;
        for (line, words) in (0..).zip(name.split('|')) {
            sheet.words(words, (middle, top + HEIGHT + 8 + line * 18), TEXT - 2, &GREY, CENTER_TOP)?;
        }
    }
    match wanted {
        Some(wanted) => sheet.line(vec![(LEFT, y(wanted)), (right, y(wanted))], INK.stroke_width(2)),
        None => Ok(()),
    }
}

fn color(peer: Peer) -> RGBColor {
    match peer {
        Peer::Weir => RGBColor(12, 133, 153),
        Peer::WeirCharged => RGBColor(64, 192, 87),
        Peer::Tbf => RGBColor(252, 176, 82),
        Peer::Cake => RGBColor(132, 94, 247),
        Peer::None => RGBColor(190, 197, 204),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::report::tests::{report, row},
        *,
    };

    #[test]
    fn the_plot_has_a_bar_for_each_setup_and_none_without_an_answer() {
        let rows = vec![
            row(Peer::Weir, "cubic 2 x 4", [6.0, 12.0], Some(3.0)),
            row(Peer::None, "cubic 2 x 4", [17.0, 2.0], None),
        ];
        let text = svg(&report(rows)).unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        for words in ["ifb + tbf", "ifb + cake", "cubic 2 x 4", "nat", "C2", "95 of 100"] {
            assert!(text.contains(words), "{words}");
        }
        // The sheet, five of the legend, two shares, and one round trip.
        assert_eq!(text.matches("<rect").count(), 1 + 5 + 2 + 1, "{text}");
    }
}
