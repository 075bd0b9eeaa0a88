//! The loop behind the server: an answer to each request, from the fixed data and what callers changed.

use tokio::sync::{broadcast, mpsc};
use weir_agent::control::Request;
use weir_api::{
    Activity, Actor, ActorKind, ChangeKind, Class, Error, ErrorCode, Event, Explanation, Export, ExportQuery,
    History, HistoryChange, HistoryQuery, HistoryRecord, Origin, SetPolicies, TokenMade, Undone,
};
use weir_share::Weight;
use weir_units::BitRate;

use crate::{
    agreements::FakeAgreements,
    cni::FakeCni,
    congestion::congestion,
    fixed::{
        self, FREE, class, classes, configuration_plan, doctor, event, export, link_view, other_link, plan,
        status, token, unknown,
    },
};

/// The loop keeps policies and knows two events. It never answers about the class `hang`, and drops
/// requests about `vanish`.
pub(crate) async fn answer(
    mut requests: mpsc::Receiver<Request>,
    events: broadcast::WeakSender<Event>,
    hostile: &str,
) {
    let (mut classes, mut status) = (classes(), status());
    let mut explanation: fn(Class) -> Explanation = fixed::explanation;
    if !hostile.is_empty() {
        let text = hostile.to_owned();
        let class = &mut classes[0];
        (class.name, class.group, class.interfaces) = (text.clone(), Some(text.clone()), vec![text.clone()]);
        classes[2].not_enforced_because = Some(text.clone());
        (status.warnings, status.notices, status.link) = (vec![text.clone()], vec![text.clone()], text);
        explanation = |class| {
            let reasons = vec![class.name.clone(), class.group.clone().unwrap_or_default()];
            Explanation { reasons, ..fixed::explanation(class) }
        };
    }
    let mut hanging = Vec::new();
    let mut moves = 0;
    let mut agreements = FakeAgreements::new();
    let mut cni = FakeCni::default();
    // A reply fails if the client has gone, which is fine.
    while let Some(request) = requests.recv().await {
        match request {
            Request::Status(reply) => drop(reply.send(status.clone())),
            Request::Classes(reply) => drop(reply.send(classes.clone())),
            Request::QueueTimes(reply) => drop(reply.send(Vec::new())),
            Request::Class(name, reply) if name == "hang" => hanging.push(reply),
            Request::Class(name, _) if name == "vanish" => {}
            Request::Class(name, reply) => drop(reply.send(find(&mut classes, &name).cloned())),
            Request::Explain(name, reply) => {
                drop(reply.send(find(&mut classes, &name).cloned().map(explanation)));
            }
            Request::Set(changes, _, reply) => drop(reply.send(set(&mut classes, &changes))),
            Request::Unset(name, ..) if name == "stop" => return,
            Request::Unset(name, _, reply) => drop(reply.send(find(&mut classes, &name).map(|class| {
                class.policy.weight = Weight::ONE;
                class.policy.weight_origin = Origin::Default;
                class.clone()
            }))),
            Request::Cni(ask) => cni.answer(ask),
            Request::PlanPolicies(changes, reply) => {
                let mut after = classes.clone();
                let changed = set(&mut after, &changes);
                drop(reply.send(changed.map(|_| plan(&classes, &after))));
            }
            Request::PlanConfiguration(file, reply) if file.text.is_empty() => {
                let message = format!("cannot use configuration {}: missing field `link`", file.path);
                drop(reply.send(Err(Error::new(ErrorCode::BadRequest, message))));
            }
            Request::PlanConfiguration(_, reply) => drop(reply.send(Ok(configuration_plan()))),
            Request::PlanUndo(reply) => drop(reply.send(Ok(configuration_plan()))),
            Request::Undo(_, reply) => drop(reply.send(Ok(Undone {
                made_ms: 1_700_000_000_000,
                names: vec!["docker:web".to_owned()],
                settings: Vec::new(),
                changes: configuration_plan().classes,
                links: Vec::new(),
                classes: vec![classes[0].clone()],
            }))),
            Request::Link(reply) => drop(reply.send(link_view(&status))),
            Request::SetLink(change, _, reply) => {
                let configured = status.configured_capacity.unwrap_or(status.capacity);
                let set = change.capacity.unwrap_or(status.configured_capacity.map(|_| status.capacity));
                status.configured_capacity = set.map(|_| configured);
                status.capacity = set.unwrap_or(configured);
                drop(reply.send(Ok(link_view(&status))));
            }
            Request::ResetLink(_, reply) => {
                status.capacity = status.configured_capacity.take().unwrap_or(status.capacity);
                drop(reply.send(Ok(link_view(&status))));
            }
            Request::PlanLink(_, reply) => drop(reply.send(Ok(configuration_plan()))),
            Request::Agreements(ask) => agreements.answer(ask),
            Request::Congestion(ask) => congestion(ask, &mut moves),
            Request::Tokens(reply) => drop(reply.send(vec![token()])),
            Request::AddToken(new, _, reply) => drop(reply.send(match new.name.as_str() {
                "shop" => Ok(TokenMade { token: token(), secret: "weir_0123".to_owned() }),
                name => Err(unknown(name)),
            })),
            Request::RemoveToken(_, _, reply) => drop(reply.send(Ok(token()))),
            Request::History(query, reply) => drop(reply.send(Ok(history(&query)))),
            Request::BeforePin(reply) => drop(reply.send(Ok(()))),
            Request::Pinned(_, _, reply) => {
                let _ = reply.send(());
            }
            Request::Acknowledge(reply) => {
                drop(reply.send(Ok(vec!["2026-11-23T00:00:00Z: the state was damaged".to_owned()])))
            }
            Request::Doctor(reply) => drop(reply.send(Ok(doctor()))),
            Request::Export(query, reply) => drop(reply.send(export_of(query))),
            Request::Events(reply) => {
                let Some(events) = events.upgrade() else { return };
                let mut kept = vec![event(1, "started"), event(2, "class-added")];
                if !hostile.is_empty() {
                    kept[1].class = Some(hostile.to_owned());
                    kept[1].detail = hostile.to_owned();
                }
                drop(reply.send((kept, events.subscribe())));
            }
        }
    }
}

/// Two records, of which each answer has one.
fn history(query: &HistoryQuery) -> History {
    let change = |old: Option<&str>, new: Option<&str>| HistoryChange {
        what: ChangeKind::Policy,
        name: "docker:web".to_owned(),
        old: old.map(str::to_owned),
        new: new.map(str::to_owned),
    };
    let (first, second) = ("weight=1 (built in)", "weight=3 (by hand)");
    let came = Actor::new(ActorKind::Container, "docker:web");
    let record = |n, by, cause: &str, change| HistoryRecord {
        n,
        time_ms: 1_700_000_000_000 + n,
        by,
        cause: cause.to_owned(),
        changes: vec![change],
        is_whole: false,
    };
    let of_container = record(8, came, "seen on the node", change(None, Some(first)));
    let of_user = record(9, Actor::user(1000), "change of policies", change(Some(first), Some(second)));
    match query.after {
        0..8 => History { records: vec![of_container], next: Some(8), ..History::default() },
        8 => History { records: vec![of_user], next: None, unreadable: 1, missing: 0 },
        _ => History::default(),
    }
}

fn find<'a>(classes: &'a mut [Class], name: &str) -> Result<&'a mut Class, Error> {
    let found = classes.iter_mut().find(|c| c.name == name || format!("{}:{}", c.source, c.name) == name);
    found.ok_or_else(|| unknown(name))
}

/// The same for what is asked about. The link [`other_link`] is beside it.
fn export_of(query: ExportQuery) -> Result<Export, Error> {
    let main = export();
    let link = query.link.unwrap_or_else(|| main.link.clone());
    if link != main.link && link != other_link().device {
        return Err(unknown(&link));
    }
    Ok(Export { link, direction: query.direction, ..main })
}

/// Applies all changes or none, as the real agent does.
fn set(classes: &mut Vec<Class>, changes: &SetPolicies) -> Result<Vec<Class>, Error> {
    let mut next = classes.clone();
    let mut changed = Vec::new();
    for change in &changes.changes {
        if changes.allow_absent && find(&mut next, &change.name).is_err() {
            let mut absent = class(&change.name, BitRate::ZERO, BitRate::ZERO);
            absent.activity = Activity::Absent;
            absent.handle = None;
            next.push(absent);
        }
        let class = find(&mut next, &change.name)?;
        if let Some(Some(min)) = change.min
            && min > FREE
        {
            return Err(Error {
                code: ErrorCode::NoCapacity,
                message: format!("cannot promise {} {min}: {FREE} of 95mbit is free", change.name),
                asked: Some(min),
                free: Some(FREE),
            });
        }
        if let Some(weight) = change.weight {
            class.policy.weight = weight.unwrap_or_default();
            class.policy.weight_origin = Origin::Set;
        }
        if let Some(min) = change.min {
            class.policy.min = min;
            class.policy.min_origin = Origin::Set;
        }
        if let Some(max) = change.max {
            class.policy.max = max;
            class.policy.max_origin = Origin::Set;
        }
        changed.push(class.clone());
    }
    *classes = next;
    Ok(changed)
}
