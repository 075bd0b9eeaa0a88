//! A damaged state and a clock that jumps: the agent runs on, says so, and keeps what it promised.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant, SystemTime},
};

use weir_agree::{Document as _, Language, Offer, Utc};
use weir_api::{AgreementStatus, Status};
use weir_netlab::topology::{Mode, Spec};
use weir_netns_tests::{Need, Node, binary, can_run, containers};
use weir_units::BitRate;

/// How long what is asked for may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const DAY: i64 = 86_400;

fn utc() -> Utc {
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("it is after 1970");
    Utc::from_millis(now.as_millis() as i64)
}

/// An offer of 60 Mbit/s for a container, for an hour.
fn offer(container: &str) -> Offer {
    let text = format!(
        r#"{{"context":{{"initiator":"acme"}},"service":{{"term":"t","name":"{container}"}},
            "terms":{{"min":"60mbit","max":"60mbit"}}}}"#
    );
    let mut offer = Offer::read(&text, Language::Json).expect("it is an offer");
    offer.terms.end = Some(utc().after(Duration::from_secs(3600)));
    offer
}

/// A node with one container and one agreement for it, and the configuration's `preload`.
fn node(preload: &[String]) -> Node {
    let mut node = Node::build(&Spec { containers: containers(1), mode: Mode::Routed, ..Spec::default() });
    let config = node.config().behind(preload).sections("[agreements]\n");
    node.start(&config);
    node.client().offer(&offer(&node.name("C1"))).expect("it fits");
    node
}

#[track_caller]
fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(begin.elapsed() < ANSWER_TIMEOUT, "not within {ANSWER_TIMEOUT:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The one agreement is in force, with its class.
#[track_caller]
fn is_kept(node: &Node, what: &str) {
    let all = node.client().agreements().expect("it answers");
    let states: Vec<_> = all.iter().map(|one| one.agreement.state.to_string()).collect();
    let AgreementStatus { in_force, class, .. } = match &all[..] {
        [one] => one,
        _ => panic!("{what}: {states:?}"),
    };
    let min = in_force.as_ref().map(|promised| promised.min);
    assert_eq!(min, Some(BitRate::mbit(60)), "{what}: {states:?}");
    assert!(class.is_some(), "{what}");
    assert_eq!(node.class("C1").policy.min, Some(BitRate::mbit(60)), "{what}");
}

fn status(node: &Node) -> Status {
    node.client().status().expect("it answers")
}

fn has_event(node: &Node, what: &str) -> bool {
    let events = node.client().events(false).expect("it answers");
    events.map(|event| event.expect("an event")).any(|event| event.what == what)
}

/// Damage to the database's file.
type Mishap = fn(&Path);

#[test]
fn an_agent_with_a_damaged_state_starts_says_so_and_keeps_its_promises() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mishaps: [(&str, Mishap); 4] = [
        ("it has no content", |path| fs::write(path, "").expect("it is ours")),
        ("was damaged", |path| {
            let mut text = fs::read(path).expect("it is ours");
            text[4096..].fill(0x5a);
            fs::write(path, text).expect("it is ours");
        }),
        ("was damaged", |path| {
            let file = fs::OpenOptions::new().write(true).open(path).expect("it is ours");
            let length = file.metadata().expect("it is there").len();
            file.set_len(length - 4096).expect("it can be cut");
        }),
        ("it is a directory", |path| {
            fs::remove_file(path).expect("it is ours");
            fs::create_dir(path).expect("it is ours");
        }),
    ];
    let mut node = node(&[]);
    for (number, (why, mishap)) in mishaps.into_iter().enumerate() {
        let state = node.agent().state_path();
        node.agent().kill();
        mishap(&state.join("weir.redb"));
        node.restart();
        let what = format!("mishap {number}, {why}");
        is_kept(&node, &what);
        let notices = status(&node).notices;
        assert!(matches!(&notices[..], [one] if one.contains(why)), "{what}: {notices:?}");
        assert!(notices[0].contains("1 agreement and 0 policies set by hand are restored"), "{notices:?}");
        assert!(has_event(&node, "state-damaged"), "{what}");
        let text = node.weir(&["status"]);
        assert!(text.contains(&format!("! {}", notices[0])), "{what}: {text}");
        let names = fs::read_dir(&state).expect("it is ours");
        let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let asides = names.filter(|name| name.starts_with("weir.redb.damaged-20")).count();
        assert_eq!(asides, number + 1, "{what}");
        assert!(!node.weir(&["status", "--acknowledge"]).contains("damaged"), "{what}");
        assert_eq!(status(&node).notices, Vec::<String>::new(), "{what}");
        let log = node.agent().log();
        assert!(!log.contains("panicked"), "{what}: {log}");
    }
}

#[test]
fn damage_to_the_state_of_a_running_agent_costs_no_promise_and_no_shaping() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let mut node = node(&[]);
    let path = node.agent().state_path().join("weir.redb");
    let pid = node.agent().id();
    // The file stays the one that the agent has open.
    let file = fs::OpenOptions::new().write(true).open(&path).expect("it is ours");
    let length = file.metadata().expect("it is there").len();
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![0x5a; length as usize], 0).expect("it is ours");
    let name = node.name("C1");
    wait_for("an answer of a state that is sound again", || {
        node.client()
            .set(&weir_api::SetPolicies {
                changes: vec![weir_api::PolicyChange {
                    name: name.clone(),
                    weight: Some("3".parse().ok()),
                    ..weir_api::PolicyChange::default()
                }],
                allow_absent: false,
            })
            .ok()
    });
    is_kept(&node, "at run time");
    node.agent().kill();
    node.restart();
    is_kept(&node, "after a crash");
    assert_ne!(node.agent().id(), pid);
    let notices = status(&node).notices;
    assert!(matches!(&notices[..], [one] if one.contains("was damaged")), "{notices:?}");
    assert_eq!(node.class("C1").policy.weight.to_string(), "3");
}

#[test]
fn state_on_a_full_or_read_only_disk_is_refused_with_the_way_out() {
    if !can_run(&Need::TRAFFIC) || !can_run(&[Need::Program("unshare"), Need::Program("mount")]) {
        return;
    }
    let node = Node::build(&Spec { containers: containers(1), wire: None, ..Spec::default() });
    let dir = tempfile::tempdir().expect("there is room");
    let (file, state) = (dir.path().join("weir.toml"), dir.path().join("state"));
    fs::create_dir(&state).expect("there is room");
    fs::write(&file, node.config().to_toml(dir.path())).expect("there is room");
    let (program, state) = (binary(), state.display().to_string());
    for (options, words) in [
        ("size=16k", format!("the file system of {state} has 0B free: make it 8MiB")),
        ("size=48k", format!("the file system of {state} has 0B free: make it 8MiB")),
        ("size=16m,ro", format!("the file system of {state} is read-only: make it writable")),
    ] {
        let script = format!("mount -t tmpfs -o {options} tmpfs {state} && exec timeout 10 \"$@\"");
        // A program that starts all the same is ended with another code.
        let mut command = node.topology.node().command("unshare").expect("can run it");
        command.args(["--mount", "sh", "-c", &script, "sh"]).arg(&program);
        let ran = command.args(["agent", "--config"]).arg(&file).output().expect("can run it");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(1), "{said}");
        assert!(
            said.contains(&words) && said.contains("or name another directory in `[agent] state`"),
            "{said}"
        );
    }
}

/// A library that moves the calendar's clock of a process by as many seconds as a file says.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *ts)
{
    int result = syscall(SYS_clock_gettime, id, ts);
    if (result == 0 && id == CLOCK_REALTIME) {
        char text[32] = {0};
        const char *path = getenv("TEST_CLOCK_OFFSET");
        int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        if (file >= 0) {
            if (read(file, text, sizeof text - 1) > 0) ts->tv_sec += atol(text);
            close(file);
        }
    }
    return result;
}
"#;

/// A clock that a test can set for one process.
struct TestClock {
    dir: tempfile::TempDir,
}

impl TestClock {
    fn new() -> TestClock {
        let dir = tempfile::tempdir().expect("there is room");
        let (source, library) = (dir.path().join("clock.c"), dir.path().join("clock.so"));
        fs::write(&source, SHIM).expect("there is room");
        let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
        assert!(built.expect("cc runs").success());
        let clock = TestClock { dir };
        clock.set(0);
        clock
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("offset")
    }

    /// Has it that many seconds off, from now on.
    fn set(&self, seconds: i64) {
        let new = self.dir.path().join("offset.new");
        fs::write(&new, seconds.to_string()).expect("there is room");
        fs::rename(new, self.file()).expect("there is room");
    }

    /// The words before a program's name.
    fn before(&self) -> Vec<String> {
        let library = self.dir.path().join("clock.so");
        vec![
            "env".to_owned(),
            format!("LD_PRELOAD={}", library.display()),
            format!("TEST_CLOCK_OFFSET={}", self.file().display()),
        ]
    }
}

#[test]
fn a_clock_that_jumps_for_3_s_ends_no_agreement_and_is_said() {
    if !can_run(&Need::TRAFFIC) || !can_run(&[Need::Program("cc"), Need::Program("env")]) {
        return;
    }
    let clock = TestClock::new();
    let mut node = node(&clock.before());
    let doubted = |node: &Node| {
        status(node).warnings.into_iter().find(|text| text.contains("the clock is not believed"))
    };
    let in_1970 = -(utc().millis() / 1_000);
    for off in [DAY, -DAY, in_1970] {
        assert_eq!(doubted(&node), None);
        clock.set(off);
        let begin = Instant::now();
        wait_for("the step is said", || doubted(&node));
        while begin.elapsed() < Duration::from_secs(3) {
            is_kept(&node, &format!("{off} s off"));
            std::thread::sleep(Duration::from_millis(100));
        }
        clock.set(0);
        wait_for("the clock is right again", || doubted(&node).is_none().then_some(()));
        is_kept(&node, &format!("after {off} s off"));
    }
    assert!(has_event(&node, "clock-doubted") && has_event(&node, "clock-back"));
    // An agent that starts meanwhile.
    for off in [DAY, in_1970] {
        node.agent().kill();
        clock.set(off);
        node.restart();
        is_kept(&node, &format!("started {off} s off"));
        wait_for("the step is said", || doubted(&node));
        clock.set(0);
        wait_for("the clock is right again", || doubted(&node).is_none().then_some(()));
        is_kept(&node, &format!("started {off} s off, and right again"));
    }
}
