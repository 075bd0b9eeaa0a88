//! containerd's `hosts.toml`, and the parts of its configuration by which it finds that file.

use std::{
    fs,
    path::{Path, PathBuf},
};

use toml::{Table, Value};

use super::{Mirror, block};

const CONFIG: &str = "etc/containerd/config.toml";
/// The directory that weir advises.
const CERTS: &str = "/etc/containerd/certs.d";

/// The text with the cache as a host.
pub(super) fn add_host(text: &str, mirror: &Mirror) -> Result<String, String> {
    let table: Table = text.parse().map_err(|e| format!("it is not TOML: {e}"))?;
    let hosts = table.get("host").and_then(Value::as_table);
    if hosts.is_some_and(|hosts| hosts.contains_key(&mirror.url())) {
        return Ok(text.to_owned());
    }
    let lines = format!(
        "[host.\"{}\"]\n  capabilities = [\"pull\", \"resolve\"]\n  dial_timeout = \"200ms\"\n",
        mirror.url()
    );
    let after = block::append(text, &lines);
    after.parse::<Table>().map_err(|e| format!("a host cannot be added to it: {e}"))?;
    Ok(after)
}

/// The registry sections of containerd's configuration.
#[derive(Debug, Default)]
pub(in super::super) struct Config {
    /// Whether there is a file.
    is_there: bool,
    /// The version of the format: 1 if the file does not say it.
    version: i64,
    /// `config_path`, where it is not empty.
    paths: Vec<String>,
    /// Whether containerd 2 pulls without its transfer service, which takes a list for one directory.
    pulls_locally: bool,
    /// Whether the section has the older kind of mirrors, which containerd does not take beside `config_path`.
    has_mirrors: bool,
}

/// The names of the CRI plugin that has the registry section, by versions of the format.
const PLUGINS: [&str; 3] = ["io.containerd.cri.v1.images", "io.containerd.grpc.v1.cri", "cri"];

impl Config {
    /// Reads it with the files that it imports.
    ///
    /// # Errors
    /// A file that cannot be read, or is not TOML.
    pub(in super::super) fn read(root: &Path) -> anyhow::Result<Config> {
        let mut config = Config { version: 1, ..Config::default() };
        let main = root.join(CONFIG);
        let Some(table) = parse(&main)? else { return Ok(config) };
        config.is_there = true;
        config.version = table.get("version").and_then(Value::as_integer).unwrap_or(1);
        config.take(&table);
        let imports = table.get("imports").and_then(Value::as_array).into_iter().flatten();
        for import in imports.filter_map(Value::as_str) {
            for path in matching(root, import) {
                if let Some(table) = parse(&path)? {
                    config.take(&table);
                }
            }
        }
        Ok(config)
    }

    /// Takes what a file says. A later file replaces an earlier one's word.
    fn take(&mut self, table: &Table) {
        let plugins = table.get("plugins").and_then(Value::as_table);
        for plugin in PLUGINS.iter().filter_map(|name| plugins?.get(*name)?.as_table()) {
            self.pulls_locally |= plugin.get("use_local_image_pull").and_then(Value::as_bool) == Some(true);
            let Some(registry) = plugin.get("registry").and_then(Value::as_table) else { continue };
            self.has_mirrors |=
                registry.get("mirrors").and_then(Value::as_table).is_some_and(|m| !m.is_empty());
            if let Some(path) = registry.get("config_path").and_then(Value::as_str) {
                self.paths = if path.is_empty() { vec![] } else { vec![path.to_owned()] };
            }
        }
    }

    /// The directory for `_default/hosts.toml`, below the root.
    pub(in super::super) fn directory(&self) -> &str {
        let first = self.paths.first().and_then(|path| path.split(':').find(|dir| dir.starts_with('/')));
        first.unwrap_or(CERTS).trim_start_matches('/')
    }

    /// Why pulls go past the cache, and what to do.
    pub(in super::super) fn problem(&self) -> Option<(String, String)> {
        let found = match self.paths.first() {
            None if !self.is_there => format!(
                "there is no /{CONFIG}, and containerd before 2.2 then has no config_path, so Kubernetes' pulls do \
                 not look into {CERTS}"
            ),
            None => format!(
                "its configuration has no config_path, so Kubernetes' pulls do not look into certs.d (/{CONFIG}, \
                 version {})",
                self.version
            ),
            Some(list) if list.contains(':') && !self.pulls_locally => format!(
                "its config_path names several directories, {list}, and pulls of containerd 2.1 and later go past \
                 the cache then"
            ),
            Some(_) => return None,
        };
        let dir = if self.paths.is_empty() { CERTS.to_owned() } else { format!("/{}", self.directory()) };
        let mut advice = format!("{}, and restart containerd", self.lines(&dir));
        if self.has_mirrors {
            advice += "; move the mirrors of that section into certs.d, as containerd refuses both together";
        }
        Some((found, advice))
    }

    /// The lines to set, in the file's own version.
    fn lines(&self, dir: &str) -> String {
        let plugin = match self.version {
            _ if !self.is_there => "\"io.containerd.grpc.v1.cri\"",
            ..=1 => "cri",
            2 => "\"io.containerd.grpc.v1.cri\"",
            _ => "\"io.containerd.cri.v1.images\"",
        };
        let version = if self.is_there { "" } else { " `version = 2` and" };
        format!("write{version} `[plugins.{plugin}.registry]` with `config_path = \"{dir}\"` into /{CONFIG}")
    }

    /// Facts beside the file that weir writes.
    pub(super) fn notes(&self, root: &Path) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some((found, advice)) = self.problem() {
            notes.push(format!("containerd: {found}; {advice}"));
        }
        let dir = self.directory();
        notes.push(format!("ctr looks there with `--hosts-dir /{dir}` only; nerdctl looks into {CERTS}"));
        for name in own_directories(&root.join(dir)) {
            notes.push(format!(
                "/{dir}/{name} replaces _default for {name}, which goes past the cache; add the lines of \
                 _default/hosts.toml to /{dir}/{name}/hosts.toml"
            ));
        }
        notes
    }
}

/// Registries with a directory of their own, also an empty one, which containerd reads in place of `_default`.
fn own_directories(certs: &Path) -> Vec<String> {
    let entries = fs::read_dir(certs).into_iter().flatten().flatten();
    let own = entries.filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> = own.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| name != "_default");
    names.sort();
    names
}

fn parse(path: &Path) -> anyhow::Result<Option<Table>> {
    let Some(text) = super::files::read(path)? else { return Ok(None) };
    let table =
        text.parse().map_err(|e| anyhow::anyhow!("cannot read {}: it is not TOML: {e}", path.display()));
    table.map(Some)
}

/// The files that an import names. Its last part may have one `*`.
fn matching(root: &Path, import: &str) -> Vec<PathBuf> {
    let path = Path::new("/etc/containerd").join(import);
    let path = root.join(path.strip_prefix("/").unwrap_or(&path));
    let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Vec::new();
    };
    let Some((head, tail)) = name.split_once('*') else { return vec![path.clone()] };
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let fits =
        |name: &str| name.len() >= head.len() + tail.len() && name.starts_with(head) && name.ends_with(tail);
    let mut found: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_str().is_some_and(fits))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> (Config, tempfile::TempDir) {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("etc/containerd/conf.d")).unwrap();
        fs::write(root.path().join(CONFIG), text).unwrap();
        (Config::read(root.path()).unwrap(), root)
    }

    const V3: &str = "version = 3\n[plugins.\"io.containerd.cri.v1.images\"]\n";

    #[test]
    fn config_path_that_containerd_does_not_read_is_named() {
        let problem = |text: &str| config(text).0.problem();
        let list = "[plugins.'io.containerd.cri.v1.images'.registry]\n\
                    config_path = '/etc/containerd/certs.d:/etc/docker/certs.d'\n";
        assert!(
            problem(&format!("{V3}{list}")).is_some_and(|(found, _)| found.contains("several directories"))
        );
        assert_eq!(problem(&format!("{V3}use_local_image_pull = true\n{list}")), None);
        let one = list.replace(":/etc/docker/certs.d", "");
        assert_eq!(problem(&format!("{V3}{one}")), None);
        for none in [
            "",
            "[plugins.'io.containerd.cri.v1.images'.registry]\nconfig_path = ''",
            "# config_path = \"/etc/containerd/certs.d\"",
            "[other]\nconfig_path = '/etc/containerd/certs.d'",
        ] {
            let found = problem(&format!("{V3}{none}"));
            assert!(found.is_some_and(|(found, _)| found.contains("no config_path")), "{none}");
        }
    }

    #[test]
    fn lines_to_add_are_those_of_the_version_of_the_file() {
        for (text, section) in [
            ("version = 3", "`[plugins.\"io.containerd.cri.v1.images\".registry]`"),
            ("version = 2", "`[plugins.\"io.containerd.grpc.v1.cri\".registry]`"),
            ("", "`[plugins.cri.registry]`"),
        ] {
            let (_, advice) = config(text).0.problem().unwrap();
            assert!(advice.contains(section) && !advice.contains("`version"), "{advice}");
        }
        let root = tempfile::tempdir().unwrap();
        let (found, advice) = Config::read(root.path()).unwrap().problem().unwrap();
        assert!(found.contains("there is no /etc/containerd/config.toml"), "{found}");
        assert!(advice.starts_with("write `version = 2` and `[plugins.\"io.containerd.grpc"), "{advice}");
        let mirrors =
            "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.registry.mirrors.'docker.io']\nendpoint = []";
        assert!(config(mirrors).0.problem().unwrap().1.contains("refuses both together"));
    }

    #[test]
    fn directory_is_that_of_the_configuration_and_of_its_imports() {
        let section = "[plugins.'io.containerd.grpc.v1.cri'.registry]\nconfig_path =";
        let (of_file, _root) = config(&format!("version = 2\n{section} '/srv/certs'"));
        assert_eq!((of_file.directory(), of_file.problem()), ("srv/certs", None));
        let (_, root) = config("version = 2\nimports = ['conf.d/*.toml', '/etc/containerd/one.toml']");
        fs::write(root.path().join("etc/containerd/conf.d/a.toml"), format!("{section} '/srv/imported'"))
            .unwrap();
        fs::write(root.path().join("etc/containerd/conf.d/b.txt"), "[[[").unwrap();
        assert_eq!(Config::read(root.path()).unwrap().directory(), "srv/imported");
        fs::write(root.path().join("etc/containerd/one.toml"), format!("{section} ''")).unwrap();
        assert_eq!(Config::read(root.path()).unwrap().directory(), "etc/containerd/certs.d");
        fs::write(root.path().join("etc/containerd/one.toml"), "[[[").unwrap();
        let why = Config::read(root.path()).unwrap_err().to_string();
        assert!(why.contains("one.toml: it is not TOML"), "{why}");
    }

    #[test]
    fn registries_with_hosts_of_their_own_are_named() {
        let (config, root) = config(&format!(
            "{V3}[plugins.'io.containerd.cri.v1.images'.registry]\nconfig_path = '/etc/containerd/certs.d'"
        ));
        for name in ["_default", "quay.io"] {
            fs::create_dir_all(root.path().join("etc/containerd/certs.d").join(name)).unwrap();
        }
        let notes = config.notes(root.path());
        assert!(notes.len() == 2 && notes[1].contains("quay.io replaces _default"), "{notes:?}");
        assert!(notes[0].contains("--hosts-dir /etc/containerd/certs.d"), "{notes:?}");
    }
}
