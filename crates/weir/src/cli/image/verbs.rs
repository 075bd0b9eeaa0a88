//! The verbs that ask a running cache, and the verb that runs it.

use std::{
    path::PathBuf,
    process::ExitCode,
    thread,
    time::{Duration, SystemTime},
};

use clap::Args;
use serde::Serialize;
use weir_api::{ClientError, NamedImage, PinImage, PruneImages, ScrubImages};
use weir_units::Bytes;

use super::super::{
    Session,
    format::{Table, Tone},
    log::{LogFormat, log_to_stderr},
    progress::Bar,
};

#[derive(Debug, Args)]
pub(super) struct PinArgs {
    /// Images in full, such as ghcr.io/acme/app:1; `*` stands for anything. None: list the pins
    pattern: Option<String>,
    /// Do not keep them any longer
    #[arg(long)]
    remove: bool,
}

const RM_EXAMPLES: &str = "Examples:
  weir image rm ghcr.io/acme/app:1 nginx:1.27
  weir image rm --json ghcr.io/acme/app:1 | jq '.[].freed'

It stops at the first image that cannot be removed. With --json it prints one
list, also for one image: `image` and `freed` of each image that was removed.";

#[derive(Debug, Args)]
#[command(after_help = RM_EXAMPLES)]
pub(super) struct RmArgs {
    /// As `weir image ls` shows them
    #[arg(required = true)]
    images: Vec<String>,
    /// Also images that are pinned
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
pub(super) struct PruneArgs {
    /// The size that may remain, such as 10GiB
    #[arg(long, value_name = "SIZE", default_value = "0")]
    down_to: Bytes,
}

#[derive(Debug, Args)]
pub(super) struct WarmArgs {
    /// As for `docker pull`
    image: String,
    /// Of an image for several platforms, this one instead of the node's own: linux/arm64
    #[arg(long)]
    platform: Option<String>,
}

const SCRUB_EXAMPLES: &str = "Examples:
  weir image scrub
  weir image scrub --rate 50MiB      no faster than that, each second

A blob that is not what its digest says is removed, and fetched again when it
is asked for. The cache does this by itself, slowly, every `scrub_days`. Exits
with 1 if something was wrong or missing.";

#[derive(Debug, Args)]
#[command(after_help = SCRUB_EXAMPLES)]
pub(super) struct ScrubArgs {
    /// Read no more than this each second, such as 50MiB
    #[arg(long, value_name = "SIZE")]
    rate: Option<Bytes>,
}

const SERVE_EXAMPLES: &str = "Examples:
  weir image serve --config /etc/weir/weir.toml

For nodes whose link weir does not divide, and for the unit
weir-images.service; `weir agent` serves the cache itself if [images] is there,
unless that says `served_by = \"unit\"`. Reads that section and [access] alone.
For the other verbs of `weir image` it listens on the agent's socket, or on
that of `--socket`. The budget is 64MiB at least.";

#[derive(Debug, Args)]
#[command(after_help = SERVE_EXAMPLES)]
pub(super) struct ServeArgs {
    /// The configuration file
    #[arg(long, short, value_name = "FILE", default_value = "/etc/weir/weir.toml")]
    config: PathBuf,
}

/// A time as `3 min ago`.
pub(super) fn ago(ms: u64) -> String {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_millis();
    let s = now.saturating_sub(u128::from(ms)) / 1000;
    match s {
        0..60 => format!("{s} s ago"),
        60..3600 => format!("{} min ago", s / 60),
        3600..172_800 => format!("{} h ago", s / 3600),
        _ => format!("{} days ago", s / 86_400),
    }
}

pub(super) fn ls(session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    let listed = session.client.images()?;
    session.print(&listed, |out, look| {
        if listed.images.is_empty() {
            return writeln!(out, "no images yet: they come when they are pulled, or by `weir image warm`");
        }
        let mut table = Table::new(look, &["IMAGE", "HERE", "OF", "ASKED FOR", "KEPT"]);
        for image in &listed.images {
            let kept = match (image.in_use, image.pinned) {
                (true, true) => "in use, pinned",
                (true, false) => "in use",
                (false, true) => "pinned",
                (false, false) => "",
            };
            let here = if image.present == image.total { Tone::Good } else { Tone::Warn };
            table.row([
                (image.image.clone(), Tone::Plain),
                (image.present.to_string(), here),
                (image.total.to_string(), Tone::Plain),
                (ago(image.used_ms), Tone::Dim),
                (kept.to_owned(), Tone::Plain),
            ]);
        }
        write!(out, "{table}")
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn df(session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    let usage = session.client.image_usage()?;
    session.print(&usage, |out, _| {
        let count = |name: &str| usage.counters.get(name).copied().unwrap_or(0);
        let served = count("served_bytes");
        let fetched = count("upstream_bytes");
        writeln!(out, "{} serves {}", usage.listen, usage.directory)?;
        writeln!(
            out,
            "used      {} of {}, {} set aside for downloads",
            usage.bytes, usage.budget, usage.reserved
        )?;
        writeln!(out, "held      {} that may not go now (in use, pinned, being sent, new)", usage.held)?;
        writeln!(out, "disk      {} free, {} of it kept free", usage.free, usage.keep_free)?;
        let follows = if usage.follows == usage.policy { "" } else { &format!(": {} now", usage.follows) };
        writeln!(out, "evicts    by {}{follows}", usage.policy)?;
        writeln!(
            out,
            "blobs     {} here; asked for {} times: {} from here, {} joined a download, {} fetched",
            usage.blobs,
            count("blob_hits") + count("blob_joined") + count("blob_misses"),
            count("blob_hits"),
            count("blob_joined"),
            count("blob_misses")
        )?;
        writeln!(out, "traffic   {} served for {} fetched", Bytes(served), Bytes(fetched))?;
        if let Some(at) = usage.oldest_check_ms {
            let checked = count("scrubbed_blobs");
            writeln!(out, "checked   all since {}; {checked} blobs again since the start", ago(at))?;
        }
        if let Some(rate) = usage.max_rate {
            writeln!(out, "pulls     {rate} at most from registries")?;
        }
        if let Some(pop) = &usage.pop {
            let nodes = if pop.nodes.is_empty() { "none" } else { &pop.nodes.join(" ") };
            writeln!(out, "site      {} ({}), nodes {nodes}; this is {}", pop.name, pop.store, pop.node)?;
            writeln!(
                out,
                "shared    {} downloads of other nodes followed, {} from peers, {} leases lost",
                count("downloads_followed"),
                Bytes(count("peer_bytes")),
                count("leases_lost")
            )?;
        }
        writeln!(
            out,
            "trouble   {} wrong, {} corrupt, {} without room, {} stale manifests, {} times 429",
            count("wrong_content"),
            count("corrupt"),
            count("no_room"),
            count("stale_served"),
            count("upstream_limited")
        )
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn pin(args: PinArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    let Some(pattern) = args.pattern else {
        let pins = session.client.images()?.pins;
        session.print(&pins, |out, _| pins.iter().try_for_each(|pin| writeln!(out, "{pin}")))?;
        return Ok(ExitCode::SUCCESS);
    };
    // A name without a tag means `latest`. A pattern stays unchanged.
    let pattern = weir_image::pins::full_name(&pattern);
    let pin = PinImage { pattern, stays: !args.remove };
    let pinned = session.client.pin_image(&pin)?;
    session.print(&pinned, |out, _| match (pinned.changed, pin.stays) {
        (true, true) => writeln!(out, "{} stays", pin.pattern),
        (true, false) => writeln!(out, "{} may go", pin.pattern),
        (false, true) => writeln!(out, "{} stayed already", pin.pattern),
        (false, false) => writeln!(out, "{} was not pinned", pin.pattern),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses pinned images before any image is removed.
fn refuse_pinned(names: &[String], listed: &weir_api::Images) -> anyhow::Result<()> {
    for name in names {
        let full = name.parse::<weir_image::Image>().map_or_else(|_| name.clone(), |image| image.to_string());
        if listed.images.iter().any(|image| image.pinned && image.image == full) {
            anyhow::bail!(
                "cannot remove {full}: it is pinned; nothing was removed (`--force` removes it, \
                 `weir image pin` shows the pins)"
            );
        }
    }
    Ok(())
}

/// An image that was removed.
#[derive(Debug, Serialize)]
struct Removed<'a> {
    image: &'a str,
    freed: Bytes,
}

pub(super) fn rm(args: &RmArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    if !args.force {
        refuse_pinned(&args.images, &session.client.images()?)?;
    }
    let mut removed = Vec::new();
    let done = args.images.iter().try_for_each(|image| {
        let named = NamedImage { image: image.clone(), platform: None, force: args.force };
        let freed = session.client.remove_image(&named)?.freed;
        removed.push(Removed { image, freed });
        Ok::<(), ClientError>(())
    });
    session.print(&removed, |out, _| {
        removed
            .iter()
            .try_for_each(|Removed { image, freed }| writeln!(out, "{image} is removed: {freed} freed"))
    })?;
    done?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn prune(args: &PruneArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    let freed = session.client.prune_images(&PruneImages { down_to: args.down_to })?;
    session.print(&freed, |out, _| writeln!(out, "{} freed", freed.freed))?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn warm(args: WarmArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    let id = session
        .client
        .warm_image(&NamedImage { image: args.image, platform: args.platform, force: false })?
        .id;
    let mut bar = Bar::new(session.json);
    let state = loop {
        let state = session.client.image_warming(id)?;
        bar.show(&state.image, state.done, state.total);
        if state.is_over {
            break state;
        }
        thread::sleep(Duration::from_millis(200));
    };
    drop(bar);
    if let Some(why) = &state.error {
        anyhow::bail!("cannot fetch {}: {why}", state.image);
    }
    session.print(&state, |out, _| writeln!(out, "{} is here, {}", state.image, state.total))?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn scrub(args: &ScrubArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    let mut state = session.client.scrub_images(&ScrubImages { rate: args.rate })?;
    let mut bar = Bar::new(session.json);
    while !state.is_over {
        thread::sleep(Duration::from_millis(200));
        state = session.client.image_scrub()?;
        let label = format!("blob {} of {}", state.blobs, state.of_blobs);
        bar.show(&label, state.bytes, state.of_bytes);
    }
    drop(bar);
    session.print(&state, |out, _| {
        for digest in &state.corrupt {
            writeln!(out, "{digest} was not what it is called: removed")?;
        }
        for digest in &state.missing {
            writeln!(out, "{digest} has lost its file: fetched again when asked for")?;
        }
        let (wrong, missing) = (state.corrupt.len(), state.missing.len());
        write!(out, "{} blobs checked, {}; {wrong} wrong", state.blobs, state.bytes)?;
        if missing > 0 {
            write!(out, ", {missing} missing")?;
        }
        writeln!(out)
    })?;
    if let Some(why) = &state.error {
        anyhow::bail!("cannot check all: {why}");
    }
    let is_right = state.corrupt.is_empty() && state.missing.is_empty();
    Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(super) fn serve(args: &ServeArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    log_to_stderr(LogFormat::of_environment()?)?;
    weir_agent::standalone::serve(&args.config, session.local("image serve")?)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_image_is_refused_under_each_of_its_names() {
        let image = |name: &str, pinned| weir_api::Image {
            image: name.to_owned(),
            digest: String::new(),
            platforms: Vec::new(),
            present: Bytes(0),
            total: Bytes(0),
            used_ms: 0,
            hits: 0,
            pinned,
            in_use: false,
        };
        let images = vec![image("docker.io/library/nginx:1.27", true), image("ghcr.io/acme/app:1", false)];
        let listed = weir_api::Images { images, pins: Vec::new() };
        let refused = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            refuse_pinned(&names, &listed).map_err(|e| e.to_string())
        };
        for name in ["nginx:1.27", "docker.io/library/nginx:1.27"] {
            let why = refused(&["ghcr.io/acme/app:1", name]).unwrap_err();
            assert!(why.contains("docker.io/library/nginx:1.27: it is pinned"), "{why}");
        }
        assert_eq!(refused(&["ghcr.io/acme/app:1", "nginx:1.28"]), Ok(()));
    }
}
