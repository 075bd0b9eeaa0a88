//! All routes of the agent.

use serde_json::json;
use weir_agree::{Agreement, Offer, Report, Template};
use weir_api::{
    AdviceRequest, AgreementStatus, CalendarView, Class, CniAttached, CniAttachment, CniForgotten, CniKeep,
    CniKey, ConfigurationText, CongestionMoved, CongestionRule, CongestionView, Doctor, Event, Explanation,
    Export, Freed, Health, History, ImagePeer, ImageUsage, Images, LinkView, NamedImage, NewToken,
    OfferAnswer, PinImage, Pinned, Plan, PruneImages, Ready, RuntimeImages, Scrub, ScrubImages, SetCapacity,
    SetPolicies, Status, TokenMade, TokenView, Undone, WarmId, Warming,
};
use weir_cc::{AdviceView, Direction, Explained, FlowRecord, Rule, StatsView};

use crate::builder::{Builder, Route};

/// Adds all routes.
pub(crate) fn all(api: &mut Builder) {
    link(api);
    classes(api);
    observation(api);
    cni(api);
    congestion(api);
    images(api);
    agreements(api);
}

fn link(api: &mut Builder) {
    api.route("GET", "/v1/link", "read", "The link's capacities.").answers::<LinkView>().end();
    api.route("PATCH", "/v1/link", "operate", "Sets capacities by hand, at once and over restarts.")
        .takes::<SetCapacity>()
        .answers::<LinkView>()
        .end();
    api.route("DELETE", "/v1/link", "operate", "The configured capacities apply again.")
        .answers::<LinkView>()
        .end();
    api.route("POST", "/v1/plan/link", "operate", "What a change of the capacities would do.")
        .takes::<SetCapacity>()
        .answers::<Plan>()
        .end();
}

fn classes(api: &mut Builder) {
    api.route("GET", "/v1/status", "read", "The agent, its link and its scheduler.")
        .answers::<Status>()
        .end();
    api.route("GET", "/v1/classes", "read", "All classes.").answers::<Vec<Class>>().end();
    api.route("GET", "/v1/classes/{name}", "read", "One class.").answers::<Class>().end();
    api.route("GET", "/v1/classes/{name}/explain", "read", "Why a class has its allocation now.")
        .answers::<Explanation>()
        .end();
    api.route("PATCH", "/v1/policies", "operate", "Changes policies: all changes or none.")
        .takes::<SetPolicies>()
        .answers::<Vec<Class>>()
        .end();
    api.route("DELETE", "/v1/policies", "operate", "Takes back the last change of policies.")
        .answers::<Undone>()
        .end();
    api.route(
        "DELETE",
        "/v1/policies/{name}",
        "operate",
        "Forgets what was set for a class at run time. A class that was not here is answered as it was.",
    )
    .answers::<Class>()
    .end();
    api.route("POST", "/v1/plan/policies", "operate", "What a change of policies would do. Nothing changes.")
        .takes::<SetPolicies>()
        .answers::<Plan>()
        .end();
    api.route("POST", "/v1/plan/undo", "operate", "What taking back the last change would do.")
        .answers::<Plan>()
        .end();
    api.route("POST", "/v1/plan/configuration", "operate", "What a reload of this configuration would do.")
        .takes::<ConfigurationText>()
        .answers::<Plan>()
        .end();
}

fn observation(api: &mut Builder) {
    api.route("DELETE", "/v1/notices", "admin", "Acknowledges the notices of the stored state.")
        .answers::<Vec<String>>()
        .end();
    api.route("GET", "/v1/history", "read", "The record of changes, oldest first, in pages.")
        .query("after", false, json!({ "type": "integer", "minimum": 0 }), "Only records after this number.")
        .query(
            "since_ms",
            false,
            json!({ "type": "integer", "minimum": 0 }),
            "Only records since this moment.",
        )
        .query("name", false, json!({ "type": "string" }), "Only changes of this name.")
        .query("limit", false, json!({ "type": "integer", "minimum": 1 }), "The most records, up to 1000.")
        .answers::<History>()
        .end();
    api.route("GET", "/v1/tokens", "admin", "The tokens of the API over TCP, without their secrets.")
        .answers::<Vec<TokenView>>()
        .end();
    api.route("POST", "/v1/tokens", "admin", "Makes a token. Only this answer has its secret.")
        .takes::<NewToken>()
        .answers::<TokenMade>()
        .end();
    api.route("DELETE", "/v1/tokens/{name}", "admin", "Takes a token away, at once.")
        .answers::<TokenView>()
        .end();
    api.route("GET", "/v1/doctor", "operate", "Checks of the node.").answers::<Doctor>().end();
    api.route(
        "GET",
        "/v1/export",
        "read",
        "The division of a direction of a link, for other programs that shape.",
    )
    .query_of::<weir_agree::Direction>("direction", "What arrives or what leaves; `upload` if left out.")
    .query(
        "link",
        false,
        json!({ "type": "string" }),
        "The device of one of several links; the main one if left out.",
    )
    .answers::<Export>()
    .end();
    api.route(
        "GET",
        "/v1/events",
        "read",
        "Events, one JSON object a line, or server-sent events by `Accept`.",
    )
    .query("follow", false, json!({ "type": "boolean" }), "Waits for more events.")
    .answers_text("application/x-ndjson", "Events.")
    .answers_text("text/event-stream", "Events.")
    .mentions::<Event>()
    .end();
    api.route(
        "GET",
        "/v1/stream",
        "read",
        "The status and all classes each second: event `whole` has all, each later `patch` is a JSON Merge Patch to it.",
    )
    .answers_text("text/event-stream", "`{time_ms, status, classes}`; the keys of `classes` are `source:name`.")
    .mentions::<Status>()
    .mentions::<Class>()
    .end();
    api.route("GET", "/metrics", "read", "Metrics of Prometheus, or of OpenMetrics by `Accept`.")
        .answers_text("text/plain", "Metrics.")
        .answers_text("application/openmetrics-text", "Metrics.")
        .end();
    api.route("GET", "/healthz", "read", "Whether the agent's loop answers.").answers::<Health>().end();
    api.route("GET", "/readyz", "read", "Whether the link is divided as configured.")
        .answers::<Ready>()
        .answers_with::<Ready>(503, "The link is not divided as configured.")
        .end();
    api.route("GET", "/openapi.json", "read", "This description.")
        .answers_text("application/json", "This description.")
        .end();
}

fn cni(api: &mut Builder) {
    api.route(
        "PUT",
        "/v1/cni",
        "operate",
        "Reports a container's attachment; answers when its class is in force.",
    )
    .takes::<CniAttachment>()
    .answers::<CniAttached>()
    .end();
    api.route("DELETE", "/v1/cni", "operate", "Forgets an attachment.")
        .takes::<CniKey>()
        .answers::<CniForgotten>()
        .end();
    api.route("POST", "/v1/cni/check", "read", "The state of a reported attachment.")
        .takes::<CniAttachment>()
        .answers::<CniAttached>()
        .end();
    api.route("POST", "/v1/cni/keep", "operate", "Forgets the network's other attachments.")
        .takes::<CniKeep>()
        .answers::<CniForgotten>()
        .end();
}

fn congestion(api: &mut Builder) {
    api.route("GET", "/v1/congestion", "read", "The rules of congestion control.")
        .answers::<CongestionView>()
        .end();
    let text = || json!({ "type": "string" });
    api.route("GET", "/v1/congestion/explain", "read", "The rule of one connection, with the reason.")
        .query("to", true, text(), "The far end's address.")
        .query("container", false, text(), "A class, as `name` or `source:name`.")
        .query(
            "port",
            false,
            json!({ "type": "integer", "minimum": 0, "maximum": 65535 }),
            "The service's port.",
        )
        .query_of::<Direction>("direction", "The side that opened the connection.")
        .answers::<Explained>()
        .end();
    api.route("GET", "/v1/congestion/flows", "read", "The connections that ended last.")
        .answers::<Vec<FlowRecord>>()
        .end();
    api.route("GET", "/v1/congestion/stats", "read", "Completion times by destination, size and algorithm.")
        .answers::<StatsView>()
        .end();
    api.route("POST", "/v1/congestion/move", "operate", "Existing connections follow the rules.")
        .answers::<CongestionMoved>()
        .end();
    api.route(
        "POST",
        "/v1/congestion/rules",
        "operate",
        "Sets a rule. It replaces that of the same connections.",
    )
    .takes::<Rule>()
    .answers::<CongestionRule>()
    .end();
    api.route("DELETE", "/v1/congestion/rules", "operate", "Removes the rule of these connections.")
        .takes::<Rule>()
        .answers::<CongestionView>()
        .end();
    api.route("GET", "/v1/congestion/advice", "read", "The results of trials.")
        .answers::<Vec<AdviceView>>()
        .end();
    api.route("POST", "/v1/congestion/advice", "operate", "Gives an order about trials.")
        .takes::<AdviceRequest>()
        .answers::<Vec<AdviceView>>()
        .end();
}

fn images(api: &mut Builder) {
    api.route("GET", "/v1/images", "read", "The image cache.").answers::<Images>().end();
    api.route("GET", "/v1/images/usage", "read", "The cache's sizes and counters.")
        .answers::<ImageUsage>()
        .end();
    api.route("GET", "/v1/images/peers", "read", "The site's other nodes, asked now.")
        .answers::<Vec<ImagePeer>>()
        .end();
    api.route("GET", "/v1/images/runtime", "read", "The images that Docker keeps.")
        .answers::<RuntimeImages>()
        .end();
    api.route("POST", "/v1/images/pin", "operate", "Keeps an image, or no longer.")
        .takes::<PinImage>()
        .answers::<Pinned>()
        .end();
    api.route("POST", "/v1/images/remove", "operate", "Removes an image from the cache.")
        .takes::<NamedImage>()
        .answers::<Freed>()
        .end();
    api.route("POST", "/v1/images/prune", "operate", "Makes room.")
        .takes::<PruneImages>()
        .answers::<Freed>()
        .end();
    api.route("POST", "/v1/images/warm", "operate", "Begins to download an image.")
        .takes::<NamedImage>()
        .answers::<WarmId>()
        .end();
    api.route("GET", "/v1/images/warm/{id}", "read", "How far a download is.")
        .numbered()
        .answers::<Warming>()
        .end();
    api.route("GET", "/v1/images/scrub", "read", "How far the check of stored blobs is.")
        .answers::<Scrub>()
        .end();
    api.route("POST", "/v1/images/scrub", "operate", "Begins a check of stored blobs.")
        .takes::<ScrubImages>()
        .answers::<Scrub>()
        .end();
}

/// The answers to an offer, by their status.
fn of_offer<'a>(route: Route<'a>, answer: impl Fn(Route<'a>, u16, &str) -> Route<'a>) -> Route<'a> {
    let route = answer(route, 201, "It is accepted.");
    let route = answer(route, 202, "It waits for an operator's decision.");
    answer(route, 200, "The same offer was answered before.")
}

fn agreements(api: &mut Builder) {
    let moment = || json!({ "type": "string", "format": "date-time" });
    let fault = |route: Route<'_>| route.refuses_by_fault().end();
    fault(
        api.route("GET", "/v1/agreements/templates", "read", "The templates of offers.")
            .answers_document::<Vec<Template>>(200, "The templates."),
    );
    fault(
        api.route("GET", "/v1/agreements/templates/{id}", "read", "One template.")
            .answers_document::<Template>(200, "The template."),
    );
    fault(
        api.route("GET", "/v1/agreements", "read", "All agreements.")
            .answers_document::<Vec<Agreement>>(200, "The agreements."),
    );
    let offer = api.route("POST", "/v1/agreements", "own", "Makes an offer.").takes_document::<Offer>();
    fault(of_offer(offer, |route, status, what| route.answers_document::<Agreement>(status, what)));
    let offer = api
        .route("POST", "/v1/agreements/offers", "own", "Makes an offer; the answer is in JSON.")
        .takes_document::<Offer>();
    fault(of_offer(offer, |route, status, what| route.answers_with::<OfferAnswer>(status, what)));
    fault(
        api.route("GET", "/v1/agreements/status", "read", "All agreements and their state on this node.")
            .answers::<Vec<AgreementStatus>>(),
    );
    fault(
        api.route("GET", "/v1/agreements/calendar", "read", "Promised and free bandwidth over time.")
            .query_of::<weir_agree::Direction>(
                "direction",
                "What arrives or what leaves; `upload` if left out.",
            )
            .query("from", false, moment(), "The first moment.")
            .query("to", false, moment(), "The last moment.")
            .answers::<CalendarView>(),
    );
    for (method, path, right, what) in [
        ("GET", "/v1/agreements/{id}", "read", "One agreement."),
        ("DELETE", "/v1/agreements/{id}", "own", "Ends an agreement."),
        ("POST", "/v1/agreements/{id}/accept", "admin", "Accepts a pending offer."),
        ("POST", "/v1/agreements/{id}/reject", "admin", "Rejects a pending offer."),
    ] {
        fault(api.route(method, path, right, what).answers_document::<Agreement>(200, "The agreement."));
    }
    fault(
        api.route("POST", "/v1/agreements/{id}/renew", "own", "Gives an agreement a later end.")
            .query("end", true, json!({ "type": "string" }), "A moment (RFC 3339), or `never`.")
            .answers_document::<Agreement>(200, "The agreement."),
    );
    fault(
        api.route("GET", "/v1/agreements/{id}/status", "read", "An agreement and its state on this node.")
            .answers::<AgreementStatus>(),
    );
    let month = json!({ "type": "string", "pattern": "^[0-9]{4}-[0-9]{2}$" });
    fault(
        api.route("GET", "/v1/agreements/{id}/report", "read", "What an agreement was given in a month.")
            .query("month", false, month, "The month, such as 2026-11.")
            .answers::<Report>(),
    );
}
