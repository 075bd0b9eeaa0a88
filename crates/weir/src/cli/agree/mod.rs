//! `weir agree`: templates, offers, agreements and the calendar.

mod report;
mod show;

#[cfg(test)]
mod tests;

use std::{
    io::{self, Read, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    time::SystemTime,
};

use anyhow::{Context as _, anyhow};
use clap::{Args, Subcommand};
use weir_agree::{
    AgreementState, Context, Direction, Document, FaultCode, Language, MAX_DOCUMENT, Name, Offer, Share,
    Template, Utc,
};
use weir_api::{AgreementStatus, CalendarView, ClientError, OfferAnswer};
use weir_units::BitRate;

use super::{
    Session, Usage,
    format::{self, Look, Table, Tone},
};

const EXAMPLES: &str = "Examples:
  weir agree template --offer > camera.toml   a template as an offer to fill in
  weir agree offer camera.toml                accepted or refused, with the
                                              reason
  weir agree list                             all of them, and what each sends
  weir agree show a-17                        one of them
  weir agree report a-17 --html report.html   what was promised and kept
  weir agree calendar                         what is promised when
  weir agree renew a-17 --end 2027-12-31T00:00:00Z
  weir agree terminate a-17

A whole offer, as TOML. Only what has a * is needed. The rest says
what holds without it:
  id = \"camera-2026-11\"                # accepted once, it stays so when resent
  [context]
  initiator = \"acme\"                   # * who asks
  expiration = \"2027-12-31T00:00:00Z\"  # its end, if [terms] names none
  template_id = \"bandwidth\"            # the template that it is made from
  [service]
  term = \"server_parameters\"           # * this, and nothing else yet
  name = \"camera\"                      # * the container, without a selector
  [terms]
  min = \"10mbit\"                       # * guaranteed when it is asked for
  max = \"20mbit\"                       # * never more
  start = \"2026-12-01T08:00:00Z\"       # at once
  end = \"2027-12-01T08:00:00Z\"         # no end
  direction = \"upload\"                 # upload; of a container: download, both
  share = \"weighted\"                   # as the node says; weighted if it does
  weight = 3                           # 1
  [terms.selector]                     # all of it together must match
  container = \"camera\"                 # any, or the host, beside other keys
  protocol = \"tcp\"                     # tcp and udp; sctp
  source_port = 8001                   # any; the provider's own port
  destination_port = 40000             # any; the customer's
  subnet = \"192.0.2.0/24\"              # any; the customer's network
  dscp = 46                            # any code point
  [terms.quota]                        # none
  day = \"10GiB\"
  month = \"100GiB\"
  after = \"2mbit\"                      # the ceiling when it is used up

The same in JSON, or as WS-Agreement's XML; the agent's socket takes all three
over HTTP:
  curl --unix-socket /run/weir/weir.sock -H 'Content-Type: application/xml' \\
       --data-binary @offer.xml http://weir/v1/agreements

Exit codes: 0 accepted or done, 1 refused, 2 the document cannot be read.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct AgreeArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show what this node is ready to agree on
    Template(TemplateArgs),
    /// Offer an agreement
    Offer(OfferArgs),
    /// List the agreements
    List(ListArgs),
    /// Show one agreement, and what has become of it
    Show(OneArgs),
    /// End an agreement now, or withdraw an offer that waits
    Terminate(OneArgs),
    /// Let an agreement last longer
    Renew(RenewArgs),
    /// Show what was promised and kept in a month
    Report(report::ReportArgs),
    /// Show what is promised when, and what is free
    Calendar(CalendarArgs),
    /// Accept an offer that waits (with `decide = "operator"`)
    Accept(OneArgs),
    /// Reject an offer that waits
    Reject(OneArgs),
}

#[derive(Debug, Args)]
struct TemplateArgs {
    /// Only this one
    id: Option<String>,
    /// As an offer to fill in, in TOML
    #[arg(long)]
    offer: bool,
    /// The document itself, in this language: xml, json or toml
    #[arg(long, short, value_name = "LANGUAGE", conflicts_with = "offer")]
    output: Option<Language>,
}

const OFFER_EXAMPLES: &str = "Examples:
  weir agree offer camera.toml
  weir agree offer - < offer.xml

The beginning of the document tells whether it is XML, JSON or TOML.
`weir agree --help` shows a whole one. A refusal names what would be accepted
instead.";

#[derive(Debug, Args)]
#[command(after_help = OFFER_EXAMPLES)]
struct OfferArgs {
    /// The offer; `-` for standard input
    file: PathBuf,
    /// Print the agreement in this language: xml, json or toml
    #[arg(long, short, value_name = "LANGUAGE")]
    output: Option<Language>,
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Those that are over or rejected too
    #[arg(long, short)]
    all: bool,
}

#[derive(Debug, Args)]
struct OneArgs {
    /// The agreement's id
    id: Name,
    /// The document itself, in this language: xml, json or toml
    #[arg(long, short, value_name = "LANGUAGE")]
    output: Option<Language>,
}

const RENEW_EXAMPLES: &str = "Examples:
  weir agree renew a-17 --end 2027-12-31T00:00:00Z
  weir agree renew a-17 --end never";

#[derive(Debug, Args)]
#[command(after_help = RENEW_EXAMPLES)]
struct RenewArgs {
    /// The agreement's id
    id: Name,
    /// Until when, in UTC, or `never` for no end
    #[arg(long, value_name = "MOMENT", value_parser = end)]
    end: End,
}

#[derive(Debug, Args)]
struct CalendarArgs {
    /// Show the promises of what arrives, not of what leaves
    #[arg(long)]
    download: bool,
    /// From then on, in UTC; now unless given. The agent forgets past promises
    #[arg(long, value_name = "MOMENT")]
    from: Option<Utc>,
    /// Up to then
    #[arg(long, value_name = "MOMENT")]
    to: Option<Utc>,
}

/// A requested end; `None` for no end.
#[derive(Debug, Clone, Copy)]
struct End(Option<Utc>);

fn end(text: &str) -> Result<End, weir_agree::ParseUtcError> {
    if text == "never" { Ok(End(None)) } else { text.parse().map(|end| End(Some(end))) }
}

impl Verb {
    /// The language of the document to print.
    fn output(&self) -> Option<Language> {
        match self {
            Verb::Template(args) => args.output,
            Verb::Offer(args) => args.output,
            Verb::Show(args) | Verb::Terminate(args) | Verb::Accept(args) | Verb::Reject(args) => args.output,
            Verb::List(_) | Verb::Renew(_) | Verb::Report(_) | Verb::Calendar(_) => None,
        }
    }
}

pub(super) fn run(args: AgreeArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    if let Some(other) = args.verb.output().filter(|language| session.json && *language != Language::Json) {
        return Err(
            Usage(format!("cannot print in JSON and in {other}: leave out --json or --output")).into()
        );
    }
    match args.verb {
        Verb::Template(args) => templates(&args, session)?,
        Verb::Offer(args) => offer(&args, session)?,
        Verb::List(args) => ls(args.all, session)?,
        Verb::Show(args) => {
            let status = session.client.agreement(args.id.as_str())?;
            match args.output {
                Some(language) => document(&status.agreement, language, session)?,
                None => session.print(&status, |out, look| show::status(out, look, &status))?,
            }
        }
        Verb::Terminate(args) => {
            let agreement = session.client.terminate(args.id.as_str())?;
            changed(&agreement, args.output, session)?;
        }
        Verb::Renew(args) => {
            let agreement = session.client.renew(args.id.as_str(), args.end.0)?;
            changed(&agreement, None, session)?;
        }
        Verb::Accept(args) => changed(&session.client.decide(&args.id, true)?, args.output, session)?,
        Verb::Reject(args) => changed(&session.client.decide(&args.id, false)?, args.output, session)?,
        Verb::Report(args) => report::run(&args, session)?,
        Verb::Calendar(args) => {
            let direction = if args.download { Direction::Download } else { Direction::Upload };
            let view = session.client.calendar(direction, args.from, args.to).map_err(not_shared)?;
            session.print(&view, |out, look| calendar(out, look, &view))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The refusal of a calendar, with the option's name where the download is not shared.
fn not_shared(error: ClientError) -> anyhow::Error {
    match error {
        ClientError::Fault(fault) if fault.code == FaultCode::DirectionNotOffered => {
            anyhow!(
                "cannot show promises of what arrives: this node does not share its download (leave --download out)"
            )
        }
        other => other.into(),
    }
}

/// Prints a document in this language.
fn document(one: &impl Document, language: Language, session: &mut Session<'_>) -> io::Result<()> {
    let text = one.write(language);
    writeln!(session.out, "{}", text.strip_suffix('\n').unwrap_or(&text))
}

fn changed(
    agreement: &weir_agree::Agreement,
    output: Option<Language>,
    session: &mut Session<'_>,
) -> anyhow::Result<()> {
    if let Some(language) = output {
        return Ok(document(agreement, language, session)?);
    }
    session.print(agreement, |out, _| show::line(out, agreement))
}

/// Prints as `weir agree list` does.
pub(super) fn overview(session: &mut Session<'_>) -> anyhow::Result<()> {
    ls(false, session)
}

fn ls(with_ended: bool, session: &mut Session<'_>) -> anyhow::Result<()> {
    let mut all = session.client.agreements()?;
    all.retain(|one| with_ended || !one.agreement.state.is_final());
    all.sort_by_key(|one| one.agreement.answered);
    session.print(&all, |out, look| list(out, look, &all))
}

fn templates(args: &TemplateArgs, session: &mut Session<'_>) -> anyhow::Result<()> {
    let mut templates = session.client.templates()?;
    if let Some(id) = &args.id {
        let known = templates.iter().map(|t| t.id.to_string()).collect::<Vec<_>>().join(", ");
        templates.retain(|template| template.id.as_str() == id);
        anyhow::ensure!(!templates.is_empty(), "cannot find a template with the id {id}; there are {known}");
    }
    if args.offer {
        let template = templates.first().context("the node has no template")?;
        write!(session.out, "{}", with_units(&to_fill_in(template).write(Language::Toml)))?;
        return Ok(());
    }
    if let Some(language) = args.output {
        return Ok(templates.iter().try_for_each(|template| document(template, language, session))?);
    }
    session.print(&templates, |out, look| {
        let headings = ["TEMPLATE", "PROVIDER", "SERVICE", ">MIN", ">MAX", "SHARE", "SELECTOR", "ACCEPTED"];
        let mut table = Table::new(look, &headings);
        for template in &templates {
            let Template { id, responder, service, terms, constraints, .. } = template;
            let selector =
                if terms.selector.is_empty() { "the service".to_owned() } else { terms.selector.to_string() };
            let selector = terms.direction.packets_of(&selector);
            // The node's rule applies if the terms name none.
            let share = if terms.share == Share::Weighted { "weighted" } else { "-" };
            let accepted = show::constraints(constraints);
            let cells = [
                id.to_string(),
                responder.to_string(),
                service.name.to_string(),
                terms.min.to_string(),
                terms.max.to_string(),
                share.to_owned(),
                selector,
                accepted,
            ];
            table.row(cells.map(|text| (text, Tone::Plain)));
        }
        write!(out, "{table}")
    })
}

/// An offer in TOML with its rates as people write them: `min = "9mbit"` for `min = 9000000`.
fn with_units(offer: &str) -> String {
    let line = |line: &str| {
        let (key, bits) = line.split_once(" = ").filter(|(key, _)| ["min", "max"].contains(key))?;
        let rate = BitRate(bits.parse().ok()?);
        let text = rate.to_string();
        // Some rates are shown rounded.
        (text.parse() == Ok(rate)).then(|| format!("{key} = \"{text}\""))
    };
    offer.lines().map(|text| line(text).unwrap_or_else(|| text.to_owned()) + "\n").collect()
}

/// Turns a template into an offer with named gaps.
fn to_fill_in(template: &Template) -> Offer {
    let name = |text: &str| Name::new(text).unwrap_or_else(|_| template.id.clone());
    Offer {
        id: Some(name("YOUR-ID")),
        name: template.name.clone(),
        context: Context {
            initiator: name("YOUR-NAME"),
            responder: Some(template.responder.clone()),
            expiration: None,
            template_id: Some(template.id.clone()),
            template_name: template.name.clone(),
        },
        service: template.service.clone(),
        terms: template.terms.clone(),
    }
}

fn offer(args: &OfferArgs, session: &mut Session<'_>) -> anyhow::Result<()> {
    let text = read(&args.file)?;
    let offer = Offer::read(&text, Language::guess(&text))
        .map_err(|fault| Usage(format!("{}: {fault}", args.file.display())))?;
    let answer = session.client.offer(&offer)?;
    if let Some(language) = args.output {
        return Ok(document(&answer.agreement, language, session)?);
    }
    session.print(&answer, |out, _| {
        let OfferAnswer { agreement, repeated, oversubscribed } = &answer;
        show::line(out, agreement)?;
        if *repeated {
            writeln!(out, "the same offer was answered before")?;
        }
        if let Some(all) = oversubscribed {
            writeln!(out, "the link is oversubscribed: {} are promised that it does not have", all.excess)?;
        }
        Ok(())
    })
}

/// Reads the document with the agent's size limit.
fn read(file: &Path) -> Result<String, Usage> {
    let mut bytes = Vec::new();
    let most = MAX_DOCUMENT as u64 + 1;
    let read = if file == Path::new("-") {
        io::stdin().take(most).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(file).and_then(|opened| opened.take(most).read_to_end(&mut bytes))
    };
    read.map_err(|e| Usage(format!("cannot read {}: {e}", file.display())))?;
    String::from_utf8(bytes)
        .map_err(|e| Usage(format!("cannot read {}: it is not UTF-8: {e}", file.display())))
}

fn list(out: &mut dyn Write, look: Look, all: &[AgreementStatus]) -> io::Result<()> {
    let headings = ["ID", "PARTY", "STATE", "SERVICE", ">MIN", ">MAX", "FROM", "UNTIL", ">TODAY", "SELECTOR"];
    let mut table = Table::new(look, &headings);
    for one in all {
        let agreement = &one.agreement;
        let terms = &agreement.offer.terms;
        let tone = match (agreement.state, &one.not_enforced_because) {
            (AgreementState::Observed, Some(_)) => Tone::Bad,
            (AgreementState::Observed, None) if one.in_force.is_some() => Tone::Good,
            (AgreementState::Pending, _) => Tone::Warn,
            _ => Tone::Dim,
        };
        let (min, max) = one.in_force.map_or((terms.min, terms.max), |now| (now.min, now.max));
        let plain = |text: String| (text, Tone::Plain);
        let unmet = if one.not_enforced_because.is_some() { "!" } else { "" };
        table.row([
            plain(agreement.id.to_string()),
            plain(agreement.offer.context.initiator.to_string()),
            (format!("{}{unmet}", show::state(one)), tone),
            plain(agreement.offer.service.name.to_string()),
            plain(min.to_string()),
            plain(max.to_string()),
            plain(agreement.from.to_string()),
            plain(agreement.until.map_or("-".to_owned(), |until| until.to_string())),
            plain(one.sent_today.to_string()),
            plain(agreement.packets()),
        ]);
    }
    write!(out, "{table}")?;
    let mut unmet = all.iter().filter_map(|one| Some((one, one.not_enforced_because.as_ref()?))).peekable();
    if unmet.peek().is_some() {
        writeln!(out)?;
    }
    for (one, why) in unmet {
        writeln!(out, "! {} is not enforced: {why}", one.agreement.id)?;
    }
    Ok(())
}

fn calendar(out: &mut dyn Write, look: Look, view: &CalendarView) -> io::Result<()> {
    writeln!(
        out,
        "{} of {} that {} may be promised; {} are for what has no agreement{}\n",
        view.promisable,
        view.link,
        match view.direction {
            Direction::Upload => "leave",
            Direction::Download => "arrive",
        },
        view.other,
        if view.other_is_ceiling { ", and no more while one is in force" } else { "" },
    )?;
    let mut table = Table::new(look, &["FROM", ">PROMISED", ">FREE", ">PART"]);
    for step in &view.steps {
        let tone = if step.free.0 == 0 { Tone::Warn } else { Tone::Plain };
        table.row([
            (step.from.to_string(), Tone::Plain),
            (step.reserved.to_string(), Tone::Plain),
            (step.free.to_string(), tone),
            (format::percent(step.reserved, view.promisable), Tone::Dim),
        ]);
    }
    write!(out, "{table}")
}

/// The present time, for quotas.
fn now() -> Utc {
    Utc::from(SystemTime::now())
}
