//! The pods as the server last told them, in a file, for an agent that starts while the server is away.

use std::{fs, io, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::{
    Followed,
    endpoint::Endpoint,
    followed::Collection,
    objects::{Namespace, Pod},
};

/// The largest file that is read, bytes.
const LARGEST: u64 = 64 << 20;

/// The file.
pub(super) struct Kept {
    path: PathBuf,
    server: String,
    node: String,
    /// The last text that was written.
    written: String,
    failure: Option<String>,
}

#[derive(Serialize)]
struct Out<'a> {
    server: &'a str,
    node: &'a str,
    pods: Vec<&'a Pod>,
    namespaces: Vec<&'a Namespace>,
}

#[derive(Deserialize)]
struct In {
    server: String,
    node: String,
    pods: Vec<Pod>,
    namespaces: Vec<Namespace>,
}

impl Kept {
    pub(super) fn at(path: PathBuf, endpoint: &Endpoint) -> Kept {
        let (server, node) = (endpoint.server.clone(), endpoint.node.clone());
        Kept { path, server, node, written: String::new(), failure: None }
    }

    /// The reason if the pods are not kept over a restart.
    pub(super) fn failure(&self) -> Option<&String> {
        self.failure.as_ref()
    }

    /// The pods that an earlier agent was told of, for the same node by the same server.
    pub(super) fn read(&self) -> Followed {
        match self.try_read() {
            Ok(Some(kept)) => kept,
            Ok(None) => Followed::default(),
            Err(why) => {
                tracing::warn!("{} has no pods that can be read: {why}", self.path.display());
                Followed::default()
            }
        }
    }

    fn try_read(&self) -> io::Result<Option<Followed>> {
        let meta = match fs::symlink_metadata(&self.path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            meta => meta?,
        };
        if !meta.is_file() || meta.len() > LARGEST {
            return Err(io::Error::other(format!("not a file of at most {LARGEST} bytes")));
        }
        let kept: In = serde_json::from_slice(&fs::read(&self.path)?)?;
        if (&kept.server, &kept.node) != (&self.server, &self.node) {
            return Ok(None);
        }
        let pods = kept.pods.into_iter().map(|pod| (pod.class_name(), pod));
        let namespaces = kept.namespaces.into_iter().map(|namespace| (namespace.name.clone(), namespace));
        Ok(Some(Followed {
            pods: Collection::kept(pods),
            namespaces: Collection::kept(namespaces),
            ..Followed::default()
        }))
    }

    /// Writes what is known, if it is something else than before. A list must have arrived: an agent without an
    /// answer knows less than the file.
    pub(super) fn write(&mut self, followed: &Followed) {
        if !followed.is_listed {
            return;
        }
        let out = Out {
            server: &self.server,
            node: &self.node,
            pods: followed.pods.all().collect(),
            namespaces: followed.namespaces.all().collect(),
        };
        let written = serde_json::to_string(&out).map_err(io::Error::from).and_then(|text| {
            if text != self.written {
                let new = self.path.with_extension("new");
                fs::write(&new, &text)?;
                fs::rename(&new, &self.path)?;
                self.written = text;
            }
            Ok(())
        });
        self.failure = written.err().map(|e| {
            format!("annotations are not kept over a restart: cannot write {}: {e}", self.path.display())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::objects::{Annotations, Limits};

    #[test]
    fn pods_are_read_as_they_were_written_for_this_node_alone() {
        let dir = tempfile::tempdir().unwrap();
        let endpoint = |node: &str| Endpoint {
            node: node.into(),
            server: "https://10.0.0.1:6443".into(),
            token_file: "/t".into(),
            ca_file: "/c".into(),
        };
        let path = dir.path().join("kubernetes.json");
        let mut kept = Kept::at(path.clone(), &endpoint("edge-1"));
        assert_eq!(kept.read(), Followed::default());
        let annotations = Annotations {
            kept: [("weir.dev/max".to_owned(), "5mbit".to_owned())].into(),
            left_out: 2,
            is_static: true,
        };
        let pod = Pod {
            namespace: "shop".into(),
            name: "web".into(),
            uid: "u-1".into(),
            annotations: annotations.clone(),
            limits: Limits { egress: Some(7), ingress: None },
            host_network: false,
            is_running: true,
        };
        let namespace = Namespace { name: "shop".into(), annotations };
        let known = Followed {
            pods: Collection::kept([(pod.class_name(), pod)]),
            namespaces: Collection::kept([("shop".to_owned(), namespace)]),
            ..Followed::default()
        };
        kept.write(&known);
        assert!(!path.exists(), "no list has arrived");
        kept.write(&Followed { is_listed: true, ..known.clone() });
        assert_eq!((kept.failure(), kept.read()), (None, known));
        assert_eq!(Kept::at(path.clone(), &endpoint("edge-2")).read(), Followed::default());
        fs::write(&path, "{\"server\":").unwrap();
        assert_eq!(kept.read(), Followed::default());
        let mut nowhere = Kept::at(dir.path().join("no/k.json"), &endpoint("edge-1"));
        nowhere.write(&Followed { is_listed: true, ..Followed::default() });
        assert!(nowhere.failure().unwrap().contains("are not kept over a restart: cannot write "));
    }
}
