use std::path::PathBuf;

use proptest::prelude::*;
use serde_json::{Value, json};
use weir_fake_agent::FakeAgent;

use super::*;

const ENVIRONMENT: [(&str, &str); 4] = [
    ("CNI_CONTAINERID", "c1"),
    ("CNI_NETNS", "/proc/self/ns/net"),
    ("CNI_IFNAME", "eth0"),
    ("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_UID=u"),
];
const NOWHERE: &str = "/nowhere/weir.sock";

/// Calls the plugin as a runtime does. Of two values of a variable the last one counts.
fn call(socket: &Path, command: &str, environment: &[(&str, &str)], stdin: &str) -> Answer {
    let all = [&[(COMMAND, command)], &ENVIRONMENT[..], environment].concat();
    let of = |name: &str| all.iter().rev().find(|(key, _)| *key == name).map(|(_, v)| (*v).to_owned());
    Call { environment: &of, socket }.answer(&mut stdin.as_bytes())
}

fn previous(version: &str) -> Value {
    let mut ip = json!({ "address": "10.88.0.7/16", "gateway": "10.88.0.1", "interface": 1 });
    if version < "1.0.0" {
        ip["version"] = "4".into();
    }
    json!({
        "cniVersion": version,
        "interfaces": [{ "name": "veth1" }, { "name": "eth0", "sandbox": "/proc/self/ns/net" }],
        "ips": [ip],
        "routes": [{ "dst": "0.0.0.0/0" }],
        "dns": {},
    })
}

/// A configuration with more keys.
fn config(version: &str, more: &Value) -> String {
    let mut all = json!({
        "cniVersion": version,
        "name": "pods",
        "type": "weir",
        "capabilities": { "bandwidth": true },
        "prevResult": previous(version),
    });
    for (key, value) in more.as_object().unwrap() {
        all[key] = value.clone();
    }
    all.to_string()
}

fn plain_config() -> String {
    config("1.0.0", &json!({}))
}

fn refusing() -> String {
    config("1.1.0", &json!({ "onError": "refuse" }))
}

/// The code and the message of an error, which is the same on both streams.
#[track_caller]
fn error(answer: &Answer) -> (u64, String) {
    assert!(answer.is_error, "{answer:?}");
    let told: Value = serde_json::from_str(&answer.output).unwrap();
    let message = told["msg"].as_str().unwrap().to_owned();
    assert_eq!(answer.notes.last(), Some(&message));
    assert!(VERSIONS.contains(&told["cniVersion"].as_str().unwrap()) || told["code"] == 1, "{told}");
    (told["code"].as_u64().unwrap(), message)
}

#[track_caller]
fn good(answer: &Answer) -> String {
    assert!(!answer.is_error, "{answer:?}");
    answer.output.clone()
}

/// containerd names `/var/run/netns`, which an image of an agent may lack.
#[test]
fn namespace_is_told_by_a_path_without_links() {
    let dir = tempfile::tempdir().unwrap();
    let real = dir.path().canonicalize().unwrap();
    std::fs::create_dir(real.join("run")).unwrap();
    std::fs::write(real.join("run/cni-1"), "").unwrap();
    std::os::unix::fs::symlink("run", real.join("link")).unwrap();
    assert_eq!(config::without_links(real.join("link/cni-1")), real.join("run/cni-1"));
    for kept in ["/proc/self/ns/net", "/nowhere/cni-2"] {
        assert_eq!(config::without_links(kept.into()), Path::new(kept));
    }
}

#[test]
fn version_is_told_in_the_version_of_the_request() {
    for version in ["0.1.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0", "2.0.0"] {
        // Podman asks with an empty id, and `dummy` for a namespace.
        let environment = [("CNI_CONTAINERID", ""), ("CNI_NETNS", "dummy"), ("CNI_IFNAME", "dummy")];
        let answer =
            call(Path::new(NOWHERE), "VERSION", &environment, &json!({ "cniVersion": version }).to_string());
        let known = "\"supportedVersions\":[\"0.3.1\",\"0.4.0\",\"1.0.0\",\"1.1.0\"]";
        assert_eq!(good(&answer), format!("{{\"cniVersion\":\"{version}\",{known}}}\n"));
        assert_eq!(answer.notes, Vec::<String>::new());
    }
}

#[test]
fn add_prints_the_previous_result_in_each_version() {
    let agent = FakeAgent::start();
    for version in VERSIONS {
        let answer = call(agent.path(), "ADD", &[], &config(version, &json!({})));
        let result: Value = serde_json::from_str(&good(&answer)).unwrap();
        assert_eq!(result, previous(version));
        assert_eq!(answer.notes, Vec::<String>::new());
    }
}

#[test]
fn a_result_of_another_version_becomes_one_of_the_request() {
    let agent = FakeAgent::start();
    let mut newest = previous("1.1.0");
    newest["interfaces"][0]["mtu"] = 1500.into();
    newest["routes"][0]["mtu"] = 1400.into();
    for (from, to) in [("1.1.0", "0.3.1"), ("1.1.0", "1.0.0"), ("0.4.0", "1.1.0"), ("0.3.1", "0.4.0")] {
        let given = if from == "1.1.0" { newest.clone() } else { previous(from) };
        let answer = call(agent.path(), "ADD", &[], &config(to, &json!({ "prevResult": given })));
        let result: Value = serde_json::from_str(&good(&answer)).unwrap();
        assert_eq!(result, previous(to), "{from} to {to}");
    }
}

#[test]
fn the_report_names_the_pod_and_its_uid() {
    let key = CniKey { container: "c1".to_owned(), interface: "eth0".to_owned() };
    let config = Config::read(&mut plain_config().as_bytes()).unwrap();
    let report = |arguments| config.attachment(key.clone(), "/proc/self/ns/net".into(), arguments).unwrap();
    let of = |report: CniAttachment| (report.namespace, report.pod, report.uid);
    let (_, arguments) = ENVIRONMENT[3];
    assert_eq!(of(report(arguments)), ["shop", "web", "u"].map(|text| Some(text.to_owned())).into());
    assert_eq!(report("K8S_POD_NAME=web;K8S_POD_UID=").uid, None);
}

/// The fake agent returns what it was told as remarks.
#[test]
fn wishes_of_all_places_reach_the_agent() {
    let agent = FakeAgent::start();
    // As containerd 2.3 writes it.
    let runtime = json!({
        "bandwidth": { "IngressRate": 0, "IngressBurst": 0, "EgressRate": 4_000_000, "EgressBurst": 4_294_967_295_u64 },
        "cgroupPath": "/PARENT/pod-web",
        "io.kubernetes.cri.pod-annotations": {
            "kubernetes.io/egress-bandwidth": "4M", "weir.dev/weight": "3", "app": "shop", "weir.dev/wieght": "4",
        },
    });
    let text = config("1.0.0", &json!({ "runtimeConfig": runtime, "weight": 2, "group": "tenant-a" }));
    let arguments = "K8S_POD_NAME=web;WEIR_MAX=9mbit;WEIR_=1;odd";
    let answer = call(agent.path(), "ADD", &[("CNI_ARGS", arguments)], &text);
    good(&answer);
    let want = [
        "key group of the plugin's configuration=tenant-a",
        "key weight of the plugin's configuration=2",
        "runtimeConfig.bandwidth.egressBurst=4294967295",
        "runtimeConfig.bandwidth.egressRate=4000000",
        "runtimeConfig.bandwidth.ingressBurst=0",
        "runtimeConfig.bandwidth.ingressRate=0",
        "CNI argument WEIR_MAX=9mbit",
        "CNI argument WEIR_=1",
        "annotation kubernetes.io/egress-bandwidth=4M",
        "annotation weir.dev/weight=3",
        "annotation weir.dev/wieght=4",
    ];
    assert_eq!(answer.notes, want.map(|wish| format!("web: {wish}")));
    // cnitool and the convention write small letters, and Go takes any.
    for key in ["egressRate", "EgressRate", "EGRESSRATE"] {
        let text = config("1.0.0", &json!({ "runtimeConfig": { "Bandwidth": { key: 5 } } }));
        assert_eq!(
            call(agent.path(), "ADD", &[], &text).notes,
            ["web: runtimeConfig.bandwidth.egressRate=5"]
        );
    }
}

#[test]
fn a_thousand_annotations_are_few_short_wishes_and_known_ones_stay() {
    let mut annotations = serde_json::Map::new();
    for n in 0..1_000 {
        annotations.insert(format!("weir.dev/a{n}"), "x".repeat(100_000 / 1_000).into());
    }
    annotations.insert("weir.dev/weight".to_owned(), "3".into());
    annotations.insert("weir.dev/max".to_owned(), format!("5mbit{}", " ".repeat(300)).into());
    annotations.insert(format!("weir.dev/{}", "é".repeat(300)), "\u{1b}[31m".into());
    let runtime = json!({ "io.kubernetes.cri.pod-annotations": annotations });
    let text = config("1.0.0", &json!({ "runtimeConfig": runtime }));
    let config = Config::read(&mut text.as_bytes()).unwrap();
    let key = CniKey { container: "c1".to_owned(), interface: "eth0".to_owned() };
    let wishes = config.attachment(key, PathBuf::from("/proc/self/ns/net"), "").unwrap().wishes;
    assert_eq!(wishes.len(), 2 + 4 + 1, "{wishes:?}");
    assert!(wishes.iter().all(|wish| wish.key.len() < 512 && wish.value.len() < 512));
    assert!(wishes.iter().any(|wish| wish.key == "weir.dev/weight" && wish.value == "3"));
    let max = wishes.iter().find(|wish| wish.key == "weir.dev/max").unwrap();
    assert!(max.value.parse::<weir_units::BitRate>().is_err(), "a text that was cut means nothing else");
    assert!(wishes.iter().any(|wish| wish.value == "997 more"), "{wishes:?}");
}

#[test]
fn without_an_agent_a_pod_starts_unless_configured() {
    let text = plain_config();
    let answer = call(Path::new(NOWHERE), "ADD", &[], &text);
    assert_eq!(serde_json::from_str::<Value>(&good(&answer)).unwrap(), previous("1.0.0"));
    let [note] = &answer.notes[..] else { panic!("{:?}", answer.notes) };
    assert!(
        note.starts_with("eth0 of container c1 starts unshaped: cannot reach the agent at /nowhere"),
        "{note}"
    );
    let answer = call(Path::new(NOWHERE), "ADD", &[], &refusing());
    let (code, message) = error(&answer);
    assert_eq!(code, 11);
    assert!(message.contains("cannot be shaped, and onError is refuse: cannot reach the agent"), "{message}");
    // The configuration's own socket comes first.
    let text = config("1.0.0", &json!({ "socket": "/from/conflist.sock" }));
    let agent = FakeAgent::start();
    assert!(call(agent.path(), "ADD", &[], &text).notes[0].contains("/from/conflist.sock"));
}

#[test]
fn a_class_that_is_not_in_force_is_told_or_refused() {
    let agent = FakeAgent::start();
    for (pod, why) in [("uncaught", "interface veth9 is not caught yet"), ("refused", "is the node's")] {
        let arguments = format!("K8S_POD_NAME={pod}");
        let environment = [("CNI_ARGS", arguments.as_str())];
        let open = call(agent.path(), "ADD", &environment, &plain_config());
        good(&open);
        assert!(
            open.notes.iter().any(|note| note.contains("starts unshaped: ") && note.contains(why)),
            "{open:?}"
        );
        let (code, message) = error(&call(agent.path(), "ADD", &environment, &refusing()));
        assert_eq!(code, 11);
        assert!(message.contains(why), "{message}");
    }
}

#[test]
fn del_never_fails_and_check_fails_after_it() {
    let agent = FakeAgent::start();
    good(&call(agent.path(), "ADD", &[], &plain_config()));
    assert_eq!(good(&call(agent.path(), "CHECK", &[], &plain_config())), "");
    let other = config("1.0.0", &json!({ "weight": 9 }));
    assert_eq!(error(&call(agent.path(), "CHECK", &[], &other)).0, 100);
    assert_eq!(call(agent.path(), "DEL", &[("CNI_NETNS", "")], &plain_config()), Answer::default());
    let (code, message) = error(&call(agent.path(), "CHECK", &[], &plain_config()));
    assert_eq!((code, message.as_str()), (100, "weir knows no eth0 of container c1"));
    // Again, with other input and without an agent.
    let deep = "[".repeat(100_000);
    for text in ["", "{", "[]", "null", "{\"socket\": 7}", "{\"cniVersion\": \"9\"}", deep.as_str()] {
        for socket in [agent.path(), Path::new(NOWHERE)] {
            let answer = call(socket, "DEL", &[], text);
            assert_eq!((answer.is_error, answer.output.as_str()), (false, ""), "{text}");
        }
    }
    for missing in ["CNI_CONTAINERID", "CNI_IFNAME"] {
        let answer = call(agent.path(), "DEL", &[(missing, "")], &plain_config());
        assert!(!answer.is_error && answer.notes[0].contains(missing), "{answer:?}");
    }
    assert_eq!(error(&call(Path::new(NOWHERE), "CHECK", &[], &plain_config())).0, 11);
    let arguments = [("CNI_ARGS", "K8S_POD_NAME=uncaught")];
    good(&call(agent.path(), "ADD", &arguments, &plain_config()));
    let (code, message) = error(&call(agent.path(), "CHECK", &arguments, &plain_config()));
    assert!(code == 100 && message.contains("veth9 is not caught yet"), "{code} {message}");
}

#[test]
fn gc_spares_what_is_listed_and_a_missing_list_spares_all() {
    let agent = FakeAgent::start();
    let text = config("1.1.0", &json!({}));
    good(&call(agent.path(), "ADD", &[], &text));
    good(&call(agent.path(), "ADD", &[("CNI_CONTAINERID", "c2")], &text));
    let none = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS"].map(|name| (name, ""));
    for bad in [json!({}), json!({ "cni.dev/valid-attachments": [{ "containerID": 7 }] })] {
        assert_eq!(error(&call(agent.path(), "GC", &none, &config("1.1.0", &bad))).0, 7);
    }
    let list = json!({ "cni.dev/valid-attachments": [{ "containerID": "c2", "ifname": "eth0" }] });
    assert_eq!(good(&call(agent.path(), "GC", &none, &config("1.1.0", &list))), "");
    assert_eq!(error(&call(agent.path(), "CHECK", &[], &text)).0, 100);
    good(&call(agent.path(), "CHECK", &[("CNI_CONTAINERID", "c2")], &text));
    // libcni writes an empty list as null.
    let empty = json!({ "cni.dev/valid-attachments": null });
    assert_eq!(good(&call(agent.path(), "GC", &none, &config("1.1.0", &empty))), "");
    assert_eq!(error(&call(agent.path(), "CHECK", &[("CNI_CONTAINERID", "c2")], &text)).0, 100);
    let away = call(Path::new(NOWHERE), "GC", &none, &config("1.1.0", &list));
    assert!(!away.is_error && away.notes[0].starts_with("the agent forgets nothing now: "), "{away:?}");
}

#[test]
fn status_fails_only_where_an_absent_agent_stops_pods() {
    let agent = FakeAgent::start();
    let open = config("1.1.0", &json!({}));
    for (socket, text, code) in [
        (agent.path(), open.as_str(), None),
        (agent.path(), &refusing(), None),
        (Path::new(NOWHERE), &open, None),
        (Path::new(NOWHERE), &refusing(), Some(50)),
    ] {
        let answer = call(socket, "STATUS", &[], text);
        match code {
            None => assert_eq!(good(&answer), ""),
            Some(code) => assert_eq!(error(&answer).0, code),
        }
    }
}

#[test]
fn bad_calls_are_refused_by_the_codes_of_the_specification() {
    let agent = FakeAgent::start();
    let good = config("1.1.0", &json!({}));
    let no_result = {
        let mut all: Value = serde_json::from_str(&good).unwrap();
        all.as_object_mut().unwrap().remove("prevResult");
        all.to_string()
    };
    let nameless = config("1.1.0", &json!({ "name": "" }));
    let (old, new) = (config("0.3.1", &json!({})), config("2.0.0", &json!({})));
    let (wrong, typo) =
        (config("1.0.0", &json!({ "onError": 7 })), config("1.0.0", &json!({ "onError": "close" })));
    let deep = "[".repeat(100_000);
    // Command, environment, standard input; code and message.
    type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str, u64, &'a str);
    let cases: &[Case<'_>] = &[
        ("", &[], &good, 4, "CNI_COMMAND is not set"),
        ("FROB", &[], &good, 4, "CNI_COMMAND is `FROB`"),
        ("add", &[], &good, 4, "CNI_COMMAND is `add`"),
        ("ADD", &[("CNI_CONTAINERID", "")], &good, 4, "CNI_CONTAINERID is not set"),
        ("ADD", &[("CNI_IFNAME", "")], &good, 4, "CNI_IFNAME is not set"),
        ("ADD", &[("CNI_NETNS", "")], &good, 4, "CNI_NETNS is not set"),
        (
            "ADD",
            &[("CNI_NETNS", "/nowhere")],
            &good,
            4,
            "CNI_NETNS: cannot open the network namespace /nowhere",
        ),
        ("ADD", &[("CNI_NETNS", "/dev/null")], &good, 4, "/dev/null is not a network namespace"),
        ("ADD", &[], "", 6, "the configuration is no JSON object"),
        ("ADD", &[], "[]", 6, "the configuration is no JSON object"),
        ("ADD", &[], &deep, 6, "the configuration is no JSON object"),
        ("ADD", &[], "{}", 1, "weir speaks CNI 0.3.1, 0.4.0, 1.0.0, 1.1.0, and this is 0.1.0"),
        ("ADD", &[], &new, 1, "this is 2.0.0"),
        ("ADD", &[], &no_result, 7, "there is no `prevResult`: weir stands behind the plugin"),
        ("ADD", &[], &nameless, 7, "the configuration has no `name`"),
        ("ADD", &[], &wrong, 7, "`onError` is 7: write a text"),
        ("ADD", &[], &typo, 7, "`onError` is `close`: write open or refuse"),
        ("CHECK", &[], &old, 1, "CNI 0.3.1 has no CHECK, which came with 0.4.0"),
        ("GC", &[], &plain_config(), 1, "CNI 1.0.0 has no GC, which came with 1.1.0"),
        ("STATUS", &[], &plain_config(), 1, "CNI 1.0.0 has no STATUS, which came with 1.1.0"),
    ];
    for (command, environment, text, code, message) in cases {
        let answer = call(agent.path(), command, environment, text);
        let (told, why) = error(&answer);
        assert!(told == *code && why.contains(message), "{command} {environment:?}: {told} {why}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn whatever_comes_the_plugin_answers_one_line_and_del_is_good(
        command in "ADD|DEL|CHECK|GC|STATUS|VERSION|\\PC{0,4}",
        arguments in "\\PC{0,20}|(WEIR_|K8S_POD_NAME=|;|=|é){0,8}",
        version in "0\\.3\\.1|1\\.[01]\\.0|\\PC{0,5}",
        key in "bandwidth|weight|runtimeConfig|prevResult|\\PC{0,5}",
        value in "null|7|-1e99|\"\\\\u0000\"|\\[\\]|\\{\"ips\":\\[7,\\{\"address\":\"x\"\\}\\]\\}|\\{\"bandwidth\":\\{\"\":\\{\\}\\}\\}|\\PC{0,9}",
    ) {
        let name = serde_json::to_string(&key).unwrap();
        let text = format!("{{\"cniVersion\":\"{version}\",\"name\":\"n\",{name}:{value}}}");
        let answer = call(Path::new(NOWHERE), &command, &[("CNI_ARGS", &arguments)], &text);
        prop_assert!(answer.output.is_empty() || answer.output.ends_with('\n'));
        prop_assert!(answer.output.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()));
        prop_assert!(answer.output.lines().count() <= 1);
        prop_assert!(command != "DEL" || !answer.is_error);
    }
}
