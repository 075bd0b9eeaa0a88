//! One picture a report, with a group of bars a case.

use anyhow::Result;
use plotters::style::Color;

use super::scenario::{Measures, Report};
use crate::{
    control::kind::ControlKind,
    report::{
        color,
        sheet::{self, CENTER_TOP, GREY, INK, LEFT_TOP, RIGHT_MIDDLE, Sheet, TEXT, tick, title_width, width},
    },
};

const BAR: i32 = 22;
const GAP: i32 = 34;
const LEFT: i32 = 70;
const TOP: i32 = 104;
const HEIGHT: i32 = 330;
const BOTTOM: i32 = 70;
const MIN_WIDTH: i32 = 720;
/// Font size of a case's name.
const NAME: i32 = 14;

/// The picture as SVG.
///
/// # Errors
/// If the drawing library refuses.
pub(crate) fn svg(report: &Report) -> Result<String> {
    let mut cases: Vec<&str> = report.rows.iter().map(|row| row.case.as_str()).collect();
    cases.dedup();
    let mut controls: Vec<ControlKind> = report.rows.iter().map(|row| row.control).collect();
    controls.sort();
    controls.dedup();
    let group = i32::try_from(controls.len())? * BAR + GAP;
    // A group is at least as wide as its case's name.
    let group = group.max(cases.iter().map(|case| width(case, NAME)).max().unwrap_or(0) + 12);
    let right = LEFT + group * i32::try_from(cases.len())? + GAP;
    let total = right.max(MIN_WIDTH).max(LEFT + title_width(&report.settings.title));
    sheet::svg(&report.head.scenario, (total, TOP + HEIGHT + BOTTOM), |sheet| {
        draw(sheet, report, &cases, &controls, (group, right))
    })
}

/// Draws the picture. `group` is the width of a case, and `right` the end of the last one.
fn draw(
    sheet: &Sheet<'_>,
    report: &Report,
    cases: &[&str],
    controls: &[ControlKind],
    (group, right): (i32, i32),
) -> sheet::Drawn {
    let settings = &report.settings;
    let unit = match settings.measures {
        Measures::Cpu => "processor seconds a gigabyte; line: least to most",
        Measures::Latency => "round trip, 99th percentile, ms; line: median to longest",
    };
    let under = format!("{}; {} of a {} line; {unit}", settings.source, settings.capacity, settings.wire);
    sheet.head(LEFT, &settings.title, &under)?;
    let mut x = LEFT;
    for &control in controls {
        sheet.bar([(x, 70), (x + 15, 82)], color(control))?;
        sheet.words(control.name(), (x + 22, 68), TEXT, &INK, LEFT_TOP)?;
        x += 22 + width(control.name(), TEXT) + 16;
    }
    let highest = report.rows.iter().map(|row| row.value.max(row.range.1)).fold(0.1, f64::max);
    let tick = tick(highest, 8.0);
    let steps = (highest / tick).ceil() as i32;
    let top = f64::from(steps) * tick;
    let y = |value: f64| TOP + HEIGHT - (value / top * f64::from(HEIGHT)).round() as i32;
    for step in 0..=steps {
        let value = f64::from(step) * tick;
        sheet.grid((LEFT, y(value)), (right, y(value)), step == 0)?;
        let number = format!("{}", (value * 1000.0).round() / 1000.0);
        sheet.words(&number, (LEFT - 8, y(value)), TEXT, &GREY, RIGHT_MIDDLE)?;
    }
    for (index, case) in (0..).zip(cases) {
        let bars = i32::try_from(controls.len())? * BAR;
        let left = LEFT + index * group + (group - bars) / 2;
        for row in report.rows.iter().filter(|row| row.case == *case) {
            let place = controls.iter().position(|control| *control == row.control).unwrap_or(0);
            let x = left + i32::try_from(place)? * BAR;
            sheet.bar([(x + 1, y(row.value)), (x + BAR - 1, y(0.0))], color(row.control))?;
            let middle = x + BAR / 2;
            sheet.line(vec![(middle, y(row.range.0)), (middle, y(row.range.1))], INK.stroke_width(1))?;
        }
        sheet.words(case, (left + bars / 2, TOP + HEIGHT + 12), NAME, &INK, CENTER_TOP)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::show::tests::sample, *};

    #[test]
    fn the_plot_is_svg_with_every_case_and_control() {
        let text = svg(&sample()).unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        for words in ["1 busy", "5 busy", "weir", "none", "processor seconds"] {
            assert!(text.contains(words), "{words}");
        }
        // The background, a square a control in the legend, and the bars.
        assert_eq!(text.matches("<rect").count(), 1 + 2 + 4);
    }
}
