//! One picture a scenario: the distribution of transmission times, as in the paper's Fig. 4 to 6.

use anyhow::Result;
use plotters::style::Color;

use super::report::{Report, Row};
use crate::report::{
    color,
    sheet::{self, CENTER_TOP, GREY, INK, LEFT_MIDDLE, RIGHT_MIDDLE, Sheet, TEXT, tick},
};

const LEFT: i32 = 70;
const TOP: i32 = 76;
const WIDTH: i32 = 620;
const HEIGHT: i32 = 360;
const BOTTOM: i32 = 64;
/// Height of a line of the legend, pixels.
const LINE: i32 = 22;

/// The picture as SVG: C(x) = P{t < x}, a curve for each case and control.
///
/// # Errors
/// If the drawing library refuses.
pub(crate) fn svg(report: &Report) -> Result<String> {
    let legend = i32::try_from(report.rows.len())? * LINE;
    let size = (LEFT + WIDTH + 30, TOP + HEIGHT + BOTTOM + legend);
    sheet::svg(&report.head.scenario, size, |sheet| draw(sheet, report))
}

fn draw(sheet: &Sheet<'_>, report: &Report) -> sheet::Drawn {
    let settings = &report.settings;
    let under = format!("{}; C(x) = P{{t < x}}; {} line", settings.source, settings.line);
    sheet.head(LEFT, &settings.title, &under)?;
    let longest = report.rows.iter().map(|row| row.max).fold(1.0, f64::max);
    let tick = tick(longest, 10.0);
    let steps = (longest / tick).ceil() as i32;
    let x = |ms: f64| LEFT + (ms / (tick * f64::from(steps)) * f64::from(WIDTH)).round() as i32;
    let y = |part: f64| TOP + HEIGHT - (part * f64::from(HEIGHT)).round() as i32;
    for step in 0..=steps {
        let value = f64::from(step) * tick;
        sheet.grid((x(value), y(0.0)), (x(value), y(1.0)), false)?;
        sheet.words(&value.to_string(), (x(value), y(0.0) + 8), TEXT, &GREY, CENTER_TOP)?;
    }
    for tenths in (0..=10).step_by(2) {
        let part = f64::from(tenths) / 10.0;
        sheet.grid((x(0.0), y(part)), (LEFT + WIDTH, y(part)), tenths == 0)?;
        sheet.words(&part.to_string(), (LEFT - 8, y(part)), TEXT, &GREY, RIGHT_MIDDLE)?;
    }
    sheet.words("transmission time, ms", (LEFT + WIDTH / 2, y(0.0) + 30), TEXT, &GREY, CENTER_TOP)?;
    for (index, row) in (0..).zip(&report.rows) {
        // The cases of one control differ in thickness and paleness of their lines.
        let nth = report.rows[..usize::try_from(index)?].iter().filter(|r| r.control == row.control).count();
        let ink = color(row.control).mix(1.0 / (1.0 + 0.6 * nth as f64));
        let style = ink.stroke_width(if nth == 0 { 3 } else { 2 });
        sheet.line(curve(row, &x, &y), style)?;
        let top = TOP + HEIGHT + BOTTOM + index * LINE;
        sheet.line(vec![(LEFT, top), (LEFT + 26, top)], style)?;
        let words =
            format!("{}, {}: {:.1} ms, std.dev {:.2}", row.case, row.control.name(), row.avg, row.std);
        sheet.words(&words, (LEFT + 34, top), TEXT, &INK, LEFT_MIDDLE)?;
    }
    Ok(())
}

/// A staircase that rises by 1/n at each of the n times.
fn curve(row: &Row, x: &dyn Fn(f64) -> i32, y: &dyn Fn(f64) -> i32) -> Vec<(i32, i32)> {
    let count = row.times.len().max(1) as f64;
    let mut points = vec![(x(0.0), y(0.0))];
    for (index, time) in row.times.iter().enumerate() {
        points.push((x(*time), y(index as f64 / count)));
        points.push((x(*time), y((index + 1) as f64 / count)));
    }
    points.dedup();
    points
}

#[cfg(test)]
mod tests {
    use super::{super::report::tests::sample, *};

    #[test]
    fn the_plot_is_svg_with_a_curve_for_every_case_and_control() {
        let report = sample(1.0, 1.0);
        let text = svg(&report).unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        for row in &report.rows {
            assert!(text.contains(&row.case), "{}", row.case);
        }
        assert!(text.contains("transmission time, ms"));
    }

    #[test]
    fn a_curve_rises_from_nothing_to_everything() {
        let report = sample(1.0, 1.0);
        let points = curve(&report.rows[0], &|ms| ms as i32, &|part| (part * 1000.0).round() as i32);
        assert_eq!(points[0], (0, 0));
        assert_eq!(points[1], (report.rows[0].times[0] as i32, 0), "it rises at the first time");
        assert_eq!(points.last().unwrap().1, 1000);
        assert!(points.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 <= pair[1].1));
    }
}
