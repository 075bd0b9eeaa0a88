//! Checks beyond serde: double names, values out of bounds, and contradictions between parts.

use std::{collections::BTreeSet, fmt, ops::RangeInclusive};

use weir_datapath::engine;
use weir_share::{Admission, AdmitError, Claimant, Policy};
use weir_units::{BitRate, Bytes};

use super::{
    Agent, Config, Layer, Link, OTHER, agreements, api, capacity, classes,
    classes::check_interface,
    fault::{Fault, fault},
    framing, kubernetes, labels, links,
    names::{bare_name, check_name},
};

/// The capacity of a link, in either direction.
const CAPACITY: RangeInclusive<BitRate> = BitRate::kbit(64)..=BitRate::MAX;
/// `[link] queues`
const QUEUES: RangeInclusive<u32> = 1..=256;
/// `[link] delay_ms`
const DELAY_MS: RangeInclusive<u32> = 1..=10_000;
/// `[agent] audit_size`
const AUDIT_SIZE: RangeInclusive<Bytes> = Bytes(64 << 10)..=Bytes(1 << 30);
/// `[agent] audit_files`
const AUDIT_FILES: RangeInclusive<u32> = 2..=1_000;

/// Checks that the parts of a configuration fit together, and that weir can enforce each value.
pub(super) fn check(config: &Config) -> Result<(), Fault> {
    let link = &config.link;
    link.all().try_for_each(|one| check_link(one).map_err(|(what, why)| (link.fault_of(one, &what), why)))?;
    links::check(link)?;
    check_agent(&config.agent)?;
    for (what, layer) in
        [("[defaults]", config.defaults), ("[host]", config.host), ("[default]", config.default)]
    {
        layer.layer().policy().map_err(|e| fault(what, e))?;
    }
    check_download(config)?;
    let groups = check_groups(config)?;
    classes::check(&config.classes, &groups)?;
    if let Some(agreements) = &config.agreements {
        agreements::check(agreements, link)?;
        if agreements.ceiling(link).is_some() && groups.contains(OTHER) {
            return Err(fault(format!("[[group]] {OTHER}"), "[agreements] makes a group of that name"));
        }
    }
    check_congestion(config)?;
    if let Some(advice) = &config.advice {
        advice.check().map_err(|e| fault("[advice]", e))?;
    }
    check_images(config)?;
    check_incus(config)?;
    api::check(config)?;
    kubernetes::check(config)?;
    labels::check(config)?;
    classes::check_selectors(&config.classes)?;
    // A minimum that one of the links has is suspended on the others.
    on_a_link(config, &|config| {
        check_minima(config)?;
        match config.download() {
            Some(download) => {
                check_minima(&download).map_err(|(what, why)| fault(format!("{what}: down"), why))
            }
            None => Ok(()),
        }
    })
}

/// Checks the policies of groups. Returns their names.
fn check_groups(config: &Config) -> Result<BTreeSet<&str>, Fault> {
    let mut names = BTreeSet::new();
    for group in &config.groups {
        let what = format!("[[group]] {}", group.name);
        check_name(&group.name).map_err(|e| fault(&what, e))?;
        if !names.insert(group.name.as_str()) {
            return Err(fault(what, "this group is there twice"));
        }
        group.layer().policy().map_err(|e| fault(what, e))?;
    }
    Ok(names)
}

fn check_congestion(config: &Config) -> Result<(), Fault> {
    let named = |rule: &weir_cc::Rule| [rule.container.clone(), rule.group.clone()];
    for name in config.congestion.iter().flat_map(named).flatten() {
        check_name(bare_name(&name)).map_err(|e| fault("[[congestion]]", e))?;
    }
    weir_cc::Rules::new(config.congestion.clone()).map_err(|e| fault("[[congestion]]", e))?;
    Ok(())
}

fn check_images(config: &Config) -> Result<(), Fault> {
    let Some(images) = &config.images else { return Ok(()) };
    images.check()?;
    let names_docker = |runtime: &weir_image::RuntimeSettings| runtime.docker.is_some();
    if images.runtime.as_ref().is_some_and(|runtime| !names_docker(runtime))
        && config.discover.docker.is_none()
    {
        let detail = "[discover] docker is false, so name Docker's socket here";
        return Err(fault("[images.runtime] docker", detail));
    }
    Ok(())
}

fn check_incus(config: &Config) -> Result<(), Fault> {
    if config.discover.incus.is_empty() || config.discover.lxc {
        return Ok(());
    }
    let detail = "[discover] lxc is false, and it alone finds the containers whose keys Incus tells: set it, or leave incus out";
    Err(fault("[discover] incus", detail))
}

/// Checks something that has to hold on one of the links at least. The fault is that of the first link.
fn on_a_link(config: &Config, check: &dyn Fn(&Config) -> Result<(), Fault>) -> Result<(), Fault> {
    let first = check(config);
    let others = || config.link.others.iter().filter_map(|link| config.sharing(&link.device));
    if first.is_ok() || others().any(|config| check(&config).is_ok()) { Ok(()) } else { first }
}

fn check_bounds<T: PartialOrd + fmt::Display>(
    key: &str,
    value: &T,
    bounds: &RangeInclusive<T>,
) -> Result<(), Fault> {
    if bounds.contains(value) {
        return Ok(());
    }
    let (least, most) = (bounds.start(), bounds.end());
    Err(fault(key, format!("{value} is not between {least} and {most}")))
}

/// Checks the keys of one link.
fn check_link(link: &Link) -> Result<(), Fault> {
    if link.device.is_empty() {
        let detail = "no uplink is named: fill in device and capacity, as in device = \"eth0\" and capacity = \"95mbit\" \
             (`ip route show default` names the uplink)";
        return Err(fault("[link]", detail));
    }
    if link.capacity == BitRate::ZERO {
        let detail = format!(
            "0bit is not between {} and {}: fill in what {} carries, less about 5 %, as in \"95mbit\"",
            CAPACITY.start(),
            CAPACITY.end(),
            link.device
        );
        return Err(fault("[link] capacity", detail));
    }
    check_interface(&link.device).map_err(|why| fault("[link] device", why))?;
    check_bounds("[link] capacity", &link.capacity, &CAPACITY)?;
    if link.choice().is_none() {
        let detail = "engine = \"bpf-credit\" alone has forms: name that engine, or leave `form` out";
        return Err(fault("[link] form", detail));
    }
    framing::check(link)?;
    capacity::check(link)?;
    check_bounds("[link] queues", &link.queues, &QUEUES)?;
    check_bounds("[link] delay_ms", &link.delay_ms, &DELAY_MS)?;
    Ok(())
}

/// The most bytes of a unix socket's path. The kernel's buffer has a zero behind them.
const MAX_SOCKET_PATH: usize = 107;

fn check_agent(agent: &Agent) -> Result<(), Fault> {
    check_bounds("[agent] audit_size", &agent.audit_size, &AUDIT_SIZE)?;
    check_bounds("[agent] audit_files", &agent.audit_files, &AUDIT_FILES)?;
    check_paths(agent)
}

fn check_paths(agent: &Agent) -> Result<(), Fault> {
    for (what, path) in [("[agent] socket", &agent.socket), ("[agent] state", &agent.state)] {
        if path.as_os_str().is_empty() {
            return Err(fault(what, "the path is empty: name one, or leave the key out"));
        }
    }
    let length = agent.socket.as_os_str().len();
    if length > MAX_SOCKET_PATH {
        let detail =
            format!("the path has {length} bytes, and that of a socket has at most {MAX_SOCKET_PATH}");
        return Err(fault("[agent] socket", detail));
    }
    Ok(())
}

/// Checks the download's capacity, and that each policy of what arrives can be enforced.
fn check_download(config: &Config) -> Result<(), Fault> {
    let is_unfit = |link: &&Link| link.download.is_some_and(|rate| !CAPACITY.contains(&rate));
    if let Some(link) = config.link.all().find(is_unfit) {
        let capacity = link.download.unwrap_or_default();
        let (least, most) = (CAPACITY.start(), CAPACITY.end());
        let detail =
            format!("{capacity} is not between {least} and {most}; leave it out to share no download");
        return Err(fault(config.link.fault_of(link, "[link] download"), detail));
    }
    if config.link.download.is_none() && config.link.charge_drops {
        let detail = "the download is not shared: set [link] download, or take this away";
        return Err(fault("[link] charge_drops", detail));
    }
    if let (Some(_), Some(engine::Choice::Only(kind))) = (config.link.download, config.link.choice()) {
        engine::Download::goes_with(kind).map_err(|e| fault("[link] download", e))?;
    }
    for (what, layer) in config.with_down() {
        let what = format!("{what}: down");
        if config.link.download.is_none() {
            let detail = "the download is not shared: set [link] download, or take this away";
            return Err(fault(what, detail));
        }
        layer.policy().map_err(|e| fault(what, e))?;
    }
    match config.classes.iter().find(|class| !class.selectors.is_empty() && !class.down.is_empty()) {
        Some(class) => {
            let detail = "a match selects packets that leave: what arrives belongs to the sender's class";
            Err(fault(format!("[[class]] {}: down", class.name), detail))
        }
        None => Ok(()),
    }
}

/// Checks that the file's minima can be promised together when all its classes are present.
fn check_minima(config: &Config) -> Result<(), Fault> {
    let link = &config.link;
    let own = link.reservable.of(link.assured());
    let promisable = config.agreements.as_ref().map_or(own, |a| a.promisable(link));
    let ceiling = config.agreements.as_ref().and_then(|a| a.ceiling(link));
    let policy = |what: &str, layer: Layer| layer.policy().map_err(|e| fault(what, e));
    let mut groups = Vec::new();
    for group in &config.groups {
        let policy = policy(&format!("[[group]] {}", group.name), group.layer())?;
        groups.push(Claimant { name: &group.name, policy, group: None });
    }
    // All classes without an agreement form one group if agreements limit them to a ceiling. Groups do
    // not nest.
    let other = ceiling.map(|_| groups.len() as u32);
    if let Some(ceiling) = ceiling {
        let policy = policy("[agreements] other", Layer { max: Some(ceiling), ..Layer::default() })?;
        groups.push(Claimant { name: OTHER, policy, group: None });
    }
    let mut classes = vec![
        Claimant { name: "host", policy: policy("[host]", config.host.layer())?, group: other },
        Claimant { name: "default", policy: policy("[default]", config.default.layer())?, group: other },
    ];
    for class in &config.classes {
        let (own, defaults) = (class.layer(), config.defaults);
        let layer =
            Layer { weight: own.weight, min: own.min.or(defaults.min), max: own.max.or(defaults.max) };
        let policy = policy(&format!("[[class]] {} with [defaults]", class.name), layer)?;
        let group = class.group.as_ref().and_then(|name| config.groups.iter().position(|g| g.name == *name));
        let group = other.or(group.map(|index| index as u32));
        classes.push(Claimant { name: &class.name, policy, group });
    }
    let admission = Admission::beside(link.assured(), promisable, BitRate::ZERO);
    let refused = |place: String, error: &AdmitError| {
        fault(place, format!("its minimum of {} cannot be promised: {}", error.asked(), error.reason()))
    };
    admission.check(&groups, &classes).map_err(|error| refused(place(config, &error), &error))?;
    let policy = Policy::new(config.defaults.weight.unwrap_or_default(), config.defaults.min, None);
    let found = Claimant { name: "a class that is found", policy: policy.unwrap_or_default(), group: None };
    admission.check(&[], &[found]).map_err(|error| refused("[defaults]".to_owned(), &error))?;
    Ok(())
}

/// The section of the refused minimum.
fn place(config: &Config, error: &AdmitError) -> String {
    let name = error.name();
    match name {
        "host" | "default" => format!("[{name}]"),
        _ if matches!(error, AdmitError::GroupTooSmall { .. }) => format!("[[group]] {name}"),
        _ if config.classes.iter().any(|class| class.name == name) => format!("[[class]] {name}"),
        _ => format!("[[group]] {name}"),
    }
}
