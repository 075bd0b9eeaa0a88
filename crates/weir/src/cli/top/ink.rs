//! Styles, and text in cells.

use ratatui_core::{
    buffer::Buffer,
    layout::Rect,
    style::{Color, Modifier, Style},
    text::Span,
};
use weir_api::{Class, ClassKind};

use super::state::{State, id};

/// The colours of classes. All are readable on black and on white.
const PALETTE: [Color; 12] = [
    Color::Indexed(37),
    Color::Indexed(172),
    Color::Indexed(99),
    Color::Indexed(71),
    Color::Indexed(169),
    Color::Indexed(39),
    Color::Indexed(143),
    Color::Indexed(167),
    Color::Indexed(73),
    Color::Indexed(137),
    Color::Indexed(140),
    Color::Indexed(107),
];

/// The colour of weir's own classes: host, default, control.
const OWN: Color = Color::Indexed(245);

/// Styles, with or without colours.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ink {
    pub(super) colour: bool,
}

impl Ink {
    pub(super) fn plain(self) -> Style {
        Style::new()
    }

    pub(super) fn dim(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    pub(super) fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(super) fn warn(self) -> Style {
        self.paint(Color::Yellow)
    }

    pub(super) fn bad(self) -> Style {
        self.paint(Color::Red).add_modifier(Modifier::BOLD)
    }

    pub(super) fn banner(self) -> Style {
        self.paint(Color::Red).add_modifier(Modifier::REVERSED)
    }

    pub(super) fn paint(self, colour: Color) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }
}

pub(super) fn class_style(state: &State, class: &Class, ink: Ink) -> Style {
    match class.kind {
        ClassKind::Host | ClassKind::Default | ClassKind::Control => ink.paint(OWN),
        ClassKind::Group => ink.plain(),
        _ => ink.paint(PALETTE[state.colours.get(&id(class)).copied().unwrap_or(0) % PALETTE.len()]),
    }
}

/// Draws text into its cell, and cuts it with `…` if it is too long.
pub(super) fn put(text: &str, style: Style, to_the_right: bool, cell: Rect, buf: &mut Buffer) {
    if cell.is_empty() {
        return;
    }
    let (length, room) = (Span::raw(text).width(), usize::from(cell.width));
    if length <= room {
        let indent = if to_the_right { cell.width - u16::try_from(length).unwrap_or(cell.width) } else { 0 };
        buf.set_stringn(cell.x + indent, cell.y, text, room, style);
    } else {
        buf.set_stringn(cell.x, cell.y, text, room - 1, style);
        buf.set_stringn(cell.right() - 1, cell.y, "…", 1, style);
    }
}
