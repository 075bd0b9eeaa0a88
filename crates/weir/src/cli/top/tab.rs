//! The names of the tabs, and the keys that open them.

use crossterm::event::KeyCode;

/// A page of the full screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tab {
    Classes,
    Agreements,
    Images,
    Congestion,
}

impl Tab {
    pub(super) const ALL: [Tab; 4] = [Tab::Classes, Tab::Agreements, Tab::Images, Tab::Congestion];

    pub(super) fn name(self) -> &'static str {
        match self {
            Tab::Classes => "classes",
            Tab::Agreements => "agreements",
            Tab::Images => "images",
            Tab::Congestion => "congestion control",
        }
    }

    /// The tab that a key opens.
    pub(super) fn opened(self, key: KeyCode) -> Option<Tab> {
        let (place, count) = (self as usize, Tab::ALL.len());
        match key {
            KeyCode::Tab | KeyCode::Right => Some(Tab::ALL[(place + 1) % count]),
            KeyCode::BackTab | KeyCode::Left => Some(Tab::ALL[(place + count - 1) % count]),
            KeyCode::Char(digit) => {
                let number = usize::try_from(digit.to_digit(10)?).ok()?;
                Tab::ALL.get(number.checked_sub(1)?).copied()
            }
            _ => None,
        }
    }
}
