//! The API server of the cluster, and the name of this node in it.

use std::path::PathBuf;

use crate::config::{Kubernetes, check_server, is_node};

/// The place of the API server, and the way to be believed there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(super) node: String,
    /// `https://HOST:PORT`
    pub(super) server: String,
    pub(super) token_file: PathBuf,
    pub(super) ca_file: PathBuf,
}

impl Endpoint {
    /// The endpoint of the configuration. An environment has what the configuration leaves out, as in each pod.
    ///
    /// # Errors
    /// A part that neither has.
    pub(crate) fn of(
        config: &Kubernetes,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Endpoint, String> {
        let set = |name: &str| environment(name).filter(|value| !value.is_empty());
        let node = config.node.clone().or_else(|| set("NODE_NAME")).ok_or(
            "[kubernetes] node: no node is named, and the environment has no NODE_NAME (`kubectl get nodes` lists the names)",
        )?;
        if !is_node(&node) {
            let node = node.escape_debug();
            return Err(format!("[kubernetes] node: NODE_NAME `{node}` is not the name of a node"));
        }
        let in_cluster = || {
            let host = set("KUBERNETES_SERVICE_HOST")?;
            let host = if host.contains(':') { format!("[{host}]") } else { host };
            Some(format!("https://{host}:{}", set("KUBERNETES_SERVICE_PORT").unwrap_or_else(|| "443".into())))
        };
        let server = config.server.clone().or_else(in_cluster).ok_or(
            "[kubernetes] server: no API server is named, and the environment has no KUBERNETES_SERVICE_HOST: write it as https://HOST:6443",
        )?;
        check_server(&server).map_err(|why| format!("[kubernetes] server: {why}"))?;
        let server = server.trim_end_matches('/').to_owned();
        let (token_file, ca_file) = (config.token_file.clone(), config.ca_file.clone());
        Ok(Endpoint { node, server, token_file, ca_file })
    }

    /// Whether requests are encrypted.
    pub(super) fn is_https(&self) -> bool {
        self.server.starts_with("https:")
    }
}

/// A value of this process's environment.
pub(crate) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(config: &Kubernetes, set: &[(&str, &str)]) -> Result<Endpoint, String> {
        let find =
            |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Endpoint::of(config, find)
    }

    #[test]
    fn the_environment_of_a_pod_has_what_the_file_leaves_out() {
        let pod = [
            ("NODE_NAME", "edge-1"),
            ("KUBERNETES_SERVICE_HOST", "fd00::1"),
            ("KUBERNETES_SERVICE_PORT", "6443"),
        ];
        let found = of(&Kubernetes::default(), &pod).unwrap();
        assert_eq!((found.node.as_str(), found.server.as_str()), ("edge-1", "https://[fd00::1]:6443"));
        let named = Kubernetes {
            node: Some("b".into()),
            server: Some("http://127.0.0.1:1/".into()),
            ..Default::default()
        };
        let found = of(&named, &pod).unwrap();
        assert_eq!((found.node.as_str(), found.server.as_str()), ("b", "http://127.0.0.1:1"));
        assert!(!found.is_https());
    }

    #[test]
    fn a_missing_part_is_named_with_the_way_out() {
        let default = Kubernetes::default();
        assert!(of(&default, &[]).unwrap_err().starts_with("[kubernetes] node: no node is named"));
        let said = of(&default, &[("NODE_NAME", "a"), ("KUBERNETES_SERVICE_HOST", "")]).unwrap_err();
        assert!(said.contains("no KUBERNETES_SERVICE_HOST: write it as https://HOST:6443"), "{said}");
        assert!(of(&default, &[("NODE_NAME", "../a")]).unwrap_err().contains("is not the name of a node"));
    }
}
