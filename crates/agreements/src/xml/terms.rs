//! `wsag:Terms`, as weir and other makers write them.
//!
//! GFD.192 makes terms a tree of `All`, `ExactlyOne` and `OneOrMore`, as deep as one likes. weir promises one
//! service in an agreement. The tree therefore has to come down to one service description. The rest is read as
//! far as its meaning is kept:
//!
//! * `All` inside of `All` says what one `All` says.
//! * Any one alternative fulfils `ExactlyOne` and `OneOrMore`. weir takes the first that it can promise by its
//!   words, and the agreement names that one.
//! * Each `GuaranteeTerm` has a name of its own. It guarantees `NetMinBandwidth`, which weir guarantees anyway.
//! * `ServiceReference` is the address of the service (WS-Addressing). It is kept, and promises nothing.
//! * `ServiceProperties` say where a variable stands. They may say of `NetMinBandwidth` and `NetMaxBandwidth` what
//!   weir means by them.
//! * `Importance` weighs guarantees against each other. weir keeps all of them.
//!
//! All else is refused with its place.

use super::{
    GUARANTEE, WSA, WSAG, encode,
    service::{NAME, named, service_description, value},
    tree::{Element, Q, Reading},
};
use crate::{Fault, FaultCode, Guarantees, Name, Reference, Service, Terms};

type Result<T> = std::result::Result<T, Fault>;

const ALL: Q = (WSAG, "All");
const EXACTLY_ONE: Q = (WSAG, "ExactlyOne");
const ONE_OR_MORE: Q = (WSAG, "OneOrMore");
const DESCRIPTION: Q = (WSAG, "ServiceDescriptionTerm");
const REFERENCE: Q = (WSAG, "ServiceReference");
const PROPERTIES: Q = (WSAG, "ServiceProperties");
const TERM: Q = (WSAG, "GuaranteeTerm");
/// The children of a compositor.
const KINDS: [Q; 7] = [ALL, EXACTLY_ONE, ONE_OR_MORE, DESCRIPTION, REFERENCE, PROPERTIES, TERM];
const SERVICE: Q = (WSAG, "ServiceName");

/// The most ways in which alternatives of a document are combined.
const MAX_WAYS: usize = 32;

/// The service and its terms.
pub(super) fn terms(r: &Reading<'_>, terms: &Element) -> Result<(Service, Terms)> {
    r.check(terms, &[], &[ALL], &[])?;
    let all = r.child(terms, ALL)?;
    let mut first = None;
    for way in ways(r, all)? {
        match promise(r, all, &way) {
            Ok(promise) => return Ok(promise),
            Err(fault) => first = first.or(Some(fault)),
        }
    }
    Err(first.unwrap_or_else(|| r.refuse(FaultCode::Missing, all, "it has no terms")))
}

fn is(element: &Element, (space, name): Q) -> bool {
    element.space == space && element.name == name
}

/// The ways to fulfil a compositor, in the document's order: for each the terms that have to hold.
fn ways<'e>(r: &Reading<'_>, compositor: &'e Element) -> Result<Vec<Vec<&'e Element>>> {
    r.check(compositor, &[], &[], &KINDS)?;
    let of = |child: &'e Element| match [ALL, EXACTLY_ONE, ONE_OR_MORE].iter().any(|kind| is(child, *kind)) {
        true => ways(r, child),
        false => Ok(vec![vec![child]]),
    };
    let is_choice = !is(compositor, ALL);
    if is_choice && compositor.children.is_empty() {
        return Err(r.refuse(FaultCode::Missing, compositor, "it has no alternative"));
    }
    let mut found = if is_choice { Vec::new() } else { vec![Vec::new()] };
    for child in &compositor.children {
        let ways = of(child)?;
        found = match is_choice {
            true => found.into_iter().chain(ways).collect(),
            false => found.iter().flat_map(|a| ways.iter().map(|b| [a.as_slice(), b].concat())).collect(),
        };
        if found.len() > MAX_WAYS {
            let why = format!("its alternatives can be combined in more than {MAX_WAYS} ways");
            return Err(r.refuse(FaultCode::TooLong, compositor, &why));
        }
    }
    Ok(found)
}

/// The promise that these terms ask for.
fn promise(r: &Reading<'_>, all: &Element, terms: &[&Element]) -> Result<(Service, Terms)> {
    let of_kind = |kind: Q| terms.iter().copied().filter(move |term| is(term, kind));
    let mut descriptions = of_kind(DESCRIPTION);
    let Some(description) = descriptions.next() else {
        let accepted = ["wsag:ServiceDescriptionTerm".to_owned()];
        return Err(r.refuse_for(FaultCode::Missing, all, "it describes no service", accepted));
    };
    if let Some(second) = descriptions.next() {
        let why = "an agreement is about one service, and this is the second: make an offer for each";
        return Err(r.refuse(FaultCode::Repeated, second, why));
    }
    let (term, name, promised) = service_description(r, description)?;
    for properties in of_kind(PROPERTIES) {
        check_properties(r, properties, &name)?;
    }
    let mut references = of_kind(REFERENCE);
    let reference = references.next().map(|element| reference(r, element, &name)).transpose()?;
    if let Some(second) = references.next() {
        return Err(r.refuse(FaultCode::Repeated, second, "the service has a reference already"));
    }
    let mut names: Vec<Name> = Vec::new();
    for element in of_kind(TERM) {
        let name = guarantee(r, element, &name)?;
        if names.contains(&name) {
            return Err(r.refuse(FaultCode::Repeated, element, "there is a guarantee of that name already"));
        }
        if names.len() == Guarantees::MAX {
            let why = format!("there are more than {} guarantees", Guarantees::MAX);
            return Err(r.refuse(FaultCode::TooLong, element, &why));
        }
        names.push(name);
    }
    let guarantees = Guarantees::new(names).unwrap_or_default();
    Ok((Service { term, name, guarantees, reference }, promised))
}

/// Refuses a text but this one.
fn same(r: &Reading<'_>, element: &Element, found: &str, want: &str, why: &str) -> Result<()> {
    if found == want {
        return Ok(());
    }
    Err(r.refuse_for(FaultCode::BadValue, element, why, [want.to_owned()]))
}

/// Refuses the name of another service than the one that is described.
fn check_service(r: &Reading<'_>, element: &Element, service: &Name) -> Result<()> {
    let named = r.attribute(element, SERVICE).unwrap_or(service.as_str());
    same(r, element, named, service.as_str(), "no other service is described")
}

/// The name of a guarantee of the minimum. weir gives no other one.
fn guarantee(r: &Reading<'_>, term: &Element, service: &Name) -> Result<Name> {
    const NO_OTHER: &str = "no such guarantee is given";
    let obligated = (WSAG, "Obligated");
    let (scope, objective) = ((WSAG, "ServiceScope"), (WSAG, "ServiceLevelObjective"));
    let values = (WSAG, "BusinessValueList");
    r.check(term, &[NAME, obligated], &[objective, values], &[scope])?;
    let name = named(r, term, r.required(term, NAME)?)?;
    let party = r.attribute(term, obligated).unwrap_or("ServiceProvider");
    same(r, term, party, "ServiceProvider", NO_OTHER)?;
    for scope in term.children.iter().filter(|child| is(child, scope)) {
        r.check(scope, &[SERVICE], &[], &[])?;
        check_service(r, scope, service)?;
    }
    let objective = r.child(term, objective)?;
    let (target, indicator, level) = ((WSAG, "KPITarget"), (WSAG, "KPIName"), (WSAG, "CustomServiceLevel"));
    r.check(objective, &[], &[target], &[])?;
    let target = r.child(objective, target)?;
    r.check(target, &[], &[indicator, level], &[])?;
    let indicator = r.child(target, indicator)?;
    same(r, indicator, r.text(indicator, &[])?, "NetMinBandwidth", NO_OTHER)?;
    if let Some(level) = r.find(target, level) {
        same(r, level, r.text(level, &[])?, encode::SERVICE_LEVEL, NO_OTHER)?;
    }
    if let Some(values) = r.find(term, values) {
        let importance = (WSAG, "Importance");
        r.check(values, &[], &[importance], &[])?;
        if let Some(importance) = r.find(values, importance) {
            value::<u64>(r, importance)?;
        }
    }
    Ok(name)
}

/// The address of the service.
fn reference(r: &Reading<'_>, element: &Element, service: &Name) -> Result<Reference> {
    let (endpoint, address) = ((WSA, "EndpointReference"), (WSA, "Address"));
    r.check(element, &[NAME, SERVICE], &[endpoint], &[])?;
    check_service(r, element, service)?;
    let term = named(r, element, r.required(element, NAME)?)?;
    let endpoint = r.child(element, endpoint)?;
    r.check(endpoint, &[], &[address], &[])?;
    Ok(Reference { term, address: value(r, r.child(endpoint, address)?)? })
}

/// Refuses variables that are not the paper's terms.
fn check_properties(r: &Reading<'_>, element: &Element, service: &Name) -> Result<()> {
    let (set, variable) = ((WSAG, "VariableSet"), (WSAG, "Variable"));
    let (metric, location) = ((WSAG, "Metric"), (WSAG, "Location"));
    r.check(element, &[NAME, SERVICE], &[set], &[])?;
    check_service(r, element, service)?;
    let set = r.child(element, set)?;
    r.check(set, &[], &[], &[variable])?;
    for variable in &set.children {
        r.check(variable, &[NAME, metric], &[location], &[])?;
        let name = r.required(variable, NAME)?;
        let known = ["NetMinBandwidth", "NetMaxBandwidth"];
        if !known.contains(&name) {
            let accepted = known.map(str::to_owned);
            return Err(r.refuse_for(FaultCode::BadValue, variable, "it is measured nowhere", accepted));
        }
        let location = r.child(variable, location)?;
        // Prefixes of a path are those of its document. A path that ends with the term's name is taken to mean it.
        let path = r.text(location, &[])?;
        let last = path.rsplit(['/', ':']).next().unwrap_or_default();
        let last = last.split('[').next().unwrap_or_default();
        same(r, location, last, name, "it is elsewhere")?;
    }
    Ok(())
}

/// The name of the guarantee in documents that name none.
pub(crate) fn usual_guarantee() -> Name {
    Name::new(GUARANTEE).expect("names in the source are names")
}
