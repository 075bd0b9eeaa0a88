use std::{fs, path::PathBuf, process::ExitCode};

use serde_json::Value;
use weir_agree::{Document, Language, Offer};
use weir_fake_agent::FakeAgent;

use crate::cli::{
    USAGE,
    tests::{ask, weir},
};

/// A file with this name and text in its own temporary directory.
fn file(name: &str, text: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path: PathBuf = dir.path().join(name);
    fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (dir, path)
}

const FIG2: &str = include_str!("../../../../agreements/docs/fig2.xml");

/// The text of a screen without its moments.
fn without_moments(text: &str) -> String {
    let is_moment = |word: &str| word.len() > 15 && word.starts_with("20") && word.ends_with('Z');
    let line = |line: &str| {
        let words: Vec<&str> =
            line.split(' ').map(|word| if is_moment(word) { "MOMENT" } else { word }).collect();
        words.join(" ")
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// The whole offer in the help.
fn shown_offer() -> String {
    let (_, text) = super::EXAMPLES.split_once("what holds without it:\n").unwrap();
    text.split_once("\n\n").unwrap().0.to_owned()
}

/// Its marked lines alone are accepted too, and each of them is required.
#[test]
fn offer_of_the_help_is_accepted_as_printed() {
    let whole = shown_offer();
    let needed: Vec<&str> = whole
        .lines()
        .filter(|line| line.contains("# * ") || ["[context]", "[service]", "[terms]"].contains(&line.trim()))
        .collect();
    for text in [whole.clone(), needed.join("\n")] {
        let agent = FakeAgent::start();
        let (_dir, path) = file("offer.toml", &text);
        let said = ask(&agent, &["agree", "offer", &path]).good();
        assert!(said.starts_with("a-1 is agreed: 10mbit to 20mbit for "), "{text}\n{said}");
    }
    for line in needed.iter().filter(|line| line.contains("# * ")) {
        let without: Vec<&str> = needed.iter().filter(|other| *other != line).copied().collect();
        assert!(Offer::read(&without.join("\n"), Language::Toml).is_err(), "not needed: {line}");
    }
}

#[test]
fn a_template_printed_as_an_offer_is_accepted_as_printed() {
    let agent = FakeAgent::start();
    let template = ask(&agent, &["agree", "template", "--offer"]).good();
    assert!(template.contains("\nmin = \"9mbit\"\nmax = \"9mbit\"\n"), "{template}");
    let (_dir, path) = file("offer.toml", &template);
    assert!(ask(&agent, &["agree", "offer", &path]).good().starts_with("a-1 is agreed: 9mbit to 9mbit for "));
}

#[test]
fn a_template_is_filled_in_offered_listed_shown_and_terminated() {
    let agent = FakeAgent::start();
    let template = ask(&agent, &["agree", "template", "--offer"]).good();
    let mut offer = Offer::read(&template, Language::Toml).unwrap();
    offer.service.name = "camera".parse().unwrap();
    offer.context.initiator = "acme".parse().unwrap();
    let (_dir, path) = file("offer.toml", &offer.write(Language::Toml));
    let said = ask(&agent, &["agree", "offer", &path]).good();
    let line = "a-1 is agreed: 9mbit to 9mbit for container camera from MOMENT without an end";
    assert_eq!(without_moments(&said), line);
    assert!(ask(&agent, &["agree", "offer", &path]).good().contains("the same offer was answered before"));

    let list = ask(&agent, &["agree", "list"]).good();
    let rows: Vec<&str> = list.lines().collect();
    assert!(rows[0].starts_with("ID   PARTY  STATE     SERVICE    MIN    MAX  FROM"), "{list}");
    assert!(rows[1].starts_with("a-1  acme   in-force  camera   9mbit  9mbit  20"), "{list}");
    assert_eq!(rows[0].find("SELECTOR"), rows[1].find("container camera"), "{list}");

    let shown = without_moments(&ask(&agent, &["agree", "show", "a-1"]).good());
    assert!(shown.starts_with(line), "{shown}");
    assert!(shown.contains("\n  states    Observed, service Ready, guarantee NotDetermined\n"), "{shown}");
    assert!(shown.contains("\n  now       9mbit to 9mbit\n"), "{shown}");
    // The terms name no rule, so the node's rule applies: by weight.
    assert!(shown.contains("\n  shares    the spare by weight, with its class's\n"), "{shown}");
    let xml = ask(&agent, &["agree", "show", "a-1", "-o", "xml"]).good();
    assert!(weir_agree::Agreement::read(&xml, Language::Xml).is_ok(), "{xml}");

    let calendar = ask(&agent, &["agree", "calendar"]).good();
    assert!(
        calendar.starts_with(
            "90mbit of 100mbit that leave may be promised; 5mbit are for what has no agreement\n"
        )
    );
    assert!(calendar.lines().last().unwrap().ends_with("  9mbit  81mbit  10.0 %"), "{calendar}");

    let said = ask(&agent, &["agree", "terminate", "a-1"]).good();
    assert!(said.starts_with("a-1 is terminated"), "{said}");
    assert_eq!(ask(&agent, &["agree", "list"]).good().lines().count(), 1);
    assert_eq!(ask(&agent, &["agree", "list", "--all"]).good().lines().count(), 2);
}

/// A party chooses its name, and an operator reads it.
#[test]
fn hostile_names_do_nothing_to_a_terminal_in_any_view_of_agreements() {
    let agent = FakeAgent::start();
    let template = ask(&agent, &["agree", "template", "--offer"]).good();
    let mut offer = Offer::read(&template, Language::Toml).unwrap();
    // A name has no control characters. These turn the text of a line round, and hide.
    offer.context.initiator = "acme\u{202e}gpj\u{200b}\u{2066}".parse().unwrap();
    offer.service.name = "web\u{202d}\u{feff}".parse().unwrap();
    let (_dir, path) = file("offer.toml", &offer.write(Language::Toml));
    let mut views = vec![ask(&agent, &["agree", "offer", &path]).good()];
    for view in ["list", "show a-1", "calendar", "terminate a-1", "list --all"] {
        let words: Vec<&str> = ["agree"].into_iter().chain(view.split(' ')).collect();
        views.push(ask(&agent, &words).good());
    }
    for view in &views {
        let is_obeyed = |c: &char| *c != '\n' && weir_api::plain(&c.to_string()) != c.to_string();
        assert_eq!(view.chars().filter(is_obeyed).collect::<Vec<_>>(), [], "{view}");
    }
    assert!(views[1].contains("acme\u{fffd}gpj") && views[1].contains("web\u{fffd}"), "{}", views[1]);
}

#[test]
fn every_verb_answers_in_json() {
    let agent = FakeAgent::start();
    let (_dir, path) = file("offer.xml", FIG2);
    let json = |args: &[&str]| -> Value { ask(&agent, &[args, &["--json"]].concat()).json() };
    assert_eq!(json(&["agree", "template"])[0]["id"], "bandwidth");
    assert_eq!(json(&["agree", "offer", &path])["agreement"]["offer"]["terms"]["min"], 19_000_000);
    assert_eq!(json(&["agree", "list"])[0]["agreement"]["id"], "a-1");
    assert_eq!(json(&["agree", "show", "a-1"])["in_force"]["max"], 19_000_000);
    assert_eq!(json(&["agree", "calendar"])["steps"][0]["free"], 71_000_000);
    assert_eq!(json(&["agree", "terminate", "a-1"])["state"], "Terminated");
}

/// An unreadable offer never reaches the agent, and the error names the place in it.
#[test]
fn refusal_names_an_acceptable_offer_and_a_fault_its_place() {
    let agent = FakeAgent::start();
    let refused = |text: &str| {
        let (_dir, path) = file("offer", text);
        let outcome = ask(&agent, &["agree", "offer", &path]);
        (outcome.code, outcome.err.replace(&path, "FILE"))
    };
    let (code, err) = refused(&FIG2.replace(" 19 ", " 91 "));
    assert_eq!(code, 1.into());
    assert_eq!(
        err,
        "weir: cannot allow a NetMaxBandwidth of 91mbit: 90mbit of the link's 100mbit may be reserved\n"
    );
    let (code, err) = refused(&FIG2.replacen("Mbps", "MBps", 1));
    assert_eq!(code, USAGE.into());
    assert!(err.starts_with("weir: FILE: cannot read qos:NetMinBandwidth at line "), "{err}");
    assert!(err.contains("the unit `MBps` is not known"), "{err}");
    assert_eq!(refused("id = ").0, USAGE.into());
    let missing = ask(&agent, &["agree", "offer", "/nowhere/offer.xml"]);
    assert_eq!(missing.code, USAGE.into());
    assert!(missing.err.contains("cannot read /nowhere/offer.xml"), "{}", missing.err);
    let unknown = ask(&agent, &["agree", "show", "a-7"]);
    assert_eq!((unknown.code, unknown.err.contains("id a-7")), (1.into(), true), "{}", unknown.err);
    assert_eq!(ask(&agent, &["agree", "renew", "a-7", "--end", "soon"]).code, USAGE.into());
    assert_eq!(ask(&agent, &["agree", "list"]).good().lines().count(), 1);
}

#[test]
fn the_offer_that_the_help_shows_is_one() {
    let help = weir(&["agree", "--help"]).good();
    let (_, text) = help.split_once("  id = \"camera-2026-11\"").unwrap();
    let (text, _) = text.split_once("\n\nThe same in JSON").unwrap();
    let text = format!("id = \"camera-2026-11\"{text}");
    let line = |line: &str| {
        let line = line.trim();
        // The line of a required value has no `#`.
        let end = line.find("    ").unwrap_or(line.len());
        line[..end].to_owned()
    };
    let text: Vec<String> = text.lines().map(line).collect();
    let offer = Offer::read(&text.join("\n"), Language::Toml).unwrap_or_else(|e| panic!("{e}: {text:?}"));
    assert_eq!(offer.terms.min, weir_units::BitRate::mbit(10));
    assert!(offer.terms.check().is_ok());
}

#[test]
fn document_ends_with_a_newline_and_json_allows_no_other_language() {
    let agent = FakeAgent::start();
    let (_dir, path) = file("offer.toml", &shown_offer());
    let refused = ask(&agent, &["--json", "agree", "offer", &path, "-o", "xml"]);
    assert_eq!((refused.code, refused.out.as_str()), (ExitCode::from(USAGE), ""), "{}", refused.err);
    assert!(refused.err.contains("cannot print in JSON and in xml"), "{}", refused.err);
    let all: Value = ask(&agent, &["--json", "agree", "list"]).json();
    assert_eq!(all, Value::Array(Vec::new()), "the refused offer was sent");
    ask(&agent, &["agree", "offer", &path]).good();
    for language in ["json", "toml", "xml"] {
        for args in [&["agree", "show", "a-1"][..], &["agree", "template"]] {
            let text = ask(&agent, &[args, &["-o", language]].concat()).good();
            assert!(text.ends_with('\n'), "{language}: {text:?}");
            assert!(!text.ends_with("\n\n"), "{language}: {text:?}");
        }
    }
    assert!(ask(&agent, &["--json", "agree", "show", "a-1", "-o", "json"]).good().starts_with('{'));
}

#[test]
fn calendar_of_a_download_that_is_not_shared_names_its_option() {
    let agent = FakeAgent::start();
    let refused = ask(&agent, &["agree", "calendar", "--download"]);
    assert_eq!(refused.code, ExitCode::from(1));
    assert!(refused.err.contains("(leave --download out)"), "{}", refused.err);
}
