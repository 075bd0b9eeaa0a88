//! `[link]`, or several `[[link]]` tables.

use std::{collections::BTreeSet, fmt};

use serde::{Deserialize, Deserializer, de};
use weir_datapath::engine;

use super::{
    Config, Link,
    fault::{Fault, fault},
};

/// Reads one table or several. The first one is the main link until the default route names another one.
pub(super) fn one_or_more<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Link, D::Error> {
    struct Reader;
    impl<'de> de::Visitor<'de> for Reader {
        type Value = Link;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a table [link], or tables [[link]]")
        }
        fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Link, A::Error> {
            Link::deserialize(de::value::MapAccessDeserializer::new(map))
        }
        fn visit_seq<A: de::SeqAccess<'de>>(self, mut tables: A) -> Result<Link, A::Error> {
            let none = "there is no [[link]]: fill in device and capacity of the uplink";
            let mut first: Link = tables.next_element()?.ok_or_else(|| de::Error::custom(none))?;
            while let Some(link) = tables.next_element()? {
                first.others.push(link);
            }
            Ok(first)
        }
    }
    deserializer.deserialize_any(Reader)
}

impl Link {
    /// This link and the others of the file.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Link> {
        std::iter::once(self).chain(&self.others)
    }

    /// Changes this link and the others of the file.
    pub(crate) fn each(&mut self, mut change: impl FnMut(&mut Link)) {
        change(self);
        self.others.iter_mut().for_each(change);
    }

    /// Has an engine and its form be one choice.
    pub(super) fn settle_engine(&mut self) {
        self.engine = self.choice().unwrap_or(self.engine);
        self.others.iter_mut().for_each(Link::settle_engine);
    }

    /// A fault of `[link]` as one of this link of the file, by its device or its place.
    pub(crate) fn fault_of(&self, one: &Link, what: &str) -> String {
        let place = || self.all().position(|link| link == one).map_or(0, |place| place + 1);
        match what.strip_prefix("[link]") {
            Some(key) if self.is_one_of_several() && one.device.is_empty() => {
                format!("[[link]] number {}{key}", place())
            }
            Some(key) if self.is_one_of_several() => {
                let colon = if key.is_empty() { "" } else { ":" };
                format!("[[link]] {}{colon}{key}", one.device)
            }
            _ => what.to_owned(),
        }
    }

    /// Whether the file has several links.
    pub(crate) fn is_one_of_several(&self) -> bool {
        !self.others.is_empty()
    }
}

impl Config {
    /// The same configuration with the link of this device as the main one. `None` if the file has no such
    /// link.
    pub(crate) fn sharing(&self, device: &str) -> Option<Config> {
        let mut links: Vec<Link> = self.link.all().cloned().collect();
        let mut chosen = links.remove(links.iter().position(|link| link.device == device)?);
        links.iter_mut().for_each(|link| link.others = Vec::new());
        chosen.others = links;
        Some(Config { link: chosen, ..self.clone() })
    }
}

/// Checks that one agent can share all links at a time.
pub(super) fn check(first: &Link) -> Result<(), Fault> {
    let (count, most) = (first.all().count(), engine::MAX_LINKS);
    if count > most as usize {
        let detail = format!(
            "the file has {count} links, and at most {most} are shared at a time: leave out {}",
            count - most as usize
        );
        return Err(fault("[[link]]", detail));
    }
    let mut devices = BTreeSet::new();
    for link in first.all() {
        if !devices.insert(&link.device) {
            let detail = format!("two links have device {}: give each link a device of its own", link.device);
            return Err(fault("[[link]] device", detail));
        }
        for (key, is_other) in [
            ("engine", link.choice() != first.choice()),
            ("attach", link.attach != first.attach),
            ("queues", link.queues != first.queues),
            ("pacing", link.pacing != first.pacing),
            ("priority", link.priority != first.priority),
            ("charge_local", link.charge_local != first.charge_local),
            ("allocator", link.allocator != first.allocator),
            ("download", link.download.is_some() != first.download.is_some()),
        ] {
            if is_other {
                let how =
                    if key == "download" { "in all links or in none" } else { "with one value in all links" };
                let detail = format!("{} and {} differ: write it {how}", first.device, link.device);
                return Err(fault(format!("[[link]] {key}"), detail));
            }
        }
    }
    match first.choice() {
        Some(engine::Choice::Only(kind)) if first.is_one_of_several() => {
            kind.shares_several().map_err(|e| fault("[[link]] engine", e))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use weir_datapath::engine::EngineKind;
    use weir_units::{BitRate, chain};

    use crate::config::{Config, ConfigError, parse};

    const TWO: &str = "[[link]]\ndevice = \"eth0\"\ncapacity = \"95mbit\"\n\
        [[link]]\ndevice = \"wwan0\"\ncapacity = \"9mbit\"\n";

    fn read(text: &str) -> Result<Config, ConfigError> {
        parse(text, std::path::Path::new("test.toml"))
    }

    #[test]
    fn one_link_in_a_list_is_the_same_as_a_single_table() {
        let lines = "device = \"eth0\"\ncapacity = \"95mbit\"\n";
        let (single, listed) = (read(&format!("[link]\n{lines}")), read(&format!("[[link]]\n{lines}")));
        assert_eq!(single.unwrap(), listed.unwrap());
    }

    #[test]
    fn config_shares_the_link_of_a_device_and_keeps_the_others() {
        let first = read(TWO).unwrap();
        assert_eq!((first.link.device.as_str(), first.link.capacity), ("eth0", BitRate::mbit(95)));
        let second = first.sharing("wwan0").unwrap();
        assert_eq!((second.link.device.as_str(), second.link.capacity), ("wwan0", BitRate::mbit(9)));
        assert_eq!(second.link.all().count(), 2);
        assert_eq!(second.sharing("eth0").unwrap(), first);
        assert_eq!(first.sharing("eth7"), None);
    }

    #[test]
    fn auto_takes_an_engine_that_moves_with_the_route() {
        let link = read(TWO).unwrap().link;
        let fit: Vec<EngineKind> = EngineKind::ALL.into_iter().filter(|kind| link.fits(*kind)).collect();
        assert_eq!(fit, [EngineKind::Bpf, EngineKind::Edt, EngineKind::Htb, EngineKind::BpfCredit]);
    }

    #[test]
    fn links_that_one_agent_cannot_share_are_refused_with_the_way_out() {
        let second = |lines: &str| format!("{TWO}{lines}\n");
        for (text, why) in [
            (TWO.replace("wwan0", "eth0"), "two links have device eth0"),
            (TWO.replace("9mbit\"\n", "9bit\"\n"), "[[link]] wwan0: capacity: 9bit is not between 64kbit"),
            (TWO.replace("95mbit\"\n", "5bit\"\n"), "[[link]] eth0: capacity: 5bit is not between 64kbit"),
            (TWO.replace("wwan0", "eth/1"), "`eth/1` is not the name of an interface"),
            (TWO.replace("wwan0", ""), "[[link]] number 2: no uplink is named"),
            (second("engine = \"htb\""), "eth0 and wwan0 differ: write it with one value in all links"),
            (second("download = \"5mbit\""), "write it in all links or in none"),
            (
                TWO.replace("95mbit\"", "95mbit\"\ndownload = \"9mbit\"") + "download = \"5bit\"\n",
                "[[link]] wwan0: download: 5bit is not between 64kbit",
            ),
            (TWO.replace("device", "engine = \"pacing\"\ndevice"), "pacing"),
            (second("speed = 3"), "unknown field `speed`"),
            ("link = []\n".to_owned(), "there is no [[link]]"),
        ] {
            let error = chain(&read(&text).unwrap_err());
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn minimum_that_fits_on_one_link_alone_is_accepted() {
        let text = format!("{TWO}[host]\nmin = \"20mbit\"\n");
        assert!(read(&text).is_ok(), "it is suspended on the smaller link");
        let error = chain(&read(&text.replace("20mbit", "99mbit")).unwrap_err());
        assert!(error.contains("[host]"), "no link has that much: {error}");
    }
}
