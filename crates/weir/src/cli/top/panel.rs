//! The panel of the selected class: its last minute, and its explanation on request.

use ratatui_core::{
    buffer::Buffer,
    layout::Rect,
    style::{Modifier, Style},
    symbols::{bar, border},
    text::{Line as Text, Span},
};
use weir_api::Class;
use weir_units::BitRate;

use super::{
    direction::Direction,
    ink::{Ink, class_style, put},
    state::{HISTORY, State, id},
};
use crate::cli::{
    explain,
    format::{self, Look},
};

/// Draws the selected class: its last minute, and details that do not fit in the table.
pub(super) fn panel(state: &State, class: &Class, ink: Ink, area: Rect, buf: &mut Buffer) {
    let own = class_style(state, class, ink);
    let title = Text::from(vec![
        Span::raw(" "),
        Span::styled(class.name.clone(), own.add_modifier(Modifier::BOLD)),
        Span::raw(format!(" over the last {HISTORY} s ")),
    ]);
    let inner = bordered(&title, ink.dim(), area, buf);
    let seconds = u16::try_from(HISTORY).unwrap_or(u16::MAX);
    let axis = 9;
    let figure = Rect { width: inner.width.saturating_sub(axis).min(seconds), ..inner };
    let rates: Vec<u64> = state.history.get(&id(class)).into_iter().flatten().map(|rate| rate.0).collect();
    let rates = &rates[rates.len().saturating_sub(usize::from(figure.width))..];
    let top = rates.iter().copied().max().unwrap_or(0).max(class.allocation.0).max(1);
    let empty = usize::from(figure.width) - rates.len();
    let data = std::iter::repeat_n(None, empty).chain(rates.iter().copied().map(Some));
    sparkline(data, top, own, figure, buf);
    let label = |y, text: &str, buf: &mut Buffer| {
        let cell = Rect::new(
            figure.right() + 1,
            y,
            axis.saturating_sub(1).min(inner.right().saturating_sub(figure.right() + 1)),
            1,
        );
        put(text, ink.dim(), false, cell, buf);
    };
    label(figure.y, &format::rate(BitRate(top)), buf);
    label(figure.bottom().saturating_sub(1), "0", buf);
    let rest = Rect {
        x: figure.right() + axis + 1,
        width: inner.right().saturating_sub(figure.right() + axis + 1),
        ..inner
    };
    if rest.width >= 24 {
        details(state.direction, class, ink, rest, buf);
    }
}

fn held_back(class: &Class) -> String {
    match class.backpressured_ms {
        0 => "never held back".to_owned(),
        ms => format!("held back for {}", format::millis(ms)),
    }
}

fn details(direction: Direction, class: &Class, ink: Ink, area: Rect, buf: &mut Buffer) {
    let mut lines = vec![(explain::policy(&class.policy), ink.plain())];
    if let Some(why) = &class.not_enforced_because {
        lines.push((format!("! not enforced: {why}"), ink.bad()));
    }
    let traffic = match direction {
        Direction::Up => [
            format!("{}, {} drops", held_back(class), class.drops),
            format!(
                "sent {} in {} packets, {} did not cross the link",
                class.bytes, class.packets, class.local_bytes
            ),
        ],
        Direction::Down => [
            format!("{} drops", class.drops),
            format!("received {} in {} packets", class.bytes, class.packets),
        ],
    };
    lines.extend(traffic.map(|text| (text, ink.plain())));
    lines.extend([(
        format!(
            "{} from {} {} {}",
            class.handle.as_deref().unwrap_or("no handle"),
            class.source,
            class.group.as_deref().unwrap_or_default(),
            class.interfaces.join(" ")
        ),
        ink.dim(),
    )]);
    let wrapped = lines.iter().flat_map(|(text, style)| {
        wrap(text, usize::from(area.width)).into_iter().map(move |line| (line, *style))
    });
    for ((line, style), y) in wrapped.zip(area.top()..area.bottom()) {
        buf.set_stringn(area.x, y, line, usize::from(area.width), style);
    }
}

/// Draws a border with rounded corners and a title, and returns the room inside.
fn bordered(title: &Text<'_>, style: Style, area: Rect, buf: &mut Buffer) -> Rect {
    let Rect { x, y, width, height } = area;
    if width < 2 || height < 2 {
        return Rect { width: 0, height: 0, ..area };
    }
    let inner = Rect { x: x + 1, y: y + 1, width: width - 2, height: height - 2 };
    let set = border::ROUNDED;
    let line = |left: &str, middle: &str, right: &str| {
        format!("{left}{}{right}", middle.repeat(usize::from(inner.width)))
    };
    buf.set_string(x, y, line(set.top_left, set.horizontal_top, set.top_right), style);
    for row in inner.top()..inner.bottom() {
        buf.set_string(x, row, set.vertical_left, style);
        buf.set_string(area.right() - 1, row, set.vertical_right, style);
    }
    buf.set_string(
        x,
        area.bottom() - 1,
        line(set.bottom_left, set.horizontal_bottom, set.bottom_right),
        style,
    );
    buf.set_line(inner.x, y, title, inner.width);
    inner
}

/// Draws one bar per column, in eighths of a cell. `top` is as high as `area`.
fn sparkline(
    values: impl Iterator<Item = Option<u64>>,
    top: u64,
    style: Style,
    area: Rect,
    buf: &mut Buffer,
) {
    let bars = [
        " ",
        bar::ONE_EIGHTH,
        bar::ONE_QUARTER,
        bar::THREE_EIGHTHS,
        bar::HALF,
        bar::FIVE_EIGHTHS,
        bar::THREE_QUARTERS,
        bar::SEVEN_EIGHTHS,
        bar::FULL,
    ];
    for (x, value) in (area.left()..area.right()).zip(values) {
        let Some(value) = value else { continue };
        let eighths = u128::from(value.min(top)) * u128::from(area.height) * 8 / u128::from(top.max(1));
        let mut left = usize::try_from(eighths).unwrap_or(0);
        for y in (area.top()..area.bottom()).rev() {
            buf[(x, y)].set_symbol(bars[left.min(8)]).set_style(style);
            left = left.saturating_sub(8);
        }
    }
}

/// Draws the text of `weir explain` over the table.
pub(super) fn explanation(state: &State, ink: Ink, area: Rect, buf: &mut Buffer) {
    let text = match &state.explanation {
        None => "asking ...".to_owned(),
        Some(Err(why)) => why.clone(),
        Some(Ok(explanation)) => explain::text(explanation, Look { colour: false, terminal: false }),
    };
    let width = area.width.saturating_sub(4).min(100);
    let lines: Vec<String> =
        text.lines().flat_map(|line| wrap(line, usize::from(width.saturating_sub(4)))).collect();
    let height = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX).min(area.height.saturating_sub(2));
    let pane =
        Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    for position in pane.positions() {
        buf[position].reset();
    }
    let inner = bordered(&Text::from(" why "), ink.plain(), pane, buf);
    if pane.height > 1 {
        buf.set_stringn(pane.x + 1, pane.bottom() - 1, " Esc closes ", usize::from(inner.width), ink.plain());
    }
    let most = lines.len().saturating_sub(usize::from(inner.height));
    let shown = lines.iter().skip(usize::from(state.scroll).min(most));
    for (line, y) in shown.zip(inner.top()..inner.bottom()) {
        let style = if line.starts_with("! ") { ink.bad() } else { ink.plain() };
        buf.set_stringn(inner.x + 1, y, line, usize::from(inner.width.saturating_sub(2)), style);
    }
}

/// Breaks a line at spaces. Continued lines are indented below the first word, or below the text after
/// `1. `. Words longer than `width` stay whole, and the edge cuts them.
pub(super) fn wrap(line: &str, width: usize) -> Vec<String> {
    let text = line.trim_start_matches(' ');
    let indent = line.len() - text.len();
    let numbered = text.split_once(". ").filter(|(number, _)| number.bytes().all(|b| b.is_ascii_digit()));
    let hang = " ".repeat(indent + numbered.map_or(0, |(number, _)| number.len() + 2));
    let mut lines = Vec::new();
    let mut now = line[..indent].to_owned();
    let mut first = true;
    for word in text.split(' ') {
        if !first && Span::raw(&now).width() + 1 + Span::raw(word).width() > width {
            lines.push(std::mem::replace(&mut now, hang.clone()));
        } else if !first {
            now.push(' ');
        }
        now.push_str(word);
        first = false;
    }
    lines.push(now);
    lines
}
