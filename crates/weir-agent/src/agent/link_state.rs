//! The state of the link, and the words for its changes.

use weir_netlink::Link;

/// The link at the last discovery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LinkState {
    Gone,
    Present { index: u32, name: String, is_up: bool },
}

impl LinkState {
    pub(super) fn of(found: Option<&Link>) -> LinkState {
        found.map_or(LinkState::Gone, |link| LinkState::Present {
            index: link.index,
            name: link.name.clone(),
            is_up: link.up,
        })
    }

    /// The change of the link since `before`: renamed, replaced, gone, down.
    pub(super) fn change_since(&self, before: &LinkState, device: &str) -> Option<String> {
        use LinkState::{Gone, Present};
        Some(match (before, self) {
            _ if before == self => return None,
            (_, Gone) => format!("{device} is gone: nothing leaves by it until it is back"),
            (Present { index: old, .. }, Present { index, name, .. }) if old != index => {
                format!("{name} is the link now")
            }
            (Gone, Present { name, .. }) => format!("{name} is back"),
            (Present { name: was, .. }, Present { name, .. }) if was != name => {
                format!("{was} is called {name} now, and stays the link")
            }
            (_, Present { name, is_up, .. }) => format!("{name} is {}", if *is_up { "up" } else { "down" }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn present(index: u32, name: &str, is_up: bool) -> LinkState {
        LinkState::Present { index, name: name.to_owned(), is_up }
    }

    #[test]
    fn each_change_of_the_link_is_told_in_its_own_words() {
        let up = present(3, "eth0", true);
        let cases = [
            (up.clone(), None),
            (LinkState::Gone, Some("eth0 is gone: nothing leaves by it until it is back")),
            (present(4, "eth1", true), Some("eth1 is the link now")),
            (present(3, "wan", true), Some("eth0 is called wan now, and stays the link")),
            (present(3, "eth0", false), Some("eth0 is down")),
        ];
        for (now, text) in cases {
            assert_eq!(now.change_since(&up, "eth0").as_deref(), text, "{now:?}");
        }
        assert_eq!(up.change_since(&LinkState::Gone, "eth0").as_deref(), Some("eth0 is back"));
    }
}
