//! `weir image runtime`: the images that Docker keeps itself.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use weir_api::{RuntimeImage, RuntimeImages};
use weir_units::Bytes;

use super::{
    super::{
        Session,
        format::{Look, Table, Tone},
    },
    verbs::ago,
};

pub(super) const EXAMPLES: &str = "Examples:
  weir image runtime
  weir image runtime --json | jq -r '.images[] | select(.leaves) | .names[]'

ALONE is what the removal of this image alone would free: layers that no other
image has. The budget is that of [images.runtime] in the configuration. With
`dry_run`, the default, weir removes nothing.";

pub(super) fn run(session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    let images = session.client.runtime_images()?;
    session.print(&images, |out, look| write(out, look, &images))?;
    Ok(ExitCode::SUCCESS)
}

fn write(out: &mut dyn Write, look: Look, images: &RuntimeImages) -> io::Result<()> {
    let looked =
        images.looked_ms.map_or("not looked at yet".to_owned(), |ms| format!("looked at {}", ago(ms)));
    writeln!(out, "{:<9} {}, {looked}", images.runtime, images.socket)?;
    writeln!(out, "layers    {} of {}", images.bytes, images.budget)?;
    let follows = if images.follows == images.policy { "" } else { &format!(": {} now", images.follows) };
    writeln!(out, "order     {}{follows}", images.policy)?;
    let refused = match images.refused {
        0 => String::new(),
        times => format!("; refused by {}: {times}", images.runtime),
    };
    writeln!(out, "removed   {}, {} freed{refused}", images.removed, images.removed_bytes)?;
    if let Some(problem) = &images.problem {
        writeln!(out, "! nothing is removed: {problem}")?;
    }
    if images.short > Bytes(0) {
        writeln!(out, "! {} above the budget, and no image that may go would free them", images.short)?;
    }
    if images.dry_run {
        let leaving = images.images.iter().filter(|image| image.leaves.is_some()).count();
        writeln!(out, "! dry run: images that would go now: {leaving}; `dry_run = false` removes them")?;
    }
    let mut table = Table::new(look, &["IMAGE", "SIZE", "ALONE", "LAST USED", "USES", "STAYS"]);
    for image in &images.images {
        let (stays, tone) = fate(image, images.dry_run);
        table.row([
            (title(image), Tone::Plain),
            (image.bytes.to_string(), Tone::Plain),
            (image.alone.to_string(), Tone::Plain),
            (ago(image.used_ms), Tone::Dim),
            (image.uses.to_string(), Tone::Plain),
            (stays, tone),
        ]);
    }
    write!(out, "{table}")
}

/// All names of an image, or the beginning of its id.
fn title(image: &RuntimeImage) -> String {
    if image.names.is_empty() {
        return image.id.strip_prefix("sha256:").unwrap_or(&image.id).chars().take(12).collect();
    }
    image.names.join(" ")
}

/// Why an image stays, or when it goes.
fn fate(image: &RuntimeImage, dry_run: bool) -> (String, Tone) {
    match (image.leaves, image.kept.is_empty()) {
        (Some(place), _) if dry_run => (format!("would go, as number {place}"), Tone::Warn),
        (Some(place), _) => (format!("goes, as number {place}"), Tone::Warn),
        (None, true) => ("while there is room".to_owned(), Tone::Dim),
        (None, false) => (image.kept.join(", "), Tone::Plain),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_fake_agent as fake;

    fn text(images: &RuntimeImages) -> String {
        let mut out = Vec::new();
        write(&mut out, Look::PLAIN, images).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_image_is_printed_with_the_reason_why_it_stays_or_goes() {
        let images = fake::runtime_images();
        let out = text(&images);
        for part in [
            "docker    /run/docker.sock, looked at ",
            "layers    9GiB of 8GiB\n",
            "order     auto: gdsf-ghost now\n",
            "removed   4, 1GiB freed; refused by docker: 1\n",
            "! dry run: images that would go now: 1; `dry_run = false` removes them\n",
            "in use by web, used 3 min ago",
            "pinned by base:1",
            "would go, as number 1",
        ] {
            assert!(out.contains(part), "{part} is not in\n{out}");
        }
        let problem = Some("cannot connect to docker".to_owned());
        let out = text(&RuntimeImages { dry_run: false, problem, short: Bytes(1 << 20), ..images });
        assert!(out.contains("! nothing is removed: cannot connect to docker\n"), "{out}");
        assert!(out.contains("! 1MiB above the budget") && out.contains("goes, as number 1"), "{out}");
        assert!(!out.contains("dry run"), "{out}");
    }
}
