//! `[labels]`: the values that containers may set by their labels.

use std::collections::BTreeSet;

use serde::{Deserialize, Deserializer};
use weir_discovery::{Found, FromImage, LabelPolicy};
use weir_share::Weight;
use weir_units::BitRate;

use super::{
    Config, Layer,
    fault::{Fault, fault},
};

/// The keys of labels, without `weir.`.
const KEYS: [&str; 4] = ["weight", "min", "max", "group"];

/// `[labels]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Labels {
    /// The allowed keys.
    #[serde(deserialize_with = "allow")]
    pub(crate) allow: BTreeSet<String>,
    /// The highest weight by label.
    pub(crate) max_weight: Option<Weight>,
    /// The highest minimum by label.
    pub(crate) max_min: Option<BitRate>,
    /// The highest sum of minima by labels.
    pub(crate) min_total: Option<BitRate>,
    /// The groups of the configuration that a label may name.
    pub(crate) groups: Vec<String>,
    /// Whether labels from the image count.
    pub(crate) from_image: bool,
}

impl Default for Labels {
    fn default() -> Labels {
        Labels {
            allow: KEYS.map(str::to_owned).into(),
            max_weight: None,
            max_min: None,
            min_total: None,
            groups: Vec::new(),
            from_image: false,
        }
    }
}

fn allow<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeSet<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "\"all\", \"limits\", \"none\" or a list of weight, min, max and group")]
    enum Raw {
        Word(String),
        Keys(Vec<String>),
    }
    let keys: Vec<String> = match Raw::deserialize(deserializer)? {
        Raw::Word(word) => match word.as_str() {
            "all" => KEYS.map(str::to_owned).into(),
            // A limit takes bandwidth from no other class.
            "limits" => vec!["max".to_owned()],
            "none" => Vec::new(),
            _ => {
                let why = format!("`{word}` is not all, limits or none");
                return Err(serde::de::Error::custom(why));
            }
        },
        Raw::Keys(keys) => keys,
    };
    match keys.iter().find(|key| !KEYS.contains(&key.as_str())) {
        Some(key) => {
            let why = format!("`{key}` is not a label: there are {}", KEYS.join(", "));
            Err(serde::de::Error::custom(why))
        }
        None => Ok(keys.into_iter().collect()),
    }
}

/// Whether the section's values fit the rest of the file.
pub(super) fn check(config: &Config) -> Result<(), Fault> {
    let labels = &config.labels;
    for (key, rate) in [("max_min", labels.max_min), ("min_total", labels.min_total)] {
        if rate == Some(BitRate::ZERO) {
            let why = "0 is no minimum: leave `min` out of `allow` to have no label ask for one";
            return Err(fault(format!("[labels] {key}"), why));
        }
    }
    match labels.groups.iter().find(|name| !config.groups.iter().any(|group| group.name == **name)) {
        Some(name) => Err(fault("[labels] groups", format!("there is no [[group]] `{name}`"))),
        None => Ok(()),
    }
}

/// The accepted labels of a container.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Granted {
    pub(crate) layer: Layer,
    /// Those of what arrives.
    pub(crate) down: Layer,
    pub(crate) group: Option<String>,
    /// The labels that were cut, and the reasons.
    pub(crate) cut: Vec<String>,
}

/// Limits the labels of `found`, and its wishes by CNI, to the configured bounds.
pub(crate) fn grant(config: &Config, found: &Found) -> Granted {
    let labels = &config.labels;
    let mut cut = found.remarks.clone();
    let LabelPolicy { weight, min, max, down } = found.policy;
    let mut layer = granted(config, found, "", Layer { weight, min, max }, &mut cut);
    let asked = Layer { weight: down.weight, min: down.min, max: down.max };
    let mut down = if config.link.download.is_some() || asked.is_empty() {
        granted(config, found, "down.", asked, &mut cut)
    } else {
        cut.push("labels weir.down do not count: the download is not shared ([link] download)".to_owned());
        Layer::default()
    };
    let mut group = found.group.clone().filter(|group| {
        is_namespace(found, group) || counts(config, found, ("", "group"), Some(group.clone()), &mut cut)
    });
    cap(config, found, "", &mut layer, &mut cut);
    cap(config, found, "down.", &mut down, &mut cut);
    let is_closed = |name: &String| {
        let is_owned = config.groups.iter().any(|group| group.name == *name);
        is_owned && !labels.groups.contains(name)
    };
    if let Some(closed) = group.take_if(|name| is_closed(name)) {
        let place = asked_by(found, "", "group").unwrap_or("label");
        cut.push(format!("group {closed} by {place} does not count: [labels] groups does not list it"));
    }
    Granted { layer, down, group, cut }
}

/// Whether a group is that of a pod's namespace, for which no one asks.
fn is_namespace(found: &Found, group: &str) -> bool {
    asked_by(found, "", "group") == Some(by_namespace(group).as_str())
}

/// The place of a group that is that of a pod's namespace.
pub(crate) fn by_namespace(namespace: &str) -> String {
    format!("namespace {namespace}")
}

/// Whether a label counts: the one of this direction (a prefix) and key.
fn counts(
    config: &Config,
    found: &Found,
    (direction, key): (&str, &str),
    asked: Option<String>,
    cut: &mut Vec<String>,
) -> bool {
    let Some(asked) = asked else { return false };
    let labels = &config.labels;
    let why = if !labels.allow.contains(key) {
        "[labels] allow leaves it out".to_owned()
    } else if labels.from_image
        || asked_by(found, direction, key).is_some()
        || !found.from_image.has(&format!("weir.{direction}{key}"))
    {
        return true;
    } else {
        match &found.from_image {
            FromImage::Keys(_) => "it comes from the image ([labels] from_image)".to_owned(),
            FromImage::Unknown(why) => format!("its image cannot be asked for its labels: {why}"),
        }
    };
    let place = asked_by(found, direction, key).unwrap_or("label");
    cut.push(format!("{direction}{key} {asked} by {place} does not count: {why}"));
    false
}

/// The place other than a label that asks for a value.
fn asked_by<'a>(found: &'a Found, direction: &str, key: &str) -> Option<&'a str> {
    found.asked_by.get(format!("{direction}{key}").as_str()).map(String::as_str)
}

/// The labels of a direction that count.
fn granted(config: &Config, found: &Found, direction: &str, asked: Layer, cut: &mut Vec<String>) -> Layer {
    let mut counts =
        |key, asked: Option<String>| asked.is_some() && counts(config, found, (direction, key), asked, cut);
    Layer {
        weight: asked.weight.filter(|weight| counts("weight", Some(weight.to_string()))),
        min: asked.min.filter(|min| counts("min", Some(min.to_string()))),
        max: asked.max.filter(|max| counts("max", Some(max.to_string()))),
    }
}

/// Holds the labels of a direction to the bounds.
fn cap(config: &Config, found: &Found, direction: &str, layer: &mut Layer, cut: &mut Vec<String>) {
    let labels = &config.labels;
    if let (Some(weight), Some(most)) = (layer.weight, labels.max_weight)
        && weight > most
    {
        let place = asked_by(found, direction, "weight").unwrap_or("label");
        cut.push(format!("{direction}weight {weight} by {place}, cut to {most} by [labels] max_weight"));
        layer.weight = Some(most);
    }
    if let (Some(min), Some(most)) = (layer.min, labels.max_min)
        && min > most
    {
        let place = asked_by(found, direction, "min").unwrap_or("label");
        cut.push(format!("{direction}min {min} by {place}, cut to {most} by [labels] max_min"));
        layer.min = Some(most);
    }
}

/// Marks the minima `asked` by labels that fit into `total` together, the oldest first.
pub(crate) fn within(total: Option<BitRate>, asked: &[BitRate]) -> Vec<bool> {
    let Some(BitRate(mut free)) = total else { return vec![true; asked.len()] };
    let fits = |min: &BitRate| free.checked_sub(min.0).map(|left| free = left).is_some();
    asked.iter().map(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_discovery::{DownLabels, Location, Source};

    fn config(text: &str) -> Result<Config, crate::config::ConfigError> {
        let text = format!("[link]\ndevice = \"eth0\"\ncapacity = \"20mbit\"\n{text}");
        crate::config::parse(&text, std::path::Path::new("test.toml"))
    }

    /// A container whose image sets all values that labels can set.
    fn miner(from_image: FromImage) -> Found {
        let location = Location::Interface("veth1".into());
        Found {
            from_image,
            policy: LabelPolicy {
                weight: Weight::new(10_000).ok(),
                min: Some(BitRate::mbit(18)),
                max: Some(BitRate::mbit(19)),
                ..LabelPolicy::default()
            },
            group: Some("tenant-a".into()),
            ..Found::new("c1".into(), "miner".into(), Source::Docker, location)
        }
    }

    fn all_keys() -> FromImage {
        FromImage::Keys(KEYS.map(|key| format!("weir.{key}")).into())
    }

    #[test]
    fn labels_of_an_image_do_not_count_unless_configured() {
        let granted = grant(&config("").unwrap(), &miner(all_keys()));
        assert_eq!((granted.layer, granted.group), (Layer::default(), None));
        assert_eq!(granted.cut.len(), 4);
        assert_eq!(
            granted.cut[0],
            "weight 10000 by label does not count: it comes from the image ([labels] from_image)"
        );
        let granted = grant(&config("[labels]\nfrom_image = true").unwrap(), &miner(all_keys()));
        assert_eq!(granted.layer.weight, Weight::new(10_000).ok());
        assert_eq!(granted.cut, Vec::<String>::new());
    }

    #[test]
    fn labels_do_not_count_while_the_image_is_unknown() {
        let granted = grant(&config("").unwrap(), &miner(FromImage::Unknown("no answer".into())));
        assert_eq!((granted.layer, granted.group), (Layer::default(), None));
        assert!(granted.cut[0].ends_with("its image cannot be asked for its labels: no answer"));
    }

    #[test]
    fn wishes_by_cni_count_beside_an_images_labels_and_are_cut_by_name() {
        let config = config("[labels]\nmax_weight = 10\nallow = [\"weight\", \"max\"]\n").unwrap();
        let mut pod = miner(all_keys());
        let asked = |key: &str| format!("annotation weir.dev/{key}");
        pod.asked_by = [("weight", asked("weight")), ("min", asked("min"))].into();
        pod.remarks = vec!["annotation weir.dev/max=x is ignored".to_owned()];
        let granted = grant(&config, &pod);
        assert_eq!(granted.layer, Layer { weight: Weight::new(10).ok(), min: None, max: None });
        let said = [
            "annotation weir.dev/max=x is ignored",
            "min 18mbit by annotation weir.dev/min does not count: [labels] allow leaves it out",
            "max 19mbit by label does not count: it comes from the image ([labels] from_image)",
            "group tenant-a by label does not count: [labels] allow leaves it out",
            "weight 10000 by annotation weir.dev/weight, cut to 10 by [labels] max_weight",
        ];
        assert_eq!(granted.cut, said);
    }

    #[test]
    fn labels_are_cut_to_the_configured_most_with_numbers() {
        let config = config("[labels]\nmax_weight = 10\nmax_min = \"2mbit\"\n").unwrap();
        let granted = grant(&config, &miner(FromImage::default()));
        assert_eq!(granted.layer.weight, Weight::new(10).ok());
        assert_eq!(granted.layer.min, Some(BitRate::mbit(2)));
        let said = [
            "weight 10000 by label, cut to 10 by [labels] max_weight",
            "min 18mbit by label, cut to 2mbit by [labels] max_min",
        ];
        assert_eq!(granted.cut, said);
    }

    #[test]
    fn a_configured_group_is_closed_to_labels_unless_listed() {
        let group = "[[group]]\nname = \"tenant-a\"\n";
        let joined = |text: &str| grant(&config(text).unwrap(), &miner(FromImage::default())).group;
        assert_eq!(joined(group), None);
        let open = format!("[labels]\ngroups = [\"tenant-a\"]\n{group}");
        assert_eq!(joined(&open).as_deref(), Some("tenant-a"));
        assert_eq!(joined("").as_deref(), Some("tenant-a"));
    }

    #[test]
    fn only_the_allowed_keys_count() {
        let left = |allow: &str| {
            let config = config(&format!("[labels]\nallow = {allow}")).unwrap();
            let granted = grant(&config, &miner(FromImage::default()));
            let Layer { weight, min, max } = granted.layer;
            (weight.is_some(), min.is_some(), max.is_some(), granted.group.is_some())
        };
        assert_eq!(left("\"all\""), (true, true, true, true));
        assert_eq!(left("\"limits\""), (false, false, true, false));
        assert_eq!(left("\"none\""), (false, false, false, false));
        assert_eq!(left("[\"weight\", \"max\"]"), (true, false, true, false));
    }

    #[test]
    fn a_section_that_makes_no_sense_is_refused() {
        for (text, why) in [
            ("allow = \"some\"", "`some` is not all, limits or none"),
            ("allow = [\"wieght\"]", "`wieght` is not a label"),
            ("max_weight = 0", "weight"),
            ("min_total = \"0\"", "0 is no minimum"),
            ("groups = [\"nobody\"]", "there is no [[group]] `nobody`"),
            ("max = 3", "unknown field"),
        ] {
            let error = config(&format!("[labels]\n{text}")).expect_err(text).to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn labels_of_the_download_have_the_same_bounds_and_need_a_download() {
        let down = DownLabels { weight: Weight::new(50).ok(), max: Some(BitRate::mbit(3)), min: None };
        let mut found = miner(FromImage::default());
        found.policy = LabelPolicy { down, ..LabelPolicy::default() };
        let granted = grant(&config("").unwrap(), &found);
        assert_eq!(granted.down, Layer::default());
        assert_eq!(
            granted.cut,
            ["labels weir.down do not count: the download is not shared ([link] download)"]
        );
        let text = "[link]\ndevice = \"eth0\"\ncapacity = \"20mbit\"\ndownload = \"50mbit\"\n[labels]\nmax_weight = 10\n";
        let shared = crate::config::parse(text, std::path::Path::new("test.toml")).unwrap();
        let granted = grant(&shared, &found);
        let (weight, max) = (Weight::new(10).ok(), Some(BitRate::mbit(3)));
        assert_eq!(granted.down, Layer { weight, min: None, max });
        assert_eq!(granted.cut, ["down.weight 50 by label, cut to 10 by [labels] max_weight"]);
        found.from_image = FromImage::Keys(["weir.down.max".to_owned()].into());
        assert_eq!(grant(&shared, &found).down.max, None);
    }

    #[test]
    fn minima_by_labels_together_stay_within_the_total() {
        let asked = [3, 4, 2].map(BitRate::mbit);
        assert_eq!(within(Some(BitRate::mbit(5)), &asked), [true, false, true]);
        assert_eq!(within(None, &asked), [true; 3]);
    }
}
