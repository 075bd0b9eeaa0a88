//! Selectors as the rules of the programs.

use weir_agree::Protocol;
use weir_bpf::{RuleSet, SelectorRule};

use super::local::local_prefix;
use crate::config::{Config, Selector};

/// Whether the programs' tables have room for the configuration's selectors.
pub(super) fn fit(config: &Config) -> Result<(), String> {
    let selectors = config.classes.iter().flat_map(|class| &class.selectors);
    let all: Vec<SelectorRule> = selectors.flat_map(|selector| rules(selector, 1, |_| vec![1])).collect();
    RuleSet::new(&all).map(drop).map_err(|e| format!("[[class]] match: {e}"))
}

/// The programs' rules: one, or one for each class that `classes` returns for its container.
pub(super) fn rules(
    selector: &Selector,
    handle: u32,
    classes: impl Fn(&str) -> Vec<u32>,
) -> Vec<SelectorRule> {
    let rule = SelectorRule {
        handle,
        from: None,
        protocol: selector.protocol.map(number),
        source_ports: selector.port.clone().map(|ports| ports.0),
        destination_ports: selector.remote_port.clone().map(|ports| ports.0),
        source: selector.local.map(local_prefix),
        destination: selector.remote.map(local_prefix),
        dscp: selector.dscp,
    };
    match &selector.container {
        None => vec![rule],
        Some(name) => {
            let of = |from| SelectorRule { from: Some(from), ..rule.clone() };
            classes(name).into_iter().map(of).collect()
        }
    }
}

/// The number of the protocol above IP (IANA).
fn number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(text: &str) -> Selector {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_selector_becomes_a_rule_for_each_class_of_its_container() {
        let selector = selector("container = \"web\"\nprotocol = \"udp\"\nport = \"8000-8003\"\ndscp = 46\n");
        let made = rules(&selector, 7, |name| if name == "web" { vec![16, 17] } else { vec![] });
        assert_eq!(made.iter().map(|r| r.from).collect::<Vec<_>>(), [Some(16), Some(17)]);
        let want = SelectorRule {
            handle: 7,
            from: Some(16),
            protocol: Some(17),
            source_ports: Some(8000..=8003),
            dscp: Some(46),
            ..SelectorRule::default()
        };
        assert_eq!(made[0], want);
        assert_eq!(rules(&selector, 7, |_| vec![]), [], "no container of that name is here");
        assert_eq!(selector.to_string(), "container web udp port 8000-8003 dscp 46");
    }

    #[test]
    fn more_kinds_of_selectors_than_the_tables_hold_are_refused() {
        let link = "[link]\ndevice = \"eth0\"\ncapacity = \"100mbit\"\n";
        let parse = |count: u32| {
            let all: String = (0..count).map(|len| format!("{{ local = \"::/{len}\" }},")).collect();
            let text = format!("{link}[[class]]\nname = \"a\"\nmatch = [{all}]\n");
            crate::config::parse(&text, std::path::Path::new("test.toml")).unwrap()
        };
        assert_eq!(fit(&parse(64)), Ok(()));
        let refusal = fit(&parse(65)).unwrap_err();
        assert!(refusal.starts_with("[[class]] match: cannot tell 65 kinds of rules apart"), "{refusal}");
    }
}
