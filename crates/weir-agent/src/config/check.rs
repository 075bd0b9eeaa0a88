//! Checks beyond serde: double names, values out of bounds, and contradictions between parts.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path, PathBuf},
};

use weir_datapath::engine;
use weir_discovery::units::SliceName;
use weir_share::{Admission, AdmitError, Claimant, Policy};
use weir_units::{BitRate, Bytes};

use super::{
    Agent, ClassConfig, Config, Layer, Link, OTHER, RESERVED, Selector, agreements, api, capacity,
    fault::{Fault, fault},
    framing, kubernetes, labels, links,
};

/// Checks that the parts of a configuration fit together, and that weir can enforce each value.
pub(super) fn check(config: &Config) -> Result<(), Fault> {
    let link = &config.link;
    link.all().try_for_each(|one| check_link(one).map_err(|(what, why)| (link.fault_of(one, &what), why)))?;
    links::check(link)?;
    let (size, files) = (config.agent.audit_size, config.agent.audit_files);
    let [least, most] = [64 << 10, 1 << 30].map(Bytes);
    if !(least..=most).contains(&size) {
        return Err(fault("[agent] audit_size", format!("{size} is not between {least} and {most}")));
    }
    if !(2..=1_000).contains(&files) {
        return Err(fault("[agent] audit_files", format!("{files} is not between 2 and 1000")));
    }
    check_paths(&config.agent)?;
    for (what, layer) in
        [("[defaults]", config.defaults), ("[host]", config.host), ("[default]", config.default)]
    {
        layer.layer().policy().map_err(|e| fault(what, e))?;
    }
    check_download(config)?;
    let mut names = BTreeSet::new();
    for group in &config.groups {
        let what = format!("[[group]] {}", group.name);
        check_name(&group.name).map_err(|e| fault(&what, e))?;
        if !names.insert(group.name.as_str()) {
            return Err(fault(what, "this group is there twice"));
        }
        group.layer().policy().map_err(|e| fault(what, e))?;
    }
    let mut classes = BTreeSet::new();
    let mut interfaces = BTreeMap::new();
    let mut units = BTreeMap::new();
    let mut cgroups = BTreeMap::new();
    for class in &config.classes {
        let what = format!("[[class]] {}", class.name);
        let bare = class.name.split_once(':').map_or(class.name.as_str(), |(_, name)| name);
        check_name(bare).map_err(|e| fault(&what, e))?;
        if !classes.insert(class.name.as_str()) {
            return Err(fault(what, "this class is there twice"));
        }
        if RESERVED.contains(&class.name.as_str()) {
            return Err(fault(what, "this name is weir's own; set [host] or [default] instead"));
        }
        if let Some(group) = &class.group
            && !names.contains(group.as_str())
        {
            return Err(fault(what, format!("there is no [[group]] `{group}`")));
        }
        if let Some(interface) = &class.interface {
            check_interface(interface).map_err(|why| fault(format!("{what} interface"), why))?;
        }
        if let Some(interface) = &class.interface
            && let Some(other) = interfaces.insert(interface.as_str(), class.name.as_str())
        {
            return Err(fault(what, format!("interface {interface} belongs to class {other} already")));
        }
        if [class.cgroup.is_some(), class.unit.is_some(), class.slice.is_some()]
            .map(usize::from)
            .iter()
            .sum::<usize>()
            > 1
        {
            return Err(fault(what, "cgroup, unit and slice name the same processes: leave one of them"));
        }
        if let Some(path) =
            class.cgroup.as_ref().filter(|path| path.components().any(|c| c == Component::ParentDir))
        {
            let why =
                "is not a path below the root without `..`: write it as `systemd-cgls` shows it on the host";
            return Err(fault(what, format!("cgroup {} {why}", path.display())));
        }
        let unit = class.unit.as_ref().map(|unit| format!("unit {unit}"));
        if let Some(unit) = unit.or_else(|| class.slice.as_ref().map(|slice| format!("slice {slice}")))
            && let Some(other) = units.insert(unit.clone(), class.name.as_str())
        {
            return Err(fault(what, format!("{unit} belongs to class {other} already")));
        }
        if let Some(path) = cgroup_of(class)
            && let Some(other) = cgroups.insert(path.clone(), class.name.as_str())
        {
            let path = path.display();
            let detail = format!(
                "cgroup {path} belongs to class {other} already, and one class gets its packets: remove one of the \
                 two, or name a cgroup below {path}"
            );
            return Err(fault(what, detail));
        }
        class.layer().policy().map_err(|e| fault(what, e))?;
    }
    check_units(&config.classes)?;
    if let Some(agreements) = &config.agreements {
        agreements::check(agreements, link)?;
        if agreements.ceiling(link).is_some() && names.contains(OTHER) {
            return Err(fault(format!("[[group]] {OTHER}"), "[agreements] makes a group of that name"));
        }
    }
    let named = |rule: &weir_cc::Rule| [rule.container.clone(), rule.group.clone()];
    for name in config.congestion.iter().flat_map(named).flatten() {
        let bare = name.split_once(':').map_or(name.as_str(), |(_, name)| name);
        check_name(bare).map_err(|e| fault("[[congestion]]", e))?;
    }
    weir_cc::Rules::new(config.congestion.clone()).map_err(|e| fault("[[congestion]]", e))?;
    if let Some(advice) = &config.advice {
        advice.check().map_err(|e| fault("[advice]", e))?;
    }
    if let Some(images) = &config.images {
        images.check()?;
        let names_docker = |runtime: &weir_image::RuntimeSettings| runtime.docker.is_some();
        if images.runtime.as_ref().is_some_and(|runtime| !names_docker(runtime))
            && config.discover.docker.is_none()
        {
            let detail = "[discover] docker is false, so name Docker's socket here";
            return Err(fault("[images.runtime] docker", detail));
        }
    }
    api::check(config)?;
    kubernetes::check(config)?;
    labels::check(config)?;
    check_selectors(&config.classes)?;
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

/// Checks something that has to hold on one of the links at least. The fault is that of the first link.
fn on_a_link(config: &Config, check: &dyn Fn(&Config) -> Result<(), Fault>) -> Result<(), Fault> {
    let first = check(config);
    let others = || config.link.others.iter().filter_map(|link| config.sharing(&link.device));
    if first.is_ok() || others().any(|config| check(&config).is_ok()) { Ok(()) } else { first }
}

/// Whether the kernel takes a name for an interface (`dev_valid_name`, net/core/dev.c).
fn check_interface(name: &str) -> Result<(), String> {
    let is_free = |c: char| c != '/' && c != ':' && !c.is_whitespace();
    if (1..=15).contains(&name.len()) && name.chars().all(is_free) && name != "." && name != ".." {
        return Ok(());
    }
    Err(format!(
        "`{}` is not the name of an interface: 1 to 15 bytes without space, / and :",
        name.escape_debug()
    ))
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
            BitRate::kbit(64),
            BitRate::MAX,
            link.device
        );
        return Err(fault("[link] capacity", detail));
    }
    check_interface(&link.device).map_err(|why| fault("[link] device", why))?;
    if link.capacity < BitRate::kbit(64) || link.capacity > BitRate::MAX {
        let (least, most) = (BitRate::kbit(64), BitRate::MAX);
        return Err(fault("[link] capacity", format!("{} is not between {least} and {most}", link.capacity)));
    }
    if link.choice().is_none() {
        let detail = "engine = \"bpf-credit\" alone has forms: name that engine, or leave `form` out";
        return Err(fault("[link] form", detail));
    }
    framing::check(link)?;
    capacity::check(link)?;
    if !(1..=256).contains(&link.queues) {
        return Err(fault("[link] queues", format!("{} is not between 1 and 256", link.queues)));
    }
    if !(1..=10_000).contains(&link.delay_ms) {
        return Err(fault("[link] delay_ms", format!("{} is not between 1 and 10000", link.delay_ms)));
    }
    Ok(())
}

/// The most bytes of a unix socket's path. The kernel's buffer has a zero behind them.
const MAX_SOCKET_PATH: usize = 107;

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

/// Checks that no class names by its path the cgroup of another class's unit.
fn check_units(classes: &[ClassConfig]) -> Result<(), Fault> {
    let of_units: Vec<_> = classes.iter().filter_map(|class| Some((class, class.unit.as_ref()?))).collect();
    for (n, class) in classes.iter().enumerate() {
        let Some(path) = cgroup_of(class) else { continue };
        let Some((other, unit)) = of_units.iter().find(|(_, unit)| unit.is_at(&path)) else { continue };
        let is_first = classes[..n].iter().any(|before| before.name == other.name);
        let [first, second] = if is_first { [*other, class] } else { [class, *other] };
        let detail = format!(
            "cgroup {0} is that of unit {unit} and belongs to class {1} already, and one class gets its packets: remove \
             one of the two, or name a cgroup below {0}",
            path.display(),
            first.name
        );
        return Err(fault(format!("[[class]] {}", second.name), detail));
    }
    Ok(())
}

/// The cgroup that a class names by its path or as a slice. Two paths of one cgroup are equal.
fn cgroup_of(class: &ClassConfig) -> Option<PathBuf> {
    let path = class.cgroup.clone().or_else(|| class.slice.as_ref().map(SliceName::cgroup))?;
    let names = path.components().filter(|part| matches!(part, Component::Normal(_)));
    Some(Path::new("/").join(names.collect::<PathBuf>()))
}

/// Checks the download's capacity, and that each policy of what arrives can be enforced.
fn check_download(config: &Config) -> Result<(), Fault> {
    let (least, most) = (BitRate::kbit(64), BitRate::MAX);
    let is_unfit = |link: &&Link| link.download.is_some_and(|rate| !(least..=most).contains(&rate));
    if let Some(link) = config.link.all().find(is_unfit) {
        let capacity = link.download.unwrap_or_default();
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

fn check_selectors(classes: &[ClassConfig]) -> Result<(), Fault> {
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    for class in classes.iter().filter(|class| !class.selectors.is_empty()) {
        let what = |selector: &Selector| format!("[[class]] {}: match {selector}", class.name);
        if class.interface.is_some() || class.names_processes() {
            let detail = "cannot be combined with interface, cgroup, unit or slice: give those a class of their own and \
                name it as `container` of the match";
            return Err(fault(format!("[[class]] {}: match", class.name), detail));
        }
        for selector in &class.selectors {
            selector.check().map_err(|e| fault(what(selector), e))?;
            if let Some(other) = seen.insert(selector.to_string(), &class.name) {
                let detail = format!("class {other} has the same, and the first one takes what matches");
                return Err(fault(what(selector), detail));
            }
            if let Some(name) = &selector.container {
                let bare = name.split_once(':').map_or(name.as_str(), |(_, name)| name);
                check_name(bare).map_err(|e| fault(what(selector), e))?;
                if classes.iter().any(|c| c.name == *name && !c.selectors.is_empty()) {
                    let detail = format!("class {name} has a match itself: name whom the packets come from");
                    return Err(fault(what(selector), detail));
                }
            }
        }
    }
    Ok(())
}

fn check_name(name: &str) -> Result<(), String> {
    if is_name(name) { Ok(()) } else { Err(no_name(name)) }
}

/// Whether a class or a group may be called so: one word, or `NAMESPACE/POD` for a pod.
pub(crate) fn is_name(name: &str) -> bool {
    let ok = |c: char| c.is_ascii_alphanumeric() || "_.-@+".contains(c);
    let is_word = |word: &str| !word.is_empty() && word.chars().all(ok);
    let is_part = |part: &str| is_word(part) && part != "." && part != "..";
    let is_pod = || name.split_once('/').is_some_and(|(namespace, pod)| is_part(namespace) && is_part(pod));
    name.len() <= 255 && (is_word(name) || is_pod())
}

/// The error of a text for which [`is_name`] is false.
pub(crate) fn no_name(name: &str) -> String {
    format!(
        "`{name}` is not a name: letters, digits and _ . - @ + only, 255 at most, or NAMESPACE/POD for a pod"
    )
}
