//! The common parts of all plots: a white sheet with a title, words, lines, bars and a scale.

use anyhow::{Result, anyhow};
use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

pub(crate) const INK: RGBColor = RGBColor(33, 37, 41);
pub(crate) const FAINT: RGBColor = RGBColor(222, 226, 230);
pub(crate) const GREY: RGBColor = RGBColor(108, 117, 125);
/// Font size of most words.
pub(crate) const TEXT: i32 = 15;
/// Font size of the title.
const TITLE: i32 = 22;
/// Width of a letter as a fraction of the font's size. The estimate is generous, because no font is available
/// to measure.
const LETTER: f64 = 0.55;

/// The result of a drawing operation.
pub(crate) type Drawn = Result<(), Box<dyn std::error::Error>>;

/// The position of words relative to a point: horizontal, then vertical.
#[derive(Clone, Copy)]
pub(crate) struct Anchor(HPos, VPos);

/// Right of the point and below it.
pub(crate) const LEFT_TOP: Anchor = Anchor(HPos::Left, VPos::Top);
/// Right of the point.
pub(crate) const LEFT_MIDDLE: Anchor = Anchor(HPos::Left, VPos::Center);
/// Below the point.
pub(crate) const CENTER_TOP: Anchor = Anchor(HPos::Center, VPos::Top);
/// Left of the point.
pub(crate) const RIGHT_MIDDLE: Anchor = Anchor(HPos::Right, VPos::Center);

/// A sheet to draw on. Points are pixels from its upper left corner.
pub(crate) struct Sheet<'a>(DrawingArea<SVGBackend<'a>, Shift>);

/// Returns a white sheet of this size with the output of `draw`, as SVG.
///
/// # Errors
/// If the drawing library refuses; the error names `scenario`.
pub(crate) fn svg(
    scenario: &str,
    (width, height): (i32, i32),
    draw: impl FnOnce(&Sheet<'_>) -> Drawn,
) -> Result<String> {
    let mut text = String::new();
    let drawn = || -> Drawn {
        let size = (u32::try_from(width)?, u32::try_from(height)?);
        let sheet = Sheet(SVGBackend::with_string(&mut text, size).into_drawing_area());
        sheet.0.fill(&WHITE)?;
        draw(&sheet)?;
        sheet.0.present()?;
        Ok(())
    };
    drawn().map_err(|e| anyhow!("cannot draw the plot of {scenario}: {e}"))?;
    Ok(text)
}

impl Sheet<'_> {
    /// Draws the title and a line about the measurement, both from `left` on.
    pub(crate) fn head(&self, left: i32, title: &str, under: &str) -> Drawn {
        self.words(title, (left, 14), TITLE, &INK, LEFT_TOP)?;
        self.words(under, (left, 42), TEXT, &GREY, LEFT_TOP)
    }

    pub(crate) fn words(
        &self,
        words: &str,
        at: (i32, i32),
        size: i32,
        ink: &RGBColor,
        Anchor(h, v): Anchor,
    ) -> Drawn {
        let style = ("sans-serif", size).into_font().color(ink).pos(Pos::new(h, v));
        Ok(self.0.draw(&Text::new(words.to_owned(), at, style))?)
    }

    /// Draws words upwards, centred on the point's height.
    pub(crate) fn upright(&self, words: &str, at: (i32, i32)) -> Drawn {
        let font = ("sans-serif", TEXT).into_font().transform(FontTransform::Rotate270);
        let style = font.color(&GREY).pos(Pos::new(HPos::Center, VPos::Top));
        Ok(self.0.draw(&Text::new(words.to_owned(), at, style))?)
    }

    /// Draws a line through all these points.
    pub(crate) fn line(&self, points: Vec<(i32, i32)>, style: impl Into<ShapeStyle>) -> Drawn {
        Ok(self.0.draw(&PathElement::new(points, style))?)
    }

    /// Draws a line of the grid; the line at zero is the axis.
    pub(crate) fn grid(&self, from: (i32, i32), to: (i32, i32), is_zero: bool) -> Drawn {
        self.line(vec![from, to], if is_zero { INK } else { FAINT }.stroke_width(1))
    }

    /// Draws a filled rectangle between two corners.
    pub(crate) fn bar(&self, corners: [(i32, i32); 2], ink: RGBColor) -> Drawn {
        Ok(self.0.draw(&Rectangle::new(corners, ink.filled()))?)
    }

    /// Draws a filled diamond around a point.
    pub(crate) fn diamond(&self, (x, y): (i32, i32), ink: RGBColor) -> Drawn {
        let corners = vec![(x, y - 6), (x + 6, y), (x, y + 6), (x - 6, y)];
        Ok(self.0.draw(&Polygon::new(corners, ink.filled()))?)
    }
}

/// Distance of a scale's lines: the smallest 1, 2 or 5 times a power of ten with at most `most` lines up to
/// `highest`.
pub(crate) fn tick(highest: f64, most: f64) -> f64 {
    let steps = (-2..6).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power)));
    steps.into_iter().find(|tick| highest / tick <= most).unwrap_or(highest)
}

/// The approximate width of words, pixels.
pub(crate) fn width(words: &str, size: i32) -> i32 {
    (words.chars().count() as f64 * f64::from(size) * LETTER).ceil() as i32
}

/// The approximate width of a title, pixels.
pub(crate) fn title_width(title: &str) -> i32 {
    width(title, TITLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_has_as_many_lines_as_wanted_at_the_most() {
        for highest in [0.1, 0.9, 3.7, 8.0, 8.1, 49.0, 5000.0] {
            let steps = highest / tick(highest, 8.0);
            assert!((3.0..=8.0).contains(&steps), "{highest}: {steps}");
        }
        assert_eq!((tick(195.0, 10.0), tick(200.0, 10.0), tick(201.0, 10.0)), (20.0, 20.0, 50.0));
    }

    #[test]
    fn a_sheet_is_svg_with_what_was_drawn() {
        let text = svg("x", (100, 50), |sheet| {
            sheet.head(10, "a title", "what it is")?;
            sheet.grid((0, 0), (10, 0), true)?;
            sheet.bar([(1, 1), (5, 9)], GREY)
        });
        let text = text.unwrap();
        assert!(text.starts_with("<svg width=\"100\" height=\"50\""), "{text}");
        assert!(text.contains("a title") && text.contains("what it is"), "{text}");
        assert_eq!((text.matches("<rect").count(), text.matches("<polyline").count()), (2, 1), "{text}");
    }

    #[test]
    fn a_size_that_is_none_is_an_error_that_names_the_scenario() {
        let error = svg("sla-C", (-1, 50), |_| Ok(())).unwrap_err().to_string();
        assert!(error.starts_with("cannot draw the plot of sla-C: "), "{error}");
    }
}
