//! Rules of congestion control: sent to the kernel, with the records of ended flows.

use std::{
    collections::{BTreeMap, VecDeque},
    time::SystemTime,
};

use weir_api::{
    Actor, AdviceRequest, ClassKind, CongestionMoved, CongestionQuery, CongestionRule as RuleView,
    CongestionView, Error, ErrorCode, EventKind,
};
use weir_bpf::{CongestionRecord, CongestionRule};
use weir_cc::{
    AdviceView, Advisor, Algorithm, Connection, Explained, FlowRecord, Origin, Rule, RuleClass, Rules, Stats,
    StatsView,
};
use weir_datapath::{
    congestion::{Congestion, SocketOwners, available, shapes, try_algorithm},
    engine::HOST,
};
use weir_units::chain;

use super::{Agent, datapath, discover::Discovery, effects::Effects, set_rules::SetRules};
use crate::reply::Reply;

/// The number of ended flows kept for `weir cc flows`.
const MAX_KEPT_FLOWS: usize = 1000;

/// The API's requests about congestion control.
#[derive(Debug)]
pub enum CongestionRequest {
    /// `GET /v1/congestion`.
    View(Reply<CongestionView>),
    /// `GET /v1/congestion/explain`.
    Explain(CongestionQuery, Reply<Result<Explained, Error>>),
    /// `GET /v1/congestion/flows`.
    Flows(Reply<Vec<FlowRecord>>),
    /// `GET /v1/congestion/stats`.
    Stats(Reply<StatsView>),
    /// `POST /v1/congestion/move`.
    Move(Reply<Result<CongestionMoved, Error>>),
    /// `POST /v1/congestion/rules`.
    Set(Rule, Actor, Reply<Result<RuleView, Error>>),
    /// `DELETE /v1/congestion/rules`.
    Unset(Rule, Actor, Reply<Result<CongestionView, Error>>),
    /// `GET /v1/congestion/advice`.
    Advice(Reply<Vec<AdviceView>>),
    /// `POST /v1/congestion/advice`.
    Advise(AdviceRequest, Actor, Reply<Result<Vec<AdviceView>, Error>>),
}

/// The rules, the programs that enforce them, and the counters.
#[derive(Default)]
pub(crate) struct CongestionControl {
    pub(super) rules: Rules,
    /// The rules set at run time, by hand and by trials.
    pub(super) set: SetRules,
    pub(super) advisor: Advisor,
    /// When the trials were last stored.
    pub(super) stored: Option<std::time::Instant>,
    pub(super) hold: Option<Congestion>,
    failure: Option<String>,
    /// Foreign changes undone since the start.
    repairs: u64,
    has_looked: bool,
    /// The classes whose sockets the rules distinguish.
    classes: Vec<RuleClass>,
    stats: Stats,
    recent: VecDeque<FlowRecord>,
    ended: u64,
    /// Ended connections that tried another algorithm.
    tried: u64,
}

/// The configured rules, if this kernel can enforce them.
pub(super) fn checked(rules: &[Rule]) -> Result<Rules, String> {
    together(rules, &[]).map_err(|e| format!("[[congestion]]: {e}"))
}

/// The configured rules together with those set at run time.
pub(super) fn together(config: &[Rule], set: &[Rule]) -> Result<Rules, String> {
    let rules = Rules::layered(config.to_vec(), set).map_err(|e| e.to_string())?;
    // The attempt loads a kernel module that was not loaded yet.
    let missing = |name: &Algorithm| try_algorithm(name.as_str()).is_err();
    let has: Vec<Algorithm> = available().iter().filter_map(|name| name.parse().ok()).collect();
    rules.check_available(missing, &has).map_err(|e| e.to_string())?;
    Ok(rules)
}

impl CongestionControl {
    pub(super) fn new(rules: Rules, set: SetRules, advisor: Advisor) -> CongestionControl {
        CongestionControl { rules, set, advisor, ..CongestionControl::default() }
    }

    /// Replaces the rules. They apply from the next discovery on.
    pub(super) fn set_rules(&mut self, rules: Rules) {
        self.rules = rules;
    }

    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    pub(super) fn repairs(&self) -> u64 {
        self.repairs
    }

    /// Remembers the result of a call to the kernel, and reports a new failure.
    pub(super) fn record_result(&mut self, result: Result<(), String>) -> Effects {
        let failure = result.err();
        let is_new = failure.is_some() && failure != self.failure;
        self.failure.clone_from(&failure);
        let why = failure.filter(|_| is_new);
        why.map_or(Effects::default(), |why| Effects::event(EventKind::NotEnforced, why))
    }

    /// Sends the agent's heartbeat, and checks that the program is still attached.
    pub(super) fn reconcile(&mut self) -> Effects {
        let Some(hold) = &mut self.hold else {
            // A failed start is tried again.
            return Effects::rediscover(self.is_needed());
        };
        match hold.beat().and_then(|()| hold.repair()) {
            Ok(false) => Effects::default(),
            Ok(true) => {
                self.repairs += 1;
                let what = "the program that chooses congestion control had been taken away";
                Effects::event(EventKind::Repaired, what)
            }
            Err(e) => self.record_result(Err(chain(&e))),
        }
    }

    /// Counts the flows that have ended. A failure is reported.
    fn count_flows(&mut self) -> Effects {
        match self.drain() {
            Ok(()) => Effects::default(),
            Err(why) => self.record_result(Err(why)),
        }
    }

    /// Whether the rules or trials need the kernel programs.
    pub(super) fn is_needed(&self) -> bool {
        !self.rules.is_empty() || self.advisor.is_active()
    }

    /// Makes the kernel apply the rules to the sockets of these classes.
    fn apply(&mut self, owners: &SocketOwners) -> Result<(), String> {
        // Leftovers of an earlier agent are looked for only once.
        let is_left = !std::mem::replace(&mut self.has_looked, true) && Congestion::is_left();
        if self.hold.is_none() && (self.is_needed() || is_left) {
            self.hold = Some(Congestion::open().map_err(|e| chain(&e))?);
        }
        let Some(hold) = &mut self.hold else { return Ok(()) };
        let rules: Vec<CongestionRule> = self.rules.compile(&self.classes).iter().map(shapes::rule).collect();
        let failures = hold.apply(owners, &rules).map_err(|e| chain(&e))?;
        if !self.is_needed() {
            self.remove()?;
        }
        failures.into_iter().next().map_or(Ok(()), Err)
    }

    /// Removes the programs from the kernel. Connections continue.
    pub(super) fn remove(&mut self) -> Result<(), String> {
        self.drain()?;
        self.hold.take().map_or(Ok(()), |hold| hold.remove().map_err(|e| chain(&e)))
    }

    /// Counts the flows that have ended.
    fn drain(&mut self) -> Result<(), String> {
        let Some(hold) = &self.hold else { return Ok(()) };
        // Before the records: a flow's beginning is counted before its end.
        for slot in self.advisor.slots() {
            let drawn = hold.drawn(u32::try_from(slot).unwrap_or(u32::MAX)).map_err(|e| chain(&e))?;
            self.advisor.set_drawn(slot, drawn);
        }
        let (records, generation) = (hold.records().map_err(|e| chain(&e))?, hold.generation());
        let since_epoch = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let now_ms = u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX);
        for record in records {
            if record.drawn {
                self.advisor.ended(record.turn);
            }
            if !record.is_established() {
                continue;
            }
            let Some(flow) = self.flow(&record, now_ms, generation) else { continue };
            self.ended += 1;
            self.tried += u64::from(flow.tried);
            self.advisor.observe(record.turn, record.tried, &flow);
            self.stats.add(self.rules.network_of(flow.to), &flow);
            if self.recent.len() == MAX_KEPT_FLOWS {
                self.recent.pop_front();
            }
            self.recent.push_back(flow);
        }
        self.limit_drawn()
    }

    /// Tells the kernel how many flows more may be drawn.
    fn limit_drawn(&mut self) -> Result<(), String> {
        let Some(hold) = &mut self.hold else { return Ok(()) };
        for slot in self.advisor.slots() {
            let most = self.advisor.most_drawn(slot);
            hold.limit_drawn(u32::try_from(slot).unwrap_or(u32::MAX), most).map_err(|e| chain(&e))?;
        }
        Ok(())
    }

    fn flow(&self, record: &CongestionRecord, ended_ms: u64, generation: u32) -> Option<FlowRecord> {
        let class = self.classes.iter().find(|class| class.handle == record.handle);
        shapes::flow(record, class.map(|class| class.name.clone()), ended_ms, generation)
    }

    pub(super) fn view(&self) -> CongestionView {
        let counts = self.hold.as_ref().and_then(|hold| hold.counts().ok()).unwrap_or_default();
        let entries = self.rules.compile(&self.classes);
        let rules = self.rules.as_slice().iter().zip(1..).map(|(rule, number)| {
            let about_all = rule.container.is_none() && rule.group.is_none();
            let handles: Vec<u32> = entries.iter().filter(|e| e.number == number).map(|e| e.handle).collect();
            let of = self.classes.iter().filter(|class| handles.contains(&class.handle));
            let problem = match (&rule.container, &rule.group) {
                (Some(name), _) if handles.is_empty() => Some(format!(
                    "there is no {name} whose sockets can be told apart now (it is reached as soon as it appears)"
                )),
                (None, Some(name)) if handles.is_empty() => Some(format!("group {name} has no members now")),
                _ => None,
            };
            RuleView {
                number,
                connections: rule.to_string(),
                action: rule.action().to_string(),
                classes: if about_all { Vec::new() } else { of.map(|class| class.name.clone()).collect() },
                problem,
                origin: rule.origin,
            }
        });
        CongestionView {
            rules: rules.collect(),
            available: available(),
            not_enforced_because: self.failure.clone(),
            set: counts.set,
            switched: counts.switched,
            moved: counts.moved,
            failed: counts.failed,
            ended: self.ended,
            tried: self.tried,
            lost: counts.lost,
            hinted: counts.hinted,
        }
    }

    fn explain(&self, connection: &Connection<'_>) -> Explained {
        Explained { not_enforced_because: self.unenforced().cloned(), ..self.rules.explain(connection) }
    }

    /// The reason if no rule is in force. A failure of a part leaves the rules in force elsewhere.
    fn unenforced(&self) -> Option<&String> {
        self.failure.as_ref().filter(|_| self.hold.is_none())
    }

    /// A rule that was just set, which may not be in force.
    pub(super) fn rule(&self, number: usize) -> Option<RuleView> {
        let rule = self.view().rules.into_iter().find(|rule| rule.number == number)?;
        let not_enforced = self.unenforced().map(|why| format!("not enforced: {why}"));
        Some(RuleView { problem: not_enforced.or(rule.problem), ..rule })
    }

    fn move_all(&mut self) -> Result<CongestionMoved, Error> {
        let engine = |why: String| Error::new(ErrorCode::Engine, why);
        let Some(hold) = &mut self.hold else {
            return Err(match &self.failure {
                Some(why) => engine(format!("cannot move connections, as no rule is in force: {why}")),
                None => {
                    let why = "there are no rules of congestion control: write [[congestion]]";
                    Error::new(ErrorCode::BadRequest, why)
                }
            });
        };
        let before = hold.counts().map_err(|e| engine(chain(&e)))?.moved;
        let failures = hold.move_all().map_err(|e| engine(chain(&e)))?;
        let after = hold.counts().map_err(|e| engine(chain(&e)))?.moved;
        Ok(CongestionMoved { moved: after - before, failures })
    }
}

impl Agent {
    /// Tells the kernel which sockets belong to which class, and their rules.
    pub(super) fn apply_congestion_rules(&mut self, discovery: &Discovery) {
        let mut owners = SocketOwners { host: datapath::handle(HOST), ..SocketOwners::default() };
        let netns: BTreeMap<&str, _> =
            discovery.owners.iter().map(|(key, netns)| (key.as_str(), netns)).collect();
        let mut classes = Vec::new();
        for (key, entry) in self.classes.entries() {
            let Some(minor) = entry.minor else { continue };
            let handle = datapath::handle(minor);
            if let Some(netns) = netns.get(key.as_str()) {
                owners.namespaces.push(((*netns).clone(), handle));
            } else if entry.class.cgroups.is_empty() && entry.class.kind != ClassKind::Host {
                continue;
            }
            for (id, at) in &entry.class.cgroups {
                owners.cgroups.insert(*id, handle);
                owners.levels |= at;
            }
            let (name, group) = (entry.class.name.clone(), entry.class.group.clone());
            classes.push(RuleClass { handle, name, key: key.to_string(), group });
        }
        self.congestion.classes = classes;
        let result = self.congestion.apply(&owners);
        let effects = self.congestion.record_result(result);
        self.follow_up(effects);
    }

    /// Reads the records of ended flows.
    pub(super) fn count_flows(&mut self) {
        let effects = self.congestion.count_flows();
        self.follow_up(effects);
    }

    pub(super) fn ask_congestion(&mut self, ask: CongestionRequest) {
        self.count_flows();
        // A failed send is ignored: the caller has gone.
        match ask {
            CongestionRequest::View(reply) => drop(reply.send(self.congestion.view())),
            CongestionRequest::Explain(query, reply) => drop(reply.send(self.explain_congestion(&query))),
            CongestionRequest::Flows(reply) => {
                drop(reply.send(self.congestion.recent.iter().cloned().collect()))
            }
            CongestionRequest::Stats(reply) => drop(reply.send(self.congestion.stats.view())),
            CongestionRequest::Move(reply) => drop(reply.send(self.congestion.move_all())),
            CongestionRequest::Set(rule, by, reply) => {
                let cause = "rule of congestion control";
                drop(reply.send(self.recorded(&by, cause, |agent| agent.set_rule(rule, Origin::Set))));
            }
            CongestionRequest::Unset(about, by, reply) => {
                let cause = "rule of congestion control";
                drop(reply.send(self.recorded(&by, cause, |agent| agent.unset_rule(&about))));
            }
            CongestionRequest::Advice(reply) => drop(reply.send(self.congestion.advisor.view())),
            CongestionRequest::Advise(request, by, reply) => {
                let cause = "advice of congestion control";
                drop(reply.send(self.recorded(&by, cause, |agent| agent.ask_advice(request))));
            }
        }
    }

    fn explain_congestion(&self, query: &CongestionQuery) -> Result<Explained, Error> {
        let mut connection =
            Connection { port: query.port, direction: query.direction, ..Connection::to(query.to) };
        if let Some(name) = &query.container {
            let key = self.classes.find(name)?;
            let claim = &self.classes.entries()[key].class;
            connection.container = Some([&claim.name, key.as_str()]);
            connection.group = claim.group.as_deref();
        }
        Ok(self.congestion.explain(&connection))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_that_the_kernel_does_not_enforce_is_told_as_such() {
        let rule = Rule { start: "bbr".parse().ok(), ..Rule::default() };
        let mut control =
            CongestionControl::new(Rules::new(vec![rule]).unwrap(), SetRules::default(), Advisor::default());
        let to = Connection::to("10.99.0.2".parse().unwrap());
        assert_eq!(control.explain(&to).not_enforced_because, None);
        assert_eq!(control.rule(1).unwrap().problem, None);
        let why = "cannot choose congestion control without cgroup v2";
        let _ = control.record_result(Err(why.to_owned()));
        let explained = control.explain(&to);
        assert_eq!((explained.number, explained.not_enforced_because.as_deref()), (Some(1), Some(why)));
        assert_eq!(control.rule(1).unwrap().problem, Some(format!("not enforced: {why}")));
    }

    #[test]
    fn moving_without_rules_differs_from_rules_that_are_not_in_force() {
        let mut control = CongestionControl::default();
        let told = control.move_all().expect_err("nothing is attached");
        assert!(
            told.code == ErrorCode::BadRequest && told.message.contains("there are no rules"),
            "{told:?}"
        );
        let _ = control.record_result(Err("no cgroup2 file system is mounted".to_owned()));
        let told = control.move_all().expect_err("nothing is attached");
        assert_eq!(told.code, ErrorCode::Engine);
        assert!(told.message.contains("no cgroup2 file system"), "{told:?}");
    }
}
