//! `capacity = "95mbit"`, or the bounds of a link whose rate changes. `download = ...` likewise.

use std::{fmt, time::Duration};

use serde::{Deserialize, Deserializer, de};
use weir_autorate::{DELAY, Settings};
use weir_datapath::engine::{self, EngineKind, LinkSignals};
use weir_units::BitRate;

use super::{
    Link, Split,
    fault::{Fault, fault},
};

/// `capacity = ...` as the file has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Given {
    Rate(BitRate),
    Range(Range),
}

impl Default for Given {
    fn default() -> Given {
        Given::Rate(BitRate::ZERO)
    }
}

/// `capacity = { min = ..., max = ... }`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Range {
    min: BitRate,
    max: BitRate,
    /// As in `30ms`.
    #[serde(default, deserialize_with = "delay")]
    delay: Option<Duration>,
    #[serde(default)]
    dry_run: bool,
}

/// The bounds between which the capacity follows the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Follows {
    pub(crate) settings: Settings,
    /// The decisions are only told, and `max` is shared.
    pub(crate) dry_run: bool,
}

impl<'de> Deserialize<'de> for Given {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Given, D::Error> {
        struct Reader;
        impl<'de> de::Visitor<'de> for Reader {
            type Value = Given;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a rate as \"95mbit\", or { min = \"2mbit\", max = \"40mbit\" } of a link whose rate changes")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Given, E> {
                text.parse().map(Given::Rate).map_err(E::custom)
            }
            fn visit_u64<E: de::Error>(self, bits: u64) -> Result<Given, E> {
                Ok(Given::Rate(BitRate(bits)))
            }
            fn visit_i64<E: de::Error>(self, bits: i64) -> Result<Given, E> {
                let rate = u64::try_from(bits).map(BitRate).map(Given::Rate);
                rate.map_err(|_| E::invalid_value(de::Unexpected::Signed(bits), &self))
            }
            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Given, A::Error> {
                Range::deserialize(de::value::MapAccessDeserializer::new(map)).map(Given::Range)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// Reads `30ms` or `0.03s`.
fn delay<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let seconds = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => number.trim().parse::<f64>().map(|ms| ms / 1e3),
        (None, Some(number)) => number.trim().parse::<f64>(),
        (None, None) => "".parse::<f64>(),
    };
    let read = seconds.ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let why = || de::Error::custom(format!("cannot read `{text}` as a delay: write it as 30ms"));
    read.map(Some).ok_or_else(why)
}

impl Given {
    /// The rate, or the highest one and the bounds.
    fn read(self, key: &str) -> Result<(BitRate, Option<Follows>), Fault> {
        match self {
            Given::Rate(rate) => Ok((rate, None)),
            Given::Range(Range { min, max, delay, dry_run }) => {
                let settings = Settings::new(min, max, delay.unwrap_or(DELAY)).map_err(|e| fault(key, e))?;
                Ok((max, Some(Follows { settings, dry_run })))
            }
        }
    }
}

impl Link {
    /// Takes the capacities that the file gives.
    pub(super) fn take_capacity(&mut self) -> Result<(), Fault> {
        (self.capacity, self.follows) = self.given.read("[link] capacity")?;
        let download = self.given_download.map(|given| given.read("[link] download")).transpose()?;
        (self.download, self.download_follows) =
            download.map_or((None, None), |(rate, follows)| (Some(rate), follows));
        self.others.iter_mut().try_for_each(Link::take_capacity)
    }

    /// The capacity that the link has at any time. Minima are promised of it.
    pub(crate) fn assured(&self) -> BitRate {
        let follows = self.follows.filter(|follows| !follows.dry_run);
        follows.map_or(self.capacity, |follows| follows.settings.min())
    }

    /// Whether an engine can do what the link asks for.
    pub(crate) fn fits(&self, engine: EngineKind) -> bool {
        (self.line().is_none() || engine.frames().is_ok())
            && (self.follows.is_none() || LinkSignals::goes_with(engine).is_ok())
            && (self.others.is_empty() || engine.shares_several().is_ok())
            && self.others.iter().all(|link| link.fits(engine))
    }

    /// The capacity in words, for the log.
    pub(crate) fn capacity_in_words(&self) -> String {
        in_words(self.capacity, self.follows)
    }
}

/// A rate with its bounds, if it follows the link.
pub(crate) fn in_words(rate: BitRate, follows: Option<Follows>) -> String {
    let Some(Follows { settings, dry_run }) = follows else { return rate.to_string() };
    let (min, max) = (settings.min(), settings.max());
    if dry_run {
        format!("{rate} (dry run: following {min} to {max} is only told)")
    } else {
        format!("{min} to {max}")
    }
}

/// Checks that the engine can follow the link's rate.
pub(super) fn check(link: &Link) -> Result<(), Fault> {
    if link.follows.is_some() && link.split == Split::Never {
        let detail = "a super-packet takes long at a low rate, and split = \"never\" leaves it whole: leave `split` out";
        return Err(fault("[link] capacity", detail));
    }
    match (link.follows, link.choice()) {
        (Some(_), Some(engine::Choice::Only(kind))) => {
            LinkSignals::goes_with(kind).map_err(|e| fault("[link] capacity", e))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_datapath::engine::EngineKind;
    use weir_units::BitRate;

    use crate::config::{Config, ConfigError, parse};

    fn link(lines: &str) -> Result<Config, ConfigError> {
        let text = format!("[link]\ndevice = \"eth0\"\n{lines}\n");
        parse(&text, std::path::Path::new("test.toml"))
    }

    #[test]
    fn capacity_is_a_rate_or_a_range() {
        let fixed = link("capacity = \"95mbit\"").unwrap().link;
        assert_eq!(
            (fixed.capacity, fixed.assured(), fixed.follows),
            (BitRate::mbit(95), BitRate::mbit(95), None)
        );
        let range = link("capacity = { min = \"2mbit\", max = \"40mbit\", delay = \"20ms\" }").unwrap().link;
        assert_eq!((range.capacity, range.assured()), (BitRate::mbit(40), BitRate::mbit(2)));
        assert_eq!(range.follows.unwrap().settings.delay(), Duration::from_millis(20));
        let dry = "capacity = { min = \"2mbit\", max = \"40mbit\", dry_run = true }";
        let dry = link(dry).unwrap().link;
        assert_eq!((dry.capacity, dry.assured()), (BitRate::mbit(40), BitRate::mbit(40)));
        assert_eq!(dry.follows.unwrap().settings.delay(), Duration::from_millis(30));
    }

    #[test]
    fn download_is_a_rate_or_a_range_of_its_own() {
        let down = |lines: &str| {
            let config = link(&format!("capacity = \"9mbit\"\n{lines}")).unwrap();
            assert_eq!(config.link.follows, None, "the upload's rate is fixed");
            config.download().unwrap().link
        };
        let fixed = down("download = 40000000");
        assert_eq!(
            (fixed.capacity, fixed.assured(), fixed.follows),
            (BitRate::mbit(40), BitRate::mbit(40), None)
        );
        let range = down("download = { min = \"4mbit\", max = \"40mbit\" }");
        assert_eq!((range.capacity, range.assured()), (BitRate::mbit(40), BitRate::mbit(4)));
        let dry = down("download = { min = \"4mbit\", max = \"40mbit\", dry_run = true }");
        assert_eq!((dry.capacity, dry.assured()), (BitRate::mbit(40), BitRate::mbit(40)));
        // HTB schedules what arrives, so that each engine of the upload will do.
        assert_eq!(
            down("engine = \"bpf\"\ndownload = { min = \"4mbit\", max = \"40mbit\" }").assured(),
            BitRate::mbit(4)
        );
        let faulty = "capacity = \"9mbit\"\ndownload = { min = \"50mbit\", max = \"40mbit\" }";
        let error = weir_units::chain(&link(faulty).unwrap_err());
        assert!(
            error.contains("[link] download: min 50mbit is not between 64kbit and max 40mbit"),
            "{error}"
        );
        let minima = "capacity = \"9mbit\"\ndownload = { min = \"4mbit\", max = \"40mbit\" }\n[host]\ndown = { min = \"5mbit\" }";
        let error = weir_units::chain(&link(minima).unwrap_err());
        assert!(error.contains("down") && error.contains("5mbit"), "{error}");
    }

    #[test]
    fn auto_takes_an_engine_that_follows() {
        let fits = |lines: &str| {
            let link = link(lines).unwrap().link;
            EngineKind::ALL.into_iter().filter(|kind| link.fits(*kind)).collect::<Vec<_>>()
        };
        assert_eq!(fits("capacity = \"9mbit\""), EngineKind::ALL);
        let range = "capacity = { min = \"1mbit\", max = \"9mbit\" }";
        assert_eq!(fits(range), [EngineKind::Edt, EngineKind::Htb]);
        assert_eq!(fits(&format!("{range}\nframing = \"docsis\"")), [EngineKind::Edt, EngineKind::Htb]);
        let framed =
            EngineKind::ALL.into_iter().filter(|kind| *kind != EngineKind::Pacing).collect::<Vec<_>>();
        assert_eq!(fits("capacity = \"9mbit\"\nframing = \"docsis\""), framed);
    }

    #[test]
    fn range_that_no_link_has_is_refused_with_the_numbers() {
        for (lines, why) in [
            (
                "capacity = { min = \"50mbit\", max = \"40mbit\" }",
                "min 50mbit is not between 64kbit and max 40mbit",
            ),
            ("capacity = { min = \"40mbit\", max = \"40mbit\" }", "min 40mbit is not between"),
            ("capacity = { min = \"1kbit\", max = \"40mbit\" }", "min 1kbit is not between 64kbit"),
            (
                "capacity = { min = \"1mbit\", max = \"9mbit\", delay = \"1ms\" }",
                "delay 1ms is not between 5ms and 1s",
            ),
            (
                "capacity = { min = \"1mbit\", max = \"9mbit\", delay = \"soon\" }",
                "cannot read `soon` as a delay",
            ),
            (
                "capacity = { min = \"1mbit\", max = \"9mbit\", delay = \"-3ms\" }",
                "cannot read `-3ms` as a delay",
            ),
            ("capacity = { min = \"1mbit\" }", "max"),
            ("capacity = { min = \"1mbit\", max = \"9mbit\", most = 3 }", "most"),
            ("capacity = [ \"9mbit\" ]", "a rate as \"95mbit\", or { min"),
            (
                "capacity = { min = \"1mbit\", max = \"9mbit\" }\nengine = \"bpf\"",
                "use engine auto, htb or edt",
            ),
            ("capacity = { min = \"1mbit\", max = \"9mbit\" }\nsplit = \"never\"", "leave `split` out"),
            (
                "capacity = { min = \"1mbit\", max = \"9mbit\" }\nengine = \"pacing\"",
                "use engine auto, htb or edt",
            ),
            ("capacity = { min = \"1mbit\", max = \"9mbit\" }\n[host]\nmin = \"2mbit\"", "host"),
        ] {
            let error = weir_units::chain(&link(lines).unwrap_err());
            assert!(error.contains(why), "{lines}: {error}");
        }
    }
}
