//! One picture a scenario: bars in groups, one group a container, one panel a case.

use anyhow::{Result, anyhow};
use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use super::{CaseReport, ContainerReport, Report};
use crate::control::{Kind, TcForm};

/// A bar's width, from crowded to roomy plots.
const BARS: std::ops::RangeInclusive<i32> = 13..=26;
const GROUP_GAP: i32 = 15;
const PANEL_PAD: i32 = 14;
const LEFT: i32 = 66;
const RIGHT: i32 = 22;
const TOP: i32 = 104;
const PLOT_HEIGHT: i32 = 330;
const BOTTOM: i32 = 66;
const LEAST_WIDTH: i32 = 720;
/// Width of a letter as a fraction of the font's size, generously: there is no font to ask.
const LETTER: f64 = 0.55;
const TITLE: u32 = 22;
const TEXT: u32 = 15;

const INK: RGBColor = RGBColor(33, 37, 41);
const FAINT: RGBColor = RGBColor(222, 226, 230);
const GREY: RGBColor = RGBColor(108, 117, 125);
const PAPER: RGBColor = RGBColor(201, 42, 42);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The picture as SVG.
///
/// # Errors
/// If the drawing library refuses.
pub fn svg(report: &Report) -> Result<String> {
    let mut text = String::new();
    {
        let canvas = Canvas::new(report);
        let size = (u32::try_from(canvas.width)?, u32::try_from(TOP + PLOT_HEIGHT + BOTTOM)?);
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        canvas
            .draw(&area, report)
            .map_err(|error| anyhow!("cannot draw the plot of {}: {error}", report.scenario))?;
    }
    Ok(text)
}

struct Canvas {
    width: i32,
    /// Top of the scale, Mbit/s.
    top: f64,
    /// Distance of the grid's lines.
    tick: f64,
    /// Bars in a group.
    bars: i32,
    /// Width of one.
    bar: i32,
}

impl Canvas {
    fn new(report: &Report) -> Canvas {
        let bars = i32::try_from(report.controls.len()).unwrap_or(1);
        let groups: i32 = report.cases.iter().map(|case| active(case).count() as i32).sum();
        let fixed = groups * GROUP_GAP + report.cases.len() as i32 * 2 * PANEL_PAD;
        let room = LEAST_WIDTH - LEFT - RIGHT - fixed;
        let bar = (room / (groups * bars).max(1)).clamp(*BARS.start(), *BARS.end());
        let content = groups * bars * bar + fixed;
        let highest = report
            .cases
            .iter()
            .flat_map(|case| &case.containers)
            .flat_map(|c| {
                let measured = c.measured.values().map(|m| m.ci95.1.max(m.goodput));
                measured.chain([c.expected]).chain(c.setting.paper)
            })
            .fold(1.0, f64::max);
        let tick = [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0]
            .into_iter()
            .find(|tick| highest / tick <= 8.0)
            .unwrap_or(10_000.0);
        let title = text_width(&report.title, TITLE);
        let width = LEFT + content.max(title) + RIGHT;
        Canvas { width: width.max(LEAST_WIDTH), top: (highest / tick * 1.02).ceil() * tick, tick, bars, bar }
    }

    fn y(&self, mbit: f64) -> i32 {
        TOP + PLOT_HEIGHT - (mbit / self.top * f64::from(PLOT_HEIGHT)).round() as i32
    }

    fn draw(&self, area: &Area<'_>, report: &Report) -> Result<(), Box<dyn std::error::Error>> {
        area.fill(&WHITE)?;
        self.draw_head(area, report)?;
        self.draw_scale(area)?;
        // A narrow plot is spread over the least width.
        let spare = self.width - LEFT - RIGHT - self.content_width(report);
        let extra = spare / report.cases.len().max(1) as i32;
        let mut x = LEFT;
        for (index, case) in report.cases.iter().enumerate() {
            let groups = active(case).count() as i32;
            let width = groups * self.group_width() + 2 * PANEL_PAD + extra;
            if index > 0 {
                let line = vec![(x, TOP), (x, TOP + PLOT_HEIGHT + BOTTOM - 14)];
                area.draw(&PathElement::new(line, FAINT.stroke_width(1)))?;
            }
            let name = style(TEXT + 1, &INK, HPos::Center, VPos::Top);
            area.draw(&Text::new(case.name.clone(), (x + width / 2, TOP + PLOT_HEIGHT + 32), name))?;
            let mut left = x + (width - groups * self.group_width()) / 2;
            for container in active(case) {
                self.draw_group(area, report, container, left + GROUP_GAP / 2)?;
                left += self.group_width();
            }
            x += width;
        }
        area.present()?;
        Ok(())
    }

    fn content_width(&self, report: &Report) -> i32 {
        report.cases.iter().map(|case| active(case).count() as i32 * self.group_width() + 2 * PANEL_PAD).sum()
    }

    fn group_width(&self) -> i32 {
        self.bars * self.bar + GROUP_GAP
    }

    fn draw_head(&self, area: &Area<'_>, report: &Report) -> Result<(), Box<dyn std::error::Error>> {
        let title = style(TITLE, &INK, HPos::Left, VPos::Top);
        area.draw(&Text::new(report.title.clone(), (LEFT, 14), title))?;
        let settings = &report.settings;
        let under = format!(
            "{}; {} of a {} line, {}, TSO {}, {} s a case",
            report.source,
            settings.capacity,
            settings.wire,
            settings.mode,
            if settings.tso { "on" } else { "off" },
            settings.seconds,
        );
        let small = style(TEXT, &GREY, HPos::Left, VPos::Top);
        area.draw(&Text::new(under, (LEFT, 42), small))?;

        let label = style(TEXT, &INK, HPos::Left, VPos::Center);
        let mut x = LEFT;
        let y = 76;
        let entry = |text: &str, x: &mut i32| -> Result<(), Box<dyn std::error::Error>> {
            area.draw(&Text::new(text.to_owned(), (*x + 22, y), label.clone()))?;
            *x += 22 + text_width(text, TEXT) + 14;
            Ok(())
        };
        for &kind in &report.controls {
            area.draw(&Rectangle::new([(x, y - 6), (x + 15, y + 6)], color(kind).filled()))?;
            let text = match kind {
                Kind::Tc if settings.tc == TcForm::Quantum => "tc, round-robin by quanta",
                Kind::Tc => "tc HTB by hand",
                Kind::Cni => "CNI bandwidth plugin",
                Kind::Credit => "credit and drops alone",
                Kind::None => "no control",
                _ => kind.name(),
            };
            entry(text, &mut x)?;
        }
        area.draw(&PathElement::new(vec![(x, y), (x + 16, y)], INK.stroke_width(3)))?;
        entry("expected", &mut x)?;
        if report.cases.iter().flat_map(|c| &c.containers).any(|c| c.setting.paper.is_some()) {
            area.draw(&diamond(x + 8, y))?;
            entry("the paper", &mut x)?;
        }
        Ok(())
    }

    fn draw_scale(&self, area: &Area<'_>) -> Result<(), Box<dyn std::error::Error>> {
        let number = style(TEXT, &GREY, HPos::Right, VPos::Center);
        let steps = (self.top / self.tick).round() as i32;
        for step in 0..=steps {
            let value = f64::from(step) * self.tick;
            let y = self.y(value);
            let ink = if step == 0 { INK } else { FAINT };
            area.draw(&PathElement::new(vec![(LEFT, y), (self.width - RIGHT, y)], ink.stroke_width(1)))?;
            area.draw(&Text::new(format!("{value}"), (LEFT - 8, y), number.clone()))?;
        }
        let axis = ("sans-serif", TEXT)
            .into_font()
            .transform(FontTransform::Rotate270)
            .color(&GREY)
            .pos(Pos::new(HPos::Center, VPos::Top));
        area.draw(&Text::new("payload that arrived, Mbit/s", (12, TOP + PLOT_HEIGHT / 2), axis))?;
        Ok(())
    }

    fn draw_group(
        &self,
        area: &Area<'_>,
        report: &Report,
        container: &ContainerReport,
        left: i32,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let zero = self.y(0.0);
        let right = left + self.bars * self.bar;
        for (index, kind) in report.controls.iter().enumerate() {
            let Some(measured) = container.measured.get(kind) else { continue };
            let x = left + index as i32 * self.bar;
            let corners = [(x + 1, self.y(measured.goodput)), (x + self.bar - 1, zero)];
            area.draw(&Rectangle::new(corners, color(*kind).filled()))?;
            let (low, high) = (self.y(measured.ci95.0), self.y(measured.ci95.1));
            if low - high > 2 {
                let middle = x + self.bar / 2;
                area.draw(&PathElement::new(vec![(middle, low), (middle, high)], INK.stroke_width(1)))?;
            }
        }
        let y = self.y(container.expected);
        area.draw(&PathElement::new(vec![(left - 3, y), (right + 3, y)], INK.stroke_width(3)))?;
        if let Some(paper) = container.setting.paper {
            area.draw(&diamond((left + right) / 2, self.y(paper)))?;
        }
        let name = style(TEXT, &GREY, HPos::Center, VPos::Top);
        area.draw(&Text::new(container.name.clone(), ((left + right) / 2, zero + 9), name))?;
        Ok(())
    }
}

/// Containers that send something.
fn active(case: &CaseReport) -> impl Iterator<Item = &ContainerReport> {
    case.containers.iter().filter(|c| !c.measured.is_empty())
}

pub(crate) fn color(kind: Kind) -> RGBColor {
    match kind {
        Kind::Weir => RGBColor(12, 133, 153),
        Kind::WeirHtb => RGBColor(16, 152, 173),
        Kind::WeirBpf => RGBColor(59, 91, 219),
        Kind::WeirBpfCredit => RGBColor(132, 94, 247),
        Kind::WeirEdt => RGBColor(47, 158, 68),
        Kind::WeirPacing => RGBColor(130, 201, 30),
        Kind::Credit => RGBColor(224, 49, 49),
        Kind::Cni => RGBColor(230, 119, 0),
        Kind::Tc => RGBColor(252, 176, 82),
        Kind::None => RGBColor(190, 197, 204),
    }
}

fn diamond(x: i32, y: i32) -> Polygon<(i32, i32)> {
    Polygon::new(vec![(x, y - 6), (x + 6, y), (x, y + 6), (x - 6, y)], PAPER.filled())
}

fn text_width(text: &str, size: u32) -> i32 {
    (text.chars().count() as f64 * f64::from(size) * LETTER).ceil() as i32
}

fn style<'a>(size: u32, color: &'a RGBColor, h: HPos, v: VPos) -> TextStyle<'a> {
    ("sans-serif", size).into_font().color(color).pos(Pos::new(h, v))
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    #[test]
    fn the_plot_is_svg_with_every_case_container_and_control() {
        let report = sample("minimum", 1.01);
        let text = svg(&report).unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        for case in &report.cases {
            assert!(text.contains(&case.name), "{}", case.name);
        }
        for words in ["tc HTB by hand", "no control", "expected", "the paper", "Mbit/s"] {
            assert!(text.contains(words), "{words}");
        }
        let bars = text.matches("<rect").count();
        assert!(bars > 5 * 5 * 3, "{bars} rectangles");
    }

    #[test]
    fn the_scale_holds_the_highest_bar() {
        let canvas = Canvas::new(&sample("weights-grow", 1.0));
        assert_eq!((canvas.tick, canvas.top), (20.0, 100.0));
        assert_eq!(canvas.y(0.0), TOP + PLOT_HEIGHT);
        assert_eq!(canvas.y(canvas.top), TOP);
    }
}
