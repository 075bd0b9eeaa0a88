//! Agreements over HTTP. The server runs on real agreements with their own database.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    sync::Barrier,
    time::{Duration, Instant},
};

use serde_json::Value;
use weir_agree::{Agreement, Direction, Document, Language, Offer, Template};

use weir_fake_agent::FakeAgent;

/// A kept-alive connection.
struct Connection(BufReader<UnixStream>);

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Connection {
    fn open(path: &Path) -> Connection {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Connection(BufReader::new(stream))
    }

    fn ask(&mut self, request: &str, headers: &str, body: &[u8]) -> Option<Answer> {
        let length = body.len();
        let head = format!("{request} HTTP/1.1\r\nhost: weir\r\n{headers}content-length: {length}\r\n\r\n");
        let stream = self.0.get_mut();
        // A server that refuses a body may close before it has received the whole body.
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            // A server that refuses a body without reading it closes the connection.
            if self.0.read_line(&mut head).unwrap_or(0) == 0 {
                assert_eq!(head, "", "{request}: closed amid its answer");
                return None;
            }
        }
        head.make_ascii_lowercase();
        let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let length = field("content-length:").and_then(|n| n.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Some(Answer { status, body: String::from_utf8(body).unwrap(), head })
    }
}

fn ask(agent: &FakeAgent, request: &str, headers: &str, body: &str) -> Answer {
    Connection::open(agent.path()).ask(request, headers, body.as_bytes()).expect("an answer")
}

fn fig2() -> String {
    include_str!("../../../agreements/docs/fig2.xml").to_owned()
}

/// The offer of Fig. 2 for another service, in this language.
fn offer(language: Language, service: &str, rate: &str) -> String {
    let xml = fig2().replace("httpd", service).replace(" 19 ", rate);
    let offer = Offer::read(&xml, Language::Xml).unwrap();
    if language == Language::Xml { xml } else { offer.write(language) }
}

fn content(language: Language) -> String {
    format!("content-type: {}\r\n", language.media_type())
}

#[test]
fn an_offer_is_answered_in_its_language_or_in_the_one_that_is_wanted() {
    let agent = FakeAgent::start();
    for (i, language) in Language::ALL.into_iter().enumerate() {
        let body = offer(language, &format!("web{i}"), "5");
        let answer = ask(&agent, "POST /v1/agreements", &content(language), &body);
        assert_eq!(answer.status, 201, "{}", answer.body);
        let agreement = Agreement::read(&answer.body, language).unwrap();
        assert_eq!(agreement.offer.terms.min.0, 5_000_000);
        assert!(
            answer.head.contains(&format!("location: /v1/agreements/{}\r\n", agreement.id)),
            "{}",
            answer.head
        );
        assert!(answer.head.contains(&format!("content-type: {}\r\n", language.media_type())));

        let request = format!("GET /v1/agreements/{}", agreement.id);
        for wanted in Language::ALL {
            let accept = format!("accept: {}\r\n", wanted.media_type());
            let found = ask(&agent, &request, &accept, "");
            assert_eq!(Agreement::read(&found.body, wanted).unwrap(), agreement);
        }
    }
    // The request names no language of its body, and none of the answer.
    let answer = ask(&agent, "POST /v1/agreements", "", &offer(Language::Toml, "web9", "5"));
    assert!(Agreement::read(&answer.body, Language::Toml).is_ok(), "{}", answer.body);
    let json = content(Language::Json) + "accept: text/xml\r\n";
    let answer = ask(&agent, "POST /v1/agreements", &json, &offer(Language::Json, "web8", "5"));
    assert!(Agreement::read(&answer.body, Language::Xml).is_ok(), "{}", answer.body);

    let all = ask(&agent, "GET /v1/agreements", "", "");
    assert_eq!(serde_json::from_str::<Vec<Agreement>>(&all.body).unwrap().len(), 5);
    let all = ask(&agent, "GET /v1/agreements", "accept: application/toml\r\n", "");
    assert_eq!(all.body.matches("[[agreement]]").count(), 5);
    let all = ask(&agent, "GET /v1/agreements", "accept: application/xml\r\n", "");
    assert_eq!(
        (all.body.matches("<?xml").count(), all.body.matches("</wsag:AgreementProperties>").count()),
        (1, 5)
    );
}

#[test]
fn the_same_offer_sent_again_has_the_same_agreement() {
    let agent = FakeAgent::start();
    let mut one = Offer::read(&fig2(), Language::Xml).unwrap();
    one.id = Some("offer-1".parse().unwrap());
    let body = one.write(Language::Json);
    let post = |body: &str| ask(&agent, "POST /v1/agreements", "content-type: application/json\r\n", body);
    let (first, again) = (post(&body), post(&body));
    assert_eq!((first.status, again.status), (201, 200));
    assert_eq!(first.body, again.body);
    one.terms.min.0 -= 1_000_000;
    let other = post(&one.write(Language::Json));
    assert_eq!((other.status, code(&other, Language::Json)), (409, "offer-id-reused".to_owned()));
}

#[test]
fn templates_calendar_renewal_and_termination_have_their_routes() {
    let agent = FakeAgent::start();
    let templates = ask(&agent, "GET /v1/agreements/templates", "", "");
    let templates: Vec<Template> = serde_json::from_str(&templates.body).unwrap();
    let xml = ask(&agent, "GET /v1/agreements/templates/bandwidth", "accept: text/xml\r\n", "");
    assert_eq!(Template::read(&xml.body, Language::Xml).unwrap(), templates[0]);
    let missing = ask(&agent, "GET /v1/agreements/templates/gold", "", "");
    assert_eq!((missing.status, code(&missing, Language::Json)), (404, "unknown-template".to_owned()));

    let client = agent.client();
    let mut wanted = Offer::read(&fig2(), Language::Xml).unwrap();
    wanted.terms.end = Some("2099-01-01T00:00:00Z".parse().unwrap());
    let id = client.offer(&wanted).unwrap().agreement.id;
    let calendar = client.calendar(Direction::Upload, None, None).unwrap();
    assert_eq!((calendar.steps[0].reserved.0, calendar.steps[0].free.0), (19_000_000, 71_000_000));
    let later = "2099-06-01T00:00:00Z".parse().unwrap();
    assert_eq!(client.renew(id.as_str(), Some(later)).unwrap().until, Some(later));
    assert_eq!(client.renew(id.as_str(), None).unwrap().until, None);
    assert!(client.renew(id.as_str(), Some(later)).is_err());
    assert_eq!(client.agreement(id.as_str()).unwrap().in_force.unwrap().min.0, 19_000_000);
    let path = format!("DELETE /v1/agreements/{id}");
    let gone = ask(&agent, &path, "accept: application/xml\r\n", "");
    assert!(gone.body.contains("<wsag:State>Terminated</wsag:State>"), "{}", gone.body);
    let again = ask(&agent, &path, "accept: application/xml\r\n", "");
    assert_eq!((again.status, code(&again, Language::Xml)), (409, "illegal-transition".to_owned()));
    let unknown = ask(&agent, "DELETE /v1/agreements/a-99", "accept: application/toml\r\n", "");
    assert_eq!((unknown.status, code(&unknown, Language::Toml)), (404, "unknown-agreement".to_owned()));
}

/// The code of a fault. Panics if the fault is not in that language.
fn code(answer: &Answer, language: Language) -> String {
    let text = &answer.body;
    match language {
        Language::Xml => {
            assert!(text.contains("<wsag:ContinuingFault"), "{text}");
            let (_, rest) =
                text.split_once("dialect=\"urn:weir:agreement:1\">").unwrap_or_else(|| panic!("{text}"));
            rest.split('<').next().unwrap().to_owned()
        }
        Language::Json => {
            let fault: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
            fault["fault"]["code"].as_str().unwrap_or_else(|| panic!("{text}")).to_owned()
        }
        Language::Toml => {
            let fault: toml::Table = toml::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
            fault["fault"]["code"].as_str().unwrap().to_owned()
        }
    }
}

#[test]
fn every_bad_offer_gets_a_fault_in_its_language_and_leaves_nothing() {
    let agent = FakeAgent::start();
    let post = |language: Language, body: &str| ask(&agent, "POST /v1/agreements", &content(language), body);
    let xml = |from: &str, to: &str| fig2().replacen(from, to, 1);
    let min = "unit=\"Mbps\"> 19 <";
    let past = "<qos:NetMinBandwidth";
    let with = |element: &str| xml(past, &format!("{element}{past}"));
    let weir = "xmlns:weir=\"urn:weir:agreement:1\"";
    let deep = format!("{}{}", "<a>".repeat(200), "</a>".repeat(200));
    let cases: Vec<(&str, u16, String)> = vec![
        ("malformed", 400, fig2().replace("</wsag:Terms>", "")),
        ("malformed", 400, "<".to_owned()),
        ("dtd", 400, xml("<wsag:AgreementOffer", "<!DOCTYPE a [<!ENTITY b \"c\">]><wsag:AgreementOffer")),
        ("entity", 400, xml("customer", "&lol;")),
        ("too-deep", 400, deep),
        ("unknown-unit", 400, xml(min, "unit=\"MBps\"> 19 <")),
        ("negative", 400, xml(min, "unit=\"Mbps\"> -19 <")),
        ("not-a-number", 400, xml(min, "unit=\"Mbps\"> NaN <")),
        ("unknown-namespace", 400, xml("schemas.webqos", "schemas.other")),
        ("unknown-namespace", 400, xml("2007/03/ws-agreement", "2005/09/ws-agreement")),
        ("wrong-document", 400, fig2().replace("wsag:AgreementOffer", "wsag:Template")),
        ("min-above-max", 422, xml(min, "unit=\"Mbps\"> 20 <")),
        ("max-above-reservable", 422, fig2().replace(" 19 ", " 91 ")),
        ("below-grain", 422, fig2().replace(" 19 ", " 0 ")),
        ("document-too-large", 413, xml("customer", &"x".repeat(70_000))),
        ("too-long", 400, xml("customer", &"x".repeat(10_000))),
        (
            "end-before-start",
            422,
            with(&format!(
                "<weir:Start {weir}>2099-01-02T00:00:00Z</weir:Start><weir:End {weir}>2099-01-01T00:00:00Z</weir:End>"
            )),
        ),
        ("start-in-past", 422, with(&format!("<weir:Start {weir}>2001-01-01T00:00:00Z</weir:Start>"))),
        ("bad-value", 400, with(&format!("<weir:Start {weir}>tomorrow</weir:Start>"))),
    ];
    for (want, status, body) in &cases {
        let answer = post(Language::Xml, body);
        let found = (answer.status, code(&answer, Language::Xml));
        assert_eq!(found, (*status, (*want).to_owned()), "{}\n{}", answer.body, &body[..body.len().min(900)]);
    }
    let good = Offer::read(&fig2(), Language::Xml).unwrap();
    for language in [Language::Json, Language::Toml] {
        let text = good.write(language);
        let number = "19000000";
        let initiator = match language {
            Language::Toml => "initiator = \"customer\"",
            _ => "\"initiator\": \"customer\"",
        };
        for (want, status, body) in [
            ("malformed", 400, text.replacen([':', '='], "", 1)),
            ("bad-value", 400, text.replacen(number, "-19000000", 1)),
            ("bad-value", 400, text.replacen(number, "\"19 knots\"", 1)),
            (
                "bad-value",
                400,
                text.replacen(number, if language == Language::Toml { "nan" } else { "\"NaN\"" }, 1),
            ),
            ("min-above-max", 422, text.replacen(number, "20000000", 1)),
            ("max-above-reservable", 422, text.replace(number, "91000000")),
            ("unknown-element", 400, text.replacen("initiator", "initator", 1)),
            ("missing", 400, text.replacen(initiator, "", 1)),
            ("document-too-large", 413, text.replace("customer", &"x".repeat(70_000))),
        ] {
            let answer = post(language, &body);
            let found = (answer.status, code(&answer, language));
            assert_eq!(found, (status, want.to_owned()), "{}\n{body}", answer.body);
        }
    }
    let image = ask(&agent, "POST /v1/agreements", "content-type: image/png\r\n", "x");
    assert_eq!((image.status, code(&image, Language::Json)), (415, "unknown-language".to_owned()));
    let html = ask(&agent, "GET /v1/agreements", "accept: text/html\r\n", "");
    assert_eq!((html.status, code(&html, Language::Json)), (406, "unknown-language".to_owned()));
    assert_eq!(agent.client().agreements().unwrap(), []);
    assert_eq!(agent.client().calendar(Direction::Upload, None, None).unwrap().steps.len(), 1);
}

#[test]
fn query_with_an_unknown_key_or_a_wrong_month_is_refused() {
    let agent = FakeAgent::start();
    let body = offer(Language::Json, "web", "1");
    assert_eq!(ask(&agent, "POST /v1/agreements", "", &body).status, 201);
    for request in [
        "GET /v1/agreements/calendar?foo=1",
        "GET /v1/agreements/calendar?directoin=download",
        "POST /v1/agreements/a-1/renew?end=never&foo=1",
        "GET /v1/agreements/a-1/report?mounth=2026-01",
    ] {
        let answer = ask(&agent, request, "", "");
        assert_eq!(answer.status, 400, "{request}: {}", answer.body);
    }
    let answer = ask(&agent, "GET /v1/agreements/a-1/report?month=2026-1", "", "");
    assert_eq!(answer.status, 400, "{}", answer.body);
    let told = "cannot read `2026-1` as a month: write it as in `month=2026-01`";
    assert!(answer.body.contains(told), "{}", answer.body);
}

#[test]
fn of_many_offers_at_once_for_the_last_megabit_one_wins() {
    const CLIENTS: usize = 40;
    for round in 0..3 {
        // All offers are read, because one user may send this number at once.
        let agent = FakeAgent::start();
        let first = ask(&agent, "POST /v1/agreements", "", &offer(Language::Json, "first", "89"));
        assert_eq!(first.status, 201);
        let start = Barrier::new(CLIENTS);
        let answers: Vec<Answer> = std::thread::scope(|scope| {
            let handles: Vec<_> = (0..CLIENTS)
                .map(|i| {
                    let (start, path) = (&start, agent.path());
                    scope.spawn(move || {
                        let body = offer(Language::Json, &format!("r{round}-{i}"), "1");
                        // Each offer has its own party, so none waits for a party's pace.
                        let body = body.replace("customer", &format!("party-{round}-{i}"));
                        let mut connection = Connection::open(path);
                        start.wait();
                        connection.ask("POST /v1/agreements", "", body.as_bytes()).expect("an answer")
                    })
                })
                .collect();
            handles.into_iter().map(|handle| handle.join().unwrap()).collect()
        });
        let accepted: Vec<&Answer> = answers.iter().filter(|answer| answer.status == 201).collect();
        let of_status = |status| answers.iter().filter(|answer| answer.status == status).count();
        println!("round {round}: 201 {}, 409 {}, 429 {}", of_status(201), of_status(409), of_status(429));
        assert_eq!(accepted.len(), 1);
        assert_eq!(of_status(409) + of_status(429), CLIENTS - 1);
        assert!(of_status(409) > 0);
    }
}

#[test]
fn a_flood_of_offers_is_refused_at_its_pace_and_others_are_served() {
    let agent = FakeAgent::start();
    let body = offer(Language::Xml, "flood", "1").replace("<wsag:AgreementOffer", "<wsag:AgreementOffer ");
    let begin = Instant::now();
    const OFFERS: usize = 5_000;
    let (mut accepted, mut late, mut other) = (0, 0, 0);
    let mut connection = Connection::open(agent.path());
    for _ in 0..OFFERS {
        let answer = loop {
            match connection.ask("POST /v1/agreements", "content-type: text/xml\r\n", body.as_bytes()) {
                Some(answer) => break answer,
                None => connection = Connection::open(agent.path()),
            }
        };
        match answer.status {
            201 => accepted += 1,
            429 => {
                late += 1;
                assert!(answer.head.contains("retry-after: "), "{}", answer.head);
                assert_eq!(code(&answer, Language::Xml), "too-many-offers");
            }
            _ => other += 1,
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "{OFFERS} offers in {seconds:.1} s, {:.0} a second: {accepted} accepted, {late} too many, {other} refused",
        OFFERS as f64 / seconds
    );
    // The first offer is accepted. The others within the party's burst and pace are checked and
    // refused.
    assert_eq!(accepted, 1);
    assert!(other as f64 <= 21.0 + seconds, "{other} offers were looked at");
    assert_eq!(agent.client().agreements().unwrap().len(), 1);
}
