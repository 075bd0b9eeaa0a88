//! The rule of a connection, against a naive model, and refusals.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use proptest::prelude::*;
use weir_cc::{
    Algorithm, Connection, Direction, Origin, Rule, RuleClass, RuleEntry, RuleError, Rules, RulesError,
};
use weir_units::Bytes;

fn algorithm(name: &str) -> Algorithm {
    name.parse().expect("a name")
}

fn class(handle: u32, name: &str, group: Option<&str>) -> RuleClass {
    RuleClass { handle, name: name.into(), key: format!("docker:{name}"), group: group.map(str::to_owned) }
}

fn classes() -> Vec<RuleClass> {
    vec![class(1, "a", Some("g")), class(2, "b", Some("g")), class(3, "c", None)]
}

fn address() -> impl Strategy<Value = IpAddr> {
    // Few bits vary, so that prefixes meet addresses.
    prop_oneof![
        (0..8u32).prop_map(|bits| IpAddr::from(Ipv4Addr::from(0x0a00_0000 | bits << 26 >> 3 | bits))),
        (0..8u128).prop_map(|bits| IpAddr::from(Ipv6Addr::from((0xfd_u128 << 120) | bits << 117 | bits))),
    ]
}

fn prefix() -> impl Strategy<Value = IpNet> {
    (address(), prop_oneof![Just(0u8), 1..=128u8]).prop_map(|(address, len)| {
        let most = if address.is_ipv4() { 32 } else { 128 };
        IpNet::new(address, len.min(most)).expect("fits").trunc()
    })
}

fn direction() -> impl Strategy<Value = Direction> {
    prop_oneof![Just(Direction::Out), Just(Direction::In)]
}

fn rule() -> impl Strategy<Value = Rule> {
    let who = prop_oneof![
        Just((None, None)),
        "[abcd]".prop_map(|name| (Some(name), None)),
        Just((Some("docker:a".to_owned()), None)),
        Just((None, Some("g".to_owned()))),
    ];
    let parts = (
        who,
        prop::option::of(prefix()),
        prop::option::of(80..83u16),
        prop::option::of(direction()),
        any::<bool>(),
    );
    parts.prop_map(|((container, group), to, port, direction, start)| Rule {
        container,
        group,
        to,
        port,
        direction,
        start: start.then(|| algorithm("reno")),
        ..Rule::default()
    })
}

/// Rules that can stand together: of those about the same connections, the first. `docker:a` is
/// `a` by another name; then the later one is left out too, as neither goes before the other.
fn together(rules: Vec<Rule>) -> Vec<Rule> {
    let asks = |r: &Rule| {
        let name = r.container.clone().map(|name| name.trim_start_matches("docker:").to_owned());
        (name, r.group.clone(), r.to, r.port, r.direction)
    };
    let mut kept: Vec<Rule> = Vec::new();
    for rule in rules {
        if !kept.iter().any(|other| asks(other) == asks(&rule)) {
            kept.push(rule);
        }
    }
    kept
}

/// The order of the rules that match: those with the longest prefix; of those, the ones that name
/// the container, else the group; then the port, then the direction.
fn naive<'a>(
    rules: &'a [Rule],
    of: &RuleClass,
    to: IpAddr,
    port: u16,
    direction: Direction,
) -> Option<(usize, &'a Rule)> {
    let mut left: Vec<(usize, &Rule)> = rules
        .iter()
        .enumerate()
        .filter(|(_, r)| r.container.as_ref().is_none_or(|name| *name == of.name || *name == of.key))
        .filter(|(_, r)| r.group.is_none() || r.group == of.group)
        .filter(|(_, r)| r.to.is_none_or(|net| net.contains(&to)))
        .filter(|(_, r)| r.port.is_none_or(|p| p == port))
        .filter(|(_, r)| r.direction.is_none_or(|d| d == direction))
        .collect();
    let longest = left.iter().map(|(_, r)| r.to.map(|net| net.prefix_len())).max()?;
    left.retain(|(_, r)| r.to.map(|net| net.prefix_len()) == longest);
    for names in [
        |r: &Rule| r.container.is_some(),
        |r: &Rule| r.group.is_some(),
        |r: &Rule| r.port.is_some(),
        |r: &Rule| r.direction.is_some(),
    ] {
        if left.iter().any(|(_, r)| names(r)) {
            left.retain(|(_, r)| names(r));
        }
    }
    assert_eq!(left.len(), 1, "{left:?}");
    left.pop()
}

/// A look into the table, as the kernel's side does it.
fn look_up(
    table: &[RuleEntry],
    handle: u32,
    to: IpAddr,
    port: u16,
    direction: Direction,
) -> Option<&RuleEntry> {
    let longest = |handle, port, direction| {
        let here = |e: &&RuleEntry| (e.handle, e.port, e.direction) == (handle, port, direction);
        table.iter().filter(here).filter(|e| e.to.contains(&to)).max_by_key(|e| e.to.prefix_len())
    };
    let kinds = [0, handle].into_iter().flat_map(|handle| {
        [0, port].into_iter().flat_map(move |port| [None, Some(direction)].map(|d| (handle, port, d)))
    });
    kinds.filter_map(|(handle, port, direction)| longest(handle, port, direction)).max_by_key(|e| e.rank)
}

proptest! {
    #[test]
    fn the_table_and_the_search_find_what_a_naive_reader_of_the_rules_finds(
        rules in prop::collection::vec(rule(), 0..24).prop_map(together),
        asked in prop::collection::vec((0..3usize, address(), 80..84u16, direction()), 1..40),
    ) {
        let book = Rules::new(rules.clone()).unwrap();
        let classes = classes();
        let table = book.compile(&classes);
        for (class, to, port, direction) in asked {
            let of = &classes[class];
            let wanted = naive(&rules, of, to, port, direction);
            let connection = Connection {
                container: Some([&of.name, &of.key]),
                group: of.group.as_deref(),
                to,
                port: Some(port),
                direction: Some(direction),
            };
            prop_assert_eq!(book.find(&connection), wanted.map(|(_, rule)| rule));
            let found = look_up(&table, of.handle, to, port, direction);
            prop_assert_eq!(found.map(|e| e.number), wanted.map(|(i, _)| i + 1));
            let explained = book.explain(&connection);
            prop_assert_eq!(explained.number, wanted.map(|(i, _)| i + 1));
            prop_assert_eq!(explained.considered.len(), rules.len());
            prop_assert_eq!(explained.considered.iter().filter(|c| c.chosen).count(), usize::from(wanted.is_some()));
        }
    }
}

fn to(net: &str) -> Rule {
    Rule { to: Some(net.parse().expect("a network")), ..Rule::default() }
}

fn refused(rule: Rule) -> RuleError {
    match Rules::new(vec![rule]) {
        Err(RulesError::Rule { number: 1, why, .. }) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn prefixes_that_no_connection_can_match_are_refused() {
    assert_eq!(
        refused(to("10.0.0.1/8")).to_string(),
        "to = \"10.0.0.1/8\" has bits behind its prefix: write 10.0.0.0/8"
    );
    for net in ["127.0.0.0/8", "::1/128", "224.0.0.0/4", "ff00::/8", "0.0.0.0/32", "255.255.255.255/32"] {
        assert!(matches!(refused(to(net)), RuleError::NoDestination(..)), "{net}");
    }
    let mapped = refused(to("::ffff:10.0.0.0/104"));
    assert!(mapped.to_string().ends_with("IPv4 is written as IPv4, also for sockets of IPv6"), "{mapped}");
    for net in ["0.0.0.0/0", "::/0", "10.0.0.0/8", "192.0.2.1/32", "fd00::/8"] {
        assert!(Rules::new(vec![to(net)]).is_ok(), "{net}");
    }
}

#[test]
fn rule_of_a_network_is_not_that_of_a_part_of_it() {
    let part = to("10.0.0.0/24");
    let book = Rules::new(vec![part.clone()]).unwrap();
    let of = |network: &str| book.of_network(&network.parse().unwrap());
    assert_eq!(of("10.0.0.0/8"), None);
    assert_eq!(of("10.0.0.0/24"), Some(&part));
    assert_eq!(of("10.0.0.128/25"), Some(&part));
}

#[test]
fn rules_that_contradict_themselves_are_refused() {
    let bbr = Rule { start: Some(algorithm("bbr")), ..Rule::default() };
    let half = Rule { after: Some(Bytes(1)), ..bbr.clone() };
    assert_eq!(refused(half), RuleError::Half { given: "after", missing: "then" });
    let half = Rule { then: Some(algorithm("cubic")), ..bbr.clone() };
    assert_eq!(refused(half), RuleError::Half { given: "then", missing: "after" });
    let without = Rule { after: Some(Bytes(1)), then: Some(algorithm("cubic")), ..Rule::default() };
    assert_eq!(refused(without), RuleError::Half { given: "after", missing: "start" });
    let never = Rule { after: Some(Bytes(0)), then: Some(algorithm("cubic")), ..bbr.clone() };
    assert_eq!(refused(never), RuleError::After(Bytes(0)));
    let none = Rule { after: Some(Bytes(1)), then: Some(algorithm("bbr")), ..bbr.clone() };
    assert_eq!(refused(none), RuleError::NoChange(algorithm("bbr")));
    let early = Rule { window: Some(128), ..bbr.clone() };
    assert_eq!(refused(early), RuleError::Half { given: "window", missing: "after and then" });
    let own = Rule { window: Some(128), ..Rule::default() };
    assert_eq!(refused(own), RuleError::Half { given: "window", missing: "after and then" });
    let change = Rule { after: Some(Bytes(1)), then: Some(algorithm("cubic")), ..bbr.clone() };
    assert_eq!(refused(Rule { window: Some(3), ..change }), RuleError::Window(3));
    assert_eq!(refused(Rule { port: Some(0), ..bbr.clone() }), RuleError::NoPort);
    let both = Rule { container: Some("a".into()), group: Some("g".into()), ..bbr };
    assert!(matches!(refused(both), RuleError::TwoSenders { .. }));
}

#[test]
fn two_rules_about_the_same_connections_are_refused_by_number() {
    let rules =
        vec![to("10.0.0.0/8"), Rule::default(), Rule { start: Some(algorithm("reno")), ..to("10.0.0.0/8") }];
    let error = Rules::new(rules).unwrap_err();
    assert_eq!(
        error.to_string(),
        "rules 1 and 3 are about the same connections, to 10.0.0.0/8: leave one out"
    );
}

#[test]
fn rule_with_a_missing_algorithm_is_refused_with_those_there() {
    let rules = Rules::new(vec![Rule::default()]).unwrap();
    let known = [algorithm("reno"), algorithm("cubic")];
    let missing = |name: &Algorithm| !known.contains(name);
    let error = rules.check_available(missing, &known).unwrap_err();
    assert_eq!(
        error.to_string(),
        "rule 1 (all): this kernel has no congestion control bbr; it has reno, cubic"
    );
    assert!(rules.check_available(|_| false, &known).is_ok());
}

#[test]
fn an_explanation_says_of_each_rule_why_it_is_not_the_one() {
    let web = Rule { container: Some("web".into()), ..to("10.0.0.0/8") };
    let port = Rule { port: Some(443), ..Rule::default() };
    let rules = Rules::new(vec![Rule::default(), to("10.0.0.0/8"), web, port]).unwrap();
    let connection = Connection {
        container: Some(["web", "docker:web"]),
        port: Some(80),
        ..Connection::to("10.1.2.3".parse().unwrap())
    };
    let said: Vec<String> =
        rules.explain(&connection).considered.iter().map(|c| format!("{}: {}", c.number, c.why)).collect();
    assert_eq!(
        said,
        [
            "3: it matches, with the longest prefix, 10.0.0.0/8",
            "2: it matches, but rule 3 names the container",
            "1: it matches, but rule 3 has a longer prefix",
            "4: it is for port 443, not 80",
        ]
    );
}

#[test]
fn flows_are_counted_under_the_rules_network_or_a_usual_one() {
    let rules = Rules::new(vec![to("10.1.0.0/16"), to("10.0.0.0/8"), to("0.0.0.0/0")]).unwrap();
    for (address, wanted) in [
        ("10.1.2.3", "10.1.0.0/16"),
        ("10.2.3.4", "10.0.0.0/8"),
        ("192.0.2.77", "192.0.2.0/24"),
        ("2001:db8:1:2::3", "2001:db8:1::/48"),
    ] {
        assert_eq!(rules.network_of(address.parse().unwrap()).to_string(), wanted);
    }
}

#[test]
fn rule_set_at_run_time_replaces_the_configured_one() {
    let rule = |to: &str, start: &str, origin| Rule {
        to: to.parse().ok(),
        start: start.parse().ok(),
        origin,
        ..Rule::default()
    };
    let config =
        vec![rule("10.0.0.0/8", "reno", Origin::Config), rule("10.1.0.0/16", "cubic", Origin::Config)];
    let set = [rule("10.0.0.0/8", "bbr", Origin::Set), rule("192.0.2.0/24", "bbr", Origin::Advice)];
    let rules = Rules::layered(config.clone(), &set).unwrap();
    let start = |to: &str| {
        rules.find(&Connection::to(to.parse().unwrap())).map(|rule| (rule.action().to_string(), rule.origin))
    };
    assert_eq!(start("10.2.0.1"), Some(("bbr".to_owned(), Origin::Set)));
    // The longest prefix wins, of any origin.
    assert_eq!(start("10.1.0.1"), Some(("cubic".to_owned(), Origin::Config)));
    assert_eq!(start("192.0.2.1"), Some(("bbr".to_owned(), Origin::Advice)));
    let explained = rules.explain(&Connection::to("10.2.0.1".parse().unwrap()));
    let last = explained.considered.last().unwrap();
    assert_eq!((last.number, last.why.as_str()), (0, "rule 2 was set instead of it"));
    // Twice among those that are set is still an error.
    let twice = [set[0].clone(), set[0].clone()];
    assert!(matches!(Rules::layered(config, &twice), Err(RulesError::Same { .. })));
}
