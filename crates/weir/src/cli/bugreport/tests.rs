use std::{os::unix::fs::PermissionsExt, process::ExitCode};

use weir_api::Client;
use weir_fake_agent::{self as fake, FakeAgent};

use super::{super::Look, *};

/// Each secret that the configuration, its files and the log of [`made`] have.
const PLANTED: [&str; 19] = [
    "hunter2-proxy",
    "proxyuser",
    "redis-pa55",
    "acme-bot",
    "tok\\en\"quoted",
    "line-one-of-secret-file",
    "b64-docker-auth==",
    "identity-of-docker",
    "commented-out-password",
    "eyJhbGciOiJIUzI1NiJ9.payload",
    "other:pa55word",
    "slashuser",
    "hun/ter2",
    "ter2#se",
    "se?cret",
    "curluser",
    "curlpass",
    "botname-long",
    "word-tail-secret",
];

struct Made {
    code: ExitCode,
    said: String,
    dir: tempfile::TempDir,
}

impl Made {
    fn file(&self) -> PathBuf {
        self.dir.path().join("report.tar.gz")
    }

    /// The parts by name.
    fn parts(&self) -> std::collections::BTreeMap<String, String> {
        let list = Command::new("tar").arg("-tzf").arg(self.file()).output().unwrap();
        let names = String::from_utf8(list.stdout).unwrap();
        let files = names.lines().filter(|name| !name.ends_with('/'));
        let read = |name: &str| {
            let out = Command::new("tar").arg("-xzOf").arg(self.file()).arg(name).output().unwrap();
            (name.split_once('/').unwrap().1.to_owned(), String::from_utf8(out.stdout).unwrap())
        };
        files.map(read).collect()
    }
}

/// A report of a node with secrets in many places. `socket` is where the agent listens.
fn made(socket: &Path, config: impl FnOnce(&Path) -> String) -> Made {
    let dir = tempfile::tempdir().unwrap();
    let tools = dir.path().join("bin");
    fs::create_dir(&tools).unwrap();
    let script = |name: &str, text: &str| {
        let path = tools.join(name);
        fs::write(&path, format!("#!/bin/sh\ncat <<'END'\n{text}\nEND\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    script(
        "journalctl",
        "pulled through http://other:pa55word@proxy2:3128/v2\nAuthorization: Bearer eyJhbGciOiJIUzI1NiJ9.payload\n\
         redis said redis-pa55\nBasic things go on\nunknown: identity-of-docker\n\
         cannot read `curluser:curlpass@proxy.example:3128`\n{\"line\":\"password = \\\"pa55\\\\\\\"word-tail-secret\\\"\"}",
    );
    fs::write(dir.path().join("secret"), "line-one-of-secret-file\n").unwrap();
    let docker = r#"{"auths":{"ghcr.io":{"auth":"b64-docker-auth==","identitytoken":"identity-of-docker"}}}"#;
    fs::write(dir.path().join("docker.json"), docker).unwrap();
    script("tc", "[{\"kind\":\"htb\",\"note\":\"line-one-of-secret-file\"}]");
    let file = dir.path().join("weir.toml");
    fs::write(&file, config(dir.path())).unwrap();
    let args = BugreportArgs { out: Some(dir.path().join("report.tar.gz")), config: file };
    let mut out = Vec::new();
    let client = Client::new(socket);
    let mut session = Session {
        client,
        socket: "/nowhere".into(),
        json: false,
        look: Look::PLAIN,
        out: &mut out,
        err: &mut std::io::sink(),
    };
    let code =
        make(&args, Duration::from_secs(1_700_000_000), &tools.into_os_string(), &mut session).unwrap();
    Made { code, said: String::from_utf8(out).unwrap(), dir }
}

fn config(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        "[link]\ndevice = \"eth0\"\ncapacity = \"95mbit\"\n\n[images]\nbudget = \"1GiB\"\n\
         proxy = \"http://proxyuser:hunter2-proxy@proxy.example:3128\"\n# password = \"commented-out-password\"\n\n\
         [[images.upstream]]\nregistry = \"ghcr.io\"\nusername = \"acme-bot\"\npassword_file = \"{dir}/secret\"\n\
         docker_config = \"{dir}/docker.json\"\n\n[images.pop]\nredis = \"redis://:redis-pa55@10.0.0.5:6379\"\n\
         token = 'tok\\en\"quoted'\n\n[a]\nproxy = \"http://slashuser:hun/ter2#se?cret@proxy.example:3128\"\n\
         username = \"acme\\\"botname-long\"\n[b]\nproxy = \"curluser:curlpass@proxy.example:3128\"\n\
         password = \"pa55\\\"word-tail-secret\"\n"
    )
}

#[test]
fn report_has_each_part_and_no_secret_of_the_node() {
    let agent = FakeAgent::start();
    let made = made(agent.path(), config);
    assert_eq!(made.code, ExitCode::SUCCESS);
    let parts = made.parts();
    for (name, text) in &parts {
        for secret in PLANTED {
            assert!(!text.contains(secret), "{name} has {secret}:\n{text}");
        }
    }
    for name in [
        "contents",
        "weir.toml",
        "doctor.json",
        "system.txt",
        "kernel/links-and-queues.txt",
        "kernel/programs.txt",
    ] {
        assert!(parts.contains_key(name), "{name}: {:?}", parts.keys());
    }
    let classes: Vec<weir_api::Class> = serde_json::from_str(&parts["agent/classes.json"]).unwrap();
    assert_eq!(classes, fake::classes());
    let events: Vec<weir_api::Event> = serde_json::from_str(&parts["agent/events.json"]).unwrap();
    assert_eq!(events.len(), 2);
    // The rest of each text stays, so that it can be read.
    assert!(
        parts["weir.toml"].contains("proxy = \"http://[removed]@proxy.example:3128\""),
        "{}",
        parts["weir.toml"]
    );
    assert!(parts["weir.toml"].contains("# password = \"[removed]\""), "{}", parts["weir.toml"]);
    assert!(
        parts["weir.toml"].contains("proxy = \"[removed]@proxy.example:3128\""),
        "{}",
        parts["weir.toml"]
    );
    assert!(parts["weir.toml"].contains("capacity = \"95mbit\""));
    let log = "pulled through http://[removed]@proxy2:3128/v2\nAuthorization: Bearer [removed]\nredis said [removed]\n\
               Basic things go on\n";
    assert!(parts["log.txt"].starts_with(log), "{}", parts["log.txt"]);
    assert_eq!(parts["tools/tc-qdisc.json"], "[{\"kind\":\"htb\",\"note\":\"[removed]\"}]\n");
    assert!(
        parts["kernel/links-and-queues.txt"].contains(" lo: device"),
        "{}",
        parts["kernel/links-and-queues.txt"]
    );
    let mode = fs::metadata(made.file()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(!made.dir.path().join("report.tar.gz.parts").exists());
}

/// Answers each request of a listener with this refusal.
fn refuse_all(listener: std::os::unix::net::UnixListener, refusal: &weir_api::Error) {
    use std::io::{BufRead as _, BufReader, Write as _};

    let body = serde_json::to_string(refusal).unwrap();
    let answer = format!(
        "HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    );
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let lines = BufReader::new(&stream).lines().map_while(Result::ok);
            lines.take_while(|line| !line.is_empty()).for_each(drop);
            let _ = (&stream).write_all(answer.as_bytes());
        }
    });
}

/// The checks need the right `operate`, and run one at a time.
#[test]
fn report_whose_agent_refuses_its_checks_has_the_other_parts() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("weir.sock");
    let refusal = weir_api::Error::new(
        weir_api::ErrorCode::Busy,
        "the checks of `weir doctor`: 1 at a time".to_owned(),
    );
    refuse_all(std::os::unix::net::UnixListener::bind(&socket).unwrap(), &refusal);
    let made = made(&socket, config);
    let parts = made.parts();
    assert_eq!(made.code, ExitCode::SUCCESS);
    assert!(!parts.contains_key("doctor.json") && parts.contains_key("weir.toml"), "{:?}", parts.keys());
    let missing = "doctor.json: missing: the checks of `weir doctor`: 1 at a time";
    assert!(parts["contents"].contains(missing), "{}", parts["contents"]);
}

#[test]
fn report_without_an_agent_and_a_configuration_names_what_is_missing() {
    let made = made(Path::new("/nowhere/weir.sock"), |_| {
        "this is no TOML, password = \"commented-out-password\"".into()
    });
    let parts = made.parts();
    assert!(!parts.contains_key("agent/status.json"));
    assert!(parts["doctor.json"].contains("cannot reach the agent at /nowhere/weir.sock"));
    let missing = "agent/status.json: missing: cannot reach the agent at /nowhere/weir.sock";
    assert!(parts["contents"].contains(missing), "{}", parts["contents"]);
    assert!(made.said.contains("! agent/status.json is missing: cannot reach the agent"), "{}", made.said);
}

#[test]
fn report_never_replaces_a_file_and_leaves_none_when_it_fails() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("report.tar.gz");
    fs::write(&file, "mine").unwrap();
    let refused = super::super::tests::weir(&["bugreport", "--out", file.to_str().unwrap()]);
    assert_eq!(refused.code, ExitCode::FAILURE);
    assert!(
        refused.err.starts_with("weir: cannot write the report ") && refused.err.contains("exists"),
        "{}",
        refused.err
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
}
