//! The month in a picture: what was promised and what was delivered, hour by hour.

use plotters::prelude::*;
use weir_units::{BitRate, Bytes};

use super::Report;

const SIZE: (u32, u32) = (960, 320);
const PROMISED: RGBColor = RGBColor(201, 42, 42);
const DELIVERED: RGBColor = RGBColor(66, 133, 244);
const FAINT: RGBColor = RGBColor(222, 226, 230);

/// SVG, or the library's reason.
pub(super) fn svg(report: &Report) -> Result<String, String> {
    let mut text = String::new();
    draw(report, &mut text).map_err(|error| error.to_string())?;
    Ok(text)
}

/// Mbit/s in the time that counts of an hour.
fn rate(bytes: Bytes, waiting_ms: u64) -> f64 {
    BitRate::of(bytes, std::time::Duration::from_millis(waiting_ms.max(1))).as_mbit()
}

fn draw(report: &Report, text: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let hours = &report.seen.hours;
    let end = report.seen.month().next_month().since(report.seen.month()).as_secs_f64() / 86_400.0;
    let counted = || hours.iter().enumerate().filter(|(_, hour)| hour.waiting_ms > 0);
    let rates =
        counted().flat_map(|(_, h)| [rate(h.promised, h.waiting_ms), rate(h.delivered, h.waiting_ms)]);
    let top = rates.fold(report.min.as_mbit().max(0.01), f64::max) * 1.1;
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..end, 0.0..top)?;
    chart
        .configure_mesh()
        .x_desc("day of the month, UTC")
        .y_desc("Mbit/s while more was waiting")
        .x_labels(31)
        .x_label_formatter(&|day| format!("{:.0}", day + 1.0))
        .light_line_style(WHITE)
        .bold_line_style(FAINT)
        .draw()?;
    let hour = 1.0 / 24.0;
    let bar = |(n, h): (usize, &crate::Hour)| {
        let left = n as f64 * hour;
        Rectangle::new([(left, 0.0), (left + hour, rate(h.delivered, h.waiting_ms))], DELIVERED.filled())
    };
    chart
        .draw_series(counted().map(bar))?
        .label("delivered")
        .legend(|(x, y)| Rectangle::new([(x, y - 5), (x + 18, y + 5)], DELIVERED.filled()));
    let step = |(n, h): (usize, &crate::Hour)| {
        let (left, y) = (n as f64 * hour, rate(h.promised, h.waiting_ms));
        PathElement::new(vec![(left, y), (left + hour, y)], PROMISED.stroke_width(2))
    };
    chart
        .draw_series(counted().map(step))?
        .label("promised")
        .legend(|(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], PROMISED.stroke_width(2)));
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(FAINT).draw()?;
    area.present()?;
    Ok(())
}
