use super::*;

#[path = "class_table_random.rs"]
mod random;

fn config(text: &str) -> Config {
    let text = format!("[link]\ndevice = \"eth0\"\ncapacity = \"100mbit\"\n{text}");
    crate::config::parse(&text, std::path::Path::new("test.toml")).unwrap()
}

fn table_of(text: &str) -> ClassTable {
    ClassTable::new(config(text), SetLayers::new(), Minors::new(), Ledger::new(), BitRate::ZERO)
}

fn claim(name: &str) -> DiscoveredClass {
    DiscoveredClass {
        source: ClassSource::Docker,
        name: name.to_owned(),
        kind: ClassKind::Container,
        group: None,
        label: Layer::default(),
        down_label: Layer::default(),
        cut: Vec::new(),
        asked_by: BTreeMap::new(),
        unmet: None,
        ports: vec![(7, "veth7".to_owned())],
        cgroups: Vec::new(),
        selectors: Vec::new(),
        problem: None,
    }
}

fn min(name: &str, mbit: u64) -> SetPolicies {
    let change = PolicyChange {
        name: name.to_owned(),
        min: Some(Some(BitRate::mbit(mbit))),
        ..PolicyChange::default()
    };
    SetPolicies { changes: vec![change], allow_absent: false }
}

fn set(table: &mut ClassTable, changes: &SetPolicies) -> Result<(), Error> {
    let planned = table.plan(changes)?;
    table.commit(planned);
    Ok(())
}

fn unpromised(table: &ClassTable, key: &str) -> Option<String> {
    table.entries()[key].unpromised.as_ref().map(ToString::to_string)
}

fn floor(table: &ClassTable, key: &str) -> BitRate {
    table.entries()[key].effective.policy.floor()
}

#[test]
fn a_class_that_asks_for_something_else_is_told_once() {
    let mut table = table_of("");
    assert_eq!(table.update(vec![claim("web")], true), [Change::Added("docker:web".into())]);
    let max = Layer { max: Some(BitRate::mbit(5)), ..Layer::default() };
    let limited = DiscoveredClass { label: max, ..claim("web") };
    let told = [Change::AskedAnew("docker:web".into())];
    assert_eq!(table.update(vec![limited.clone()], true), told);
    assert_eq!(table.entries()["docker:web"].effective.policy.max(), Some(BitRate::mbit(5)));
    assert_eq!(table.update(vec![limited.clone()], true), []);
    let grouped = DiscoveredClass { group: Some("a".to_owned()), ..limited };
    assert_eq!(table.update(vec![grouped], true), told);
}

#[test]
fn a_value_comes_from_its_strongest_origin() {
    let mut table = table_of("[defaults]\nweight = 2\n[[class]]\nname = \"web\"\nmax = \"50mbit\"\n");
    let label = Layer { weight: "5".parse().ok(), min: Some(BitRate::mbit(4)), max: Some(BitRate::mbit(9)) };
    table.update(vec![DiscoveredClass { label, ..claim("web") }, claim("db")], true);
    let web = table.entries()["docker:web"].effective;
    assert_eq!(
        (web.policy.weight().get(), web.policy.floor(), web.policy.ceiling()),
        (5, BitRate::mbit(4), BitRate::mbit(50))
    );
    assert_eq!(web.origins, [Origin::Label, Origin::Label, Origin::Config]);
    set(&mut table, &min("web", 6)).unwrap();
    assert_eq!(table.entries()["docker:web"].effective.origins[1], Origin::Set);
    let db = table.entries()["docker:db"].effective;
    assert_eq!((db.policy.weight().get(), db.origins[0]), (2, Origin::Defaults));
}

#[test]
fn a_class_keeps_its_minor_while_others_come_and_go() {
    let mut table = table_of("");
    table.update(vec![claim("a"), claim("b"), claim("c")], true);
    let minor = |table: &ClassTable, key: &str| table.entries()[key].minor;
    let (a, c) = (minor(&table, "docker:a"), minor(&table, "docker:c"));
    let changes = table.update(vec![claim("a"), claim("c")], true);
    assert_eq!(changes, [Change::Removed("docker:b".into())]);
    table.update(vec![claim("c"), claim("d"), claim("a")], true);
    assert_eq!((minor(&table, "docker:a"), minor(&table, "docker:c")), (a, c));
    let all: BTreeSet<_> = table.entries().values().map(|e| e.minor).collect();
    assert_eq!(all.len(), table.entries().len());
}

#[test]
fn a_class_has_its_minor_again_after_a_restart_whoever_is_found_first() {
    let mut before = table_of("");
    before.update(vec![claim("c"), claim("b")], true);
    before.update(vec![claim("a"), claim("b"), claim("c")], true);
    let (config, minors) = (before.config().clone(), before.minors().clone());
    let mut after = ClassTable::new(config, SetLayers::new(), minors, Ledger::new(), BitRate::ZERO);
    assert_eq!(after.minors(), before.minors());
    after.update(vec![claim("a"), claim("b"), claim("c")], true);
    assert_eq!(after.minors(), before.minors());
}

#[test]
fn a_class_has_its_minor_again_after_agreements_came_before_the_survey() {
    let mut before = table_of("");
    before.update(vec![claim("c"), claim("b")], true);
    before.update(vec![claim("a"), claim("b"), claim("c")], true);
    let (config, minors) = (before.config().clone(), before.minors().clone());
    let mut after = ClassTable::new(config, SetLayers::new(), minors, Ledger::new(), BitRate::ZERO);
    after.agree(vec![agreed("b", 10, 20)], BitRate::mbit(10));
    after.update(vec![claim("a"), claim("b"), claim("c")], true);
    assert_eq!(after.minors(), before.minors());
}

/// The refused request changes nothing.
#[test]
fn minimum_that_does_not_fit_is_refused_with_numbers() {
    let mut table = table_of("");
    table.update(vec![claim("a"), claim("b")], true);
    set(&mut table, &min("a", 60)).unwrap();
    let before = table.set_layers().clone();
    let error = set(&mut table, &min("b", 40)).unwrap_err();
    assert_eq!(
        (error.code.as_str(), error.asked, error.free),
        ("no-capacity", Some(BitRate::mbit(40)), Some(BitRate::mbit(35)))
    );
    assert_eq!(table.set_layers(), &before);
    assert_eq!(floor(&table, "docker:b"), BitRate::ZERO);
    set(&mut table, &min("b", 35)).unwrap();
    assert_eq!(table.reservation().free(), BitRate::ZERO);
}

#[test]
fn many_changes_are_all_made_or_none() {
    let mut table = table_of("");
    table.update(vec![claim("a"), claim("b")], true);
    let mut both = min("a", 10);
    both.changes.extend(min("b", 90).changes);
    assert_eq!(set(&mut table, &both).unwrap_err().code, "no-capacity");
    assert_eq!(floor(&table, "docker:a"), BitRate::ZERO);
    let mut twice = min("a", 10);
    twice.changes.extend(min("docker:a", 20).changes);
    assert!(set(&mut table, &twice).unwrap_err().message.contains("twice"));
}

/// A pod has no labels of weir's, so a text about one would lead nowhere.
#[test]
fn unpromised_minimum_of_a_pod_names_its_annotation() {
    let asked_by = [("min", "annotation weir.dev/min"), ("down.min", "annotation weir.dev/down.min")];
    let large = Layer { min: Some(BitRate::mbit(900)), ..Layer::default() };
    let pod = DiscoveredClass {
        source: ClassSource::Cni,
        label: large,
        down_label: large,
        asked_by: asked_by.map(|(key, by)| (key, by.to_owned())).into(),
        ..claim("shop/web")
    };
    let said = |classes: Vec<DiscoveredClass>| {
        let mut table = table_of("");
        table.update(classes, true);
        unpromised(&table, "cni:shop/web").unwrap()
    };
    let (up, down) = (said(vec![pod.clone()]), said(crate::agent::download::discovered(&[pod])));
    assert!(up.starts_with("its minimum of 900mbit, by annotation weir.dev/min, is not promised: "), "{up}");
    assert!(
        down.starts_with("its minimum of 900mbit, by annotation weir.dev/down.min, is not promised: "),
        "{down}"
    );
}

#[test]
fn who_came_first_keeps_what_a_label_was_promised() {
    let mut table = table_of("");
    let with = |name, mbit| DiscoveredClass {
        label: Layer { min: Some(BitRate::mbit(mbit)), ..Layer::default() },
        ..claim(name)
    };
    table.update(vec![with("z", 60)], true);
    let changes = table.update(vec![with("a", 60), with("z", 60)], true);
    assert_eq!(floor(&table, "docker:z"), BitRate::mbit(60));
    assert_eq!(floor(&table, "docker:a"), BitRate::ZERO);
    let why = unpromised(&table, "docker:a").unwrap();
    assert!(why.contains("weir.min, is not promised") && why.contains("35mbit are free"), "{why}");
    assert!(changes.contains(&Change::Unpromised { key: "docker:a".into(), why }));
    // When the first class leaves, the second gets the promise.
    let changes = table.update(vec![with("a", 60)], true);
    assert!(changes.contains(&Change::Promised { key: "docker:a".into(), min: BitRate::mbit(60) }));
    assert_eq!(floor(&table, "docker:a"), BitRate::mbit(60));
    assert_eq!(unpromised(&table, "docker:a"), None);
}

#[test]
fn a_label_above_the_configured_maximum_costs_its_class_the_minimum_alone() {
    let mut table = table_of("[[class]]\nname = \"a\"\nmax = \"10mbit\"\n");
    let label = Layer { min: Some(BitRate::mbit(20)), weight: "3".parse().ok(), max: None };
    table.update(vec![DiscoveredClass { label, ..claim("a") }], true);
    let policy = table.entries()["docker:a"].effective.policy;
    let (weight, max) = (policy.weight().get(), policy.ceiling());
    assert_eq!((weight, policy.min(), max), (3, None, BitRate::mbit(10)));
    let why = unpromised(&table, "docker:a").unwrap();
    assert!(why.contains("minimum of 20mbit") && why.contains("above its maximum of 10mbit"), "{why}");
}

#[test]
fn a_policy_can_wait_for_a_name_that_is_not_here() {
    let mut table = table_of("");
    let mut later = min("web", 20);
    assert_eq!(set(&mut table, &later).unwrap_err().code, "unknown-name");
    later.allow_absent = true;
    set(&mut table, &later).unwrap();
    assert_eq!(table.entries()["absent:web"].minor, None);
    // The minimum is reserved for the absent class.
    assert_eq!(table.reservation().reserved, BitRate::mbit(20));
    table.update(vec![claim("web")], true);
    assert_eq!(floor(&table, "docker:web"), BitRate::mbit(20));
    assert!(!table.entries().contains_key("absent:web"));
    assert_eq!(table.reservation().reserved, BitRate::mbit(20));
}

/// A policy by hand with all three values.
fn kept(table: &mut ClassTable, name: &str) {
    let change = PolicyChange {
        name: name.to_owned(),
        weight: Some("3".parse().ok()),
        min: Some(Some(BitRate::mbit(1))),
        max: Some(Some(BitRate::mbit(5))),
        down: None,
    };
    set(table, &SetPolicies { changes: vec![change], allow_absent: true }).unwrap();
}

fn weight(name: &str, weight: &str) -> SetPolicies {
    let change =
        PolicyChange { name: name.to_owned(), weight: Some(weight.parse().ok()), ..PolicyChange::default() };
    SetPolicies { changes: vec![change], allow_absent: false }
}

fn unset(table: &mut ClassTable, name: &str) {
    let planned = table.plan_unset(name).unwrap();
    table.commit(planned);
}

/// The weight, the minimum and the maximum of a class, rates in Mbit/s. Zero stands for none.
fn in_mbit(table: &ClassTable, key: &str) -> (u64, u64, u64) {
    let policy = table.entries()[key].effective.policy;
    let mbit = |rate: Option<BitRate>| rate.map_or(0, |rate| rate.0 / 1_000_000);
    (u64::from(policy.weight().get()), mbit(policy.min()), mbit(policy.max()))
}

fn namespace(name: &str) -> DiscoveredClass {
    DiscoveredClass { source: ClassSource::Netns, kind: ClassKind::Netns, ..claim(name) }
}

#[test]
fn a_kept_policy_is_changed_in_part_after_its_class_arrives() {
    let mut table = table_of("");
    kept(&mut table, "web");
    table.update(vec![claim("web")], true);
    set(&mut table, &weight("web", "7")).unwrap();
    assert_eq!(in_mbit(&table, "docker:web"), (7, 1, 5));
    let keys: Vec<&String> = table.set_layers().keys().collect();
    assert_eq!(keys, ["docker:web"], "the policy has one place");
    assert_eq!(table.reservation().reserved, BitRate::mbit(1));
}

#[test]
fn a_kept_policy_is_unset_after_its_class_arrives() {
    let mut table = table_of("");
    kept(&mut table, "web");
    table.update(vec![claim("web")], true);
    unset(&mut table, "web");
    assert_eq!(in_mbit(&table, "docker:web"), (1, 0, 0));
    assert!(table.set_layers().is_empty());
    assert_eq!(table.reservation().reserved, BitRate::ZERO);
}

#[test]
fn undo_restores_a_kept_policy_after_its_class_arrives() {
    use crate::agent::history::{BothLayers, History};
    let mut table = table_of("");
    kept(&mut table, "web");
    table.update(vec![claim("web")], true);
    let of = |table: &ClassTable| BothLayers { up: table.set_layers().clone(), ..BothLayers::default() };
    let before = of(&table);
    set(&mut table, &weight("web", "7")).unwrap();
    let (_, restored, _) = History::default().after(&before, &of(&table), 1).undo(&of(&table)).unwrap();
    assert_eq!(restored, before);
    table.commit(restored.up);
    assert_eq!(in_mbit(&table, "docker:web"), (3, 1, 5));
}

#[test]
fn two_classes_of_a_kept_policy_are_changed_one_at_a_time() {
    let mut table = table_of("");
    kept(&mut table, "web");
    table.update(vec![claim("web"), namespace("web")], true);
    assert_eq!(in_mbit(&table, "docker:web"), in_mbit(&table, "netns:web"));
    set(&mut table, &weight("netns:web", "7")).unwrap();
    assert_eq!((in_mbit(&table, "docker:web"), in_mbit(&table, "netns:web")), ((3, 1, 5), (7, 1, 5)));
    unset(&mut table, "docker:web");
    assert_eq!((in_mbit(&table, "docker:web"), in_mbit(&table, "netns:web")), ((1, 0, 0), (7, 1, 5)));
}

#[test]
fn unset_of_one_class_leaves_another_its_kept_policy() {
    let mut table = table_of("");
    kept(&mut table, "web");
    table.update(vec![claim("web"), namespace("web")], true);
    unset(&mut table, "netns:web");
    assert_eq!((in_mbit(&table, "docker:web"), in_mbit(&table, "netns:web")), ((3, 1, 5), (1, 0, 0)));
}

/// A container of a runtime that does not answer yet follows the policy too. Another one of its name must not take it away.
#[test]
fn kept_policy_stays_for_a_class_whose_source_is_away() {
    for is_unset in [false, true] {
        let mut table = table_of("");
        kept(&mut table, "web");
        let podman = DiscoveredClass { source: ClassSource::Podman, ..claim("web") };
        table.update(vec![podman.clone()], true);
        assert_eq!(in_mbit(&table, "podman:web"), (3, 1, 5));
        // A new agent hears of Docker first.
        let set_before = table.set_layers().clone();
        let mut table = table_of("");
        table.commit(set_before);
        table.update(vec![claim("web")], false);
        if is_unset {
            unset(&mut table, "web");
        } else {
            set(&mut table, &weight("web", "7")).unwrap();
        }
        let of_docker = if is_unset { (1, 0, 0) } else { (7, 1, 5) };
        assert_eq!(in_mbit(&table, "docker:web"), of_docker);
        table.update(vec![claim("web"), podman], true);
        assert_eq!(in_mbit(&table, "podman:web"), (3, 1, 5), "unset: {is_unset}");
        assert_eq!(in_mbit(&table, "docker:web"), of_docker, "unset: {is_unset}");
        // All sources have told of their classes, so that a change hands the policy out.
        unset(&mut table, "podman:web");
        assert!(!table.set_layers().contains_key("web") && in_mbit(&table, "podman:web") == (1, 0, 0));
    }
}

#[test]
fn a_kept_policy_still_waits_after_a_change_that_names_another_class() {
    let mut table = table_of("");
    kept(&mut table, "web");
    table.update(vec![claim("db")], true);
    set(&mut table, &weight("web", "7")).unwrap();
    unset(&mut table, "db");
    // A change of what arrives alone names no value of what leaves.
    let down = PolicyChange { name: "web".to_owned(), ..PolicyChange::default() };
    table.update(vec![claim("web")], true);
    set(&mut table, &SetPolicies { changes: vec![down], allow_absent: false }).unwrap();
    assert_eq!(in_mbit(&table, "docker:web"), (7, 1, 5));
    assert!(table.set_layers().contains_key("web"));
}

#[test]
fn a_name_that_two_sources_know_must_be_qualified() {
    let mut table = table_of("");
    table.update(vec![claim("web"), namespace("web")], true);
    let error = set(&mut table, &min("web", 1)).unwrap_err();
    assert_eq!(error.code, "ambiguous-name");
    assert!(error.message.contains("docker:web or netns:web"), "{error}");
    set(&mut table, &min("netns:web", 1)).unwrap();
    assert_eq!(floor(&table, "netns:web"), BitRate::mbit(1));
    assert_eq!(floor(&table, "docker:web"), BitRate::ZERO);
}

/// The rest of the configuration applies.
#[test]
fn configured_minimum_after_one_set_by_hand_is_not_promised() {
    let mut table = table_of("");
    table.update(vec![claim("a")], true);
    set(&mut table, &min("a", 60)).unwrap();
    table.reconfigure(config("[defaults]\nweight = 9\n[[class]]\nname = \"b\"\nmin = \"50mbit\"\n"));
    assert_eq!((floor(&table, "docker:a"), floor(&table, "absent:b")), (BitRate::mbit(60), BitRate::ZERO));
    assert_eq!(table.entries()["docker:a"].effective.policy.weight().get(), 9);
    assert!(unpromised(&table, "absent:b").unwrap().contains("35mbit are free"));
    assert!(
        matches!(table.promise_changes().as_slice(), [Change::Unpromised { key, .. }] if *key == "absent:b")
    );
    table.reconfigure(config("[[class]]\nname = \"a\"\nmax = \"50mbit\"\n"));
    assert!(unpromised(&table, "docker:a").unwrap().contains("above its maximum of 50mbit"));
}

#[test]
fn a_groups_minimum_holds_its_members_minima() {
    let mut table = table_of(
        "[[group]]\nname = \"t\"\nmin = \"30mbit\"\n[[class]]\nname = \"a\"\ngroup = \"t\"\n[[class]]\nname = \"b\"\ngroup = \"t\"\n",
    );
    table.update(vec![claim("a"), claim("b")], true);
    set(&mut table, &min("a", 20)).unwrap();
    assert_eq!(table.reservation().reserved, BitRate::mbit(30));
    assert!(set(&mut table, &min("b", 20)).unwrap_err().message.contains("group t"));
    set(&mut table, &min("t", 40)).unwrap();
    set(&mut table, &min("b", 20)).unwrap();
    assert_eq!(table.entries()["docker:a"].class.group.as_deref(), Some("t"));
}

#[test]
fn unset_lets_the_weaker_origins_show_through() {
    let mut table = table_of("[[class]]\nname = \"a\"\nmin = \"5mbit\"\n");
    table.update(vec![claim("a")], true);
    set(&mut table, &min("a", 20)).unwrap();
    let planned = table.plan_unset("a").unwrap();
    table.commit(planned);
    assert_eq!(floor(&table, "docker:a"), BitRate::mbit(5));
    assert!(table.set_layers().is_empty());
}

/// No section of the configuration sets it.
#[test]
fn control_class_has_a_part_of_the_capacity_that_is_built_in() {
    let table = table_of("[defaults]\nweight = 2\nmin = \"5mbit\"\n");
    let control = table.entries()["weir:control"].effective;
    assert_eq!(
        (control.policy.min(), control.policy.max()),
        (Some(BitRate::mbit(1)), Some(BitRate::mbit(5)))
    );
    assert_eq!(control.origins, [Origin::Default; 3]);
}

#[test]
fn the_control_class_cannot_be_changed_and_does_not_use_up_promises() {
    let mut table = table_of("");
    assert!(set(&mut table, &min("control", 20)).unwrap_err().message.contains("weir's own"));
    assert_eq!(table.reservation().reserved, BitRate::ZERO);
    assert_eq!(floor(&table, CONTROL_KEY), BitRate::mbit(1));
}

fn agreed(container: &str, min: u64, max: u64) -> Agreed {
    Agreed {
        suspended: None,
        id: weir_agree::Name::new(&format!("a-{container}")).unwrap(),
        selector: weir_agree::Selector::service(&weir_agree::Name::new(container).unwrap()),
        weight: None,
        min: BitRate::mbit(min),
        max: BitRate::mbit(max),
        limited_until: None,
    }
}

/// The class gets its own policy back at the end of the agreement.
#[test]
fn agreement_in_force_goes_before_every_other_origin() {
    let text =
        "[agreements]\n[[group]]\nname = \"g\"\n[[class]]\nname = \"web\"\ngroup = \"g\"\nweight = 3\n";
    let mut table = table_of(text);
    table.update(vec![claim("web"), claim("db")], true);
    set(&mut table, &min("web", 5)).unwrap();
    assert!(table.agree(vec![agreed("web", 20, 30), agreed("gone", 10, 10)], BitRate::mbit(30)));
    let web = &table.entries()["docker:web"];
    let policy = web.effective.policy;
    assert_eq!(
        (policy.floor(), policy.ceiling(), policy.weight().get()),
        (BitRate::mbit(20), BitRate::mbit(30), 3)
    );
    assert_eq!(web.effective.origins, [Origin::Config, Origin::Agreement, Origin::Agreement]);
    assert_eq!(web.class.group, None);
    assert_eq!(table.class_of(&agreed("web", 0, 0).id).map(ClassKey::as_str), Some("docker:web"));
    assert!(table.unmet(&agreed("gone", 0, 0).id).unwrap().contains("no container gone now"));
    // A class that is found again while the agreement is in force keeps it.
    table.update(vec![claim("web"), claim("db")], true);
    assert_eq!(floor(&table, "docker:web"), BitRate::mbit(20));

    assert!(table.agree(Vec::new(), BitRate::ZERO));
    let web = &table.entries()["docker:web"];
    assert_eq!((web.class.group.as_deref(), floor(&table, "docker:web")), (Some("g"), BitRate::mbit(5)));
    assert!(!table.agree(Vec::new(), BitRate::ZERO));
}

/// The loop asks for all agreements at once, and a search for each one would take the square of their number.
#[test]
fn all_agreements_are_found_with_their_classes_in_one_pass() {
    let mut table = table_of("[agreements]\n");
    table.update(vec![claim("web")], true);
    let of_packets = |n: usize| {
        let id = weir_agree::Name::new(&format!("a{n:05}")).unwrap();
        let selector = weir_agree::Selector { container: None, ..agreed("web", 0, 1).selector };
        Agreed { id, selector, min: BitRate::ZERO, ..agreed("web", 0, 1) }
    };
    let mut all: Vec<Agreed> = (0..4_000).map(of_packets).collect();
    all.push(agreed("web", 20, 30));
    all.push(agreed("gone", 10, 10));
    table.agree(all.clone(), BitRate::mbit(30));
    let timed = || {
        let began = std::time::Instant::now();
        assert_eq!(table.all_enforced().len(), all.len());
        began.elapsed()
    };
    let took = (0..5).map(|_| timed()).min().expect("it was timed");
    let enforced = table.all_enforced();
    assert_eq!(enforced.len(), all.len());
    for one in [&all[0], &all[3_999], &all[4_000], &all[4_001]] {
        assert_eq!(enforced.get(&one.id).copied(), table.enforced(&one.id), "{}", one.id);
    }
    assert_eq!(enforced[&all[4_000].id].class.map(ClassKey::as_str), Some("docker:web"));
    assert_eq!(enforced[&all[4_001].id].class, None);
    let began = std::time::Instant::now();
    let found = all.iter().filter(|one| table.enforced(&one.id).is_some()).count();
    let singly = began.elapsed();
    println!("{found} agreements: {took:?} in one pass, {singly:?} one by one");
    assert!(took * 20 < singly, "{took:?} in one pass, {singly:?} one by one");
}

#[test]
fn classes_are_not_promised_what_agreements_are() {
    let mut table = table_of("[agreements]\n");
    table.update(vec![claim("web"), claim("db")], true);
    set(&mut table, &min("db", 10)).unwrap();
    table.agree(Vec::new(), BitRate::mbit(60));
    assert_eq!(table.promised_to_classes(), BitRate::mbit(10));
    let error = table.plan(&min("web", 26)).unwrap_err();
    assert_eq!((error.code.as_str(), error.free), ("no-capacity", Some(BitRate::mbit(25))));
    set(&mut table, &min("web", 25)).unwrap();
    // Agreements come before all other promises. When too much is agreed, the newest promise is
    // withdrawn.
    table.agree(Vec::new(), BitRate::mbit(85));
    assert_eq!((floor(&table, "docker:db"), floor(&table, "docker:web")), (BitRate::mbit(10), BitRate::ZERO));
    assert!(unpromised(&table, "docker:web").unwrap().contains("0bit are free"));
}

/// The ceiling exists only while an agreement is in force.
#[test]
fn classes_without_an_agreement_share_the_ceiling_of_others() {
    let mut table = table_of("[agreements]\nshare = \"additive\"\n");
    table.update(vec![claim("web"), DiscoveredClass { group: Some("pod".to_owned()), ..claim("db") }], true);
    let other = |table: &ClassTable| table.entries()["group:other"].effective.policy;
    assert_eq!((other(&table).min(), other(&table).max()), (None, None));
    table.agree(vec![agreed("web", 20, 30)], BitRate::mbit(20));
    assert_eq!((other(&table).floor(), other(&table).ceiling()), (BitRate::mbit(5), BitRate::mbit(5)));
    let group = |key: &str| table.entries()[key].class.group.as_deref();
    assert_eq!(
        ["docker:web", "docker:db", "weir:host", "weir:default"].map(group),
        [None, Some("other"), Some("other"), Some("other")]
    );
    assert_eq!(table.entries()["weir:control"].class.group, None);
    // Promises to classes without an agreement fit in their part.
    assert!(table.plan(&min("db", 6)).is_err());
    assert!(table.plan(&min("db", 5)).is_ok());
}

#[test]
fn two_agreements_are_not_about_one_container() {
    let mut table = table_of("[agreements]\n");
    table.update(vec![claim("web")], true);
    table.agree(vec![agreed("docker:web", 20, 30), agreed("web", 10, 10)], BitRate::mbit(30));
    assert_eq!(floor(&table, "docker:web"), BitRate::mbit(20));
    let why = table.unmet(&agreed("web", 0, 0).id).unwrap();
    assert_eq!(why, "agreement a-docker:web is about the same container");
}

#[test]
fn a_reserved_name_is_never_a_containers() {
    let mut table = table_of("[[group]]\nname = \"tenant\"\n");
    table.update(["host", "default", "control", "tenant"].map(claim).into(), true);
    for (name, key) in [
        ("host", "weir:host"),
        ("default", "weir:default"),
        ("control", "weir:control"),
        ("tenant", "group:tenant"),
        ("docker:host", "docker:host"),
        ("docker:tenant", "docker:tenant"),
    ] {
        assert_eq!(table.find(name).map(ClassKey::as_str).map_err(|e| e.message), Ok(key), "{name}");
    }
    set(&mut table, &min("host", 3)).unwrap();
    assert_eq!((floor(&table, "weir:host"), floor(&table, "docker:host")), (BitRate::mbit(3), BitRate::ZERO));
}

#[test]
fn minima_by_labels_beyond_their_total_are_not_promised() {
    let mut table = table_of("[labels]\nmin_total = \"5mbit\"\n");
    let asks = |name: &str, mbit| DiscoveredClass {
        label: Layer { min: Some(BitRate::mbit(mbit)), ..Layer::default() },
        ..claim(name)
    };
    table.update(vec![asks("first", 4), asks("second", 3)], true);
    assert_eq!(
        (floor(&table, "docker:first"), floor(&table, "docker:second")),
        (BitRate::mbit(4), BitRate::ZERO)
    );
    let why = unpromised(&table, "docker:second").unwrap();
    assert!(why.contains("labels may ask for 5mbit together"), "{why}");
}

#[test]
fn many_names_are_refused_with_the_numbers_and_cost_little() {
    let mut table = table_of("");
    let begun = std::time::Instant::now();
    let absent = |range: std::ops::Range<usize>| SetPolicies {
        changes: range
            .map(|n| PolicyChange {
                weight: Some(Weight::new(2).ok()),
                name: format!("n{n}"),
                ..PolicyChange::default()
            })
            .collect(),
        allow_absent: true,
    };
    let refused = table.plan(&absent(0..100_000)).unwrap_err();
    assert!(
        refused.message.contains("cannot change 100000 classes in one request: at most 10000"),
        "{refused:?}"
    );
    let refused = table.plan(&absent(0..1_001)).unwrap_err();
    assert!(
        refused.message.contains("1001 classes that are not here: at most 1000, and 0 are kept"),
        "{refused:?}"
    );
    set(&mut table, &absent(0..1_000)).unwrap();
    assert!(table.plan(&absent(999..1_001)).is_err());
    // Policies that are kept already can still be changed.
    set(&mut table, &absent(0..1_000)).unwrap();
    // Policies of present classes have no such bound.
    table.update((0..10_000).map(|n| claim(&format!("n{n}"))).collect(), true);
    set(&mut table, &absent(0..10_000)).unwrap();
    assert!(begun.elapsed().as_secs() < 10, "it took {:?}", begun.elapsed());
}

/// The oldest promise wins where the link lacks capacity, and the capacity's return brings all back.
#[test]
fn promises_are_suspended_and_come_back_in_the_order_of_age() {
    let of = |mbit: u64| {
        let text = format!("[link]\ndevice = \"eth0\"\ncapacity = \"{mbit}mbit\"\n");
        crate::config::parse(&text, std::path::Path::new("test.toml")).unwrap()
    };
    let mut table = table_of("");
    table.update(vec![claim("a"), claim("b"), claim("c")], true);
    for (name, mbit) in [("c", 20), ("a", 40), ("b", 10)] {
        set(&mut table, &min(name, mbit)).unwrap();
    }
    let floors = |table: &ClassTable| ["c", "a", "b"].map(|name| floor(table, &format!("docker:{name}")));
    table.reconfigure(of(40));
    assert_eq!(floors(&table), [BitRate::mbit(20), BitRate::ZERO, BitRate::mbit(10)]);
    let changes = table.promise_changes();
    assert!(matches!(changes.as_slice(), [Change::Unpromised { key, .. }] if *key == "docker:a"));
    assert!(unpromised(&table, "docker:a").unwrap().contains("8mbit are free"), "{changes:?}");
    table.reconfigure(of(20));
    assert_eq!(floors(&table), [BitRate::ZERO, BitRate::ZERO, BitRate::mbit(10)]);
    table.promise_changes();
    // A restart keeps the order: c is older than a, though a arrived first.
    let ledger: Ledger = table.ledger().clone();
    let mut table = ClassTable::new(of(20), table.set.clone(), Minors::new(), ledger, BitRate::ZERO);
    table.update(vec![claim("a"), claim("b"), claim("c")], true);
    assert_eq!(table.reservation().reserved, BitRate::mbit(10));
    table.reconfigure(of(60));
    assert_eq!(floors(&table), [BitRate::mbit(20), BitRate::ZERO, BitRate::mbit(10)]);
    table.reconfigure(of(100));
    assert_eq!(floors(&table), [BitRate::mbit(20), BitRate::mbit(40), BitRate::mbit(10)]);
    let mut changes = table.promise_changes();
    changes.retain(|change| !matches!(change, Change::Promised { .. }));
    assert_eq!((changes, unpromised(&table, "docker:a")), (Vec::new(), None));
}

/// A reload may add a runtime after all others have answered.
#[test]
fn a_promise_stays_while_a_runtime_has_not_answered() {
    let mut table = table_of("");
    let label = Layer { min: Some(BitRate::mbit(30)), ..Layer::default() };
    let web = DiscoveredClass { label, ..claim("web") };
    table.update(vec![web.clone()], true);
    let promised = table.ledger().clone();
    assert_eq!(promised.len(), 1);
    table.update(vec![], false);
    assert_eq!((table.ledger(), table.reservation().reserved), (&promised, BitRate::mbit(30)));
    assert!(!table.is_settled());
    table.update(vec![web], true);
    assert_eq!(table.ledger(), &promised);
    table.update(vec![], true);
    assert_eq!(table.ledger(), &Ledger::new());
}

/// The monitor of a container is there before Incus tells its labels.
#[test]
fn a_promise_to_a_container_of_lxc_stays_while_incus_has_not_answered() {
    let mut table = table_of("");
    let bare = DiscoveredClass { source: ClassSource::Lxc, ..claim("web") };
    let label = Layer { min: Some(BitRate::mbit(30)), ..Layer::default() };
    let told = DiscoveredClass { label, ..bare.clone() };
    table.update(vec![told.clone()], true);
    let promised = table.ledger().clone();
    assert_eq!(promised.len(), 1);
    table.update(vec![bare.clone()], false);
    assert_eq!((table.ledger(), table.reservation().reserved), (&promised, BitRate::mbit(30)));
    table.update(vec![told], true);
    assert_eq!(table.ledger(), &promised);
    table.update(vec![bare], true);
    assert_eq!(table.ledger(), &Ledger::new());
}

/// A pod without a report of `weir cni` is found by what its cluster tells.
#[test]
fn a_promise_to_a_pod_stays_while_the_cluster_has_not_answered() {
    let mut table = table_of("");
    let label = Layer { min: Some(BitRate::mbit(30)), ..Layer::default() };
    let of = |source, name: &str| DiscoveredClass { source, label, ..claim(name) };
    table.update(vec![of(ClassSource::Cni, "shop/web"), of(ClassSource::Netns, "lab")], true);
    let (config, ledger) = (table.config().clone(), table.ledger().clone());
    let mut table = ClassTable::new(config, SetLayers::new(), Minors::new(), ledger, BitRate::ZERO);
    table.update(vec![], false);
    assert_eq!(table.ledger().keys().map(ToString::to_string).collect::<Vec<_>>(), ["cni:shop/web"]);
    table.update(vec![], true);
    assert_eq!(table.ledger(), &Ledger::new());
}
