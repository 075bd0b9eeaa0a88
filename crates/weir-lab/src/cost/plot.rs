//! One picture a report: bars in groups, one group a case.

use anyhow::{Result, anyhow};
use plotters::{
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use super::{Measures, Report};
use crate::{control::Kind, report::color};

const BAR: i32 = 22;
const GAP: i32 = 34;
const LEFT: i32 = 70;
const TOP: i32 = 104;
const HEIGHT: i32 = 330;
const BOTTOM: i32 = 70;
const LEAST_WIDTH: i32 = 720;
const INK: RGBColor = RGBColor(33, 37, 41);
const FAINT: RGBColor = RGBColor(222, 226, 230);
const GREY: RGBColor = RGBColor(108, 117, 125);

/// The picture as SVG.
///
/// # Errors
/// If the drawing library refuses.
pub fn svg(report: &Report) -> Result<String> {
    let mut text = String::new();
    draw(report, &mut text).map_err(|e| anyhow!("cannot draw the plot of {}: {e}", report.scenario))?;
    Ok(text)
}

fn draw(report: &Report, text: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let mut cases: Vec<&str> = report.rows.iter().map(|row| row.case.as_str()).collect();
    cases.dedup();
    let mut controls: Vec<Kind> = report.rows.iter().map(|row| row.control).collect();
    controls.sort();
    controls.dedup();
    let group = i32::try_from(controls.len())? * BAR + GAP;
    // A case's name needs its room.
    let group = group.max(cases.iter().map(|case| width(case, 14)).max().unwrap_or(0) + 12);
    let right = LEFT + group * i32::try_from(cases.len())? + GAP;
    let total = right.max(LEAST_WIDTH).max(LEFT + width(&report.settings.title, 22));
    let highest = report.rows.iter().map(|row| row.value.max(row.range.1)).fold(0.1, f64::max);
    let tick = ticks(highest);
    let steps = (highest / tick).ceil() as i32;
    let top = f64::from(steps) * tick;
    let y = |value: f64| TOP + HEIGHT - (value / top * f64::from(HEIGHT)).round() as i32;

    let area = SVGBackend::with_string(text, (u32::try_from(total)?, u32::try_from(TOP + HEIGHT + BOTTOM)?))
        .into_drawing_area();
    area.fill(&WHITE)?;
    let settings = &report.settings;
    let unit = match settings.measures {
        Measures::Cpu => "processor seconds a gigabyte; line: least to most",
        Measures::Latency => "round trip, 99th percentile, ms; line: median to longest",
    };
    let label = |words: &str, at: (i32, i32), size: i32, ink: &RGBColor, h: HPos| {
        let style = ("sans-serif", size).into_font().color(ink).pos(Pos::new(h, VPos::Top));
        area.draw(&Text::new(words.to_owned(), at, style))
    };
    label(&settings.title, (LEFT, 14), 22, &INK, HPos::Left)?;
    let under = format!("{}; {} of a {} line; {unit}", settings.source, settings.capacity, settings.wire);
    label(&under, (LEFT, 42), 15, &GREY, HPos::Left)?;
    let mut x = LEFT;
    for &control in &controls {
        area.draw(&Rectangle::new([(x, 70), (x + 15, 82)], color(control).filled()))?;
        label(control.name(), (x + 22, 68), 15, &INK, HPos::Left)?;
        x += 22 + width(control.name(), 15) + 16;
    }
    for step in 0..=steps {
        let value = f64::from(step) * tick;
        let ink = if step == 0 { INK } else { FAINT };
        area.draw(&PathElement::new(vec![(LEFT, y(value)), (right, y(value))], ink.stroke_width(1)))?;
        label(
            &format!("{}", (value * 1000.0).round() / 1000.0),
            (LEFT - 8, y(value) - 8),
            15,
            &GREY,
            HPos::Right,
        )?;
    }
    for (index, case) in (0..).zip(&cases) {
        let bars = i32::try_from(controls.len())? * BAR;
        let left = LEFT + index * group + (group - bars) / 2;
        for row in report.rows.iter().filter(|row| row.case == *case) {
            let place = controls.iter().position(|control| *control == row.control).unwrap_or(0);
            let x = left + i32::try_from(place)? * BAR;
            let corners = [(x + 1, y(row.value)), (x + BAR - 1, y(0.0))];
            area.draw(&Rectangle::new(corners, color(row.control).filled()))?;
            let middle = x + BAR / 2;
            let line = vec![(middle, y(row.range.0)), (middle, y(row.range.1))];
            area.draw(&PathElement::new(line, INK.stroke_width(1)))?;
        }
        label(case, (left + bars / 2, TOP + HEIGHT + 12), 14, &INK, HPos::Center)?;
    }
    area.present()?;
    Ok(())
}

/// Distance of the grid's lines: at most eight of them.
fn ticks(highest: f64) -> f64 {
    let steps = (-2..6).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power)));
    steps.into_iter().find(|tick| highest / tick <= 8.0).unwrap_or(highest)
}

/// Generously: there is no font to ask.
fn width(text: &str, size: i32) -> i32 {
    (text.chars().count() as f64 * f64::from(size) * 0.55).ceil() as i32
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
        // Background, a square a control in the legend, and the bars.
        assert_eq!(text.matches("<rect").count(), 1 + 2 + 4);
    }

    #[test]
    fn the_scale_has_eight_lines_at_the_most() {
        for highest in [0.1, 0.9, 3.7, 8.0, 8.1, 49.0, 5000.0] {
            let steps = highest / ticks(highest);
            assert!((3.0..=8.0).contains(&steps), "{highest}: {steps}");
        }
    }
}
