use std::{
    ffi::OsString,
    io::{self, Write},
    process::ExitCode,
};

use clap::{CommandFactory, Parser};
use serde::de::DeserializeOwned;
use weir_api::{Class, Doctor, Event, Explanation, Status};
use weir_units::BitRate;

use super::{Cli, Look, USAGE, run};
use weir_fake_agent::{self as fake, FakeAgent};

pub(super) struct Outcome {
    pub(super) code: ExitCode,
    pub(super) out: String,
    pub(super) err: String,
}

impl Outcome {
    pub(super) fn good(self) -> String {
        assert_eq!((self.code, self.err.as_str()), (ExitCode::SUCCESS, ""));
        self.out
    }

    pub(super) fn json<T: DeserializeOwned>(self) -> T {
        serde_json::from_str(&self.good()).unwrap()
    }
}

pub(super) fn weir(args: &[&str]) -> Outcome {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let args = std::iter::once("weir").chain(args.iter().copied()).map(OsString::from);
    let code = run(args, Look::PLAIN, &mut out, &mut err);
    Outcome { code, out: String::from_utf8(out).unwrap(), err: String::from_utf8(err).unwrap() }
}

/// Runs the command line against an agent.
pub(super) fn ask(agent: &FakeAgent, args: &[&str]) -> Outcome {
    let socket = agent.path().to_str().unwrap();
    weir(&[&["--socket", socket], args].concat())
}

#[test]
fn ps_prints_a_table_that_lines_up() {
    let agent = FakeAgent::start();
    let expected = "\
NAME    GROUP     WEIGHT     MIN     MAX  ALLOCATED   SENDING  DROPS  BACKLOG  STATE
camera  -              1       -       -      5mbit         0      0       0B  idle!
web     tenant-a       2  20mbit  50mbit     40mbit  39.8mbit      0       0B  active
video   -              3       -       -     55mbit  54.1mbit     12    64KiB  active
host    -              1       -       -      5mbit   800kbit      0       0B  active

! camera is not enforced: veth7 is not there: check `interface` in `[[class]]`
";
    assert_eq!(ask(&agent, &["ps"]).good(), expected);
}

#[test]
fn ps_wide_adds_what_else_is_known() {
    let agent = FakeAgent::start();
    let expected = "\
NAME    GROUP     WEIGHT     MIN     MAX  ALLOCATED   SENDING  DROPS  BACKLOG  STATE   HANDLE  SOURCE  AGREEMENT     BYTES  LOCAL  BACKPRESSURED  INTERFACES
camera  -              1       -       -      5mbit         0      0       0B  idle!   1:1a    config  -                0B     0B              0  veth-camera
web     tenant-a       2  20mbit  50mbit     40mbit  39.8mbit      0       0B  active  1:1a    docker  -          379.9MiB     0B              0  veth-web
video   -              3       -       -     55mbit  54.1mbit     12    64KiB  active  1:1a    docker  -          515.9MiB   3MiB          81.5s  veth-video
host    -              1       -       -      5mbit   800kbit      0       0B  active  1:1a    weir    -            7.6MiB     0B              0  veth-host
";
    let got = ask(&agent, &["ps", "-o", "wide"]).good();
    assert_eq!(got.split("\n\n").next().unwrap(), expected.trim_end());
}

#[test]
fn a_table_has_colours_on_a_terminal_only() {
    let agent = FakeAgent::start();
    let mut out = Vec::new();
    let args = ["weir", "--socket", agent.path().to_str().unwrap(), "ps"].map(OsString::from);
    run(args, Look { colour: true, terminal: true }, &mut out, &mut Vec::new());
    let coloured = String::from_utf8(out).unwrap();
    assert!(coloured.contains('\u{1b}'));
    let mut plain = String::new();
    let mut escape = false;
    for letter in coloured.chars() {
        match letter {
            '\u{1b}' => escape = true,
            'm' if escape => escape = false,
            letter if !escape => plain.push(letter),
            _ => {}
        }
    }
    let trimmed: Vec<&str> = plain.lines().map(str::trim_end).collect();
    let expected = ask(&agent, &["ps"]).good();
    assert_eq!(trimmed, expected.lines().collect::<Vec<_>>());
}

#[test]
fn status_explain_and_doctor_print_what_people_need() {
    let agent = FakeAgent::start();
    let expected = "\
weir 0.1.0, process 4242, up 3h 12m 12s
link       eth0, 100mbit; sending 94.7mbit (94.7 %)
promised   20mbit of 95mbit that may be
engine     htb, allocator water-filling, attached by tcx
classes    4, 3 active
scheduler  17 writes, 0 repairs
config     /etc/weir/weir.toml
! not ready: camera: veth7 is not there: check `interface` in `[[class]]`
! camera is not enforced: veth7 is not there
";
    assert_eq!(ask(&agent, &["status"]).good(), expected);
    let expected = "\
web (container from docker of group tenant-a) is active: sends 39.8mbit of 40mbit allowed, asks for all it can get
policy: weight 2 (configuration), min 20mbit (set by hand), max 50mbit (label)

Why
  1. eth0 carries 100mbit; 3 classes send now
  2. by weight 2 of 6 the share is 33.3mbit

Set, strongest first
  set: min=20mbit
  config: weight=2
  label: max=50mbit

SHARER    WEIGHT  ALLOCATED  BOUND
tenant-a       2     40mbit  weight
video          3     55mbit  weight
host           1      5mbit  demand
";
    assert_eq!(ask(&agent, &["explain", "web"]).good(), expected);
    assert!(ask(&agent, &["explain", "camera"]).good().contains("! not enforced: veth7 is not there"));
    let expected = "\
CHECK         FOUND
kernel  ok    6.18.2
docker  warn  no socket at /var/run/docker.sock
              -> start dockerd, or set `docker = false`
link    FAIL  eth0 is down
              -> ip link set dev eth0 up
";
    let doctor = ask(&agent, &["doctor"]);
    assert_eq!((doctor.code, doctor.out.as_str()), (ExitCode::FAILURE, expected), "a check failed");
}

#[test]
fn json_is_what_the_agent_said() {
    let agent = FakeAgent::start();
    assert_eq!(ask(&agent, &["ps", "--json"]).json::<Vec<Class>>(), fake::classes());
    assert_eq!(ask(&agent, &["--json", "status"]).json::<Status>(), fake::status());
    let explained: Explanation = ask(&agent, &["explain", "web", "--json"]).json();
    assert_eq!(explained, fake::explanation(fake::classes()[0].clone()));
    let doctor: Doctor = serde_json::from_str(&ask(&agent, &["doctor", "--json"]).out).unwrap();
    assert_eq!(doctor, fake::doctor());
    let events = ask(&agent, &["events", "--json"]).good();
    let events: Vec<Event> = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events, [fake::event(1, "started"), fake::event(2, "class-added")]);
    let set: Vec<Class> = ask(&agent, &["set", "web", "weight=7", "--json"]).json();
    assert_eq!((set.len(), set[0].policy.weight), (1, fake::weight(7)));
    let top: serde_json::Value = ask(&agent, &["top", "--once", "--json"]).json();
    assert_eq!(top["status"], serde_json::json!(fake::status()));
    assert_eq!(top["classes"].as_array().unwrap().len(), 4);
}

#[test]
fn events_are_one_a_line() {
    let agent = FakeAgent::start();
    let expected = "\
2023-11-14T22:13:20.001Z  started                   web               event 1
2023-11-14T22:13:20.002Z  class-added               web               event 2
";
    assert_eq!(ask(&agent, &["events"]).good(), expected);
}

#[test]
fn top_once_is_a_frame_as_text() {
    let agent = FakeAgent::start();
    let text = ask(&agent, &["top", "--once", "--sort", "name"]).good();
    let names: Vec<&str> = text.lines().skip(6).map(|line| line[2..].split(' ').next().unwrap()).collect();
    assert_eq!(names, ["camera", "host", "video", "web"]);
}

#[test]
fn top_of_a_download_that_is_not_shared_says_how_to_share_it() {
    let agent = FakeAgent::start();
    let top = ask(&agent, &["top", "--once", "--down"]);
    assert_eq!((top.code, top.out.as_str()), (ExitCode::FAILURE, ""));
    assert!(top.err.contains("this node does not share its download: `[link] download"), "{}", top.err);
}

#[test]
fn top_without_a_terminal_says_what_to_use_instead() {
    let top = weir(&["top"]);
    assert_eq!(top.code, ExitCode::from(USAGE));
    assert!(top.err.contains("needs a terminal; use --once or --json"), "{}", top.err);
}

#[test]
fn set_changes_what_is_named_and_nothing_else() {
    let agent = FakeAgent::start();
    let table = ask(&agent, &["set", "web", "weight=5", "min=none"]).good();
    assert_eq!(table.lines().count(), 2, "{table}");
    let web = agent.client().class("web").unwrap();
    assert_eq!((web.policy.weight, web.policy.min), (fake::weight(5), None));
    assert_eq!(web.policy.max, Some(BitRate::mbit(50)));
    ask(&agent, &["unset", "web"]).good();
    assert_eq!(agent.client().class("web").unwrap().policy.weight, fake::weight(1));
}

#[test]
fn a_name_that_is_not_here_is_kept_only_if_asked() {
    let agent = FakeAgent::start();
    let refused = ask(&agent, &["set", "batch", "max=5mbit"]);
    assert_eq!(refused.code, ExitCode::FAILURE);
    assert_eq!(refused.err, "weir: there is no class `batch`; `weir ps` lists them\n");
    let kept = ask(&agent, &["set", "batch", "max=5mbit", "--keep"]).good();
    assert!(kept.contains("absent"), "{kept}");
}

#[test]
fn a_refusal_of_the_agent_is_told_with_its_numbers() {
    let agent = FakeAgent::start();
    let refused = ask(&agent, &["set", "web", "min=80mbit", "max=90mbit"]);
    assert_eq!((refused.code, refused.out.as_str()), (ExitCode::FAILURE, ""));
    assert_eq!(refused.err, "weir: cannot promise web 80mbit: 60mbit of 95mbit is free\n");
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// A refusal goes to standard error as text, as those of all verbs.
#[test]
fn a_checked_configuration_is_told_in_json_too() {
    let check = |text: &str, json: &[&str]| {
        let file = file(text);
        let path = file.path().to_str().unwrap();
        (weir(&[&["agent", "--check", "--config", path], json].concat()), path.to_owned())
    };
    let good = "[link]\ndevice = \"lo\"\ncapacity = \"10mbit\"\n";
    let (answer, path) = check(good, &[]);
    assert_eq!(answer.good(), format!("{path} is good\n"));
    let (answer, path) = check(good, &["--json"]);
    assert_eq!(answer.json::<serde_json::Value>(), serde_json::json!({ "config": path, "good": true }));
    let (refused, path) = check("[link]\ndevice = 7\n", &["--json"]);
    assert_eq!((refused.code, refused.out.as_str()), (ExitCode::from(USAGE), ""));
    assert!(refused.err.starts_with("weir: ") && refused.err.contains(&path), "{}", refused.err);
}

#[test]
fn many_changes_come_from_a_file_and_all_or_none_take_effect() {
    let agent = FakeAgent::start();
    let set = |text: &str| {
        let file = file(text);
        ask(&agent, &["set", "--file", file.path().to_str().unwrap()])
    };
    let table = set(r#" [{"name":"web","weight":9},{"name":"video","min":null,"max":"70mbit"}]"#).good();
    assert_eq!(table.lines().count(), 3, "{table}");
    assert_eq!(agent.client().class("video").unwrap().policy.max, Some(BitRate::mbit(70)));
    set(r#"{"changes":[{"name":"batch","weight":2}],"allow_absent":true}"#).good();
    let before = agent.client().classes().unwrap();
    let refused = set(r#"[{"name":"web","weight":1},{"name":"nobody","weight":1}]"#);
    assert_eq!(refused.code, ExitCode::FAILURE);
    assert_eq!(agent.client().classes().unwrap(), before);
}

#[test]
fn a_file_that_is_wrong_is_refused_with_the_field_named() {
    for (text, told) in [
        ("", "EOF"),
        ("[]", "there is no change"),
        ("[{\"name\":\"a\",\"weight\":0}]", "[0].weight: cannot use `0` as a weight"),
        (
            "[{\"name\":\"a\"},{\"name\":\"b\",\"min\":\"-1mbit\"}]",
            "[1].min: cannot read `-1mbit` as a rate: a rate is not negative",
        ),
        (
            "{\"changes\":[{\"name\":\"a\",\"max\":\"9999999gbit\"}]}",
            "changes[0].max: cannot read `9999999gbit`",
        ),
        ("[{\"name\":\"a\",\"max\":0}]", "cannot set a: a maximum of 0 bit/s would cut the class off"),
        (
            "[{\"name\":\"a\",\"min\":30000000,\"max\":20000000}]",
            "cannot set a: minimum 30mbit is above maximum 20mbit",
        ),
        ("[{\"name\":\"a\",\"weight\":1},{\"name\":\"a\",\"weight\":2}]", "cannot set a twice"),
        ("[{\"name\":\"a\",\"weight\":1,\"weight\":2}]", "duplicate field `weight`"),
        ("[{\"name\":\"a\",\"rate\":1}]", "unknown field `rate`"),
        ("[] []", "trailing characters"),
    ] {
        let file = file(text);
        let path = file.path().to_str().unwrap();
        let refused = weir(&["set", "--file", path]);
        assert_eq!(refused.code, ExitCode::from(USAGE), "{text}: {}", refused.err);
        assert!(refused.err.starts_with("weir: ") && refused.err.contains(told), "{text}: {}", refused.err);
    }
    let missing = weir(&["set", "--file", "/nowhere/changes.json"]);
    assert_eq!(missing.code, ExitCode::from(USAGE));
    assert!(
        missing.err.contains("cannot read changes from /nowhere/changes.json: No such file"),
        "{}",
        missing.err
    );
}

#[test]
fn a_wrong_command_line_is_refused_before_the_agent_is_asked() {
    let agent = FakeAgent::start();
    for (line, told) in [
        ("set web", "required arguments were not provided"),
        ("set weight=3", "the class comes first"),
        ("set web weight", "write weight=N, min=RATE or max=RATE"),
        ("set web wieght=3", "there is no `wieght` to set: write weight, min or max"),
        ("set web min=", "`min=` lacks its value"),
        ("set web weight=0", "cannot use `0` as a weight: write a whole number from 1 to 1000000"),
        ("set web weight=-1", "cannot use `-1` as a weight"),
        ("set web weight=1.5", "cannot use `1.5` as a weight"),
        ("set web weight=4294967297", "cannot use `4294967297` as a weight"),
        ("set web min=-5mbit", "a rate is not negative"),
        ("set web min=0", "a minimum of 0 bit/s promises nothing"),
        ("set web max=0mbit", "a maximum of 0 bit/s would cut the class off"),
        ("set web max=7bit", "7bit is less than 8kbit, the smallest rate weir enforces"),
        ("set web max=99999999gbit", "as a rate: more than 10000gbit"),
        ("set web max=340282366920938463463374607431768211456", "as a rate: more than 10000gbit"),
        ("set web max=fast", "cannot read `fast` as a rate: write a number and a unit"),
        ("set web min=30mbit max=20mbit", "cannot set web: minimum 30mbit is above maximum 20mbit"),
        ("set web weight=1 weight=2", "cannot set weight of web twice in one call"),
        ("set web min=none min=5mbit", "cannot set min of web twice in one call"),
        ("set --file x web weight=1", "cannot be used with"),
        ("set", "required arguments were not provided"),
        ("explain", "required arguments were not provided"),
        ("unset", "required arguments were not provided"),
        ("plan", "required arguments were not provided"),
        ("undo web", "unexpected argument 'web'"),
        ("unset web video", "unexpected argument 'video'"),
        ("ps -o tall", "invalid value 'tall'"),
        ("top --sort size", "invalid value 'size'"),
        ("completions cmd.exe", "invalid value 'cmd.exe'"),
        ("pss", "unrecognized subcommand 'pss'"),
        ("ps --jsn", "unexpected argument '--jsn'"),
        ("--socket", "a value is required for '--socket <PATH>'"),
    ] {
        let args: Vec<&str> = line.split(' ').collect();
        let refused = ask(&agent, &args);
        assert_eq!(
            (refused.code, refused.out.as_str()),
            (ExitCode::from(USAGE), ""),
            "{line}: {}",
            refused.err
        );
        assert!(refused.err.starts_with("weir: ") && refused.err.contains(told), "{line}: {}", refused.err);
    }
    assert_eq!(agent.client().classes().unwrap(), fake::classes());
}

#[test]
fn export_prints_a_script_or_the_tree_itself() {
    let agent = FakeAgent::start();
    let script = ask(&agent, &["export", "tc", "--device", "eth7"]).good();
    assert!(script.starts_with("#!/bin/sh\n# The division of eth7, 95mbit,"), "{script}");
    assert!(ask(&agent, &["export", "tcng"]).good().contains("dev \"eth0\" {"));
    assert_eq!(ask(&agent, &["export", "tc", "--json"]).json::<weir_api::Export>(), fake::export());
}

#[test]
fn export_asks_for_a_direction_of_a_link() {
    let agent = FakeAgent::start();
    let script = ask(&agent, &["export", "tc", "--download", "--link", "wwan0"]).good();
    assert!(script.contains("# The division of what arrives by wwan0, 95mbit,"), "{script}");
    assert!(script.contains("IFB=${IFB:-ifb4wwan0}"), "{script}");
    let refused = ask(&agent, &["export", "tc", "--link", "eth9"]);
    assert_eq!((refused.code, refused.out.as_str()), (ExitCode::FAILURE, ""), "{}", refused.err);
    assert!(refused.err.contains("eth9"), "{}", refused.err);
}

#[test]
fn without_an_agent_each_verb_says_how_to_get_one() {
    for line in [
        "ps",
        "status",
        "export tc",
        "explain web",
        "cc ls",
        "set web weight=2",
        "unset web",
        "undo",
        "set web weight=2 --dry-run",
        "plan /dev/null",
        "events",
        "top --once",
        "top --json",
    ] {
        let args: Vec<&str> = ["--socket", "/nowhere/weir.sock"].into_iter().chain(line.split(' ')).collect();
        let failed = weir(&args);
        assert_eq!((failed.code, failed.out.as_str()), (ExitCode::FAILURE, ""), "{line}");
        let want =
            "weir: cannot reach the agent at /nowhere/weir.sock: is `weir agent` running? start it with";
        assert!(failed.err.starts_with(want), "{line}: {}", failed.err);
        assert!(failed.err.ends_with(": No such file or directory (os error 2)\n"), "{line}: {}", failed.err);
    }
}

#[test]
fn doctor_works_without_an_agent() {
    let doctor = weir(&["--socket", "/nowhere/weir.sock", "doctor"]);
    assert!(
        doctor.out.contains("agent") && doctor.out.contains("cannot reach the agent at /nowhere/weir.sock")
    );
    assert_eq!(doctor.err, "");
}

/// A reader that has closed its end.
struct Closed;

impl Write for Closed {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_reader_that_closes_early_is_no_error() {
    let agent = FakeAgent::start();
    for line in [
        "ps",
        "ps --json",
        "events",
        "events --json",
        "events -f",
        "top --once",
        "completions bash",
        "--help",
    ] {
        let socket = ["weir", "--socket", agent.path().to_str().unwrap()];
        let args = socket.into_iter().chain(line.split(' ')).map(OsString::from);
        let mut err = Vec::new();
        let code = run(args, Look::PLAIN, &mut Closed, &mut err);
        assert_eq!((code, err.as_slice()), (ExitCode::SUCCESS, &b""[..]), "{line}");
    }
}

/// A tenant chooses the name of its container, and an operator reads it.
#[test]
fn hostile_names_do_nothing_to_a_terminal_in_any_view() {
    let name = "web\u{1b}[2J\u{1b}]0;pwned\u{7}\r\nroot  9  active\t\u{202e}gpj\u{200b}\u{9b}31m";
    let (hostile, harmless) = (FakeAgent::hostile(name), FakeAgent::hostile("web"));
    for view in ["ps", "ps -o wide", "status", "events", "top --once", "explain web", "cc", "doctor"] {
        let words: Vec<&str> = view.split(' ').collect();
        let shown = match view {
            "explain web" => ask(&hostile, &["explain", name]),
            _ => ask(&hostile, &words),
        };
        let usual = ask(&harmless, &words);
        assert_eq!(shown.code, usual.code, "{view}: {}{}", shown.out, shown.err);
        assert_eq!(shown.out.lines().count(), usual.out.lines().count(), "{view}:\n{}", shown.out);
        for text in [&shown.out, &shown.err] {
            let obeyed: Vec<char> = text
                .chars()
                .filter(|c| *c != '\n' && weir_api::plain(&c.to_string()) != c.to_string())
                .collect();
            assert_eq!(obeyed, [], "{view}: {text}");
        }
    }
    assert!(ask(&hostile, &["ps"]).good().contains("web?[2J?]0;pwned"), "the name is still recognised");
}

#[test]
fn the_command_line_is_well_formed() {
    Cli::command().debug_assert();
}

/// The texts behind the options of all verbs.
fn texts_after_help(command: &clap::Command, texts: &mut Vec<(String, String)>) {
    let text = command.get_after_long_help().or(command.get_after_help());
    texts.extend(text.map(|text| (command.get_name().to_owned(), text.to_string())));
    command.get_subcommands().for_each(|verb| texts_after_help(verb, texts));
}

/// A terminal of 80 columns breaks a longer line after its last word.
#[test]
fn examples_fit_a_terminal_of_80_columns() {
    let mut texts = Vec::new();
    texts_after_help(&Cli::command(), &mut texts);
    assert!(texts.len() > 30, "{} texts", texts.len());
    let lines = texts.iter().flat_map(|(verb, text)| text.lines().map(move |line| (verb, line)));
    let long: Vec<_> = lines.filter(|(_, line)| line.chars().count() > 79).collect();
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn every_verb_teaches_with_examples_that_work() {
    let mut root = Cli::command();
    root.build();
    for verb in root.get_subcommands().filter(|verb| verb.get_name() != "help" && !verb.is_hide_set()) {
        let help = weir(&[verb.get_name(), "--help"]).good();
        let (_, examples) =
            help.split_once("Examples:\n").unwrap_or_else(|| panic!("{} has none", verb.get_name()));
        let mut tried = 0;
        // `weir VERB ARGS   what it does`, `sudo weir ...`, `VAR=x weir ...`, `weir ... | jq ...`
        for line in examples.lines().take_while(|line| !line.is_empty()) {
            let Some((_, rest)) = line.split_once("weir ") else { continue };
            let shell = rest.split("   ").next().unwrap().split([';', '|', '>']).next().unwrap();
            let args = std::iter::once("weir").chain(shell.split_whitespace());
            if let Err(e) = Cli::try_parse_from(args) {
                panic!("the example `{line}` of {} is wrong: {e}", verb.get_name());
            }
            tried += 1;
        }
        assert!(tried > 0, "{} has no example", verb.get_name());
    }
}

#[test]
fn completions_know_every_verb() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = weir(&["completions", shell]).good();
        for verb in Cli::command().get_subcommands().filter(|verb| !verb.is_hide_set()) {
            assert!(script.contains(verb.get_name()), "{shell} does not know {}", verb.get_name());
        }
    }
}

#[test]
fn there_is_a_manual_page_for_every_verb() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("share/man");
    weir(&["man", target.to_str().unwrap()]).good();
    let page = |name: &str| {
        let section = name.rsplit('.').next().unwrap();
        let path = target.join(format!("man{section}")).join(name);
        std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{name}: {e}"))
    };
    assert!(page("weir.1").contains("weir\\-set(1)") && page("weir.1").contains("weir\\-agent(8)"));
    assert!(page("weir.toml.5").contains("\\&capacity = "));
    for verb in Cli::command().get_subcommands().filter(|verb| !verb.is_hide_set()) {
        let name = verb.get_name();
        let section = if ["agent", "bugreport", "doctor", "init"].contains(&name) { 8 } else { 1 };
        assert!(page(&format!("weir-{name}.{section}")).contains(".SH EXAMPLES\n.nf\n"), "{name}");
    }
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let refused = weir(&["man", file.to_str().unwrap()]);
    assert_eq!(refused.code, ExitCode::FAILURE);
    assert!(refused.err.starts_with("weir: cannot write the manual pages into "), "{}", refused.err);
}

#[test]
fn empty_name_is_a_mistake_of_usage() {
    let agent = FakeAgent::start();
    for args in [&["unset", ""][..], &["explain", ""], &["set", "", "weight=1"], &["token", "rm", ""]] {
        let refused = ask(&agent, args);
        assert_eq!(refused.code, ExitCode::from(USAGE), "{args:?}: {}", refused.err);
        assert!(refused.err.contains("a name has at least one character"), "{args:?}: {}", refused.err);
    }
}

#[test]
fn plan_of_a_wrong_or_too_long_file_is_a_mistake_of_usage() {
    let agent = FakeAgent::start();
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let refused = ask(&agent, &["plan", path]);
    assert_eq!(refused.code, ExitCode::from(USAGE), "{}", refused.err);
    assert!(refused.err.contains("missing field `link`"), "{}", refused.err);
    std::fs::write(path, "#".repeat(5 << 20)).unwrap();
    let refused = ask(&agent, &["plan", path]);
    assert_eq!(refused.code, ExitCode::from(USAGE), "{}", refused.err);
    let told =
        format!("cannot plan configuration {path}: its 5MiB are too many for one request (2MiB): shorten it");
    assert!(refused.err.contains(&told), "{}", refused.err);
}

#[test]
fn export_for_a_device_that_cannot_exist_is_a_mistake_of_usage() {
    let agent = FakeAgent::start();
    for device in ["", "x/y", "abcdefghijklmnopqrst", ".", "a b"] {
        let refused = ask(&agent, &["export", "tc", "--device", device]);
        assert_eq!((refused.code, refused.out.as_str()), (ExitCode::from(USAGE), ""), "{device}");
        assert!(refused.err.contains("is not the name of an interface"), "{device}: {}", refused.err);
    }
    assert!(ask(&agent, &["export", "tc", "--device", "eth1.100"]).good().contains("eth1.100"));
}

/// A full disk: text is taken, and the flush fails.
struct Full;

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Err(io::ErrorKind::StorageFull.into())
    }
}

#[test]
fn output_that_cannot_be_written_ends_with_exit_code_1() {
    let agent = FakeAgent::start();
    let socket = agent.path().to_str().unwrap();
    for args in [&["--version"][..], &["help"], &["ps", "--help"], &["--socket", socket, "ps"]] {
        let args = std::iter::once("weir").chain(args.iter().copied()).map(OsString::from);
        let mut err = Vec::new();
        assert_eq!(run(args.clone(), Look::PLAIN, &mut Full, &mut err), ExitCode::from(1), "{args:?}");
        assert!(err.starts_with(b"weir: "), "{args:?}");
    }
}
