//! Configurations that are wrong, each in a file of its own with what weir says of it beside it:
//! `--check`, a start and a reload say the same, and nothing on the node changes.
//!
//! With `WEIR_BLESS=1` the test writes the texts again.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Stdio,
    thread::sleep,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use weir_api::ConfigurationText;
use weir_netlab::topology::{Mode, Netns, Spec, Uplink};
use weir_netns_tests::{Agent, EngineKind, Need, Node, binary, can_have, can_run, containers, http, kernel};
use weir_units::BitRate;

/// An agent that must refuse may take so long; one that is still there has not refused.
const REFUSAL: Duration = Duration::from_secs(5);

fn cases() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bad_input");
    let files = fs::read_dir(dir).expect("the cases are there").flatten().map(|entry| entry.path());
    let mut cases: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|e| e == "toml")).collect();
    cases.sort();
    cases
}

/// Runs the agent on a file; its exit code and its words, with the directory left out. No code
/// says that it had to be killed.
fn agent(netns: &Netns, file: &Path, more: &[&str]) -> (Option<i32>, String) {
    let mut command = netns.command(binary().to_str().expect("a path")).expect("can run it");
    command.args(["agent", "--config"]).arg(file).args(more);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("can run it");
    let start = Instant::now();
    while child.try_wait().expect("can wait").is_none() {
        if start.elapsed() > REFUSAL {
            child.kill().expect("can kill");
            break;
        }
        sleep(Duration::from_millis(2));
    }
    let out = child.wait_with_output().expect("can wait");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    // The log goes before the last words.
    let stderr = text(&out.stderr);
    let words = stderr.lines().skip_while(|line| !line.starts_with("weir: "));
    let said = text(&out.stdout) + &words.collect::<Vec<_>>().join("\n");
    (out.status.code(), without_dir(&said, file.parent().expect("it is in a directory")))
}

/// The text without the file's directory and this machine's algorithms.
fn without_dir(text: &str, dir: &Path) -> String {
    let text = text.trim_end().replace(&format!("{}/", dir.display()), "");
    text.split_once("; it has ").map_or(text.clone(), |(text, _)| format!("{text}; it has ..."))
}

/// BPF programs that are loaded: id and name.
fn programs() -> BTreeSet<(u32, String)> {
    let all = libbpf_rs::query::ProgInfoIter::default();
    all.map(|info| (info.id, info.name.to_string_lossy().into_owned())).collect()
}

#[track_caller]
fn unchanged(netns: &Netns, before: &(BTreeMap<String, String>, BTreeSet<(u32, String)>), what: &str) {
    let after = kernel::traces(netns);
    let altered: Vec<_> = after.iter().filter(|(k, v)| before.0.get(*k) != Some(v)).collect();
    assert!(altered.is_empty() && after.len() == before.0.len(), "{what}: {altered:?}");
    let left: Vec<_> = programs().difference(&before.1).cloned().collect();
    assert!(left.is_empty(), "{what}: programs are left: {left:?}");
}

/// The files are as a user would write them; only where socket and state are is filled in.
fn fill_in(case: &Path, dir: &Path) -> PathBuf {
    let text = fs::read_to_string(case).expect("can read");
    let file = dir.join("weir.toml");
    fs::write(&file, text.replace("DIR", dir.to_str().expect("a path"))).expect("can write");
    file
}

#[test]
fn each_bad_configuration_is_refused_alike_and_changes_nothing() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let start = Instant::now();
    let mut node = Node::build(&Spec { containers: containers(1), wire: None, ..Spec::default() });
    let dir = tempfile::Builder::new().prefix("weir-test-").tempdir().expect("can make a directory");
    let cases = cases();
    assert!(cases.len() > 30, "{} cases", cases.len());
    let mut said = BTreeMap::new();
    let netns = node.topology.node();
    let before = (kernel::traces(netns), programs());
    for case in &cases {
        let name = case.file_stem().expect("a name").to_string_lossy().into_owned();
        let file = fill_in(case, dir.path());
        let (checked, started) = (agent(netns, &file, &["--check"]), agent(netns, &file, &[]));
        assert_eq!(checked, started, "{name}: --check and the agent disagree");
        // The golden file has the code.
        let code = checked.0.unwrap_or_else(|| panic!("{name}: killed after {REFUSAL:?}: {}", checked.1));
        unchanged(netns, &before, &name);
        said.insert(name, (code, checked.1));
    }
    let begun = start.elapsed();

    // An agent that runs keeps what it has, and says so.
    node.start(&node.config().capacity(BitRate::mbit(20)));
    let good = fs::read_to_string(node.agent().config_path()).expect("can read");
    let classes = kernel::classes(node.topology.node()).len();
    let path = node.agent().config_path();
    let home = path.parent().expect("it is in a directory").to_owned();
    let before = (kernel::traces(node.topology.node()), programs());
    let mut goldens = BTreeMap::new();
    for case in &cases {
        let name = case.file_stem().expect("a name").to_string_lossy().into_owned();
        fill_in(case, &home);
        node.agent().signal(Signal::SIGHUP);
        let told = told(&node, &name, Option::is_some);
        let text = fs::read_to_string(&path).expect("can read");
        let planned =
            node.client().plan_configuration(&ConfigurationText { path: path.display().to_string(), text });
        let planned = planned.expect_err("the plan is refused too").to_string();
        assert_eq!(planned, told, "{name}: the plan and the reload disagree");
        let (told, (code, checked)) = (without_dir(&told, &home), &said[&name]);
        let mut golden = format!("exit {code}\n{checked}\n");
        let as_checked = checked.strip_prefix("weir: ").unwrap_or(checked);
        // Another device or another socket needs a restart, and that is said before the rest.
        let reload = if told.trim_end() == as_checked { "the same" } else { told.as_str() };
        let _ = writeln!(golden, "\nat a reload: {reload}");
        goldens.insert(case.with_extension("golden"), golden);
        assert!(node.weir(&["status"]).contains("! the file was refused, the old one is in force"), "{name}");
        let held = kernel::classes(node.topology.node());
        assert_eq!(held.len(), classes, "{name}");
        fs::write(&path, &good).expect("can write");
        node.agent().signal(Signal::SIGHUP);
        self::told(&node, &name, Option::is_none);
    }
    unchanged(node.topology.node(), &before, "the reloads");
    println!("{} cases: {begun:?} to check and to start, {:?} with reloads", cases.len(), start.elapsed());
    let mut differ = Vec::new();
    for (path, golden) in goldens {
        if std::env::var_os("WEIR_BLESS").is_some() {
            fs::write(&path, &golden).expect("can write");
        }
        let wanted = fs::read_to_string(&path).unwrap_or_default();
        if wanted != golden {
            differ.push(format!("{}\n--- wanted\n{wanted}--- got\n{golden}", path.display()));
        }
    }
    assert!(differ.is_empty(), "{} differ:\n{}", differ.len(), differ.join("\n"));
}

/// Waits for the agent's word on its configuration.
fn told(node: &Node, what: &str, is_it: impl Fn(&Option<String>) -> bool) -> String {
    let start = Instant::now();
    loop {
        let error = node.client().status().expect("the agent answers").config_error;
        if is_it(&error) {
            return error.unwrap_or_default();
        }
        assert!(start.elapsed() < Duration::from_secs(3), "{what}: the agent says {error:?}");
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn file_that_is_refused_late_gives_no_one_a_right() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(1), ..Spec::default() });
    let config = node.config();
    node.start(&config);
    let mode = |node: &Node| fs::metadata(node.socket()).expect("it is there").permissions().mode() & 0o777;
    let before = mode(&node);
    // The download's own device has this name.
    node.sh(&["ip", "link", "add", "weir0d", "type", "bridge"]);
    let more = node.config().link("download = \"20mbit\"").sections("[access]\nread = [\"nobody\"]\n");
    node.agent().rewrite(&more).expect("can write");
    let why = told(&node, "a download that cannot begin", Option::is_some);
    assert!(why.contains("cannot share [link] download"), "{why}");
    assert_eq!(mode(&node), before, "the socket is open to no one else");
    node.sh(&["ip", "link", "del", "weir0d"]);
    node.agent().rewrite(&config).expect("can write");
    told(&node, "the file of before", Option::is_none);
    node.agent().rewrite(&more).expect("can write");
    let opens = Instant::now();
    while mode(&node) == before {
        assert!(opens.elapsed() < Duration::from_secs(3), "the file that is taken opens the socket");
        sleep(Duration::from_millis(5));
    }
}

/// `--check`, a start and the doctor of an agent with another engine say the same of it.
#[test]
fn engine_user_on_a_link_without_ethernet_is_refused_with_the_way_out() {
    if !can_run(&Need::TRAFFIC) || !can_have(Uplink::Tunnel) {
        return;
    }
    let uplink = Uplink::Tunnel;
    let spec = Spec { containers: containers(1), mode: Mode::Routed, uplink, ..Spec::default() };
    let mut node = Node::build(&spec);
    let dir = tempfile::Builder::new().prefix("weir-test-").tempdir().expect("can make a directory");
    let file = dir.path().join("weir.toml");
    fs::write(&file, node.config().engine(EngineKind::User).to_toml(dir.path())).expect("can write");
    let netns = node.topology.node();
    let before = (kernel::traces(netns), programs());
    let why = "cannot use engine user: packets of up0 have no Ethernet header, which its macvtap needs \
               (use engine = \"auto\" or \"htb\")";
    for more in [&["--check"][..], &[]] {
        let (code, said) = agent(netns, &file, more);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.starts_with("weir: ") && said.ends_with(&format!("[link] engine: {why}")), "{said}");
        unchanged(netns, &before, &said);
    }
    node.start(&node.config());
    let doctor = node.ran(&["doctor"]);
    assert!(doctor.stdout.contains(why), "{}{}", doctor.stdout, doctor.stderr);
}

#[test]
fn files_that_cannot_be_read_are_refused_with_the_way_out_and_one_cause() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let node = Node::build(&Spec { containers: containers(1), wire: None, ..Spec::default() });
    let netns = node.topology.node();
    let dir = tempfile::Builder::new().prefix("weir-test-").tempdir().expect("can make a directory");
    let before = (kernel::traces(netns), programs());
    fs::write(dir.path().join("latin-1.toml"), b"[link]\ndevice = \"\xfcplink\"\n").expect("can write");
    fs::create_dir(dir.path().join("directory.toml")).expect("can make a directory");
    for (file, words) in [
        (
            "nowhere.toml",
            "weir: cannot read configuration nowhere.toml: there is no such file (`weir agent --print-config > nowhere.toml` writes one to fill in)",
        ),
        ("directory.toml", "weir: cannot read configuration directory.toml: Is a directory (os error 21)"),
        ("latin-1.toml", "weir: cannot read configuration latin-1.toml: stream did not contain valid UTF-8"),
    ] {
        let file = dir.path().join(file);
        for more in [&["--check"][..], &[]] {
            assert_eq!(agent(netns, &file, more), (Some(2), words.to_owned()));
        }
        unchanged(netns, &before, words);
    }

    // The command in the message does what it says, and the file needs only the link.
    let file = dir.path().join("nowhere.toml");
    let mut command = netns.command(binary().to_str().expect("a path")).expect("can run it");
    let printed = command.args(["agent", "--print-config"]).output().expect("can run it").stdout;
    fs::write(&file, &printed).expect("can write");
    let (code, why) = agent(netns, &file, &["--check"]);
    assert_eq!(code, Some(2));
    assert!(why.contains("fill in device and capacity"), "{why}");
    let text = String::from_utf8(printed).expect("it is text");
    let filled = text
        .replace("# device = \"eth0\"", "device = \"up0\"")
        .replace("# capacity = \"95mbit\"", "capacity = \"1mbit\"");
    fs::write(&file, filled).expect("can write");
    assert_eq!(agent(netns, &file, &["--check"]), (Some(0), "nowhere.toml is good".to_owned()));
    unchanged(netns, &before, "a check of the installed configuration");
}

/// C1 is promised 30 Mbit/s and then C2 40, of 95. A capacity of 50 has room for the older promise.
#[test]
fn a_lowered_capacity_costs_the_newest_minimum_alone_also_after_a_restart() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(2), wire: None, ..Spec::default() });
    node.start(&node.config());
    let (c1, c2) = (node.name("C1"), node.name("C2"));
    node.weir(&["set", &c1, "min=30mbit"]);
    node.weir(&["set", &c2, "min=40mbit", "max=50mbit", "weight=2"]);
    let low = node.config().capacity(BitRate::mbit(50)).awaiting(std::slice::from_ref(&c1));
    node.agent().rewrite(&low).expect("can write");
    let is_low = |client: &weir_api::Client| {
        let status = client.status().ok()?;
        (status.capacity != BitRate::mbit(50)).then(|| format!("the capacity is {}", status.capacity))
    };
    node.agent().wait_until("take the lower capacity", is_low).unwrap_or_else(|e| panic!("{e:#}"));
    let why = "its minimum of 40mbit is not promised: 30mbit of the 47.5mbit that may be promised are taken, \
               17.5mbit are free";
    let held = |node: &mut Node| {
        let (one, two) = (node.class("C1"), node.class("C2"));
        assert_eq!((one.policy.min, one.enforced), (Some(BitRate::mbit(30)), true));
        assert_eq!((two.policy.min, two.unpromised), (None, Some(BitRate::mbit(40))));
        assert_eq!((two.policy.max, two.policy.weight.get()), (Some(BitRate::mbit(50)), 2));
        assert!(!two.enforced && two.handle.is_some());
        for verb in [&["ps"][..], &["status"], &["explain", &c2], &["events"]] {
            let shown = node.weir(verb);
            assert!(shown.contains(why), "weir {}:\n{shown}", verb.join(" "));
        }
        // The node works: a wish that does not fit is not its fault.
        let (ready, said) = http(node.socket(), "GET /readyz", "", b"").expect("the socket answers");
        assert_eq!(ready, 200, "{said}");
        let metrics = metrics(node);
        let line =
            format!("weir_class_enforced{{class=\"{c2}\",source=\"netns\",reason=\"unpromised\"}} 0.0");
        assert!(metrics.lines().any(|l| l == line), "{line}\n{metrics}");
        let line = format!(
            "weir_class_unpromised_min_bytes_per_second{{class=\"{c2}\",source=\"netns\"}} 5000000.0"
        );
        assert!(metrics.lines().any(|l| l == line), "{line}\n{metrics}");
        let handle = one.handle.expect("it has a class");
        let rate = kernel::classes(node.topology.node())[&handle].class.rate;
        assert!(rate >= BitRate::mbit(30), "the kernel gives {rate} to the one that is promised 30mbit");
    };
    held(&mut node);
    // C1 is found after C2 by name, or before: the order of promises is stored.
    node.agent().kill();
    node.restart();
    held(&mut node);
    assert!(node.agent().stop());
    node.restart();
    held(&mut node);

    let high = node.config().awaiting(&[c1.clone(), c2.clone()]);
    node.agent().rewrite(&high).expect("can write");
    node.agent().wait_until_ready().unwrap_or_else(|e| panic!("{e:#}"));
    assert_eq!(node.class("C2").policy.min, Some(BitRate::mbit(40)));
    let events = node.weir(&["events"]);
    assert!(events.contains("its minimum of 40mbit is promised now"), "{events}");
}

/// The text that Prometheus reads.
fn metrics(node: &Node) -> String {
    http(node.socket(), "GET /metrics", "", b"").expect("it answers").1
}

/// The example of a new user: what is found later is a class, whatever another class asks for.
#[test]
fn a_minimum_that_does_not_fit_leaves_every_other_class_enforced() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let node = Node::build(&Spec { containers: containers(3), wire: None, ..Spec::default() });
    let names: Vec<String> = ["C1", "C2", "C3"].map(|label| node.name(label)).to_vec();
    // One section is about two containers of this name: the second has no room.
    let minima = "[defaults]\nmin = \"12mbit\"\n";
    let more = format!("{minima}[[class]]\nname = \"{}\"\nmax = \"15mbit\"\n", names[2]);
    let config = node.config().capacity(BitRate::mbit(30)).sections(&more).awaiting(&names[..1]);
    let mut agent = Agent::start(node.topology.node(), &config).unwrap_or_else(|e| panic!("{e:#}"));
    let all = |client: &weir_api::Client| {
        let classes = client.classes().ok()?;
        let here = |name: &&String| classes.iter().any(|c| c.name == **name && c.handle.is_some());
        names.iter().find(|name| !here(name)).map(|name| format!("{name} has no class"))
    };
    agent.wait_until("have all classes", all).unwrap_or_else(|e| panic!("{e:#}"));
    let classes = agent.client().classes().expect("it answers");
    let of = |name: &String| classes.iter().find(|c| c.name == *name).expect("it is there");
    let promised = names.iter().filter(|name| of(name).policy.min == Some(BitRate::mbit(12))).count();
    let lacking: Vec<_> = names.iter().filter(|name| of(name).unpromised.is_some()).collect();
    assert_eq!((promised, lacking.len()), (2, 1), "{classes:#?}");
    assert_eq!(of(&names[2]).policy.max, Some(BitRate::mbit(15)));
    let ps = agent.weir(node.topology.node(), &["ps"]).expect("it runs").stdout;
    assert!(
        ps.contains(&format!("! {} is not enforced: its minimum of 12mbit is not promised", lacking[0])),
        "{ps}"
    );
    let held = kernel::classes(node.topology.node());
    for name in &names {
        let class = &held[of(name).handle.as_ref().expect("it has a class")].class;
        println!("{name}: {} to {}", class.rate, class.ceil);
    }
}
