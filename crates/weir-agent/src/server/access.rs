//! The right that each route needs, and the check of the caller's right.

use std::sync::{Arc, PoisonError, RwLock};

use axum::{
    extract::{MatchedPath, Request, State},
    http::Method,
    middleware::Next,
    response::{IntoResponse, Response},
};
use weir_agree::{Fault, FaultCode, Language};
use weir_api::ErrorCode;

use super::{
    Failure, bad_method,
    connections::{Caller, Identity},
    language::{Refusal, of_answer},
};
use crate::{
    agent::maker::Owner,
    config::{
        Right::{self, Admin, Operate, Own, Read},
        Rights,
    },
    tokens::Token,
};

/// The rights in force. A reload replaces them.
#[derive(Debug, Clone, Default)]
pub struct Access(Arc<RwLock<Rights>>);

impl Access {
    /// Access by these rights.
    pub fn new(rights: Rights) -> Access {
        Access(Arc::new(RwLock::new(rights)))
    }

    pub(crate) fn set(&self, rights: Rights) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = rights;
    }

    pub(crate) fn rights(&self) -> Rights {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn of(&self, caller: &Caller) -> Option<Right> {
        caller.right(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// All routes with their rights. A route that is missing here answers no caller.
///
/// With the right `own` a caller ends and renews the agreements that it made; those of others need `admin`.
pub(super) const ROUTES: [(&str, &str, Right); 65] = [
    ("GET", "/v1/status", Read),
    ("GET", "/v1/classes", Read),
    ("GET", "/v1/classes/{name}", Read),
    ("GET", "/v1/classes/{name}/explain", Read),
    ("PATCH", "/v1/policies", Operate),
    ("DELETE", "/v1/policies/{name}", Operate),
    ("GET", "/v1/link", Read),
    ("PATCH", "/v1/link", Operate),
    ("DELETE", "/v1/link", Operate),
    ("POST", "/v1/plan/link", Operate),
    ("GET", "/v1/history", Read),
    ("GET", "/v1/tokens", Admin),
    ("POST", "/v1/tokens", Admin),
    ("DELETE", "/v1/tokens/{name}", Admin),
    ("DELETE", "/v1/notices", Admin),
    ("GET", "/v1/doctor", Operate),
    ("DELETE", "/v1/policies", Operate),
    ("POST", "/v1/plan/policies", Operate),
    ("POST", "/v1/plan/undo", Operate),
    ("POST", "/v1/plan/configuration", Operate),
    ("GET", "/v1/export", Read),
    ("GET", "/v1/events", Read),
    ("GET", "/v1/stream", Read),
    ("GET", "/metrics", Read),
    ("PUT", "/v1/cni", Operate),
    ("DELETE", "/v1/cni", Operate),
    ("POST", "/v1/cni/check", Read),
    ("POST", "/v1/cni/keep", Operate),
    ("GET", "/healthz", Read),
    ("GET", "/readyz", Read),
    ("GET", "/openapi.json", Read),
    ("GET", "/v1/congestion", Read),
    ("GET", "/v1/congestion/explain", Read),
    ("GET", "/v1/congestion/flows", Read),
    ("GET", "/v1/congestion/stats", Read),
    ("POST", "/v1/congestion/move", Operate),
    ("POST", "/v1/congestion/rules", Operate),
    ("DELETE", "/v1/congestion/rules", Operate),
    ("GET", "/v1/congestion/advice", Read),
    ("POST", "/v1/congestion/advice", Operate),
    ("GET", "/v1/images", Read),
    ("GET", "/v1/images/usage", Read),
    ("GET", "/v1/images/peers", Read),
    ("GET", "/v1/images/runtime", Read),
    ("POST", "/v1/images/pin", Operate),
    ("POST", "/v1/images/remove", Operate),
    ("POST", "/v1/images/prune", Operate),
    ("POST", "/v1/images/warm", Operate),
    ("GET", "/v1/images/warm/{id}", Read),
    ("GET", "/v1/images/scrub", Read),
    ("POST", "/v1/images/scrub", Operate),
    ("GET", "/v1/agreements", Read),
    ("POST", "/v1/agreements", Own),
    ("POST", "/v1/agreements/offers", Own),
    ("GET", "/v1/agreements/status", Read),
    ("GET", "/v1/agreements/templates", Read),
    ("GET", "/v1/agreements/templates/{id}", Read),
    ("GET", "/v1/agreements/calendar", Read),
    ("GET", "/v1/agreements/{id}", Read),
    ("DELETE", "/v1/agreements/{id}", Own),
    ("GET", "/v1/agreements/{id}/status", Read),
    ("GET", "/v1/agreements/{id}/report", Read),
    ("POST", "/v1/agreements/{id}/renew", Own),
    ("POST", "/v1/agreements/{id}/accept", Admin),
    ("POST", "/v1/agreements/{id}/reject", Admin),
];

/// The routes that are open to the bearer of a token of scope `party`. They show and change its own agreements.
pub(super) const OF_PARTIES: [(&str, &str); 12] = [
    ("GET", "/openapi.json"),
    ("GET", "/v1/agreements"),
    ("POST", "/v1/agreements"),
    ("POST", "/v1/agreements/offers"),
    ("GET", "/v1/agreements/status"),
    ("GET", "/v1/agreements/templates"),
    ("GET", "/v1/agreements/templates/{id}"),
    ("GET", "/v1/agreements/{id}"),
    ("DELETE", "/v1/agreements/{id}"),
    ("GET", "/v1/agreements/{id}/status"),
    ("GET", "/v1/agreements/{id}/report"),
    ("POST", "/v1/agreements/{id}/renew"),
];

fn is_for_parties(method: &Method, path: &str) -> bool {
    let method = if method == Method::HEAD { &Method::GET } else { method };
    OF_PARTIES.contains(&(method.as_str(), path))
}

/// The right that a route needs; `None` for an unsupported method.
fn needed(method: &Method, path: &str) -> Option<Right> {
    let method = if method == Method::HEAD { &Method::GET } else { method };
    ROUTES.iter().find(|(m, p, _)| *m == method.as_str() && *p == path).map(|(.., right)| *right)
}

/// Passes a request on if its caller has the route's right.
pub(super) async fn gate(
    State(access): State<Access>,
    path: MatchedPath,
    caller: axum::Extension<Caller>,
    mut request: Request,
    next: Next,
) -> Response {
    let method = request.method().clone();
    let Some(needed) = needed(&method, path.as_str()) else {
        return bad_method(method, request.uri().clone()).await.into_response();
    };
    let has = access.of(&caller);
    let is_open = caller.party().is_none() || is_for_parties(&method, path.as_str());
    if has >= Some(needed) && is_open {
        let owner = if has == Some(Admin) { Owner::Any } else { Owner::Of(caller.maker()) };
        request.extensions_mut().insert(owner);
        return next.run(request).await;
    }
    let message = match &caller.identity {
        Identity::User(peer) => refusal(&method, request.uri().path(), needed, peer.uid, has),
        Identity::Token(token) => refusal_of_token(&method, request.uri().path(), needed, token),
    };
    if path.as_str().starts_with("/v1/agreements") {
        let language = of_answer(request.headers(), Language::Json).unwrap_or(Language::Json);
        return Refusal::new(Fault::new(FaultCode::Forbidden, message), language).into_response();
    }
    Failure::new(ErrorCode::Forbidden, message).into_response()
}

fn refusal(method: &Method, path: &str, needed: Right, uid: u32, has: Option<Right>) -> String {
    let key = needed.key();
    let has = has.map_or("no right".to_owned(), |right| format!("the right {}", right.key()));
    format!(
        "user {uid} has {has} here, and {method} {path} needs the right {key}: root has it, and so has each \
         user of `{key}` in `[access]` of the configuration"
    )
}

fn refusal_of_token(method: &Method, path: &str, needed: Right, token: &Token) -> String {
    let (name, scope) = (token.name(), &token.view.scope);
    let needed = match needed {
        Right::Read => "read",
        Right::Own | Right::Operate => "operate",
        Right::Admin => "admin",
    };
    format!(
        "token {name} has the scope {scope} here, and {method} {path} needs the scope {needed}: an operator makes \
         another token with `weir token add NAME --scope {needed}`"
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::{
        body::{Body, to_bytes},
        http::StatusCode,
    };
    use tokio::sync::{Semaphore, mpsc};
    use tower_service::Service as _;

    use super::*;
    use crate::{
        config,
        images::Images,
        server::{Stream, guarded, peer::Peer, router},
    };

    /// The status and the body of an answer to this user.
    async fn answer(router: &axum::Router, method: &str, path: &str, peer: Peer) -> (StatusCode, String) {
        let caller = Caller { identity: Identity::User(peer), large_bodies: Arc::new(Semaphore::new(1)) };
        let mut request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        request.extensions_mut().insert(caller);
        let response = router.clone().call(request).await.unwrap();
        let status = response.status();
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    /// All routes without an agent.
    fn alone() -> axum::Router {
        let control = mpsc::channel(1).0;
        router(control.clone(), Images::off(), Stream::new(control))
    }

    fn access() -> Access {
        let text = "read = [\"1001\"]\nown = [\"1002\"]\noperate = [\"1003\"]\nadmin = [\"1004\"]";
        Access::new(toml::from_str::<config::Access>(text).unwrap().rights().unwrap())
    }

    #[tokio::test]
    async fn each_route_answers_those_who_have_its_right_and_no_one_else() {
        // No agent runs, so a request that passes gets that answer.
        let router = guarded(alone(), access());
        let callers = [
            (1000, None),
            (1001, Some(Read)),
            (1002, Some(Own)),
            (1003, Some(Operate)),
            (1004, Some(Admin)),
            (0, Some(Admin)),
        ];
        let mut passed = 0;
        for (method, path, needed) in ROUTES {
            let path = path.replace("{name}", "web").replace("{id}", "7");
            for (uid, has) in callers {
                let (status, body) = answer(&router, method, &path, Peer::made(uid, &[])).await;
                let what = format!("{method} {path} by {uid}: {status} {body}");
                if has >= Some(needed) {
                    passed += 1;
                    assert!(
                        status != StatusCode::FORBIDDEN && status != StatusCode::METHOD_NOT_ALLOWED,
                        "{what}"
                    );
                    assert!(status != StatusCode::NOT_FOUND || !body.contains("unknown-route"), "{what}");
                } else {
                    assert_eq!(status, StatusCode::FORBIDDEN, "{what}");
                    assert!(body.contains("forbidden") && body.contains(needed.key()), "{what}");
                }
            }
        }
        assert!(passed > ROUTES.len() * 3, "{passed}");
        let (status, _) = answer(&router, "PUT", "/v1/policies", Peer::made(0, &[])).await;
        assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
        let (status, body) = answer(&router, "GET", "/v1/secrets", Peer::made(0, &[])).await;
        assert!(status == StatusCode::NOT_FOUND && body.contains("unknown-route"), "{body}");
    }

    #[tokio::test]
    async fn route_without_a_right_answers_no_one() {
        let open = axum::Router::new().route("/v1/new", axum::routing::get(async || "secret"));
        let (status, body) = answer(&guarded(open, access()), "GET", "/v1/new", Peer::made(0, &[])).await;
        assert!(status == StatusCode::METHOD_NOT_ALLOWED && !body.contains("secret"), "{body}");
    }

    #[tokio::test]
    async fn rights_change_with_the_configuration() {
        let (access, user) = (access(), Peer::made(1001, &[50]));
        let router = guarded(alone(), access.clone());
        assert_eq!(answer(&router, "PATCH", "/v1/policies", user.clone()).await.0, StatusCode::FORBIDDEN);
        access.set(toml::from_str::<config::Access>("operate = [\"@50\"]").unwrap().rights().unwrap());
        assert_ne!(answer(&router, "PATCH", "/v1/policies", user).await.0, StatusCode::FORBIDDEN);
    }

    #[test]
    fn refusal_names_the_user_the_right_and_the_way_out() {
        let path = "/v1/policies";
        assert_eq!(
            refusal(&Method::PATCH, path, Operate, 1000, Some(Own)),
            "user 1000 has the right own here, and PATCH /v1/policies needs the right operate: root has it, \
             and so has each user of `operate` in `[access]` of the configuration"
        );
        assert!(refusal(&Method::GET, path, Read, 1000, None).contains("has no right here"));
        assert_eq!(needed(&Method::PUT, path), None);
    }

    /// The word that names a route in the row of its right. A route without one fails the test below.
    fn word(route: &str, right: Right) -> Option<&'static str> {
        let area = route.trim_start_matches("/v1").trim_start_matches('/').split('/').next()?;
        Some(match (right, area) {
            (Read, "classes" | "status" | "export" | "stream" | "cni") => "classes",
            (Read, "link") => "links",
            (Read, "congestion") => "rules",
            (Read, "metrics" | "healthz" | "readyz" | "openapi.json") => "metrics",
            (Operate, "policies") => "policies",
            (Operate, "link") => "capacities",
            (Operate, "congestion") => "congestion control",
            (Operate, "cni") => "pods",
            (Operate, "plan") => "`weir plan`",
            (Operate, "doctor") => "`weir doctor`",
            (Admin, "tokens") => "tokens",
            (Admin, "notices") => "notices",
            (Read | Own | Admin, "agreements") => "agreements",
            (Read | Operate, "images") => "images",
            (Read, "events") => "events",
            (Read, "history") => "history",
            _ => return None,
        })
    }

    #[test]
    fn the_documents_name_what_each_right_opens() {
        let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
        let read = |name: &str| std::fs::read_to_string(format!("{docs}/{name}")).unwrap();
        let (page, file) = (read("book/reference/configuration.md"), read("weir.toml"));
        let (_, table) = page.split_once("## `[access]`").unwrap();
        let (_, file) = file.split_once("#[access]").unwrap();
        for (method, path, right) in ROUTES {
            let Some(word) = word(path, right) else { panic!("no word for {method} {path} of {right:?}") };
            let key = right.key();
            let row = table.lines().find(|line| line.starts_with(&format!("| `{key}` |"))).unwrap();
            assert!(row.contains(word), "{method} {path}: no `{word}` in: {row}");
            let (_, comment) = file.split_once(&format!("#{key} = ")).unwrap();
            let comment = comment.split("\n#").next().unwrap();
            assert!(comment.contains(word), "{method} {path}: no `{word}` in docs/weir.toml: {comment}");
        }
    }

    #[test]
    fn the_description_has_each_route_with_its_right() {
        let description: serde_json::Value =
            serde_json::from_str(include_str!("../../../../docs/openapi.json")).unwrap();
        let mut described = Vec::new();
        for (path, operations) in description["paths"].as_object().unwrap() {
            for (method, operation) in operations.as_object().unwrap() {
                let right = operation["x-weir-right"].as_str().unwrap().to_owned();
                described.push((method.to_uppercase(), path.clone(), right));
            }
        }
        let mut routes: Vec<_> = ROUTES
            .iter()
            .map(|(method, path, right)| (method.to_string(), path.to_string(), right.key().to_owned()))
            .collect();
        described.sort();
        routes.sort();
        assert_eq!(described, routes);
    }
}
