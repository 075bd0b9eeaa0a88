//! Pictures of the simulations: lines over the size of the cache, or over the run.

use anyhow::{Result, anyhow};
use plotters::{
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};
use weir_cache::simulate::Sharing;

use super::{
    report::{Report, over_lru},
    scenario::{Measures, Times},
};

const LEFT: i32 = 70;
const TOP: i32 = 80;
const WIDTH: i32 = 560;
const HEIGHT: i32 = 260;
const GAP: i32 = 90;
/// A line of the legend.
const LINE: i32 = 20;
const INK: RGBColor = RGBColor(33, 37, 41);
const FAINT: RGBColor = RGBColor(222, 226, 230);
const GREY: RGBColor = RGBColor(108, 117, 125);
const COLOURS: [RGBColor; 8] = [
    RGBColor(12, 133, 153),
    RGBColor(224, 49, 49),
    RGBColor(59, 91, 219),
    RGBColor(230, 119, 0),
    RGBColor(47, 158, 68),
    RGBColor(132, 94, 247),
    RGBColor(190, 75, 219),
    RGBColor(108, 117, 125),
];

/// One line.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    /// For the legend.
    pub(crate) name: String,
    /// In order of x.
    pub(crate) points: Vec<(f64, f64)>,
}

/// One set of axes.
#[derive(Debug, Clone)]
pub(crate) struct Panel {
    /// Above it.
    pub(crate) title: String,
    /// The x axis.
    pub(crate) below: &'static str,
    /// Whether x is drawn by its logarithm.
    pub(crate) log: bool,
    /// The mark of a value of x.
    pub(crate) mark: fn(f64) -> String,
    /// The lines.
    pub(crate) lines: Vec<Line>,
}

impl Panel {
    /// Adds a point to the line of that name.
    pub(crate) fn add(&mut self, name: &str, point: (f64, f64)) {
        add(&mut self.lines, name.to_owned(), point);
    }
}

/// The picture of a report as SVG.
///
/// # Errors
/// If the drawing library refuses.
pub(crate) fn svg(report: &Report) -> Result<String> {
    let settings = &report.settings;
    chart(&settings.title, &format!("{}; simulated", settings.source), &panels(report))
}

/// Panels one below the other as SVG.
///
/// # Errors
/// If the drawing library refuses.
pub(crate) fn chart(title: &str, under: &str, panels: &[Panel]) -> Result<String> {
    let mut text = String::new();
    draw(title, under, panels, &mut text).map_err(|e| anyhow!("cannot draw `{title}`: {e}"))?;
    Ok(text)
}

/// A size in GiB as the mark of an axis.
#[must_use]
pub(crate) fn gib(x: f64) -> String {
    if x < 1024.0 {
        format!("{x:.3}").trim_end_matches('0').trim_end_matches('.').to_owned() + " GiB"
    } else {
        format!("{:.0} TiB", x / 1024.0)
    }
}

fn panels(report: &Report) -> Vec<Panel> {
    match report.settings.measures {
        Measures::Hits => {
            let mut lines: Vec<Line> = Vec::new();
            for row in &report.rows {
                let name = format!("{}, {}", row.zone, row.policy);
                let point = (row.budget.0 as f64 / f64::from(1 << 30), row.outcome.image_hit_ratio());
                add(&mut lines, name, point);
            }
            let title = "deployments that find their image".to_owned();
            vec![Panel { title, below: "size of the shared cache", log: true, mark: gib, lines }]
        }
        Measures::Policies => report
            .settings
            .zones
            .iter()
            .map(|zone| {
                let mut lines: Vec<Line> = Vec::new();
                for row in report.rows.iter().filter(|row| row.zone == zone.name) {
                    if let (Some(part), Some(over)) = (row.part, over_lru(&report.rows, row)) {
                        add(&mut lines, row.policy.to_string(), (part * 100.0, over));
                    }
                }
                let title = format!("{}: fetch time beside LRU", zone.name);
                let mark = |x: f64| format!("{x:.0} %");
                Panel { title, below: "size of the cache, of the working set", log: true, mark, lines }
            })
            .collect(),
        Measures::Sites => report.settings.zones.iter().flat_map(|zone| site(report, &zone.name)).collect(),
    }
}

/// The paper's Fig. 7 for a zone: hits and times of the first trace, in the order of the deployments.
fn site(report: &Report, zone: &str) -> [Panel; 2] {
    let policy = report.settings.policies[0];
    let (mut hits, mut times): (Vec<Line>, Vec<Line>) = (Vec::new(), Vec::new());
    for sharing in [Sharing::PerNode, Sharing::Shared] {
        let row = report.rows.iter().find(|row| {
            let wanted = (policy, sharing, Times::Paper);
            row.zone == zone && row.at_once && (row.policy, row.sharing, row.times) == wanted
        });
        for (nth, bin) in (1..).zip(row.iter().flat_map(|row| &row.outcome.bins)) {
            let x = f64::from(nth) * 50.0;
            add(&mut hits, sharing.name().to_owned(), (x, bin.hit_ratio));
            add(&mut times, sharing.name().to_owned(), (x, bin.mean_s));
        }
    }
    let panel = |title: &str, lines| Panel {
        title: format!("{zone}: {title}"),
        below: "deployments",
        log: false,
        mark: |x| format!("{x:.0}"),
        lines,
    };
    [panel("part that finds its image", hits), panel("mean time of 50 deployments, s, at once", times)]
}

fn add(lines: &mut Vec<Line>, name: String, point: (f64, f64)) {
    match lines.iter_mut().find(|line| line.name == name) {
        Some(line) => line.points.push(point),
        None => lines.push(Line { name, points: vec![point] }),
    }
}

fn draw(
    title: &str,
    under: &str,
    panels: &[Panel],
    text: &mut String,
) -> Result<(), Box<dyn std::error::Error>> {
    let legend = |panel: &Panel| panel.lines.len() as i32 * LINE;
    let height = TOP + panels.iter().map(|panel| HEIGHT + GAP + legend(panel)).sum::<i32>();
    let size = (u32::try_from(LEFT + WIDTH + 40)?, u32::try_from(height)?);
    let area = SVGBackend::with_string(text, size).into_drawing_area();
    area.fill(&WHITE)?;
    let label = |words: &str, at: (i32, i32), size: i32, ink: &RGBColor, h: HPos| {
        let style = ("sans-serif", size).into_font().color(ink).pos(Pos::new(h, VPos::Top));
        area.draw(&Text::new(words.to_owned(), at, style))
    };
    label(title, (LEFT, 12), 20, &INK, HPos::Left)?;
    label(under, (LEFT, 38), 14, &GREY, HPos::Left)?;
    let mut top = TOP;
    for panel in panels {
        let all = || panel.lines.iter().flat_map(|line| &line.points);
        let scale = |x: f64| if panel.log { x.ln() } else { x };
        let (from, to) = all().fold((f64::MAX, f64::MIN), |(low, high), (x, _)| (low.min(*x), high.max(*x)));
        let highest = all().map(|(_, y)| *y).fold(0.0, f64::max);
        let tick = [0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 500.0]
            .into_iter()
            .find(|tick| highest / tick <= 6.0)
            .unwrap_or(5000.0);
        let steps = (highest / tick).ceil().max(1.0);
        let x = |value: f64| {
            let part = (scale(value) - scale(from)) / (scale(to) - scale(from)).max(1e-9);
            LEFT + (part * f64::from(WIDTH)).round() as i32
        };
        let y = |value: f64| top + HEIGHT - (value / (tick * steps) * f64::from(HEIGHT)).round() as i32;
        label(&panel.title, (LEFT, top - 20), 15, &INK, HPos::Left)?;
        for step in 0..=steps as i32 {
            let value = f64::from(step) * tick;
            let ink = if step == 0 { INK } else { FAINT };
            area.draw(&PathElement::new(
                vec![(LEFT, y(value)), (LEFT + WIDTH, y(value))],
                ink.stroke_width(1),
            ))?;
            label(&format!("{:.1}", value), (LEFT - 8, y(value) - 8), 13, &GREY, HPos::Right)?;
        }
        for value in marks(panel) {
            label(&(panel.mark)(value), (x(value), y(0.0) + 6), 13, &GREY, HPos::Center)?;
        }
        label(panel.below, (LEFT + WIDTH / 2, y(0.0) + 24), 13, &GREY, HPos::Center)?;
        for (nth, line) in panel.lines.iter().enumerate() {
            let style = COLOURS[nth % COLOURS.len()].stroke_width(2);
            let points: Vec<(i32, i32)> = line.points.iter().map(|(a, b)| (x(*a), y(*b))).collect();
            area.draw(&PathElement::new(points, style))?;
            let at = top + HEIGHT + 52 + nth as i32 * LINE;
            area.draw(&PathElement::new(vec![(LEFT, at), (LEFT + 26, at)], style))?;
            label(&line.name, (LEFT + 34, at - 8), 14, &INK, HPos::Left)?;
        }
        top += HEIGHT + GAP + legend(panel);
    }
    area.present()?;
    Ok(())
}

/// Up to ten values of x that there are points for.
fn marks(panel: &Panel) -> Vec<f64> {
    let mut values: Vec<f64> = panel.lines.iter().flat_map(|line| &line.points).map(|(x, _)| *x).collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    let every = values.len().div_ceil(10).max(1);
    values.into_iter().skip(every - 1).step_by(every).collect()
}

#[cfg(test)]
mod tests {
    use super::{
        super::report::tests::{HITS, POLICIES, SITES, report},
        *,
    };

    #[test]
    fn every_kind_of_scenario_has_a_picture_with_its_lines() {
        for (text, words) in [
            (HITS, ["fra, image-lru", "32 GiB"]),
            (SITES, ["fra: part that finds its image", "shared"]),
            (POLICIES, ["fra: fetch time beside LRU", "gdsf"]),
        ] {
            let picture = svg(&report(text, 300, 1)).unwrap();
            assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
            for word in words {
                assert!(picture.contains(word), "{word}");
            }
        }
    }
}
