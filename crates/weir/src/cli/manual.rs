//! `weir completions` and `weir man`, generated from the definition of the command line.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use super::{Cli, Session};

const COMPLETIONS_EXAMPLES: &str = "Examples:
  weir completions bash > /etc/bash_completion.d/weir
  weir completions zsh > \"${fpath[1]}/_weir\"
  weir completions fish > ~/.config/fish/completions/weir.fish";

#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub(super) struct CompletionsArgs {
    /// Which shell
    shell: Shell,
}

const MAN_EXAMPLES: &str = "Examples:
  weir man /usr/local/share/man/man1       then: man weir, man weir-set";

#[derive(Debug, Args)]
#[command(after_help = MAN_EXAMPLES)]
pub(super) struct ManArgs {
    /// Where the pages go; made if it is not there
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub(super) fn completions(args: &CompletionsArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    // The generator panics if its output fails, so it writes into memory.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "weir", &mut script);
    session.out.write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn pages(args: &ManArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    let directory = &args.directory;
    let cannot = || format!("cannot write the manual pages into {}", directory.display());
    fs::create_dir_all(directory).with_context(cannot)?;
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    write_pages(&command, directory).with_context(cannot)?;
    writeln!(session.out, "the manual pages are in {}", directory.display())?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the page of a command and the pages of its subcommands.
fn write_pages(command: &Command, directory: &Path) -> io::Result<()> {
    // The examples keep their line breaks here. The generator's own section would remove them.
    let examples = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let version = command.get_version().unwrap_or_default().to_owned();
    let man = Man::new(command.clone()).title(name.to_uppercase()).source(format!("weir {version}"));
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(examples) = examples {
        page.extend_from_slice(b".SH EXAMPLES\n.nf\n");
        for line in examples.trim_start_matches("Examples:\n").lines() {
            // Troff must not take the beginning of a line for a command.
            let escaped = line.replace('\\', "\\e").replace('-', "\\-");
            writeln!(page, "\\&{escaped}")?;
        }
        page.extend_from_slice(b".fi\n");
    }
    fs::write(directory.join(format!("{name}.1")), page)?;
    command
        .get_subcommands()
        .filter(|below| !below.is_hide_set())
        .try_for_each(|below| write_pages(below, directory))
}
