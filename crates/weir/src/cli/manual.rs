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
  weir man /usr/local/share/man   then: man weir, man weir-set, man weir.toml

The pages of verbs go into DIR/man1, those of administration into DIR/man8, and
that of the configuration into DIR/man5.";

/// The verbs of administration. Their pages are in section 8.
const ADMINISTRATION: [&str; 4] = ["agent", "bugreport", "doctor", "init"];

/// Each key of the configuration, with comments.
const SAMPLE: &str = include_str!("../../../../docs/weir.toml");

#[derive(Debug, Args)]
#[command(after_help = MAN_EXAMPLES)]
pub(super) struct ManArgs {
    /// The directory of manual pages; made if it is not there
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
    put(directory, "5", "weir.toml", &configuration_page(&command)).with_context(cannot)?;
    writeln!(session.out, "the manual pages are in {}", directory.display())?;
    Ok(ExitCode::SUCCESS)
}

/// The section of a command's page.
fn section(name: &str) -> &'static str {
    let verb = name.strip_prefix("weir-").unwrap_or_default();
    if ADMINISTRATION.contains(&verb) { "8" } else { "1" }
}

/// Writes a page into its section.
fn put(directory: &Path, section: &str, name: &str, page: &[u8]) -> io::Result<()> {
    let directory = directory.join(format!("man{section}"));
    fs::create_dir_all(&directory)?;
    fs::write(directory.join(format!("{name}.{section}")), page)
}

/// Writes lines as they are.
fn verbatim(page: &mut Vec<u8>, lines: &str) -> io::Result<()> {
    page.extend_from_slice(b".nf\n");
    for line in lines.lines() {
        // Troff must not take the beginning of a line for a command.
        let escaped = line.replace('\\', "\\e").replace('-', "\\-");
        writeln!(page, "\\&{escaped}")?;
    }
    page.extend_from_slice(b".fi\n");
    Ok(())
}

/// Writes the page of a command and the pages of its subcommands.
fn write_pages(command: &Command, directory: &Path) -> io::Result<()> {
    // The examples keep their line breaks here. The generator's own section would remove them.
    let examples = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let version = command.get_version().unwrap_or_default().to_owned();
    let section = section(&name);
    let man = Man::new(command.clone())
        .title(name.to_uppercase())
        .section(section)
        .source(format!("weir {version}"));
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        let mut verbs = Vec::new();
        man.render_subcommands_section(&mut verbs)?;
        page.extend_from_slice(with_sections(&String::from_utf8_lossy(&verbs)).as_bytes());
    }
    if let Some(examples) = examples {
        page.extend_from_slice(b".SH EXAMPLES\n");
        verbatim(&mut page, examples.trim_start_matches("Examples:\n"))?;
    }
    page.extend_from_slice(b".SH \"SEE ALSO\"\nweir(1), weir.toml(5)\n");
    put(directory, section, &name, &page)?;
    command
        .get_subcommands()
        .filter(|below| !below.is_hide_set())
        .try_for_each(|below| write_pages(below, directory))
}

/// The generator gives all subcommands the section of their parent.
fn with_sections(verbs: &str) -> String {
    ADMINISTRATION.iter().fold(verbs.to_owned(), |text, verb| {
        text.replace(&format!("weir\\-{verb}(1)"), &format!("weir\\-{verb}(8)"))
    })
}

/// The page of the configuration file.
fn configuration_page(command: &Command) -> Vec<u8> {
    let version = command.get_version().unwrap_or_default();
    let mut page = format!(
        ".TH WEIR.TOML 5 \"\" \"weir {version}\"\n.SH NAME\nweir.toml \\- configuration of weir(1)\n.SH SYNOPSIS\n\
         /etc/weir/weir.toml\n.SH DESCRIPTION\nThe file is TOML. Here is each key, with examples and comments.\n\
         A key behind # is optional.\n"
    )
    .into_bytes();
    // Writing to a vector cannot fail.
    let _ = verbatim(&mut page, SAMPLE);
    page.extend_from_slice(b".SH \"SEE ALSO\"\nweir(1), weir\\-agent(8), weir\\-init(8), weir\\-plan(1)\n");
    page
}
