use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{Action, Algorithm, Direction, Origin, Rule, RuleError};

/// Rules at most.
pub const MAX_RULES: usize = 1024;

/// The rules cannot be used together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RulesError {
    /// One of them, counted from 1.
    #[error("rule {number} ({rule}): {why}")]
    Rule {
        /// Which.
        number: usize,
        /// The connections.
        rule: String,
        /// The fault.
        why: RuleError,
    },
    /// Two about the same connections, counted from 1.
    #[error("rules {first} and {second} are about the same connections, {rule}: leave one out")]
    Same {
        /// The earlier one.
        first: usize,
        /// The later one.
        second: usize,
        /// The connections.
        rule: String,
    },
    /// Too many.
    #[error("there are {found} rules, at most {MAX_RULES}")]
    Many {
        /// How many.
        found: usize,
    },
}

/// A rule names an algorithm that the kernel does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rule {number} ({rule}): this kernel has no congestion control {algorithm}; it has {known}")]
pub struct Unavailable {
    /// The rule, from 1.
    pub number: usize,
    /// The connections.
    pub rule: String,
    /// The algorithm that it names.
    pub algorithm: Algorithm,
    /// The algorithms of this kernel, with commas.
    pub known: String,
}

/// One connection, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection<'a> {
    /// The class it is of, by name; and by `source:name`.
    pub container: Option<[&'a str; 2]>,
    /// The group that this is in.
    pub group: Option<&'a str>,
    /// The far end.
    pub to: IpAddr,
    /// The service's port.
    pub port: Option<u16>,
    /// The opener.
    pub direction: Option<Direction>,
}

impl Connection<'_> {
    /// One to there, of which no more is known.
    #[must_use]
    pub fn to(to: IpAddr) -> Self {
        Connection { container: None, group: None, to, port: None, direction: None }
    }
}

/// A class whose sockets are told apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleClass {
    /// By which the kernel knows it; never 0.
    pub handle: u32,
    /// The name people use.
    pub name: String,
    /// The same as `source:name`.
    pub key: String,
    /// The group it is in.
    pub group: Option<String>,
}

/// An entry of a table in which the far end's address is matched by its longest prefix, and all
/// else whole. Of those found for a connection, asked with and without class, port and direction,
/// the one with the greatest rank counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleEntry {
    /// The class's; 0 for all.
    pub handle: u32,
    /// The service's port; 0 for all.
    pub port: u16,
    /// None for both.
    pub direction: Option<Direction>,
    /// With bits behind its prefix that are all zero.
    pub to: IpNet,
    /// See [`Rule::rank`].
    pub rank: u32,
    /// Of the rule, from 1.
    pub number: usize,
    /// The action.
    pub action: Action,
}

/// Why a rule is a connection's, or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Considered {
    /// The rule, from 1; 0 if it is not in force.
    pub number: usize,
    /// The connections.
    pub rule: String,
    /// The action.
    pub action: String,
    /// Whether it is the connection's.
    pub chosen: bool,
    /// The origin: a rule that was set counts, else a trial's, else the configuration's.
    #[serde(default)]
    pub origin: Origin,
    /// Why, or why not.
    pub why: String,
}

/// The rule of a connection, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Explained {
    /// The rule's number, from 1; none if no rule matches.
    pub number: Option<usize>,
    /// The action; none if its application or the system decides.
    pub action: Option<Action>,
    /// Every rule, those that match first, the chosen one before all.
    pub considered: Vec<Considered>,
    /// The reason if the rules are not fully in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_enforced_because: Option<String>,
}

/// Rules that can be used together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rules {
    rules: Vec<Rule>,
    /// Of the configuration: others are instead of them.
    replaced: Vec<Rule>,
}

impl Rules {
    /// Checks rules, each for itself and beside the others. Their order says nothing.
    ///
    /// # Errors
    /// [`RulesError`]: the first that is wrong.
    pub fn new(rules: Vec<Rule>) -> Result<Rules, RulesError> {
        if rules.len() > MAX_RULES {
            return Err(RulesError::Many { found: rules.len() });
        }
        let mut seen = BTreeMap::new();
        for (rule, number) in rules.iter().zip(1..) {
            rule.check().map_err(|why| RulesError::Rule { number, rule: rule.to_string(), why })?;
            if let Some(first) = seen.insert(rule.asks(), number) {
                return Err(RulesError::Same { first, second: number, rule: rule.to_string() });
            }
        }
        Ok(Rules { rules, replaced: Vec::new() })
    }

    /// Rules of the configuration, and those set at run time, which come after them. One that was set
    /// is instead of one of the configuration about the same connections.
    ///
    /// # Errors
    /// [`RulesError`]: the first that is wrong.
    pub fn layered(config: Vec<Rule>, set: &[Rule]) -> Result<Rules, RulesError> {
        Rules::new(config.clone())?;
        let is_replaced = |rule: &Rule| set.iter().any(|other| other.is_about_the_same_as(rule));
        let (replaced, kept): (Vec<Rule>, Vec<Rule>) = config.into_iter().partition(is_replaced);
        let rules = Rules::new(kept.into_iter().chain(set.iter().cloned()).collect())?;
        Ok(Rules { replaced, ..rules })
    }

    /// The rules, as they were given.
    #[must_use]
    pub fn as_slice(&self) -> &[Rule] {
        &self.rules
    }

    /// Whether it has no rules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The algorithms that they name.
    #[must_use]
    pub fn algorithms(&self) -> BTreeSet<Algorithm> {
        let of = |rule: &Rule| {
            let Action { start, change } = rule.action();
            [Some(start), change.map(|change| change.to)]
        };
        self.rules.iter().flat_map(of).flatten().collect()
    }

    /// Tests whether the kernel has them all: `missing` says of an algorithm that it has not, `known`
    /// is what it has.
    ///
    /// # Errors
    /// [`Unavailable`]: the first rule that names a missing one.
    pub fn check_available(
        &self,
        missing: impl Fn(&Algorithm) -> bool,
        known: &[Algorithm],
    ) -> Result<(), Unavailable> {
        for (rule, number) in self.rules.iter().zip(1..) {
            let Action { start, change } = rule.action();
            for algorithm in [Some(start), change.map(|change| change.to)].into_iter().flatten() {
                if missing(&algorithm) {
                    let known = known.iter().map(Algorithm::as_str).collect::<Vec<_>>().join(", ");
                    return Err(Unavailable { number, rule: rule.to_string(), algorithm, known });
                }
            }
        }
        Ok(())
    }

    /// The rule of a connection.
    #[must_use]
    pub fn find(&self, connection: &Connection<'_>) -> Option<&Rule> {
        self.choose(connection).map(|i| &self.rules[i])
    }

    /// The rule of connections to all of a network that no more specific rule matches.
    #[must_use]
    pub fn of_network(&self, network: &IpNet) -> Option<&Rule> {
        let connection = Connection::to(network.network());
        let of_all = |rule: &Rule| rule.to.is_none_or(|to| to.contains(network));
        let matching = |i: &usize| of_all(&self.rules[*i]) && differs(&self.rules[*i], &connection).is_none();
        let best = (0..self.rules.len()).filter(matching).max_by_key(|i| self.order(*i));
        best.map(|i| &self.rules[i])
    }

    /// The greatest is chosen. One class has two names: the earlier rule counts.
    fn order(&self, i: usize) -> impl Ord + use<> {
        (self.rules[i].rank(), std::cmp::Reverse(i))
    }

    fn choose(&self, connection: &Connection<'_>) -> Option<usize> {
        let matching = (0..self.rules.len()).filter(|i| differs(&self.rules[*i], connection).is_none());
        matching.max_by_key(|i| self.order(*i))
    }

    /// The rule of a connection, and the reasons against the others.
    #[must_use]
    pub fn explain(&self, connection: &Connection<'_>) -> Explained {
        let chosen = self.choose(connection);
        let mut considered: Vec<(u32, Considered)> = Vec::new();
        for (i, rule) in self.rules.iter().enumerate() {
            let mismatch = differs(rule, connection);
            let why = match (&mismatch, chosen) {
                (Some(why), _) => why.clone(),
                (None, Some(best)) if best != i => beaten(rule, &self.rules[best], best + 1),
                _ => match rule.to {
                    Some(to) => format!("it matches, with the longest prefix, {to}"),
                    None => "it matches, and none with a prefix does".to_owned(),
                },
            };
            let order = if Some(i) == chosen { u32::MAX } else { mismatch.map_or(rule.rank() + 1, |_| 0) };
            considered.push((
                order,
                Considered {
                    number: i + 1,
                    rule: rule.to_string(),
                    action: rule.action().to_string(),
                    chosen: Some(i) == chosen,
                    origin: rule.origin,
                    why,
                },
            ));
        }
        considered.extend(self.replaced.iter().map(|rule| {
            let other = self.rules.iter().position(|other| other.is_about_the_same_as(rule));
            let why = format!("rule {} was set instead of it", other.map_or(0, |i| i + 1));
            let (about, action) = (rule.to_string(), rule.action().to_string());
            (0, Considered { number: 0, rule: about, action, chosen: false, origin: rule.origin, why })
        }));
        considered.sort_by_key(|(order, one)| (std::cmp::Reverse(*order), one.number == 0, one.number));
        Explained {
            number: chosen.map(|i| i + 1),
            action: chosen.map(|i| self.rules[i].action()),
            considered: considered.into_iter().map(|(_, one)| one).collect(),
            not_enforced_because: None,
        }
    }

    /// The network under which flows to `to` are counted: the longest of a rule's that it is in;
    /// else a /24 of IPv4, a /48 of IPv6.
    #[must_use]
    pub fn network_of(&self, to: IpAddr) -> IpNet {
        let within = self.rules.iter().filter_map(|rule| rule.to).filter(|net| net.contains(&to));
        let longest = within.filter(|net| net.prefix_len() > 0).max_by_key(IpNet::prefix_len);
        longest.unwrap_or_else(|| {
            let len = if to.is_ipv4() { 24 } else { 48 };
            IpNet::new(to, len).map_or_else(|_| IpNet::from(to), |net| net.trunc())
        })
    }

    /// The entries of a table for these classes. A rule for a container or group that is not among
    /// them has none.
    #[must_use]
    pub fn compile(&self, classes: &[RuleClass]) -> Vec<RuleEntry> {
        let mut table: BTreeMap<(u32, u16, Option<Direction>, IpNet), RuleEntry> = BTreeMap::new();
        for (rule, number) in self.rules.iter().zip(1..) {
            for handle in self.handles(rule, classes) {
                let versions = match rule.to {
                    Some(to) => vec![to],
                    None => vec![ALL_V4, ALL_V6],
                };
                for to in versions {
                    let (port, direction, rank) = (rule.port.unwrap_or(0), rule.direction, rule.rank());
                    let entry =
                        RuleEntry { handle, port, direction, to, rank, number, action: rule.action() };
                    let taken = table.entry((handle, port, direction, to)).or_insert_with(|| entry.clone());
                    if taken.rank < rank {
                        *taken = entry;
                    }
                }
            }
        }
        table.into_values().collect()
    }

    /// The classes that a rule is about: 0 for all of them.
    fn handles(&self, rule: &Rule, classes: &[RuleClass]) -> Vec<u32> {
        let of = |wanted: &dyn Fn(&RuleClass) -> bool| {
            classes.iter().filter(|class| wanted(class)).map(|class| class.handle).collect()
        };
        match (&rule.container, &rule.group) {
            (Some(name), _) => of(&|class| class.name == *name || class.key == *name),
            (None, Some(group)) => of(&|class| class.group.as_ref() == Some(group)),
            (None, None) => vec![0],
        }
    }
}

const ALL_V4: IpNet = IpNet::V4(ipnet::Ipv4Net::new_assert(std::net::Ipv4Addr::UNSPECIFIED, 0));
const ALL_V6: IpNet = IpNet::V6(ipnet::Ipv6Net::new_assert(std::net::Ipv6Addr::UNSPECIFIED, 0));

/// The part of a connection that the rule does not match; none if it matches.
fn differs(rule: &Rule, connection: &Connection<'_>) -> Option<String> {
    if let Some(name) = &rule.container
        && !connection.container.is_some_and(|names| names.contains(&name.as_str()))
    {
        return Some(match connection.container {
            None => format!("it is for container {name} only"),
            Some([other, _]) => format!("it is for container {name}, not {other}"),
        });
    }
    if let Some(name) = &rule.group
        && connection.group != Some(name.as_str())
    {
        return Some(format!("it is for members of group {name} only"));
    }
    if let Some(to) = rule.to
        && !to.contains(&connection.to)
    {
        return Some(format!("{} is not in {to}", connection.to));
    }
    if let Some(port) = rule.port
        && connection.port != Some(port)
    {
        let other = connection.port.map_or("no port is given".to_owned(), |other| format!("not {other}"));
        return Some(format!("it is for port {port}, {other}"));
    }
    if let Some(direction) = rule.direction
        && connection.direction != Some(direction)
    {
        return Some(match direction {
            Direction::Out => "it is for connections opened here only".to_owned(),
            Direction::In => "it is for connections accepted here only".to_owned(),
        });
    }
    None
}

/// Why another rule that matches too goes before this one.
fn beaten(rule: &Rule, best: &Rule, number: usize) -> String {
    let len = |rule: &Rule| rule.to.map(|to| to.prefix_len());
    let why = if len(best) != len(rule) {
        "has a longer prefix"
    } else if best.container.is_some() && rule.container.is_none() {
        "names the container"
    } else if best.group.is_some() && rule.group.is_none() && rule.container.is_none() {
        "names the group"
    } else if best.port.is_some() && rule.port.is_none() {
        "names the port"
    } else {
        "names the direction"
    };
    format!("it matches, but rule {number} {why}")
}
