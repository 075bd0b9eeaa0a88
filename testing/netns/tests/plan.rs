//! `weir plan`, `weir set --dry-run` and `weir undo`: what a plan says is what then happens.

use std::collections::BTreeMap;

use weir_api::{Activity, Class, Plan, PlannedChange, PolicyView};
use weir_netlab::topology::Spec;
use weir_netns_tests::{Need, Node, can_run, containers, kernel};
use weir_units::BitRate;

/// A class as a plan shows it: policy, group, interfaces, presence, and whether its minimum is not promised.
type State = (PolicyView, Option<String>, Vec<String>, bool, bool);
type States = BTreeMap<(String, String), State>;

fn states(node: &Node) -> States {
    let state = |class: Class| {
        let present = class.activity != Activity::Absent;
        let state = (class.policy, class.group, class.interfaces, present, class.unpromised.is_some());
        ((class.source, class.name), state)
    };
    node.client().classes().expect("the agent answers").into_iter().map(state).collect()
}

/// The classes after these changes.
fn changed(mut states: States, changes: &[PlannedChange]) -> States {
    for change in changes {
        let key = (change.source.clone(), change.name.clone());
        let of = |state: &weir_api::PlannedState| {
            let promised = state.not_promised.is_some();
            (state.policy, state.group.clone(), state.interfaces.clone(), state.present, promised)
        };
        assert_eq!(states.get(&key), change.before.as_ref().map(of).as_ref(), "{key:?} before");
        match &change.after {
            Some(after) => drop(states.insert(key, of(after))),
            None => drop(states.remove(&key)),
        }
    }
    states
}

fn node() -> Node {
    let mut node = Node::build(&Spec { containers: containers(2), wire: None, ..Spec::default() });
    node.start(&node.config());
    node
}

/// The capacity falls below the sum of the minima, a class moves into a group, and one is yet to come.
#[test]
fn plan_of_a_configuration_is_what_its_reload_does() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = node();
    let (c1, c2) = (node.name("C1"), node.name("C2"));
    node.weir(&["set", &c1, "min=30mbit"]);
    node.weir(&["set", &c2, "min=40mbit"]);
    let sections = format!(
        "[[group]]\nname = \"tenants\"\nweight = 2\n[[class]]\nname = \"{c1}\"\nweight = 4\ngroup = \"tenants\"\n\
         [[class]]\nname = \"late\"\ninterface = \"nowhere0\"\nmax = \"5mbit\"\n"
    );
    let new =
        node.config().capacity(BitRate::mbit(50)).sections(&sections).awaiting(std::slice::from_ref(&c1));
    let path = node.agent().config_path();
    let text = new.to_toml(path.parent().expect("it is in a directory"));
    let file = tempfile::NamedTempFile::new().expect("can make a file");
    std::fs::write(file.path(), &text).expect("can write");
    let name = file.path().to_str().expect("it is text");

    let (before, traces) = (states(&node), kernel::traces(node.topology.node()));
    let plan: Plan = serde_json::from_str(&node.weir(&["plan", name, "--json"])).expect("it is a plan");
    let shown = node.weir(&["plan", name]);
    for told in ["[link] capacity", "4", "tenants", "late", "nothing is changed yet"] {
        assert!(shown.contains(told), "{told}:\n{shown}");
    }
    let why = format!("! {c2}: its minimum of 40mbit is not promised: 30mbit of the 47.5mbit");
    assert!(shown.contains(&why), "{why}:\n{shown}");
    assert_eq!(states(&node), before, "a plan changes nothing");
    assert_eq!(kernel::traces(node.topology.node()), traces, "nothing in the kernel either");

    node.agent().rewrite(&new).expect("can write");
    let is_there = |client: &weir_api::Client| {
        let late = client.class("late").err().map(|e| e.to_string());
        late.or_else(|| client.status().ok()?.config_error)
    };
    node.agent().wait_until("follow the file", is_there).unwrap_or_else(|e| panic!("{e:#}"));
    assert_eq!(states(&node), changed(before, &plan.classes));
    assert!(node.weir(&["plan", name]).starts_with("nothing would change"), "the file is in force");
}

#[test]
fn dry_run_is_what_set_does_and_undo_takes_it_back_after_a_restart() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = node();
    let (c1, c2) = (node.name("C1"), node.name("C2"));
    let none = node.ran(&["undo"]);
    assert!(none.code == Some(1) && none.stderr.contains("none is left to take back"), "{}", none.stderr);

    let first = states(&node);
    let words = ["set", &c1, "weight=3", "min=60mbit"];
    let plan: Plan = serde_json::from_str(&node.weir(&[&words[..], &["--dry-run", "--json"]].concat()))
        .expect("it is a plan");
    assert_eq!(states(&node), first, "a dry run changes nothing");
    node.weir(&words);
    let second = states(&node);
    assert_eq!(second, changed(first.clone(), &plan.classes));
    assert_ne!(second, first);

    // The dry run is refused as the change itself is.
    let words = ["set", &c2, "min=40mbit"];
    let (dry, real) = (node.ran(&[&words[..], &["--dry-run"]].concat()), node.ran(&words));
    assert!(dry.code == Some(1) && dry.stderr.contains("40mbit"), "{}", dry.stderr);
    assert_eq!(dry.stderr, real.stderr);

    node.weir(&["unset", &c1]);
    node.weir(&["set", &c2, "min=50mbit"]);
    node.agent().kill();
    node.restart();
    let wait = |client: &weir_api::Client| client.class(&c2).err().map(|e| e.to_string());
    node.agent().wait_until("find the classes", wait).unwrap_or_else(|e| panic!("{e:#}"));
    let said = node.weir(&["undo"]);
    assert!(said.starts_with("took back the change of ") && said.contains(&c2), "{said}");
    assert_eq!(states(&node), first);
    let plan: Plan =
        serde_json::from_str(&node.weir(&["undo", "--dry-run", "--json"])).expect("it is a plan");
    node.weir(&["undo"]);
    assert_eq!(states(&node), second, "the minimum that `unset` took away is back");
    assert_eq!(second, changed(first.clone(), &plan.classes));

    // The replaced minimum does not fit any more: the other class was promised it meanwhile.
    node.weir(&["set", &c1, "min=none"]);
    let label = format!("[[class]]\nname = \"{c2}\"\nmin = \"50mbit\"\n");
    let config = node.config().sections(&label).awaiting(&[c1.clone(), c2.clone()]);
    node.agent().rewrite(&config).expect("can write");
    let promised = |client: &weir_api::Client| {
        let min = client.class(&c2).ok()?.policy.min;
        (min != Some(BitRate::mbit(50))).then(|| format!("the minimum is {min:?}"))
    };
    node.agent().wait_until("promise the other's minimum", promised).unwrap_or_else(|e| panic!("{e:#}"));
    let before = states(&node);
    let refused = node.ran(&["undo"]);
    let told = "cannot take back the last change of policy: ";
    assert!(
        refused.code == Some(1) && refused.stderr.contains(told) && refused.stderr.contains("60mbit"),
        "{}",
        refused.stderr
    );
    assert_eq!(states(&node), before, "a refusal changes nothing");
}
