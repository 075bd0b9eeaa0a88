//! Texts about agreements, and the template of a provider that configures none.

use weir_agree::{
    Agreement, Constraints, Directions, Fault, FaultCode, GRAIN, Name, Service, Template, Terms,
};

use crate::agent::maker::Maker;
use crate::{
    agent::store::StoreError,
    config::{Agreements as Rules, Link},
};

/// The answer where the configuration allows no agreements.
pub(super) fn off() -> Fault {
    let message = "cannot make agreements: the node's configuration has no [agreements]".to_owned();
    Fault::new(FaultCode::AgreementsOff, message)
}

/// The answer about an identifier that no agreement has.
pub(crate) fn unknown(id: &str) -> Fault {
    let message = format!("cannot find an agreement with the id {id} (`weir agree list` lists all)");
    Fault::new(FaultCode::UnknownAgreement, message)
}

/// The reason why an agreement on the download is not enforced on a link that shares none.
pub(super) const NOT_SHARED: &str = "the link does not share it now ([link] download of the configuration)";

/// Describes an agreement in one line.
pub(in crate::agent) fn promise(agreement: &Agreement) -> String {
    let terms = &agreement.offer.terms;
    let until = agreement.until.map_or("without an end".to_owned(), |until| format!("to {until}"));
    format!(
        "{} has {} to {} for {} from {} {until}",
        agreement.offer.context.initiator,
        terms.min,
        terms.max,
        agreement.packets(),
        agreement.from
    )
}

/// The event of an offer that no one decided before its end.
pub(super) fn undecided(promise: &str) -> String {
    format!("no decision came before its end: {promise}")
}

pub(super) fn share_not_offered() -> Fault {
    let message = "cannot share the spare by weight: this provider shares it in equal parts (leave share out, or \
                   write additive)";
    Fault {
        accepted: vec!["additive".to_owned()],
        ..Fault::new(FaultCode::ShareNotOffered, message.to_owned())
    }
}

pub(super) fn not_recorded(why: &str) -> Fault {
    Fault::new(FaultCode::NotRecorded, format!("cannot record the agreement: {why}"))
}

/// The fault after a failed write. `is_known` says whether the database could be read afterwards.
pub(super) fn uncertain(error: &StoreError, is_known: bool) -> Fault {
    not_recorded(&match is_known {
        true => format!("{error}; nothing was changed"),
        false => format!("{error}; whether it was is not known: ask again, with the same id"),
    })
}

/// The name of this node.
pub(super) fn host() -> Name {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Name::new(name.trim()).unwrap_or_else(|_| fixed("weir"))
}

/// A name from a constant in the source.
fn fixed(text: &'static str) -> Name {
    Name::new(text).expect("names in the source are names")
}

/// The templates if none is configured, one for each shared direction. They allow any offer that admission
/// accepts.
pub(super) fn plain_templates(
    rules: &Rules,
    link: &Link,
    download: Option<&Link>,
) -> impl Iterator<Item = Template> {
    let upload =
        plain_template(rules, link, ("bandwidth", "Bandwidth of this node's uplink"), Directions::Upload);
    let download = download.map(|link| {
        let words = ("download", "Bandwidth of what arrives by this node's uplink");
        plain_template(rules, link, words, Directions::Download)
    });
    std::iter::once(upload).chain(download)
}

fn plain_template(
    rules: &Rules,
    link: &Link,
    (id, name): (&'static str, &'static str),
    direction: Directions,
) -> Template {
    let most = rules.reservable.of(link.assured());
    let rate = most.scale(1, 10).max(GRAIN);
    Template {
        id: fixed(id),
        name: Some(fixed(name)),
        responder: rules.provider.clone().unwrap_or_else(host),
        service: Service::new(fixed("server_parameters"), fixed("container")),
        terms: Terms { direction, ..Terms::new(rate, rate) },
        constraints: Constraints {
            min_at_least: Some(GRAIN),
            min_at_most: Some(most),
            max_at_most: Some(most),
            longest_s: None,
        },
    }
}

/// The users that may offer anything.
const MAY: &str = "root may, and so may each user of `admin` in `[access]` of the configuration";

/// The answer to an offer without a template of the configuration.
pub(super) fn no_template(caller: &Maker, named: Option<&Name>) -> Fault {
    let named = named.map_or("no template".to_owned(), |id| format!("{id}, which is not one of them"));
    let message = format!(
        "{caller} cannot make this offer: it names {named}, and this node has templates (`weir agree template`): \
         name one; {MAY}"
    );
    Fault::new(FaultCode::Forbidden, message)
}

/// The answer to an offer of other packets than its template's.
pub(super) fn other_packets(caller: &Maker, template: &Template) -> Fault {
    let (id, selector) = (&template.id, &template.terms.selector);
    let message = format!(
        "{caller} cannot make this offer: template {id} is for {selector}, and the offer selects other packets: leave \
         its selector out; {MAY}"
    );
    Fault::new(FaultCode::Forbidden, message)
}

/// The answer to an offer of packets that are not one container's.
pub(super) fn not_of_a_container(caller: &Maker, of: Option<&Name>) -> Fault {
    let of = of.map_or("packets of any sender".to_owned(), |of| format!("packets of {of}"));
    let message = format!(
        "{caller} cannot make this offer: it is for {of}: offer for a container, or name a template that selects \
         packets (`weir agree template`); {MAY}"
    );
    Fault::new(FaultCode::Forbidden, message)
}

/// The answer to a user who asks to change another user's agreement.
pub(super) fn not_owned(id: &Name, caller: &Maker, owner: Option<&Maker>, what: &str) -> Fault {
    let owner = owner.map_or("its maker is not known".to_owned(), |owner| format!("{owner} made it"));
    let message = format!("{caller} cannot {what} {id}: {owner}; {MAY}");
    Fault::new(FaultCode::Forbidden, message)
}
