/// Names of Rust's types in errors of `serde`, and the values that they hold.
const TYPES: [(&str, &str); 14] = [
    ("u8", "a whole number from 0 to 255"),
    ("u16", "a whole number from 0 to 65535"),
    ("u32", "a whole number from 0 to 4294967295"),
    ("u64", "a whole number from 0"),
    ("usize", "a whole number from 0"),
    ("i8", "a whole number from -128 to 127"),
    ("i16", "a whole number from -32768 to 32767"),
    ("i32", "a whole number from -2147483648 to 2147483647"),
    ("i64", "a whole number"),
    ("f32", "a number"),
    ("f64", "a number"),
    ("a boolean", "true or false"),
    ("a string", "a text"),
    ("a sequence", "a list"),
];

/// Other words of `serde` and of the standard library.
const OTHERS: [(&str, &str); 8] = [
    ("invalid type: sequence", "invalid type: list"),
    ("invalid type: map", "invalid type: table"),
    ("unknown variant", "unknown value"),
    ("invalid digit found in string", "it is no whole number from 0"),
    ("cannot parse integer from empty string", "a whole number is missing"),
    ("number too large to fit in target type", "the number is too large"),
    ("number too small to fit in target type", "the number is too small"),
    ("invalid float literal", "it is no number"),
];

/// An error of `serde` in which the wanted value is told in words: `expected u32` becomes `expected a whole number from 0 to
/// 4294967295`, and `expected struct Link` becomes `expected a table of keys`.
#[must_use]
pub fn plain_words(error: &str) -> String {
    const EXPECTED: &str = "expected ";
    let error = OTHERS.iter().fold(error.to_owned(), |error, (raw, words)| error.replace(raw, words));
    let mut parts = error.split(EXPECTED);
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain += EXPECTED;
        let ends = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        let known = TYPES.iter().find_map(|(name, words)| Some((part.strip_prefix(name)?, words)));
        let known = known.filter(|(rest, _)| ends(rest));
        let named =
            ["struct ", "internally tagged enum ", "a map"].iter().find_map(|kind| part.strip_prefix(kind));
        match (known, named) {
            (Some((rest, words)), _) => plain += &format!("{words}{rest}"),
            (None, Some(rest)) => {
                let name = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
                plain += &format!("a table of keys{}", &rest[name..]);
            }
            (None, None) => plain += part,
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wanted_value_is_told_in_words_and_all_else_stays() {
        for (error, plain) in [
            (
                "invalid value: integer `-5`, expected u32",
                "invalid value: integer `-5`, expected a whole number from 0 to 4294967295",
            ),
            (
                "invalid type: boolean `true`, expected f64 at line 1",
                "invalid type: boolean `true`, expected a number at line 1",
            ),
            (
                "invalid type: integer `1`, expected struct Link\n",
                "invalid type: integer `1`, expected a table of keys\n",
            ),
            ("invalid type: map, expected a sequence", "invalid type: table, expected a list"),
            (
                "unknown field `x`, expected one of `u8x`, `to`",
                "unknown field `x`, expected one of `u8x`, `to`",
            ),
            ("expected u8x", "expected u8x"),
            ("limit: invalid digit found in string", "limit: it is no whole number from 0"),
            ("a rate is not negative", "a rate is not negative"),
        ] {
            assert_eq!(plain_words(error), plain);
        }
    }
}
