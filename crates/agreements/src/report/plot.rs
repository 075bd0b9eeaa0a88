//! The plot of a month: what was promised and what was delivered, hour by hour, as SVG.

use std::fmt::{self, Write};

use weir_units::{BitRate, Bytes};

use super::Report;
use crate::Hour;

const SIZE: (f64, f64) = (960.0, 320.0);
/// The plot area: left, top, right and bottom, px.
const AREA: (f64, f64, f64, f64) = (70.0, 10.0, 950.0, 270.0);
const PROMISED: &str = "#c92a2a";
const DELIVERED: &str = "#4285f4";
const GRID: &str = "#dee2e6";
/// Marks of the rate axis, about.
const MARKS: f64 = 6.0;

/// The plot as an SVG element. It holds numbers only, and no text of an agreement.
pub(super) fn svg(report: &Report) -> String {
    let mut out = String::new();
    draw(report, &mut out).expect("a string takes all that is written");
    out
}

/// Mbit/s over the time that counts of an hour.
fn rate(bytes: Bytes, waiting_ms: u64) -> f64 {
    BitRate::of(bytes, std::time::Duration::from_millis(waiting_ms.max(1))).as_mbit()
}

/// The distance of marks on an axis up to `top`: 1, 2 or 5 times a power of ten.
fn step(top: f64) -> f64 {
    let rough = top / MARKS;
    let power = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= rough).unwrap_or(10.0);
    factor * power
}

fn draw(report: &Report, out: &mut String) -> fmt::Result {
    let (width, height) = SIZE;
    let (left, top, right, bottom) = AREA;
    let month = report.seen.month();
    let days = month.next_month().since(month).as_secs_f64() / 86_400.0;
    let counted = || report.seen.hours.iter().enumerate().filter(|(_, hour)| hour.waiting_ms > 0);
    let promised = |hour: &Hour| rate(hour.promised, hour.waiting_ms);
    let delivered = |hour: &Hour| rate(hour.delivered, hour.waiting_ms);
    let rates = counted().flat_map(|(_, hour)| [promised(hour), delivered(hour)]);
    let highest = rates.fold(report.min.as_mbit().max(0.01), f64::max) * 1.1;
    let x = |day: f64| left + (right - left) * day / days;
    let y = |mbit: f64| bottom - (bottom - top) * mbit / highest;
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-size=\"12\" \
         font-family=\"sans-serif\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>"
    )?;
    let step = step(highest);
    let decimals = if step < 1.0 { (-step.log10().floor()) as usize } else { 0 };
    for mark in 0..=(highest / step) as u32 {
        let mbit = f64::from(mark) * step;
        let y = y(mbit);
        writeln!(
            out,
            "<path d=\"M{left} {y:.1}H{right}\" stroke=\"{GRID}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{mbit:.decimals$}</text>",
            left - 6.0,
            y + 4.0
        )?;
    }
    for day in 0..days.round() as u32 {
        let place = x(f64::from(day) + 0.5);
        writeln!(
            out,
            "<text x=\"{place:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 16.0,
            day + 1
        )?;
    }
    for (n, hour) in counted() {
        let (from, to) = (x(n as f64 / 24.0), x((n + 1) as f64 / 24.0));
        let (delivered, promised) = (y(delivered(hour)), y(promised(hour)));
        writeln!(
            out,
            "<path d=\"M{from:.2} {bottom}V{delivered:.2}H{to:.2}V{bottom}z\" fill=\"{DELIVERED}\"/>\
             <path d=\"M{from:.2} {promised:.2}H{to:.2}\" stroke=\"{PROMISED}\" stroke-width=\"2\"/>"
        )?;
    }
    writeln!(
        out,
        "<path d=\"M{left} {top}V{bottom}H{right}\" fill=\"none\" stroke=\"#212529\"/>\n\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">day of the month, UTC</text>\n\
         <text transform=\"translate(16 {:.1})rotate(-90)\" text-anchor=\"middle\">Mbit/s while more was waiting</text>",
        f64::midpoint(left, right),
        height - 8.0,
        f64::midpoint(top, bottom)
    )?;
    for (row, (name, colour)) in [("delivered", DELIVERED), ("promised", PROMISED)].into_iter().enumerate() {
        let y = top + 8.0 + 18.0 * row as f64;
        writeln!(
            out,
            "<rect x=\"{:.1}\" y=\"{y:.1}\" width=\"18\" height=\"10\" fill=\"{colour}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{name}</text>",
            right - 100.0,
            right - 76.0,
            y + 9.0
        )?;
    }
    out.push_str("</svg>");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::step;

    #[test]
    fn marks_are_one_two_or_five_times_a_power_of_ten() {
        for (top, expected) in
            [(0.011, 0.002), (1.0, 0.2), (6.6, 2.0), (20.9, 5.0), (104.5, 20.0), (11_000.0, 2_000.0)]
        {
            assert!((step(top) / expected - 1.0).abs() < 1e-9, "{top}: {} and not {expected}", step(top));
        }
    }
}
