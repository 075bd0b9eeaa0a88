//! Rates and queue of the first seed over time, and use against wait of all seeds.

use anyhow::Result;
use plotters::style::{Color, RGBColor};
use weir_linksim::{Moment, Scheme};

use super::report::Report;
use crate::report::sheet::{
    self, CENTER_TOP, Drawn, GREY, INK, LEFT_MIDDLE, RIGHT_MIDDLE, Sheet, TEXT, tick, width,
};

const LEFT: i32 = 76;
const WIDTH: i32 = 880;
const RIGHT: i32 = 24;
const LEGEND: i32 = 78;
/// The upper edges of the panels: rate, queue, use against wait.
const TOPS: [i32; 3] = [120, 400, 680];
const HEIGHT: i32 = 210;
const BOTTOM: i32 = 60;

/// The schemes of the panels over time. The others would cover them.
const OVER_TIME: [Scheme; 3] = [Scheme::None, Scheme::CakeAutorate, Scheme::Weir];
/// Marks of waits, ms.
const WAITS: [f64; 8] = [0.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, 3_000.0];

/// The picture as SVG.
///
/// # Errors
/// If the drawing library refuses.
pub(super) fn svg(report: &Report) -> Result<String> {
    let size = (LEFT + WIDTH + RIGHT, TOPS[2] + HEIGHT + BOTTOM);
    sheet::svg(&report.head.scenario, size, |sheet| {
        let settings = &report.settings;
        let under = format!(
            "{}; simulated, seed {} over time, {} seeds below",
            settings.source, report.seed, settings.seeds
        );
        sheet.head(LEFT, &settings.title, &under)?;
        legend(sheet)?;
        rates(sheet, report)?;
        waits(sheet, report)?;
        uses(sheet, report)
    })
}

fn color(scheme: Scheme) -> RGBColor {
    match scheme {
        Scheme::Weir => RGBColor(12, 133, 153),
        Scheme::CakeAutorate => RGBColor(230, 119, 0),
        Scheme::Mean => RGBColor(132, 94, 247),
        Scheme::Minimum => RGBColor(47, 158, 68),
        Scheme::None => RGBColor(173, 181, 189),
        Scheme::Oracle => RGBColor(224, 49, 49),
    }
}

fn legend(sheet: &Sheet<'_>) -> Drawn {
    let mut x = LEFT;
    for scheme in Scheme::ALL {
        sheet.diamond((x + 6, LEGEND), color(scheme))?;
        sheet.words(scheme.name(), (x + 18, LEGEND), TEXT, &INK, LEFT_MIDDLE)?;
        x += 18 + width(scheme.name(), TEXT) + 8;
    }
    Ok(())
}

/// The position of a wait on a logarithmic scale, from 0 to 1.
fn place(wait_ms: f64) -> f64 {
    let scale = |ms: f64| (1.0 + ms).ln();
    scale(wait_ms.clamp(0.0, WAITS[7])) / scale(WAITS[7])
}

/// A panel's height of a part from 0 to 1.
fn level(top: i32, part: f64) -> i32 {
    top + HEIGHT - (part * f64::from(HEIGHT)).round() as i32
}

fn over_time(report: &Report, sheet: &Sheet<'_>, top: i32) -> Result<f64, Box<dyn std::error::Error>> {
    let end = report.first.values().flatten().map(|moment| moment.ms).max().unwrap_or(1) as f64;
    for seconds in (0..).map(|nth| nth * 20).take_while(|seconds| f64::from(*seconds) * 1e3 <= end) {
        let x = LEFT + (f64::from(seconds) * 1e3 / end * f64::from(WIDTH)) as i32;
        sheet.words(&format!("{seconds} s"), (x, top + HEIGHT + 8), TEXT, &GREY, CENTER_TOP)?;
    }
    Ok(end)
}

/// A line over time.
fn line(
    sheet: &Sheet<'_>,
    moments: &[Moment],
    end: f64,
    ink: RGBColor,
    height: impl Fn(&Moment) -> i32,
) -> Drawn {
    let x = |moment: &Moment| LEFT + (moment.ms as f64 / end * f64::from(WIDTH)).round() as i32;
    let points = moments.iter().map(|moment| (x(moment), height(moment))).collect();
    sheet.line(points, ink.stroke_width(2))
}

fn rates(sheet: &Sheet<'_>, report: &Report) -> Drawn {
    let top = TOPS[0];
    let end = over_time(report, sheet, top)?;
    let Some(weir) = report.first.get(&Scheme::Weir) else { return Ok(()) };
    let highest = weir.iter().map(|moment| moment.link).fold(1.0, f64::max);
    let step = tick(highest, 6.0);
    let most = (highest / step).ceil() * step;
    for nth in 0..=(most / step).round() as i32 {
        let value = f64::from(nth) * step;
        let y = level(top, value / most);
        sheet.grid((LEFT, y), (LEFT + WIDTH, y), nth == 0)?;
        sheet.words(&value.to_string(), (LEFT - 8, y), TEXT, &GREY, RIGHT_MIDDLE)?;
    }
    sheet.upright("Mbit/s", (14, top + HEIGHT / 2))?;
    sheet.words("the link (black) and what it carries", (LEFT + 6, top - 10), TEXT, &INK, LEFT_MIDDLE)?;
    line(sheet, weir, end, INK, |moment| level(top, moment.link / most))?;
    for scheme in [Scheme::CakeAutorate, Scheme::Weir] {
        let moments = report.first.get(&scheme).map_or(&[][..], Vec::as_slice);
        line(sheet, moments, end, color(scheme), |moment| level(top, (moment.carried / most).min(1.0)))?;
    }
    Ok(())
}

fn waits(sheet: &Sheet<'_>, report: &Report) -> Drawn {
    let top = TOPS[1];
    let end = over_time(report, sheet, top)?;
    for wait in WAITS {
        let y = level(top, place(wait));
        sheet.grid((LEFT, y), (LEFT + WIDTH, y), wait == 0.0)?;
        sheet.words(&wait.to_string(), (LEFT - 8, y), TEXT, &GREY, RIGHT_MIDDLE)?;
    }
    sheet.upright("ms", (14, top + HEIGHT / 2))?;
    let title = format!("longest wait in the {}'s queue, each 200 ms", report.settings.owner());
    sheet.words(&title, (LEFT + 6, top - 10), TEXT, &INK, LEFT_MIDDLE)?;
    for scheme in OVER_TIME {
        let moments = report.first.get(&scheme).map_or(&[][..], Vec::as_slice);
        line(sheet, moments, end, color(scheme), |moment| level(top, place(f64::from(moment.wait_ms))))?;
    }
    Ok(())
}

fn uses(sheet: &Sheet<'_>, report: &Report) -> Drawn {
    let top = TOPS[2];
    for percent in (0..=100).step_by(20) {
        let y = level(top, f64::from(percent) / 100.0);
        sheet.grid((LEFT, y), (LEFT + WIDTH, y), percent == 0)?;
        sheet.words(&format!("{percent} %"), (LEFT - 8, y), TEXT, &GREY, RIGHT_MIDDLE)?;
    }
    let across = |wait: f64| LEFT + (place(wait) * f64::from(WIDTH)).round() as i32;
    for wait in WAITS {
        let x = across(wait);
        sheet.words(&wait.to_string(), (x, top + HEIGHT + 8), TEXT, &GREY, CENTER_TOP)?;
    }
    let axis = "wait of 95 of 100 packets, ms";
    sheet.words(axis, (LEFT + WIDTH / 2, top + HEIGHT + 30), TEXT, &GREY, CENTER_TOP)?;
    let title = "used of the link, each seed; the lines are what is wanted";
    sheet.words(title, (LEFT + 6, top - 10), TEXT, &INK, LEFT_MIDDLE)?;
    let wanted = level(top, report.settings.least_used);
    sheet.line(vec![(LEFT, wanted), (LEFT + WIDTH, wanted)], INK.stroke_width(1))?;
    if let Some(most) = report.settings.most_ms {
        sheet.line(vec![(across(most), top), (across(most), top + HEIGHT)], INK.stroke_width(1))?;
    }
    for row in &report.rows {
        sheet.diamond((across(row.p95_ms), level(top, row.used)), color(row.scheme))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::report::tests::report, *};

    #[test]
    fn the_plot_has_each_scheme_and_a_mark_for_each_run() {
        let report = report("variable-lte", 2);
        let text = svg(&report).unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        for scheme in Scheme::ALL {
            assert!(text.contains(&scheme.name().replace('\'', "&apos;")), "{}", scheme.name());
        }
        assert_eq!(text.matches("<polygon").count(), Scheme::ALL.len() * 3, "a legend, and two seeds");
        assert!(text.contains("modem&apos;s queue"));
    }

    #[test]
    fn the_plot_of_a_download_names_the_providers_queue() {
        let text = svg(&report("variable-download-lte", 1)).unwrap();
        assert!(text.contains("provider&apos;s queue") && !text.contains("modem"));
    }

    #[test]
    fn waits_keep_their_order_on_the_scale_and_stay_on_the_sheet() {
        let places = [0.0, 1.0, 30.0, 3_000.0, 9_000.0].map(place);
        assert!(places.is_sorted() && places[0] == 0.0 && places[4] == 1.0, "{places:?}");
    }
}
