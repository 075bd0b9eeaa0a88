/// An address in which `mark` stands for the user, the password and the query.
///
/// The password ends at the last `@`, because it may have a `/`, a `#` or a `?`.
#[must_use]
pub fn without_user(address: &str, mark: &str) -> String {
    let (scheme, rest) = address.split_at(address.find("://").map_or(0, |at| at + "://".len()));
    let (user, place) = rest.split_at(rest.rfind('@').unwrap_or(0));
    let place =
        place.split_once('?').map_or_else(|| place.to_owned(), |(place, _)| format!("{place}?{mark}"));
    format!("{scheme}{}{place}", if user.is_empty() { "" } else { mark })
}

/// A text in which `mark` stands for the user and the password of each address.
///
/// An address ends at a space or a quote. The `@` before the digest of an image ends no password.
#[must_use]
pub fn without_users(text: &str, mark: &str) -> String {
    let (mut shown, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("://") {
        let end = after.find(|c: char| c.is_whitespace() || "\"'`<>".contains(c)).unwrap_or(after.len());
        let is_digest =
            |at: &usize| ["@sha256:", "@sha512:"].iter().any(|begin| after[*at..].starts_with(begin));
        let ends = after[..end].match_indices('@').map(|(at, _)| at);
        let user = ends.rev().find(|at| !is_digest(at)).unwrap_or(0);
        shown += before;
        shown += "://";
        shown += if user > 0 { mark } else { "" };
        rest = &after[user..];
    }
    shown + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_password_of_an_address_are_hidden_whatever_they_hold() {
        for (address, shown) in [
            ("http://u:p@proxy.example:3128", "http://*@proxy.example:3128"),
            ("http://u:a/b@c#d?e@proxy.example:3128", "http://*@proxy.example:3128"),
            ("u:p@proxy.example:3128", "*@proxy.example:3128"),
            ("redis+unix:///run/redis.sock?user=u&pass=p", "redis+unix:///run/redis.sock?*"),
            ("redis://:p@10.0.0.5:6379/0", "redis://*@10.0.0.5:6379/0"),
            ("http://proxy.example:3128", "http://proxy.example:3128"),
            ("", ""),
        ] {
            assert_eq!(without_user(address, "*"), shown, "{address}");
        }
    }

    #[test]
    fn addresses_in_a_text_are_hidden_and_the_rest_stays() {
        for (text, shown) in [
            (
                "via http://u:a/b#c?d@e@h:1/x and \"redis://:p@r\": x@y",
                "via http://*@h:1/x and \"redis://*@r\": x@y",
            ),
            ("pulls https://r.example/v2/a@sha256:12", "pulls https://r.example/v2/a@sha256:12"),
            ("http://u:p@r.example/v2/a@sha256:12", "http://*@r.example/v2/a@sha256:12"),
            ("no address: a@b", "no address: a@b"),
        ] {
            assert_eq!(without_users(text, "*"), shown, "{text}");
        }
    }
}
