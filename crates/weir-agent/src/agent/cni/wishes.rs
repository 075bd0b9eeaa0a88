//! Reads the wishes of a container that CNI or a cluster reports. A wish that makes no sense counts as not given, so a
//! weaker one shows through.

use std::{cmp::Reverse, collections::BTreeMap};

use weir_api::{Wish, WishPlace, plain};
use weir_discovery::{
    LabelPolicy,
    labels::{LabelError, brief, is_group, rate},
};
use weir_units::BitRate;

/// The most remarks about the wishes of one container.
const MAX_REMARKS: usize = 8;
/// A burst of this many bits or more is ignored without a remark. Runtimes give it where no one asks for a burst.
const NO_BURST: u64 = i32::MAX as u64;

/// The resource limits that are minima, in Mbit/s. The cluster's scheduler counts them.
pub(in crate::agent) const EGRESS: &str = "weir.dev/egress-mbit";
pub(in crate::agent) const INGRESS: &str = "weir.dev/ingress-mbit";

/// The wishes of a container, read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::agent) struct Wishes {
    pub(in crate::agent) policy: LabelPolicy,
    pub(in crate::agent) group: Option<String>,
    /// The place of each wish that counts, by key.
    pub(in crate::agent) asked_by: BTreeMap<&'static str, String>,
    /// Wishes that are ignored, with reasons.
    pub(in crate::agent) remarks: Vec<String>,
    /// The wish that weir cannot enforce.
    pub(in crate::agent) unmet: Option<String>,
    shares_download: bool,
}

/// The value that a wish is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value {
    Weight,
    Min,
    Max,
    Group,
    Burst,
    Download,
    DownWeight,
    DownMin,
    /// Nothing follows from it alone.
    Nothing,
}

/// The value that a wish is about, and the rank of the wish among those about it. A higher rank is stronger.
fn subject(wish: &Wish) -> Option<(Value, u8)> {
    let named = |name: &str, rank| {
        let value = match name {
            "weight" => Value::Weight,
            "min" => Value::Min,
            "max" => Value::Max,
            "group" => Value::Group,
            "down.weight" => Value::DownWeight,
            "down.min" => Value::DownMin,
            "down.max" => Value::Download,
            _ => return None,
        };
        Some((value, rank))
    };
    let bandwidth = |rank| match wish.key.as_str() {
        "egressRate" => Some((Value::Max, rank)),
        "egressBurst" => Some((Value::Burst, rank)),
        "ingressRate" => Some((Value::Download, rank)),
        // The burst of a rate that is not enforced.
        "ingressBurst" => Some((Value::Nothing, rank)),
        _ => None,
    };
    match wish.by {
        WishPlace::Plugin if wish.key.starts_with("down.") => None,
        WishPlace::Plugin => named(&wish.key, 0).or_else(|| bandwidth(2)),
        WishPlace::Bandwidth => bandwidth(1),
        WishPlace::Argument => {
            let name = wish.key.strip_prefix("WEIR_")?;
            ["WEIGHT", "MIN", "MAX", "GROUP"].contains(&name).then(|| name.to_ascii_lowercase())?;
            named(&name.to_ascii_lowercase(), 3)
        }
        WishPlace::Annotation => match wish.key.as_str() {
            "kubernetes.io/egress-bandwidth" => Some((Value::Max, 1)),
            "kubernetes.io/ingress-bandwidth" => Some((Value::Download, 1)),
            key => named(key.strip_prefix("weir.dev/")?, 4),
        },
        WishPlace::Limit => match wish.key.as_str() {
            EGRESS => Some((Value::Min, 5)),
            INGRESS => Some((Value::DownMin, 5)),
            _ => None,
        },
    }
}

/// Whether a wish is one for a group.
pub(in crate::agent) fn is_for_group(wish: &Wish) -> bool {
    matches!(subject(wish), Some((Value::Group, _)))
}

/// Reads wishes in any order. A limit of the download counts if the node shares its download.
pub(in crate::agent) fn read(wishes: &[Wish], shares_download: bool) -> Wishes {
    let mut read = Wishes { shares_download, ..Wishes::default() };
    let mut ranked = Vec::new();
    for wish in wishes {
        match subject(wish) {
            Some((value, rank)) => ranked.push((value, rank, wish)),
            None => {
                let known = match wish.by {
                    WishPlace::Plugin => "weight, min, max, group, egressRate, ingressRate",
                    WishPlace::Bandwidth => "egressRate, egressBurst, ingressRate, ingressBurst",
                    WishPlace::Argument => "WEIR_WEIGHT, WEIR_MIN, WEIR_MAX, WEIR_GROUP",
                    WishPlace::Annotation => {
                        "weir.dev/weight, weir.dev/min, weir.dev/max, weir.dev/group, weir.dev/down.weight, \
                         weir.dev/down.min, weir.dev/down.max"
                    }
                    WishPlace::Limit => "weir.dev/egress-mbit, weir.dev/ingress-mbit",
                };
                read.ignore(wish, format!("weir knows {known}"));
            }
        }
    }
    // The strongest wish comes first. Of two with the same rank the order of the keys decides, and of two with one key
    // that of `wishes`.
    ranked.sort_by_key(|(_, rank, wish)| (Reverse(*rank), wish.by, &wish.key));
    // The ceiling is known when the floor comes.
    for value in [
        Value::Weight,
        Value::Max,
        Value::Min,
        Value::Group,
        Value::Burst,
        Value::Download,
        Value::DownWeight,
        Value::DownMin,
    ] {
        for (_, _, wish) in ranked.iter().filter(|(about, _, _)| *about == value) {
            match read.take(value, wish) {
                Ok(true) => break,
                Ok(false) => {}
                Err(why) => read.ignore(wish, why.to_string()),
            }
        }
    }
    let more = read.remarks.len().saturating_sub(MAX_REMARKS);
    if more > 0 {
        read.remarks.truncate(MAX_REMARKS);
        read.remarks.push(format!("{more} more wishes are ignored"));
    }
    read
}

impl Wishes {
    /// Notes that a wish does not count.
    pub(in crate::agent) fn ignore(&mut self, wish: &Wish, why: String) {
        // The key and the value are texts of the pod's author.
        let text = format!("{wish}={} is ignored: {why}", brief(&wish.value));
        self.remarks.push(plain(&text));
    }

    /// Takes a wish, and returns whether it counts.
    fn take(&mut self, value: Value, wish: &Wish) -> Result<bool, LabelError> {
        let in_mbit = format!("{}mbit", wish.value);
        let text = wish.value.as_str();
        // As CNI and Kubernetes have it, a rate of 0 is no rate.
        let is_number =
            matches!(wish.by, WishPlace::Bandwidth | WishPlace::Limit) || wish.key.ends_with("Rate");
        if is_number && text == "0" {
            return Ok(false);
        }
        let text = if wish.by == WishPlace::Limit { in_mbit.as_str() } else { text };
        let key = match value {
            Value::Weight => {
                self.policy.weight = Some(text.parse()?);
                "weight"
            }
            Value::Max => {
                let Some(max) = rate(text, |max| (None, max))? else { return Ok(false) };
                self.policy.max = Some(max);
                "max"
            }
            Value::Min => {
                let Some(min) = rate(text, |min| (min, self.policy.max))? else { return Ok(false) };
                self.policy.min = Some(min);
                "min"
            }
            Value::Group if is_group(text) => {
                self.group = Some(text.to_owned());
                "group"
            }
            Value::Group => return Err(LabelError::Group),
            Value::Burst => {
                let burst: Option<u64> = text.parse().ok();
                if burst.is_none_or(|burst| (1..NO_BURST).contains(&burst)) {
                    self.ignore(wish, "a class has no burst of its own".to_owned());
                }
                return Ok(false);
            }
            Value::Download if self.shares_download => {
                let Some(max) = rate(text, |max| (None, max))? else { return Ok(false) };
                self.policy.down.max = Some(max);
                "down.max"
            }
            Value::Download => {
                let asked = text.parse().map_or_else(|_| brief(text), |rate: BitRate| rate.to_string());
                self.unmet =
                    Some(format!("weir shapes no download, and {wish} asks for {asked} of it at most"));
                return Ok(true);
            }
            Value::DownWeight | Value::DownMin if !self.shares_download => {
                self.ignore(wish, "the download is not shared ([link] download)".to_owned());
                return Ok(true);
            }
            Value::DownWeight => {
                self.policy.down.weight = Some(text.parse()?);
                "down.weight"
            }
            Value::DownMin => {
                let Some(min) = rate(text, |min| (min, self.policy.down.max))? else { return Ok(false) };
                self.policy.down.min = Some(min);
                "down.min"
            }
            Value::Nothing => return Ok(true),
        };
        self.asked_by.insert(key, wish.to_string());
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use weir_share::{Policy, Weight};

    use super::{read as read_with, *};

    /// Reads the wishes on a node that shares no download.
    fn read(wishes: &[Wish]) -> Wishes {
        read_with(wishes, false)
    }

    fn wish(by: WishPlace, key: &str, value: &str) -> Wish {
        Wish { by, key: key.to_owned(), value: value.to_owned() }
    }

    fn annotation(key: &str, value: &str) -> Wish {
        wish(WishPlace::Annotation, key, value)
    }

    #[test]
    fn the_strongest_place_of_each_value_counts() {
        let all = [
            wish(WishPlace::Plugin, "max", "1mbit"),
            annotation("kubernetes.io/egress-bandwidth", "2M"),
            wish(WishPlace::Bandwidth, "egressRate", "2000000"),
            wish(WishPlace::Plugin, "egressRate", "3000000"),
            wish(WishPlace::Argument, "WEIR_MAX", "4mbit"),
            annotation("weir.dev/max", "5mbit"),
        ];
        let by = ["plugin's configuration", "egress", "egress", "egressRate of", "WEIR_MAX", "weir.dev/max"];
        for n in 1..=all.len() {
            let read = read(&all[..n]);
            let want = [1, 2, 2, 3, 4, 5][n - 1];
            assert_eq!(read.policy.max, Some(BitRate::mbit(want)), "{n}");
            assert!(read.asked_by["max"].contains(by[n - 1]), "{n}: {}", read.asked_by["max"]);
            assert_eq!(read.remarks, Vec::<String>::new());
        }
    }

    #[test]
    fn a_senseless_wish_is_named_and_the_next_one_counts() {
        let read = read(&[
            annotation("weir.dev/max", "fast\u{1b}[31m"),
            annotation("weir.dev/weight", "0"),
            annotation("weir.dev/group", "../etc"),
            annotation("weir.dev/wieght", "3"),
            annotation("weir.dev/min", "9mbit"),
            wish(WishPlace::Bandwidth, "egressRate", "4000000"),
            wish(WishPlace::Plugin, "weight", "2"),
            wish(WishPlace::Plugin, "wait", "2"),
        ]);
        let max = Some(BitRate::mbit(4));
        assert_eq!(read.policy, LabelPolicy { weight: Weight::new(2).ok(), max, ..LabelPolicy::default() });
        assert_eq!(read.asked_by["max"], "runtimeConfig.bandwidth.egressRate");
        assert_eq!(read.asked_by["weight"], "key weight of the plugin's configuration");
        let said = read.remarks.join("\n");
        for part in [
            "annotation weir.dev/wieght=3 is ignored: weir knows weir.dev/weight, weir.dev/min",
            "key wait of the plugin's configuration=2 is ignored: weir knows weight, min",
            "annotation weir.dev/max=fast\\u{1b}[31m is ignored: cannot read",
            "annotation weir.dev/weight=0 is ignored: ",
            "annotation weir.dev/group=../etc is ignored: a group's name begins",
            "annotation weir.dev/min=9mbit is ignored: ",
        ] {
            assert!(said.contains(part), "{part}:\n{said}");
        }
        assert_eq!(read.remarks.len(), 6);
    }

    #[test]
    fn a_burst_of_containerd_is_none_and_another_one_is_told() {
        let with = |burst: &str| {
            read(&[
                wish(WishPlace::Bandwidth, "egressRate", "4000000"),
                wish(WishPlace::Bandwidth, "egressBurst", burst),
            ])
            .remarks
        };
        for none in ["4294967295", "2147483647", "0"] {
            assert_eq!(with(none), Vec::<String>::new(), "{none}");
        }
        let told =
            "runtimeConfig.bandwidth.egressBurst=2147483646 is ignored: a class has no burst of its own";
        assert_eq!(with("2147483646"), [told]);
        assert_eq!(with("x").len(), 1);
    }

    #[test]
    fn a_download_limit_is_told_as_not_enforced() {
        let none =
            ["ingressRate", "egressRate", "ingressBurst"].map(|key| wish(WishPlace::Bandwidth, key, "0"));
        assert_eq!(read(&none), Wishes::default());
        let both = read(&[
            wish(WishPlace::Bandwidth, "ingressRate", "4000000"),
            annotation("kubernetes.io/ingress-bandwidth", "4M"),
        ]);
        let told =
            "weir shapes no download, and runtimeConfig.bandwidth.ingressRate asks for 4mbit of it at most";
        assert_eq!(both.unmet.as_deref(), Some(told));
        assert_eq!((both.policy, both.remarks.len()), (LabelPolicy::default(), 0));
    }

    #[test]
    fn a_download_limit_is_a_maximum_where_the_download_is_shared() {
        let shared = read_with(
            &[
                wish(WishPlace::Bandwidth, "ingressRate", "4000000"),
                wish(WishPlace::Plugin, "ingressRate", "much"),
                annotation("kubernetes.io/ingress-bandwidth", "8M"),
            ],
            true,
        );
        assert_eq!((shared.policy.down.max, shared.unmet), (Some(BitRate::mbit(4)), None));
        assert_eq!(shared.asked_by["down.max"], "runtimeConfig.bandwidth.ingressRate");
        assert_eq!(shared.policy.max, None);
        let [remark] = &shared.remarks[..] else { panic!("{:?}", shared.remarks) };
        assert!(
            remark.starts_with("key ingressRate of the plugin's configuration=much is ignored: "),
            "{remark}"
        );
    }

    #[test]
    fn a_resource_limit_is_the_minimum_before_an_annotation() {
        let limit = |key: &str, value: &str| wish(WishPlace::Limit, key, value);
        let read = read_with(
            &[
                annotation("weir.dev/min", "9mbit"),
                limit(EGRESS, "4"),
                annotation("weir.dev/down.max", "8mbit"),
                annotation("weir.dev/down.weight", "3"),
                annotation("weir.dev/down.min", "1mbit"),
                limit(INGRESS, "2"),
            ],
            true,
        );
        assert_eq!((read.policy.min, read.policy.down.min), (Some(BitRate::mbit(4)), Some(BitRate::mbit(2))));
        assert_eq!(
            (read.policy.down.weight, read.policy.down.max),
            (Weight::new(3).ok(), Some(BitRate::mbit(8)))
        );
        assert_eq!(read.asked_by["min"], "resource limit weir.dev/egress-mbit");
        assert_eq!(read.remarks, Vec::<String>::new());
        let none = super::read(&[limit(EGRESS, "0"), annotation("weir.dev/min", "9mbit")], false);
        assert_eq!(none.policy.min, Some(BitRate::mbit(9)));
        let alone = super::read(&[annotation("weir.dev/down.weight", "3")], false);
        let told =
            "annotation weir.dev/down.weight=3 is ignored: the download is not shared ([link] download)";
        assert_eq!((alone.remarks, alone.policy), (vec![told.to_owned()], LabelPolicy::default()));
    }

    #[test]
    fn none_counts_as_not_given() {
        let read = read(&[annotation("weir.dev/max", "none"), wish(WishPlace::Plugin, "max", "3mbit")]);
        assert_eq!((read.policy.max, read.remarks.len()), (Some(BitRate::mbit(3)), 0));
    }

    proptest! {
        #[test]
        fn whatever_is_asked_what_is_left_is_a_policy_and_text_of_one_line(
            asked in prop::collection::vec(
                (0..5_u8, "weir\\.dev/((down\\.)?(min|max|weight)|group|egress-mbit)|WEIR_(MIN|MAX)|egressRate|min|max|\\PC{0,9}|[\\x00-\\x1f]{1,3}",
                 "\\PC{0,9}|[0-9]{1,16}(M|mbit)?|[\\x00-\\x1f]{1,3}"),
                0..40,
            ),
        ) {
            let places =
                [WishPlace::Plugin, WishPlace::Bandwidth, WishPlace::Argument, WishPlace::Annotation, WishPlace::Limit];
            let wishes: Vec<Wish> = asked.iter().map(|(by, key, value)| wish(places[usize::from(*by)], key, value)).collect();
            let read = read(&wishes);
            let LabelPolicy { weight, min, max, .. } = read.policy;
            prop_assert!(Policy::new(weight.unwrap_or_default(), min, max).is_ok());
            prop_assert!(read.remarks.len() <= MAX_REMARKS + 1);
            for text in read.remarks.iter().chain(&read.unmet).chain(read.asked_by.values()) {
                prop_assert!(!text.contains(char::is_control), "{text:?}");
            }
        }
    }
}
