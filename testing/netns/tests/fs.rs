//! `weir fs`: the classes of a real agent as files, as qCon has them in `/proc`.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, Read, Seek, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, ExitStatus, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    mount::{MntFlags, umount2},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;
use weir_api::Class;
use weir_netlab::topology::Spec;
use weir_netns_tests::{Need, Node, as_user, binary, can_run, containers, skip};
use weir_units::BitRate;

const READY: Duration = Duration::from_secs(10);

/// The file system of an agent. Its program ends when this is dropped.
struct Mounted {
    child: Child,
    said: Option<ChildStderr>,
    dir: TempDir,
}

impl Mounted {
    /// Mounts the classes of the agent of this node.
    fn at(node: &Node) -> Mounted {
        let dir = tempfile::tempdir().expect("a directory");
        let mut child = weir_fs(node, dir.path()).spawn().expect("weir can be run");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).expect("it is text");
        let said = child.stderr.take();
        let mounted = Mounted { child, said, dir };
        let wanted = format!("are files in {}; Ctrl-C unmounts them\n", mounted.dir.path().display());
        assert!(line.ends_with(&wanted), "{line}");
        mounted
    }

    fn file(&self, class: &str) -> PathBuf {
        self.dir.path().join(class)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path()).expect("it is mounted");
        entries.map(|entry| entry.expect("it is read").file_name().into_string().expect("UTF-8")).collect()
    }

    /// Sends a signal, and waits for the end: how it ended, and all that it had said.
    fn end(mut self, signal: Signal) -> (ExitStatus, String) {
        kill(Pid::from_raw(self.child.id().try_into().expect("a process id")), signal).expect("it runs");
        let begin = Instant::now();
        let status = loop {
            match self.child.try_wait().expect("it is our child") {
                Some(status) => break status,
                None => assert!(begin.elapsed() < READY, "weir fs runs on after {signal}"),
            }
            sleep(Duration::from_millis(10));
        };
        let mut said = String::new();
        self.said.take().expect("it is piped").read_to_string(&mut said).expect("it is text");
        assert!(!is_mounted(self.dir.path()), "it is still mounted after {signal}");
        (status, said)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Both are done with already where a test has ended it.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = umount2(self.dir.path(), MntFlags::MNT_DETACH);
    }
}

fn weir_fs(node: &Node, dir: &Path) -> Command {
    let mut command = Command::new(binary());
    let dir = dir.as_os_str();
    command.arg("--socket").arg(node.socket()).arg("fs").arg(dir);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn is_mounted(dir: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/mounts").expect("/proc is mounted");
    mounts.lines().any(|line| line.split(' ').nth(1) == dir.to_str())
}

/// Whether the kernel and this build have all that `weir fs` needs. A skip names what is missing.
fn can_mount() -> bool {
    if !can_run(&[Need::Rights, Need::Ifb, Need::Qdisc("htb")]) {
        return false;
    }
    if !Path::new("/dev/fuse").exists() {
        skip("the kernel's FUSE (CONFIG_FUSE_FS: /dev/fuse) is missing here");
        return false;
    }
    if !binary().with_file_name("weir-fs").exists() {
        panic!("weir-fs is not beside {}: `cargo build -p weir-fs`", binary().display());
    }
    true
}

fn node(n: usize) -> Node {
    let mut node = Node::build(&Spec { containers: containers(n), wire: None, ..Spec::default() });
    let config = node.config();
    node.start(&config);
    node
}

/// The class as `weir ps --json` tells it.
fn ps(node: &Node, name: &str) -> Class {
    let classes: Vec<Class> = serde_json::from_str(&node.weir(&["ps", "--json"])).expect("it is JSON");
    classes.into_iter().find(|class| class.name == name).expect("it is listed")
}

fn shell(script: &str, file: &Path) -> (bool, String) {
    let output = Command::new("sh").arg("-c").arg(script).arg("sh").arg(file).output().expect("sh runs");
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn number(error: &io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(0))
}

#[test]
fn file_of_a_class_shows_its_policy_and_a_write_changes_it() {
    if !can_mount() {
        return;
    }
    let node = node(2);
    let name = node.name("C1");
    let mounted = Mounted::at(&node);
    let file = mounted.file(&name);
    let names = mounted.names();
    for wanted in [name.as_str(), &node.name("C2"), "host"] {
        assert!(names.iter().any(|name| name == wanted), "{wanted} is not in {names:?}");
    }
    let read = || fs::read_to_string(&file).expect("the class is here");
    assert!(read().starts_with("weight=1\nmin=none\nmax=none\n"), "{}", read());
    // As the paper has it: read, `echo`, and the scheduler follows.
    assert_eq!(shell("echo weight=3 > \"$1\"", &file), (true, String::new()));
    let policy = ps(&node, &name).policy;
    assert_eq!((policy.weight.get(), policy.min, policy.max), (3, None, None));
    assert_eq!(shell("echo min=5mbit max=50mbit >> \"$1\"", &file), (true, String::new()));
    let policy = ps(&node, &name).policy;
    assert_eq!(
        (policy.weight.get(), policy.min, policy.max),
        (3, Some(BitRate::mbit(5)), Some(BitRate::mbit(50)))
    );
    assert!(read().starts_with("weight=3\nmin=5mbit\nmax=50mbit\n"), "{}", read());
    let kernel = node.sh(&["tc", "class", "show", "dev", "weir0"]);
    assert!(kernel.contains("ceil 50Mbit"), "the kernel does not have the maximum: {kernel}");
    // Two writes through one open file are two changes.
    assert!(shell("{ echo max=none; echo min=none; } > \"$1\"", &file).0);
    let policy = ps(&node, &name).policy;
    assert_eq!((policy.weight.get(), policy.min, policy.max), (3, None, None));
    let (status, said) = mounted.end(Signal::SIGTERM);
    assert_eq!((status.code(), said.as_str()), (Some(0), ""));
}

#[test]
fn bad_write_changes_nothing_and_has_a_number_and_a_reason() {
    if !can_mount() {
        return;
    }
    let node = node(1);
    let name = node.name("C1");
    let mounted = Mounted::at(&node);
    let file = mounted.file(&name);
    fs::write(&file, "weight=2 min=5mbit").expect("it is right");
    let before = ps(&node, &name).policy;
    for (text, wanted) in [
        ("weight=0\n", Errno::EINVAL),
        ("weight=3 colour=red\n", Errno::EINVAL),
        ("rate=3mbit\n", Errno::EINVAL),
        ("weight\n", Errno::EINVAL),
        ("\n", Errno::EINVAL),
        ("min=fast\n", Errno::EINVAL),
        ("weight=5 min=30mbit max=20mbit\n", Errno::EINVAL),
        // Below the minimum that is in force: the agent's own refusal.
        ("max=2mbit\n", Errno::EINVAL),
        ("weight=5 min=94mbit\n", Errno::EBUSY),
    ] {
        let error = fs::write(&file, text).expect_err(text);
        assert_eq!(number(&error), wanted, "{text:?}");
        assert_eq!(ps(&node, &name).policy, before, "{text:?} changed something");
    }
    let (done, said) = shell("echo weight=3 > \"$1\"", &mounted.file("nobody"));
    assert!(!done && !said.is_empty(), "{said}");
    let error = fs::write(mounted.file("nobody"), "weight=3").expect_err("there is none");
    assert_eq!(number(&error), Errno::ENOENT);
    for refused in [fs::remove_file(&file), fs::create_dir(mounted.file("dir"))] {
        assert_eq!(number(&refused.expect_err("classes are not files")), Errno::EPERM);
    }
    let (status, said) = mounted.end(Signal::SIGINT);
    assert_eq!(status.code(), Some(0));
    for reason in [
        "cannot use `0` as a weight",
        "there is no `colour` to set",
        "`rate` is read-only",
        "minimum 30mbit is above maximum 20mbit",
        "94mbit",
    ] {
        assert!(said.contains(reason), "no word of {reason}: {said}");
    }
    assert_eq!(said.lines().count(), 9, "one line for each refusal: {said}");
}

#[test]
fn file_appears_and_vanishes_with_its_container() {
    if !can_mount() {
        return;
    }
    let mut node = node(1);
    let mounted = Mounted::at(&node);
    let late = node.topology.container_name("late");
    let file = mounted.file(&late);
    assert!(!file.exists(), "{late} is not here yet");
    node.topology.add_container("late").expect("the label is free");
    let wait = |what: &str, done: &dyn Fn() -> bool| {
        let begin = Instant::now();
        while !done() {
            assert!(begin.elapsed() < READY, "{late} is not {what} after {READY:?}: {:?}", mounted.names());
            sleep(Duration::from_millis(20));
        }
    };
    wait("here", &|| mounted.names().contains(&late));
    assert_eq!(shell("echo weight=4 > \"$1\"", &file), (true, String::new()));
    let mut open = OpenOptions::new().read(true).write(true).open(&file).expect("it is here");
    let mut text = String::new();
    open.read_to_string(&mut text).expect("it is here");
    assert!(text.starts_with("weight=4\n"), "{text}");
    node.topology.remove_container("late").expect("it is here");
    wait("gone", &|| !mounted.names().contains(&late));
    assert!(!file.exists(), "a policy that is kept for {late} makes no file");
    assert_eq!(number(&File::open(&file).expect_err("it is gone")), Errno::ENOENT);
    // The open file has no class now.
    open.rewind().expect("a file can be rewound");
    assert_eq!(number(&open.read(&mut [0; 64]).expect_err("it is gone")), Errno::ENOENT);
    assert_eq!(number(&open.write(b"weight=5\n").expect_err("it is gone")), Errno::ENOENT);
    // A file that is open does not keep the program from its end.
    let (status, said) = mounted.end(Signal::SIGTERM);
    assert_eq!((status.code(), said.as_str()), (Some(0), ""));
}

#[test]
fn other_user_sees_no_file_and_an_agent_that_ends_is_named() {
    if !can_mount() {
        return;
    }
    let mut node = node(1);
    let mounted = Mounted::at(&node);
    let file = mounted.file(&node.name("C1"));
    let error = as_user(4001, &[4001], || fs::read_to_string(&file)).expect_err("another user");
    assert_eq!(number(&error), Errno::EACCES);
    assert!(node.agent().stop(), "the agent ends");
    assert_eq!(number(&fs::read_to_string(&file).expect_err("no agent")), Errno::ECONNREFUSED);
    let (status, said) = mounted.end(Signal::SIGTERM);
    assert_eq!(status.code(), Some(0));
    assert!(said.contains("is `weir agent` running?"), "{said}");
}

#[test]
fn mount_without_an_agent_or_a_directory_says_why() {
    if !can_mount() {
        return;
    }
    let node = node(1);
    let refused = |command: &mut Command| {
        let mut child = command.spawn().expect("weir can be run");
        let begin = Instant::now();
        while child.try_wait().expect("it is our child").is_none() && begin.elapsed() < READY {
            sleep(Duration::from_millis(10));
        }
        // One that has mounted would run on.
        let _ = child.kill();
        let output = child.wait_with_output().expect("it has ended");
        assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = refused(&mut weir_fs(&node, Path::new("/nowhere/classes")));
    assert!(said.starts_with("weir: cannot use /nowhere/classes: No such file"), "{said}");
    let said = refused(&mut weir_fs(&node, Path::new("/etc/hostname")));
    assert!(said.contains("is not a directory"), "{said}");
    let dir = tempfile::tempdir().expect("a directory");
    let mut without = Command::new(binary());
    without
        .args(["--socket", "/nowhere/s", "fs"])
        .arg(dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let said = refused(&mut without);
    assert!(said.starts_with("weir: cannot reach the agent at /nowhere/s"), "{said}");
    assert!(!is_mounted(dir.path()));
}
