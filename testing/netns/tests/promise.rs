//! Guarantees are judged, with the cause of a breach: on a link that is slower than configured,
//! with a scheduler that another process alters, beside traffic that passes it by. A customer that
//! asks for less has no breach.

use std::{
    fs,
    thread::sleep,
    time::{Duration, Instant, SystemTime},
};

use weir_agree::{Cause, Document, GuaranteeState, Language, MERGE, Offer, Report, Utc, Violation};
use weir_netlab::{
    topology::{Family, Mode, Spec, UPLINK},
    traffic::Load,
};
use weir_netns_tests::{
    CAPACITY, Division, EngineKind, Need, Node, Rate, Stalls, Stream, can_run, containers, for_each_engine,
    http,
    kernel::{self, SCHEDULER},
    party, wait_within,
};
use weir_units::BitRate;

/// The guarantee in these tests, Mbit/s.
const PROMISED: u64 = 60;
/// The rate of the slowed link.
const SLOW: u64 = 20;
/// More than the guarantee.
const MUCH: Load = Load::Udp(BitRate::mbit(90));
/// How long something is the matter.
const TROUBLE: Duration = Duration::from_secs(4);

for_each_engine!(
    queues: slow_link_is_a_violation_with_start_length_depth_and_cause,
    a_customer_who_asks_for_less_or_gets_what_was_promised_is_not_wronged,
    what_passes_the_scheduler_by_is_the_cause_of_a_violation
);

fn utc() -> Utc {
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("it is after 1970");
    Utc::from_millis(now.as_millis() as i64)
}

/// The machine during a test. A guarantee is judged each second and met to 95 %, so that a stall of 50 ms is a
/// violation.
struct Machine {
    stalls: Stalls,
    /// The same moment by both clocks.
    began: (Instant, Utc),
}

impl Machine {
    /// A tick on either side.
    const AROUND: Duration = Duration::from_millis(100);

    fn watch() -> Machine {
        Machine { stalls: Stalls::watch(), began: (Instant::now(), utc()) }
    }

    fn instant(&self, at: Utc) -> Instant {
        let since = at.millis() - self.began.1.millis();
        self.began.0 + Duration::from_millis(since.max(0) as u64)
    }

    /// Whether a violation lacks no more than the link carries in the time in which the machine stood still.
    fn explains(&self, one: &Violation) -> bool {
        let (from, to) = (self.instant(one.start) - Machine::AROUND, self.instant(one.end) + Machine::AROUND);
        let stood = self.stalls.total(from, to);
        let is_explained = one.lacking <= CAPACITY.bytes_in(stood);
        if is_explained {
            println!("EXCLUDED, since the machine stood still for {} ms: {one}", stood.as_millis());
        }
        is_explained
    }

    /// The violations that are not the machine's.
    fn violations(&self, node: &Node) -> Vec<Violation> {
        violations(node).into_iter().filter(|one| !self.explains(one)).collect()
    }

    /// Waits until no violation of the machine is near. There is no other one.
    fn calms(&self, node: &Node, what: &str) {
        let begin = Instant::now();
        loop {
            assert_eq!(self.violations(node), [], "{what}");
            let last = violations(node).last().map(|one| self.instant(one.end));
            if last.is_none_or(|end| end.elapsed() > MERGE + Machine::AROUND) {
                return;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "{what}: the machine stands still too often");
            sleep(Duration::from_millis(200));
        }
    }
}

/// Waits until the guarantee is met. A stall has it violated for a second.
#[track_caller]
fn is_fulfilled(node: &Node, what: &str) {
    let state = || node.client().agreement("a-1").expect("it is there").agreement.guarantee_state;
    let look = || match state() {
        GuaranteeState::Fulfilled => Ok(()),
        other => Err(other),
    };
    wait_within(Duration::from_secs(2), look).unwrap_or_else(|late| panic!("{what}: it is {late}"));
}

/// A node on which C1 has an agreement.
fn node(engine: EngineKind) -> Node {
    let mut node = Node::build(&Spec { containers: containers(2), mode: Mode::Routed, ..Spec::default() });
    let config = node.config().engine(engine).sections("[agreements]\n");
    node.start(&config);
    let text = format!(
        r#"{{"context":{{"initiator":"acme"}},"service":{{"term":"t","name":"{}"}},
            "terms":{{"min":"{PROMISED}mbit","max":"{PROMISED}mbit"}}}}"#,
        node.name("C1")
    );
    let offer = Offer::read(&text, Language::Json).expect("it is an offer");
    let answer = node.client().offer(&offer).expect("it is accepted");
    assert_eq!(answer.agreement.id.as_str(), "a-1");
    node
}

fn violations(node: &Node) -> Vec<Violation> {
    node.client().agreement("a-1").expect("it is there").violations
}

fn sends(node: &Node, label: &str, load: Load) -> Stream {
    let (srv, address) = (node.topology.srv(), node.topology.server_address(Family::V4));
    match load {
        Load::Udp(rate) => Stream::udp(node.netns(label), srv, address, Rate::Of(rate)),
        _ => Stream::tcp(node.netns(label), srv, address),
    }
}

fn slow_link_is_a_violation_with_start_length_depth_and_cause(engine: EngineKind) {
    for load in [Load::Tcp, MUCH] {
        let mut node = node(engine);
        let machine = Machine::watch();
        let streams = ["C1", "C2"].map(|label| sends(&node, label, load));
        sleep(Duration::from_secs(4));
        machine.calms(&node, &format!("{load}: it is met"));
        is_fulfilled(&node, &load.to_string());

        let begins = utc();
        let tbf = format!("qdisc replace dev {UPLINK} root tbf rate {SLOW}mbit burst 32k limit 100k\n");
        node.topology.node().tc(&tbf).expect("tc takes it");
        let began = utc();
        sleep(Duration::from_secs(5));
        let state = node.client().agreement("a-1").expect("it is there").agreement.guarantee_state;
        assert_eq!(state, GuaranteeState::Violated, "{load}");
        let ends = utc();
        node.topology.node().tc(&format!("qdisc del dev {UPLINK} root\n")).expect("it is there");
        let ended = utc();
        sleep(Duration::from_secs(9));
        // A stall prolongs the violation, or makes one of its own.
        if let Some(stall) = machine.stalls.longest(machine.instant(ended), Instant::now()) {
            sleep(MERGE + stall);
        }
        is_fulfilled(&node, &load.to_string());
        drop(streams);
        // Until the last second is judged.
        sleep(Duration::from_millis(1200));

        let found = violations(&node);
        let own = machine.violations(&node);
        let [violation] = own[..] else { panic!("{load}: {own:#?}") };
        println!("{load}: {violation}");
        assert_eq!(violation.cause, Cause::LinkSlower, "{load}");
        let after = |moment: Utc| violation.start.millis() - moment.millis();
        let (early, late) = (-after(begins), after(began));
        assert!(early <= 1500 && late <= 1500, "{load}: it began {early} ms early, {late} ms late");
        let after = |moment: Utc| violation.end.millis() - moment.millis();
        let (early, late) = (-after(ends), after(ended));
        assert!(early <= 1500, "{load}: it ended {early} ms early");
        // TCP needs some time to come back. A stall that follows soon prolongs the violation.
        let stall = machine.stalls.longest(machine.instant(ended), machine.instant(violation.end));
        let prolonged = stall.map_or(0, |stall| (MERGE + stall).as_millis() as i64);
        assert!(late <= 3500 + prolonged, "{load}: it ended {late} ms late, {stall:?} by a stall");
        let (mean, worst) = (violation.mean.as_mbit(), violation.worst.as_mbit());
        assert!(
            mean >= 0.5 * (PROMISED - SLOW) as f64 && worst <= PROMISED as f64,
            "{load}: {mean}, {worst}"
        );
        assert!(worst >= (PROMISED - SLOW) as f64, "{load}: all of the slow link leaves {worst} missing");

        // It is told, and outlives the agent.
        let events: Vec<String> = node
            .client()
            .events(false)
            .expect("it answers")
            .filter_map(|event| event.ok())
            .filter(|event| event.what.as_str().starts_with("guarantee-"))
            .map(|event| event.what.to_string())
            .collect();
        // A violation that ended less than `MERGE` ago is not told as restored.
        let told = ["guarantee-violated", "guarantee-restored"].repeat(found.len());
        assert!(events.len() >= 2.max(told.len() - 1), "{load}: {events:?} of {found:#?}");
        assert_eq!(events, told[..events.len().min(told.len())], "{load}");
        node.agent().kill();
        node.restart();
        let shown = node.weir(&["agree", "show", "a-1"]);
        assert!(shown.contains("! violated: ") && shown.contains("slower than configured"), "{shown}");
        let page = node.agent().state_path().join("report.html");
        let text = node.weir(&["agree", "report", "a-1", "--html", page.to_str().expect("it is UTF-8")]);
        assert!(text.contains("% of the") && text.contains("slower than configured"), "{text}");
        assert!(fs::read_to_string(&page).expect("it is written").contains("<svg"));
        let report: Report =
            serde_json::from_str(&node.weir(&["agree", "report", "a-1", "--json"])).expect("it is JSON");
        assert!(report.availability < 1.0 && report.seen.violations == found, "{report:#?}");
        let (_, metrics) = http(node.socket(), "GET /metrics", "", b"").expect("the agent answers");
        let count = found.len();
        let line = format!(
            "weir_agreement_violations{{agreement=\"a-1\",party=\"acme\",direction=\"upload\"}} {count}.0"
        );
        assert!(metrics.contains(&line), "{metrics}");
    }
}

fn a_customer_who_asks_for_less_or_gets_what_was_promised_is_not_wronged(engine: EngineKind) {
    let node = node(engine);
    let machine = Machine::watch();
    let flood = sends(&node, "C2", MUCH);
    let load = Load::Udp(BitRate::mbit(5));
    let little = sends(&node, "C1", load);
    sleep(Duration::from_secs(5));
    assert_eq!(machine.violations(&node), [], "it asks for less");
    drop(little);
    sleep(Duration::from_secs(2));
    assert_eq!(machine.violations(&node), [], "it asks for nothing");
    // By fits and starts.
    for _ in 0..4 {
        let burst = sends(&node, "C1", Load::Tcp);
        sleep(Duration::from_millis(700));
        drop(burst);
        sleep(Duration::from_millis(500));
    }
    assert_eq!(machine.violations(&node), [], "it comes and goes");
    let much = sends(&node, "C1", MUCH);
    sleep(Duration::from_secs(5));
    let division = Division::of([party("C1").min(PROMISED).max(PROMISED).sends(MUCH)]);
    let expected = division.expected(CAPACITY, Family::V4)[0].goodput;
    let got = much.goodput(Duration::from_secs(2));
    println!("C1 gets {got:.2} of {expected:.2} Mbit/s");
    is_fulfilled(&node, "it gets what was promised");
    assert_eq!(machine.violations(&node), [], "it gets what was promised");
    drop(flood);
}

/// The violation that `trouble` is; a machine that stands still may make short ones beside it.
fn violation_by(node: &Node, trouble: impl FnOnce()) -> Violation {
    sleep(Duration::from_secs(3));
    let began = utc();
    trouble();
    let ended = utc();
    sleep(Duration::from_secs(2));
    let found = violations(node);
    found.iter().for_each(|one| println!("{one}"));
    let during = |one: &&Violation| one.start < ended && one.end > began;
    let longest = found.iter().filter(during).max_by_key(|one| one.violated_ms);
    let violation = *longest.expect("one is recorded");
    assert!(violation.violated_ms >= 2000, "of {TROUBLE:?}");
    violation
}

fn what_passes_the_scheduler_by_is_the_cause_of_a_violation(engine: EngineKind) {
    let node = node(engine);
    // The link's own queue, as an interface has one.
    let queue = format!("qdisc replace dev {UPLINK} root tbf rate {CAPACITY} burst 32k limit 100k\n");
    node.topology.node().tc(&queue).expect("tc takes it");
    let _streams = ["C1", "C2"].map(|label| sends(&node, label, MUCH));
    let violation = violation_by(&node, || {
        // A foreign filter goes first, and lets the host's datagrams out.
        let filter = format!(
            "filter add dev {UPLINK} egress pref 1 protocol ip u32 match ip protocol 17 0xff flowid 1:1\n"
        );
        node.topology.node().tc(&filter).expect("tc takes it");
        let past = sends(&node, "host", Load::Udp(BitRate::mbit(60)));
        sleep(TROUBLE);
        drop(past);
    });
    assert_eq!(violation.cause, Cause::HostTraffic);
}

#[test]
fn a_scheduler_that_somebody_keeps_altering_is_the_cause_of_a_violation() {
    if !can_run(&Need::TRAFFIC) {
        return;
    }
    let node = node(EngineKind::Htb);
    let _streams = ["C1", "C2"].map(|label| sends(&node, label, MUCH));
    let handle = node.class("C1").handle.expect("it has a class");
    let violation = violation_by(&node, || {
        let end = Instant::now() + TROUBLE;
        let slow =
            format!("class change dev {SCHEDULER} parent 1:1 classid {handle} htb rate 1mbit ceil 1mbit\n");
        while Instant::now() < end {
            node.topology.node().tc(&slow).expect("tc takes it");
            sleep(Duration::from_millis(10));
        }
    });
    assert_eq!(violation.cause, Cause::EngineFault);
    let class = &kernel::classes(node.topology.node())[&handle];
    assert_eq!(class.class.rate, BitRate::mbit(PROMISED), "it is as it should be again");
}
