//! A tiny image that the mirror itself has, under any tag: a pull of it shows whether a runtime asks here.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use hyper::{
    Response, StatusCode,
    header::{CONTENT_LENGTH, CONTENT_TYPE},
};

use super::{
    body::{self, Body},
    reply::refuse,
};
use crate::{Digest, digest::Algorithm};

/// The image's repository. No registry has it: `.invalid` is reserved (RFC 6761), and Docker Hub has
/// no names with dots.
pub const PROBE: &str = "weir.invalid/doctor";

/// As many tags as are remembered.
const REMEMBERED: usize = 16;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// The tags that were asked for lately.
#[derive(Debug, Default)]
pub(super) struct Probes(Mutex<VecDeque<String>>);

/// The image: its manifest, its configuration and its only layer, a tar without files.
fn parts() -> [(Digest, Vec<u8>); 3] {
    let with_digest = |bytes: Vec<u8>| (Digest::of(Algorithm::Sha256, &bytes), bytes);
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    };
    let layer = with_digest(vec![0; 1024]);
    let config = serde_json::json!({
        "architecture": architecture, "os": "linux", "config": {},
        "rootfs": { "type": "layers", "diff_ids": [layer.0] },
    });
    let config = with_digest(config.to_string().into_bytes());
    let manifest = serde_json::json!({
        "schemaVersion": 2, "mediaType": MANIFEST,
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": config.0, "size": config.1.len(),
        },
        "layers": [{
            "mediaType": "application/vnd.oci.image.layer.v1.tar",
            "digest": layer.0, "size": layer.1.len(),
        }],
    });
    [with_digest(manifest.to_string().into_bytes()), config, layer]
}

impl Probes {
    /// The answer to a request for the probe; none to any other request. `arrived/TAG` says whether
    /// a runtime asked for the tag. Podman and CRI-O put a registry in front of the repository.
    pub(super) fn answer(&self, path: &str) -> Option<Response<Body>> {
        let path = path.strip_prefix("/v2/")?;
        let in_registry = || path.split_once('/').and_then(|(_, rest)| rest.strip_prefix(PROBE));
        let rest = path.strip_prefix(PROBE).or_else(in_registry)?.strip_prefix('/')?;
        let (kind, what) = rest.split_once('/')?;
        let what = what.replace("%3A", ":");
        let mut tags = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = match kind {
            "arrived" => tags.contains(&what).then(|| (String::new(), "text/plain", b"it arrived".to_vec())),
            "manifests" | "blobs" => {
                let parts = parts();
                let is_tag = kind == "manifests" && !what.contains(':');
                if is_tag && what.len() <= 128 {
                    tags.push_back(what.clone());
                    let old = tags.len().saturating_sub(REMEMBERED);
                    tags.drain(..old);
                }
                let wanted = if is_tag { parts[0].0.to_string() } else { what };
                let found = parts.into_iter().find(|(digest, _)| digest.to_string() == wanted);
                let media_type = if kind == "manifests" { MANIFEST } else { "application/octet-stream" };
                found.map(|(digest, bytes)| (digest.to_string(), media_type, bytes))
            }
            _ => None,
        };
        let Some((digest, media_type, bytes)) = found else {
            return Some(refuse(StatusCode::NOT_FOUND, "MANIFEST_UNKNOWN", "the probe has no such part"));
        };
        let response = Response::builder()
            .header(CONTENT_TYPE, media_type)
            .header(CONTENT_LENGTH, bytes.len())
            .header("docker-content-digest", digest)
            .body(body::whole(bytes));
        response.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_is_there_under_each_tag_and_arrives_once_asked_for() {
        let probes = Probes::default();
        let status = |path: &str| probes.answer(&format!("/v2/{PROBE}/{path}")).unwrap().status();
        assert_eq!(status("arrived/n1"), StatusCode::NOT_FOUND);
        assert_eq!(status("manifests/n1"), StatusCode::OK);
        assert_eq!(status("arrived/n1"), StatusCode::OK);
        for (digest, _) in &parts()[1..] {
            assert_eq!(status(&format!("blobs/{digest}")), StatusCode::OK);
        }
        assert_eq!(status(&format!("manifests/{}", parts()[0].0)), StatusCode::OK);
        assert_eq!(status(&format!("blobs/sha256:{}", "0".repeat(64))), StatusCode::NOT_FOUND);
        assert!(probes.answer("/v2/weir.invalid/other/manifests/1").is_none());
        assert!(probes.answer(&format!("/v2/a/b/{PROBE}/manifests/1")).is_none());
        let by_podman = probes.answer(&format!("/v2/docker.io/{PROBE}/manifests/p1")).unwrap();
        assert_eq!(by_podman.status(), StatusCode::OK);
        assert_eq!(status("arrived/p1"), StatusCode::OK);
        for nth in 0..100 {
            status(&format!("manifests/m{nth}"));
        }
        assert_eq!(status("arrived/n1"), StatusCode::NOT_FOUND, "a bounded number is remembered");
        assert_eq!(status("arrived/m99"), StatusCode::OK);
    }
}
