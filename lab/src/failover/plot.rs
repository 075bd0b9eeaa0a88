//! The rate of each container over time, a panel for each control.

use anyhow::Result;
use plotters::style::{Color, RGBColor};

use super::report::{Report, Run};
use crate::{
    control::kind::ControlKind,
    report::sheet::{
        self, CENTER_TOP, Drawn, GREY, INK, LEFT_MIDDLE, RIGHT_MIDDLE, Sheet, TEXT, tick, width,
    },
};

const LEFT: i32 = 70;
const WIDTH: i32 = 720;
const RIGHT: i32 = 24;
const TOP: i32 = 130;
const HEIGHT: i32 = 190;
const GAP: i32 = 66;
const LEGEND: i32 = 78;
/// Samples in one point: 0.3 s.
const MERGED: usize = 3;
const COLORS: [RGBColor; 4] =
    [RGBColor(12, 133, 153), RGBColor(230, 119, 0), RGBColor(132, 94, 247), RGBColor(47, 158, 68)];

/// The picture as SVG.
///
/// # Errors
/// If the drawing library refuses.
pub(super) fn svg(report: &Report) -> Result<String> {
    let panels = i32::try_from(report.runs.len()).unwrap_or(1);
    let size = (LEFT + WIDTH + RIGHT, TOP + panels * (HEIGHT + GAP));
    sheet::svg(&report.head.scenario, size, |sheet| {
        let settings = &report.settings;
        let (first, second) = (settings.first.capacity, settings.second.capacity);
        let under = format!("{}; {first} on the first link, {second} on the second", settings.source);
        sheet.head(LEFT, &settings.title, &under)?;
        let mut x = LEFT;
        let names = settings.containers.keys().map(String::as_str);
        for (name, ink) in names.zip(COLORS.into_iter().cycle()) {
            sheet.bar([(x, LEGEND - 6), (x + 15, LEGEND + 6)], ink)?;
            sheet.words(name, (x + 22, LEGEND), TEXT, &INK, LEFT_MIDDLE)?;
            x += 22 + width(name, TEXT) + 14;
        }
        let words = "the lines are what is due; the upright one is the move";
        sheet.words(words, (x, LEGEND), TEXT, &GREY, LEFT_MIDDLE)?;
        for (top, run) in (0..).map(|nth| TOP + nth * (HEIGHT + GAP)).zip(&report.runs) {
            panel(sheet, report, run, top)?;
        }
        Ok(())
    })
}

fn panel(sheet: &Sheet<'_>, report: &Report, run: &Run, top: i32) -> Drawn {
    let settings = &report.settings;
    let due = [settings.first, settings.second].map(|link| settings.due(link));
    let points: Vec<(f64, Vec<f64>)> = rates(run);
    let all = points.iter().flat_map(|(_, rates)| rates).chain(due.iter().flatten());
    let highest = all.copied().fold(1.0, f64::max);
    let step = tick(highest, 5.0);
    let most = (highest / step).ceil() * step;
    let end = run.samples.last().map_or(1.0, |sample| sample.s);
    let x = |s: f64| LEFT + (s / end * f64::from(WIDTH)).round() as i32;
    let y = |mbit: f64| top + HEIGHT - (mbit / most * f64::from(HEIGHT)).round() as i32;
    for nth in 0..=(most / step).round() as i32 {
        let value = f64::from(nth) * step;
        sheet.grid((LEFT, y(value)), (LEFT + WIDTH, y(value)), nth == 0)?;
        sheet.words(&value.to_string(), (LEFT - 8, y(value)), TEXT, &GREY, RIGHT_MIDDLE)?;
    }
    let title = match run.control {
        ControlKind::Tc => "tc HTB by hand on the first link",
        ControlKind::None => "no control",
        other => other.name(),
    };
    sheet.words(title, (LEFT + 6, top - 12), TEXT, &INK, LEFT_MIDDLE)?;
    sheet.upright("Mbit/s", (12, top + HEIGHT / 2))?;
    for second in 0..=end.floor() as i32 {
        let at = (x(f64::from(second)), top + HEIGHT + 8);
        sheet.words(&format!("{second} s"), at, TEXT, &GREY, CENTER_TOP)?;
    }
    sheet.line(vec![(x(run.moved), top), (x(run.moved), top + HEIGHT)], INK.stroke_width(1))?;
    for (nth, ink) in (0..settings.containers.len()).zip(COLORS.into_iter().cycle()) {
        for (rates, from, to) in [(&due[0], 0.0, run.moved), (&due[1], run.moved, end)] {
            sheet.line(vec![(x(from), y(rates[nth])), (x(to), y(rates[nth]))], ink.stroke_width(1))?;
        }
        let line = points.iter().map(|(s, rates)| (x(*s), y(rates[nth]))).collect();
        sheet.line(line, ink.stroke_width(2))?;
    }
    Ok(())
}

/// The middle of each 0.3 s, and the mean rates in it.
fn rates(run: &Run) -> Vec<(f64, Vec<f64>)> {
    let ends: Vec<_> = run.samples.iter().step_by(MERGED).collect();
    let rate = |pair: &[&super::report::Sample]| {
        let length = pair[1].s - pair[0].s;
        let rates = pair[0].arrived.iter().zip(&pair[1].arrived).map(|(a, b)| (b - a) / length).collect();
        (pair[0].s + length / 2.0, rates)
    };
    ends.windows(2).map(rate).collect()
}

#[cfg(test)]
mod tests {
    use super::{
        super::report::tests::{made, report},
        *,
    };

    #[test]
    fn the_plot_has_a_panel_for_each_control_and_the_due_rates() {
        let runs = [ControlKind::Weir, ControlKind::Tc, ControlKind::None];
        let report = report(runs.map(|control| made(control, 0.7, [2.0, 8.0])).into());
        let text = svg(&report).unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        for words in ["weir", "tc HTB by hand on the first link", "no control", "C1", "C2"] {
            assert!(text.contains(words), "{words}");
        }
    }

    #[test]
    fn points_are_rates_between_samples() {
        let points = rates(&made(ControlKind::Weir, 0.7, [2.0, 8.0]));
        let (s, rates) = &points[1];
        assert!((s - 0.45).abs() < 1e-9 && (rates[0] - 30.0).abs() < 1e-6, "{points:?}");
    }
}
