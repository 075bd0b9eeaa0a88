//! Weir's part of a text file: blocks between two marker lines.

const BEGIN: &str = "# weir image setup: begin";
const END: &str = "# weir image setup: end";

/// Lines between the markers, which end with a line's end.
pub(super) fn block(lines: &str) -> String {
    format!("{BEGIN}\n{lines}{END}\n")
}

/// A text with a block behind it.
pub(super) fn append(text: &str, lines: &str) -> String {
    let gap = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    format!("{text}{gap}{}", block(lines))
}

/// A text without its blocks, and the blocks.
///
/// # Errors
/// The marker that has no partner.
pub(super) fn split(text: &str) -> Result<(String, Vec<String>), String> {
    let (mut rest, mut blocks, mut inside) = (String::new(), Vec::new(), None::<String>);
    for line in text.split_inclusive('\n') {
        match (line.trim(), &mut inside) {
            (BEGIN, None) => inside = Some(line.to_owned()),
            (BEGIN, Some(_)) => return Err(format!("`{END}` is missing")),
            (END, None) => return Err(format!("`{BEGIN}` is missing")),
            (END, Some(block)) => {
                block.push_str(line);
                blocks.extend(inside.take());
            }
            (_, Some(block)) => block.push_str(line),
            (_, None) => rest.push_str(line),
        }
    }
    if inside.is_some() { Err(format!("`{END}` is missing")) } else { Ok((rest, blocks)) }
}

/// A text that was changed since weir wrote `after`, without weir's blocks.
///
/// # Errors
/// The lines of weir that are no longer as weir wrote them.
pub(super) fn take(now: &str, after: &str) -> Result<String, String> {
    let (rest, blocks) = split(now)?;
    let (_, written) = split(after)?;
    match blocks.iter().find(|block| !written.iter().any(|own| own.trim_end() == block.trim_end())) {
        None => Ok(rest),
        Some(altered) => Err(format!("the lines of weir were altered, and are now\n{altered}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_go_and_all_other_text_stays() {
        let text = format!("a = 1\n{}b = 2\n{}", block("x\n"), block("y\n"));
        assert_eq!(split(&text).unwrap(), ("a = 1\nb = 2\n".to_owned(), vec![block("x\n"), block("y\n")]));
        assert_eq!(take(&text, &text).unwrap(), "a = 1\nb = 2\n");
        assert_eq!(append("a", "x\n"), format!("a\n{}", block("x\n")));
        // The operator took one block out, and the end of the last line.
        let fewer = format!("{}c", block("y\n"));
        assert_eq!(take(&fewer, &text).unwrap(), "c");
        assert_eq!(take(block("y\n").trim_end(), &text).unwrap(), "");
    }

    #[test]
    fn altered_blocks_and_lone_markers_are_refused() {
        let text = block("x\n");
        let altered = take(&block("z\n"), &text).unwrap_err();
        assert!(altered.contains("were altered") && altered.contains("\nz\n"), "{altered}");
        for (lone, missing) in [
            (format!("{BEGIN}\nx\n"), END),
            (format!("x\n{END}\n"), BEGIN),
            (format!("{BEGIN}\n{text}"), END),
        ] {
            assert_eq!(take(&lone, &text).unwrap_err(), format!("`{missing}` is missing"));
        }
    }
}
