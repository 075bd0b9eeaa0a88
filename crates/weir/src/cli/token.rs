//! `weir token`: tokens of the API over TCP.

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use jiff::Timestamp;
use weir_api::{NewToken, TokenScope, TokenView};

use super::{Session, Usage, format, history};

const EXAMPLES: &str = "Examples:
  weir token add grafana --scope read
  weir token add shop --scope party --party acme --expires 90d
  weir token ls
  weir token rm shop
  curl -H \"Authorization: Bearer $TOKEN\" https://node:9798/v1/classes

The API is open over TCP with [api] listen, and takes tokens over TLS ([api]
certificate and key) or on loopback. The secret is printed once; the agent
keeps its hash. Scopes: read sees everything; party makes, sees, renews and
ends the agreements of its party, and nothing else; operate changes policies,
capacities, rules and images, and makes agreements of its own; admin does all.
The right admin is needed to make tokens.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct TokenArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make a token, and print its secret once
    Add(AddArgs),
    /// List the tokens, without their secrets
    Ls,
    /// Take a token away, at once
    Rm {
        /// The token's name
        #[arg(value_name = "NAME", value_parser = super::name)]
        name: String,
    },
}

#[derive(Debug, Args)]
struct AddArgs {
    /// The token's name, which `weir history` shows
    #[arg(value_name = "NAME")]
    name: String,
    /// The routes that its bearer may use
    #[arg(long, value_enum, value_name = "SCOPE")]
    scope: Scope,
    /// The party whose agreements it is about, for scope party
    #[arg(long, value_name = "PARTY")]
    party: Option<String>,
    /// When it ends: a moment, or a span from now such as 90d
    #[arg(long, value_name = "TIME")]
    expires: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Scope {
    Read,
    Party,
    Operate,
    Admin,
}

impl From<Scope> for TokenScope {
    fn from(scope: Scope) -> TokenScope {
        match scope {
            Scope::Read => TokenScope::Read,
            Scope::Party => TokenScope::Party,
            Scope::Operate => TokenScope::Operate,
            Scope::Admin => TokenScope::Admin,
        }
    }
}

/// A moment, or the moment after a span.
fn expires(text: &str, now: Timestamp) -> Result<u64, Usage> {
    let moment = match history::span(text) {
        Some(span) => now.checked_add(span).ok(),
        None => text.parse().ok(),
    };
    let moment = moment.and_then(|moment: Timestamp| u64::try_from(moment.as_millisecond()).ok());
    moment.ok_or_else(|| {
        Usage(format!(
            "cannot read `{text}` as a time: write a span such as 12h or 90d, or a moment such as \
             2027-01-01T00:00:00Z"
        ))
    })
}

fn about(token: &TokenView, now: Timestamp) -> String {
    let party = token.party.as_ref().map_or(String::new(), |party| format!(" {party}"));
    let is_over = |ms: u64| i64::try_from(ms).is_ok_and(|ms| ms <= now.as_millisecond());
    let expires = match token.expires_ms {
        None => "expires never".to_owned(),
        Some(ms) if is_over(ms) => format!("EXPIRED {}", format::moment(ms)),
        Some(ms) => format!("expires {}", format::moment(ms)),
    };
    format!("{}{party}, {expires}", token.scope)
}

pub(super) fn run(args: &TokenArgs, session: &mut Session<'_>) -> anyhow::Result<ExitCode> {
    let now = Timestamp::now();
    match &args.verb {
        Verb::Add(args) => {
            let expires_ms = args.expires.as_deref().map(|text| expires(text, now)).transpose()?;
            let (name, scope, party) = (args.name.clone(), args.scope.into(), args.party.clone());
            let made = session.client.add_token(&NewToken { name, scope, party, expires_ms })?;
            session.print(&made, |out, _| {
                writeln!(out, "token {}: {}", made.token.name, about(&made.token, now))?;
                writeln!(out, "its secret, which is shown only now:")?;
                writeln!(out, "{}", made.secret)
            })?;
        }
        Verb::Ls => {
            let tokens = session.client.tokens()?;
            session.print(&tokens, |out, _| match tokens.as_slice() {
                [] => writeln!(out, "there is no token: `weir token add` makes one"),
                tokens => tokens.iter().try_for_each(|token| {
                    writeln!(
                        out,
                        "{}  {}, made {}",
                        token.name,
                        about(token, now),
                        format::moment(token.created_ms)
                    )
                }),
            })?;
        }
        Verb::Rm { name } => {
            let removed = session.client.remove_token(name)?;
            session.print(&removed, |out, _| writeln!(out, "token {} is taken away", removed.name))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use weir_fake_agent::FakeAgent;

    use super::{super::tests::ask, *};

    #[test]
    fn token_add_prints_the_secret_once_and_ls_never() {
        let agent = FakeAgent::start();
        let args = ["token", "add", "shop", "--scope", "party", "--party", "acme"];
        let made = ask(&agent, &args).good();
        let expected =
            "token shop: party acme, expires never\nits secret, which is shown only now:\nweir_0123\n";
        assert_eq!(made, expected);
        let listed = ask(&agent, &["token", "ls"]).good();
        assert!(listed.starts_with("shop  party acme, expires never, made 2023-11-14T"), "{listed}");
        assert!(!listed.contains("weir_"), "{listed}");
        assert_eq!(ask(&agent, &["token", "rm", "shop"]).good(), "token shop is taken away\n");
        let refused = ask(&agent, &["token", "add", "x", "--scope", "root"]);
        assert_eq!(refused.code, ExitCode::from(super::super::USAGE));
    }

    #[test]
    fn token_that_has_expired_is_marked() {
        let now: Timestamp = "2026-11-26T08:00:00Z".parse().unwrap();
        let now_ms = u64::try_from(now.as_millisecond()).unwrap();
        let at = |expires_ms| {
            let (name, party) = ("ops".to_owned(), None);
            about(&TokenView { name, scope: TokenScope::Read, party, created_ms: 0, expires_ms }, now)
        };
        assert_eq!(at(None), "read, expires never");
        assert_eq!(at(Some(now_ms + 1_000)), "read, expires 2026-11-26T08:00:01.000Z");
        assert_eq!(at(Some(now_ms)), "read, EXPIRED 2026-11-26T08:00:00.000Z");
    }

    #[test]
    fn expires_takes_spans_and_moments_and_refuses_the_rest() {
        let now: Timestamp = "2026-11-26T08:00:00Z".parse().unwrap();
        let now_ms = 1_795_680_000_000;
        for (text, in_s) in [("12h", 43_200), ("90d", 7_776_000), ("2026-11-26T08:00:01Z", 1)] {
            assert_eq!(expires(text, now).unwrap(), now_ms + in_s * 1_000, "{text}");
        }
        for text in ["", "later", "-2h", "90"] {
            assert!(expires(text, now).is_err(), "{text}");
        }
    }
}
