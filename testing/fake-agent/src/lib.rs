//! An agent for tests: the real server before a loop with four fixed classes.

mod agreements;
mod cni;

use std::{
    path::{Path, PathBuf},
    thread,
};

use tokio::sync::{broadcast, mpsc};
use weir_agent::{
    config::Rights,
    control::{CongestionRequest, Request},
    images::Images,
    server::{Access, Socket, Stream, serve},
};
use weir_api::{
    Activity, Actor, ActorKind, Capacity, ChangeKind, Check, Class, ClassKind, CongestionMoved,
    CongestionRule, CongestionView, Doctor, Download, DownloadStatus, Error, ErrorCode, Event, EventKind,
    Explanation, Export, ExportQuery, History, HistoryChange, HistoryQuery, HistoryRecord, LinkView,
    NotEnforced, OnLink, Origin, OtherLink, Plan, PlannedChange, PlannedSetting, PlannedState, PolicyView,
    RuntimeImage, RuntimeImages, SetPolicies, Sharer, Status, TokenMade, TokenScope, TokenView, Undone,
    Verdict,
};
use weir_cc::{
    AdviceSettings, AdviceView, Advisor, Connection, Direction, FlowRecord, Rule, Rules, Stats, rule_for,
};
use weir_share::Weight;
use weir_units::{BitRate, Bytes};

use agreements::FakeAgreements;
use cni::FakeCni;

/// Larger floors are refused with `no-capacity`.
pub const FREE: BitRate = BitRate::mbit(60);

/// # Panics
/// The weight is zero.
pub fn weight(weight: u32) -> Weight {
    Weight::new(weight).unwrap()
}

/// A class with this allocation that sends at `rate`.
pub fn class(name: &str, allocation: BitRate, rate: BitRate) -> Class {
    Class {
        name: name.to_owned(),
        source: "docker".to_owned(),
        kind: ClassKind::Container,
        group: None,
        handle: Some("1:1a".to_owned()),
        interfaces: vec![format!("veth-{name}")],
        selects: Vec::new(),
        activity: if rate.0 > 0 { Activity::Active } else { Activity::Idle },
        policy: PolicyView {
            weight: Weight::ONE,
            min: None,
            max: None,
            weight_origin: Origin::Default,
            min_origin: Origin::Default,
            max_origin: Origin::Default,
        },
        allocation,
        rate,
        demand: None,
        bytes: Bytes(rate.0.saturating_mul(10)),
        packets: rate.0 / 1_000,
        drops: 0,
        backlog: Bytes(0),
        backlog_packets: 0,
        backpressured_ms: 0,
        local_bytes: Bytes(0),
        enforced: true,
        not_enforced_because: None,
        not_enforced: None,
        unpromised: None,
        agreement: None,
        down: None,
        on_links: Vec::new(),
        moved_packets: 0,
    }
}

/// A class's part of the download, of at most 20mbit, with three drops.
pub fn download(rate: BitRate) -> Download {
    let Class { activity, policy, allocation, bytes, packets, .. } = class("", rate, rate);
    Download {
        activity,
        policy: PolicyView { max: Some(BitRate::mbit(20)), max_origin: Origin::Config, ..policy },
        allocation,
        rate,
        demand: None,
        bytes,
        packets,
        drops: 3,
        charged: BitRate::mbit(1),
        backlog: Bytes(0),
        backlog_packets: 0,
        enforced: true,
        not_enforced: None,
        not_enforced_because: None,
        unpromised: None,
    }
}

/// A link of 9mbit beside the main one, which a minimum of 40mbit does not fit.
pub fn other_link() -> OtherLink {
    OtherLink {
        device: "wwan0".to_owned(),
        capacity: BitRate::mbit(9),
        configured_capacity: None,
        rate: BitRate::mbit(4),
        reserved: BitRate::ZERO,
        reservable: BitRate::kbit(8_550),
        active: 1,
        follows: None,
        download: Some(download_status()),
        is_here: true,
        not_enforced_because: None,
        unpromised: vec!["web: its minimum of 40mbit is not promised".to_owned()],
    }
}

/// A class's part of that link, on which it sends 4mbit.
pub fn on_link(class: &Class) -> OnLink {
    let Class { activity, policy, bytes, packets, .. } = class.clone();
    OnLink {
        link: "wwan0".to_owned(),
        activity,
        policy,
        allocation: BitRate::mbit(9),
        rate: BitRate::mbit(4),
        demand: None,
        bytes,
        packets,
        drops: 2,
        backlog: Bytes(0),
        backlog_packets: 0,
        backpressured_ms: 0,
        enforced: true,
        not_enforced: None,
        not_enforced_because: None,
        unpromised: None,
        down: Some(download(BitRate::mbit(3))),
    }
}

/// A download of 50mbit.
pub fn download_status() -> DownloadStatus {
    DownloadStatus {
        capacity: BitRate::mbit(50),
        configured_capacity: None,
        follows: None,
        rate: BitRate::mbit(16),
        reserved: BitRate::ZERO,
        reservable: BitRate::kbit(47_500),
        charged: BitRate::mbit(2),
        engine: "htb".to_owned(),
        device: "weir0d".to_owned(),
        active: 1,
        conntrack: true,
    }
}

/// `web` in a group with a floor and a ceiling, `video` with a queue, `camera` that is not enforced,
/// and the host.
pub fn classes() -> Vec<Class> {
    let mut web = class("web", BitRate::mbit(40), BitRate(39_840_000));
    web.group = Some("tenant-a".to_owned());
    web.policy = PolicyView {
        weight: weight(2),
        min: Some(BitRate::mbit(20)),
        max: Some(BitRate::mbit(50)),
        weight_origin: Origin::Config,
        min_origin: Origin::Set,
        max_origin: Origin::Label,
    };
    let mut video = class("video", BitRate::mbit(55), BitRate(54_100_000));
    video.policy.weight = weight(3);
    video.policy.weight_origin = Origin::Set;
    video.drops = 12;
    video.backlog = Bytes(65_536);
    video.backlog_packets = 44;
    video.backpressured_ms = 81_500;
    video.local_bytes = Bytes(3 << 20);
    let mut camera = class("camera", BitRate::mbit(5), BitRate::ZERO);
    camera.source = "config".to_owned();
    camera.kind = ClassKind::Interface;
    camera.enforced = false;
    camera.not_enforced = Some(NotEnforced::Sender);
    camera.not_enforced_because = Some("veth7 is not there: check `interface` in `[[class]]`".to_owned());
    let mut host = class("host", BitRate::mbit(5), BitRate::kbit(800));
    host.source = "weir".to_owned();
    host.kind = ClassKind::Host;
    vec![web, video, camera, host]
}

/// Docker's images: one in use, one that is pinned, one that has to go.
pub fn runtime_images() -> RuntimeImages {
    let image = |name: &str, gib: u64, kept: &[&str], leaves| RuntimeImage {
        id: format!("sha256:{name}"),
        names: vec![format!("{name}:1")],
        bytes: Bytes(gib << 30),
        alone: Bytes((gib - 1) << 30),
        pulled_ms: 1_700_000_000_000,
        used_ms: 1_700_000_000_000,
        uses: 3,
        kept: kept.iter().map(|why| (*why).to_owned()).collect(),
        leaves,
    };
    RuntimeImages {
        runtime: "docker".to_owned(),
        socket: "/run/docker.sock".to_owned(),
        dry_run: true,
        policy: "auto".to_owned(),
        follows: "gdsf-ghost".to_owned(),
        budget: Bytes(8 << 30),
        bytes: Bytes(9 << 30),
        short: Bytes(0),
        looked_ms: Some(1_700_000_000_000),
        problem: None,
        removed: 4,
        removed_bytes: Bytes(1 << 30),
        refused: 1,
        images: vec![
            image("app", 3, &["in use by web", "used 3 min ago"], None),
            image("base", 4, &["pinned by base:1"], None),
            image("old", 4, &[], Some(1)),
        ],
    }
}

/// The capacities of this status. `web` lacks its minimum on a link of less than 20mbit.
fn link_view(status: &Status) -> LinkView {
    let lacks = status.capacity < BitRate::mbit(20);
    let why = "web: its minimum of 20mbit is not promised: the link has less";
    LinkView {
        device: status.link.clone(),
        others: Vec::new(),
        upload: Capacity { capacity: status.capacity, configured: status.configured_capacity },
        framing: status.framing.clone(),
        follows: status.follows.clone(),
        download: None,
        download_follows: None,
        unpromised: lacks.then(|| why.to_owned()).into_iter().collect(),
    }
}

/// A follower of the link's rate.
pub fn follows() -> weir_api::Follows {
    weir_api::Follows {
        min: BitRate::mbit(2),
        max: BitRate::mbit(120),
        delay_ms: 30,
        capacity: BitRate::mbit(100),
        state: weir_api::FollowState::Track,
        queue_us: Some(7_500),
        dry_run: false,
        failure: None,
    }
}

/// The status of the fixed classes.
pub fn status() -> Status {
    Status {
        version: "0.1.0".to_owned(),
        pid: 4242,
        uptime_s: 11_532,
        link: "eth0".to_owned(),
        other_links: Vec::new(),
        capacity: BitRate::mbit(100),
        configured_capacity: None,
        follows: None,
        rate: BitRate(94_740_000),
        framing: None,
        download: None,
        reserved: BitRate::mbit(20),
        reservable: BitRate::mbit(95),
        engine: "htb".to_owned(),
        allocator: "water-filling".to_owned(),
        attach: "tcx".to_owned(),
        pacing: false,
        classes: 4,
        active: 3,
        class_changes: 17,
        repairs: 0,
        max_tick_delay_us: 0,
        late: None,
        late_us: None,
        config: "/etc/weir/weir.toml".to_owned(),
        config_error: None,
        config_taken_ms: 1_700_000_000_000,
        not_ready: vec!["camera: veth7 is not there: check `interface` in `[[class]]`".to_owned()],
        warnings: vec!["camera is not enforced: veth7 is not there".to_owned()],
        notices: Vec::new(),
        failed_authentications: 3,
    }
}

/// A class as a plan shows it.
fn planned(class: &Class) -> PlannedState {
    PlannedState {
        policy: class.policy,
        group: class.group.clone(),
        interfaces: class.interfaces.clone(),
        selects: class.selects.clone(),
        present: class.activity != Activity::Absent,
        not_promised: None,
        down: class.down.as_ref().map(|down| down.policy),
        down_not_promised: None,
    }
}

fn plan(before: &[Class], after: &[Class]) -> Plan {
    let change = |class: &Class| {
        let old = before.iter().find(|old| old.name == class.name);
        let (name, source) = (class.name.clone(), class.source.clone());
        PlannedChange {
            name,
            source,
            kind: class.kind,
            before: old.map(planned),
            after: Some(planned(class)),
        }
    };
    let changes = after.iter().map(change).filter(|change| change.before != change.after);
    Plan { settings: Vec::new(), classes: changes.collect() }
}

/// A plan with a change of each kind: the link's capacity, a class that changes, one that comes without its
/// minimum, and one that goes.
pub fn configuration_plan() -> Plan {
    let (before, mut after) = (classes(), classes());
    let setting = |key: &str, before: &str, after: &str| PlannedSetting {
        key: key.to_owned(),
        before: before.to_owned(),
        after: after.to_owned(),
    };
    after.retain(|class| class.name != "camera");
    after[0].policy.weight = weight(5);
    after[0].policy.max = None;
    let mut backup = class("backup", BitRate::ZERO, BitRate::ZERO);
    backup.activity = Activity::Absent;
    let mut plan = plan(&before, &[after, vec![backup]].concat());
    if let Some(backup) = plan.classes.last_mut().and_then(|change| change.after.as_mut()) {
        backup.not_promised =
            Some("its minimum of 50mbit is not promised: 18mbit of 38mbit is free".to_owned());
    }
    plan.classes.push(PlannedChange {
        name: "camera".to_owned(),
        source: "config".to_owned(),
        kind: ClassKind::Interface,
        before: before.iter().find(|class| class.name == "camera").map(planned),
        after: None,
    });
    plan.settings = vec![
        setting("[link] capacity", "100mbit", "40mbit"),
        setting("promised", "20mbit of 95mbit", "20mbit of 38mbit"),
    ];
    plan
}

/// An explanation of a class.
pub fn explanation(class: Class) -> Explanation {
    let sharer = |name: &str, w, mbit, bound: &str| Sharer {
        name: name.to_owned(),
        weight: weight(w),
        allocation: BitRate::mbit(mbit),
        bound: bound.to_owned(),
    };
    Explanation {
        class,
        reasons: vec![
            "eth0 carries 100mbit; 3 classes send now".to_owned(),
            "by weight 2 of 6 the share is 33.3mbit".to_owned(),
        ],
        sharers: vec![
            sharer("tenant-a", 2, 40, "weight"),
            sharer("video", 3, 55, "weight"),
            sharer("host", 1, 5, "demand"),
        ],
        origins: vec![
            "set: min=20mbit".to_owned(),
            "config: weight=2".to_owned(),
            "label: max=50mbit".to_owned(),
        ],
    }
}

/// One check of each verdict.
pub fn doctor() -> Doctor {
    let check = |name: &str, verdict, found: &str, advice: Option<&str>| Check {
        name: name.to_owned(),
        verdict,
        found: found.to_owned(),
        advice: advice.map(str::to_owned),
    };
    Doctor {
        checks: vec![
            check("kernel", Verdict::Ok, "6.18.2", None),
            check(
                "docker",
                Verdict::Warn,
                "no socket at /var/run/docker.sock",
                Some("start dockerd, or set `docker = false`"),
            ),
            check("link", Verdict::Fail, "eth0 is down", Some("ip link set dev eth0 up")),
        ],
    }
}

/// An event about `web`.
pub fn event(seq: u64, what: &str) -> Event {
    Event {
        seq,
        time_ms: 1_700_000_000_000 + seq,
        what: EventKind::from(what),
        class: Some("web".to_owned()),
        detail: format!("event {seq}"),
        agreement: None,
    }
}

fn unknown(name: &str) -> Error {
    Error {
        code: ErrorCode::UnknownName,
        message: format!("there is no class `{name}`; `weir ps` lists them"),
        asked: None,
        free: None,
    }
}

/// An agent on its own socket for one test.
pub struct FakeAgent {
    /// The socket.
    pub path: PathBuf,
    /// Sends an event to its followers.
    pub events: broadcast::Sender<Event>,
    stop: mpsc::Sender<Request>,
    thread: Option<thread::JoinHandle<()>>,
    _dir: tempfile::TempDir,
}

impl FakeAgent {
    /// Starts the agent. It ends when it is dropped.
    ///
    /// # Panics
    /// A socket or a thread cannot be made.
    pub fn start() -> FakeAgent {
        FakeAgent::with("")
    }

    /// Starts an agent that has this text wherever a stranger chooses it: the name, group and interface
    /// of a class, reasons, warnings and events.
    ///
    /// # Panics
    /// A socket or a thread cannot be made.
    pub fn hostile(text: &str) -> FakeAgent {
        assert!(!text.is_empty());
        FakeAgent::with(text)
    }

    fn with(hostile: &str) -> FakeAgent {
        let hostile = hostile.to_owned();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weir.sock");
        let (events, _) = broadcast::channel(4);
        let (control, requests) = mpsc::channel(8);
        let thread = thread::spawn({
            let (path, control, events) = (path.clone(), control.clone(), events.downgrade());
            let socket = Socket::bind(&path, &Rights::default()).unwrap();
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let listener = socket.listener().unwrap();
                    let stream = Stream::new(control.clone());
                    tokio::select! {
                        never = serve(listener, control, Images::off(), stream, Access::default()) => match never {},
                        () = answer(requests, events, &hostile) => {}
                    }
                });
            }
        });
        FakeAgent { path, events, stop: control, thread: Some(thread), _dir: dir }
    }

    /// A client of this agent.
    pub fn client(&self) -> weir_api::Client {
        weir_api::Client::new(&self.path)
    }

    /// The socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for FakeAgent {
    fn drop(&mut self) {
        // The loop ends at a request about the name `stop` without a waiting caller.
        let (reply, _) = tokio::sync::oneshot::channel();
        let _ = self.stop.blocking_send(Request::Unset("stop".to_owned(), Actor::agent(), reply));
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking(), "the fake agent panicked");
        }
    }
}

/// The loop keeps policies and knows two events. It never answers about the class `hang`, and drops
/// requests about `vanish`.
async fn answer(mut requests: mpsc::Receiver<Request>, events: broadcast::WeakSender<Event>, hostile: &str) {
    let (mut classes, mut status) = (classes(), status());
    let mut explanation: fn(Class) -> Explanation = explanation;
    if !hostile.is_empty() {
        let text = hostile.to_owned();
        let class = &mut classes[0];
        (class.name, class.group, class.interfaces) = (text.clone(), Some(text.clone()), vec![text.clone()]);
        classes[2].not_enforced_because = Some(text.clone());
        (status.warnings, status.notices, status.link) = (vec![text.clone()], vec![text.clone()], text);
        explanation = |class| {
            let reasons = vec![class.name.clone(), class.group.clone().unwrap_or_default()];
            Explanation { reasons, ..self::explanation(class) }
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

fn token() -> TokenView {
    TokenView {
        name: "shop".to_owned(),
        scope: TokenScope::Party,
        party: Some("acme".to_owned()),
        created_ms: 1_700_000_000_000,
        expires_ms: None,
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

/// The first move succeeds, and each later one fails. `moves` is their number.
fn congestion(ask: CongestionRequest, moves: &mut usize) {
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

fn find<'a>(classes: &'a mut [Class], name: &str) -> Result<&'a mut Class, Error> {
    let found = classes.iter_mut().find(|c| c.name == name || format!("{}:{}", c.source, c.name) == name);
    found.ok_or_else(|| unknown(name))
}

/// A link without classes.
pub fn export() -> Export {
    let (link, capacity, engine) = ("eth0".to_owned(), BitRate::mbit(95), "htb".to_owned());
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let (classes, selectors, direction) = (Vec::new(), Vec::new(), weir_agree::Direction::Upload);
    Export { version, link, direction, capacity, engine, classes, selectors }
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
