//! The keys of a configuration whose values are secrets, and lines without them.

use weir_units::without_users;

/// Whether the value of a key is a secret. A key that ends in `_file` names a file.
#[must_use]
pub fn is_secret(key: &str) -> bool {
    let key = key.trim_matches(['"', '\'']).to_lowercase();
    let words = ["password", "passphrase", "secret", "token", "credential", "username", "auth"];
    !key.ends_with("_file") && words.iter().any(|word| key.contains(word))
}

/// Whether the value of a key is an address, which may have a user and a password.
#[must_use]
pub fn is_address(key: &str) -> bool {
    let key = key.trim_matches(['"', '\'']).to_lowercase();
    !key.ends_with("_file") && ["proxy", "redis", "url", "server"].iter().any(|word| key.contains(word))
}

/// A line of a configuration in which `mark` stands for each secret. Nothing after a secret is kept, because the end
/// of a faulty value is not known.
#[must_use]
pub fn without_secrets(line: &str, mark: &str) -> String {
    for (at, _) in line.match_indices('=') {
        let (before, value) = (&line[..at], &line[at + 1..]);
        let bare = value.trim_start();
        if is_secret(key_of(before)) && !bare.is_empty() {
            return without_users(&format!("{before}= \"{mark}\""), mark);
        }
        if is_address(key_of(before)) && bare.contains(['@', '?']) {
            return format!("{before}= {}", without_address(bare, mark));
        }
    }
    without_users(line, mark)
}

/// The end of a line from the value of an address on.
fn without_address(value: &str, mark: &str) -> String {
    let (user, place) = value.split_at(value.rfind('@').unwrap_or(0));
    let begin =
        user.find("://").map_or(user.len() - user.trim_start_matches(['"', '\'', ' ']).len(), |at| at + 3);
    let place = match place.split_once('?').or_else(|| value.split_once('?').filter(|_| user.is_empty())) {
        Some((place, _)) => format!("{place}?{mark}"),
        None => without_secrets(place, mark),
    };
    format!("{}{}{place}", &user[..begin], if user.is_empty() { "" } else { mark })
}

/// The last key before an equals sign.
fn key_of(before: &str) -> &str {
    let before = before.trim_end().trim_end_matches(['"', '\'']);
    let begin = before.rfind(|c: char| !(c.is_ascii_alphanumeric() || "_-".contains(c)));
    begin.map_or(before, |at| &before[at + before[at..].chars().next().map_or(0, char::len_utf8)..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_has_no_part_of_a_secret_and_keeps_its_key() {
        for (line, shown) in [
            ("# password = \"a\\\"b@c\" # old", "# password = \"*\""),
            ("  | 3 | token= 'x'", "  | 3 | token= \"*\""),
            (
                "proxy = \"http://u:a/b#c@p.example:3128\" # ours",
                "proxy = \"http://*@p.example:3128\" # ours",
            ),
            ("proxy = \"u:p@p.example:3128\"", "proxy = \"*@p.example:3128\""),
            ("redis = redis://:p@10.0.0.5", "redis = redis://*@10.0.0.5"),
            ("redis = \"redis+unix:///r.sock?pass=p\"", "redis = \"redis+unix:///r.sock?*"),
            (
                "pop = { redis = \"redis://:p@r\", \"password\" = \"p\" }",
                "pop = { redis = \"redis://*@r\", \"password\" = \"*\"",
            ),
            ("redis_password_file = \"/etc/p\"", "redis_password_file = \"/etc/p\""),
            (
                "capacity = \"95mbit\" # see https://a.example/x",
                "capacity = \"95mbit\" # see https://a.example/x",
            ),
            ("note = \"http://u:p@h\"", "note = \"http://*@h\""),
            ("password =", "password ="),
        ] {
            assert_eq!(without_secrets(line, "*"), shown, "{line}");
        }
    }
}
