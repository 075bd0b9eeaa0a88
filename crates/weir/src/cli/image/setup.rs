//! `weir image setup` and `undo`: merge settings into the files of Docker and containerd, and restore
//! the files.

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::Session;

const SETUP_EXAMPLES: &str = "Examples:
  weir image setup                     whichever of Docker and containerd is here
  weir image setup --dry-run           only say what would be written
  weir image setup --only docker

Files that are there are added to, never replaced: a host in hosts.toml, a mirror in
daemon.json. The registries stay the fallback: if weir does not run, pulls go there.";

#[derive(Debug, Args)]
#[command(after_help = SETUP_EXAMPLES)]
pub(super) struct SetupArgs {
    /// Only one of them: docker or containerd
    #[arg(long, value_parser = ["docker", "containerd"])]
    only: Option<String>,
    /// Where the cache listens; else as the configuration says
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// The configuration file
    #[arg(long, short, value_name = "FILE", default_value = "/etc/weir/weir.toml")]
    config: PathBuf,
    /// Say what would be written, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Take this directory for the root of the file system
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct UndoArgs {
    /// Take this directory for the root of the file system
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,
}

/// The record of written text, for `undo`.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Record {
    listen: String,
    files: Vec<Written>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Written {
    path: PathBuf,
    /// The text before; `None` if there was no file.
    before: Option<String>,
    after: String,
    /// The directories created for it, deepest first.
    made: Vec<PathBuf>,
}

/// A file and its wanted content.
struct Wanted {
    path: &'static str,
    merge: fn(Option<&str>, &str) -> Result<String, String>,
    part: fn(&str, &str) -> Result<String, String>,
    /// The command after which the runtime reads it.
    then: &'static str,
}

const DOCKER: &[Wanted] = &[
    Wanted {
        path: "etc/docker/daemon.json",
        merge: add_mirror,
        part: take_mirror,
        then: "systemctl reload docker",
    },
    // This file is for Docker with the containerd image store. Other versions do not read it.
    Wanted {
        path: "etc/docker/certs.d/_default/hosts.toml",
        merge: add_host,
        part: take_host,
        then: "systemctl reload docker",
    },
];

const CONTAINERD: &[Wanted] = &[Wanted {
    path: "etc/containerd/certs.d/_default/hosts.toml",
    merge: add_host,
    part: take_host,
    then: "nothing: containerd reads it at each pull, if its config_path is /etc/containerd/certs.d alone",
}];

const BEGIN: &str = "# weir image setup: begin";
const END: &str = "# weir image setup: end";

fn add_host(before: Option<&str>, listen: &str) -> Result<String, String> {
    let before = before.unwrap_or_default();
    let table: toml::Table = before.parse().map_err(|e| format!("it is not TOML: {e}"))?;
    let hosts = table.get("host").and_then(toml::Value::as_table);
    if hosts.is_some_and(|hosts| hosts.contains_key(&format!("http://{listen}"))) {
        return Ok(before.to_owned());
    }
    let gap = if before.is_empty() || before.ends_with('\n') { "" } else { "\n" };
    Ok(format!(
        "{before}{gap}{BEGIN}\n[host.\"http://{listen}\"]\n  capabilities = [\"pull\", \"resolve\"]\n  dial_timeout = \"200ms\"\n{END}\n"
    ))
}

fn take_host(now: &str, _listen: &str) -> Result<String, String> {
    let Some((head, rest)) = now.split_once(BEGIN) else { return Ok(now.to_owned()) };
    let (_, tail) = rest.split_once(END).ok_or(format!("`{END}` is missing"))?;
    Ok(format!("{head}{}", tail.strip_prefix('\n').unwrap_or(tail)))
}

fn add_mirror(before: Option<&str>, listen: &str) -> Result<String, String> {
    let text = before.filter(|text| !text.trim().is_empty()).unwrap_or("{}");
    let mut json: Value = serde_json::from_str(text).map_err(|e| format!("it is not JSON: {e}"))?;
    let object = json.as_object_mut().ok_or("it is not a JSON object")?;
    let mirrors = object.entry("registry-mirrors").or_insert_with(|| Value::Array(Vec::new()));
    let mirrors = mirrors.as_array_mut().ok_or("its registry-mirrors is not a list")?;
    let url = Value::String(format!("http://{listen}"));
    if mirrors.contains(&url) {
        return Ok(text.to_owned());
    }
    // The cache comes first, and the other mirrors stay behind it.
    mirrors.insert(0, url);
    serde_json::to_string_pretty(&json).map(|text| text + "\n").map_err(|e| e.to_string())
}

fn take_mirror(now: &str, listen: &str) -> Result<String, String> {
    let mut json: Value = serde_json::from_str(now).map_err(|e| format!("it is not JSON: {e}"))?;
    if let Some(object) = json.as_object_mut()
        && let Some(mirrors) = object.get_mut("registry-mirrors").and_then(Value::as_array_mut)
    {
        mirrors.retain(|mirror| mirror.as_str() != Some(&format!("http://{listen}")));
        if mirrors.is_empty() {
            object.remove("registry-mirrors");
        }
    }
    serde_json::to_string_pretty(&json).map(|text| text + "\n").map_err(|e| e.to_string())
}

fn record_file(root: &Path) -> PathBuf {
    root.join("var/lib/weir/image-setup.json")
}

fn read(path: &Path) -> anyhow::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Replaces a file as a whole or not at all. Its mode and owner stay.
fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    let mut name = path.as_os_str().to_owned();
    name.push(".weir-new");
    let new = PathBuf::from(name);
    fs::write(&new, text).with_context(cannot)?;
    if let Ok(meta) = fs::metadata(path) {
        use std::os::unix::fs::{MetadataExt, chown};
        fs::set_permissions(&new, meta.permissions()).with_context(cannot)?;
        chown(&new, Some(meta.uid()), Some(meta.gid())).with_context(cannot)?;
    }
    fs::File::open(&new).and_then(|file| file.sync_all()).with_context(cannot)?;
    fs::rename(&new, path).with_context(cannot)
}

/// Creates a file's directory. Returns the directories that were missing, deepest first.
fn make_dirs(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let dir = path.parent().unwrap_or(path);
    let made = dir.ancestors().take_while(|dir| !dir.exists()).map(Path::to_owned).collect();
    fs::create_dir_all(dir).with_context(|| format!("cannot make the directory {}", dir.display()))?;
    Ok(made)
}

pub(super) fn setup(args: &SetupArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    let listen = match args.listen {
        Some(listen) => listen,
        None => {
            weir_agent::config::load_images(&args.config)
                .context("cannot tell where the cache listens (`--listen` says it too)")?
                .0
                .listen
        }
    };
    let listen = listen.to_string();
    let kept = record_file(&args.root);
    let mut record: Record = match read(&kept)? {
        Some(text) => serde_json::from_str(&text)
            .with_context(|| format!("cannot read what an earlier setup did in {}", kept.display()))?,
        None => Record::default(),
    };
    if !record.files.is_empty() && record.listen != listen {
        anyhow::bail!("the set-up for {} is in place: `weir image undo` first", record.listen);
    }
    record.listen.clone_from(&listen);
    let is_here = |name: &str, dir: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&path).chain(["/usr/sbin".into()]).any(|d| d.join(name).exists());
        args.root.join(dir).is_dir() || (args.root == Path::new("/") && found)
    };
    let wants = |name: &str| args.only.as_deref().is_none_or(|only| only == name);
    let mut wanted = Vec::new();
    if wants("docker") && (args.only.is_some() || is_here("dockerd", "etc/docker")) {
        wanted.extend(DOCKER);
    }
    if wants("containerd") && (args.only.is_some() || is_here("containerd", "etc/containerd")) {
        wanted.extend(CONTAINERD);
    }
    if wanted.is_empty() {
        anyhow::bail!("neither Docker nor containerd is here: nothing was set up (`--only` insists)");
    }
    // All refusals come before the first write.
    let mut changes = Vec::new();
    for want in wanted {
        let path = args.root.join(want.path);
        let before = read(&path)?;
        let after = (want.merge)(before.as_deref(), &listen)
            .map_err(|why| anyhow::anyhow!("cannot add to {}: {why}; nothing was written", path.display()))?;
        if before.as_deref() != Some(&after) {
            changes.push((want, path, before, after));
        }
    }
    for (_, path, before, after) in &changes {
        if args.dry_run {
            continue;
        }
        let made = make_dirs(path)?;
        if !record.files.iter().any(|file| file.path == *path) {
            record.files.push(Written {
                path: path.clone(),
                before: before.clone(),
                after: after.clone(),
                made,
            });
        }
        // The record is written first, so each change can be undone.
        make_dirs(&kept)?;
        replace(&kept, &serde_json::to_string_pretty(&record)?)?;
        replace(path, after)?;
    }
    let paths: Vec<String> = changes.iter().map(|(_, path, ..)| path.display().to_string()).collect();
    session.print(&paths, |out, _| {
        if changes.is_empty() {
            return writeln!(out, "all is in place for http://{listen}");
        }
        for (want, path, _, after) in &changes {
            if args.dry_run {
                writeln!(out, "would write {}:\n{after}", path.display())?;
            } else {
                writeln!(
                    out,
                    "{} names http://{listen}; to be read it needs: {}",
                    path.display(),
                    want.then
                )?;
            }
        }
        Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn undo(args: &UndoArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    let kept = record_file(&args.root);
    let Some(text) = read(&kept)? else {
        anyhow::bail!("there is no set-up to undo ({} is not there)", kept.display());
    };
    let record: Record =
        serde_json::from_str(&text).with_context(|| format!("cannot read {}", kept.display()))?;
    let mut said = Vec::new();
    for file in record.files.iter().rev() {
        let path = &file.path;
        match (read(path)?, &file.before) {
            (None, _) => said.push(format!("{} is gone already", path.display())),
            (Some(now), before) if now == file.after => {
                match before {
                    Some(before) => replace(path, before)?,
                    None => {
                        fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
                        // Only empty directories are removed.
                        let _ = file.made.iter().try_for_each(fs::remove_dir);
                    }
                }
                said.push(format!("{} is as it was", path.display()));
            }
            // The file has changed since, so only weir's part is removed.
            (Some(now), _) => {
                let want = DOCKER.iter().chain(CONTAINERD).find(|w| args.root.join(w.path) == *path);
                let part = want.map_or(Ok(now.clone()), |want| (want.part)(&now, &record.listen));
                let rest = part.map_err(|why| {
                    anyhow::anyhow!(
                        "cannot take weir's part out of {}: {why}; take it out by hand",
                        path.display()
                    )
                })?;
                replace(path, &rest)?;
                said.push(format!("{} has been changed since: only weir's part is gone", path.display()));
            }
        }
    }
    if record.files.iter().any(|file| file.path.ends_with("daemon.json")) {
        // A reload does not remove mirrors that are no longer in the file.
        let forgets = "dockerd forgets its mirror when it is restarted, not when it is reloaded; until then it \
                       asks the registry itself when the mirror does not answer";
        said.push(forgets.to_owned());
    }
    fs::remove_file(&kept).with_context(|| format!("cannot remove {}", kept.display()))?;
    session.print(&said, |out, _| said.iter().try_for_each(|line| writeln!(out, "{line}")))?;
    Ok(ExitCode::SUCCESS)
}
