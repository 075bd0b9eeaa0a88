//! Random lives of a class table against a naive model. Each class has its policy or a reason, the oldest
//! promise wins, and no event is untrue.

use super::*;
use crate::agent::store::Promise;

/// Lives in a normal run. The variable `WEIR_BOOK_LIVES` sets another number.
const LIVES: u64 = 400;
const STEPS: usize = 25;
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// The database that an agent leaves behind.
#[derive(Default, Clone)]
struct Stored {
    set: SetLayers,
    minors: Minors,
    ledger: Ledger,
}

/// Minima in the order of their promises.
type Order = Vec<(String, u64)>;

struct Life {
    random: fastrand::Rng,
    config: Config,
    /// Present containers in the order of their arrival.
    here: Vec<DiscoveredClass>,
    agreed: BitRate,
    stored: Stored,
    table: ClassTable,
    order: Order,
    /// The promises of `order` that do not fit now.
    suspended: BTreeSet<String>,
    /// The last event about each minimum that is not promised.
    heard: BTreeMap<String, String>,
    log: Vec<String>,
}

fn mbit(random: &mut fastrand::Rng, most: u64) -> Option<BitRate> {
    random.bool().then(|| BitRate::mbit(random.u64(1..=most)))
}

fn random_config(random: &mut fastrand::Rng) -> (Option<Config>, String) {
    let mut text = format!("[link]\ndevice = \"eth0\"\ncapacity = \"{}mbit\"\n", random.u64(20..=100));
    let policy = |random: &mut fastrand::Rng, min: u64, max: u64| {
        let mut lines = String::new();
        if random.u8(..3) == 0 {
            lines += &format!("weight = {}\n", random.u32(1..9));
        }
        if random.u8(..3) == 0 {
            lines += &format!("min = \"{}mbit\"\n", random.u64(1..=min));
        }
        if random.u8(..4) == 0 {
            lines += &format!("max = \"{}mbit\"\n", random.u64(5..=max));
        }
        lines
    };
    for section in ["defaults", "host"] {
        if random.u8(..3) == 0 {
            text += &format!("[{section}]\n{}", policy(random, 5, 60));
        }
    }
    let has_group = random.bool();
    if has_group {
        text += &format!("[[group]]\nname = \"g\"\n{}", policy(random, 30, 60));
    }
    for name in NAMES.iter().filter(|_| random.u8(..3) == 0).collect::<Vec<_>>() {
        let group = if has_group && random.bool() { "group = \"g\"\n" } else { "" };
        let interface = if random.u8(..4) == 0 { "interface = \"veth-x\"\n" } else { "" };
        let interface = interface.replace('x', name);
        text += &format!("[[class]]\nname = \"{name}\"\n{group}{interface}{}", policy(random, 30, 60));
    }
    (crate::config::parse(&text, std::path::Path::new("test.toml")).ok(), text)
}

/// A policy in the naive reading: each value comes from the strongest origin that has one.
fn asked(config: &Config, set: &SetLayers, key: &ClassKey, claim: &DiscoveredClass) -> Layer {
    let class = config
        .classes
        .iter()
        .find(|c| c.is_about(claim.source.as_str(), &claim.name) || c.name == key.as_str());
    let own = match claim.kind {
        ClassKind::Host => vec![config.host.layer()],
        ClassKind::Default => vec![config.default.layer()],
        ClassKind::Group => {
            config.groups.iter().filter(|g| g.name == claim.name).map(|g| g.layer()).collect()
        }
        _ => class.map(|c| c.layer()).into_iter().chain([claim.label, config.defaults.layer()]).collect(),
    };
    let by_hand = set.get(key.as_str()).or_else(|| set.get(&claim.name)).copied();
    let all: Vec<Layer> = by_hand.into_iter().chain(own).collect();
    Layer {
        weight: all.iter().find_map(|l| l.weight),
        min: all.iter().find_map(|l| l.min),
        max: all.iter().find_map(|l| l.max),
    }
}

impl Life {
    fn new(seed: u64) -> Life {
        let mut random = fastrand::Rng::with_seed(seed);
        let config = loop {
            if let (Some(config), _) = random_config(&mut random) {
                break config;
            }
        };
        let table =
            ClassTable::new(config.clone(), SetLayers::new(), Minors::new(), Ledger::new(), BitRate::ZERO);
        let mut life = Life {
            random,
            config,
            here: Vec::new(),
            agreed: BitRate::ZERO,
            stored: Stored::default(),
            table,
            order: Order::new(),
            suspended: BTreeSet::new(),
            heard: BTreeMap::new(),
            log: Vec::new(),
        };
        life.discover(true);
        life
    }

    fn discovered(&self, docker: bool) -> Vec<DiscoveredClass> {
        let interfaces =
            self.config.classes.iter().filter(|class| class.is_static()).map(|class| DiscoveredClass {
                source: ClassSource::Config,
                kind: ClassKind::Interface,
                group: class.group.clone(),
                ..claim(&class.name)
            });
        self.here.iter().filter(|_| docker).cloned().chain(interfaces).collect()
    }

    fn discover(&mut self, docker: bool) {
        let discovered = self.discovered(docker);
        let changes = self.table.update(discovered, docker);
        self.check(changes, !docker);
    }

    fn step(&mut self) {
        match self.random.u8(..9) {
            0 | 1 => {
                let name = NAMES[self.random.usize(..NAMES.len())];
                if self.here.iter().all(|c| c.name != name) {
                    let (min, max) = (mbit(&mut self.random, 40), mbit(&mut self.random, 60));
                    let min = min.filter(|min| max.is_none_or(|max| *min <= max));
                    let weight = self.random.bool().then_some(Weight::ONE);
                    let group = self.random.bool().then(|| "g".to_owned());
                    let label = Layer { weight, min, max };
                    self.log.push(format!("arrives: {name} {label:?} {group:?}"));
                    self.here.push(DiscoveredClass { label, group, ..claim(name) });
                }
                self.discover(true);
            }
            2 if !self.here.is_empty() => {
                let gone = self.here.remove(self.random.usize(..self.here.len()));
                self.log.push(format!("leaves: {}", gone.name));
                self.discover(true);
            }
            3 => {
                let (config, text) = random_config(&mut self.random);
                self.log.push(format!("reload ({}): {text}", config.is_some()));
                if let Some(config) = config {
                    self.config = config.clone();
                    self.table.reconfigure(config);
                    let changes = self.table.promise_changes();
                    self.check(changes, false);
                    self.discover(true);
                }
            }
            4 | 5 => self.set(),
            6 => {
                self.agreed = BitRate::mbit(self.random.u64(..30));
                self.log.push(format!("agreed: {}", self.agreed));
                self.table.agree(Vec::new(), self.agreed);
                let changes = self.table.promise_changes();
                self.check(changes, false);
            }
            _ => self.restart(),
        }
    }

    fn set(&mut self) {
        let names = ["a", "b", "c", "d", "e", "g", "host"];
        let name = names[self.random.usize(..names.len())];
        let planned = if self.random.u8(..3) == 0 {
            self.log.push(format!("unset {name}"));
            self.table.plan_unset(name)
        } else {
            let min = self.random.bool().then(|| mbit(&mut self.random, 40));
            let max = self.random.bool().then(|| mbit(&mut self.random, 60));
            let change = PolicyChange { name: name.to_owned(), min, max, ..PolicyChange::default() };
            self.log.push(format!("set {change:?}"));
            self.table.plan(&SetPolicies { changes: vec![change], allow_absent: true })
        };
        let held: Vec<ClassKey> = self.table.ledger().keys().cloned().collect();
        let held = held.into_iter().filter(|key| !self.heard.contains_key(key.as_str())).collect::<Vec<_>>();
        let Ok(set) = planned else {
            self.log.push("refused".to_owned());
            return self.check(Vec::new(), false);
        };
        // A policy and its promise are stored at once, before they are applied. A crash then is a restart.
        let ledger = self.table.ledger_after(&set);
        let stored = Stored { set: set.clone(), ledger, ..self.stored.clone() };
        self.table.commit(set);
        assert_eq!(*self.table.ledger(), stored.ledger, "stored first: {}", self.told());
        let changes = self.table.promise_changes();
        self.check(changes, false);
        for key in held {
            let entry = self.table.entries().get(&key);
            let lost = entry.and_then(|e| e.unpromised.as_ref().filter(|u| u.origin != Origin::Label));
            assert!(lost.is_none(), "a request took a promise from {key}: {}", self.told());
        }
        if self.random.u8(..5) == 0 {
            self.stored = stored;
            self.restart();
        }
    }

    /// The agent ends in any way. Only the stored state survives.
    fn restart(&mut self) {
        self.log.push("restart".to_owned());
        let Stored { set, minors, ledger } = self.stored.clone();
        if self.random.u8(..4) == 0
            && let (Some(config), text) = random_config(&mut self.random)
        {
            self.log.push(format!("with another file: {text}"));
            self.config = config;
        }
        if self.random.u8(..3) == 0 && !self.here.is_empty() {
            let gone = self.here.remove(self.random.usize(..self.here.len()));
            self.log.push(format!("without {}", gone.name));
        }
        self.table = ClassTable::new(self.config.clone(), set, minors, ledger, self.agreed);
        self.heard.clear();
        // A discovery finds the containers in any order.
        self.random.shuffle(&mut self.here);
        if self.random.bool() {
            self.log.push("docker is late".to_owned());
            self.discover(false);
        }
        self.discover(true);
    }

    /// Computes the minima that the model promises.
    fn model(&mut self, is_late: bool) {
        struct Asks {
            min: u64,
            turn: (u8, bool, usize, String),
        }
        let mut asks: BTreeMap<String, Asks> = BTreeMap::new();
        for (key, entry) in self.table.entries() {
            let layer = asked(&self.config, self.table.set_layers(), key, &entry.class);
            let (Some(min), false) = (layer.min, entry.class.kind == ClassKind::Control) else { continue };
            if layer.max.is_some_and(|max| min > max) {
                continue;
            }
            let arrival = self.table.arrivals.iter().position(|other| other == key).unwrap_or(usize::MAX);
            let rank = rank(&self.config, &entry.class, entry.effective.origins[1]);
            let turn = (rank, entry.class.kind != ClassKind::Group, arrival, key.to_string());
            asks.insert(key.to_string(), Asks { min: min.0, turn });
        }
        let room = self.config.link.reservable.of(self.config.link.capacity).saturating_sub(self.agreed).0;
        let entries = self.table.entries();
        // Counts all promises from the beginning each time.
        let fits = |order: &Order| {
            let mut of_group: BTreeMap<&str, u64> = BTreeMap::new();
            let (mut link, mut bought) = (0, BTreeMap::new());
            for (key, min) in order {
                let claim = entries.get(key.as_str()).map(|e| &e.class);
                match claim {
                    Some(claim) if claim.kind == ClassKind::Group => {
                        bought.insert(claim.name.as_str(), *min);
                    }
                    Some(DiscoveredClass { group: Some(group), .. }) => {
                        *of_group.entry(group).or_default() += min
                    }
                    _ => link += min,
                }
            }
            for (group, sum) in of_group {
                let max = entries[format!("group:{group}").as_str()].effective.policy.max();
                match bought.get(group) {
                    Some(min) if sum > *min => return false,
                    Some(_) => {}
                    None if max.is_some_and(|max| sum > max.0) => return false,
                    None => link += sum,
                }
            }
            link + bought.values().sum::<u64>() <= room
        };
        let mut before = self.order.clone();
        for i in 0..before.len() {
            let key = before[i].0.clone();
            let Some((source, name)) = key.split_once(':').filter(|_| !asks.contains_key(&key)) else {
                continue;
            };
            let others: &[&str] = match source {
                "absent" => &["config", "docker"],
                "config" | "docker" => &["absent"],
                _ => continue,
            };
            let mut others = others.iter().map(|source| format!("{source}:{name}"));
            let free = |new: &String| asks.contains_key(new) && before.iter().all(|(key, _)| key != new);
            if let Some(new) = others.find(free) {
                if self.suspended.remove(&key) {
                    self.suspended.insert(new.clone());
                }
                before[i].0 = new;
            }
        }
        let mut order = Order::new();
        let mut ghosts = Order::new();
        let mut suspended = Order::new();
        // Those in force come first, then those that may come back. Both go by age.
        let (back, kept): (Order, Order) =
            before.iter().cloned().partition(|(key, _)| self.suspended.contains(key));
        let is_back = kept.len();
        for (i, (key, min)) in kept.into_iter().chain(back).enumerate() {
            let min = match asks.get(&key) {
                Some(asks) => asks.min.min(min),
                None if is_late && key.starts_with("docker:") && i >= is_back => {
                    suspended.push((key, min));
                    continue;
                }
                None if is_late && key.starts_with("docker:") => min,
                None => continue,
            };
            let mut with: Order = order.clone();
            with.push((key.clone(), min));
            if fits(&with) {
                order = with;
            } else if !asks.contains_key(&key) {
                ghosts.push((key, min));
            } else {
                suspended.push((key, min));
            }
        }
        let mut turns: Vec<(&String, &Asks)> = asks.iter().collect();
        turns.sort_by(|a, b| a.1.turn.cmp(&b.1.turn));
        let mut newcomers = Vec::new();
        for (key, asks) in turns {
            let held = order.iter().find(|(other, _)| other == key).map_or(0, |(_, min)| *min);
            let mut with: Order = order.iter().filter(|(other, _)| other != key).cloned().collect();
            with.push((key.clone(), asks.min));
            if held < asks.min && fits(&with) {
                suspended.retain(|(other, _)| other != key);
                order = with;
                newcomers.push(key.clone());
            }
        }
        self.suspended = suspended.iter().map(|(key, _)| key.clone()).collect();
        order.extend(suspended);
        // A promise keeps its place of before; a newcomer's place is the last.
        let age = |key: &String| match newcomers.iter().position(|new| new == key) {
            Some(turn) => before.len() + turn,
            None => before.iter().position(|(other, _)| other == key).unwrap_or(usize::MAX),
        };
        order.sort_by_key(|(key, _)| age(key));
        order.extend(ghosts);
        self.order = order;
    }

    fn check(&mut self, changes: Vec<Change>, is_late: bool) {
        self.model(is_late);
        let mut made: Vec<(&ClassKey, &Promise)> = self.table.ledger().iter().collect();
        made.sort_by_key(|(_, promise)| promise.since);
        let mut made: Order =
            made.into_iter().map(|(key, promise)| (key.to_string(), promise.min.0)).collect();
        let mut order = self.order.clone();
        if is_late {
            // A promise kept without room has no defined place in the model.
            made.sort();
            order.sort();
        }
        assert_eq!(made, order, "{}", self.told());
        let is_suspended = self.table.ledger().iter().filter(|(_, promise)| promise.is_suspended);
        let suspended: BTreeSet<String> = is_suspended.map(|(key, _)| key.to_string()).collect();
        assert_eq!(suspended, self.suspended, "{}", self.told());
        if is_late {
            let mut ages: Vec<(&ClassKey, &Promise)> = self.table.ledger().iter().collect();
            ages.sort_by_key(|(_, promise)| promise.since);
            self.order = ages.into_iter().map(|(key, promise)| (key.to_string(), promise.min.0)).collect();
        }
        for claim in &self.table.found {
            let entry = self.table.entries().get(&claim.key());
            assert!(entry.is_some_and(|e| e.minor.is_some()), "{} has no class: {}", claim.name, self.told());
        }
        for (key, entry) in self.table.entries() {
            if entry.class.kind == ClassKind::Control {
                continue;
            }
            let layer = asked(&self.config, self.table.set_layers(), key, &entry.class);
            let policy = entry.effective.policy;
            assert_eq!(
                (policy.weight(), policy.max()),
                (layer.weight.unwrap_or_default(), layer.max),
                "{key} lost weight or maximum: {}",
                self.told()
            );
            assert_eq!(
                policy.min() == layer.min,
                entry.unpromised.is_none(),
                "{key} has {policy:?} of {layer:?}, and says {:?}: {}",
                entry.unpromised,
                self.told()
            );
        }
        for change in changes {
            match change {
                Change::Added(key) | Change::AskedAnew(key) => {
                    assert!(self.table.entries().contains_key(&key));
                }
                Change::Removed(key) => {
                    assert!(self.table.entries().get(&key).is_none_or(|e| e.minor.is_none()));
                }
                Change::Unpromised { key, why } => drop(self.heard.insert(key.to_string(), why)),
                Change::Promised { key, min } => {
                    assert!(self.heard.remove(key.as_str()).is_some(), "{key} was promised: {}", self.told());
                    assert_eq!(self.table.entries()[&key].effective.policy.min(), Some(min));
                }
            }
        }
        // Absent classes, and classes without a minimum, get no events.
        self.heard.retain(|key, _| {
            self.table
                .entries()
                .get(key.as_str())
                .is_some_and(|e| e.unpromised.is_some() || e.effective.policy.min().is_some())
        });
        let silent = |key: &&ClassKey| {
            self.table.entries()[*key].unpromised.is_some() != self.heard.contains_key(key.as_str())
        };
        let wrong: Vec<&ClassKey> = self.table.entries().keys().filter(|key| silent(key)).collect();
        assert!(wrong.is_empty(), "of {wrong:?} events tell otherwise: {}", self.told());
        // The agent stores the state before it writes to the kernel.
        self.stored = Stored {
            set: self.table.set_layers().clone(),
            minors: self.table.minors().clone(),
            ledger: self.table.ledger().clone(),
        };
    }

    fn told(&self) -> String {
        self.log.join("\n")
    }
}

#[test]
fn classes_of_random_lives_have_their_policy_or_a_reason() {
    let lives = std::env::var("WEIR_BOOK_LIVES").map_or(LIVES, |n| n.parse().expect("a number of lives"));
    let mut unpromised = 0;
    for seed in 0..lives {
        let mut life = Life::new(seed);
        life.log.push(format!("seed {seed}"));
        for _ in 0..STEPS {
            life.step();
            unpromised += life.table.entries().values().filter(|e| e.unpromised.is_some()).count();
        }
    }
    println!("{lives} lives of {STEPS} steps; {unpromised} times a minimum was not promised");
    assert!(unpromised > lives as usize, "the lives are too easy");
}
