//! The flows, and the learner that observes them.

use std::{
    sync::{
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use ipnet::IpNet;
use weir_cc::{Advisor, Algorithm, Decision, Origin, Rule, RuleClass, Rules, rule_for};
use weir_datapath::congestion::{Congestion, SocketOwners, shapes, system_default};
use weir_discovery::NetnsRef;
use weir_netlab::{interrupt, stats::SplitMix};

use super::{
    report::{FlowEnd, LinkReport, Phase, Times, TrialEvent},
    scenario::{NamedLink, Scenario},
};

use crate::edge_cloud::{
    network::{Medium, Network},
    scenario::Place,
    transfer::{Server, Transfer, carry},
};

/// The clients' class.
const CLIENTS: u32 = 1;
/// Time between two reads of ended flows, as in the agent.
const TICK: Duration = Duration::from_millis(100);
/// Flows that are not counted. A guest's first ten seconds are slower on a link with losses.
const WARM_UP: u64 = 1_000;
/// Stack size of a thread that only waits for its flow, bytes.
const STACK: usize = 128 << 10;

/// Measures on one link, in this kernel.
///
/// # Errors
/// If the link cannot be built, a program cannot be loaded, a flow fails, or on Ctrl-C.
pub(super) fn measure(scenario: &Scenario, named: &NamedLink, seed: u64) -> Result<LinkReport> {
    let network = Network::build(Medium::Netem, None, named.link, named.link)?;
    let address = Network::server_address(Place::Cloud);
    let _server = Server::start(network.server(Place::Cloud), address)?;
    let enough = |most: u64| move |begun: u64| begun < most;
    let offered = |seed| FlowArrivals::new(scenario, seed);
    flows(&network, offered(seed + 2), &enough(WARM_UP), &mut || Ok(true))?;
    let before = flows(&network, offered(seed), &enough(scenario.beside), &mut || Ok(true))?;

    let mut learner = Learner::new(scenario, &network)?;
    let (begin, first) = (Instant::now(), learner.rule());
    let learning = {
        let seen = AtomicU64::new(0);
        let more = |begun| {
            seen.store(begun, Ordering::Relaxed);
            begun < scenario.flows
        };
        flows(&network, offered(seed + 1), &more, &mut || {
            learner.tick(weir_units::Instant(begin.elapsed()), seen.load(Ordering::Relaxed))?;
            Ok(!learner.is_settled())
        })?
    };
    let seconds = begin.elapsed().as_secs_f64();
    learner.end()?;
    let mut phases = vec![(Phase::Before, before), (Phase::Learning, learning)];
    if learner.rule() != first {
        phases.push((
            Phase::After,
            flows(&network, offered(seed), &enough(scenario.beside), &mut || Ok(true))?,
        ));
    }
    let times = phases.iter().flat_map(|(phase, ended)| Times::all(*phase, ended)).collect();
    let view = learner.advisor.view().into_iter().next().context("there is a trial")?;
    let report = LinkReport {
        name: named.name.clone(),
        stage: view.stage,
        verdict: view.verdict,
        before: first,
        after: learner.rule(),
        seconds,
        happened: learner.happened.clone(),
        times,
    };
    learner.hold.remove().context("cannot take the programs away")?;
    Ok(report)
}

/// The starts and the volumes of flows, drawn from a seed.
struct FlowArrivals {
    rng: SplitMix,
    per_second: f64,
    least: f64,
    most: f64,
    at: f64,
}

impl FlowArrivals {
    fn new(scenario: &Scenario, seed: u64) -> FlowArrivals {
        let [least, most] = scenario.volume.map(|bytes| (bytes.0 as f64).ln());
        // Without a first step, neighbouring seeds give nearby positions in SplitMix's sequence.
        let rng = SplitMix::new(SplitMix::new(seed).next_u64());
        FlowArrivals { rng, per_second: scenario.per_second, least, most, at: 0.0 }
    }

    /// A random number above 0 and at most 1.
    fn unit(&mut self) -> f64 {
        ((self.rng.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}

impl Iterator for FlowArrivals {
    /// The start, counted from the first one, and the bytes.
    type Item = (Duration, u64);
    fn next(&mut self) -> Option<(Duration, u64)> {
        self.at -= self.unit().ln() / self.per_second;
        let volume = (self.least + (self.most - self.least) * self.unit()).exp().round() as u64;
        Some((Duration::from_secs_f64(self.at), volume.max(1)))
    }
}

/// Sends flows up from the clients while `more` of their number is true. `tick` is called meanwhile, and can
/// end it.
fn flows(
    network: &Network,
    offered: FlowArrivals,
    more: &(dyn Fn(u64) -> bool + Sync),
    tick: &mut dyn FnMut() -> Result<bool>,
) -> Result<Vec<FlowEnd>> {
    let goes_on = AtomicBool::new(true);
    let (sender, ended) = channel();
    thread::scope(|scope| {
        let going = |begun: u64| goes_on.load(Ordering::Relaxed) && more(begun);
        let begins = scope.spawn(move || network.clients().within(|| begin_all(offered, &going, &sender)));
        let mut ticked = Ok(true);
        while matches!(ticked, Ok(true)) && !begins.is_finished() {
            ticked = interrupt::sleep(TICK).map_err(Into::into).and_then(|()| tick());
        }
        goes_on.store(false, Ordering::Relaxed);
        begins.join().unwrap_or_else(|_| Err(anyhow!("the thread that begins flows panicked")))??;
        ticked
    })?;
    ended.into_iter().collect()
}

fn begin_all(
    offered: FlowArrivals,
    going: &dyn Fn(u64) -> bool,
    ended: &Sender<Result<FlowEnd>>,
) -> Result<()> {
    let begin = Instant::now();
    thread::scope(|scope| {
        for (nth, (at, up)) in (0..).zip(offered) {
            if !going(nth) {
                return Ok(());
            }
            interrupt::sleep_until(begin + at)?;
            let ended = ended.clone();
            let flow = move || {
                let transfer = Transfer { up, down: 0, up_by: None, down_by: None };
                let took = carry(Network::server_address(Place::Cloud), transfer);
                let took = took.with_context(|| format!("flow {nth} of {up} bytes"));
                // The channel is closed if another flow has failed.
                let _ = ended.send(took.map(|took| (up, took.as_secs_f64())));
            };
            thread::Builder::new()
                .stack_size(STACK)
                .spawn_scoped(scope, flow)
                .context("a thread for a flow")?;
        }
        Ok(())
    })
}

/// Trials and rules for the clients' flows, as in the agent.
struct Learner {
    hold: Congestion,
    owners: SocketOwners,
    rules: Rules,
    advisor: Advisor,
    system: Algorithm,
    rng: SplitMix,
    stage: String,
    happened: Vec<TrialEvent>,
}

impl Learner {
    fn new(scenario: &Scenario, network: &Network) -> Result<Learner> {
        let system = system_default().context("this kernel does not tell its congestion control")?;
        let clients = NetnsRef::at(&network.clients().path())?;
        let owners = SocketOwners { namespaces: vec![(clients, CLIENTS)], ..SocketOwners::default() };
        let settings = scenario.settings(Network::server_address(Place::Cloud))?;
        let mut learner = Learner {
            hold: Congestion::open()?,
            owners,
            rules: Rules::default(),
            advisor: Advisor::new(Some(settings), Default::default(), 0),
            system: system.parse()?,
            rng: SplitMix::new(1),
            stage: String::new(),
            happened: Vec::new(),
        };
        learner.put_in_force(Vec::new())?;
        learner.advisor.apply(None, true);
        Ok(learner)
    }

    /// The action of the flows' rule; without a rule, the system's algorithm.
    fn rule(&self) -> String {
        self.rules
            .as_slice()
            .first()
            .map_or_else(|| self.system.to_string(), |rule| rule.action().to_string())
    }

    fn is_settled(&self) -> bool {
        self.advisor.trials().values().any(|trial| trial.settled().is_some())
    }

    fn put_in_force(&mut self, rules: Vec<Rule>) -> Result<()> {
        self.rules = Rules::new(rules)?;
        let name = "clients".to_owned();
        let class = RuleClass { handle: CLIENTS, key: format!("netns:{name}"), name, group: None };
        let table: Vec<_> = self.rules.compile(&[class]).iter().map(shapes::rule).collect();
        let failures = self.hold.apply(&self.owners, &table)?;
        ensure!(failures.is_empty(), "{}", failures.join("; "));
        Ok(())
    }

    /// Reads ended flows, and ends turns that are due.
    fn tick(&mut self, now: weir_units::Instant, flows: u64) -> Result<()> {
        let generation = self.hold.generation();
        for slot in self.advisor.slots() {
            self.advisor.set_drawn(slot, self.hold.drawn(u32::try_from(slot)?)?);
        }
        for record in self.hold.records()? {
            if record.drawn {
                self.advisor.ended(record.turn);
            }
            if !record.is_established() {
                continue;
            }
            if let Some(flow) = shapes::flow(&record, None, 0, generation) {
                self.advisor.observe(record.turn, record.tried, &flow);
            }
        }
        for slot in self.advisor.slots() {
            self.hold.limit_drawn(u32::try_from(slot)?, self.advisor.most_drawn(slot))?;
        }
        let (rng, rules) = (&mut self.rng, &self.rules);
        let Some(decisions) = self.advisor.turn(now, rules, &self.system, || rng.next_u64()) else {
            return Ok(());
        };
        // A trial exists from the first turn on.
        self.advisor.apply(None, true);
        let mut happened = |what: String| {
            let seconds = now.0.as_secs_f64();
            self.happened.push(TrialEvent { flows, seconds, what });
        };
        let stage = self.advisor.trials().values().next().map_or("", |trial| trial.stage());
        if stage != self.stage {
            happened(stage.to_owned());
            self.stage = stage.to_owned();
        }
        let mut change = None;
        for (to, decision) in decisions {
            let (what, rule) = told(to, decision);
            happened(what);
            change = rule.or(change);
        }
        let trials: Vec<_> = self.advisor.assignments().iter().map(shapes::trial).collect();
        self.hold.try_out(&trials)?;
        change.map_or(Ok(()), |rules| self.put_in_force(rules))
    }

    /// Ends all trials.
    fn end(&mut self) -> Result<()> {
        Ok(self.hold.try_out(&[])?)
    }
}

/// A decision in words, and the new rules if it changes them.
fn told(to: IpNet, decision: Decision) -> (String, Option<Vec<Rule>>) {
    match decision {
        Decision::Dropped { action, why } => (format!("{action} is tried no more: {why}"), None),
        Decision::Raising { action, why } => (format!("more and more flows use {action}: {why}"), None),
        Decision::Keep { action, why } => (format!("keeps {action}: {why}"), None),
        Decision::Change { action, why } => {
            let rule = Rule { origin: Origin::Advice, ..rule_for(to, Some(&action)) };
            (format!("{action} becomes the rule: {why}"), Some(vec![rule]))
        }
        Decision::TakeBack { action, why } => (format!("{action} is taken back: {why}"), Some(Vec::new())),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::report::tests::scenario, *};

    #[test]
    fn flows_have_the_asked_rate_and_volumes_of_all_sizes_by_seed() {
        let scenario = scenario();
        let all: Vec<_> = FlowArrivals::new(&scenario, 1).take(20_000).collect();
        assert_eq!(all, FlowArrivals::new(&scenario, 1).take(20_000).collect::<Vec<_>>());
        assert_ne!(all[0], FlowArrivals::new(&scenario, 2).next().unwrap());
        let rate = 20_000.0 / all.last().unwrap().0.as_secs_f64();
        // The standard error is 0.7 %.
        assert!((rate / scenario.per_second - 1.0).abs() < 0.03, "{rate}");
        let [least, most] = scenario.volume.map(|bytes| bytes.0);
        assert!(all.iter().all(|(_, bytes)| (least..=most).contains(bytes)));
        let middle = ((least as f64).ln() + (most as f64).ln()).exp().sqrt();
        let below = all.iter().filter(|(_, bytes)| (*bytes as f64) < middle).count();
        assert!((9_700..10_300).contains(&below), "{below}");
    }

    #[test]
    fn a_change_is_a_rule_of_advice_and_what_is_taken_back_is_none() {
        let to: IpNet = "192.0.2.1/32".parse().unwrap();
        let (action, why) = (weir_cc::Action::default(), "it is faster".to_owned());
        let (what, rules) = told(to, Decision::Change { action: action.clone(), why: why.clone() });
        let rules = rules.unwrap();
        assert_eq!(
            (rules[0].action(), rules[0].to, rules[0].origin),
            (action.clone(), Some(to), Origin::Advice)
        );
        assert!(what.ends_with("becomes the rule: it is faster"), "{what}");
        assert_eq!(
            told(to, Decision::TakeBack { action: action.clone(), why: why.clone() }).1,
            Some(Vec::new())
        );
        assert_eq!(told(to, Decision::Keep { action, why }).1, None);
    }
}
