//! Makes foreign text safe for a terminal.

use serde_json::Value;

/// The text without characters that a terminal interprets or hides.
///
/// Control characters, writing directions and characters without width become `?` or U+FFFD. Line
/// breaks and tabs become spaces. The result is never longer than the text, so a name of legal length
/// stays legal.
#[must_use]
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if matches!(c, '\n' | '\t') { ' ' } else { shown(c) }).collect()
}

/// Like [`plain()`], for a text of several lines.
#[must_use]
pub fn plain_lines(text: &str) -> String {
    text.chars().map(|c| if c == '\n' { c } else { shown(c) }).collect()
}

fn shown(c: char) -> char {
    let is_hidden = matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
        | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}');
    match c {
        _ if !c.is_control() && !is_hidden => c,
        _ if c.len_utf8() < 3 => '?',
        _ => '\u{fffd}',
    }
}

/// Applies [`plain()`] to each text of an answer.
pub(crate) fn plain_value(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(plain(&text)),
        Value::Array(values) => values.into_iter().map(plain_value).collect(),
        Value::Object(map) => {
            let pair = |(key, value): (String, Value)| match value {
                // The configuration's parser draws a picture of several lines.
                Value::String(text) if key == "config_error" => (key, plain_lines(&text).into()),
                value => (plain(&key), plain_value(value)),
            };
            map.into_iter().map(pair).collect()
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_text_has_nothing_left_that_a_terminal_obeys() {
        let hostile = "\u{1b}]0;pwned\u{7}\u{1b}[2J\u{9b}31m\nERROR forged\r\u{202e}gpj\u{200b}\u{7f}";
        let text = plain(hostile);
        assert!(text.len() <= hostile.len());
        assert_eq!(text, "?]0;pwned??[2J?31m ERROR forged?\u{fffd}gpj\u{fffd}?");
        assert_eq!(plain("gr\u{fc}n \u{65e5}\u{672c}"), "gr\u{fc}n \u{65e5}\u{672c}");
    }

    #[test]
    fn every_text_of_an_answer_is_made_plain() {
        let answer =
            serde_json::json!({"a\u{1b}": ["x\ny", {"b": "\u{202e}"}], "n": 3, "config_error": "1\n\u{1b}2"});
        let shown = serde_json::json!({"a?": ["x y", {"b": "\u{fffd}"}], "n": 3, "config_error": "1\n?2"});
        assert_eq!(plain_value(answer), shown);
    }
}
