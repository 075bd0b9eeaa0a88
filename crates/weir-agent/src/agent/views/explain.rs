//! The reasons for a class's allocation, and the origins of its policy.

use weir_api::{Activity, Class, ClassKind, Explanation, OnLink, Origin, Sharer};
use weir_share::Bound;
use weir_units::BitRate;

use crate::agent::{
    Agent, allocate::Followed, autorate, class_key::ClassKey, class_table::ClassEntry, figures::Figures,
};

/// The origin of the value `key` of a class.
fn origin_text(origin: Origin, key: &str, entry: &ClassEntry) -> String {
    let (name, agreement) = (&entry.class.name, entry.agreement.as_ref());
    match origin {
        Origin::Default if entry.class.kind == ClassKind::Control && !key.ends_with("weight") => {
            "built in, a part of the link's capacity".to_owned()
        }
        Origin::Default => "built in".to_owned(),
        Origin::Defaults => "[defaults] of the configuration".to_owned(),
        Origin::Label => entry.class.asked_by.get(key).map_or("label of the container", |by| by).to_owned(),
        Origin::Config => "configuration".to_owned(),
        Origin::Set => format!("set by hand (`weir unset {name}` takes it away)"),
        Origin::Agreement => match agreement {
            Some(id) => format!("agreement {id} (`weir agree show {id}`)"),
            None => "agreements are in force: what has none is held to this".to_owned(),
        },
    }
}

/// The values of a class's policy with their origins. `direction` stands before the keys of what arrives.
fn origins(entry: &ClassEntry, direction: &str) -> [String; 3] {
    let [w, m, x] = entry.effective.origins;
    let policy = entry.effective.policy;
    let rate = |rate: Option<BitRate>| rate.map_or("none".to_owned(), |r| r.to_string());
    let min = match &entry.unpromised {
        Some(unpromised) => format!("{}, of which {} are promised", unpromised.min, rate(policy.min())),
        None => rate(policy.min()),
    };
    let line = |key: &str, value: String, origin: Origin| {
        let key = format!("{direction}{key}");
        format!("{key} {value}: {}", origin_text(origin, &key, entry))
    };
    [line("weight", policy.weight().to_string(), w), line("min", min, m), line("max", rate(policy.max()), x)]
}

/// A class's part of a link beside the main one, in words.
fn explain_on(part: &OnLink) -> String {
    let OnLink { link, rate, allocation, policy, .. } = part;
    let what = match part.activity {
        Activity::Active => format!("sends {rate} there now and may send {allocation}"),
        _ => "sends nothing there now".to_owned(),
    };
    let rate = |rate: Option<BitRate>| rate.map_or("none".to_owned(), |rate| rate.to_string());
    let (min, max) = (rate(policy.min), rate(policy.max));
    let why =
        part.not_enforced_because.as_ref().map_or(String::new(), |why| format!("; not enforced: {why}"));
    format!("link {link}: {what} (weight {}, min {min}, max {max}){why}", policy.weight)
}

/// The reasons why a class has no effect now.
fn explain_state(entry: &ClassEntry, class: &Class) -> Vec<String> {
    let mut reasons = Vec::new();
    if let Some(why) = &class.not_enforced_because {
        reasons.push(format!("not enforced: {why}"));
    }
    if entry.minor.is_none() {
        let kept = entry.effective.policy.min().map_or("", |_| ", and its minimum is kept free");
        reasons.push(format!("{} is not here now; its policy waits for it{kept}", entry.class.name));
    }
    reasons
}

/// The classes that share a class's link or group, and what they share.
struct Siblings<'a> {
    /// Those that are here, with the class itself. The last part tells which are active.
    all: Vec<(&'a ClassKey, &'a ClassEntry, bool)>,
    whole: BitRate,
    /// `whole`, in words.
    whole_text: String,
}

impl<'a> Siblings<'a> {
    /// Those that send now.
    fn active(&self) -> impl Iterator<Item = (&'a ClassKey, &'a ClassEntry)> {
        self.all.iter().filter(|(.., is_active)| *is_active).map(|(key, entry, _)| (*key, *entry))
    }

    /// The class's rate by weight alone, in words.
    fn explain_weight(&self, key: &ClassKey, entry: &ClassEntry) -> String {
        let weight_of = |entry: &ClassEntry| u64::from(entry.effective.policy.weight().get());
        let sharing = self.all.iter().filter(|(k, _, is_active)| *is_active || *k == key);
        let weights: u64 = sharing.map(|(_, entry, _)| weight_of(entry)).sum();
        let weight = weight_of(entry);
        let fair = self.whole.scale(weight, weights.max(1));
        let others = self.active().filter(|(k, _)| *k != key).count();
        let with = if others == 1 {
            "1 other active class".to_owned()
        } else {
            format!("{others} other active classes")
        };
        let of = &self.whole_text;
        format!("shares {of} with {with}; by weight alone, {weight} of {weights}, that is {fair}")
    }
}

/// The reason for a class's allocation.
fn explain_bound(followed: &Followed) -> String {
    let allocation = followed.allocation;
    match followed.bound {
        Bound::Idle => "sends nothing now, so it gets nothing; with traffic it has its minimum at \
            once and its share within half a second"
            .to_owned(),
        Bound::Demand => {
            format!("gets all it asks for, {allocation}; what it leaves goes to the others by weight")
        }
        Bound::Floor => {
            format!("its minimum lifts it to {allocation}; the difference comes from the others by weight")
        }
        Bound::Ceiling => {
            format!("its maximum holds it at {allocation}; the surplus goes to the others by weight")
        }
        Bound::Weight => {
            format!("gets {allocation} by weight, after minima, maxima and what others leave")
        }
    }
}

impl Agent {
    pub(in crate::agent) fn explain(&self, key: &ClassKey) -> Explanation {
        let entry = &self.classes.entries()[key];
        let class = self.class(key);
        let siblings = self.siblings(entry);
        let mut reasons = explain_state(entry, &class);
        reasons.extend(self.explain_capacity());
        reasons.extend(entry.class.cut.iter().cloned());
        if !class.selects.is_empty() {
            reasons.push(format!(
                "its packets are those that match {}, from any sender: they do not count as the sender's own",
                class.selects.join(", or ")
            ));
        }
        if let (Some(followed), true) = (self.link.allocations.get(key), entry.minor.is_some()) {
            reasons.push(siblings.explain_weight(key, entry));
            reasons.push(explain_bound(followed));
            reasons.extend(self.explain_traffic(entry, &class));
        }
        reasons.extend(self.explain_download(key));
        reasons.extend(class.on_links.iter().map(explain_on));
        if class.moved_packets > 0 {
            reasons.push(format!(
                "{} packets left by another link than their route said, and were charged to both",
                class.moved_packets
            ));
        }
        let sharers = siblings.active().filter_map(|(key, entry)| self.sharer(key, entry)).collect();
        let down = self.link.download.as_ref().and_then(|download| download.classes.entries().get(key));
        let down = down.into_iter().flat_map(|entry| origins(entry, "down."));
        let origins = origins(entry, "").into_iter().chain(down).collect();
        Explanation { class, reasons, sharers, origins }
    }

    fn siblings(&self, entry: &ClassEntry) -> Siblings<'_> {
        let group = &entry.class.group;
        let entries = self.classes.entries().iter();
        let here = entries.filter(|(_, e)| e.minor.is_some() && e.class.group == *group);
        let is_active = |entry: &ClassEntry| {
            Figures::of(&self.classes, &self.link.allocations, entry).activity == Activity::Active
        };
        let all = here.map(|(key, entry)| (key, entry, is_active(entry))).collect();
        let (whole, whole_text) = match group {
            Some(group) => {
                let followed = self.link.allocations.get(&ClassKey::group(group));
                let whole = followed.map_or(BitRate::ZERO, |f| f.allocation);
                (whole, format!("group {group}'s {whole}"))
            }
            None => (self.in_force(), format!("the link's {}", self.in_force())),
        };
        Siblings { all, whole, whole_text }
    }

    fn sharer(&self, key: &ClassKey, entry: &ClassEntry) -> Option<Sharer> {
        let followed = self.link.allocations.get(key)?;
        Some(Sharer {
            name: entry.class.name.clone(),
            weight: entry.effective.policy.weight(),
            allocation: followed.allocation,
            bound: followed.bound.to_string(),
        })
    }

    /// The origin of the link's capacity, and what is charged to it.
    fn explain_capacity(&self) -> Vec<String> {
        let link = &self.classes.config().link;
        let follows = self.follows().map(|follows| {
            format!(
                "the link's capacity follows its rate between {} and {}: {}",
                follows.min,
                follows.max,
                autorate::in_words(&follows)
            )
        });
        let set = self.capacities.replaced(&link.device).0.map(|configured| {
            let capacity = self.in_force();
            format!("the link's {capacity} are set by hand; {configured} are configured (`weir link reset`)")
        });
        let charged = link
            .line()
            .map(|line| format!("rates count what the line carries: each packet is charged with {line}"));
        [follows, set, charged].into_iter().flatten().collect()
    }

    /// The traffic of a class that is here, in words.
    fn explain_traffic(&self, entry: &ClassEntry, class: &Class) -> Vec<String> {
        let mut reasons = Vec::new();
        if let Some(min) = entry.effective.policy.min() {
            reasons.push(format!("its minimum of {min} is promised and kept even if the agent dies"));
        }
        reasons.push(format!(
            "sends {} now, {} wait; held back for {:.1} s so far",
            class.rate,
            class.backlog,
            class.backpressured_ms as f64 / 1000.0
        ));
        if class.drops > 0 {
            let why =
                if self.link.scheduler.only_paces() { "it had no credit" } else { "its queue was full" };
            reasons.push(format!("{} packets were dropped because {why}", class.drops));
        }
        reasons
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::agent::class_table::ClassTable;

    #[test]
    fn origin_of_the_control_class_is_the_capacity_and_no_section() {
        let text = "[link]\ndevice = \"eth0\"\ncapacity = \"50mbit\"\n";
        let config = crate::config::parse(text, Path::new("test.toml")).unwrap();
        let (set, minors, ledger) = Default::default();
        let table = ClassTable::new(config, set, minors, ledger, BitRate::ZERO);
        let told = |name: &str, key, value: usize| {
            let entry = &table.entries()[name];
            origin_text(entry.effective.origins[value], key, entry)
        };
        assert_eq!(told("weir:control", "weight", 0), "built in");
        assert_eq!(told("weir:control", "min", 1), "built in, a part of the link's capacity");
        assert_eq!(told("weir:control", "max", 2), "built in, a part of the link's capacity");
        assert_eq!(told("weir:host", "max", 2), "built in");
    }
}
