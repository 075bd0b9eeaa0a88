//! The dashboard's files at the socket and over TCP.

use axum::{
    body::{Body, to_bytes},
    http::{HeaderMap, Request as HttpRequest, StatusCode, header},
};
use tokio::sync::mpsc;
use weir_api::TokenScope;

use super::{Stream, bearer::Bearers, tcp::Routes};
use crate::{images::Images, tokens::Tokens};

struct Answered {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

/// The answer over TCP to a caller without a token. No agent runs.
async fn ask(tokens: &Tokens, is_private: bool, path: &str, known: Option<&str>) -> Answered {
    let control = mpsc::channel(1).0;
    let stream = Stream::new(control.clone());
    let routes = Routes::new(control, Images::off(), stream, Bearers::new(tokens.clone()));
    let mut request = HttpRequest::builder().uri(path);
    if let Some(tag) = known {
        request = request.header(header::IF_NONE_MATCH, tag);
    }
    let response =
        routes.answer(request.body(Body::empty()).unwrap(), [10, 0, 0, 1].into(), is_private).await;
    let (status, headers) = (response.status(), response.headers().clone());
    let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    Answered { status, headers, body: String::from_utf8(body.to_vec()).unwrap() }
}

#[tokio::test]
async fn page_has_strict_headers_and_is_told_that_it_is_unchanged() {
    let page = ask(&Tokens::default(), true, "/", None).await;
    assert_eq!(page.status, StatusCode::OK);
    assert_eq!(page.headers[header::CONTENT_TYPE], "text/html; charset=utf-8");
    assert!(page.body.starts_with("<!doctype html>"), "{}", page.body);
    let policy = page.headers[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
    for rule in ["default-src 'none'", "script-src 'self'", "connect-src 'self'", "frame-ancestors 'none'"] {
        assert!(policy.contains(rule), "{policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(page.headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
    assert_eq!(page.headers[header::REFERRER_POLICY], "no-referrer");
    let tag = page.headers[header::ETAG].to_str().unwrap();
    let again = ask(&Tokens::default(), true, "/", Some(tag)).await;
    assert_eq!((again.status, again.body.as_str()), (StatusCode::NOT_MODIFIED, ""));
    let other = ask(&Tokens::default(), true, "/", Some("\"other\"")).await;
    assert_eq!(other.status, StatusCode::OK);
}

/// A file that a page names and that the agent does not have would break the page without a word.
#[tokio::test]
async fn each_file_that_the_page_names_is_there_and_the_first_view_is_small() {
    let (mut seen, mut left, mut bytes) = (Vec::new(), vec!["/".to_owned()], 0);
    while let Some(path) = left.pop() {
        let file = ask(&Tokens::default(), true, &path, None).await;
        assert_eq!(file.status, StatusCode::OK, "{path}: {}", file.body);
        bytes += file.body.len();
        seen.push(path);
        // `from './x.js'` in scripts, and "/dashboard/x" in the page.
        let modules = file.body.split("from './").skip(1).map(|rest| rest.split('\'').next().unwrap());
        let links = file.body.split("\"/dashboard/").skip(1).map(|rest| rest.split('"').next().unwrap());
        for name in modules.chain(links) {
            let path = format!("/dashboard/{name}");
            if !seen.contains(&path) && !left.contains(&path) {
                left.push(path);
            }
        }
        assert!(!file.body.contains("innerHTML") || seen.last().unwrap().ends_with("uplot.js"));
    }
    assert!(seen.len() > 10 && bytes < 300_000, "{bytes} bytes of {seen:?}");
}

#[tokio::test]
async fn page_needs_no_token_and_data_does() {
    let tokens = Tokens::default();
    tokens.made("reader", TokenScope::Read, None);
    assert_eq!(ask(&tokens, true, "/dashboard/main.js", None).await.status, StatusCode::OK);
    for path in
        ["/v1/stream", "/v1/classes", "/dashboard", "/dashboard/", "/dashboard/x", "/dashboard/../v1/status"]
    {
        let answer = ask(&tokens, true, path, None).await;
        let is_refused = [StatusCode::UNAUTHORIZED, StatusCode::NOT_FOUND].contains(&answer.status);
        assert!(is_refused, "{path}: {} {}", answer.status, answer.body);
    }
}

#[tokio::test]
async fn page_is_not_served_where_others_read_the_connection() {
    for path in ["/", "/dashboard/main.js"] {
        let answer = ask(&Tokens::default(), false, path, None).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN);
        assert!(answer.body.contains("set [api] certificate and key"), "{}", answer.body);
    }
}
