//! The keys of a configuration that a running agent cannot follow.

use std::collections::BTreeSet;

use crate::config::Config;

/// The keys of `[images]` that a running agent follows.
const FOLLOWED_IMAGES: [&str; 3] = ["images.max_rate", "images.scrub_rate", "images.runtime"];

/// The reason why a changed configuration needs a restart, with each key that does. `None` if none does. `follows_images` says
/// whether the image cache can go on.
pub(super) fn reason(old: &Config, new: &Config, follows_images: bool) -> Option<String> {
    let mut keys = changed(old, new);
    if !follows_images {
        keys.extend(changed_images(old, new));
    }
    let (last, others) = keys.split_last()?;
    let all = if others.is_empty() { last.clone() } else { format!("{} and {last}", others.join(", ")) };
    Some(format!(
        "a change of {all} needs a restart of the agent; no other change of the file is in force before"
    ))
}

/// The changed keys of `[link]`, `[agent]` and `[agreements]` that a running agent cannot follow.
fn changed(old: &Config, new: &Config) -> Vec<String> {
    let (link, agent) = ((&old.link, &new.link), (&old.agent, &new.agent));
    // The engine is already the one in the form that was asked for.
    let (has_engine, has_form) = (link.0.engine != link.1.engine, link.0.form != link.1.form);
    let is_named_anew = old.keys.0.get("link.engine") != new.keys.0.get("link.engine");
    let keys = [
        ("[link] device", link.0.device != link.1.device),
        ("[link] attach", link.0.attach != link.1.attach),
        ("[link] engine", has_engine && (is_named_anew || !has_form)),
        ("[link] form", has_engine && has_form),
        ("[link] pacing", link.0.pacing != link.1.pacing),
        ("[link] queues", link.0.queues != link.1.queues),
        ("[agent] socket", agent.0.socket != agent.1.socket),
        ("[agent] state", agent.0.state != agent.1.state),
        ("[agent] audit_size", agent.0.audit_size != agent.1.audit_size),
        ("[agent] audit_files", agent.0.audit_files != agent.1.audit_files),
        ("[agreements] (whether there is one)", old.agreements.is_some() != new.agreements.is_some()),
    ];
    keys.into_iter().filter(|(_, is_other)| *is_other).map(|(key, _)| key.to_owned()).collect()
}

/// The same of `[images]`.
fn changed_images(old: &Config, new: &Config) -> Vec<String> {
    let (before, after) = (&old.keys.0, &new.keys.0);
    let is_followed = |key: &str| {
        let ends = |rest: &str| rest.is_empty() || rest.starts_with('.');
        FOLLOWED_IMAGES.iter().any(|followed| key.strip_prefix(followed).is_some_and(ends))
    };
    let is_changed = |key: &&String| before.get(*key) != after.get(*key) && !is_followed(key);
    let all: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let named = |key: &String| Some(format!("[images] {}", key.strip_prefix("images.")?));
    let keys: Vec<String> = all.into_iter().filter(is_changed).filter_map(named).collect();
    // The values of secrets are not kept to be compared.
    if keys.is_empty() { vec!["[images]".to_owned()] } else { keys }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn config(text: &str) -> Config {
        crate::config::parse(text, Path::new("weir.toml")).unwrap()
    }

    const LINK: &str = "[link]\ndevice = \"eth0\"\ncapacity = \"95mbit\"\n";

    #[test]
    fn change_that_needs_a_restart_is_told_with_each_of_its_keys() {
        let with = |more: &str| config(&format!("{LINK}{more}"));
        for (text, keys) in [
            ("delay_ms = 30\n", None),
            ("[agent]\nat_end = \"keep\"\n", None),
            ("engine = \"htb\"\n", Some("[link] engine")),
            ("engine = \"bpf-credit\"\nform = \"paper\"\n", Some("[link] engine and [link] form")),
            ("queues = 4\n[agent]\nstate = \"/s\"\n", Some("[link] queues and [agent] state")),
            (
                "attach = \"tcx\"\npacing = true\n[agent]\nsocket = \"/x\"\naudit_size = \"1MiB\"\naudit_files = 3\n",
                Some(
                    "[link] attach, [link] pacing, [agent] socket, [agent] audit_size and [agent] audit_files",
                ),
            ),
            ("[agreements]\n", Some("[agreements] (whether there is one)")),
        ] {
            let told = reason(&with(""), &with(text), true);
            let expected = keys.map(|keys| format!("a change of {keys} needs a restart of the agent"));
            let said = told.as_ref().and_then(|told| told.split(';').next()).map(str::to_owned);
            assert_eq!(said, expected, "{text}");
        }
    }

    #[test]
    fn change_of_the_image_cache_is_told_with_each_key_that_needs_a_start() {
        let images = |text: &str| config(&format!("{LINK}[images]\nbudget = \"1GiB\"\n{text}"));
        let old = images("max_rate = \"5mbit\"\n");
        let new = images("max_rate = \"6mbit\"\nkeep_new_s = 7\nkeep_free = \"2GiB\"\n");
        let told = reason(&old, &new, false).unwrap();
        assert!(told.starts_with("a change of [images] keep_free and [images] keep_new_s needs"), "{told}");
        let told = reason(&old, &old, false).unwrap();
        assert!(told.starts_with("a change of [images] needs"), "{told}");
    }
}
