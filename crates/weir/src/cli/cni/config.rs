//! Reads a plugin's configuration, as the runtime writes it to standard input.

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use ipnet::IpNet;
use serde_json::{Map, Value};
use weir_api::{CniAttachment, CniKey, Wish, WishPlace};
use weir_discovery::NetnsRef;

use super::{CANNOT_DECODE, Failure, INVALID_CONFIG, INVALID_ENVIRONMENT, IO_FAILURE, fail};

/// The longest configuration that is read, bytes. Kubernetes allows annotations of 256 KiB.
const MAX_CONFIG: u64 = 4 << 20;
/// The capability that brings a pod's annotations.
const ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";
/// The key of the attachments that GC spares.
const VALID: &str = "cni.dev/valid-attachments";
/// The keys of a plugin's configuration that are not wishes.
const KEYS: [&str; 10] = [
    "cniVersion",
    "name",
    "type",
    "capabilities",
    "args",
    "runtimeConfig",
    "prevResult",
    "socket",
    "onError",
    "disableCheck",
];
/// The keys of wishes in each place, in the words of the agent.
const POLICY: [&str; 4] = ["weight", "min", "max", "group"];
const BANDWIDTH: [&str; 4] = ["egressRate", "egressBurst", "ingressRate", "ingressBurst"];
const KUBERNETES: [&str; 2] = ["kubernetes.io/egress-bandwidth", "kubernetes.io/ingress-bandwidth"];
/// The most unknown keys of one place that the agent is told, and the most bytes of a text.
const MAX_UNKNOWN: usize = 4;
const MAX_TEXT: usize = 256;
const MAX_ADDRESSES: usize = 16;

/// The fate of a pod that cannot be shaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnError {
    /// It starts.
    Open,
    /// It does not.
    Refuse,
}

/// A plugin's configuration.
#[derive(Debug, Default)]
pub(super) struct Config {
    /// The version of CNI.
    pub(super) version: String,
    all: Map<String, Value>,
}

impl Config {
    /// Reads a configuration.
    pub(super) fn read(stdin: &mut dyn Read) -> Result<Config, Failure> {
        let mut bytes = Vec::new();
        if let Err(why) = stdin.take(MAX_CONFIG + 1).read_to_end(&mut bytes) {
            return fail(IO_FAILURE, format!("cannot read the configuration from standard input: {why}"));
        }
        if bytes.len() as u64 > MAX_CONFIG {
            return fail(CANNOT_DECODE, format!("the configuration has more than {MAX_CONFIG} bytes"));
        }
        let all: Map<String, Value> = match serde_json::from_slice(&bytes) {
            Ok(all) => all,
            Err(why) => return fail(CANNOT_DECODE, format!("the configuration is no JSON object: {why}")),
        };
        // As the specification has it, a configuration without a version is of 0.1.0.
        let version = all.get("cniVersion").and_then(Value::as_str).unwrap_or("0.1.0").to_owned();
        Ok(Config { version, all })
    }

    fn text(&self, key: &str) -> Result<Option<&str>, Failure> {
        match self.all.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => fail(INVALID_CONFIG, format!("`{key}` is {other}: write a text")),
        }
    }

    /// The agent's socket, if the configuration names one.
    pub(super) fn socket(&self) -> Result<Option<PathBuf>, Failure> {
        Ok(self.text("socket")?.map(PathBuf::from))
    }

    pub(super) fn on_error(&self) -> Result<OnError, Failure> {
        match self.text("onError")? {
            None | Some("open") => Ok(OnError::Open),
            Some("refuse") => Ok(OnError::Refuse),
            Some(other) => fail(INVALID_CONFIG, format!("`onError` is `{other}`: write open or refuse")),
        }
    }

    /// The name of the network.
    pub(super) fn network(&self) -> Result<String, Failure> {
        match self.text("name")? {
            Some(name) if !name.is_empty() => Ok(name.to_owned()),
            _ => fail(INVALID_CONFIG, "the configuration has no `name`"),
        }
    }

    /// The result of the plugins before this one.
    pub(super) fn previous(&self) -> Result<&Map<String, Value>, Failure> {
        match self.all.get("prevResult") {
            Some(Value::Object(result)) => Ok(result),
            _ => fail(
                INVALID_CONFIG,
                "there is no `prevResult`: weir stands behind the plugin that makes the interface (see \
                 `weir cni --help`)",
            ),
        }
    }

    /// The attachments that GC spares. A missing list is an error, as it would spare none. libcni writes an empty
    /// list as null.
    pub(super) fn valid_attachments(&self) -> Result<Vec<CniKey>, Failure> {
        let bad = || Failure {
            code: INVALID_CONFIG,
            message: format!("`{VALID}` is no list of objects with containerID and ifname"),
        };
        let listed = match self.all.get(VALID) {
            Some(Value::Null) => [].as_slice(),
            Some(Value::Array(listed)) => listed,
            _ => return Err(bad()),
        };
        let read = |one: &Value| {
            let text = |key| one.get(key).and_then(Value::as_str).map(str::to_owned);
            Some(CniKey { container: text("containerID")?, interface: text("ifname")? })
        };
        listed.iter().map(read).collect::<Option<_>>().ok_or_else(bad)
    }

    /// The report of an attachment to the agent.
    pub(super) fn attachment(
        &self,
        key: CniKey,
        path: PathBuf,
        arguments: &str,
    ) -> Result<CniAttachment, Failure> {
        let netns = NetnsRef::at(Path::new(&path)).map_err(|why| Failure {
            code: INVALID_ENVIRONMENT,
            message: format!("CNI_NETNS: {}", weir_units::chain(&why)),
        })?;
        let arguments: Vec<(&str, &str)> =
            arguments.split(';').filter_map(|argument| argument.split_once('=')).collect();
        let argument = |name: &str| {
            let found = arguments.iter().find(|(key, value)| *key == name && !value.is_empty());
            found.map(|(_, value)| (*value).to_owned()).filter(|value| value.len() <= MAX_TEXT)
        };
        Ok(CniAttachment {
            key,
            network: self.network()?,
            netns: without_links(path),
            inode: netns.id.ino,
            namespace: argument("K8S_POD_NAMESPACE"),
            pod: argument("K8S_POD_NAME"),
            uid: argument("K8S_POD_UID"),
            addresses: self.previous().map_or(Vec::new(), addresses),
            wishes: self.wishes(&arguments),
        })
    }

    fn wishes(&self, arguments: &[(&str, &str)]) -> Vec<Wish> {
        let mut wishes = Vec::new();
        let own =
            self.all.iter().filter(|(key, _)| !KEYS.contains(&key.as_str()) && !key.starts_with("cni.dev/"));
        let known = |key: &str| POLICY.contains(&key) || BANDWIDTH.contains(&key);
        collect(&mut wishes, WishPlace::Plugin, own.map(|(key, value)| (key.as_str(), plain(value))), known);

        let runtime = self.all.get("runtimeConfig");
        match runtime.and_then(|runtime| field(runtime, "bandwidth")) {
            None | Some(Value::Null) => {}
            Some(Value::Object(bandwidth)) => {
                // containerd writes the keys with a capital, and Go does not mind.
                let canonical =
                    |key: &str| BANDWIDTH.into_iter().find(|known| known.eq_ignore_ascii_case(key));
                let keys = bandwidth.iter().map(|(key, value)| (canonical(key).unwrap_or(key), plain(value)));
                collect(&mut wishes, WishPlace::Bandwidth, keys, |key| BANDWIDTH.contains(&key));
            }
            Some(other) => {
                collect(&mut wishes, WishPlace::Bandwidth, [("bandwidth", plain(other))].into_iter(), |_| {
                    false
                });
            }
        }

        let own = arguments.iter().filter(|(key, _)| key.starts_with("WEIR_"));
        let known = |key: &str| POLICY.iter().any(|name| key[5..].eq(&name.to_ascii_uppercase()));
        collect(&mut wishes, WishPlace::Argument, own.map(|(key, value)| (*key, (*value).to_owned())), known);

        let annotations = runtime.and_then(|runtime| runtime.get(ANNOTATIONS)).and_then(Value::as_object);
        let is_own = |key: &str| key.starts_with("weir.dev/") || KUBERNETES.contains(&key);
        let own = annotations.into_iter().flatten().filter(|(key, _)| is_own(key));
        let known = |key: &str| {
            KUBERNETES.contains(&key)
                || key.strip_prefix("weir.dev/").is_some_and(|name| POLICY.contains(&name))
        };
        collect(
            &mut wishes,
            WishPlace::Annotation,
            own.map(|(key, value)| (key.as_str(), plain(value))),
            known,
        );
        wishes
    }
}

/// Adds the wishes of one place: the known ones, and the first few of the others.
fn collect<'a>(
    wishes: &mut Vec<Wish>,
    by: WishPlace,
    given: impl Iterator<Item = (&'a str, String)>,
    is_known: impl Fn(&str) -> bool,
) {
    let (known, unknown): (Vec<_>, Vec<_>) = given.partition(|(key, _)| is_known(key));
    let more = unknown.len().saturating_sub(MAX_UNKNOWN);
    let rest = (more > 0).then(|| ("...", format!("{more} more")));
    let told = known.into_iter().chain(unknown.into_iter().take(MAX_UNKNOWN)).chain(rest);
    wishes.extend(told.map(|(key, value)| Wish { by, key: short(key), value: short(&value) }));
}

/// A text as it is, or its beginning with a mark that makes no value of it.
fn short(text: &str) -> String {
    if text.len() <= MAX_TEXT {
        return text.to_owned();
    }
    let end = (0..=MAX_TEXT).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}...", &text[..end])
}

/// A value as text. Numbers and texts mean the same.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A field whose name is written in any case, as Go reads it.
fn field<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    let object = value.as_object()?;
    object.get(name).or_else(|| object.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, v)| v))
}

/// The addresses that the plugins before gave.
fn addresses(result: &Map<String, Value>) -> Vec<std::net::IpAddr> {
    let listed = result.get("ips").and_then(Value::as_array).into_iter().flatten();
    let texts = listed.filter_map(|ip| ip.get("address").and_then(Value::as_str));
    texts.filter_map(|text| text.parse::<IpNet>().ok()).map(|net| net.addr()).take(MAX_ADDRESSES).collect()
}

/// The path of a namespace as an agent in a container finds it too. `/var/run` is a link on a node, and an image may lack
/// it.
pub(super) fn without_links(path: PathBuf) -> PathBuf {
    // Links there are no paths, and `self` is another process for the agent.
    if path.starts_with("/proc") { path } else { path.canonicalize().unwrap_or(path) }
}
