//! A customer on the network: it offers over HTTPS, with a token of its party.

use std::{fs, net::IpAddr, os::unix::fs::PermissionsExt as _, path::PathBuf, thread::sleep, time::Duration};

use tempfile::TempDir;
use weir_api::Origin as SetBy;
use weir_netlab::topology::{Mode, Netns, Spec, UPLINK};
use weir_netns_tests::{EngineKind, Need, Node, binary, can_run, containers, http, party};

use super::{FLOOD, check, expected, flood};

/// A machine of a customer: its namespace, and the files that the operator gave it.
struct Customer<'a> {
    netns: &'a Netns,
    url: String,
    files: &'a TempDir,
    token: PathBuf,
}

impl Customer<'_> {
    /// Runs `weir` there: its exit code and all that it says.
    fn weir(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let program = binary();
        let mut command = self.netns.command(&program.display().to_string()).expect("it has a namespace");
        command.args(["--url", &self.url, "--ca-file"]).arg(self.files.path().join("node.pem"));
        command.arg("--token-file").arg(&self.token).args(arguments).env("COLUMNS", "200");
        let out = command.output().expect("it can run");
        let text = [out.stdout, out.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        (out.status.code(), text.concat())
    }

    fn done(&self, arguments: &[&str]) -> String {
        let (code, text) = self.weir(arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {text}");
        text
    }

    fn refused(&self, arguments: &[&str], why: &str) {
        let (code, text) = self.weir(arguments);
        assert!(code == Some(1) && text.contains(why), "{arguments:?}: {code:?}, {text}");
    }
}

/// The address of the node's uplink.
fn address_of(node: &Node) -> IpAddr {
    let listed = node.sh(&["ip", "-o", "-4", "address", "show", "dev", UPLINK]);
    let address = listed.split_whitespace().find_map(|word| word.split('/').next()?.parse().ok());
    address.unwrap_or_else(|| panic!("{UPLINK} has an address: {listed}"))
}

/// Makes the certificate of a node at an address: `node.pem`, and its key `node.key`.
fn certify(node: &Node, address: IpAddr, files: &TempDir) {
    let [key, certificate] = ["node.key", "node.pem"].map(|name| files.path().join(name));
    let line = format!(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=node \
         -addext subjectAltName=IP:{address} -keyout {} -out {}",
        key.display(),
        certificate.display()
    );
    node.sh(&line.split(' ').collect::<Vec<_>>());
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("can change");
}

/// Makes a token of a party on the node: the file with its secret.
fn token(node: &Node, party: &str, files: &TempDir) -> PathBuf {
    let made = node.weir(&["token", "add", party, "--scope", "party", "--party", party, "--json"]);
    let made: serde_json::Value = serde_json::from_str(&made).expect("it is JSON");
    let file = files.path().join(party);
    fs::write(&file, made["secret"].as_str().expect("it has a secret")).expect("can write");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("can change");
    file
}

#[test]
fn customer_on_the_network_has_what_it_agreed_over_https_and_no_other() {
    if !can_run(&Need::TRAFFIC) || !can_run(&[Need::Program("openssl")]) {
        return;
    }
    let mut node = Node::build(&Spec { containers: containers(3), mode: Mode::Routed, ..Spec::default() });
    let files = tempfile::Builder::new().prefix("weir-test-").tempdir().expect("can make a directory");
    let address = address_of(&node);
    certify(&node, address, &files);
    let dir = files.path().display();
    let sections = format!(
        "[api]\nlisten = \"{address}:9798\"\ncertificate = \"{dir}/node.pem\"\nkey = \"{dir}/node.key\"\n[agreements]\n"
    );
    let config = node.config().engine(EngineKind::Htb).sections(&sections);
    node.start(&config);
    let labels = ["C1", "C2", "C3"];
    let streams = flood(&node, &labels);
    let all = |first| expected([first, party("C2").sends(FLOOD), party("C3").sends(FLOOD)]);

    let customer = |party: &str, scheme: &str| Customer {
        netns: node.topology.srv(),
        url: format!("{scheme}://{address}:9798"),
        files: &files,
        token: token(&node, party, &files),
    };
    let (acme, other) = (customer("acme", "https"), customer("other", "https"));
    let offer = files.path().join("offer.toml");
    let write = |initiator: &str| {
        let text = format!(
            "[context]\ninitiator = \"{initiator}\"\n[service]\nterm = \"t\"\nname = \"{}\"\n\
             [terms]\nmin = \"60mbit\"\nmax = \"60mbit\"\n",
            node.name("C1")
        );
        fs::write(&offer, text).expect("can write");
        offer.display().to_string()
    };
    let theirs = write("other");
    acme.refused(&["agree", "offer", &theirs], "acme");
    // No customer holds back the node itself, by whatever name.
    let of_host = files.path().join("host.toml");
    fs::write(
        &of_host,
        fs::read_to_string(write("acme")).expect("it is there").replace(&node.name("C1"), "weir:host"),
    )
    .expect("can write");
    acme.refused(&["agree", "offer", &of_host.display().to_string()], "packets of weir:host");
    let its = write("acme");
    assert!(acme.done(&["agree", "offer", &its]).contains("a-1"));
    sleep(Duration::from_millis(500));
    check("60 Mbit/s agreed over HTTPS", &streams, &labels, &all(party("C1").min(60).max(60).sends(FLOOD)));
    let class = node.class("C1");
    assert_eq!((class.agreement.as_deref(), class.policy.min_origin), (Some("a-1"), SetBy::Agreement));

    // Another party sees and ends nothing of it, and no customer does more than agree.
    assert!(!other.done(&["agree", "list"]).contains("a-1"));
    other.refused(&["agree", "terminate", "a-1"], "a-1");
    acme.refused(&["set", &node.name("C2"), "max=1mbit"], "party");
    let in_clear = Customer { url: acme.url.replace("https", "http"), ..customer("acme2", "https") };
    let (code, text) = in_clear.weir(&["agree", "list"]);
    assert!(code != Some(0) && text.contains("in clear"), "{code:?}, {text}");
    fs::write(&other.token, "weir_0000000000000000000000000000000000000000000000000000000000000000")
        .expect("can write");
    other.refused(&["agree", "list"], "token");

    // A wish of a customer that cannot be met does not make the node look broken.
    let absent = files.path().join("absent.toml");
    let text = "[context]\ninitiator = \"acme\"\n[service]\nterm = \"t\"\nname = \"s\"\n[terms]\nmin = \"1mbit\"\n\
                max = \"1mbit\"\n[terms.selector]\ncontainer = \"nosuch\"\nsource_port = 80\n";
    fs::write(&absent, text).expect("can write");
    acme.done(&["agree", "offer", &absent.display().to_string()]);
    assert!(node.weir(&["ps", "-o", "wide"]).contains("there is no container nosuch now"));
    let (status, text) = http(node.socket(), "GET /readyz", "", b"").expect("the agent answers");
    assert_eq!(status, 200, "{text}");

    assert!(acme.done(&["agree", "list"]).contains("in-force"));
    acme.done(&["agree", "terminate", "a-1"]);
    sleep(Duration::from_millis(500));
    check("terminated over HTTPS", &streams, &labels, &all(party("C1").sends(FLOOD)));
}
