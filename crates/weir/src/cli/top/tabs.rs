//! The tabs of `weir top` beside the classes. Each shows what other verbs print.

use ratatui_core::{
    buffer::Buffer,
    layout::Rect,
    style::Modifier,
    text::{Line as Text, Span},
};
use weir_api::Client;

use super::{ink::Ink, state::State, tab::Tab};
use crate::cli::{Look, Session, agree, cc, image};

/// The content of a tab: the text of its verbs.
///
/// # Errors
/// The reason of a missing answer, in words.
pub(super) fn page(tab: Tab, client: &Client) -> Result<String, String> {
    let mut text = Vec::new();
    let mut session = Session {
        client: client.clone(),
        socket: client.socket().unwrap_or(weir_api::DEFAULT_SOCKET.as_ref()).to_owned(),
        json: false,
        look: Look::PLAIN,
        out: &mut text,
        err: &mut std::io::sink(),
    };
    let printed = match tab {
        Tab::Classes => Ok(()),
        Tab::Agreements => agree::overview(&mut session),
        Tab::Images => image::overview(&mut session),
        Tab::Congestion => cc::overview(&mut session),
    };
    printed.map_err(|e| format!("{e:#}"))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Draws the names of the tabs, with the open one marked.
pub(super) fn names(open: Tab, ink: Ink, area: Rect, buf: &mut Buffer) {
    if area.height == 0 {
        return;
    }
    let mut spans = Vec::new();
    for (n, tab) in (1..).zip(Tab::ALL) {
        let style = if tab == open { ink.strong().add_modifier(Modifier::REVERSED) } else { ink.dim() };
        spans.extend([Span::styled(format!(" {n} {} ", tab.name()), style), Span::raw(" ")]);
    }
    buf.set_line(area.x, area.y, &Text::from(spans), area.width);
}

/// Draws the open tab's text from its first visible line on.
pub(super) fn content(state: &State, ink: Ink, area: Rect, buf: &mut Buffer) {
    let (text, is_good) = match &state.page {
        None => ("asking the agent ...", true),
        Some(Ok(text)) => (text.as_str(), true),
        Some(Err(why)) => (why.as_str(), false),
    };
    let lines: Vec<&str> = text.lines().collect();
    let last = lines.len().saturating_sub(usize::from(area.height));
    for (line, y) in lines.iter().skip(state.line.min(last)).zip(area.top()..area.bottom()) {
        let style = if is_good { ink.plain() } else { ink.warn() };
        buf.set_stringn(area.x, y, line, usize::from(area.width), style);
    }
    if state.silence.is_some() {
        buf.set_style(area, ink.dim());
    }
}
