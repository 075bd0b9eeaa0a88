//! One picture a scenario: the distribution of completion times by algorithm, as in the paper's Fig. 2; or a
//! map of the winners.

use anyhow::Result;
use plotters::style::{Color, RGBColor};
use weir_netlab::stats::SplitMix;

use super::{
    report::{Report, Row, groups},
    scenario::{Algorithm, Point},
    standing::{GROUPS, Standing, standing},
};

use crate::report::sheet::{
    self, CENTER_TOP, FAINT, GREY, INK, LEFT_MIDDLE, LEFT_TOP, RIGHT_MIDDLE, Sheet, TEXT, tick,
};

pub(super) const LEFT: i32 = 70;
pub(super) const TOP: i32 = 110;
const WIDTH: i32 = 420;
pub(super) const HEIGHT: i32 = 300;
const GAP: i32 = 70;
/// Height of a line of the legend, pixels.
pub(super) const LINE: i32 = 22;
/// The paper's colours: blue for cloud, orange for edge, red with output, green without. Two more follow.
const CASES: [RGBColor; 6] = [
    RGBColor(28, 126, 214),
    RGBColor(232, 89, 12),
    RGBColor(47, 158, 68),
    RGBColor(224, 49, 49),
    RGBColor(132, 94, 247),
    RGBColor(12, 133, 153),
];

/// The picture as SVG.
///
/// # Errors
/// If the drawing library refuses.
pub(crate) fn svg(report: &Report) -> Result<String> {
    if report.settings.sweep.is_some() {
        return map(report);
    }
    let settings = &report.settings;
    let panels = i32::try_from(settings.algorithms.len())?;
    let legend = i32::try_from(settings.cases.len())? * LINE;
    let width = sheet_width(panels);
    sheet::svg(&report.head.scenario, (width, TOP + HEIGHT + 70 + legend), |sheet| {
        distributions(sheet, report)
    })
}

fn distributions(sheet: &Sheet<'_>, report: &Report) -> sheet::Drawn {
    let settings = &report.settings;
    let under = format!("{}; {}, kernel {}", settings.source, report.backend, report.head.kernel);
    sheet.head(LEFT, &settings.title, &under)?;
    let all = report.rows.iter().flat_map(|row| &row.flows).map(|flow| flow.seconds);
    let longest = all.fold(0.01, f64::max);
    let groups = groups(settings, &report.rows, None);
    for (panel, algorithm) in (0..).zip(&settings.algorithms) {
        let left = left_of(panel);
        axes(sheet, left, longest, &format!("{algorithm}: flow completion time, s"))?;
        for (case, by, rows) in &groups {
            if by != algorithm {
                continue;
            }
            let nth = settings.cases.iter().position(|one| one.name == *case).unwrap_or(0);
            sheet.line(curve(rows, left, longest), colour(nth).stroke_width(2))?;
        }
    }
    for (nth, case) in settings.cases.iter().enumerate() {
        legend(sheet, nth, &case.name)?;
    }
    Ok(())
}

/// The width of a sheet with this many panels beside each other.
pub(super) fn sheet_width(panels: i32) -> i32 {
    (LEFT + panels * (WIDTH + GAP)).max(900)
}

/// The left edge of a panel.
pub(super) fn left_of(panel: i32) -> i32 {
    LEFT + panel * (WIDTH + GAP)
}

/// Draws the legend's line for the `nth` colour.
pub(super) fn legend(sheet: &Sheet<'_>, nth: usize, name: &str) -> sheet::Drawn {
    let top = TOP + HEIGHT + 66 + i32::try_from(nth)? * LINE;
    sheet.line(vec![(LEFT, top), (LEFT + 26, top)], colour(nth).stroke_width(3))?;
    sheet.words(name, (LEFT + 34, top), TEXT, &INK, LEFT_MIDDLE)
}

pub(super) fn colour(nth: usize) -> RGBColor {
    CASES[nth % CASES.len()]
}

pub(super) fn axes(sheet: &Sheet<'_>, left: i32, longest: f64, title: &str) -> sheet::Drawn {
    sheet.words(title, (left, TOP - 34), TEXT, &INK, LEFT_TOP)?;
    let step = tick(longest, 8.0);
    for nth in 0..=(longest / step).floor() as i32 {
        let at = x(left, longest, f64::from(nth) * step);
        sheet.grid((at, TOP + HEIGHT), (at, TOP), false)?;
        // Ticks are 1, 2 or 5 times a power of ten, so two digits after the point suffice.
        let mark = format!("{:.2}", f64::from(nth) * step);
        let mark = mark.trim_end_matches('0').trim_end_matches('.');
        sheet.words(mark, (at, TOP + HEIGHT + 8), TEXT, &GREY, CENTER_TOP)?;
    }
    for tenths in (0..=10).step_by(2) {
        let part = f64::from(tenths) / 10.0;
        sheet.grid((left, y(part)), (left + WIDTH, y(part)), tenths == 0)?;
        sheet.words(&part.to_string(), (left - 8, y(part)), TEXT, &GREY, RIGHT_MIDDLE)?;
    }
    Ok(())
}

pub(super) fn x(left: i32, longest: f64, seconds: f64) -> i32 {
    left + (seconds / longest * f64::from(WIDTH)).round() as i32
}

pub(super) fn y(part: f64) -> i32 {
    TOP + HEIGHT - (part * f64::from(HEIGHT)).round() as i32
}

/// A staircase that rises by 1/n at each of the n times.
fn curve(rows: &[&Row], left: i32, longest: f64) -> Vec<(i32, i32)> {
    let mut times: Vec<f64> = rows.iter().flat_map(|row| &row.flows).map(|flow| flow.seconds).collect();
    times.sort_by(f64::total_cmp);
    let count = times.len().max(1) as f64;
    let mut points = vec![(left, y(0.0))];
    for (index, time) in times.into_iter().enumerate() {
        points.push((x(left, longest, time), y(index as f64 / count)));
        points.push((x(left, longest, time), y((index + 1) as f64 / count)));
    }
    points.dedup();
    points
}

/// A square of the map, pixels.
const SQUARE: (i32, i32) = (92, 30);
/// Font size of words too wide for a square.
const SMALL: i32 = 11;

fn ink(algorithm: Algorithm) -> RGBColor {
    match algorithm {
        Algorithm::Cubic => GREY,
        Algorithm::Bbr => RGBColor(232, 89, 12),
        Algorithm::Mix => RGBColor(28, 126, 214),
        Algorithm::Weir => RGBColor(12, 133, 153),
    }
}

/// A map of the winners: a block for each round trip and share of small jobs, in it a row for each loss.
fn map(report: &Report) -> Result<String> {
    let Some(sweep) = &report.settings.sweep else {
        anyhow::bail!("{} sweeps nothing", report.head.scenario)
    };
    let count = |list: &[f64]| i32::try_from(list.len());
    let (buffers, losses) = (count(&sweep.buffer_bdp)?, count(&sweep.loss)?);
    let (shares, rtts) = (count(&sweep.small_share)?, count(&sweep.rtt_ms)?);
    let block = (LEFT + buffers * SQUARE.0 + 30, losses * SQUARE.1 + 64);
    let groups = i32::try_from(GROUPS.len())?;
    let size = ((groups * block.0 + LEFT).max(900), TOP + rtts * shares * block.1 + 40);
    sheet::svg(&report.head.scenario, size, |sheet| {
        let under = format!(
            "the quickest, and its time over CUBIC's; light: a tie, and of whom; {}, kernel {}",
            report.backend, report.head.kernel
        );
        sheet.head(LEFT, &report.settings.title, &under)?;
        let mut left = LEFT;
        for algorithm in &report.settings.algorithms {
            sheet.bar([(left, 72), (left + 20, 86)], ink(*algorithm))?;
            sheet.words(&algorithm.to_string(), (left + 28, 79), TEXT, &INK, LEFT_MIDDLE)?;
            left += 100;
        }
        let mut rng = SplitMix::new(report.seed);
        for point in report.settings.points() {
            let Some(at) = point else { continue };
            let nth = |list: &[f64], value| list.iter().position(|one| *one == value).unwrap_or(0) as i32;
            let row = nth(&sweep.small_share, at.small_share) * rtts + nth(&sweep.rtt_ms, at.rtt_ms);
            for (column, (what, name)) in (0..).zip(GROUPS) {
                let corner = (LEFT + column * block.0, TOP + row * block.1);
                let found = standing(report, point, what, &mut rng);
                square(sheet, corner, at, sweep, name, found)?;
            }
        }
        Ok(())
    })
}

fn square(
    sheet: &Sheet<'_>,
    (left, top): (i32, i32),
    at: Point,
    sweep: &super::scenario::Sweep,
    name: &str,
    found: Option<Standing>,
) -> sheet::Drawn {
    let nth = |list: &[f64], value| list.iter().position(|one| *one == value).unwrap_or(0) as i32;
    let (column, row) = (nth(&sweep.buffer_bdp, at.buffer_bdp), nth(&sweep.loss, at.loss));
    if (column, row) == (0, 0) {
        let title = format!("{name}; {} ms, {} of jobs small", at.rtt_ms, at.small_share);
        sheet.words(&title, (left, top), TEXT, &INK, LEFT_TOP)?;
    }
    let corner = (left + LEFT + column * SQUARE.0, top + 44 + row * SQUARE.1);
    if column == 0 {
        let mark = format!("{} %", (at.loss * 1e4).round() / 100.0);
        sheet.words(&mark, (corner.0 - 8, corner.1 + SQUARE.1 / 2), TEXT, &GREY, RIGHT_MIDDLE)?;
    }
    if row == 0 {
        let mark = format!("{} BDP", at.buffer_bdp);
        sheet.words(&mark, (corner.0 + SQUARE.0 / 2, corner.1 - 20), TEXT, &GREY, CENTER_TOP)?;
    }
    let Some(found) = found else { return Ok(()) };
    let (fill, ink, words) = match found.winners() {
        [winner] => (ink(*winner), RGBColor(255, 255, 255), format!("{:.2}", found.ratio.value)),
        several => {
            let names: Vec<String> = several.iter().map(ToString::to_string).collect();
            (FAINT, INK, names.join(" "))
        }
    };
    sheet.bar([corner, (corner.0 + SQUARE.0 - 2, corner.1 + SQUARE.1 - 2)], fill)?;
    let size = if words.len() > 9 { SMALL } else { TEXT };
    sheet.words(&words, (corner.0 + SQUARE.0 / 2, corner.1 + 8), size, &ink, CENTER_TOP)
}

#[cfg(test)]
mod tests {
    use super::{
        super::report::tests::{sample, sample_of_sweep},
        *,
    };

    #[test]
    fn the_plot_is_svg_with_a_curve_for_every_case_of_every_algorithm() {
        let report = sample("ecc-bbr", |_, case| case.len() as f64);
        let text = svg(&report).unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        for case in &report.settings.cases {
            assert!(text.contains(&case.name), "{}", case.name);
        }
        let curves = CASES.map(|RGBColor(r, g, b)| format!("#{r:02X}{g:02X}{b:02X}"));
        let drawn = curves.iter().map(|ink| text.matches(ink.as_str()).count()).sum::<usize>();
        let (cases, panels) = (report.settings.cases.len(), report.settings.algorithms.len());
        assert_eq!(drawn, cases * panels + cases, "curves, and the legend's lines");
    }

    #[test]
    fn a_curve_rises_from_nothing_to_everything() {
        let report = sample("ecc-cubic", |_, _| 10.0);
        let rows: Vec<&Row> = report.rows.iter().collect();
        let points = curve(&rows, LEFT, 20.0);
        assert_eq!(points[0], (LEFT, y(0.0)));
        assert_eq!(points.last().unwrap().1, y(1.0));
        assert!(points.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 >= pair[1].1));
    }

    #[test]
    fn a_sweep_is_a_map_in_the_winners_colours() {
        let report = sample_of_sweep(|algorithm, _| if algorithm == Algorithm::Bbr { 1.0 } else { 2.0 });
        let text = svg(&report).unwrap();
        assert!(text.contains("0.50") && text.contains("10 BDP"), "{text}");
    }
}
