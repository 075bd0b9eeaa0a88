//! The configuration of the test's agent: the operator's, with the test's classes and places.

use std::path::Path;

use toml::{Table, Value};

use super::judge::CLASSES;

/// The sections that say how the link is divided. The others reach beyond the link: to a cluster, to ports, into images.
const KEPT: [&str; 8] = ["link", "discover", "labels", "defaults", "host", "default", "group", "class"];

/// The text of the configuration. `directory` has the socket and the state, `cgroups` is the path of the test's cgroups
/// in the v2 hierarchy.
///
/// # Errors
/// The text is no TOML, or has other classes than a list.
pub(super) fn derived(text: &str, directory: &Path, cgroups: &Path) -> anyhow::Result<String> {
    let mut table: Table = toml::from_str(text)?;
    table.retain(|section, _| KEPT.contains(&section));
    // The bounds of all classes would bound the test's too.
    if let Some(Value::Table(defaults)) = table.get_mut("defaults") {
        defaults.retain(|key, _| key != "min" && key != "max");
    }
    let place = |name: &str| Value::String(directory.join(name).display().to_string());
    let agent =
        [("socket", place("weir.sock")), ("state", place("state"))].map(|(key, value)| (key.into(), value));
    table.insert("agent".to_owned(), Value::Table(Table::from_iter(agent)));
    let classes = table.entry("class").or_insert_with(|| Value::Array(Vec::new()));
    let Value::Array(classes) = classes else { anyhow::bail!("class is no list of tables") };
    classes.extend(CLASSES.map(|name| class(name, cgroups)));
    Ok(toml::to_string(&table)?)
}

fn class(name: &str, cgroups: &Path) -> Value {
    let text = |text: String| Value::String(text);
    let path = cgroups.join(name).display().to_string();
    let class = [("name", text(name.to_owned())), ("cgroup", text(path)), ("weight", Value::Integer(1))];
    Value::Table(Table::from_iter(class.map(|(key, value)| (key.to_owned(), value))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPERATORS: &str = "[link]\ndevice = \"eth0\"\ncapacity = \"95mbit\"\nengine = \"htb\"\n\n\
                             [agent]\nat_end = \"keep\"\nstate = \"/var/lib/weir\"\n\n\
                             [api]\nlisten = \"0.0.0.0:9798\"\n\n[images]\nbudget = \"1GiB\"\n\n\
                             [defaults]\nweight = 2\nmin = \"1mbit\"\nmax = \"9mbit\"\n\n\
                             [[class]]\nname = \"camera\"\ninterface = \"eth1\"\nmin = \"5mbit\"\n";

    #[test]
    fn derived_configuration_keeps_the_division_and_nothing_beyond_the_link() {
        let text = derived(OPERATORS, Path::new("/run/t"), Path::new("/weir-test-7")).unwrap();
        let table: Table = toml::from_str(&text).unwrap();
        assert_eq!(table["link"], toml::from_str::<Table>(OPERATORS).unwrap()["link"]);
        let sections: Vec<&str> = table.keys().map(String::as_str).collect();
        assert_eq!(sections, ["agent", "class", "defaults", "link"]);
        let agent = table["agent"].as_table().unwrap();
        assert_eq!(agent.len(), 2, "{agent:?}");
        assert_eq!(agent["state"].as_str(), Some("/run/t/state"));
        assert_eq!(table["defaults"].as_table().unwrap().keys().collect::<Vec<_>>(), ["weight"]);
        let names: Vec<_> = table["class"].as_array().unwrap().iter().map(|c| &c["name"]).collect();
        assert_eq!(names.len(), 4);
        assert_eq!(table["class"][3]["cgroup"].as_str(), Some("/weir-test-7/weir-test-c"));
        weir_agent::config::parse(&text, Path::new("t.toml")).expect("the agent takes it");
    }

    #[test]
    fn derived_configuration_of_one_without_classes_has_the_tests_alone() {
        let text = "[link]\ndevice = \"eth0\"\ncapacity = \"95mbit\"\n";
        let text = derived(text, Path::new("/run/t"), Path::new("/weir-test-7")).unwrap();
        let table: Table = toml::from_str(&text).unwrap();
        assert_eq!(table["class"].as_array().unwrap().len(), 3);
    }
}
