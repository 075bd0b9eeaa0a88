//! The columns of `weir top`, and the choice of those that fit.

use ratatui_core::{style::Style, text::Span};
use weir_api::{Activity, Class};
use weir_units::BitRate;

use super::{direction::Direction, ink::Ink, state::Line};
use crate::cli::format;

/// A column, in the order of the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Column {
    Name,
    Weight,
    Min,
    Max,
    Allowed,
    Sending,
    Bar,
    Backlog,
    Wait,
    Drops,
    State,
}

/// Each column's width, and the smallest screen width that shows it. The bar takes the remaining width.
const COLUMNS: [(Column, u16, u16); 11] = [
    (Column::Name, 0, 0),
    (Column::Weight, 6, 50),
    (Column::Min, 8, 110),
    (Column::Max, 8, 110),
    (Column::Allowed, 8, 60),
    (Column::Sending, 8, 0),
    (Column::Bar, 0, 0),
    (Column::Backlog, 8, 76),
    (Column::Wait, 6, 84),
    (Column::Drops, 7, 92),
    (Column::State, 7, 66),
];

/// The smallest useful width of a bar.
const MIN_BAR: u16 = 6;

/// The columns that fit, each with its first character and its width. The first two characters of a
/// line are for the mark of the selected class.
pub(super) fn fit(lines: &[Line<'_>], width: u16, direction: Direction) -> Vec<(Column, u16, u16)> {
    let longest = lines.iter().map(|line| Span::raw(name(line)).width()).max().unwrap_or(0);
    let name = u16::try_from(longest).unwrap_or(u16::MAX).clamp(8, (width / 5).clamp(8, 30));
    let wide_enough = |(column, wide, from): (Column, u16, u16)| {
        let heading = u16::try_from(column.heading(direction).len()).unwrap_or(wide);
        (column, if wide == 0 { wide } else { wide.max(heading) }, from)
    };
    let shown = COLUMNS.into_iter().map(wide_enough).filter(|(_, _, from)| *from <= width);
    let fixed: u16 =
        shown.clone().map(|(column, wide, _)| if column == Column::Name { name } else { wide }).sum();
    let gaps = u16::try_from(shown.clone().count()).unwrap_or(0) * 2;
    let bar = width.saturating_sub(fixed + gaps);
    let mut x = 2;
    let mut fitted = Vec::new();
    for (column, wide, _) in shown {
        let wide = match column {
            Column::Name => name,
            Column::Bar if bar < MIN_BAR => continue,
            Column::Bar => bar,
            _ => wide,
        };
        if x + wide > width {
            break;
        }
        fitted.push((column, x, wide));
        x += wide + 2;
    }
    fitted
}

fn name(line: &Line<'_>) -> String {
    if line.member { format!("└ {}", line.class.name) } else { line.class.name.clone() }
}

/// The time that the class's queue takes to leave at the rate that it may send at.
fn wait(class: &Class) -> String {
    if class.backlog.0 > 0 && class.allocation == BitRate::ZERO {
        return "-".to_owned();
    }
    let micros = class.allocation.time_to_send(class.backlog).as_micros();
    match (class.backlog.0, micros) {
        (0, _) => "0".to_owned(),
        (_, ..10_000) => format!("{:.1}ms", micros as f64 / 1e3),
        _ => format::millis(u64::try_from(micros / 1_000).unwrap_or(u64::MAX)),
    }
}

impl Column {
    pub(super) fn heading(self, direction: Direction) -> &'static str {
        match self {
            Column::Name => "NAME",
            Column::Weight => "WEIGHT",
            Column::Min => "MIN",
            Column::Max => "MAX",
            Column::Allowed => "ALLOWED",
            Column::Sending if direction == Direction::Down => "RECEIVING",
            Column::Sending => "SENDING",
            Column::Bar => "",
            Column::Backlog => "BACKLOG",
            Column::Wait => "WAIT",
            Column::Drops => "DROPS",
            Column::State => "STATE",
        }
    }

    /// Columns of numbers are aligned to the right.
    pub(super) fn to_the_right(self) -> bool {
        !matches!(self, Column::Name | Column::Bar | Column::State)
    }

    /// The text for this class; empty for the bar.
    pub(super) fn cell(self, line: &Line<'_>, ink: Ink) -> (String, Style) {
        let class = line.class;
        let here = class.activity != Activity::Absent;
        let quiet = if class.activity == Activity::Active { ink.plain() } else { ink.dim() };
        let measured = |text: String, style| if here { (text, style) } else { ("-".to_owned(), ink.dim()) };
        match self {
            Column::Name => (name(line), quiet),
            Column::Weight => (class.policy.weight.to_string(), quiet),
            Column::Min => (format::bound(class.policy.min), quiet),
            Column::Max => (format::bound(class.policy.max), quiet),
            Column::Allowed => measured(format::rate(class.allocation), quiet),
            Column::Sending => measured(format::rate(class.rate), quiet),
            Column::Bar => (String::new(), ink.plain()),
            Column::Backlog => {
                measured(class.backlog.to_string(), if class.backlog.0 > 0 { ink.warn() } else { ink.dim() })
            }
            Column::Wait => {
                let waits = class.backlog.0 > 0;
                measured(wait(class), if waits { ink.warn() } else { ink.dim() })
            }
            Column::Drops => {
                measured(class.drops.to_string(), if class.drops > 0 { ink.bad() } else { ink.dim() })
            }
            Column::State => (format::state(class), if class.enforced { quiet } else { ink.bad() }),
        }
    }
}
