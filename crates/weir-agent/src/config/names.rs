//! Names of classes and groups.

/// `web` of `docker:web`.
pub(super) fn bare_name(name: &str) -> &str {
    name.split_once(':').map_or(name, |(_, bare)| bare)
}

pub(super) fn check_name(name: &str) -> Result<(), String> {
    if is_name(name) { Ok(()) } else { Err(no_name(name)) }
}

/// Whether a class or a group may be called so: one word, or `NAMESPACE/POD` for a pod.
pub(crate) fn is_name(name: &str) -> bool {
    let ok = |c: char| c.is_ascii_alphanumeric() || "_.-@+".contains(c);
    let is_word = |word: &str| !word.is_empty() && word.chars().all(ok);
    let is_part = |part: &str| is_word(part) && part != "." && part != "..";
    let is_pod = || name.split_once('/').is_some_and(|(namespace, pod)| is_part(namespace) && is_part(pod));
    name.len() <= 255 && (is_word(name) || is_pod())
}

/// The error of a text for which [`is_name`] is false.
pub(crate) fn no_name(name: &str) -> String {
    format!(
        "`{name}` is not a name: letters, digits and _ . - @ + only, 255 at most, or NAMESPACE/POD for a pod"
    )
}
