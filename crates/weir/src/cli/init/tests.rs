use std::{collections::VecDeque, io, process::ExitCode};

use clap::Parser;
use weir_api::Client;

use super::{super::Look, *};

/// A person who has written the answers down. The questions are kept.
struct Script {
    answers: VecDeque<&'static str>,
    questions: Vec<String>,
}

impl Person for Script {
    fn ask(&mut self, question: &str) -> io::Result<String> {
        self.questions.push(question.to_owned());
        self.answers.pop_front().map(str::to_owned).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    args: InitArgs,
}

fn survey(uplinks: &[(&str, u32)]) -> Survey {
    let uplinks =
        uplinks.iter().map(|(name, metric)| survey::Uplink { name: (*name).to_owned(), metric: *metric });
    Survey {
        devices: vec!["eth0".to_owned(), "wwan0".to_owned()],
        uplinks: uplinks.collect(),
        speeds: vec![("eth0".to_owned(), BitRate::mbit(1000))],
        has_docker: true,
        others: survey::others(true, |socket| {
            ["podman", "containerd", "lxd", "incus"].iter().any(|name| socket.contains(name))
        }),
        namespaces: 2,
        has_unit: true,
    }
}

/// The outcome of `weir init` with these words in a directory, with a person or without, and the questions.
fn init_in(
    dir: &Path,
    survey: &Survey,
    words: &str,
    answers: Option<&[&'static str]>,
) -> (Result<String, String>, Vec<String>) {
    let config = dir.join("weir.toml");
    let words = ["init", "--config", config.to_str().unwrap()].into_iter().chain(words.split_whitespace());
    let args = Line::try_parse_from(words).unwrap().args;
    let mut person =
        answers.map(|answers| Script { answers: answers.iter().copied().collect(), questions: Vec::new() });
    let mut out = Vec::new();
    let mut session = Session {
        client: Client::new("/nowhere"),
        socket: "/nowhere".into(),
        json: false,
        look: Look::PLAIN,
        out: &mut out,
        err: &mut io::sink(),
    };
    let asked = person.as_mut().map(|person| person as &mut dyn Person);
    let done = init(&args, survey, asked, &mut session);
    let done = done.map(|code| assert_eq!(code, ExitCode::SUCCESS));
    let said = String::from_utf8(out).unwrap().replace(dir.to_str().unwrap(), "DIR");
    let failed = |e: anyhow::Error| format!("{e:#}").replace(dir.to_str().unwrap(), "DIR");
    (done.map(|()| said).map_err(failed), person.map(|person| person.questions).unwrap_or_default())
}

fn written(dir: &Path) -> String {
    fs::read_to_string(dir.join("weir.toml")).unwrap()
}

const TEXT: &str = "\
# Written by `weir init`. `man weir.toml` lists all keys; `weir plan` judges a change before it is made.
[link]
device = \"eth0\"
capacity = \"95mbit\"

[discover]
docker = true
containerd = \"/run/k3s/containerd/containerd.sock\"
podman = true
incus = true
";

#[test]
fn script_gives_all_and_the_agent_takes_the_ten_lines() {
    let dir = tempfile::tempdir().unwrap();
    let (said, _) = init_in(dir.path(), &survey(&[("eth0", 100)]), "--capacity 95mbit --yes", None);
    let expected = "\
eth0 has a default route, metric 100
Docker is here: each container becomes a class
2 named network namespaces are here: each becomes a class
k3s is here: each container becomes a class
Podman is here: each container becomes a class
Incus is here: each container becomes a class
wrote DIR/weir.toml: weir shares 95mbit of eth0
next: weir agent --config DIR/weir.toml
before it, `weir test uplink --config DIR/weir.toml` proves the shares on eth0 and leaves nothing behind
";
    assert_eq!(said.unwrap(), expected);
    assert_eq!(written(dir.path()), TEXT);
    assert!(TEXT.lines().count() <= 10);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no other file is left");
    // Of two containerds one is followed, and no one follows CRI-O.
    let others = survey::others(false, |socket| !socket.contains("podman") && !socket.contains("incus"));
    let without = Survey { has_docker: false, others, ..survey(&[("eth0", 100)]) };
    let text = configuration(&without, "eth0", BitRate::mbit(95));
    weir_agent::config::parse(&text, Path::new("weir.toml")).unwrap();
    assert!(text.contains("docker = false") && text.contains("\ncontainerd = true\n"), "{text}");
    assert!(text.ends_with("\nincus = \"/var/snap/lxd/common/lxd/unix.socket\"\n"), "{text}");
    let unfollowed = |words: &String| words.contains("k3s is here: its containers share class default");
    assert!(without.words().iter().any(unfollowed), "{:?}", without.words());
}

#[test]
fn without_a_terminal_the_missing_option_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let two = [("eth0", 100), ("wwan0", 700)];
    for (uplinks, words, told) in [
        (&two[..1], "--yes", "--capacity is missing: no one says what eth0 carries; its port runs at 1gbit"),
        (&two[..1], "--capacity 95mbit", "--yes is missing: "),
        (&two[..], "--capacity 95mbit --yes", "--device is missing: default routes lead to eth0 and wwan0"),
        (&[], "--capacity 95mbit --yes", "--device is missing: no device has a default route"),
        (&two[..], "--device wwan0 --yes", "--capacity is missing: no one says what wwan0 carries, and"),
        (
            &two[..],
            "--device eth9 --capacity 95mbit --yes",
            "there is no interface `eth9`: here are eth0, wwan0",
        ),
        (&two[..1], "--capacity 5kbit --yes", "[link] capacity: 5kbit is not between 64kbit and"),
    ] {
        let (said, _) = init_in(dir.path(), &survey(uplinks), words, None);
        let why = said.unwrap_err();
        assert!(why.contains(told), "{words}: {why}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{words}");
    }
}

#[test]
fn person_is_asked_three_questions_at_most_and_may_take_the_proposals() {
    let dir = tempfile::tempdir().unwrap();
    let two = survey(&[("eth0", 100), ("wwan0", 700)]);
    let (said, questions) = init_in(dir.path(), &two, "", Some(&["", "", ""]));
    said.unwrap();
    assert_eq!(questions.len(), 3, "{questions:#?}");
    assert!(questions[0].ends_with("[eth0]") && questions[1].ends_with("[950mbit]"), "{questions:#?}");
    assert!(questions[2].contains("[link]\ndevice = \"eth0\"\ncapacity = \"950mbit\"\n"), "{}", questions[2]);
    let other = tempfile::tempdir().unwrap();
    let (said, questions) = init_in(other.path(), &two, "", Some(&["wwan0", "18mbit", "yes"]));
    said.unwrap();
    assert!(questions[1].ends_with("(as 18mbit)"), "a modem tells no speed: {}", questions[1]);
    assert!(written(other.path()).contains("device = \"wwan0\"\ncapacity = \"18mbit\"\n"));
}

#[test]
fn answer_that_is_no_or_makes_no_sense_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for (answers, told) in [
        (&["95mbit", "n"][..], "nothing was written"),
        (&["fast"], "cannot read `fast` as a rate"),
        (&[], "cannot ask"),
    ] {
        let (said, _) = init_in(dir.path(), &survey(&[("eth0", 100)]), "", Some(answers));
        let why = said.unwrap_err();
        assert!(why.contains(told), "{why}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{told}");
    }
}

#[test]
fn existing_file_stays_unless_it_is_as_installed_or_forced() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("weir.toml");
    let one = survey(&[("eth0", 100)]);
    fs::write(&file, "# mine\n").unwrap();
    let words = "--capacity 95mbit --yes";
    let why = init_in(dir.path(), &one, words, None).0.unwrap_err();
    assert!(why.starts_with("cannot write DIR/weir.toml: it is there") && why.contains("--force"), "{why}");
    assert_eq!(written(dir.path()), "# mine\n");
    init_in(dir.path(), &one, &format!("{words} --force --dry-run"), None).0.unwrap();
    assert_eq!(written(dir.path()), "# mine\n", "a dry run writes nothing");
    init_in(dir.path(), &one, &format!("{words} --force"), None).0.unwrap();
    assert_eq!(written(dir.path()), TEXT);
    fs::write(&file, CONFIG).unwrap();
    init_in(dir.path(), &one, words, None).0.unwrap();
    assert_eq!(written(dir.path()), TEXT);
}

#[test]
fn next_command_is_the_unit_where_systemd_has_it() {
    let here = survey(&[("eth0", 100)]);
    let installed = Path::new("/etc/weir/weir.toml");
    assert_eq!(next(&here, installed), "systemctl enable --now weir");
    assert_eq!(test(installed), "weir test uplink");
    assert_eq!(next(&here, Path::new("w.toml")), "weir agent --config w.toml");
    let without = Survey { has_unit: false, ..here };
    assert_eq!(next(&without, installed), "weir agent --config /etc/weir/weir.toml");
}

/// The kernel takes such names.
#[test]
fn device_whose_name_has_quotes_is_written_as_it_is() {
    for device in ["q\"uo", "b\\n", "it's"] {
        let text = configuration(&survey(&[]), device, BitRate::mbit(95));
        let read: toml::Table = text.parse().unwrap();
        assert_eq!(read["link"]["device"].as_str(), Some(device), "{text}");
    }
}

#[test]
fn file_that_is_a_pipe_or_a_link_to_nothing_is_no_hindrance() {
    let dir = tempfile::tempdir().unwrap();
    let (file, one) = (dir.path().join("weir.toml"), survey(&[("eth0", 100)]));
    let words = "--capacity 95mbit --yes";
    assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
    let (sender, receiver) = std::sync::mpsc::channel();
    let (at, seen) = (dir.path().to_owned(), one.clone());
    std::thread::spawn(move || sender.send(init_in(&at, &seen, words, None).0));
    let told = receiver.recv_timeout(std::time::Duration::from_secs(10)).expect("it does not wait");
    assert_eq!(told.unwrap_err(), "cannot write DIR/weir.toml: it is there, and is not a regular file");

    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/nowhere/weir.toml", &file).unwrap();
    let why = init_in(dir.path(), &one, words, None).0.unwrap_err();
    assert!(why.starts_with("cannot read DIR/weir.toml"), "{why}");
    init_in(dir.path(), &one, &format!("{words} --force"), None).0.unwrap();
    assert_eq!(written(dir.path()), TEXT);
}

#[test]
fn node_without_interfaces_is_told_so() {
    let dir = tempfile::tempdir().unwrap();
    let none = Survey { devices: Vec::new(), ..survey(&[]) };
    let why = init_in(dir.path(), &none, "--device x --capacity 95mbit --yes", None).0.unwrap_err();
    assert_eq!(why, "there is no interface `x`: this node has none but the loopback");
}
