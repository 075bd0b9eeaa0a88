/// An error and its causes, in one line. A cause that the line ends with already is not repeated.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let why = next.to_string();
        if !text.ends_with(&why) {
            text = format!("{text}: {why}");
        }
        cause = next.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cause_that_an_error_says_itself_is_said_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("{text}")]
        struct Of {
            text: &'static str,
            source: std::io::Error,
        }
        for (text, said) in [("broken pipe", "broken pipe"), ("cannot ask", "cannot ask: broken pipe")] {
            let source = std::io::ErrorKind::BrokenPipe.into();
            assert_eq!(chain(&Of { text, source }), said);
        }
    }
}
