//! One picture a scenario: output over time, of all users and of a selected one, as the paper's last
//! two.

use anyhow::{Result, anyhow};
use plotters::{
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use super::scenario::{Report, link, rates};

const LEFT: i32 = 70;
const TOP: i32 = 100;
const WIDTH: i32 = 640;
const HEIGHT: i32 = 200;
/// From one panel to the next.
const PANEL: i32 = HEIGHT + 80;
const INK: RGBColor = RGBColor(33, 37, 41);
const FAINT: RGBColor = RGBColor(222, 226, 230);
const GREY: RGBColor = RGBColor(108, 117, 125);
const LINE: RGBColor = RGBColor(12, 133, 153);
const BOUND: RGBColor = RGBColor(201, 42, 42);

/// The picture as SVG.
///
/// # Errors
/// If the drawing library refuses.
pub(crate) fn svg(report: &Report) -> Result<String> {
    let mut text = String::new();
    draw(report, &mut text).map_err(|e| anyhow!("cannot draw the plot of {}: {e}", report.head.scenario))?;
    Ok(text)
}

fn draw(report: &Report, text: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let size = (u32::try_from(LEFT + WIDTH + 30)?, u32::try_from(TOP + 2 * PANEL)?);
    let area = SVGBackend::with_string(text, size).into_drawing_area();
    area.fill(&WHITE)?;
    let label = |words: &str, at: (i32, i32), size: i32, ink: &RGBColor, h: HPos| {
        let style = ("sans-serif", size).into_font().color(ink).pos(Pos::new(h, VPos::Top));
        area.draw(&Text::new(words.to_owned(), at, style))
    };
    let (settings, output) = (&report.settings, &report.output);
    label(&settings.title, (LEFT, 14), 22, &INK, HPos::Left)?;
    let under = format!("{}; {} of {} users send", settings.source, settings.active, settings.users);
    label(&under, (LEFT, 42), 15, &GREY, HPos::Left)?;
    let mbit = |rate: weir_units::BitRate| rate.bits_per_sec() as f64 / 1e6;
    let (rate, ceil) = rates(settings, output.user);
    let one = format!("a selected user, Mbit/s (rate {rate}, ceil {ceil})");
    let panels = [
        ("all users, Mbit/s".to_owned(), &output.all, vec![mbit(link(settings))]),
        (one, &output.one, vec![mbit(rate), mbit(ceil)]),
    ];
    for (index, (name, values, bounds)) in (0..).zip(&panels) {
        let top = TOP + index * PANEL;
        let highest = values.iter().chain(bounds).fold(1e-9, |a: f64, b| a.max(*b));
        let tick = [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3]
            .into_iter()
            .find(|tick| highest / tick <= 6.0)
            .unwrap_or(1e4);
        let steps = (highest / tick * 1.02).ceil() as i32;
        let y = |value: f64| {
            top + HEIGHT - (value / (tick * f64::from(steps)) * f64::from(HEIGHT)).round() as i32
        };
        let x = |i: usize| LEFT + (i as f64 / values.len() as f64 * f64::from(WIDTH)).round() as i32;
        label(name, (LEFT, top - 24), 15, &INK, HPos::Left)?;
        for step in 0..=steps {
            let value = f64::from(step) * tick;
            let ink = if step == 0 { INK } else { FAINT };
            let line = vec![(LEFT, y(value)), (LEFT + WIDTH, y(value))];
            area.draw(&PathElement::new(line, ink.stroke_width(1)))?;
            label(&value.to_string(), (LEFT - 8, y(value) - 8), 15, &GREY, HPos::Right)?;
        }
        for bound in bounds {
            let line = vec![(LEFT, y(*bound)), (LEFT + WIDTH, y(*bound))];
            area.draw(&PathElement::new(line, BOUND.mix(0.6).stroke_width(1)))?;
        }
        let points =
            values.iter().enumerate().flat_map(|(i, value)| [(x(i), y(*value)), (x(i + 1), y(*value))]);
        area.draw(&PathElement::new(points.collect::<Vec<_>>(), LINE.stroke_width(2)))?;
        let seconds = output.seconds * values.len() as f64;
        let words = format!("{seconds:.2} s of virtual time");
        label(&words, (LEFT + WIDTH, top + HEIGHT + 8), 15, &GREY, HPos::Right)?;
    }
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::scenario::Scenario;
    use super::*;
    use crate::user_htb::{self};

    #[test]
    fn the_plot_is_svg_with_all_users_and_one() {
        let scenario = Scenario {
            packets: 5_000,
            repetitions: 1,
            forms: vec![user_htb::Form::Single],
            ..user_htb::scenario::tests::scenario("phtb-2")
        };
        let text = svg(&user_htb::run(&scenario, false, 1, &mut |_| ()).unwrap()).unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        for words in ["533 of 800 users send", "all users, Mbit/s", "ceil 12mbit", "virtual time"] {
            assert!(text.contains(words), "{words}");
        }
    }
}
