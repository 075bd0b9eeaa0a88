//! Checks of `[[class]]`: what one class has twice, and what two classes have.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path, PathBuf},
};

use weir_discovery::units::SliceName;

use super::{
    ClassConfig, RESERVED, Selector,
    fault::{Fault, fault},
    names::{bare_name, check_name},
};

/// Names and places that the classes before have taken, with the class's name.
#[derive(Default)]
struct Taken<'a> {
    names: BTreeSet<&'a str>,
    interfaces: BTreeMap<&'a str, &'a str>,
    units: BTreeMap<String, &'a str>,
    cgroups: BTreeMap<PathBuf, &'a str>,
}

/// Checks each class but for its selectors. `groups`: the names of those in the file.
pub(super) fn check(classes: &[ClassConfig], groups: &BTreeSet<&str>) -> Result<(), Fault> {
    let mut taken = Taken::default();
    for class in classes {
        taken.check_name(class, groups)?;
        taken.check_interface(class)?;
        check_place(class)?;
        taken.check_processes(class)?;
        class.layer().policy().map_err(|e| fault(what(class), e))?;
    }
    check_units(classes)
}

fn what(class: &ClassConfig) -> String {
    format!("[[class]] {}", class.name)
}

impl<'a> Taken<'a> {
    /// Checks the class's own name, and that of its group.
    fn check_name(&mut self, class: &'a ClassConfig, groups: &BTreeSet<&str>) -> Result<(), Fault> {
        check_name(bare_name(&class.name)).map_err(|e| fault(what(class), e))?;
        if !self.names.insert(class.name.as_str()) {
            return Err(fault(what(class), "this class is there twice"));
        }
        if RESERVED.contains(&class.name.as_str()) {
            return Err(fault(what(class), "this name is weir's own; set [host] or [default] instead"));
        }
        match &class.group {
            Some(group) if !groups.contains(group.as_str()) => {
                Err(fault(what(class), format!("there is no [[group]] `{group}`")))
            }
            _ => Ok(()),
        }
    }

    fn check_interface(&mut self, class: &'a ClassConfig) -> Result<(), Fault> {
        let Some(interface) = &class.interface else { return Ok(()) };
        check_interface(interface).map_err(|why| fault(format!("{} interface", what(class)), why))?;
        match self.interfaces.insert(interface.as_str(), class.name.as_str()) {
            Some(other) => {
                Err(fault(what(class), format!("interface {interface} belongs to class {other} already")))
            }
            None => Ok(()),
        }
    }

    /// Checks that no class before has the same processes.
    fn check_processes(&mut self, class: &'a ClassConfig) -> Result<(), Fault> {
        let unit = class.unit.as_ref().map(|unit| format!("unit {unit}"));
        if let Some(unit) = unit.or_else(|| class.slice.as_ref().map(|slice| format!("slice {slice}")))
            && let Some(other) = self.units.insert(unit.clone(), class.name.as_str())
        {
            return Err(fault(what(class), format!("{unit} belongs to class {other} already")));
        }
        if let Some(path) = cgroup_of(class)
            && let Some(other) = self.cgroups.insert(path.clone(), class.name.as_str())
        {
            let path = path.display();
            let detail = format!(
                "cgroup {path} belongs to class {other} already, and one class gets its packets: remove one of the \
                 two, or name a cgroup below {path}"
            );
            return Err(fault(what(class), detail));
        }
        Ok(())
    }
}

/// Whether the kernel takes a name for an interface (`dev_valid_name`, net/core/dev.c).
///
/// # Errors
/// It does not.
pub fn check_interface(name: &str) -> Result<(), String> {
    let is_free = |c: char| c != '/' && c != ':' && !c.is_whitespace();
    if (1..=15).contains(&name.len()) && name.chars().all(is_free) && name != "." && name != ".." {
        return Ok(());
    }
    Err(format!(
        "`{}` is not the name of an interface: 1 to 15 bytes without space, / and :",
        name.escape_debug()
    ))
}

/// Checks that a class names its processes once, and by a path that can be followed.
fn check_place(class: &ClassConfig) -> Result<(), Fault> {
    let given = [class.cgroup.is_some(), class.unit.is_some(), class.slice.is_some()];
    if given.iter().filter(|is_given| **is_given).count() > 1 {
        let detail = "cgroup, unit and slice name the same processes: leave one of them";
        return Err(fault(what(class), detail));
    }
    let leaves_root = |path: &&PathBuf| path.components().any(|c| c == Component::ParentDir);
    if let Some(path) = class.cgroup.as_ref().filter(leaves_root) {
        let why =
            "is not a path below the root without `..`: write it as `systemd-cgls` shows it on the host";
        return Err(fault(what(class), format!("cgroup {} {why}", path.display())));
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

/// Checks what the classes select.
pub(super) fn check_selectors(classes: &[ClassConfig]) -> Result<(), Fault> {
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
                check_name(bare_name(name)).map_err(|e| fault(what(selector), e))?;
                if classes.iter().any(|c| c.name == *name && !c.selectors.is_empty()) {
                    let detail = format!("class {name} has a match itself: name whom the packets come from");
                    return Err(fault(what(selector), detail));
                }
            }
        }
    }
    Ok(())
}
