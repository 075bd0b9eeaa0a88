//! The terminal as a screen of cells: taking it, drawing on it, restoring it.
//!
//! `ratatui-core` compares two frames and asks for the cells that differ. [`Crossterm`] writes them.

use std::{
    io::{self, Stdout, Write, stdout},
    panic,
};

use crossterm::{
    cursor::{self, Hide, MoveTo, Show},
    execute, queue,
    style::{Attribute, Color as TerminalColour, Print, SetAttribute, SetForegroundColor},
    terminal::{self, Clear, EnterAlternateScreen, LeaveAlternateScreen},
};
use ratatui_core::{
    backend::{Backend, ClearType, WindowSize},
    buffer::Cell,
    layout::{Position, Size},
    style::{Color, Modifier, Style},
    terminal::Terminal,
};

pub(super) type Screen = Terminal<Crossterm<Stdout>>;

/// Takes the terminal: raw mode and the alternate screen. A panic restores it before its message.
pub(super) fn take() -> io::Result<Screen> {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        restore();
        hook(panic);
    }));
    terminal::enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen)?;
    Terminal::new(Crossterm(stdout()))
}

/// Restores the terminal. It does as much as still works, because the terminal may be gone.
pub(super) fn restore() {
    let _ = terminal::disable_raw_mode();
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
}

/// Writes cells as the escape sequences of a terminal.
///
/// It knows the styles of [`super::ink`]: a colour of the text, bold, dim and reversed.
pub(super) struct Crossterm<W>(pub(super) W);

impl<W: Write> Crossterm<W> {
    fn set_style(&mut self, style: Style) -> io::Result<()> {
        queue!(self.0, SetAttribute(Attribute::Reset))?;
        for (modifier, attribute) in [
            (Modifier::BOLD, Attribute::Bold),
            (Modifier::DIM, Attribute::Dim),
            (Modifier::REVERSED, Attribute::Reverse),
        ] {
            if style.add_modifier.contains(modifier) {
                queue!(self.0, SetAttribute(attribute))?;
            }
        }
        match style.fg {
            Some(Color::Indexed(index)) => {
                queue!(self.0, SetForegroundColor(TerminalColour::AnsiValue(index)))
            }
            Some(Color::Red) => queue!(self.0, SetForegroundColor(TerminalColour::DarkRed)),
            Some(Color::Yellow) => queue!(self.0, SetForegroundColor(TerminalColour::DarkYellow)),
            _ => Ok(()),
        }
    }
}

impl<W: Write> Backend for Crossterm<W> {
    type Error = io::Error;

    fn draw<'a, I>(&mut self, cells: I) -> io::Result<()>
    where
        I: Iterator<Item = (u16, u16, &'a Cell)>,
    {
        let (mut style, mut next) = (None, None);
        for (x, y, cell) in cells {
            if next != Some((x, y)) {
                queue!(self.0, MoveTo(x, y))?;
            }
            // After a wide character the next cell is not at x + 1, and the cursor is moved.
            next = Some((x + 1, y));
            if style != Some(cell.style()) {
                self.set_style(cell.style())?;
                style = Some(cell.style());
            }
            queue!(self.0, Print(cell.symbol()))?;
        }
        queue!(self.0, SetAttribute(Attribute::Reset))
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        execute!(self.0, Hide)
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        execute!(self.0, Show)
    }

    fn get_cursor_position(&mut self) -> io::Result<Position> {
        cursor::position().map(|(x, y)| Position { x, y })
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        let Position { x, y } = position.into();
        execute!(self.0, MoveTo(x, y))
    }

    fn clear(&mut self) -> io::Result<()> {
        self.clear_region(ClearType::All)
    }

    fn clear_region(&mut self, region: ClearType) -> io::Result<()> {
        execute!(
            self.0,
            Clear(match region {
                ClearType::All => terminal::ClearType::All,
                ClearType::AfterCursor => terminal::ClearType::FromCursorDown,
                ClearType::BeforeCursor => terminal::ClearType::FromCursorUp,
                ClearType::CurrentLine => terminal::ClearType::CurrentLine,
                ClearType::UntilNewLine => terminal::ClearType::UntilNewLine,
            })
        )
    }

    fn size(&self) -> io::Result<Size> {
        terminal::size().map(|(width, height)| Size { width, height })
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        let size = terminal::window_size()?;
        Ok(WindowSize {
            columns_rows: Size { width: size.columns, height: size.rows },
            pixels: Size { width: size.width, height: size.height },
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use ratatui_core::{buffer::Buffer, layout::Rect};

    use super::*;
    use crate::cli::top::ink::Ink;

    /// The bytes for a frame of 20 by 1 cells that `draw` fills.
    fn bytes(draw: impl FnOnce(&mut Buffer)) -> String {
        let area = Rect::new(0, 0, 20, 1);
        let mut buffer = Buffer::empty(area);
        draw(&mut buffer);
        let mut terminal = Crossterm(Vec::new());
        terminal.draw(Buffer::empty(area).diff(&buffer).into_iter()).unwrap();
        String::from_utf8(terminal.0).unwrap()
    }

    #[test]
    fn neighbours_of_one_style_need_one_move_and_one_style() {
        let ink = Ink { colour: true };
        let frame = bytes(|buffer| buffer.set_string(3, 0, "weir", ink.strong()));
        assert_eq!(frame, "\x1b[1;4H\x1b[0m\x1b[1mweir\x1b[0m");
    }

    #[test]
    fn a_gap_needs_a_second_move() {
        let frame = bytes(|buffer| {
            buffer.set_string(0, 0, "a", Style::new());
            buffer.set_string(5, 0, "b", Style::new());
        });
        assert_eq!(frame, "\x1b[1;1H\x1b[0ma\x1b[1;6Hb\x1b[0m");
    }

    #[test]
    fn the_cell_after_a_wide_character_has_its_place() {
        let frame = bytes(|buffer| buffer.set_string(0, 0, "水x", Style::new()));
        assert_eq!(frame, "\x1b[1;1H\x1b[0m水\x1b[1;3Hx\x1b[0m");
    }

    #[test]
    fn each_style_of_a_frame_reaches_the_terminal() {
        let ink = Ink { colour: true };
        let codes = |style| {
            let frame = bytes(|buffer| buffer.set_string(0, 0, "x", style));
            frame.strip_prefix("\x1b[1;1H\x1b[0m").unwrap().strip_suffix("x\x1b[0m").unwrap().to_owned()
        };
        assert_eq!(codes(ink.plain()), "");
        assert_eq!(codes(ink.dim()), "\x1b[2m");
        assert_eq!(codes(ink.warn()), "\x1b[38;5;3m");
        assert_eq!(codes(ink.bad()), "\x1b[1m\x1b[38;5;1m");
        assert_eq!(codes(ink.banner()), "\x1b[7m\x1b[38;5;1m");
        assert_eq!(codes(ink.paint(Color::Indexed(172))), "\x1b[38;5;172m");
        assert_eq!(codes(Ink { colour: false }.banner()), "\x1b[7m");
    }
}
