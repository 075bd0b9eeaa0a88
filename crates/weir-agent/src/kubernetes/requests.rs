//! The requests that the agent makes. The rights of its service account are those, and no more.

use hyper::Method;
use serde_json::{Value, json};

/// A request to the API server.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Ask {
    /// A page of the pods of this node.
    ListPods {
        node: String,
        limit: u32,
        more: String,
    },
    /// The changes of these pods since a version.
    WatchPods {
        node: String,
        version: String,
    },
    ListNamespaces {
        limit: u32,
        more: String,
    },
    WatchNamespaces {
        version: String,
    },
    GetNode {
        node: String,
    },
    /// Writes extended resources into the node's status.
    PatchNode {
        node: String,
        body: Value,
    },
    CreateEvent {
        namespace: String,
        body: Value,
    },
}

/// The time after which the server ends a watch, seconds.
pub(super) const WATCH_SECONDS: u64 = 300;

impl Ask {
    pub(super) fn method(&self) -> Method {
        match self {
            Ask::PatchNode { .. } => Method::PATCH,
            Ask::CreateEvent { .. } => Method::POST,
            _ => Method::GET,
        }
    }

    /// The path with its query. Names of nodes and namespaces were checked, and have no character of a URL.
    pub(super) fn path(&self) -> String {
        let pods = |node: &str| format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{}", escape(node));
        let page = |limit: u32, more: &str| match more {
            "" => format!("limit={limit}"),
            more => format!("limit={limit}&continue={}", escape(more)),
        };
        let watch = |version: &str| {
            let version = escape(version);
            format!(
                "watch=1&resourceVersion={version}&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}"
            )
        };
        match self {
            Ask::ListPods { node, limit, more } => format!("{}&{}", pods(node), page(*limit, more)),
            Ask::WatchPods { node, version } => format!("{}&{}", pods(node), watch(version)),
            Ask::ListNamespaces { limit, more } => format!("/api/v1/namespaces?{}", page(*limit, more)),
            Ask::WatchNamespaces { version } => format!("/api/v1/namespaces?{}", watch(version)),
            // The server answers this from its memory. Each node asks often.
            Ask::GetNode { node } => format!("/api/v1/nodes/{}?resourceVersion=0", escape(node)),
            Ask::PatchNode { node, .. } => format!("/api/v1/nodes/{}/status", escape(node)),
            Ask::CreateEvent { namespace, .. } => format!("/api/v1/namespaces/{}/events", escape(namespace)),
        }
    }

    pub(super) fn body(&self) -> Option<(&'static str, String)> {
        match self {
            Ask::PatchNode { body, .. } => Some(("application/merge-patch+json", body.to_string())),
            Ask::CreateEvent { body, .. } => Some(("application/json", body.to_string())),
            _ => None,
        }
    }

    /// The rights that it needs: resource and verb, as RBAC names them.
    #[cfg(test)]
    pub(super) fn right(&self) -> (&'static str, &'static str) {
        match self {
            Ask::ListPods { .. } => ("pods", "list"),
            Ask::WatchPods { .. } => ("pods", "watch"),
            Ask::ListNamespaces { .. } => ("namespaces", "list"),
            Ask::WatchNamespaces { .. } => ("namespaces", "watch"),
            Ask::GetNode { .. } => ("nodes", "get"),
            Ask::PatchNode { .. } => ("nodes/status", "patch"),
            Ask::CreateEvent { .. } => ("events", "create"),
        }
    }
}

/// A text as a part of a path or a query.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

/// The patch that sets extended resources. `None` takes a resource away.
pub(super) fn status_patch(resources: &[(&str, Option<u64>)]) -> Value {
    let values: serde_json::Map<String, Value> = resources
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.map_or(Value::Null, |v| json!(v.to_string()))))
        .collect();
    // Without a kubelet no one copies the capacity to what can be allocated.
    json!({ "status": { "capacity": values, "allocatable": values } })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// One of each kind.
    pub(in crate::kubernetes) fn all() -> Vec<Ask> {
        let node = || "edge-1".to_owned();
        vec![
            Ask::ListPods { node: node(), limit: 100, more: String::new() },
            Ask::WatchPods { node: node(), version: "7".into() },
            Ask::ListNamespaces { limit: 100, more: "a b&c".into() },
            Ask::WatchNamespaces { version: "7&x=".into() },
            Ask::GetNode { node: node() },
            Ask::PatchNode { node: node(), body: status_patch(&[("weir.dev/egress-mbit", Some(80))]) },
            Ask::CreateEvent { namespace: "shop".into(), body: json!({}) },
        ]
    }

    #[test]
    fn requests_name_this_nodes_pods_and_hide_no_query_in_a_value() {
        let paths: Vec<String> = all().iter().map(Ask::path).collect();
        assert_eq!(paths[0], "/api/v1/pods?fieldSelector=spec.nodeName%3Dedge-1&limit=100");
        assert_eq!(
            paths[1],
            "/api/v1/pods?fieldSelector=spec.nodeName%3Dedge-1&watch=1&resourceVersion=7&allowWatchBookmarks=true&timeoutSeconds=300"
        );
        assert_eq!(paths[2], "/api/v1/namespaces?limit=100&continue=a%20b%26c");
        assert!(paths[3].contains("resourceVersion=7%26x%3D&"), "{}", paths[3]);
        assert_eq!(paths[4], "/api/v1/nodes/edge-1?resourceVersion=0");
        assert_eq!(paths[5], "/api/v1/nodes/edge-1/status");
        assert_eq!(
            all()[5].body().unwrap().1,
            r#"{"status":{"allocatable":{"weir.dev/egress-mbit":"80"},"capacity":{"weir.dev/egress-mbit":"80"}}}"#
        );
    }
}
