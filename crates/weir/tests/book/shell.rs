//! The simple commands of a shell script, as far as documents need them.

/// The words of each simple command, without assignments, redirections, comments and `sudo`. Here-documents
/// are left out.
pub(crate) fn commands(script: &str) -> Vec<Vec<String>> {
    let mut reader = Reader::default();
    let mut letters = script.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => match letters.next() {
                Some('\n') | None => {}
                Some(next) => reader.push(next),
            },
            '\'' => {
                reader.word.get_or_insert_default();
                letters.by_ref().take_while(|c| *c != '\'').for_each(|c| reader.push(c));
            }
            '"' => {
                reader.word.get_or_insert_default();
                while let Some(next) = letters.next().filter(|c| *c != '"') {
                    let escaped = if next == '\\' { letters.next() } else { Some(next) };
                    escaped.into_iter().for_each(|c| reader.push(c));
                }
            }
            '$' if letters.peek() == Some(&'(') => {
                letters.by_ref().take_while(|c| *c != ')').for_each(drop);
                reader.push('$');
            }
            '#' if reader.word.is_none() => while letters.next_if(|c| *c != '\n').is_some() {},
            '>' | '<' => {
                // The number of a descriptor is no word.
                if reader.word.as_ref().is_some_and(|word| word.chars().all(|c| c.is_ascii_digit())) {
                    reader.word = None;
                }
                reader.end_word();
                let mut arrow = String::from(letter);
                while let Some(next) = letters.next_if(|c| ['>', '<', '&', '-'].contains(c)) {
                    arrow.push(next);
                }
                reader.redirection = Some(arrow);
            }
            '\n' => {
                reader.end_command();
                if let Some(end) = reader.here.take() {
                    let mut line = String::new();
                    for next in letters.by_ref() {
                        if next != '\n' {
                            line.push(next);
                        } else if std::mem::take(&mut line).trim() == end {
                            break;
                        }
                    }
                }
            }
            ';' | '|' | '&' | '(' | ')' => reader.end_command(),
            letter if letter.is_whitespace() => reader.end_word(),
            letter => reader.push(letter),
        }
    }
    reader.end_command();
    reader.commands
}

#[derive(Default)]
struct Reader {
    commands: Vec<Vec<String>>,
    words: Vec<String>,
    word: Option<String>,
    /// The arrow whose file is the next word.
    redirection: Option<String>,
    /// The end of a here-document that begins on the next line.
    here: Option<String>,
}

impl Reader {
    fn push(&mut self, letter: char) {
        self.word.get_or_insert_default().push(letter);
    }

    fn end_word(&mut self) {
        let Some(word) = self.word.take() else { return };
        match self.redirection.take() {
            Some(arrow) if arrow.starts_with("<<") => self.here = Some(word),
            Some(_) => {}
            None => self.words.push(word),
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        self.redirection = None;
        let is_assignment =
            |word: &String| word.split_once('=').is_some_and(|(name, _)| is_name(name)) || word == "sudo";
        let words: Vec<String> =
            std::mem::take(&mut self.words).into_iter().skip_while(is_assignment).collect();
        if !words.is_empty() {
            self.commands.push(words);
        }
    }
}

fn is_name(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[test]
fn commands_are_told_apart_as_a_shell_does() {
    let words = |script: &str| -> Vec<String> { commands(script).iter().map(|c| c.join("|")).collect() };
    assert_eq!(words("A=1 sudo weir set web 'min=1 mbit' # why\n"), ["weir|set|web|min=1 mbit"]);
    assert_eq!(
        words("weir ps --json | jq '.[] | .name' > a 2>&1; ls"),
        ["weir|ps|--json", "jq|.[] | .name", "ls"]
    );
    assert_eq!(words("weir set web \\\n  weight=2 && ls \"a\\\"b\""), ["weir|set|web|weight=2", "ls|a\"b"]);
    assert_eq!(words("cat > f <<'EOF'\nweir no\nEOF\nweir ps"), ["cat", "weir|ps"]);
    assert_eq!(words("ln -s \"$(command -v weir)\" /opt"), ["ln|-s|$(command -v weir)|/opt"]);
}
