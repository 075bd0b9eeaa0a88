//! `[kubernetes]`: the cluster whose pods of this node the agent follows.

use std::path::PathBuf;

use serde::Deserialize;
use weir_units::without_user;

use super::{
    Config,
    fault::{Fault, fault},
};

/// `[kubernetes]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Kubernetes {
    /// The name of this node in the cluster. `NODE_NAME` of the environment has it otherwise.
    pub(crate) node: Option<String>,
    /// The URL of the API server. A pod's environment has it otherwise.
    pub(crate) server: Option<String>,
    pub(crate) token_file: PathBuf,
    pub(crate) ca_file: PathBuf,
    /// Whether a namespace is a group.
    pub(crate) namespace_groups: bool,
    /// Whether pods get events about what is not enforced.
    pub(crate) events: bool,
    /// Whether the node's status has its unreserved bandwidth.
    pub(crate) publish: bool,
}

impl Default for Kubernetes {
    fn default() -> Kubernetes {
        let secret = |name: &str| PathBuf::from("/var/run/secrets/kubernetes.io/serviceaccount").join(name);
        Kubernetes {
            node: None,
            server: None,
            token_file: secret("token"),
            ca_file: secret("ca.crt"),
            namespace_groups: false,
            events: true,
            publish: true,
        }
    }
}

/// Checks the values that need no look at this node.
pub(super) fn check(config: &Config) -> Result<(), Fault> {
    let Some(kubernetes) = &config.kubernetes else { return Ok(()) };
    if let Some(node) = kubernetes.node.as_ref().filter(|node| !is_node(node)) {
        let detail = format!(
            "`{}` is not the name of a node: small letters, digits, - and . only, 253 at most",
            node.escape_debug()
        );
        return Err(fault("[kubernetes] node", detail));
    }
    if let Some(server) = &kubernetes.server {
        check_server(server).map_err(|why| fault("[kubernetes] server", why))?;
    }
    for (key, path) in [("token_file", &kubernetes.token_file), ("ca_file", &kubernetes.ca_file)] {
        if !path.is_absolute() {
            let detail = format!("`{}` is not an absolute path", path.display());
            return Err(fault(format!("[kubernetes] {key}"), detail));
        }
    }
    Ok(())
}

/// Whether a node may be called so. The name becomes a part of paths.
pub(crate) fn is_node(name: &str) -> bool {
    let ok = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    (1..=253).contains(&name.len()) && name.chars().all(ok) && name != "." && name != ".."
}

/// Refuses a URL to which the agent would not show its token.
pub(crate) fn check_server(server: &str) -> Result<(), String> {
    let uri: Result<hyper::Uri, _> = server.parse();
    let server = without_user(server, "(hidden)");
    let uri = uri.map_err(|e| format!("cannot read `{server}` as a URL: {e}"))?;
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_here = host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    match uri.scheme_str() {
        _ if host.is_empty() || !matches!(uri.path(), "" | "/") || uri.query().is_some() => {
            Err(format!("`{server}` is not https://HOST:PORT"))
        }
        Some("https") => Ok(()),
        Some("http") if is_here => Ok(()),
        Some("http") => Err(format!("`{server}` would carry the token unencrypted: write https://{host}")),
        _ => Err(format!("`{server}` is not https://HOST:PORT")),
    }
}

#[cfg(test)]
mod tests {

    fn refusal(lines: &str) -> Option<String> {
        let text = format!("[link]\ndevice = \"eth0\"\ncapacity = \"20mbit\"\n[kubernetes]\n{lines}");
        crate::config::parse(&text, std::path::Path::new("t.toml")).err().map(|e| e.to_string())
    }

    #[test]
    fn a_server_needs_https_unless_it_is_on_this_node() {
        for good in
            ["https://10.0.0.1:6443", "https://[fd00::1]:443/", "http://127.0.0.1:8001", "http://[::1]:1"]
        {
            assert_eq!(refusal(&format!("server = \"{good}\"")), None, "{good}");
        }
        for (bad, why) in [
            ("http://10.0.0.1:6443", "would carry the token unencrypted: write https://10.0.0.1"),
            ("10.0.0.1:6443", "is not https://HOST:PORT"),
            ("https://a/api?x=1", "is not https://HOST:PORT"),
            ("ftp://a", "is not https://HOST:PORT"),
            ("", "cannot read `` as a URL"),
        ] {
            let said = refusal(&format!("server = \"{bad}\"")).expect(bad);
            assert!(said.contains("[kubernetes] server: ") && said.contains(why), "{said}");
        }
    }

    #[test]
    fn a_node_name_that_would_change_a_path_is_refused() {
        assert_eq!(refusal("node = \"edge-1.example\""), None);
        for bad in ["", "..", "a/b", "A", "a?b"] {
            let said = refusal(&format!("node = \"{bad}\"")).expect(bad);
            assert!(
                said.contains("[kubernetes] node: ") && said.contains("is not the name of a node"),
                "{said}"
            );
        }
        assert!(refusal("ca_file = \"ca.crt\"").expect("relative").contains("not an absolute path"));
    }
}
