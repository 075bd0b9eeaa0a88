//! One picture a scenario: a panel a case, in it a group of bars a container.

use anyhow::Result;
use plotters::style::{Color, RGBColor};

use super::{
    shares::{CaseReport, ContainerReport, Report},
    sheet::{
        self, CENTER_TOP, Drawn, GREY, INK, LEFT_MIDDLE, RIGHT_MIDDLE, Sheet, TEXT, tick, title_width, width,
    },
};
use weir_datapath::engine::EngineKind;

use crate::control::kind::{ControlKind, TcForm};

/// Width of a bar in pixels, from crowded to roomy plots.
const BARS: std::ops::RangeInclusive<i32> = 13..=26;
const GROUP_GAP: i32 = 15;
const PANEL_PAD: i32 = 14;
const LEFT: i32 = 66;
const RIGHT: i32 = 22;
const TOP: i32 = 104;
const PLOT_HEIGHT: i32 = 330;
const BOTTOM: i32 = 66;
const MIN_WIDTH: i32 = 720;
const PAPER: RGBColor = RGBColor(201, 42, 42);

/// The picture as SVG.
///
/// # Errors
/// If the drawing library refuses.
pub(crate) fn svg(report: &Report) -> Result<String> {
    let canvas = Canvas::new(report);
    let size = (canvas.width, TOP + PLOT_HEIGHT + BOTTOM);
    sheet::svg(&report.head.scenario, size, |sheet| canvas.draw(sheet, report))
}

struct Canvas {
    width: i32,
    /// The scale's highest value, Mbit/s.
    top: f64,
    /// Distance of the grid's lines, Mbit/s.
    tick: f64,
    /// Number of bars in a group.
    bars: i32,
    /// Width of one bar, pixels.
    bar: i32,
}

impl Canvas {
    fn new(report: &Report) -> Canvas {
        let bars = i32::try_from(report.controls.len()).unwrap_or(1);
        let groups: i32 = report.cases.iter().map(|case| active(case).count() as i32).sum();
        let fixed = groups * GROUP_GAP + report.cases.len() as i32 * 2 * PANEL_PAD;
        let room = MIN_WIDTH - LEFT - RIGHT - fixed;
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
        let tick = tick(highest, 8.0);
        let title = title_width(&report.title);
        let width = LEFT + content.max(title) + RIGHT;
        Canvas { width: width.max(MIN_WIDTH), top: (highest / tick * 1.02).ceil() * tick, tick, bars, bar }
    }

    fn y(&self, mbit: f64) -> i32 {
        TOP + PLOT_HEIGHT - (mbit / self.top * f64::from(PLOT_HEIGHT)).round() as i32
    }

    fn draw(&self, sheet: &Sheet<'_>, report: &Report) -> Drawn {
        self.draw_head(sheet, report)?;
        self.draw_scale(sheet)?;
        // A narrow plot is stretched to the minimum width.
        let spare = self.width - LEFT - RIGHT - self.content_width(report);
        let extra = spare / report.cases.len().max(1) as i32;
        let mut x = LEFT;
        for (index, case) in report.cases.iter().enumerate() {
            let groups = active(case).count() as i32;
            let width = groups * self.group_width() + 2 * PANEL_PAD + extra;
            if index > 0 {
                sheet.grid((x, TOP), (x, TOP + PLOT_HEIGHT + BOTTOM - 14), false)?;
            }
            let below = (x + width / 2, TOP + PLOT_HEIGHT + 32);
            sheet.words(&case.name, below, TEXT + 1, &INK, CENTER_TOP)?;
            let mut left = x + (width - groups * self.group_width()) / 2;
            for container in active(case) {
                self.draw_group(sheet, report, container, left + GROUP_GAP / 2)?;
                left += self.group_width();
            }
            x += width;
        }
        Ok(())
    }

    fn content_width(&self, report: &Report) -> i32 {
        report.cases.iter().map(|case| active(case).count() as i32 * self.group_width() + 2 * PANEL_PAD).sum()
    }

    fn group_width(&self) -> i32 {
        self.bars * self.bar + GROUP_GAP
    }

    fn draw_head(&self, sheet: &Sheet<'_>, report: &Report) -> Drawn {
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
        sheet.head(LEFT, &report.title, &under)?;
        let mut x = LEFT;
        let y = 76;
        let entry = |text: &str, x: &mut i32| -> Drawn {
            sheet.words(text, (*x + 22, y), TEXT, &INK, LEFT_MIDDLE)?;
            *x += 22 + width(text, TEXT) + 14;
            Ok(())
        };
        for &kind in &report.controls {
            sheet.bar([(x, y - 6), (x + 15, y + 6)], color(kind))?;
            let text = match kind {
                ControlKind::Tc if settings.tc == TcForm::Quantum => "tc HTB by quanta",
                ControlKind::Tc if settings.tc == TcForm::Drr => "tc DRR",
                ControlKind::Tc => "tc HTB by hand",
                ControlKind::Cni => "CNI bandwidth plugin",
                ControlKind::CREDIT => "credit and drops alone",
                ControlKind::None => "no control",
                _ => kind.name(),
            };
            entry(text, &mut x)?;
        }
        sheet.line(vec![(x, y), (x + 16, y)], INK.stroke_width(3))?;
        entry("expected", &mut x)?;
        if report.cases.iter().flat_map(|c| &c.containers).any(|c| c.setting.paper.is_some()) {
            sheet.diamond((x + 8, y), PAPER)?;
            entry("the paper", &mut x)?;
        }
        Ok(())
    }

    fn draw_scale(&self, sheet: &Sheet<'_>) -> Drawn {
        let steps = (self.top / self.tick).round() as i32;
        for step in 0..=steps {
            let value = f64::from(step) * self.tick;
            let y = self.y(value);
            sheet.grid((LEFT, y), (self.width - RIGHT, y), step == 0)?;
            sheet.words(&value.to_string(), (LEFT - 8, y), TEXT, &GREY, RIGHT_MIDDLE)?;
        }
        sheet.upright("payload that arrived, Mbit/s", (12, TOP + PLOT_HEIGHT / 2))
    }

    fn draw_group(
        &self,
        sheet: &Sheet<'_>,
        report: &Report,
        container: &ContainerReport,
        left: i32,
    ) -> Drawn {
        let zero = self.y(0.0);
        let right = left + self.bars * self.bar;
        for (index, kind) in report.controls.iter().enumerate() {
            let Some(measured) = container.measured.get(kind) else { continue };
            let x = left + index as i32 * self.bar;
            let corners = [(x + 1, self.y(measured.goodput)), (x + self.bar - 1, zero)];
            sheet.bar(corners, color(*kind))?;
            let (low, high) = (self.y(measured.ci95.0), self.y(measured.ci95.1));
            if low - high > 2 {
                let middle = x + self.bar / 2;
                sheet.line(vec![(middle, low), (middle, high)], INK.stroke_width(1))?;
            }
        }
        let y = self.y(container.expected);
        sheet.line(vec![(left - 3, y), (right + 3, y)], INK.stroke_width(3))?;
        if let Some(paper) = container.setting.paper {
            sheet.diamond(((left + right) / 2, self.y(paper)), PAPER)?;
        }
        sheet.words(&container.name, ((left + right) / 2, zero + 9), TEXT, &GREY, CENTER_TOP)
    }
}

/// The containers that send something.
fn active(case: &CaseReport) -> impl Iterator<Item = &ContainerReport> {
    case.containers.iter().filter(|c| !c.measured.is_empty())
}

pub(crate) fn color(kind: ControlKind) -> RGBColor {
    match kind {
        ControlKind::Weir => RGBColor(12, 133, 153),
        ControlKind::Engine(EngineKind::Htb) => RGBColor(16, 152, 173),
        ControlKind::Engine(EngineKind::Bpf) => RGBColor(59, 91, 219),
        ControlKind::Engine(EngineKind::BpfCredit) => RGBColor(132, 94, 247),
        ControlKind::Engine(EngineKind::PaperCredit) => RGBColor(174, 62, 201),
        ControlKind::Engine(EngineKind::Edt) => RGBColor(47, 158, 68),
        ControlKind::Engine(EngineKind::Pacing) => RGBColor(130, 201, 30),
        ControlKind::Engine(EngineKind::User) => RGBColor(214, 51, 132),
        ControlKind::Engine(EngineKind::CreditExperiment) => RGBColor(224, 49, 49),
        ControlKind::Cni => RGBColor(230, 119, 0),
        ControlKind::Tc => RGBColor(252, 176, 82),
        ControlKind::None => RGBColor(190, 197, 204),
    }
}

#[cfg(test)]
mod tests {
    use super::super::shares::tests::sample;
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
