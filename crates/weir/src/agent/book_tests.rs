use super::*;

#[path = "book_random.rs"]
mod random;

fn config(text: &str) -> Config {
    let text = format!("[link]\ndevice = \"eth0\"\ncapacity = \"100mbit\"\n{text}");
    crate::config::parse(&text, std::path::Path::new("test.toml")).unwrap()
}

fn book(text: &str) -> Book {
    Book::new(config(text), SetLayers::new(), Minors::new(), Ledger::new(), BitRate::ZERO)
}

fn claim(name: &str) -> Claim {
    Claim {
        source: ClassSource::Docker,
        name: name.to_owned(),
        kind: Kind::Container,
        group: None,
        label: Layer::default(),
        cut: Vec::new(),
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

fn set(book: &mut Book, changes: &SetPolicies) -> Result<(), Error> {
    let planned = book.plan(changes)?;
    book.commit(planned);
    Ok(())
}

fn unpromised(book: &Book, key: &str) -> Option<String> {
    book.entries()[key].unpromised.as_ref().map(ToString::to_string)
}

fn floor(book: &Book, key: &str) -> BitRate {
    book.entries()[key].effective.policy.floor()
}

#[test]
fn a_value_comes_from_its_strongest_origin() {
    let mut book = book("[defaults]\nweight = 2\n[[class]]\nname = \"web\"\nmax = \"50mbit\"\n");
    let label = Layer { weight: "5".parse().ok(), min: Some(BitRate::mbit(4)), max: Some(BitRate::mbit(9)) };
    book.update(vec![Claim { label, ..claim("web") }, claim("db")], true);
    let web = book.entries()["docker:web"].effective;
    assert_eq!(
        (web.policy.weight().get(), web.policy.floor(), web.policy.ceiling()),
        (5, BitRate::mbit(4), BitRate::mbit(50))
    );
    assert_eq!(web.origins, [Origin::Label, Origin::Label, Origin::Config]);
    set(&mut book, &min("web", 6)).unwrap();
    assert_eq!(book.entries()["docker:web"].effective.origins[1], Origin::Set);
    let db = book.entries()["docker:db"].effective;
    assert_eq!((db.policy.weight().get(), db.origins[0]), (2, Origin::Defaults));
}

#[test]
fn a_class_keeps_its_minor_while_others_come_and_go() {
    let mut book = book("");
    book.update(vec![claim("a"), claim("b"), claim("c")], true);
    let minor = |book: &Book, key: &str| book.entries()[key].minor;
    let (a, c) = (minor(&book, "docker:a"), minor(&book, "docker:c"));
    let changes = book.update(vec![claim("a"), claim("c")], true);
    assert_eq!(changes, [Change::Removed("docker:b".into())]);
    book.update(vec![claim("c"), claim("d"), claim("a")], true);
    assert_eq!((minor(&book, "docker:a"), minor(&book, "docker:c")), (a, c));
    let all: BTreeSet<_> = book.entries().values().map(|e| e.minor).collect();
    assert_eq!(all.len(), book.entries().len());
}

#[test]
fn a_class_has_its_minor_again_after_a_restart_whoever_is_found_first() {
    let mut before = book("");
    before.update(vec![claim("c"), claim("b")], true);
    before.update(vec![claim("a"), claim("b"), claim("c")], true);
    let (config, minors) = (before.config().clone(), before.minors().clone());
    let mut after = Book::new(config, SetLayers::new(), minors, Ledger::new(), BitRate::ZERO);
    assert_eq!(after.minors(), before.minors());
    after.update(vec![claim("a"), claim("b"), claim("c")], true);
    assert_eq!(after.minors(), before.minors());
}

#[test]
fn a_class_has_its_minor_again_after_agreements_came_before_the_survey() {
    let mut before = book("");
    before.update(vec![claim("c"), claim("b")], true);
    before.update(vec![claim("a"), claim("b"), claim("c")], true);
    let (config, minors) = (before.config().clone(), before.minors().clone());
    let mut after = Book::new(config, SetLayers::new(), minors, Ledger::new(), BitRate::ZERO);
    after.agree(vec![agreed("b", 10, 20)], BitRate::mbit(10));
    after.update(vec![claim("a"), claim("b"), claim("c")], true);
    assert_eq!(after.minors(), before.minors());
}

/// The refused request changes nothing.
#[test]
fn minimum_that_does_not_fit_is_refused_with_numbers() {
    let mut book = book("");
    book.update(vec![claim("a"), claim("b")], true);
    set(&mut book, &min("a", 60)).unwrap();
    let before = book.set_layers().clone();
    let error = set(&mut book, &min("b", 40)).unwrap_err();
    assert_eq!(
        (error.code.as_str(), error.asked, error.free),
        ("no-capacity", Some(BitRate::mbit(40)), Some(BitRate::mbit(35)))
    );
    assert_eq!(book.set_layers(), &before);
    assert_eq!(floor(&book, "docker:b"), BitRate::ZERO);
    set(&mut book, &min("b", 35)).unwrap();
    assert_eq!(book.reservation().free(), BitRate::ZERO);
}

#[test]
fn many_changes_are_all_made_or_none() {
    let mut book = book("");
    book.update(vec![claim("a"), claim("b")], true);
    let mut both = min("a", 10);
    both.changes.extend(min("b", 90).changes);
    assert_eq!(set(&mut book, &both).unwrap_err().code, "no-capacity");
    assert_eq!(floor(&book, "docker:a"), BitRate::ZERO);
    let mut twice = min("a", 10);
    twice.changes.extend(min("docker:a", 20).changes);
    assert!(set(&mut book, &twice).unwrap_err().message.contains("twice"));
}

#[test]
fn who_came_first_keeps_what_a_label_was_promised() {
    let mut book = book("");
    let with = |name, mbit| Claim {
        label: Layer { min: Some(BitRate::mbit(mbit)), ..Layer::default() },
        ..claim(name)
    };
    book.update(vec![with("z", 60)], true);
    let changes = book.update(vec![with("a", 60), with("z", 60)], true);
    assert_eq!(floor(&book, "docker:z"), BitRate::mbit(60));
    assert_eq!(floor(&book, "docker:a"), BitRate::ZERO);
    let why = unpromised(&book, "docker:a").unwrap();
    assert!(why.contains("weir.min, is not promised") && why.contains("35mbit are free"), "{why}");
    assert!(changes.contains(&Change::Unpromised { key: "docker:a".into(), why }));
    // When the first class leaves, the second gets the promise.
    let changes = book.update(vec![with("a", 60)], true);
    assert!(changes.contains(&Change::Promised { key: "docker:a".into(), min: BitRate::mbit(60) }));
    assert_eq!(floor(&book, "docker:a"), BitRate::mbit(60));
    assert_eq!(unpromised(&book, "docker:a"), None);
}

#[test]
fn a_label_above_the_configured_maximum_costs_its_class_the_minimum_alone() {
    let mut book = book("[[class]]\nname = \"a\"\nmax = \"10mbit\"\n");
    let label = Layer { min: Some(BitRate::mbit(20)), weight: "3".parse().ok(), max: None };
    book.update(vec![Claim { label, ..claim("a") }], true);
    let policy = book.entries()["docker:a"].effective.policy;
    let (weight, max) = (policy.weight().get(), policy.ceiling());
    assert_eq!((weight, policy.min(), max), (3, None, BitRate::mbit(10)));
    let why = unpromised(&book, "docker:a").unwrap();
    assert!(why.contains("minimum of 20mbit") && why.contains("above its maximum of 10mbit"), "{why}");
}

#[test]
fn a_policy_can_wait_for_a_name_that_is_not_here() {
    let mut book = book("");
    let mut later = min("web", 20);
    assert_eq!(set(&mut book, &later).unwrap_err().code, "unknown-name");
    later.allow_absent = true;
    set(&mut book, &later).unwrap();
    assert_eq!(book.entries()["absent:web"].minor, None);
    // The minimum is reserved for the absent class.
    assert_eq!(book.reservation().reserved, BitRate::mbit(20));
    book.update(vec![claim("web")], true);
    assert_eq!(floor(&book, "docker:web"), BitRate::mbit(20));
    assert!(!book.entries().contains_key("absent:web"));
    assert_eq!(book.reservation().reserved, BitRate::mbit(20));
}

#[test]
fn a_name_that_two_sources_know_must_be_qualified() {
    let mut book = book("");
    book.update(
        vec![claim("web"), Claim { source: ClassSource::Netns, kind: Kind::Netns, ..claim("web") }],
        true,
    );
    let error = set(&mut book, &min("web", 1)).unwrap_err();
    assert_eq!(error.code, "ambiguous-name");
    assert!(error.message.contains("docker:web or netns:web"), "{error}");
    set(&mut book, &min("netns:web", 1)).unwrap();
    assert_eq!(floor(&book, "netns:web"), BitRate::mbit(1));
    assert_eq!(floor(&book, "docker:web"), BitRate::ZERO);
}

/// The rest of the configuration applies.
#[test]
fn configured_minimum_after_one_set_by_hand_is_not_promised() {
    let mut book = book("");
    book.update(vec![claim("a")], true);
    set(&mut book, &min("a", 60)).unwrap();
    book.reconfigure(config("[defaults]\nweight = 9\n[[class]]\nname = \"b\"\nmin = \"50mbit\"\n"));
    assert_eq!((floor(&book, "docker:a"), floor(&book, "absent:b")), (BitRate::mbit(60), BitRate::ZERO));
    assert_eq!(book.entries()["docker:a"].effective.policy.weight().get(), 9);
    assert!(unpromised(&book, "absent:b").unwrap().contains("35mbit are free"));
    assert!(
        matches!(book.promise_changes().as_slice(), [Change::Unpromised { key, .. }] if *key == "absent:b")
    );
    book.reconfigure(config("[[class]]\nname = \"a\"\nmax = \"50mbit\"\n"));
    assert!(unpromised(&book, "docker:a").unwrap().contains("above its maximum of 50mbit"));
}

#[test]
fn a_groups_minimum_holds_its_members_minima() {
    let mut book = book(
        "[[group]]\nname = \"t\"\nmin = \"30mbit\"\n[[class]]\nname = \"a\"\ngroup = \"t\"\n[[class]]\nname = \"b\"\ngroup = \"t\"\n",
    );
    book.update(vec![claim("a"), claim("b")], true);
    set(&mut book, &min("a", 20)).unwrap();
    assert_eq!(book.reservation().reserved, BitRate::mbit(30));
    assert!(set(&mut book, &min("b", 20)).unwrap_err().message.contains("group t"));
    set(&mut book, &min("t", 40)).unwrap();
    set(&mut book, &min("b", 20)).unwrap();
    assert_eq!(book.entries()["docker:a"].claim.group.as_deref(), Some("t"));
}

#[test]
fn unset_lets_the_weaker_origins_show_through() {
    let mut book = book("[[class]]\nname = \"a\"\nmin = \"5mbit\"\n");
    book.update(vec![claim("a")], true);
    set(&mut book, &min("a", 20)).unwrap();
    let planned = book.plan_unset("a").unwrap();
    book.commit(planned);
    assert_eq!(floor(&book, "docker:a"), BitRate::mbit(5));
    assert!(book.set_layers().is_empty());
}

#[test]
fn the_control_class_cannot_be_changed_and_does_not_use_up_promises() {
    let mut book = book("");
    assert!(set(&mut book, &min("control", 20)).unwrap_err().message.contains("weir's own"));
    assert_eq!(book.reservation().reserved, BitRate::ZERO);
    assert_eq!(floor(&book, CONTROL_KEY), BitRate::mbit(1));
}

fn agreed(container: &str, min: u64, max: u64) -> Agreed {
    Agreed {
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
    let mut book = book(text);
    book.update(vec![claim("web"), claim("db")], true);
    set(&mut book, &min("web", 5)).unwrap();
    assert!(book.agree(vec![agreed("web", 20, 30), agreed("gone", 10, 10)], BitRate::mbit(30)));
    let web = &book.entries()["docker:web"];
    let policy = web.effective.policy;
    assert_eq!(
        (policy.floor(), policy.ceiling(), policy.weight().get()),
        (BitRate::mbit(20), BitRate::mbit(30), 3)
    );
    assert_eq!(web.effective.origins, [Origin::Config, Origin::Agreement, Origin::Agreement]);
    assert_eq!(web.claim.group, None);
    assert_eq!(book.class_of(&agreed("web", 0, 0).id).map(ClassKey::as_str), Some("docker:web"));
    assert!(book.unmet(&agreed("gone", 0, 0).id).unwrap().contains("no container gone now"));
    // A class that is found again while the agreement is in force keeps it.
    book.update(vec![claim("web"), claim("db")], true);
    assert_eq!(floor(&book, "docker:web"), BitRate::mbit(20));

    assert!(book.agree(Vec::new(), BitRate::ZERO));
    let web = &book.entries()["docker:web"];
    assert_eq!((web.claim.group.as_deref(), floor(&book, "docker:web")), (Some("g"), BitRate::mbit(5)));
    assert!(!book.agree(Vec::new(), BitRate::ZERO));
}

#[test]
fn classes_are_not_promised_what_agreements_are() {
    let mut book = book("[agreements]\n");
    book.update(vec![claim("web"), claim("db")], true);
    set(&mut book, &min("db", 10)).unwrap();
    book.agree(Vec::new(), BitRate::mbit(60));
    assert_eq!(book.promised_to_classes(), BitRate::mbit(10));
    let error = book.plan(&min("web", 26)).unwrap_err();
    assert_eq!((error.code.as_str(), error.free), ("no-capacity", Some(BitRate::mbit(25))));
    set(&mut book, &min("web", 25)).unwrap();
    // Agreements come before all other promises. When too much is agreed, the newest promise is
    // withdrawn.
    book.agree(Vec::new(), BitRate::mbit(85));
    assert_eq!((floor(&book, "docker:db"), floor(&book, "docker:web")), (BitRate::mbit(10), BitRate::ZERO));
    assert!(unpromised(&book, "docker:web").unwrap().contains("0bit are free"));
}

/// The ceiling exists only while an agreement is in force.
#[test]
fn classes_without_an_agreement_share_the_ceiling_of_others() {
    let mut book = book("[agreements]\nshare = \"additive\"\n");
    book.update(vec![claim("web"), Claim { group: Some("pod".to_owned()), ..claim("db") }], true);
    let other = |book: &Book| book.entries()["group:other"].effective.policy;
    assert_eq!((other(&book).min(), other(&book).max()), (None, None));
    book.agree(vec![agreed("web", 20, 30)], BitRate::mbit(20));
    assert_eq!((other(&book).floor(), other(&book).ceiling()), (BitRate::mbit(5), BitRate::mbit(5)));
    let group = |key: &str| book.entries()[key].claim.group.as_deref();
    assert_eq!(
        ["docker:web", "docker:db", "weir:host", "weir:default"].map(group),
        [None, Some("other"), Some("other"), Some("other")]
    );
    assert_eq!(book.entries()["weir:control"].claim.group, None);
    // Promises to classes without an agreement fit in their part.
    assert!(book.plan(&min("db", 6)).is_err());
    assert!(book.plan(&min("db", 5)).is_ok());
}

#[test]
fn two_agreements_are_not_about_one_container() {
    let mut book = book("[agreements]\n");
    book.update(vec![claim("web")], true);
    book.agree(vec![agreed("docker:web", 20, 30), agreed("web", 10, 10)], BitRate::mbit(30));
    assert_eq!(floor(&book, "docker:web"), BitRate::mbit(20));
    let why = book.unmet(&agreed("web", 0, 0).id).unwrap();
    assert_eq!(why, "agreement a-docker:web is about the same container");
}

#[test]
fn a_reserved_name_is_never_a_containers() {
    let mut book = book("[[group]]\nname = \"tenant\"\n");
    book.update(["host", "default", "control", "tenant"].map(claim).into(), true);
    for (name, key) in [
        ("host", "weir:host"),
        ("default", "weir:default"),
        ("control", "weir:control"),
        ("tenant", "group:tenant"),
        ("docker:host", "docker:host"),
        ("docker:tenant", "docker:tenant"),
    ] {
        assert_eq!(book.find(name).map(ClassKey::as_str).map_err(|e| e.message), Ok(key), "{name}");
    }
    set(&mut book, &min("host", 3)).unwrap();
    assert_eq!((floor(&book, "weir:host"), floor(&book, "docker:host")), (BitRate::mbit(3), BitRate::ZERO));
}

#[test]
fn minima_by_labels_beyond_their_total_are_not_promised() {
    let mut book = book("[labels]\nmin_total = \"5mbit\"\n");
    let asks = |name: &str, mbit| Claim {
        label: Layer { min: Some(BitRate::mbit(mbit)), ..Layer::default() },
        ..claim(name)
    };
    book.update(vec![asks("first", 4), asks("second", 3)], true);
    assert_eq!(
        (floor(&book, "docker:first"), floor(&book, "docker:second")),
        (BitRate::mbit(4), BitRate::ZERO)
    );
    let why = unpromised(&book, "docker:second").unwrap();
    assert!(why.contains("labels may ask for 5mbit together"), "{why}");
}

#[test]
fn many_names_are_refused_with_the_numbers_and_cost_little() {
    let mut book = book("");
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
    let refused = book.plan(&absent(0..100_000)).unwrap_err();
    assert!(
        refused.message.contains("cannot change 100000 classes in one request: at most 10000"),
        "{refused:?}"
    );
    let refused = book.plan(&absent(0..1_001)).unwrap_err();
    assert!(
        refused.message.contains("1001 classes that are not here: at most 1000, and 0 are kept"),
        "{refused:?}"
    );
    set(&mut book, &absent(0..1_000)).unwrap();
    assert!(book.plan(&absent(999..1_001)).is_err());
    // Policies that are kept already can still be changed.
    set(&mut book, &absent(0..1_000)).unwrap();
    // Policies of present classes have no such bound.
    book.update((0..10_000).map(|n| claim(&format!("n{n}"))).collect(), true);
    set(&mut book, &absent(0..10_000)).unwrap();
    assert!(begun.elapsed().as_secs() < 10, "it took {:?}", begun.elapsed());
}
