//! The how-to guides of the book, followed by bash on a node: each command runs, and those of transcripts print what
//! the guide shows.

use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Output},
    thread::sleep,
    time::Duration,
};

use weir_netlab::topology::Spec;
use weir_netns_tests::{Config, Need, Node, binary, can_run, connections::can_choose, containers};
use weir_testkit::markdown::{read, root, split, typed};
use weir_units::BitRate;

/// A guide, and the node that it is followed on.
struct Guide {
    name: &'static str,
    /// Classes of the guide, which the interfaces of the node's containers are.
    classes: &'static [&'static str],
    /// The blocks `toml fragment` that stand in the configuration, counted from 0.
    fragments: &'static [usize],
    configure: fn(Config) -> Config,
}

const PLAIN: fn(Config) -> Config = |config| config;

const GUIDES: [Guide; 9] = [
    Guide { name: "backup", classes: &["backup"], fragments: &[0], configure: PLAIN },
    Guide { name: "billing", classes: &["camera"], fragments: &[0], configure: PLAIN },
    Guide { name: "compose", classes: &["shop-web-1"], fragments: &[0], configure: PLAIN },
    Guide {
        name: "download",
        classes: &["web"],
        fragments: &[],
        configure: |config| config.link("download = \"95mbit\""),
    },
    Guide {
        name: "changing-link",
        classes: &[],
        fragments: &[],
        configure: |config| config.following(MIN, MAX, ", delay = \"30ms\", dry_run = true"),
    },
    Guide { name: "lossy", classes: &[], fragments: &[1], configure: PLAIN },
    Guide {
        name: "one-interface",
        classes: &[],
        fragments: &[],
        configure: |config| config.link("exempt = [\"on-link\"]"),
    },
    Guide { name: "not-enforced", classes: &["camera"], fragments: &[], configure: PLAIN },
    Guide { name: "virtual-machines", classes: &["web"], fragments: &[], configure: PLAIN },
];

/// Guides that are followed elsewhere, with the place.
const ELSEWHERE: [(&str, &str); 7] = [
    ("clients", "make test-clients"),
    ("failover", "suites failover and links"),
    ("images", "suite images"),
    ("kubernetes", "make test-kubernetes"),
    ("pods", "suite cni"),
    ("runtimes", "suite runtimes"),
    ("tokens", "suite port"),
];

/// Programs of commands that are left out, with the reason.
const LEFT_OUT: [(&str, &str); 5] = [
    ("docker", "the containers are namespaces here"),
    ("incus", "no Incus runs here"),
    ("ssh", "it is another machine's"),
    ("systemctl", "no systemd runs here"),
    ("virsh", "no machine of libvirt runs here"),
];

/// Commands that a new node refuses, and a part of the reason that it gives.
const REFUSED: [(&str, &str); 1] =
    [("weir cc advise --rollback 192.0.2.0/24", "there is nothing to take back")];

/// Commands that go on until they are interrupted.
const ENDLESS: [&str; 2] = ["weir events --follow", "weir top --down"];

/// The bounds in the guide of changing links.
const MIN: BitRate = BitRate::mbit(2);
const MAX: BitRate = BitRate::mbit(40);

/// The text of a guide's fragment. Its classes have no container here: each is an interface of the node.
fn with_interfaces(fragment: &str, classes: &[&str]) -> String {
    let mut text = fragment.to_owned();
    for (index, name) in classes.iter().enumerate() {
        let (line, interface) = (format!("name = \"{name}\"\n"), format!("interface = \"v{}\"\n", index + 1));
        let head = format!("[[class]]\n{line}");
        text = if text.contains(&head) {
            text.replace(&head, &format!("{head}{interface}"))
        } else {
            format!("{text}\n{head}{interface}")
        };
    }
    text
}

/// A node, a directory for the guide's files, and `weir` on the path.
struct Reader {
    node: Node,
    /// The path of the agent's configuration.
    config: String,
    dir: tempfile::TempDir,
    year: i32,
    month: String,
}

impl Reader {
    /// Dates, names and numbers that differ here.
    fn here(&self, text: &str) -> String {
        text.replace("2027-12-", &format!("{}-12-", self.year + 2))
            .replace("2026-12-", &format!("{}-12-", self.year + 1))
            .replace("2026-11", &self.month)
            .replace("a-17", "a-1")
            .replace("eth0", "up0")
            .replace("/etc/weir/weir.toml", &self.config)
    }

    fn bash(&self, line: &str) -> Output {
        let is_endless = ENDLESS.iter().any(|command| line.starts_with(command));
        let mut command = self.node.topology.node().command("bash").expect("can enter");
        if is_endless {
            // With a terminal, as it has where it is read.
            command.args(["-c", "timeout 2 script --quiet --return --command \"$0\" /dev/null", line]);
        } else {
            command.args(["-euo", "pipefail", "-c", line]);
        }
        let path = format!("{}:{}", self.dir.path().display(), std::env::var("PATH").expect("there is one"));
        let mut output = command
            .current_dir(self.dir.path())
            .env("PATH", path)
            .env("WEIR_SOCKET", self.node.socket())
            .env("COLUMNS", "200")
            .env("TERM", "xterm")
            .output()
            .expect("bash runs");
        if is_endless {
            assert_eq!(output.status.code(), Some(124), "{line} ends by itself: {output:?}");
            output.status = Command::new("true").status().expect("it runs");
        }
        output
    }
}

fn follow(guide: &Guide) {
    let (blocks, _) = split(&read(format!("docs/book/howto/{}.md", guide.name)));
    let fragments: Vec<&str> =
        blocks.iter().filter(|b| b.info == "toml fragment").map(|b| b.text.as_str()).collect();
    let wanted: String = guide.fragments.iter().map(|index| fragments[*index]).collect();
    let mut node = Node::build(&Spec { containers: containers(2), ..Spec::default() });
    let sections = with_interfaces(&wanted, guide.classes);
    let names: Vec<String> = guide.classes.iter().map(|&name| name.to_owned()).collect();
    let config = (guide.configure)(node.config().netns(&[]).awaiting(&names).sections(&sections));
    node.start(&config);
    let dir = tempfile::tempdir().expect("a directory");
    symlink(binary(), dir.path().join("weir")).expect("a link");
    let now = |format: &str| {
        let output = Command::new("date").args(["--utc", format]).output().expect("date runs");
        String::from_utf8(output.stdout).expect("text").trim().to_owned()
    };
    let (year, month) = (now("+%Y").parse().expect("a year"), now("+%Y-%m"));
    let config = node.agent().config_path().display().to_string();
    let reader = Reader { node, config, dir, year, month };
    let offers: Vec<String> =
        blocks.iter().filter(|b| b.info == "toml offer").map(|b| reader.here(&b.text)).collect();
    let mut offers = offers.into_iter();
    let mut ran = 0;
    for block in &blocks {
        let (script, shown) = match block.info.as_str() {
            "sh" => (block.text.clone(), None),
            "console" => (typed(&block.text), Some(reader.here(&block.text))),
            _ => continue,
        };
        let mut transcript = String::new();
        for line in reader.here(&script).lines() {
            let program = line.split_whitespace().next().unwrap_or_default();
            if let Some((_, why)) = LEFT_OUT.iter().find(|(left_out, _)| *left_out == program) {
                println!("{}: left out: {line} ({why})", guide.name);
                continue;
            }
            if let Some(file) = line.strip_prefix("weir agree offer ") {
                let offer = offers.next().expect("the guide shows the offer");
                fs::write(reader.dir.path().join(file), offer).expect("it can be written");
            }
            if line.starts_with("weir agree report ") {
                // There is nothing to report before the agreement has been watched.
                sleep(Duration::from_secs(2));
            }
            let output = reader.bash(line);
            let (said, error) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            match REFUSED.iter().find(|(refused, _)| line.starts_with(refused)) {
                Some((_, why)) => {
                    assert_eq!(output.status.code(), Some(1), "{}: {line}", guide.name);
                    assert!(error.contains(why), "{}: {line}\n{error}", guide.name);
                }
                None => assert!(output.status.success(), "{}: {line}\n{said}{error}", guide.name),
            }
            transcript += &format!("$ {line}\n{said}");
            ran += 1;
        }
        // Three dots leave out the rest.
        if let Some(shown) = shown.filter(|shown| !shown.contains("\n...\n")) {
            assert_eq!(transcript, shown, "{}", guide.name);
        }
    }
    assert!(ran > 0, "{} has no command", guide.name);
}

#[test]
fn each_command_of_the_guides_runs_and_prints_what_they_show() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    for guide in &GUIDES {
        if guide.name == "lossy" && !can_choose() {
            continue;
        }
        println!("guide {}", guide.name);
        follow(guide);
    }
}

#[test]
fn each_guide_with_a_command_is_followed_somewhere() {
    let guides = root().join("docs/book/howto");
    let has_command = |path: &Path| {
        let (blocks, _) = split(&fs::read_to_string(path).expect("it can be read"));
        blocks.iter().any(|b| matches!(b.info.as_str(), "sh" | "console") && b.text.contains("weir "))
    };
    let mut with_commands: Vec<String> = fs::read_dir(guides)
        .expect("it is there")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| has_command(path))
        .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    with_commands.sort();
    let elsewhere = ELSEWHERE.iter().map(|(name, _)| *name);
    let mut followed: Vec<String> =
        GUIDES.iter().map(|guide| guide.name).chain(elsewhere).map(str::to_owned).collect();
    followed.sort();
    assert_eq!(with_commands, followed);
}
