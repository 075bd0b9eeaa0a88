//! The fixed classes, the link, and what is told of them.

use weir_api::{
    Activity, Capacity, Check, Class, ClassKind, Doctor, Download, DownloadStatus, Error, ErrorCode, Event,
    EventKind, Explanation, Export, LinkView, NotEnforced, OnLink, Origin, OtherLink, Plan, PlannedChange,
    PlannedSetting, PlannedState, PolicyView, RuntimeImage, RuntimeImages, Sharer, Status, TokenScope,
    TokenView, Verdict,
};
use weir_share::Weight;
use weir_units::{BitRate, Bytes};

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
        exempt: Vec::new(),
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
pub(crate) fn link_view(status: &Status) -> LinkView {
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
        exempt: status.exempt.clone(),
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
        exempt: Vec::new(),
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

pub(crate) fn plan(before: &[Class], after: &[Class]) -> Plan {
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
    Plan { settings: Vec::new(), classes: changes.collect(), links: Vec::new() }
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

pub(crate) fn token() -> TokenView {
    TokenView {
        name: "shop".to_owned(),
        scope: TokenScope::Party,
        party: Some("acme".to_owned()),
        created_ms: 1_700_000_000_000,
        expires_ms: None,
    }
}

/// A link without classes.
pub fn export() -> Export {
    let (link, capacity, engine) = ("eth0".to_owned(), BitRate::mbit(95), "htb".to_owned());
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let direction = weir_agree::Direction::Upload;
    let (classes, selectors, exempt) = (Vec::new(), Vec::new(), Vec::new());
    Export { version, link, direction, capacity, engine, classes, selectors, exempt }
}

pub(crate) fn unknown(name: &str) -> Error {
    Error {
        code: ErrorCode::UnknownName,
        message: format!("there is no class `{name}`; `weir ps` lists them"),
        asked: None,
        free: None,
    }
}
