//! Bad input of each kind has a clear error and an exit code, and changes nothing.

use std::{
    fs,
    io::{Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::Path,
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use nix::{sys::signal::Signal, unistd::chown};
use weir_datapath::{engine::MAX_LINKS, pacing::Root};
use weir_discovery::NetnsRef;
use weir_netlab::topology::{Netns, Spec};
use weir_netns_tests::{Config, Need, Node, Ran, binary, can_run, containers, kernel};
use weir_units::BitRate;

/// Two containers without traffic: C1 with a minimum from the configuration, C2 with both
/// limits set by hand. 90.25 Mbit/s may be promised, 50 are.
fn promised() -> Node {
    let mut node = Node::build(&Spec { containers: containers(2), wire: None, ..Spec::default() });
    let config = config(&node, "");
    node.start(&config);
    node.weir(&["set", &node.name("C2"), "min=30mbit", "max=50mbit"]);
    node.weir(&["set", "default", "max=8mbit", "weight=1"]);
    node
}

fn config(node: &Node, more: &str) -> Config {
    node.config().sections(&format!("[[class]]\nname = \"{}\"\nmin = \"20mbit\"\n{more}", node.name("C1")))
}

/// Everybody's policy as the agent tells it, and what the kernel holds of it: whom the tree
/// has, where, up to which rate. (Rates below that follow demand.)
fn in_force(node: &Node) -> String {
    let classes = node.client().classes().expect("the agent answers");
    let policies: Vec<_> = classes.iter().map(|c| (&c.name, c.policy, &c.handle, c.enforced)).collect();
    let held: Vec<_> = kernel::classes(node.topology.node())
        .into_iter()
        .map(|(handle, f)| (handle, f.class.parent, f.class.ceil, f.class.prio, f.leaf))
        .collect();
    format!("{policies:?}\n{held:?}")
}

/// Asserts that a run was refused with that exit code and all of these words.
#[track_caller]
fn refused(ran: &Ran, what: &str, code: i32, words: &[&str]) {
    println!("{what:<62} {:?}: {}", ran.code, ran.stderr.trim().replace('\n', " / "));
    assert_eq!(ran.code, Some(code), "{what}: {}{}", ran.stdout, ran.stderr);
    assert!(ran.stderr.starts_with("weir: "), "{what}: {}", ran.stderr);
    assert_eq!(ran.stdout, "", "{what}");
    for word in words {
        assert!(ran.stderr.contains(word), "{what}: `{word}` is not in: {}", ran.stderr);
    }
}

#[test]
fn what_the_command_line_gets_wrong_is_refused_and_changes_nothing() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = promised();
    let (pid, before) = (node.agent().id(), in_force(&node));
    let (c1, c2) = (node.name("C1"), node.name("C2"));
    let netns = node.topology.node();
    let agent = |arguments: &[&str]| {
        let mut command = netns.command(binary().to_str().expect("a path")).expect("can run it");
        command.args(arguments).env("WEIR_SOCKET", node.client().address()).env("COLUMNS", "500");
        let out = command.output().expect("can run it");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ran { code: out.status.code(), stdout: text(&out.stdout), stderr: text(&out.stderr) }
    };

    // Wrong by itself: the agent is not even asked.
    for (setting, words) in [
        ("max=-5mbit", &["a rate is not negative"][..]),
        ("min=-1", &["a rate is not negative"]),
        ("max=0", &["would cut the class off"]),
        ("min=0mbit", &["promises nothing"]),
        ("max=7bit", &["7bit"]),
        ("max=999999gbit", &["more than 10000gbit"]),
        ("min=99999999999999999999999999999999gbit", &["more than 10000gbit"]),
        ("max=1e99", &["cannot read `1e99` as a rate"]),
        ("max=NaN", &["cannot read `NaN` as a rate"]),
        ("max=20 apples", &["cannot read `20 apples` as a rate"]),
        ("weight=0", &["cannot use `0` as a weight"]),
        ("weight=-1", &["cannot use `-1` as a weight"]),
        ("weight=4294967297", &["cannot use `4294967297` as a weight"]),
        ("weight=1.5", &["cannot use `1.5` as a weight"]),
        ("speed=3", &["there is no `speed` to set"]),
        ("weight", &["write weight=N"]),
    ] {
        refused(&agent(&["set", &c1, setting]), setting, 2, words);
    }
    let both = ["set", &c1, "min=50mbit", "max=40mbit"];
    refused(&agent(&both), "min above max", 2, &["minimum 50mbit is above maximum 40mbit"]);
    let twice = ["set", &c1, "weight=1", "weight=2"];
    refused(&agent(&twice), "a key twice", 2, &["cannot set weight", "twice"]);
    refused(&agent(&["set", &c1]), "no setting", 2, &["KEY=VALUE"]);
    refused(&agent(&["set", "weight=3"]), "no name", 2, &["the class comes first"]);

    // Wrong as things are: the agent says no.
    let free = ["80mbit", "60.25mbit are free"];
    refused(&agent(&["set", &c1, "min=80mbit"]), "minima above what may be promised", 1, &free);
    let whole = ["200mbit", "the whole link has 95mbit", "60.25mbit are free"];
    refused(&agent(&["set", &c1, "min=200mbit"]), "a minimum above the link", 1, &whole);
    let max = ["minimum 60mbit is above maximum 50mbit"];
    refused(&agent(&["set", &c2, "min=60mbit"]), "min above the max that is in force", 1, &max);
    let max = ["minimum 20mbit is above maximum 10mbit"];
    refused(&agent(&["set", &c1, "max=10mbit"]), "max below the configured min", 1, &max);
    for verb in [&["set", "nobody", "weight=2"][..], &["unset", "nobody"], &["explain", "nobody"]] {
        refused(&agent(verb), &verb.join(" "), 1, &["no class or group is called nobody", "weir ps"]);
    }
    refused(&agent(&["set", "control", "weight=2"]), "weir's own class", 1, &["weir's own"]);
    let name = ["set", "../../etc", "weight=2", "--keep"];
    refused(&agent(&name), "a name that is none, to be kept", 1, &["is not a name"]);

    // Many at once: all or none.
    let dir = tempfile::tempdir().expect("can make a directory");
    let file = dir.path().join("changes.json");
    let path = file.to_str().expect("a path");
    for (text, code, words) in [
        (format!("[{{\"name\":\"{c1}\",\"weight\":9}},{{\"name\":\"nobody\",\"weight\":2}}]"), 1, "nobody"),
        (
            format!(
                "[{{\"name\":\"{c1}\",\"weight\":9}},{{\"name\":\"{c2}\",\"min\":\"89mbit\",\"max\":\"90mbit\"}}]"
            ),
            1,
            "89mbit",
        ),
        (format!("[{{\"name\":\"{c1}\",\"weight\":9}},{{\"name\":\"{c1}\",\"weight\":8}}]"), 2, "twice"),
        (
            format!("[{{\"name\":\"{c1}\",\"weight\":9}},{{\"name\":\"netns:{c1}\",\"weight\":8}}]"),
            1,
            "twice",
        ),
        (format!("[{{\"name\":\"{c1}\",\"wieght\":9}}]"), 2, "unknown field `wieght`"),
        (format!("[{{\"name\":\"{c1}\",\"max\":18446744073709551615}}]"), 2, "10000gbit"),
        ("[".to_owned(), 2, "EOF"),
        (String::new(), 2, "EOF"),
        ("[]".to_owned(), 2, "no change"),
    ] {
        fs::write(&file, &text).expect("can write");
        refused(&agent(&["set", "--file", path]), &format!("file {text}"), code, &[words]);
    }
    refused(&agent(&["set", "--file", "/nowhere.json"]), "no such file", 2, &["/nowhere.json"]);
    let nobody_there = ["--socket", "/nowhere/weir.sock", "ps"];
    refused(&agent(&nobody_there), "no agent", 1, &["cannot reach the agent at /nowhere/weir.sock"]);

    assert_eq!(in_force(&node), before);
    assert_eq!(node.client().status().expect("it answers").pid, pid, "the agent is another one");
}

/// Sends bytes to the agent's socket; what comes back until it closes, or falls silent.
fn talk(socket: &Path, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(1))).expect("a timeout can be set");
    // The agent may hang up in the middle of it.
    let _ = stream.write_all(bytes);
    let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(n) = stream.read(&mut buffer) {
        answer.extend_from_slice(&buffer[..n]);
        let text = String::from_utf8_lossy(&answer);
        if n == 0 || text.ends_with('}') {
            break;
        }
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn what_the_socket_gets_wrong_is_refused_and_changes_nothing() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = promised();
    let (pid, before) = (node.agent().id(), in_force(&node));
    let socket = node.socket().to_owned();
    let c1 = node.name("C1");
    let patch = |body: &str| {
        format!("PATCH /v1/policies HTTP/1.1\r\nhost: weir\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    };
    let change = |fields: &str| patch(&format!("{{\"changes\":[{{\"name\":\"{c1}\",{fields}}}]}}"));
    let large = format!("{{\"changes\":[{}]}}", " ".repeat(5 << 20));
    let long_header = format!("GET /v1/status HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(2 << 20));
    for (what, bytes, status, word) in [
        ("not HTTP", "\u{16}\u{3}\u{1}\u{0}\u{1}garbage\r\n\r\n".to_owned(), "400", ""),
        ("no such route", "GET /v2/status HTTP/1.1\r\nhost: weir\r\n\r\n".to_owned(), "404", "unknown-route"),
        (
            "no such method",
            "PUT /v1/policies HTTP/1.1\r\nhost: weir\r\ncontent-length: 0\r\n\r\n".to_owned(),
            "405",
            "bad-method",
        ),
        (
            "a path that climbs",
            "GET /v1/classes/../../../etc/passwd HTTP/1.1\r\nhost: weir\r\n\r\n".to_owned(),
            "404",
            "unknown-route",
        ),
        (
            "a name that is not UTF-8",
            "GET /v1/classes/%ff%fe HTTP/1.1\r\nhost: weir\r\n\r\n".to_owned(),
            "400",
            "bad-request",
        ),
        ("headers without end", long_header, "431", ""),
        ("no body", patch(""), "400", "EOF"),
        ("a body that is not JSON", patch("weight=3"), "400", "bad-request"),
        ("a body of 5 MiB", patch(&large), "413", "too-large"),
        ("a negative rate", change("\"max\":-1"), "400", "a rate is not negative"),
        ("a rate of zero", change("\"max\":0"), "400", "would cut the class off"),
        ("a rate of 2^64 - 1", change("\"max\":18446744073709551615"), "400", "10000gbit"),
        ("a rate of 2^64", change("\"max\":18446744073709551616"), "400", "bad-request"),
        ("a fraction", change("\"max\":1.5"), "400", "bad-request"),
        ("a rate in words", change("\"min\":\"fast\""), "400", "cannot read `fast` as a rate"),
        ("weight 0", change("\"weight\":0"), "400", "cannot use `0` as a weight"),
        ("weight 2^32", change("\"weight\":4294967296"), "400", "weight"),
        ("an unknown field", change("\"speed\":1"), "400", "unknown field `speed`"),
        ("min above max", change("\"min\":50000000,\"max\":40000000"), "400", "is above maximum"),
        ("minima above what may be promised", change("\"min\":80000000"), "409", "\"free\":60250000"),
        (
            "an unknown name",
            patch("{\"changes\":[{\"name\":\"nobody\",\"weight\":1}]}"),
            "404",
            "unknown-name",
        ),
        (
            "an unknown name to take away",
            "DELETE /v1/policies/nobody HTTP/1.1\r\nhost: weir\r\n\r\n".to_owned(),
            "404",
            "unknown-name",
        ),
        (
            "a query that makes no sense",
            "GET /v1/events?follow=maybe HTTP/1.1\r\nhost: weir\r\n\r\n".to_owned(),
            "400",
            "bad-request",
        ),
    ] {
        let answer = talk(&socket, bytes.as_bytes());
        let said = answer.rsplit("\r\n\r\n").next().unwrap_or_default();
        println!("{what:<40} {} {said}", answer.lines().next().unwrap_or("(closed without a word)"));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{what}: {answer}");
        assert!(said.contains(word), "{what}: `{word}` is not in: {said}");
    }
    // Half a request, and many of them: others are answered all the same.
    let half: Vec<UnixStream> = (0..200)
        .map(|_| {
            let mut stream = UnixStream::connect(&socket).expect("it listens");
            stream.write_all(b"PATCH /v1/policies HTTP/1.1\r\ncontent-le").expect("it takes bytes");
            stream
        })
        .collect();
    let asked = Instant::now();
    let status = node.client().status().expect("it answers");
    println!("with {} half requests open, an answer takes {:?}", half.len(), asked.elapsed());
    assert!(asked.elapsed() < Duration::from_secs(1));
    assert_eq!(status.pid, pid, "the agent is another one");
    assert_eq!(in_force(&node), before);
}

#[test]
fn wrong_configuration_is_refused_whole_and_a_right_one_taken() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = promised();
    let (pid, before) = (node.agent().id(), in_force(&node));
    let right = config(&node, "");
    let path = node.agent().config_path();
    let group = "[[group]]\nname = \"g\"\n[[group]]\nname = \"g\"\n";
    let cases: Vec<(&str, Option<Config>, &[&str])> = vec![
        ("text that is not TOML", Some(config(&node, "[[class\n")), &["TOML"]),
        ("an unknown key", Some(right.clone().link("speed = 3")), &["unknown field `speed`"]),
        (
            "a class twice",
            Some(config(&node, &format!("[[class]]\nname = \"{}\"\n", node.name("C1")))),
            &["this class is there twice"],
        ),
        ("a group twice", Some(config(&node, group)), &["this group is there twice"]),
        ("a key twice", Some(right.clone().link("delay_ms = 20\ndelay_ms = 30")), &["duplicate key"]),
        ("a negative rate", Some(config(&node, "[host]\nmax = \"-3mbit\"\n")), &["a rate is not negative"]),
        (
            "min above max",
            Some(config(&node, "[host]\nmin = \"3mbit\"\nmax = \"2mbit\"\n")),
            &["minimum 3mbit is above maximum 2mbit"],
        ),
        (
            "minima above what may be promised",
            Some(config(&node, "[host]\nmin = \"80mbit\"\n")),
            &["80mbit of the 90.25mbit", "10.25mbit are free"],
        ),
        ("a capacity of zero", Some(right.clone().capacity(BitRate::ZERO)), &["0bit is not between"]),
        ("another device", Some(right.clone()), &["needs a restart"]),
        ("an empty file", None, &["missing field `link`"]),
    ];
    for (what, text, words) in cases {
        match text {
            Some(text) => node.agent().rewrite(&text).expect("can write"),
            None => fs::write(&path, "").expect("can write"),
        }
        if what == "another device" {
            let text =
                fs::read_to_string(&path).expect("can read").replace("device = \"up0\"", "device = \"br0\"");
            fs::write(&path, text).expect("can write");
        }
        let told = told(&node, what, |error| error.is_some());
        for word in words {
            assert!(told.contains(word), "{what}: `{word}` is not in: {told}");
        }
        assert_eq!(in_force(&node), before, "{what}");
        // The old one is what policies are reckoned by, too.
        node.weir(&["set", "default", "weight=1"]);
        assert_eq!(in_force(&node), before, "{what}, when policies are reckoned anew");
        let shown = node.weir(&["status"]);
        assert!(shown.contains(words[0]), "{what}: weir status does not say why:\n{shown}");
        let events = node.weir(&["events"]);
        let mut refusals = events.lines().filter(|line| line.contains("config-refused"));
        assert!(refusals.next_back().is_some_and(|last| last.contains(words[0])), "{what}: {events}");
        node.agent().rewrite(&right).expect("can write");
        self::told(&node, what, |error| error.is_none());
        assert_eq!(in_force(&node), before, "{what}, corrected");
    }

    // A file that goes away, and an untouched one that is to be read again.
    fs::remove_file(&path).expect("can remove");
    let gone = told(&node, "the file is gone", |error| error.is_some());
    assert!(gone.contains("cannot read configuration"), "{gone}");
    node.agent().signal(Signal::SIGHUP);
    sleep(Duration::from_millis(200));
    assert_eq!(in_force(&node), before);
    node.agent().rewrite(&right).expect("can write");
    told(&node, "the file is back", |error| error.is_none());

    // One that is right and different is in force at once.
    let start = Instant::now();
    let more = config(&node, "[host]\nmax = \"7mbit\"\n");
    node.agent().rewrite(&more).expect("can write");
    while node.class("host").policy.max != Some(BitRate::mbit(7)) {
        assert!(start.elapsed() < Duration::from_secs(3), "the new configuration is not taken");
        sleep(Duration::from_millis(10));
    }
    println!("a right one is in force after {:?}", start.elapsed());
    assert_eq!(node.class("C2").policy.min, Some(BitRate::mbit(30)), "what was set by hand stays");
    assert_eq!(node.client().status().expect("it answers").pid, pid, "the agent is another one");
}

/// Waits for the agent's word on its configuration; that word.
fn told(node: &Node, what: &str, is_it: impl Fn(&Option<String>) -> bool) -> String {
    let start = Instant::now();
    loop {
        let error = node.client().status().expect("the agent answers").config_error;
        if is_it(&error) {
            let error = error.unwrap_or_default();
            println!("{what:<40} {:>4} ms: {}", start.elapsed().as_millis(), error.replace('\n', " / "));
            return error;
        }
        assert!(start.elapsed() < Duration::from_secs(3), "{what}: the agent says {error:?}");
        sleep(Duration::from_millis(10));
    }
}

/// Runs `weir agent` with a configuration that it must refuse, perhaps by way of another
/// program that takes rights away; `dir` is where its files are.
fn start_in_vain(netns: &Netns, dir: &Path, config: &Config, by: &[&str]) -> Ran {
    fs::write(dir.join("weir.toml"), config.to_toml(dir)).expect("can write");
    // The program may be where only root may look.
    let program = dir.join("weir");
    fs::copy(binary(), &program).expect("can copy");
    let file = dir.join("weir.toml");
    let arguments = [program.to_str().expect("a path"), "agent", "--config", file.to_str().expect("a path")];
    let line = [by, &arguments].concat();
    let mut command: Command = netns.command(line[0]).expect("can run it");
    let mut child = command
        .args(&line[1..])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("can run it");
    let start = Instant::now();
    while child.try_wait().expect("can wait").is_none() {
        if start.elapsed() > Duration::from_secs(8) {
            child.kill().expect("can kill");
            break;
        }
        sleep(Duration::from_millis(10));
    }
    let out = child.wait_with_output().expect("can wait");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let stderr = text(&out.stderr);
    // The log goes before the last words.
    let words = stderr.lines().skip_while(|line| !line.starts_with("weir: ")).collect::<Vec<_>>().join("\n");
    Ran { code: out.status.code(), stdout: text(&out.stdout), stderr: words }
}

#[test]
fn an_agent_that_cannot_work_here_says_why_and_leaves_nothing() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let node = Node::build(&Spec { containers: containers(1), wire: None, ..Spec::default() });
    let netns = node.topology.node();
    let dir = tempfile::Builder::new().prefix("weir-test-").tempdir().expect("can make a directory");
    let here = dir.path();
    let config = node.config();
    let before = kernel::traces(netns);
    let unchanged = |what: &str| {
        let after = kernel::traces(netns);
        let altered: Vec<_> = after.iter().filter(|(k, v)| before.get(*k) != Some(v)).collect();
        assert!(altered.is_empty() && after.len() == before.len(), "{what}: {altered:?}");
    };

    let text = config.to_toml(here).replace("device = \"up0\"", "device = \"nope0\"");
    let ran = {
        fs::write(here.join("nope.toml"), text).expect("can write");
        let mut command = netns.command(binary().to_str().expect("a path")).expect("can run it");
        let file = here.join("nope.toml");
        let out = command.args(["agent", "--config"]).arg(file).output().expect("can run it");
        let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
        Ran { code: out.status.code(), stdout: String::new(), stderr }
    };
    refused(&ran, "no such device", 1, &["there is no interface nope0", "ip -br link"]);
    unchanged("no such device");

    let conflict = config.clone().sections("[host]\nmin = \"60mbit\"\n[default]\nmin = \"60mbit\"\n");
    let ran = start_in_vain(netns, here, &conflict, &[]);
    refused(&ran, "minima above what may be promised", 2, &["60mbit", "30.25mbit are free"]);
    unchanged("minima above what may be promised");

    if !Need::Program("setpriv").is_met() {
        println!("SKIPPED what lacks rights: {} is missing here", Need::Program("setpriv"));
    } else {
        // With a directory and files of its own, so that only the rights are missing.
        fs::set_permissions(here, PermissionsExt::from_mode(0o755)).expect("can set modes");
        fs::create_dir_all(here.join("state")).expect("can make a directory");
        let nobody = nix::unistd::Uid::from_raw(65534);
        for path in [here.to_owned(), here.join("state")] {
            chown(&path, Some(nobody), None).expect("can give it away");
        }
        let as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
        for name in ["weir.sock.lock", "state/weir.redb", "state/weir.promises"] {
            let _ = fs::remove_file(here.join(name));
        }
        let ran = start_in_vain(netns, here, &config, &as_nobody);
        refused(
            &ran,
            "an agent without rights",
            1,
            &["needs root, or CAP_NET_ADMIN and CAP_SYS_ADMIN", "weir doctor"],
        );
        unchanged("an agent without rights");

        for name in ["weir.sock.lock", "state/weir.redb", "state/weir.promises"] {
            let _ = fs::remove_file(here.join(name));
        }
        let half = ["setpriv", "--bounding-set=-all,+net_admin,+dac_override,+chown,+fowner"];
        let ran = start_in_vain(netns, here, &config, &half);
        refused(
            &ran,
            "an agent without the right to BPF",
            1,
            &["CAP_SYS_ADMIN", "cannot load the classifier programs"],
        );
        unchanged("an agent without the right to BPF");
    }

    let all = |verb: &str, kind: &str| {
        (0..MAX_LINKS).map(|n| format!("link {verb} weir{n} {kind}\n")).collect::<String>()
    };
    let owner = NetnsRef::at(&netns.path()).expect("the namespace is there").id;
    let is_paced = || Root::find(owner).is_ok_and(|root| root.earlier().is_some());
    for kind in ["bridge", "ifb"] {
        netns.ip(&all("add", &format!("type {kind}"))).expect("can make them");
        let taken = kernel::traces(netns);
        for config in [config.clone(), config.clone().link("pacing = true")] {
            let ran = start_in_vain(netns, here, &config, &[]);
            let words = ["cannot create device weir0: one of this name exists and is not weir's"];
            refused(&ran, &format!("a {kind} of somebody's for each of weir's names"), 1, &words);
            assert_eq!(kernel::traces(netns), taken);
            assert!(!is_paced(), "a start that failed paces sockets");
        }
        netns.ip(&all("del", "")).expect("can remove them");
    }
    unchanged("the names are taken");
}

#[test]
fn a_user_without_rights_is_told_what_is_missing() {
    if !can_run(&Need::TRAFFIC) || !can_run(&[Need::Program("setpriv")]) {
        return;
    }
    let mut node = promised();
    let before = in_force(&node);
    let socket = node.socket().to_owned();
    // The directory is only for root; the socket's own mode is what is asked about.
    let dir = socket.parent().expect("it is in a directory");
    fs::set_permissions(dir, PermissionsExt::from_mode(0o755)).expect("can set modes");
    let program = dir.join("weir");
    fs::copy(binary(), &program).expect("can copy");
    for verb in [&["ps"][..], &["set", "host", "weight=2"]] {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program).args(verb);
        let out = command.env("WEIR_SOCKET", &socket).output().expect("can run it");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let ran = Ran { code: out.status.code(), stdout: text(&out.stdout), stderr: text(&out.stderr) };
        refused(
            &ran,
            &format!("weir {} as nobody", verb.join(" ")),
            1,
            &["root or membership of the group weir"],
        );
    }
    assert_eq!(in_force(&node), before);
    assert!(node.agent().ended().is_none());
}
