//! One frame of `weir top`: a function of the state, the area and the colours.

use ratatui_core::{
    buffer::Buffer,
    layout::Rect,
    style::Modifier,
    text::{Line as Text, Span},
};
use weir_api::{Class, ClassKind, Status};
use weir_units::BitRate;

use super::{
    bar::{Part, class_bar, stacked_bar},
    columns::{self, Column},
    direction::Direction,
    ink::{Ink, class_style, put},
    panel::{explanation, panel},
    state::{Line, Mode, State, id},
    tab::Tab,
    tabs,
};
use crate::cli::format;

/// The smallest and the largest number of lines of the panel at the bottom, with borders.
const PANEL: (u16, u16) = (7, 14);

/// Draws the whole frame into `area`.
pub(super) fn frame(state: &State, ink: Ink, area: Rect, buf: &mut Buffer) {
    if area.width < 20 || area.height < 4 {
        return put("too small", ink.plain(), false, area, buf);
    }
    let mut room = area;
    let footer_row = take_bottom(&mut room, 1);
    head(state, ink, &mut room, buf);
    tabs::names(state.tab, ink, take_top(&mut room, u16::from(area.height > 16)), buf);
    if state.tab != Tab::Classes {
        tabs::content(state, ink, room, buf);
        return footer(state, ink, footer_row, buf);
    }
    let lines = u16::try_from(state.lines().len()).unwrap_or(u16::MAX);
    let panel_row = match room.height {
        height if height < PANEL.0 + 6 => Rect::ZERO,
        height => {
            take_bottom(&mut room, height.saturating_sub(lines.saturating_add(2)).clamp(PANEL.0, PANEL.1))
        }
    };
    table(state, state.selected().map(id), ink, room, buf);
    if let Some(class) = state.selected()
        && panel_row.height > 0
    {
        panel(state, class, ink, panel_row, buf);
    }
    footer(state, ink, footer_row, buf);
    if state.mode == Mode::Explain {
        explanation(state, ink, area, buf);
    }
}

/// The frame as text, without empty lines at its end.
pub(super) fn as_text(state: &State, width: u16) -> String {
    // Title, link, one line per warning, a gap, heading, classes.
    let warnings = state.status.as_ref().map_or(0, |status| status.warnings.len() + 1);
    let height =
        u16::try_from(state.lines().len() + warnings + 6).unwrap_or(u16::MAX).min(u16::MAX / width.max(1));
    let area = Rect::new(0, 0, width, height);
    let mut buf = Buffer::empty(area);
    let ink = Ink { colour: false };
    let mut room = area;
    head(state, ink, &mut room, &mut buf);
    take_top(&mut room, 1);
    table(state, None, ink, room, &mut buf);
    let mut text = String::new();
    for y in 0..height {
        let line: String = (0..width).map(|x| buf[(x, y)].symbol()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text.trim_end().to_owned() + "\n"
}

fn take_top(room: &mut Rect, height: u16) -> Rect {
    let height = height.min(room.height);
    let top = Rect { height, ..*room };
    *room = Rect { y: room.y + height, height: room.height - height, ..*room };
    top
}

fn take_bottom(room: &mut Rect, height: u16) -> Rect {
    let height = height.min(room.height);
    room.height -= height;
    Rect { y: room.y + room.height, height, ..*room }
}

/// Draws the part above the table.
fn head(state: &State, ink: Ink, room: &mut Rect, buf: &mut Buffer) {
    title(state, ink, take_top(room, 1), buf);
    if let Some(status) = &state.status {
        link(state, status, ink, take_top(room, 2), buf);
    }
    banners(state, ink, room, buf);
}

/// Draws one text at the left and one at the right of a line. The left one takes precedence.
fn two_sided(left: Text<'_>, right: Text<'_>, area: Rect, buf: &mut Buffer) {
    if area.height == 0 {
        return;
    }
    let (left_width, right_width) = (left.width(), right.width());
    if left_width + 2 + right_width <= usize::from(area.width) {
        let x = area.right() - u16::try_from(right_width).unwrap_or(0);
        buf.set_line(x, area.y, &right, area.width);
    }
    buf.set_line(area.x, area.y, &left, area.width);
}

fn title(state: &State, ink: Ink, area: Rect, buf: &mut Buffer) {
    let mut left = vec![Span::styled(" weir ", ink.strong().add_modifier(Modifier::REVERSED))];
    let Some(status) = &state.status else {
        left.push(Span::raw(format!("  asking the agent at {} ...", state.socket)));
        return two_sided(Text::from(left), Text::default(), area, buf);
    };
    left.push(Span::styled(format!("  {} {}", status.link, status.capacity), ink.strong()));
    if state.direction == Direction::Down {
        left.push(Span::styled("  download", ink.strong()));
    }
    left.push(Span::styled(
        format!("  {} · {} · {}", status.engine, status.allocator, status.attach),
        ink.dim(),
    ));
    let mut right = vec![Span::raw(format!(
        "{} of {} active · up {}",
        status.active,
        status.classes,
        format::seconds(status.uptime_s)
    ))];
    if state.paused {
        right.insert(0, Span::styled(" PAUSED ", ink.warn().add_modifier(Modifier::REVERSED)));
        right.insert(1, Span::raw("  "));
    }
    two_sided(Text::from(left), Text::from(right), area, buf);
}

/// Draws the load of the link: a bar with one colour per class, and the numbers.
fn link(state: &State, status: &Status, ink: Ink, area: Rect, buf: &mut Buffer) {
    let lines = state.lines();
    // A group is left out, because its members are shown.
    let senders: Vec<&Class> =
        lines.iter().map(|line| line.class).filter(|c| c.kind != ClassKind::Group).collect();
    if area.height > 0 {
        let bar = stacked_bar(area.width, status.capacity, senders.iter().map(|class| class.rate));
        for (x, part) in (area.x..).zip(bar) {
            let (symbol, style) = match part {
                // Neighbours differ without colours too.
                Some(index) => (
                    if ink.colour || index % 2 == 0 { "█" } else { "▓" },
                    class_style(state, senders[index], ink),
                ),
                None => ("░", ink.dim()),
            };
            buf.set_string(x, area.y, symbol, style);
        }
    }
    let left = Text::from(vec![
        Span::styled(format!("{} {}", state.direction.verb(), format::rate(status.rate)), ink.strong()),
        Span::raw(format!(" of {}, {}", status.capacity, format::percent(status.rate, status.capacity))),
    ]);
    let promised = format!("promised {} of {}", status.reserved, status.reservable);
    let repairs = match status.repairs {
        0 => String::new(),
        1 => " · 1 repair".to_owned(),
        repairs => format!(" · {repairs} repairs"),
    };
    let numbers = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
    two_sided(left, Text::styled(promised + &repairs, ink.dim()), numbers, buf);
}

/// Draws the faults, one line each.
fn banners(state: &State, ink: Ink, room: &mut Rect, buf: &mut Buffer) {
    let mut lines = Vec::new();
    if let Some((why, tries)) = &state.silence {
        lines.push((format!(" agent unreachable, retrying ({tries}): {why} "), ink.banner()));
    }
    if let Some(status) = &state.status {
        if let Some(error) = &status.config_error {
            lines.push((
                format!("! {} was refused, the old one is in force: {error}", status.config),
                ink.bad(),
            ));
        }
        lines.extend(status.warnings.iter().map(|warning| (format!("! {warning}"), ink.warn())));
    }
    // The warnings take at most a quarter of the room, and the table gets the rest.
    let most = usize::from(room.height / 4).max(1);
    for (text, style) in lines.into_iter().take(most) {
        let row = take_top(room, 1);
        if row.height > 0 {
            buf.set_stringn(row.x, row.y, text, usize::from(row.width), style);
        }
    }
}

/// Draws the classes. The selected one has a mark and is always visible.
fn table(state: &State, selected: Option<String>, ink: Ink, area: Rect, buf: &mut Buffer) {
    if area.height == 0 || state.status.is_none() {
        return;
    }
    let lines = state.lines();
    let columns = columns::fit(&lines, area.width, state.direction);
    let capacity = state.status.as_ref().map_or(BitRate::ZERO, |status| status.capacity);
    for (column, x, width) in &columns {
        let (x, y) = (area.x + x, area.y);
        if *column == Column::Bar {
            scale(capacity, ink, Rect::new(x, y, *width, 1), buf);
        } else {
            put(
                column.heading(state.direction),
                ink.strong(),
                column.to_the_right(),
                Rect::new(x, y, *width, 1),
                buf,
            );
        }
    }
    let chosen = lines.iter().position(|line| selected.as_ref() == Some(&id(line.class))).unwrap_or(0);
    let rows = usize::from(area.height - 1);
    let first = (chosen + 1).saturating_sub(rows);
    for (line, y) in lines.iter().skip(first).take(rows).zip(area.y + 1..) {
        let row = Rect { y, height: 1, ..area };
        let is_chosen = selected.as_ref() == Some(&id(line.class));
        if is_chosen {
            buf.set_string(row.x, y, "▶", ink.strong());
        }
        for (column, x, width) in &columns {
            let cell = Rect::new(area.x + x, y, *width, 1);
            if *column == Column::Bar {
                rate_bar(state, line, capacity, ink, cell, buf);
                continue;
            }
            let (text, mut style) = column.cell(line, ink);
            if *column == Column::Name {
                style = style.patch(class_style(state, line.class, ink));
            }
            if is_chosen {
                style = style.add_modifier(Modifier::BOLD).remove_modifier(Modifier::DIM);
            }
            put(&text, style, column.to_the_right(), cell, buf);
        }
        if state.silence.is_some() {
            buf.set_style(row, ink.dim());
        }
    }
    if lines.is_empty() && rows > 0 {
        let text = if state.filter.is_empty() { "no classes" } else { "no class matches the filter" };
        buf.set_string(area.x + 2, area.y + 1, text, ink.dim());
    }
}

/// Draws the heading of the bars: the rates at their ends.
fn scale(capacity: BitRate, ink: Ink, cell: Rect, buf: &mut Buffer) {
    put("0", ink.dim(), false, cell, buf);
    let (half, full) = (format::rate(BitRate(capacity.0 / 2)), format::rate(capacity));
    if usize::from(cell.width) > half.len() + full.len() * 2 + 4 {
        put(&half, ink.dim(), true, Rect { width: cell.width / 2, ..cell }, buf);
        buf.set_string(cell.x + cell.width / 2, cell.y, "│", ink.dim());
    }
    if usize::from(cell.width) > full.len() + 2 {
        put(&full, ink.dim(), true, cell, buf);
    }
}

fn rate_bar(state: &State, line: &Line<'_>, capacity: BitRate, ink: Ink, cell: Rect, buf: &mut Buffer) {
    const EIGHTHS: [&str; 9] = [" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"];
    let class = line.class;
    let bar =
        class_bar(cell.width, capacity, class.rate, class.allocation, class.policy.min, class.policy.max);
    let own = class_style(state, class, ink);
    for (x, part) in (cell.x..).zip(bar) {
        let (symbol, style) = match part {
            Part::Sending(eighths) => (EIGHTHS[usize::from(eighths.min(8))], own),
            Part::Allowed => ("░", own.add_modifier(Modifier::DIM)),
            Part::Floor => ("[", ink.strong()),
            Part::Ceiling => ("]", ink.strong()),
            Part::Empty => ("·", ink.dim()),
        };
        buf.set_string(x, cell.y, symbol, style);
    }
}

fn footer(state: &State, ink: Ink, area: Rect, buf: &mut Buffer) {
    let left = match (&state.mode, &state.note) {
        (Mode::Filter, _) => Text::from(format!("filter: {}▏  Enter keeps it, Esc drops it", state.filter)),
        (_, Some(note)) => Text::styled(note.text.clone(), if note.bad { ink.bad() } else { ink.strong() }),
        _ => {
            let mut spans = Vec::new();
            let sort = format!("sort: {}", state.sort.name());
            let filter = if state.filter.is_empty() {
                "filter".to_owned()
            } else {
                format!("filter: {}", state.filter)
            };
            let pause = ("p", if state.paused { "go on" } else { "pause" });
            let several = state.status.as_ref().is_some_and(|status| !status.other_links.is_empty());
            let mut keys = match state.tab {
                Tab::Classes => vec![
                    ("q", "quit"),
                    ("s", &sort),
                    ("/", &filter),
                    ("↑↓", "select"),
                    ("+-", "weight"),
                    ("e", "explain"),
                    ("d", state.direction.other().name()),
                    pause,
                ],
                _ => vec![("q", "quit"), ("1-4", "tabs"), ("↑↓", "scroll"), pause],
            };
            if several && state.tab == Tab::Classes {
                keys.push(("l", "next link"));
            }
            for (key, does) in keys {
                spans.push(Span::raw(if spans.is_empty() { "" } else { "   " }));
                spans.push(Span::styled(key.to_owned(), ink.strong()));
                spans.push(Span::raw(format!(" {does}")));
            }
            Text::from(spans)
        }
    };
    let legend = match state.tab {
        Tab::Classes => format!("█ {} ░ allowed [ min ] max", state.direction.verb()),
        _ => String::new(),
    };
    let legend = Text::styled(legend, ink.dim());
    two_sided(left, legend, area, buf);
}
