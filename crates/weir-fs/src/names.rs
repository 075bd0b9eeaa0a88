//! The names and numbers of files.

use std::collections::{BTreeMap, HashMap};

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use weir_api::{Activity, Class};

/// The characters that a file's name cannot have, and those that would be taken for an escape.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'/').add(b'%');

/// The longest name of a file, bytes.
const MAX_NAME: usize = 255;

/// The file's name of a class that commands call `name`.
fn encode(name: &str) -> String {
    match name {
        "." => "%2E".to_owned(),
        ".." => "%2E%2E".to_owned(),
        _ => utf8_percent_encode(name, ESCAPED).to_string(),
    }
}

/// The class's name in commands. `None` if [`encode`] gives no such name.
pub(crate) fn decode(file: &str) -> Option<String> {
    let name = percent_decode_str(file).decode_utf8().ok()?;
    (encode(&name) == file).then(|| name.into_owned())
}

/// The files of those classes that are here: a class's name, or `source:name` where two have it.
pub(crate) fn list(classes: &[Class]) -> Vec<String> {
    let here = || classes.iter().filter(|class| class.activity != Activity::Absent);
    let mut owners: BTreeMap<&str, usize> = BTreeMap::new();
    for class in here() {
        *owners.entry(&class.name).or_default() += 1;
    }
    let name = |class: &Class| match owners[class.name.as_str()] {
        1 => encode(&class.name),
        _ => encode(&format!("{}:{}", class.source, class.name)),
    };
    here().map(name).filter(|file| !file.is_empty() && file.len() <= MAX_NAME).collect()
}

/// The numbers of the files that the kernel knows, until it forgets them. A number is never used for
/// another class.
#[derive(Debug)]
pub(crate) struct Numbers {
    next: u64,
    by_name: HashMap<String, u64>,
    /// The class's name, and how many lookups the kernel has not forgotten.
    known: HashMap<u64, (String, u64)>,
}

impl Numbers {
    /// The number of the directory.
    pub(crate) const ROOT: u64 = 1;

    pub(crate) fn new() -> Numbers {
        Numbers { next: Numbers::ROOT + 1, by_name: HashMap::new(), known: HashMap::new() }
    }

    /// The number of this class's file, which the kernel looked up once more.
    pub(crate) fn look_up(&mut self, name: &str) -> u64 {
        let number = *self.by_name.entry(name.to_owned()).or_insert_with(|| {
            self.next += 1;
            self.next - 1
        });
        self.known.entry(number).or_insert_with(|| (name.to_owned(), 0)).1 += 1;
        number
    }

    /// The class of a number.
    pub(crate) fn class(&self, number: u64) -> Option<&str> {
        self.known.get(&number).map(|(name, _)| name.as_str())
    }

    /// The kernel forgets that many lookups.
    pub(crate) fn forget(&mut self, number: u64, lookups: u64) {
        let Some((name, left)) = self.known.get_mut(&number) else { return };
        *left = left.saturating_sub(lookups);
        if *left == 0 {
            self.by_name.remove(name);
            self.known.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use weir_units::BitRate;

    use super::*;

    fn class(name: &str, source: &str) -> Class {
        Class { source: source.to_owned(), ..weir_fake_agent::class(name, BitRate::ZERO, BitRate::ZERO) }
    }

    #[test]
    fn classes_are_files_and_equal_names_have_their_sources() {
        let absent = Class { activity: Activity::Absent, ..class("old", "docker") };
        let classes = [class("web", "docker"), class("web", "netns"), class("a/b", "config"), absent];
        assert_eq!(list(&classes), ["docker:web", "netns:web", "a%2Fb"]);
    }

    #[test]
    fn class_without_a_possible_file_is_left_out() {
        assert_eq!(list(&[class("", "docker"), class(&"n".repeat(256), "docker")]), [""; 0]);
        assert_eq!(list(&[class("..", "netns")]), ["%2E%2E"]);
    }

    #[test]
    fn file_under_another_spelling_is_no_class() {
        assert_eq!(decode("a%2Fb").as_deref(), Some("a/b"));
        for other in ["a%2fb", "%77eb", "a%", ".", ".."] {
            assert_eq!(decode(other), None, "{other}");
        }
    }

    #[test]
    fn number_lives_until_all_lookups_are_forgotten() {
        let mut numbers = Numbers::new();
        let web = numbers.look_up("web");
        assert_eq!((numbers.look_up("web"), numbers.class(web)), (web, Some("web")));
        numbers.forget(web, 1);
        assert_eq!(numbers.class(web), Some("web"));
        numbers.forget(web, 1);
        assert_eq!(numbers.class(web), None);
        assert_ne!(numbers.look_up("video"), web);
    }

    proptest! {
        #[test]
        fn any_name_is_a_file_of_its_own(name in any::<String>()) {
            let file = encode(&name);
            prop_assert!(!file.contains('/') && !file.contains('\0') && file != "." && file != "..");
            prop_assert_eq!(decode(&file), Some(name));
        }
    }
}
