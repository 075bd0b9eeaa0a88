//! The agent dies, or another process takes the scheduler away: traffic flows, and the limits are
//! restored or their loss is reported within a second.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use weir_netlab::{
    topology::{Family, Spec},
    traffic::Load,
};
use weir_netns_tests::{
    CAPACITY, Division, EngineBounds, EngineKind, FLOOD, Node, Record, Senders, Share, Slack, containers,
    for_each_engine, judge,
    kernel::{SCHEDULER, TAP, index_of},
    measure_once, party, wait_within,
};

for_each_engine!(
    a_killed_agent_leaves_the_shares_and_the_next_takes_over,
    a_scheduler_taken_away_is_restored_or_missed_within_a_second
);

/// The engine that has one.
mod forwarder {
    use super::EngineKind;
    use weir_netns_tests::EngineBounds;

    #[test]
    fn killed_forwarder_lets_traffic_flow_and_is_started_again() {
        if EngineKind::User.is_here() {
            super::killed_forwarder_lets_traffic_flow_and_is_started_again(EngineKind::User);
        }
    }
}

const SECOND: Duration = Duration::from_secs(1);
const WINDOW: Duration = Duration::from_millis(2000);
/// The longest silence of a flow that the agent's end or start causes.
const TENTH: Duration = Duration::from_millis(100);
/// The same while the scheduler is gone. Until its repair no one holds the floods back, and a flow
/// beside them has been seen to be silent for 0.11 s.
const TWO_TENTHS: Duration = Duration::from_millis(200);

struct Busy {
    node: Node,
    engine: EngineKind,
    senders: Senders,
    division: Division,
    expected: Vec<Share>,
}

impl Busy {
    fn start(engine: EngineKind) -> Busy {
        let mut node = Node::build(&Spec { containers: containers(4), tso: false, ..Spec::default() });
        let config = node.config().engine(engine);
        node.start(&config);
        let senders = Senders::of(&node, engine);
        let division = Division::of([
            party("C1").min(30).sends(FLOOD),
            party("C2").weight(2).sends(Load::Tcp),
            party("C3").weight(3).max(15).sends(FLOOD),
            party("C4").weight(3).sends(FLOOD),
        ]);
        node.client().set(&division.to_changes(&node)).expect("it fits");
        let expected = division.expected(CAPACITY, Family::V4);
        senders.follow(&division, &expected);
        sleep(engine.settles() + Duration::from_millis(1500));
        let busy = Busy { node, engine, senders, division, expected };
        busy.shares_hold("at first");
        busy
    }

    fn shares_hold(&self, what: &str) {
        let what = format!("{} {what}", self.engine);
        let rules = (WINDOW, self.engine.tolerance(false), Slack::None);
        let judged = measure_once(
            || judge(&what, &self.division, &self.senders.goodputs(WINDOW), &self.expected, rules),
            |judged| judged.holds(self.engine),
        );
        assert!(judged.holds(self.engine), "{what}: {judged:?}");
    }

    /// The one of each container's streams that sends, looked at after each interval.
    fn record(&self, interval: Duration) -> Record {
        let (tcp, udp) = (self.senders.connections(), self.senders.datagrams());
        Record::every(interval, &[udp[0], tcp[1], udp[2], udp[3]])
    }

    /// `lossless`: nothing was lost, so that TCP has nothing to wait for either; else it may rest
    /// for its time-out, 0.2 s.
    fn assert_flows(&self, what: &str, record: &Record, from: Instant, lossless: bool) {
        for (i, party) in self.division.parties().iter().enumerate() {
            let lowest = record.lowest(i, from, Instant::now());
            println!("{} {what}: {} at its lowest {lowest:.2} Mbit/s", self.engine, party.label());
            let may_rest = party.load() == Load::Tcp && !lossless;
            let flows = lowest > 0.0 || may_rest;
            assert!(flows, "{what}: nothing of {} arrived between two looks", party.label());
        }
    }
}

fn a_killed_agent_leaves_the_shares_and_the_next_takes_over(engine: EngineKind) {
    let mut busy = Busy::start(engine);
    let record = busy.record(TENTH);
    let killed = Instant::now();
    busy.node.agent().kill();
    busy.shares_hold("without an agent");
    busy.assert_flows("without an agent", &record, killed, engine.holds_back());
    let back = Instant::now();
    busy.node.restart();
    sleep(Duration::from_millis(500));
    busy.assert_flows("taken over", &record, back, engine.holds_back());
    busy.shares_hold("taken over");
    let status = busy.node.client().status().expect("it answers");
    assert_eq!(status.engine, engine.name());
    assert_eq!(status.repairs, 0, "the next agent found nothing altered: {}", busy.node.weir(&["events"]));
}

fn a_scheduler_taken_away_is_restored_or_missed_within_a_second(engine: EngineKind) {
    if engine == EngineKind::Pacing {
        println!("{engine} has no scheduler to take away");
        return;
    }
    let busy = Busy::start(engine);
    let node = &busy.node;
    // Its qdisc, or the way to user space.
    let delete: &[&str] = match engine {
        EngineKind::User => &["ip", "link", "del", TAP],
        _ => &["tc", "qdisc", "del", "dev", SCHEDULER, "root"],
    };
    let scheduler = || {
        if engine == EngineKind::User {
            return index_of(node.topology.node(), TAP).map(|_| format!("device {TAP}"));
        }
        let text = node.sh(&["tc", "qdisc", "show", "dev", SCHEDULER]);
        text.lines().find(|line| line.contains(" root ")).map(str::to_owned)
    };
    let before = scheduler().unwrap_or_else(|| panic!("{engine} has no scheduler at {SCHEDULER}"));
    let repairs = node.client().status().expect("it answers").repairs;
    let record = busy.record(TWO_TENTHS);
    let gone = Instant::now();
    node.sh(delete);
    let kind = |line: &str| line.split(' ').nth(1).map(str::to_owned);
    let mut said = "missed";
    let took = wait_within(SECOND, || {
        let status = node.client().status().expect("it answers");
        if status.repairs > repairs && scheduler().is_some_and(|now| kind(&now) == kind(&before)) {
            said = "restored";
            return Ok(());
        }
        let classes = node.client().classes().expect("it answers");
        let is_told = !status.warnings.is_empty() || classes.iter().any(|class| !class.enforced);
        if is_told { Ok(()) } else { Err(scheduler()) }
    });
    let took = took.unwrap_or_else(|late| panic!("neither restored nor missed after {SECOND:?}: {late}"));
    println!("{engine}: the scheduler deleted by hand is {said} after {took:?}");
    sleep(SECOND);
    // Its backlog went with it.
    busy.assert_flows("meanwhile", &record, gone, false);
    if said == "restored" {
        busy.shares_hold("restored");
    }
}

fn killed_forwarder_lets_traffic_flow_and_is_started_again(engine: EngineKind) {
    let busy = Busy::start(engine);
    let node = &busy.node;
    let repairs = node.client().status().expect("it answers").repairs;
    let record = busy.record(TWO_TENTHS);
    let (killed, gone) = (node.forwarder().expect("it runs"), Instant::now());
    kill(Pid::from_raw(killed.cast_signed()), Signal::SIGKILL).expect("it is there");
    let took = wait_within(SECOND, || match node.forwarder() {
        Some(pid) if pid != killed && node.client().status().is_ok_and(|s| s.repairs > repairs) => Ok(()),
        _ => Err(()),
    });
    let took =
        took.unwrap_or_else(|late| panic!("no forwarder has taken its place after {SECOND:?}: {late}"));
    println!("forwarder {killed} is killed, and another one is in its place after {took:?}");
    sleep(SECOND);
    // Waiting packets are lost.
    busy.assert_flows("meanwhile", &record, gone, false);
    busy.shares_hold("again");
}
