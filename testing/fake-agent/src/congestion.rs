//! Congestion control of the fake agent: a fixed view, and the answers about it.

use weir_agent::control::CongestionRequest;
use weir_api::{CongestionMoved, CongestionRule, CongestionView};
use weir_cc::{
    AdviceSettings, AdviceView, Advisor, Connection, Direction, FlowRecord, Rule, Rules, Stats, rule_for,
};
use weir_units::{BitRate, Bytes};

use crate::fixed::unknown;

/// Two rules, of which one reaches no connection, and a flow.
pub fn congestion_view() -> CongestionView {
    let rule = |number: usize, connections: &str, action: &str, problem: Option<&str>| CongestionRule {
        number,
        connections: connections.to_owned(),
        action: action.to_owned(),
        classes: Vec::new(),
        problem: problem.map(str::to_owned),
        origin: weir_cc::Origin::Config,
    };
    CongestionView {
        rules: vec![
            rule(1, "all", "bbr, cubic after 1MiB", None),
            rule(2, "container gone to 10.0.0.0/8", "reno", Some("there is no gone")),
        ],
        available: vec!["reno".to_owned(), "bbr".to_owned(), "cubic".to_owned()],
        set: 12,
        switched: 3,
        ended: 9,
        ..CongestionView::default()
    }
}

/// An ended connection.
pub fn flow() -> FlowRecord {
    FlowRecord {
        ended_ms: 1_700_000_000_000,
        class: Some("web".to_owned()),
        to: "10.1.2.3".parse().unwrap(),
        remote_port: 443,
        local_port: 40_000,
        direction: Some(Direction::Out),
        sent: Bytes(2 << 20),
        received: Bytes(10),
        took_us: 250_000,
        first: "bbr".parse().unwrap(),
        last: "cubic".parse().unwrap(),
        switched_at: Some(Bytes(1 << 20)),
        least_rtt_us: 10_000,
        smoothed_rtt_us: 12_000,
        most_rtt_us: 30_000,
        retransmits: 4,
        delivery_rate: BitRate::mbit(90),
        rule: Some(1),
        tried: false,
    }
}

/// A trial that has just started.
pub fn advice() -> Vec<AdviceView> {
    let to = "10.1.2.0/24".parse().unwrap();
    let settings = AdviceSettings {
        to: vec![to],
        share: 0.1,
        candidates: vec![Rule { start: "bbr".parse().ok(), ..rule_for(to, None) }],
        turn_s: 10,
    };
    let mut advisor = Advisor::new(Some(settings), std::collections::BTreeMap::new(), 0);
    advisor.turn(weir_units::Instant::default(), &Rules::default(), &"cubic".parse().unwrap(), || 1);
    advisor.view()
}

/// The first move succeeds, and each later one fails. `moves` is their number.
pub(crate) fn congestion(ask: CongestionRequest, moves: &mut usize) {
    let mut stats = Stats::default();
    stats.add("10.1.2.0/24".parse().unwrap(), &flow());
    let rules = Rules::new(vec![Rule::default()]).unwrap();
    match ask {
        CongestionRequest::View(reply) => drop(reply.send(congestion_view())),
        CongestionRequest::Explain(query, reply) => drop(reply.send(match query.container {
            Some(name) => Err(unknown(&name)),
            None => Ok(rules.explain(&Connection::to(query.to))),
        })),
        CongestionRequest::Flows(reply) => drop(reply.send(vec![flow()])),
        CongestionRequest::Stats(reply) => drop(reply.send(stats.view())),
        CongestionRequest::Move(reply) => {
            *moves += 1;
            let why = "web: cannot list its connections: Operation not permitted".to_owned();
            drop(reply.send(Ok(match *moves {
                1 => CongestionMoved { moved: 2, failures: Vec::new() },
                _ => CongestionMoved { moved: 0, failures: vec![why] },
            })))
        }
        CongestionRequest::Set(rule, _, reply) => drop(reply.send(Ok(CongestionRule {
            number: 3,
            connections: rule.to_string(),
            action: rule.action().to_string(),
            classes: Vec::new(),
            problem: None,
            origin: weir_cc::Origin::Set,
        }))),
        CongestionRequest::Unset(about, _, reply) => drop(reply.send(match about.port {
            Some(_) => Ok(congestion_view()),
            None => Err(unknown(&about.to_string())),
        })),
        CongestionRequest::Advice(reply) => drop(reply.send(advice())),
        CongestionRequest::Advise(request, _, reply) => drop(reply.send(match request.to {
            Some(to) => Err(unknown(&to.to_string())),
            None => Ok(advice()),
        })),
    }
}
