//! One picture a scenario: the distribution of transmission times, as the paper's Fig. 4 to 6.

use anyhow::{Result, anyhow};
use plotters::{
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use super::{Report, Row};
use crate::report::color;

const LEFT: i32 = 70;
const TOP: i32 = 76;
const WIDTH: i32 = 620;
const HEIGHT: i32 = 360;
const BOTTOM: i32 = 64;
/// A line of the legend.
const LINE: i32 = 22;
const INK: RGBColor = RGBColor(33, 37, 41);
const FAINT: RGBColor = RGBColor(222, 226, 230);
const GREY: RGBColor = RGBColor(108, 117, 125);

/// The picture as SVG: C(x) = P{t < x}, a curve for each case and control.
///
/// # Errors
/// If the drawing library refuses.
pub fn svg(report: &Report) -> Result<String> {
    let mut text = String::new();
    draw(report, &mut text).map_err(|e| anyhow!("cannot draw the plot of {}: {e}", report.scenario))?;
    Ok(text)
}

fn draw(report: &Report, text: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let legend = i32::try_from(report.rows.len())? * LINE;
    let height = TOP + HEIGHT + BOTTOM + legend;
    let size = (u32::try_from(LEFT + WIDTH + 30)?, u32::try_from(height)?);
    let area = SVGBackend::with_string(text, size).into_drawing_area();
    area.fill(&WHITE)?;
    let longest = report.rows.iter().map(|row| row.max).fold(1.0, f64::max);
    let tick = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3]
        .into_iter()
        .find(|tick| longest / tick <= 10.0)
        .unwrap_or(1e4);
    let steps = (longest / tick).ceil() as i32;
    let x = |ms: f64| LEFT + (ms / (tick * f64::from(steps)) * f64::from(WIDTH)).round() as i32;
    let y = |part: f64| TOP + HEIGHT - (part * f64::from(HEIGHT)).round() as i32;
    let label = |words: &str, at: (i32, i32), size: i32, ink: &RGBColor, h: HPos| {
        let style = ("sans-serif", size).into_font().color(ink).pos(Pos::new(h, VPos::Top));
        area.draw(&Text::new(words.to_owned(), at, style))
    };
    let settings = &report.settings;
    label(&settings.title, (LEFT, 14), 22, &INK, HPos::Left)?;
    let under = format!("{}; C(x) = P{{t < x}}; {} line", settings.source, settings.line);
    label(&under, (LEFT, 42), 15, &GREY, HPos::Left)?;
    for step in 0..=steps {
        let value = f64::from(step) * tick;
        let line = vec![(x(value), y(0.0)), (x(value), y(1.0))];
        area.draw(&PathElement::new(line, FAINT.stroke_width(1)))?;
        label(&value.to_string(), (x(value), y(0.0) + 8), 15, &GREY, HPos::Center)?;
    }
    for tenths in (0..=10).step_by(2) {
        let part = f64::from(tenths) / 10.0;
        let ink = if tenths == 0 { INK } else { FAINT };
        area.draw(&PathElement::new(vec![(x(0.0), y(part)), (LEFT + WIDTH, y(part))], ink.stroke_width(1)))?;
        label(&part.to_string(), (LEFT - 8, y(part) - 8), 15, &GREY, HPos::Right)?;
    }
    label("transmission time, ms", (LEFT + WIDTH / 2, y(0.0) + 30), 15, &GREY, HPos::Center)?;
    for (index, row) in (0..).zip(&report.rows) {
        // Cases of one control are told apart by how thick and how pale their lines are.
        let nth = report.rows[..usize::try_from(index)?].iter().filter(|r| r.control == row.control).count();
        let ink = color(row.control).mix(1.0 / (1.0 + 0.6 * nth as f64));
        let style = ink.stroke_width(if nth == 0 { 3 } else { 2 });
        area.draw(&PathElement::new(curve(row, &x, &y), style))?;
        let top = TOP + HEIGHT + BOTTOM + index * LINE;
        area.draw(&PathElement::new(vec![(LEFT, top), (LEFT + 26, top)], style))?;
        let words =
            format!("{}, {}: {:.1} ms, std.dev {:.2}", row.case, row.control.name(), row.avg, row.std);
        label(&words, (LEFT + 34, top - 8), 15, &INK, HPos::Left)?;
    }
    area.present()?;
    Ok(())
}

/// A stair: at each time it rises by one part in as many as there are.
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
        assert_eq!(points.last().unwrap().1, 1000);
        assert!(points.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 <= pair[1].1));
    }
}
