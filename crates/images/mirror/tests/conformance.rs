//! The demands of the OCI distribution specification (1.1), and of its conformance tests, on a
//! registry for pulls: its section "Pull", end-1, end-2, end-3, and the other requests of clients,
//! end-8 and end-12.

mod support;

use support::{Got, digest, noise, pair};

const APP: &str = "library/app";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// Those of the specification's table of error codes.
const CODES: [&str; 14] = [
    "BLOB_UNKNOWN",
    "BLOB_UPLOAD_INVALID",
    "BLOB_UPLOAD_UNKNOWN",
    "DIGEST_INVALID",
    "MANIFEST_BLOB_UNKNOWN",
    "MANIFEST_INVALID",
    "MANIFEST_UNKNOWN",
    "NAME_INVALID",
    "NAME_UNKNOWN",
    "SIZE_INVALID",
    "UNAUTHORIZED",
    "DENIED",
    "UNSUPPORTED",
    "TOOMANYREQUESTS",
];

fn header<'a>(got: &'a Got, name: &str) -> &'a str {
    got.headers.get(name).unwrap_or_else(|| panic!("{name} of {got:?}")).to_str().unwrap()
}

/// The code of an answer that is an error, in the specification's form.
fn code(got: &Got) -> String {
    assert_eq!(header(got, "content-type"), "application/json");
    let body: serde_json::Value = serde_json::from_slice(got.body.as_ref().unwrap()).unwrap();
    let error = &body["errors"][0];
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{body}");
    let code = error["code"].as_str().unwrap().to_owned();
    assert!(CODES.contains(&&*code), "{code}");
    code
}

#[tokio::test]
async fn the_base_says_that_this_is_a_registry() {
    let (_registry, served, _dir) = pair().await;
    for path in ["/v2/", "/v2"] {
        assert_eq!(served.get(path).await.status, 200);
    }
}

#[tokio::test]
async fn manifests_are_there_by_tag_and_by_digest() {
    let (registry, served, _dir) = pair().await;
    let made = registry.image(APP, "1.0", 50, &[100]);
    for reference in ["1.0".to_owned(), made.manifest.to_string()] {
        let path = format!("/v2/{APP}/manifests/{reference}");
        let mut lengths = Vec::new();
        // HEAD first: on a miss too.
        for method in ["HEAD", "GET", "HEAD"] {
            let got = served.request(method, &path, &[("accept", MANIFEST)]).await;
            assert_eq!(got.status, 200, "{method} {path}");
            assert_eq!(header(&got, "docker-content-digest"), made.manifest.to_string());
            assert_eq!(header(&got, "content-type"), MANIFEST);
            lengths.push(header(&got, "content-length").parse::<usize>().unwrap());
            let body = got.body.unwrap();
            match method {
                "GET" => assert_eq!(digest(&body), made.manifest),
                _ => assert!(body.is_empty()),
            }
        }
        assert!(lengths.iter().all(|length| *length == lengths[0] && *length > 0), "{lengths:?}");
    }
}

#[tokio::test]
async fn blobs_are_there_whole_and_in_parts() {
    let (registry, served, _dir) = pair().await;
    let made = registry.image(APP, "1.0", 51, &[10_000]);
    let bytes = noise(51 * 100 + 1, 10_000);
    served.get(&format!("/v2/{APP}/manifests/1.0")).await;
    let path = format!("/v2/{APP}/blobs/{}", made.layers[0]);
    for method in ["HEAD", "GET", "HEAD"] {
        let got = served.request(method, &path, &[]).await;
        assert_eq!((got.status, header(&got, "content-length")), (200, "10000"), "{method}");
        assert_eq!(header(&got, "docker-content-digest"), made.layers[0].to_string());
        assert_eq!(got.body.unwrap().len(), if method == "GET" { 10_000 } else { 0 });
    }
    let part = served.request("GET", &path, &[("range", "bytes=5000-5999")]).await;
    assert_eq!((part.status, header(&part, "content-range")), (206, "bytes 5000-5999/10000"));
    assert_eq!(part.bytes()[..], bytes[5000..6000]);
    let beyond = served.request("GET", &path, &[("range", "bytes=10000-")]).await;
    assert_eq!((beyond.status, header(&beyond, "content-range")), (416, "bytes */10000"));
}

#[tokio::test]
async fn what_is_not_there_is_404_with_its_code_and_what_cannot_be_is_400() {
    let (registry, served, _dir) = pair().await;
    registry.image(APP, "1.0", 52, &[100]);
    let none = digest(b"none");
    for (path, want) in [
        (format!("/v2/{APP}/manifests/.INVALID_MANIFEST_NAME"), (404, "MANIFEST_UNKNOWN")),
        (format!("/v2/{APP}/manifests/none"), (404, "MANIFEST_UNKNOWN")),
        (format!("/v2/{APP}/manifests/{none}"), (404, "MANIFEST_UNKNOWN")),
        (format!("/v2/{APP}/manifests/sha256:totallywrong"), (400, "DIGEST_INVALID")),
        (format!("/v2/{APP}/blobs/{none}"), (404, "BLOB_UNKNOWN")),
        (format!("/v2/{APP}/blobs/sha256:totallywrong"), (400, "DIGEST_INVALID")),
        (format!("/v2/Upper/blobs/{none}"), (400, "NAME_INVALID")),
        ("/v2/none/tags/list".to_owned(), (404, "NAME_UNKNOWN")),
    ] {
        let got = served.get(&path).await;
        assert_eq!((got.status, &*code(&got)), want, "{path}");
        let head = served.request("HEAD", &path, &[]).await;
        assert_eq!((head.status, head.body.unwrap().len()), (want.0, 0), "HEAD {path}");
    }
    // Pushing is not to be had, and what is wrong is told before that.
    let path = format!("/v2/{APP}/manifests/");
    for (reference, want) in [("1.0", (405, "UNSUPPORTED")), ("sha256:totallywrong", (400, "DIGEST_INVALID"))]
    {
        let got = served.request("PUT", &format!("{path}{reference}"), &[]).await;
        assert_eq!((got.status, &*code(&got)), want);
    }
}
